from __future__ import annotations

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


def test_an_alias_and_what_is_below_it_are_skipped() -> None:
    listing = listing_of(
        entry("topicName=a", "topicName: a")
        + entry("cn=loop,topicName=a", "aliasedObjectName: topicName=a,ou=topics,dc=x", kind="alias")
        + entry("topicName=b,cn=loop,topicName=a", "topicName: b")
    )
    assert set(listing.entries) == {"a"}
    assert kinds(listing) == [ProblemKind.ALIAS, ProblemKind.ORPHAN]
    assert listing.problems[0].dn == "cn=loop,topicName=a,ou=topics,dc=x"


def test_foreign_missing_and_illegal_entries_are_each_reported() -> None:
    listing = listing_of(
        entry("cn=me", "cn: me", kind="person")
        + entry("cn=x", "cn: x")
        + entry("topicName=1st", "topicName: 1st")
        + entry("topicName=ok", "topicName: ok")
        + entry("topicName=n,topicName=ok", "topicName: n", "topicNamespace: has space")
    )
    assert set(listing.entries) == {"ok"}
    assert kinds(listing) == [
        ProblemKind.FOREIGN,
        ProblemKind.MISSING_ATTRIBUTE,
        ProblemKind.ILLEGAL_NAME,
        ProblemKind.ILLEGAL_NAME,
    ]


def test_a_topic_with_a_bad_value_is_held_and_those_below_it_are_read() -> None:
    listing = listing_of(
        entry("topicName=a", "topicName: a", "topicPriority: high")
        + entry("topicName=b,topicName=a", "topicName: b")
        + entry("topicName=c", "topicName: c", "topicFinal: maybe")
        + entry("topicName=d", "topicName: d", "topicCode: " + "x" * 300)
    )
    assert set(listing.entries) == {"a/b"}
    assert listing.held == {"a", "c", "d"}
    assert kinds(listing) == [ProblemKind.BAD_VALUE] * 3
    assert "topicPriority is 'high'" in listing.problems[0].reason


def test_of_two_topics_with_one_code_the_one_that_was_there_first_has_it() -> None:
    listing = listing_of(
        entry("topicName=z", "topicName: z")
        + entry("topicName=deep,topicName=z", "topicName: deep", "topicCode: K")
        + entry("topicName=a", "topicName: a", "topicCode: K")
    )
    assert set(listing.entries) == {"z", "z/deep"}
    assert listing.held == {"a"}
    assert kinds(listing) == [ProblemKind.DUPLICATE_CODE]
    assert "z/deep" in listing.problems[0].reason


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
