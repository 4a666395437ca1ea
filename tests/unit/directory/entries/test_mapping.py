from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.directory.entries.changes import Put
from arborcast.directory.entries.dn import format_dn, parse_dn
from arborcast.directory.entries.entries import Entry, EntrySet
from arborcast.directory.entries.ldif import parse
from arborcast.directory.entries.mapping import Listing, ProblemKind, write_rdn
from arborcast.directory.entries.reader import read_listing
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import TopicPath, parse_path
from tests.support.directory import carry_out, records, topic

BASE = parse_dn("ou=topics,dc=x")


def listing_of(text: str) -> Listing:
    """The listing of an LDIF text whose entries are written without the base's DN and class."""
    blocks = parse(("dn: ou=topics,dc=x\nobjectClass: organizationalUnit\nou: topics\n\n" + text).encode())
    return read_listing(EntrySet(block.entry for block in blocks if block.entry is not None), BASE)


def entry(dn: str, *lines: str, kind: str = "arborcastTopic") -> str:
    return "\n".join([f"dn: {dn},ou=topics,dc=x", f"objectClass: {kind}", *lines]) + "\n\n"


def named(dn: str, *lines: str) -> str:
    """An entry with the name of its first RDN."""
    parts = dn.partition(",")[0].replace("=", ": ").split("+")
    return entry(dn, *parts, *lines)


def kinds(listing: Listing) -> list[ProblemKind]:
    return [problem.kind for problem in listing.problems]


def test_the_tree_of_entries_is_the_tree_of_topics() -> None:
    listing = listing_of(
        named("topicName=a", "topicIsTopic: FALSE")
        + named("topicName=b,topicName=a", "topicCode: 7", "topicFinal: TRUE", "topicPriority: -3")
        + named("topicName=c+topicNamespace=urn:c,topicName=a")
        + named("topicName=d,topicName=c+topicNamespace=urn:c,topicName=a", "topicRetain: TRUE")
    )
    assert listing.records() == {
        "a/b": topic("a/b", code="7", final=True, priority=-3),
        "a/{urn:c}c": topic("a/{urn:c}c"),
        "a/{urn:c}c/d": topic("a/{urn:c}c/d", retain=True),
    }
    assert listing.problems == ()


def test_an_invalid_routing_policy_is_ignored() -> None:
    listing = listing_of(
        named("topicName=a", "topicCode: 7", "topicRoutingPolicy: reliable far")
        + named("topicName=b", "topicRoutingPolicy: to:G1 split")
    )
    assert listing.records() == {"a": topic("a", code="7"), "b": topic("b", routing="to:G1 split")}
    (problem,) = listing.problems
    assert (problem.kind, problem.path) == (ProblemKind.BAD_VALUE, "a")
    assert "topicRoutingPolicy is ignored: unknown routing word 'far'" in problem.reason
    assert not listing.held


FOREIGN, MISSING, ILLEGAL = ProblemKind.FOREIGN, ProblemKind.MISSING_ATTRIBUTE, ProblemKind.ILLEGAL_NAME
BAD, TWICE, ALIAS, ORPHAN = ProblemKind.BAD_VALUE, ProblemKind.DUPLICATE_CODE, ProblemKind.ALIAS, ProblemKind.ORPHAN

UNREAD: dict[str, tuple[str, set[str], set[str], list[ProblemKind], str]] = {
    "an alias and the entries below it are skipped": (
        named("topicName=a")
        + entry("cn=loop,topicName=a", "aliasedObjectName: topicName=a,ou=topics,dc=x", kind="alias")
        + named("topicName=b,cn=loop,topicName=a"),
        *({"a"}, set(), [ALIAS, ORPHAN], "cn=loop,topicName=a,ou=topics,dc=x"),
    ),
    "foreign, missing and illegal entries are each reported": (
        entry("cn=me", "cn: me", kind="person")
        + named("cn=x")
        + named("topicName=1st")
        + named("topicName=ok")
        + named("topicName=n,topicName=ok", "topicNamespace: has space"),
        *({"ok"}, {"ok/n"}, [FOREIGN, MISSING, ILLEGAL, ILLEGAL], "cn=me"),
    ),
    "a wrong class or name does not remove the topic of the RDN and those below": (
        entry("topicName=a", "topicName: a", kind="arborcastTopc")
        + named("topicName=b,topicName=a")
        + entry("topicName=c", "description: without a name")
        + named("topicName=d,topicName=c")
        + entry("topicName=e+topicNamespace=urn:e", "topicName: 1st")
        + named("topicName=f,topicName=e+topicNamespace=urn:e"),
        *({"a/b", "c/d", "{urn:e}e/f"}, {"a", "c", "{urn:e}e"}, [FOREIGN, MISSING, ILLEGAL], "topicName=a,"),
    ),
    "a topic with a bad value is held, topics below it are read": (
        named("topicName=a", "topicPriority: high")
        + named("topicName=b,topicName=a")
        + named("topicName=c", "topicFinal: maybe")
        + named("topicName=d", "topicCode: " + "x" * 300),
        *({"a/b"}, {"a", "c", "d"}, [BAD] * 3, "topicPriority is 'high'"),
    ),
    "an entry larger than a record of the log": (
        named("topicName=a", *(f"topicPublisher: {number:0100}" for number in range(1000))) + named("topicName=b"),
        *({"b"}, {"a"}, [BAD], "65536 bytes of properties"),
    ),
    "of two topics with one code the earlier one has it": (
        named("topicName=z")
        + named("topicName=deep,topicName=z", "topicCode: K")
        + named("topicName=a", "topicCode: K"),
        *({"z", "z/deep"}, {"a"}, [TWICE], "z/deep"),
    ),
}


@pytest.mark.parametrize("case", UNREAD)
def test_unreadable_entries(case: str) -> None:
    entries, read, held, problems, said = UNREAD[case]
    listing = listing_of(entries)
    assert (set(listing.entries), set(listing.held), kinds(listing)) == (read, held, problems)
    assert said in f"{listing.problems[0].dn} {listing.problems[0].reason}"


def test_two_entries_for_one_topic_and_a_tree_too_deep() -> None:
    above = "topicName=a+topicNamespace=urn:t"
    listing = listing_of(
        named(above)
        + named(f"topicName=b,{above}", "topicCode: first")
        + named(f"topicName=b+topicNamespace=urn:t,{above}")
    )
    assert listing.records()[parse_path("{urn:t}a/b")].code == "first"
    assert kinds(listing) == [ProblemKind.DUPLICATE_TOPIC]

    levels = [f"topicName=n{level}" for level in range(66)]
    deep = listing_of("".join(named(",".join(reversed(levels[:depth]))) for depth in range(1, 67)))
    assert len(deep.entries) == 64
    assert kinds(deep)[0] is ILLEGAL


def test_equal_names_in_two_namespaces_have_different_rdns() -> None:
    rdns = {path: format_dn((write_rdn(parse_path(path)),)) for path in ("a/b", "{urn:t}a/b")}
    assert set(rdns.values()) == {"topicName=b"}
    assert format_dn((write_rdn(parse_path("a/{urn:x,y}b")),)) == r"topicName=b+topicNamespace=urn:x\,y"
    assert format_dn((write_rdn(parse_path("{urn:t}a")),)) == "topicName=a+topicNamespace=urn:t"


@given(st.lists(records(), max_size=8, unique_by=lambda record: record.path))
def test_records_survive_the_conversion_to_entries(drafts: list[TopicRecord]) -> None:
    seen: set[str] = set()
    wanted: dict[TopicPath, TopicRecord] = {}
    for draft in drafts:
        if not draft.code or draft.code not in seen:
            seen.add(draft.code)
            wanted[draft.path] = draft
    entries = EntrySet()
    carry_out([Put(record) for record in wanted.values()], entries, BASE)
    listing = read_listing(entries, BASE)
    assert listing.records() == wanted
    assert listing.problems == ()
    # Every entry has its parent before it, so that a server would accept them in this order.
    present = {BASE[1:]}
    for each in entries:
        assert each.dn[1:] in present
        present.add(each.dn)


_ATTRIBUTES = st.dictionaries(
    st.sampled_from(["topicname", "topicnamespace", "topiccode", "topicpriority", "topicistopic", "topicfinal"]),
    st.lists(st.binary(max_size=5), max_size=2).map(tuple),
)


@given(st.lists(st.tuples(st.text(max_size=5), _ATTRIBUTES), max_size=5))
def test_no_entry_stops_the_reading(drafts: list[tuple[str, dict[str, tuple[bytes, ...]]]]) -> None:
    entries = EntrySet([Entry.of(BASE, {})])
    parent = BASE
    for name, attributes in drafts:
        parent = ((("topicname", name),), *parent)
        entries.put(Entry.of(parent, {"objectclass": (b"arborcastTopic",), **attributes}))
    assert len(read_listing(entries, BASE).entries) <= len(drafts)
