"""Links to other engines, and reports of interests."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from arborcast.ingest.federation.interests import PeerInterests
from arborcast.ingest.federation.links import (
    ToPeer,
    absent_groups,
    changes,
    forgotten,
    reports_of,
    resumed,
    wanted_links,
)
from arborcast.ingest.federation.topology import Member, State, Topology
from arborcast.topic_model.records.control import (
    PeerInterest,
    SubscriptionEnded,
    SubscriptionRecord,
    Tombstone,
    interest_key,
    suspension_key,
)
from arborcast.topic_model.subscriptions import Peer, Protection, SigningSecret, Subscription


def topology(*members: str, gone: str = "") -> Topology:
    found = []
    for number, engine in enumerate(members, 1):
        group, name = engine.split("/")
        state: State = "gone" if engine in gone.split() else "live"
        found.append(Member(name, group, f"http://{name}/", "1", number, state))
    return Topology(1, tuple(found))


def interests(**wanted: str) -> PeerInterests:
    found = PeerInterests()
    for peer, topics in wanted.items():
        found.apply(PeerInterest(peer.replace("_", "/"), "G/x", 1, tuple(topics.split())))
    return found


ALL = topology("G/a", "G/b", "H/x", "H/y", "I/z")


def protect(link: Subscription) -> Subscription:
    if link.protection is not None:
        return link
    return msgspec.structs.replace(link, protection=Protection((SigningSecret(f"k:{link.consumer.address}"),)))


def test_to_members_and_from_the_representative_to_groups() -> None:
    wants = interests(G_a="m", G_b="a b//.", H_="c", I_="")
    links = wanted_links("G/a", ALL, wants)
    assert [(each.id, each.to, each.url, each.topics) for each in links] == [
        ("peer-b", "G/b", "http://b/", ("a", "b//.")),
        ("peer-group.H", "H/", "http://x/", ("c",)),
    ]
    assert [each.id for each in wanted_links("G/b", ALL, wants)] == ["peer-a"]
    after = topology("G/a", "G/b", "H/x", "H/y", gone="G/a H/x")
    assert [(each.id, each.url) for each in wanted_links("G/b", after, wants)] == [
        ("peer-a", "http://a/"),
        ("peer-group.H", "http://y/"),
    ]


def links(where: Topology, wants: PeerInterests, there: Sequence[Subscription] = (), at: int = 5) -> list[Subscription]:
    """Those of G/a that are new or changed."""
    records = changes("G/a", wanted_links("G/a", where, wants), there, at, protect)
    return [each.subscription for each in records if isinstance(each, SubscriptionRecord)]


def test_the_life_of_a_link_to_another_group() -> None:
    there = links(ALL, interests(H_="c"))
    after = topology("G/a", "H/x", "H/y", gone="H/x")
    (changed,) = links(after, interests(H_="c d"), there, 9)
    assert (changed.consumer.address, changed.selector()) == ("http://y/federation", "c|d")
    assert changed.created_ms == there[0].created_ms
    assert changed.protection != there[0].protection, "a secret is sealed for one address"
    # Without an interest it takes nothing new, and may open again.
    (ended,) = links(ALL, interests(), there, 9)
    assert ended.terminates_ms == 9
    assert changes("G/a", [], [ended], 10, protect) == []
    assert links(ALL, interests(H_="c"), [ended], 11) == there
    # While no member of the group is there, its messages wait.
    absent = topology("G/a", "H/x", gone="H/x")
    assert absent_groups(absent) == {"H/"}
    assert wanted_links("G/a", absent, interests(H_="c")) == []
    assert changes("G/a", [], there, 9, protect, absent_groups(absent)) == []
    # Subscriptions of others are left alone.
    plain = msgspec.structs.replace(there[0], id="s", form="notify", peer=None)
    assert changes("G/a", [], [plain], 9, protect) == []


def test_reports_to_members_and_groups() -> None:
    wants = interests(G_b="b", H_="h")
    wants.apply(PeerInterest("G/b", "G/b", 2, ("b",), ("for others",)))
    assert reports_of("G/a", ALL, wants, ("own",)) == {
        "G/b": ToPeer([("own",)], [("h",), ()]),
        "H/": ToPeer([("own",), ("b",)], []),
        "I/": ToPeer([("own",), ("b",)], []),
    }
    assert reports_of("G/b", ALL, wants, ("own",)) == {"G/a": ToPeer([("own",)], [])}


def test_a_successor_does_not_report_to_others_their_own_interest() -> None:
    wants = interests(H_="h")
    wants.apply(PeerInterest("G/a", "G/a", 2, ("a",), ("h",)))
    after = topology("G/a", "G/b", "H/x", gone="G/a")
    assert reports_of("G/b", after, wants, ()) == {"H/": ToPeer([(), ("a",)], [])}
    assert [each.topics for each in wanted_links("G/b", after, wants)] == [("a", "h"), ("h",)]


def test_the_fold_of_interests() -> None:
    found = interests(G_b="b", H_="h")
    assert forgotten(topology("G/a", "G/b"), found) == [Tombstone(interest_key("H/"))]
    found.apply(Tombstone(interest_key("H/")))
    assert (found.topics("H/"), found.topics("G/b"), [each.peer for each in found]) == ((), ("b",), ["G/b"])
    (link,) = links(ALL, interests(H_="c"))
    found.apply(SubscriptionRecord(link))
    found.apply(SubscriptionRecord(msgspec.structs.replace(link, id="s", peer=None)))
    assert found.links == {"peer-group.H"}
    found.apply(SubscriptionEnded("peer-group.H", "expired", 1))
    assert found.links == set()


def test_suspended_links_are_resumed_when_the_other_end_is_there() -> None:
    wanted = wanted_links("G/a", ALL, interests(G_b="b", H_="h"))
    assert resumed(wanted, ALL, {"peer-b", "s"}.__contains__) == [Tombstone(suspension_key("peer-b"))]
    assert resumed(wanted, topology("G/a", "G/b", gone="G/b"), {"peer-b"}.__contains__) == []


def test_the_two_links_of_a_member_that_takes_datagrams() -> None:
    """They come and go in an order that leaves no gap."""
    wants, where = interests(G_b="a", H_="c"), {"G/b": "udp://192.0.2.7:8096"}
    first = changes("G/a", wanted_links("G/a", ALL, wants, where), [], 5, protect)
    there = [each.subscription for each in first if isinstance(each, SubscriptionRecord)]
    assert [(each.id, each.consumer.address, each.peer) for each in there] == [
        ("peer-fast.b", "udp://192.0.2.7:8096", Peer("G/a", "G/b", "only")),
        ("peer-b", "http://b/federation", Peer("G/a", "G/b", "without")),
        ("peer-group.H", "http://x/federation", Peer("G/a", "H/")),
    ]
    assert [each.policy.reliability for each in there] == ["timely", "strict", "strict"]
    assert changes("G/a", wanted_links("G/a", ALL, wants, where), there, 9, protect) == []
    after = links(ALL, wants, there, 9)
    assert [(each.id, each.terminates_ms) for each in after] == [("peer-b", None), ("peer-fast.b", 9)]
    assert after[0].peer == Peer("G/a", "G/b")
