"""Links to other engines, reports of interests, and registration of a member."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Event
from unittest.mock import Mock

import msgspec
import pytest

from arborcast.core.settings import KafkaSettings
from arborcast.ingest.federation import member as member_module
from arborcast.ingest.federation import takeover
from arborcast.ingest.federation.interests import PeerInterests
from arborcast.ingest.federation.links import (
    absent_groups,
    changes,
    forgotten,
    reports_of,
    required_links,
    resumed,
)
from arborcast.ingest.federation.member import (
    FederationMember,
    _DatagramAddresses,
    _InterestSender,
    _Membership,
    address_of,
    read_file,
)
from arborcast.ingest.federation.settings import FederationSettings
from arborcast.ingest.federation.topology import (
    AdministratorRefused,
    Member,
    MemberRegistration,
    Registered,
    State,
    Topology,
)
from arborcast.topic_model.records.control import PeerInterest, SubscriptionEnded, SubscriptionRecord, Tombstone
from arborcast.topic_model.subscriptions import Peer, Protection, SigningSecret, Subscription
from tests.support.gateway_parts import GatewayParts
from tests.support.make import subscription


def topology(*members: str, gone: str = "") -> Topology:
    found = []
    for number, engine in enumerate(members, 1):
        group, name = engine.split("/")
        state: State = "gone" if engine in gone.split() else "live"
        found.append(Member(name, group, f"http://{name}/", "1", number=number, state=state))
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
    links = required_links("G/a", ALL, wants)
    assert [(each.id, each.to, each.url, each.topics) for each in links] == [
        ("peer-b", "G/b", "http://b/", ("a", "b//.")),
        ("peer-group.H", "H/", "http://x/", ("c",)),
    ]
    assert [each.id for each in required_links("G/b", ALL, wants)] == ["peer-a"]
    after = topology("G/a", "G/b", "H/x", "H/y", gone="G/a H/x")
    assert [(each.id, each.url) for each in required_links("G/b", after, wants)] == [
        ("peer-a", "http://a/"),
        ("peer-group.H", "http://y/"),
    ]


def links(where: Topology, wants: PeerInterests, there: Sequence[Subscription] = (), at: int = 5) -> list[Subscription]:
    """New and changed links of G/a."""
    records = changes("G/a", required_links("G/a", where, wants), there, at, protect)
    return [each.subscription for each in records if isinstance(each, SubscriptionRecord)]


def test_the_life_of_a_link_to_another_group() -> None:
    there = links(ALL, interests(H_="c"))
    after = topology("G/a", "H/x", "H/y", gone="H/x")
    (changed,) = links(after, interests(H_="c d"), there, 9)
    assert (changed.consumer.address, changed.selector()) == ("http://y/federation", "c|d")
    assert changed.created_ms == there[0].created_ms
    assert changed.protection != there[0].protection, "a secret is sealed for one address"
    # Without an interest the link ends, and can be opened again.
    (ended,) = links(ALL, interests(), there, 9)
    assert ended.terminates_ms == 9
    assert changes("G/a", [], [ended], 10, protect) == []
    assert links(ALL, interests(H_="c"), [ended], 11) == there
    # Messages wait while the group has no live member.
    absent = topology("G/a", "H/x", gone="H/x")
    assert absent_groups(absent) == {"H/"}
    assert required_links("G/a", absent, interests(H_="c")) == []
    assert changes("G/a", [], there, 9, protect, absent_groups(absent)) == []
    # Other subscriptions are not changed.
    plain = msgspec.structs.replace(there[0], id="s", form="notify", peer=None)
    assert changes("G/a", [], [plain], 9, protect) == []


def test_reports_to_members_and_groups() -> None:
    wants = interests(G_b="b", H_="h")
    wants.apply(PeerInterest("G/b", "G/b", 2, ("b",), ("for others",)))
    assert reports_of("G/a", ALL, wants, ("own",)) == {
        "G/b": (("own",), ("h",)),
        "H/": (("b", "own"), ()),
        "I/": (("b", "own"), ()),
    }
    assert reports_of("G/b", ALL, wants, ("own",)) == {"G/a": (("own",), ())}


def test_a_successor_does_not_report_an_interest_to_its_group() -> None:
    wants = interests(H_="h")
    wants.apply(PeerInterest("G/a", "G/a", 2, ("a",), ("h",)))
    after = topology("G/a", "G/b", "H/x", gone="G/a")
    assert reports_of("G/b", after, wants, ()) == {"H/": (("a",), ())}
    assert [each.topics for each in required_links("G/b", after, wants)] == [("a", "h"), ("h",)]


def test_the_fold_of_interests() -> None:
    found = interests(G_b="b", H_="h")
    assert forgotten(topology("G/a", "G/b"), found) == [Tombstone.of("interest", "H/")]
    found.apply(Tombstone.of("interest", "H/"))
    assert (found.topics("H/"), found.topics("G/b"), [each.peer for each in found]) == ((), ("b",), ["G/b"])
    (link,) = links(ALL, interests(H_="c"))
    found.apply(SubscriptionRecord(link))
    found.apply(SubscriptionRecord(msgspec.structs.replace(link, id="s", peer=None)))
    assert found.links == {"peer-group.H"}
    found.apply(SubscriptionEnded("peer-group.H", "expired", 1))
    assert found.links == set()


def test_suspended_links_are_resumed_when_the_peer_is_live() -> None:
    wanted = required_links("G/a", ALL, interests(G_b="b", H_="h"))
    assert resumed(wanted, ALL, {"peer-b", "s"}.__contains__) == [Tombstone.of("susp", "peer-b")]
    assert resumed(wanted, topology("G/a", "G/b", gone="G/b"), {"peer-b"}.__contains__) == []


def test_the_two_links_of_a_member_with_datagrams() -> None:
    """They are added and removed in an order without a gap."""
    wants, where = interests(G_b="a", H_="c"), {"G/b": "udp://192.0.2.7:8096"}
    first = changes("G/a", required_links("G/a", ALL, wants, where), [], 5, protect)
    there = [each.subscription for each in first if isinstance(each, SubscriptionRecord)]
    assert [(each.id, each.consumer.address, each.peer) for each in there] == [
        ("peer-fast.b", "udp://192.0.2.7:8096", Peer("G/a", "G/b", "only")),
        ("peer-b", "http://b/federation", Peer("G/a", "G/b", "without")),
        ("peer-group.H", "http://x/federation", Peer("G/a", "H/")),
    ]
    assert [each.policy.reliability for each in there] == ["timely", "strict", "strict"]
    assert changes("G/a", required_links("G/a", ALL, wants, where), there, 9, protect) == []
    after = links(ALL, wants, there, 9)
    assert [(each.id, each.terminates_ms) for each in after] == [("peer-b", None), ("peer-fast.b", 9)]
    assert after[0].peer == Peer("G/a", "G/b")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1"),
        ("https://[::1]/below", "::1"),
        *((url, "") for url in ("http://", "http://[::1", f"http://{'a' * 70}/")),
    ],
)
def test_the_address_of_a_member(url: str, address: str) -> None:
    assert address_of(Member("b", "G", url, "1", 9, number=1)) == address


async def test_a_lookup_without_an_answer_does_not_delay_other_links(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Event()

    def look_up(member: Member) -> str:
        if member.name == "hangs":
            ended.wait()
        return "127.0.0.1"

    monkeypatch.setattr(member_module, "address_of", look_up)
    monkeypatch.setattr(member_module, "_LOOKUP_S", 0.05)
    names = enumerate(("a", "hangs", "b"))
    members = [Member(name, "G", f"http://{name}/", "1", 9, number=number) for number, name in names]
    settings = FederationSettings("a", "G", "http://administrator", key_file="key")
    addresses = _DatagramAddresses(settings, Mock(https_only=False))
    found: Mapping[str, str] = {}
    version = 0
    try:
        while not found:  # a thread may need longer to start
            version += 1
            found = await addresses.of(Topology(version, tuple(members)))
        assert list(found) == ["G/b"]
    finally:
        ended.set()


def settled(outcome: object) -> Future[object]:
    made: Future[object] = Future()
    if isinstance(outcome, Exception):
        made.set_exception(outcome)
    else:
        made.set_result(outcome)
    return made


@pytest.mark.parametrize(("status", "numbers"), [(404, [1, 1, 2]), (409, [1, 1, 2]), (500, [1, 1, 1])])
async def test_a_member_that_was_removed_registers_again(status: int, numbers: list[int]) -> None:
    administrator = Mock()
    administrator.register.side_effect = [settled(Registered(number, 1)) for number in (1, 2)]
    administrator.beat.side_effect = map(settled, (None, AdministratorRefused("gone", status), None))
    membership = _Membership(MemberRegistration("a", "G", "http://a/", "1", 0), administrator)
    await membership.renew()
    with pytest.raises(AdministratorRefused):
        await membership.renew()
    await membership.renew()
    assert [call.args[1] for call in administrator.beat.call_args_list] == numbers


def test_when_an_interest_is_sent() -> None:
    sender = _InterestSender("G/a", Mock(), Mock())
    one, other = (("a",), ()), (("b",), ())
    assert sender.is_due("G/b", one, 1, 100.0)
    assert sender.is_due("G/b", one, 1, 101.0), "until it is accepted"
    version = sender._sent["G/b"].version
    sender._sent["G/b"] = sender._sent["G/b"]._replace(taken=True)
    assert not sender.is_due("G/b", one, 1, 131.0)
    assert sender.is_due("G/b", one, 1, 131.1)
    assert sender._sent["G/b"].version == version
    sender._sent["G/b"] = sender._sent["G/b"]._replace(taken=True)
    assert sender.is_due("G/b", one, 2, 132.0), "a member that registered again needs it"
    assert sender.is_due("G/b", other, 2, 132.0)
    sender._under_way.add("G/b")
    assert not sender.is_due("G/b", one, 3, 500.0)
    assert sender.is_due("G/c", one, 1, 500.0)


def test_versions_increase_after_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([2_000, 1_000, 1_500])
    monkeypatch.setattr("arborcast.ingest.federation.member.time_ms", lambda: next(times))
    sender, versions = _InterestSender("G/a", Mock(), Mock()), []
    for topic in ("a", "b", "c"):
        assert sender.is_due("G/b", ((topic,), ()), 1, 100.0)
        versions.append(sender._sent["G/b"].version)
    assert versions == [2_000, 2_001, 2_002]


async def test_a_takeover_is_repeated_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = topology("G/a", "G/b", "H/x"), topology("G/a", "G/b", "H/x", gone="G/a")
    link, send_again = subscription("peer-group.H", peer=Peer("G/b", "H")), Mock(return_value=1)
    monkeypatch.setattr(FederationMember, "_links", lambda _: [link])
    monkeypatch.setattr(takeover, "send_again", send_again)
    file = tmp_path / "federation.json"

    async def follow(*found: Topology) -> FederationMember:
        settings = FederationSettings(name="b", group="G", administrator="http://127.0.0.1:9", key_file="key")
        gateway, kafka, keys = GatewayParts().gateway, KafkaSettings(), Mock()
        member = FederationMember(gateway, settings, kafka, keys, PeerInterests(), "http://b/", "1", file)
        member.topology = read_file(file)
        for each in found:
            monkeypatch.setattr(member._membership.administrator, "topology", lambda _, answer=each: settled(answer))
            await member._follow()
        return member

    killed = await follow(before, after)
    for task in killed._tasks:
        task.cancel()
    monkeypatch.setattr(member_module, "_TAKEOVER_S", 0.0)
    await asyncio.gather(*(await follow(after))._tasks)
    assert [each.args[1] for each in send_again.call_args_list] == [[link]]
    assert read_file(file) == after
    assert not (await follow(after))._tasks
