from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.directory.entries import ldif
from arborcast.directory.entries.entries import Entry
from arborcast.directory.errors import LdifError


def entry_of(text: str) -> Entry:
    (block,) = (block for block in ldif.parse(text.encode()) if block.entry is not None)
    assert block.entry is not None
    return block.entry


def test_an_entry_with_folded_encoded_and_commented_lines() -> None:
    entry = entry_of(
        "version: 1\n"
        "# a comment\n that goes on\n"
        "dn: topicName=a,ou=to\n pics\n"
        "objectClass: arborcastTopic\n"
        "topicName:: R3LDtsOfZQ==\n"
        "description:\n"
        "# in the middle\n"
        "seeAlso:   two  spaces\n"
    )
    assert entry.dn == ((("topicname", "a"),), (("ou", "topics"),))
    assert entry.attributes == {
        "objectclass": (b"arborcastTopic",),
        "topicname": ("Größe".encode(),),
        "description": (b"",),
        "seealso": (b"two  spaces",),
    }


def test_a_byte_order_mark_is_not_content() -> None:
    blocks = ldif.parse("\ufeff# topics\n\ndn: ou=a\nou: a\n".encode())
    assert [block.entry is None for block in blocks] == [True, False]
    assert ldif.write(blocks) == b"# topics\n\ndn: ou=a\nou: a\n"
    assert entry_of("\ufeffdn: ou=a\n").dn == ((("ou", "a"),),)


def test_values_of_one_attribute_keep_their_order_whatever_the_case_of_its_name() -> None:
    entry = entry_of("dn: ou=a\ntopicPublisher: one\nTOPICPUBLISHER: two\n")
    assert entry.attributes == {"topicpublisher": (b"one", b"two")}


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("dn: ou=a\nchangetype: delete\n", 2, "change record"),
        ("dn: ou=a\nou a\n", 2, "attribute: value"),
        ("# x\n\nou: a\n", 3, "must begin with dn:"),
        ("dn: ou=a\nou:: ???\n", 2, "base64"),
        ("dn: ou=a\njpegPhoto:< file:///etc/passwd\n", 2, "URL"),
        (" dn: ou=a\n", 1, "continuation"),
        ("version: 2\ndn: ou=a\n", 1, "version"),
        ("dn: ou=a\nou: a\ndn: ou=b\n", 3, "second dn"),
        ("dn: nonsense\n", 1, "not a DN"),
        ("dn: ou=a\n2.5.4.\u0661: a\n", 2, "attribute"),
        ("dn:: /w==\n", 1, "UTF-8"),
    ],
)
def test_what_is_refused_names_the_line(text: str, line: int, word: str) -> None:
    with pytest.raises(LdifError, match=word) as caught:
        ldif.parse(text.encode())
    assert caught.value.line == line


@given(
    st.lists(
        st.tuples(
            st.text(min_size=1, max_size=60),
            st.dictionaries(
                st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True).filter(
                    lambda name: name not in ("dn", "changetype", "control", "version")
                ),
                st.lists(st.binary(max_size=120), min_size=1, max_size=3).map(tuple),
                max_size=4,
            ),
        ),
        max_size=4,
    )
)
def test_what_is_written_reads_back(drafts: list[tuple[str, dict[str, tuple[bytes, ...]]]]) -> None:
    entries = [Entry.of(((("cn", name),), (("ou", "topics"),)), attributes) for name, attributes in drafts]
    data = ldif.write(map(ldif.render, entries))
    assert all(len(line) <= 76 for line in data.split(b"\n"))
    assert [block.entry for block in ldif.parse(data)] == entries


def test_text_of_records_is_kept_as_it_was() -> None:
    data = b"# head\n\n# about a\ndn: ou=a\nou: a\n# tail\n\ndn: ou=b\nou: b\n"
    assert ldif.write(ldif.parse(data)) == data
