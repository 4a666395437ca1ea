from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.directory.entries.changes import Put, Workspace, in_writing_order
from arborcast.directory.entries.dn import format_dn, parse_dn
from arborcast.directory.entries.entries import Entry, EntrySet
from arborcast.directory.entries.ldif import parse
from arborcast.directory.entries.mapping import Listing, ProblemKind, write_rdn
from arborcast.directory.entries.reader import read_listing
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import TopicPath, parse_path
from tests.support.directory import records, topic

BASE = parse_dn("ou=topics,dc=x")


def listing_of(text: str) -> Listing:
    """The listing of an LDIF text whose entries are written without the base's DN and class."""
    blocks = parse(("dn: ou=topics,dc=x\nobjectClass: organizationalUnit\nou: topics\n\n" + text).encode())
    return read_listing(EntrySet(block.entry for block in blocks if block.entry is not None), BASE)


def entry(dn: str, *lines: str, kind: str = "arborcastTopic") -> str:
    return "\n".join([f"dn: {dn},ou=topics,dc=x", f"objectClass: {kind}", *lines]) + "\n\n"


def kinds(listing: Listing) -> list[ProblemKind]:
    return [problem.kind for problem in listing.problems]


def test_the_tree_of_entries_is_the_tree_of_topics() -> None:
    listing = listing_of(
        entry("topicName=a", "topicName: a", "topicIsTopic: FALSE")
        + entry("topicName=b,topicName=a", "topicName: b", "topicCode: 7", "topicFinal: TRUE", "topicPriority: -3")
        + entry("topicName=c+topicNamespace=urn:c,topicName=a", "topicName: c", "topicNamespace: urn:c")
        + entry("topicName=d,topicName=c+topicNamespace=urn:c,topicName=a", "topicName: d", "topicRetain: TRUE")
    )
    assert listing.records() == {
        "a/b": topic("a/b", code="7", final=True, priority=-3),
        "a/{urn:c}c": topic("a/{urn:c}c"),
        "a/{urn:c}c/d": topic("a/{urn:c}c/d", retain=True),
    }
    assert listing.problems == ()


def test_a_routing_policy_that_means_nothing_is_a_problem_and_counts_as_none() -> None:
    listing = listing_of(
        entry("topicName=a", "topicName: a", "topicCode: 7", "topicRoutingPolicy: reliable far")
        + entry("topicName=b", "topicName: b", "topicRoutingPolicy: to:G1 split")
    )
    assert listing.records() == {"a": topic("a", code="7"), "b": topic("b", routing="to:G1 split")}
    (problem,) = listing.problems
    assert (problem.kind, problem.path) == (ProblemKind.BAD_VALUE, "a")
    assert "topicRoutingPolicy is ignored: unknown routing word 'far'" in problem.reason
    assert not listing.held


FOREIGN, MISSING, ILLEGAL = ProblemKind.FOREIGN, ProblemKind.MISSING_ATTRIBUTE, ProblemKind.ILLEGAL_NAME
BAD, TWICE, ALIAS, ORPHAN = ProblemKind.BAD_VALUE, ProblemKind.DUPLICATE_CODE, ProblemKind.ALIAS, ProblemKind.ORPHAN


@pytest.mark.parametrize(
    ("entries", "read", "held", "problems", "said"),
    [
        pytest.param(
            entry("topicName=a", "topicName: a")
            + entry("cn=loop,topicName=a", "aliasedObjectName: topicName=a,ou=topics,dc=x", kind="alias")
            + entry("topicName=b,cn=loop,topicName=a", "topicName: b"),
            *({"a"}, set(), [ALIAS, ORPHAN], "cn=loop,topicName=a,ou=topics,dc=x"),
            id="an alias and what is below it are skipped",
        ),
        pytest.param(
            entry("cn=me", "cn: me", kind="person")
            + entry("cn=x", "cn: x")
            + entry("topicName=1st", "topicName: 1st")
            + entry("topicName=ok", "topicName: ok")
            + entry("topicName=n,topicName=ok", "topicName: n", "topicNamespace: has space"),
            *({"ok"}, set(), [FOREIGN, MISSING, ILLEGAL, ILLEGAL], "cn=me"),
            id="foreign, missing and illegal entries are each reported",
        ),
        pytest.param(
            entry("topicName=a", "topicName: a", "topicPriority: high")
            + entry("topicName=b,topicName=a", "topicName: b")
            + entry("topicName=c", "topicName: c", "topicFinal: maybe")
            + entry("topicName=d", "topicName: d", "topicCode: " + "x" * 300),
            *({"a/b"}, {"a", "c", "d"}, [BAD] * 3, "topicPriority is 'high'"),
            id="a topic with a bad value is held and those below it are read",
        ),
        pytest.param(
            entry("topicName=z", "topicName: z")
            + entry("topicName=deep,topicName=z", "topicName: deep", "topicCode: K")
            + entry("topicName=a", "topicName: a", "topicCode: K"),
            *({"z", "z/deep"}, {"a"}, [TWICE], "z/deep"),
            id="of two topics with one code the one that was there first has it",
        ),
    ],
)
def test_what_cannot_be_read(
    entries: str, read: set[str], held: set[str], problems: list[ProblemKind], said: str
) -> None:
    listing = listing_of(entries)
    assert (set(listing.entries), set(listing.held), kinds(listing)) == (read, held, problems)
    assert said in f"{listing.problems[0].dn} {listing.problems[0].reason}"


def test_two_entries_for_one_topic() -> None:
    listing = listing_of(
        entry("topicName=a+topicNamespace=urn:t", "topicName: a", "topicNamespace: urn:t")
        + entry("topicName=b,topicName=a+topicNamespace=urn:t", "topicName: b", "topicCode: first")
        + entry(
            "topicName=b+topicNamespace=urn:t,topicName=a+topicNamespace=urn:t", "topicName: b", "topicNamespace: urn:t"
        )
    )
    assert listing.records()[parse_path("{urn:t}a/b")].code == "first"
    assert kinds(listing) == [ProblemKind.DUPLICATE_TOPIC]


def test_a_tree_too_deep() -> None:
    dn, text = "", ""
    for level in range(66):
        dn = f"topicName=n{level}" + ("," + dn if dn else "")
        text += entry(dn, f"topicName: n{level}")
    listing = listing_of(text)
    assert len(listing.entries) == 64
    assert kinds(listing)[0] is ProblemKind.ILLEGAL_NAME


def test_siblings_of_one_name_in_two_namespaces_have_rdns_of_their_own() -> None:
    assert format_dn((write_rdn(parse_path("a/b")),)) == "topicName=b"
    assert format_dn((write_rdn(parse_path("a/{urn:x,y}b")),)) == r"topicName=b+topicNamespace=urn:x\,y"
    assert format_dn((write_rdn(parse_path("{urn:t}a/b")),)) == "topicName=b"
    assert format_dn((write_rdn(parse_path("{urn:t}a")),)) == "topicName=a+topicNamespace=urn:t"


@given(st.lists(records(), max_size=8, unique_by=lambda record: record.path))
def test_records_survive_the_way_through_entries(drafts: list[TopicRecord]) -> None:
    seen: set[str] = set()
    wanted: dict[TopicPath, TopicRecord] = {}
    for draft in drafts:
        if not draft.code or draft.code not in seen:
            seen.add(draft.code)
            wanted[draft.path] = draft
    entries = EntrySet()
    workspace = Workspace(entries, Listing(initialised=False), BASE)
    for change in in_writing_order([Put(record) for record in wanted.values()]):
        for edit in workspace.plan(change):
            workspace.completed(edit)
    listing = read_listing(entries, BASE)
    assert listing.records() == wanted
    assert listing.problems == ()
    # And every entry has its parent, so that a server would take them in this order.
    present = {BASE[1:]}
    for each in entries:
        assert each.dn[1:] in present
        present.add(each.dn)


@given(
    st.lists(
        st.tuples(
            st.text(max_size=5),
            st.dictionaries(
                st.sampled_from(
                    ["topicname", "topicnamespace", "topiccode", "topicpriority", "topicistopic", "topicfinal"]
                ),
                st.lists(st.binary(max_size=5), max_size=2).map(tuple),
            ),
        ),
        max_size=5,
    )
)
def test_no_entry_can_stop_the_reading(drafts: list[tuple[str, dict[str, tuple[bytes, ...]]]]) -> None:
    entries = EntrySet([Entry.of(BASE, {})])
    parent = BASE
    for name, attributes in drafts:
        parent = ((("topicname", name),), *parent)
        entries.put(Entry.of(parent, {"objectclass": (b"arborcastTopic",), **attributes}))
    listing = read_listing(entries, BASE)
    assert len(listing.entries) <= len(drafts)
