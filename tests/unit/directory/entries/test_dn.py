from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.directory.entries.dn import fold, format_dn, is_below, parse_dn
from arborcast.directory.errors import DnError


@pytest.mark.parametrize(
    ("text", "dn"),
    [
        ("", ()),
        ("OU = topics , dc=x", ((("ou", "topics"),), (("dc", "x"),))),
        ("2.5.4.11=topics", ((("ou", "topics"),),)),
        ("topicName=b+topicNamespace=urn:x", ((("topicname", "b"), ("topicnamespace", "urn:x")),)),
        (r"cn=a\,b\+c\=d\\e\"", ((("cn", 'a,b+c=d\\e"'),),)),
        (r"cn=\c3\A9t\c3\a9", ((("cn", "été"),),)),
        (r"cn=\ two ends\ ", ((("cn", " two ends "),),)),
        (r"cn=\#1", ((("cn", "#1"),),)),
        ("cn=#04024869", ((("cn", "#04024869"),),)),
        ("cn=", ((("cn", ""),),)),
        ("cn=http://example.org/a#b=c", ((("cn", "http://example.org/a#b=c"),),)),
    ],
)
def test_parse(text: str, dn: object) -> None:
    assert parse_dn(text) == dn


@pytest.mark.parametrize(
    "text", ["x", "=x", "cn=a,", "cn=a+", "cn=a\\", "cn=\\zz", "cn=\\ff", 'cn="a"', "cn=a<b", "cn=#04zz", "1cn=a"]
)
def test_invalid_dns(text: str) -> None:
    with pytest.raises(DnError):
        parse_dn(text)


_RDN = st.lists(st.tuples(st.sampled_from(["cn", "topicname"]), st.text(max_size=20)), min_size=1)


@given(st.lists(_RDN, min_size=1))
def test_any_value_survives_writing_and_reading(rdns: list[list[tuple[str, str]]]) -> None:
    dn = tuple(map(tuple, rdns))
    # On reading, "#" at the start is BER in hexadecimal digits, so it is escaped on writing.
    assert parse_dn(format_dn(dn)) == dn


def test_names_of_topics_are_compared_with_case_and_the_base_without() -> None:
    base = fold(parse_dn("OU=Topics"))
    assert base == fold(parse_dn("ou=topics"))
    assert fold(parse_dn("topicName=A")) != fold(parse_dn("topicName=a"))
    assert is_below(fold(parse_dn("topicName=a,ou=topics")), base)
    assert not is_below(base, base)
    assert not is_below(fold(parse_dn("topicName=a,ou=others")), base)


def test_entries_share_the_folded_names_above_them() -> None:
    one, other = (fold(parse_dn(f"topicName={name},OU=Topics,dc=ARBORCAST")) for name in "ab")
    assert one[1:] == ((("ou", "topics"),), (("dc", "arborcast"),))
    assert all(each is same for each, same in zip(one[1:], other[1:], strict=True))
