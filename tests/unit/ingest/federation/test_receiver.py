"""Other engines at the door: what is taken, what is dropped, and what is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.security.signatures import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, new_secret, sign
from arborcast.ingest.federation.endpoint import PeerEndpoint
from arborcast.ingest.federation.interests import PeerInterests
from arborcast.ingest.federation.keys import SharedKeys
from arborcast.ingest.federation.receiver import REMEMBERED_S, PeerReceiver
from arborcast.ingest.settings import TopicSettings
from arborcast.ingest.state.repeats import RepeatMemory
from arborcast.topic_model.records.control import PeerInterest, SubscriptionRecord, TopicPolicy, TopicRecord
from arborcast.topic_model.records.notifications import MAX_TRIGGERED, Notification
from arborcast.topic_model.records.peers import INTEREST_PATH, PATH, encode_interest, encode_push
from arborcast.topic_model.subscriptions import EndpointReference, Peer, Subscription
from arborcast.topic_model.topics import SYSTEM, TopicPath
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer


class Engine:
    """G/a, over lists. `b` is a member of its group, `x` represents another one."""

    def __init__(self, folder: Path, topics: TopicSettings | None = None) -> None:
        key = folder / "key"
        key.write_text(new_secret())
        self.keys = SharedKeys(str(key))
        self.parts = GatewayParts(topics=topics)
        self.interests = PeerInterests()
        self.parts.control.folds = [*self.parts.control.folds, self.interests]
        self.now = 1_000_000.0
        memory = RepeatMemory(REMEMBERED_S)
        self.receiver = PeerReceiver(
            self.parts.gateway, "G/a", self.keys, self.interests, memory, clock=lambda: self.now
        )
        self.parts.gateway.federation = PeerEndpoint(self.receiver, 100_000, self.parts.metrics)

    def push(self, *notifications: Notification, sender: str = "G/b", to: str = "G/a") -> HttpAnswer:
        return self.send(encode_push(notifications, Peer(sender, to)))

    def send(self, body: bytes, path: str = PATH, signed: bool = True) -> HttpAnswer:
        if path == PATH:
            timestamp = int(self.keys._now())
            headers = {
                ID_HEADER: "msg_1",
                TIMESTAMP_HEADER: str(timestamp),
                SIGNATURE_HEADER: sign([self.keys.current], "msg_1", timestamp, body),
            }
        else:
            headers = self.keys.signed("POST", path, body)
        return self.parts.post(body, path, **(headers if signed else {}))

    def interest(self, *topics: str, sender: str = "G/b", to: str = "G/a", version: int = 1) -> HttpAnswer:
        return self.send(encode_interest(sender, to, version, topics), INTEREST_PATH)

    @property
    def accepted(self) -> list[Notification]:
        return self.parts.notifications.accepted


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)


def notification(name: str = "n1", topic: str = "a/b", payload: bytes = b"<x/>", **more: object) -> Notification:
    return Notification(name, TopicPath(topic), payload, 1, **more)  # type: ignore[arg-type]


def test_what_comes_is_stored_with_its_way_and_its_words(engine: Engine) -> None:
    sent = notification(
        path=("H/x",), priority=200, valid_until_ms=99, reliable=True, type="x", distribution="to:H", cause="c", hops=3
    )
    sent = msgspec.structs.replace(sent, triggers_left=70_000)
    assert engine.push(sent).status == 200
    (found,) = engine.accepted
    assert (found.id, found.topic, found.payload, found.path) == ("n1", "a/b", b"<x/>", ("H/x", "G/b"))
    assert (found.priority, found.valid_until_ms, found.reliable, found.type) == (100, 99, True, "x")
    assert (found.distribution, found.cause, found.hops) == ("to:H", "c", 3)
    assert found.triggers_left == MAX_TRIGGERED, "no engine is believed more"
    assert found.accepted_ms == int(engine.parts.now.timestamp() * 1000)
    assert found.control == engine.parts.table.position
    assert TopicPath("a/b") in engine.parts.table.topics, "an open set adds it, as for any publisher"
    assert engine.receiver.taken == {"G/b": 1}


def test_own_publications_are_stamped_only_in_a_federation(engine: Engine) -> None:
    engine.parts.table.apply(TopicRecord(TopicPath("a"), policy=TopicPolicy(routing="local")), 0)
    engine.parts.post(soap.envelope(soap.notify(soap.message("a/b"))))
    engine.parts.gateway.federation = None
    engine.parts.post(soap.envelope(soap.notify(soap.message("a/b"))))
    assert [each.distribution for each in engine.accepted] == ["local", ""]


def test_repeats_of_ten_minutes_are_known_whoever_sends_them(engine: Engine) -> None:
    engine.push(notification(), notification("n2"), notification("n2"))
    engine.push(notification(), notification("n3"), sender="G/c")
    assert [each.id for each in engine.accepted] == ["n1", "n2", "n3"]
    assert engine.receiver.dropped == {"repeat": 2}
    engine.now += REMEMBERED_S + 2
    engine.push(notification())
    assert [each.id for each in engine.accepted] == ["n1", "n2", "n3", "n1"]


def test_what_was_not_stored_is_not_known(engine: Engine) -> None:
    engine.parts.notifications.error = InfrastructureError("the Kafka broker does not answer", 1.0)
    answer = engine.push(notification())
    assert (answer.status, answer.headers[b"retry-after"]) == (503, b"1")
    engine.parts.notifications.error = None
    assert engine.push(notification()).status == 200
    assert len(engine.accepted) == 1


def test_the_same_at_the_same_moment_is_stored_once(engine: Engine) -> None:
    body = encode_push([notification(topic="new")], Peer("G/b", "G/a"))
    timestamp = int(engine.keys._now())
    headers = {
        ID_HEADER: "m",
        TIMESTAMP_HEADER: str(timestamp),
        SIGNATURE_HEADER: sign([engine.keys.current], "m", timestamp, body),
    }

    async def both() -> list[int]:
        answers = await asyncio.gather(*(engine.parts.request("POST", PATH, body, headers) for _ in range(2)))
        return [each.status for each in answers]

    assert asyncio.run(both()) == [200, 200]
    assert len(engine.accepted) == 1


def test_loops_long_ways_and_operator_events_end_here(engine: Engine) -> None:
    long = tuple(f"H/e{number}" for number in range(8))
    event = notification("n4", topic=f"{SYSTEM}/breaker/closed")
    pushed = (notification(path=("G/a",)), notification("n2", path=long), event, notification("n3", triggers_left=7))
    engine.parts.started = False
    assert engine.push(*pushed).status == 503, "others come again"
    engine.parts.started = True
    assert engine.push(*pushed).status == 200
    assert [(each.id, each.triggers_left) for each in engine.accepted] == [("n3", 7)]
    assert engine.receiver.dropped == {"loop": 1, "hops": 1, "topic": 1}


def test_topics_that_are_not_taken_are_dropped_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(tmp_path, TopicSettings(fixed=True))
    engine.parts.table.apply(TopicRecord(TopicPath("there")), 0)
    for name in ("n1", "n2"):
        assert engine.push(notification(name), notification(f"{name}-there", "there")).status == 200
    assert [each.topic for each in engine.accepted] == ["there", "there"]
    assert engine.receiver.dropped == {"topic": 2}
    assert caplog.text.count("on the topic a/b is dropped") == 1


@pytest.mark.parametrize(
    "wrong",
    [
        notification(payload=b"<x>"),
        notification(payload=b"<!DOCTYPE x><x/>"),
        notification(payload=b"<?xml version='1.0'?><x/>"),
        notification(payload=b"<p:x/>"),
        notification(payload=b"<x/><y/>"),
        notification(producer=b"<p>"),
        notification(subject=b"text"),
        notification(topic="a//b"),
        notification(topic="1"),
        notification(""),
        notification("a\nb"),
        notification("x" * 300),
        notification(path=("somebody",)),
        notification(hops=-1),
        notification(package="nonsense"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_dropped_and_the_rest_is_not(engine: Engine, wrong: Notification) -> None:
    assert engine.push(wrong, notification("good")).status == 200
    assert [each.id for each in engine.accepted] == ["good"]
    assert engine.receiver.dropped == {"unreadable": 1}


def test_who_is_refused(engine: Engine) -> None:
    good = encode_push([notification()], Peer("G/b", "G/a"))
    cases = [
        (engine.send(good, signed=False), 401, "not signed"),
        (engine.send(encode_push([notification()], Peer("G/b", "G/c"))), 409, "this is G/a"),
        (engine.push(notification(), sender="G/a"), 409, "two of one name"),
        (engine.send(encode_push([notification()], Peer("stranger", "G/a"))), 400, "not an engine"),
        (engine.send(b"nonsense"), 400, "cannot be read"),
        (engine.send(good.replace(b"\xa1v\x01", b"\xa1v\x7f")), 503, "upgrade"),
        (engine.send(b"x" * 100_001), 413, "bytes"),
        (engine.push(*(notification(f"n{number}") for number in range(501))), 400, "at most 500"),
        (engine.parts.get("/federation"), 404, "POST"),
        (engine.interest("a", to="H/"), 409, "this is G/a"),
        (engine.interest("a/*"), 400, "topics and subtrees"),
        (engine.interest(*(f"a/n{number}" for number in range(257))), 400, "up to 256"),
    ]
    for answer, status, said in cases:
        assert answer.status == status, answer.body
        assert said in answer.body.decode()
        # A link goes on behind what can never be taken.
        assert (b"<faultcode>Client</faultcode>" in answer.body) is (status in (400, 413))
    assert engine.accepted == []


def test_an_interest_is_not_taken_for_a_push(engine: Engine) -> None:
    body = encode_interest("G/b", "G/a", 1, ["a"])
    assert engine.parts.post(body, INTEREST_PATH, **engine.keys.signed("POST", PATH, body)).status == 401


def test_interests_are_records_and_the_newest_of_a_sender_counts(engine: Engine) -> None:
    assert engine.interest("a", "b//.", version=5).status == 200
    assert engine.interest("c", version=4).status == 200
    assert engine.interest("a", "b//.", version=6).status == 200
    assert engine.parts.control.records == [PeerInterest("G/b", "G/b", 5, ("a", "b//."))]
    assert engine.interest("h", sender="H/x", to="G/", version=9).status == 200
    # Another one represents that group now, by another clock.
    assert engine.interest("i", sender="H/y", to="G/", version=2).status == 200
    assert engine.interests.topics("H/") == ("i",)


def test_an_interest_counts_after_the_clock_of_its_sender_was_put_back(engine: Engine) -> None:
    now_ms = int(engine.parts.now.timestamp() * 1000)
    assert engine.interest("a", version=now_ms + 86_400_000).status == 200
    assert engine.interest("b", version=now_ms).status == 200
    assert engine.interests.topics("G/b") == ("b",)
    assert engine.interest("a", version=now_ms - 1).status == 200
    assert engine.interests.topics("G/b") == ("b",)


def test_nobody_ends_or_changes_a_link_by_its_name(engine: Engine) -> None:
    link = Subscription("peer-b", EndpointReference("http://b/"), form="peer", peer=Peer("G/a", "G/b"))
    engine.parts.table.apply(SubscriptionRecord(link), 0)
    for body in ("<wsnt:Unsubscribe/>", "<wsnt:PauseSubscription/>", soap.renew("PT1S")):
        assert engine.parts.post(soap.envelope(body), "/wsn/subscriptions/peer-b").fault == "ResourceUnknownFault"
    assert engine.parts.table.get("peer-b") == link


def test_more_new_topics_than_may_come_at_once_come_one_by_one(tmp_path: Path) -> None:
    engine = Engine(tmp_path, TopicSettings(new_per_minute=2))
    pushed = [notification(f"n{number}", f"t{number}") for number in range(3)]
    assert engine.push(*pushed).status == 503
    assert [each.id for each in engine.accepted] == ["n0", "n1"]
    engine.parts.table.apply(TopicRecord(TopicPath("t2")), 9)
    assert engine.push(*pushed).status == 200
    assert [each.id for each in engine.accepted] == ["n0", "n1", "n2"]


def test_how_it_leaves_for_the_group_is_said_when_it_is_accepted(engine: Engine) -> None:
    engine.parts.table.apply(TopicRecord(TopicPath("a"), policy=TopicPolicy(routing="fast")), 0)
    engine.parts.post(soap.envelope(soap.notify(soap.message("a/b"), soap.message("c"))))
    engine.push(notification(topic="a/c", path=("H/x",)))
    assert [(each.topic, each.fast) for each in engine.accepted] == [("a/b", True), ("c", False), ("a/c", True)]
    assert engine.parts.gateway.federation is not None
    engine.parts.gateway.federation.inside_fast = True
    engine.parts.post(soap.envelope(soap.notify(soap.message("c"))))
    assert engine.accepted[-1].fast


def test_the_signature_of_a_large_request_is_checked_in_a_thread(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []
    check = engine.keys.check_push

    def checked(headers: Mapping[str, str], body: bytes) -> None:
        threads.append(threading.current_thread() is threading.main_thread())
        check(headers, body)

    monkeypatch.setattr(engine.keys, "check_push", checked)
    assert engine.push(notification()).status == 200
    assert engine.push(notification("n2", payload=b"<x>" + b"x" * 70_000 + b"</x>")).status == 200
    assert engine.send(b"x" * 70_000, signed=False).status == 401
    assert engine.send(b"x" * 70_000, INTEREST_PATH).status == 400
    assert threads == [True, False, False, False]
    assert len(engine.accepted) == 2


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_a_file_of_secrets_that_others_may_read_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    file = tmp_path / "federation.key"
    file.write_text(new_secret())
    file.chmod(mode)
    SharedKeys(str(file))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (mode != 0o600)
