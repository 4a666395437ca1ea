from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.directory.entries import ldif
from arborcast.directory.entries.entries import Entry
from arborcast.directory.errors import LdifError


def test_folded_and_encoded_lines_and_comments() -> None:
    blocks = ldif.parse(
        b"\xef\xbb\xbfversion: 1\n"
        b"# a comment\n that goes on\n"
        b"dn: topicName=a,ou=to\n pics\n"
        b"objectClass: arborcastTopic\n"
        b"topicName:: R3LDtsOfZQ==\n"
        b"description:\n"
        b"topicPublisher: one\n"
        b"# in the middle\n"
        b"TOPICPUBLISHER: two\n"
        b"seeAlso:   two  spaces\n"
    )
    (entry,) = (block.entry for block in blocks if block.entry is not None)
    assert entry.dn == ((("topicname", "a"),), (("ou", "topics"),))
    assert entry.attributes == {
        "objectclass": (b"arborcastTopic",),
        "topicname": ("Größe".encode(),),
        "description": (b"",),
        "topicpublisher": (b"one", b"two"),
        "seealso": (b"two  spaces",),
    }


def test_text_of_records_is_kept_without_a_byte_order_mark() -> None:
    data = b"# head\n\n# about a\ndn: ou=a\nou: a\n# tail\n\ndn: ou=b\nou: b\n"
    for mark in (b"", b"\xef\xbb\xbf"):
        assert ldif.write(ldif.parse(mark + data)) == data


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
def test_an_error_names_its_line(text: str, line: int, word: str) -> None:
    with pytest.raises(LdifError, match=word) as caught:
        ldif.parse(text.encode())
    assert caught.value.line == line


_NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True).filter(
    lambda name: name not in ("dn", "changetype", "control", "version")
)
_VALUES = st.lists(st.binary(max_size=120), min_size=1, max_size=3).map(tuple)
_DRAFTS = st.tuples(st.text(min_size=1, max_size=60), st.dictionaries(_NAMES, _VALUES, max_size=4))


@given(st.lists(_DRAFTS, max_size=4))
def test_written_entries_read_back(drafts: list[tuple[str, dict[str, tuple[bytes, ...]]]]) -> None:
    entries = [Entry.of(((("cn", name),), (("ou", "topics"),)), attributes) for name, attributes in drafts]
    data = ldif.write(map(ldif.render, entries))
    assert all(len(line) <= 76 for line in data.split(b"\n"))
    assert [block.entry for block in ldif.parse(data)] == entries
