"""Requests and datagrams of other engines: accepted, dropped or refused."""

from __future__ import annotations

import asyncio
import functools
import random
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.security.signatures import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, new_secret, sign
from arborcast.core.telemetry.metrics import Registry
from arborcast.ingest.federation import datagrams
from arborcast.ingest.federation.datagrams import DatagramListener
from arborcast.ingest.federation.endpoint import PeerEndpoint
from arborcast.ingest.federation.interests import PeerInterests
from arborcast.ingest.federation.keys import SharedKeys
from arborcast.ingest.federation.receiver import REMEMBERED_S, PeerReceiver
from arborcast.ingest.settings import TopicSettings
from arborcast.ingest.state.repeats import RepeatMemory
from arborcast.topic_model.records.control import PeerInterest
from arborcast.topic_model.records.notifications import MAX_TRIGGERED, Notification
from arborcast.topic_model.records.peers import INTEREST_PATH, PATH, encode_datagram, encode_interest, encode_push
from arborcast.topic_model.subscriptions import Peer
from arborcast.topic_model.topics import SYSTEM, TopicPath
from tests.support import make
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer


class Engine:
    """G/a with lists for logs. `b` is a member of its group, `x` represents another group."""

    def __init__(self, folder: Path, topics: TopicSettings | None = None) -> None:
        key = folder / "key"
        key.write_text(new_secret())
        self.keys = SharedKeys(str(key))
        self.parts = GatewayParts(topics=topics)
        self.interests = PeerInterests()
        self.parts.control.also.append(self.interests)
        self.now = 1_000_000.0
        gateway, memory = self.parts.gateway, RepeatMemory(REMEMBERED_S)
        self.receiver = PeerReceiver(gateway, "G/a", self.keys, self.interests, memory, clock=lambda: self.now)
        self.parts.gateway.federation = PeerEndpoint(self.receiver, 100_000, self.parts.metrics)

    def push(self, *notifications: Notification, sender: str = "G/b", to: str = "G/a") -> HttpAnswer:
        return self.send(encode_push(notifications, Peer(sender, to)))

    def send(self, body: bytes, path: str = PATH, signed: bool = True) -> HttpAnswer:
        headers = self.signed(body) if path == PATH else self.keys.signed("POST", path, body)
        return self.parts.post(body, path, **(headers if signed else {}))

    def signed(self, body: bytes, key: bytes = b"", ago_s: int = 0) -> dict[str, str]:
        """The headers of a push."""
        at = int(self.keys._now()) - ago_s
        signature = sign([key or self.keys.current], "msg_1", at, body)
        return {ID_HEADER: "msg_1", TIMESTAMP_HEADER: str(at), SIGNATURE_HEADER: signature}

    def interest(self, *topics: str, sender: str = "G/b", to: str = "G/a", version: int = 1) -> HttpAnswer:
        return self.send(encode_interest(sender, to, version, topics), INTEREST_PATH)

    @property
    def accepted(self) -> list[Notification]:
        return self.parts.notifications.accepted

    @property
    def ids(self) -> list[str]:
        """The ids of the accepted notifications."""
        return [each.id for each in self.accepted]

    def publish(self, *topics: str) -> None:
        """By a client of this engine."""
        self.parts.post(soap.envelope(soap.notify(*map(soap.message, topics))))


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)


def notification(name: str = "n1", topic: str = "a/b", payload: bytes = b"<x/>", **more: Any) -> Notification:
    return make.notification(name, topic, payload, accepted_ms=1, **more)


def test_a_push_is_stored_with_its_path_and_properties(engine: Engine) -> None:
    sent = notification(
        path=("H/x",), priority=200, valid_until_ms=99, reliable=True, type="x", distribution="to:H", cause="c", hops=3
    )
    sent = msgspec.structs.replace(sent, triggers_left=70_000)
    assert engine.push(sent).status == 200
    (found,) = engine.accepted
    assert (found.id, found.topic, found.payload, found.path) == ("n1", "a/b", b"<x/>", ("H/x", "G/b"))
    assert (found.priority, found.valid_until_ms, found.reliable, found.type) == (100, 99, True, "x")
    assert (found.distribution, found.cause, found.hops) == ("to:H", "c", 3)
    assert found.triggers_left == MAX_TRIGGERED, "bounded"
    assert found.accepted_ms == int(engine.parts.now.timestamp() * 1000)
    assert found.control == engine.parts.table.position
    assert TopicPath("a/b") in engine.parts.table.topics, "an open topic set adds it"
    assert engine.receiver.taken == {"G/b": 1}


def test_routing_policies_of_own_publications(engine: Engine) -> None:
    engine.parts.have_topics("a", routing="local fast")
    engine.publish("a/b", "c")
    engine.push(notification(topic="a/c", path=("H/x",)))
    assert [(each.topic, each.distribution, each.fast) for each in engine.accepted] == [
        ("a/b", "local", True),
        ("c", "", False),
        ("a/c", "local", True),
    ]
    assert engine.parts.gateway.federation is not None
    engine.parts.gateway.federation.fast_in_group = True
    engine.publish("c")
    assert engine.accepted[-1].fast
    engine.parts.gateway.federation = None
    engine.publish("a/b")
    assert engine.accepted[-1].distribution == "", "only in a federation"


def test_repetitions_within_ten_minutes(engine: Engine) -> None:
    engine.push(notification(), notification("n2"), notification("n2"))
    engine.push(notification(), notification("n3"), sender="G/c")
    assert engine.ids == ["n1", "n2", "n3"]
    assert engine.receiver.dropped == {"repeat": 2}
    engine.now += REMEMBERED_S + 2
    engine.push(notification())
    assert engine.ids == ["n1", "n2", "n3", "n1"]
    # A notification that was not stored is no repetition; of two concurrent ones one is stored.
    engine.parts.notifications.error = InfrastructureError("the Kafka broker does not answer", 1.0)
    answer = engine.push(notification("n4"))
    assert (answer.status, answer.headers[b"retry-after"]) == (503, b"1")
    engine.parts.notifications.error = None
    body = encode_push([notification("n4", topic="new")], Peer("G/b", "G/a"))

    async def both() -> list[int]:
        requests = [engine.parts.request("POST", PATH, body, engine.signed(body)) for _ in range(2)]
        return [each.status for each in await asyncio.gather(*requests)]

    assert asyncio.run(both()) == [200, 200]
    assert engine.ids[4:] == ["n4"]


def test_loops_long_paths_and_operator_events_are_dropped(engine: Engine) -> None:
    long = tuple(f"H/e{number}" for number in range(8))
    event = notification("n4", topic=f"{SYSTEM}/breaker/closed")
    pushed = (notification(path=("G/a",)), notification("n2", path=long), event, notification("n3", triggers_left=7))
    engine.parts.started = False
    assert engine.push(*pushed).status == 503, "during a start senders repeat"
    engine.parts.started = True
    assert engine.push(*pushed).status == 200
    assert [(each.id, each.triggers_left) for each in engine.accepted] == [("n3", 7)]
    assert engine.receiver.dropped == {"loop": 1, "hops": 1, "topic": 1}


def test_topics_of_a_fixed_set_and_new_topics(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(tmp_path, TopicSettings(fixed=True))
    engine.parts.have_topics("there")
    for name in ("n1", "n2"):
        assert engine.push(notification(name), notification(f"{name}-there", "there")).status == 200
    assert [each.topic for each in engine.accepted] == ["there", "there"]
    assert engine.receiver.dropped == {"topic": 2}
    assert caplog.text.count("on the topic a/b are dropped") == 1
    for number in range(201):
        engine.push(notification(f"m{number}", f"t{number}"))
    assert "on the topic t200 are dropped" in caplog.text
    # Topics above new_per_minute are added one by one.
    engine = Engine(tmp_path, TopicSettings(new_per_minute=2))
    pushed = [notification(f"n{number}", f"t{number}") for number in range(3)]
    assert engine.push(*pushed).status == 503
    assert engine.ids == ["n0", "n1"]
    engine.parts.have_topics("t2")
    assert engine.push(*pushed).status == 200
    assert engine.ids == ["n0", "n1", "n2"]


@pytest.mark.parametrize(
    "wrong",
    [
        *(notification(payload=text) for text in (b"<x>", b"<!DOCTYPE x><x/>", b"<?xml version='1.0'?><x/>")),
        *(notification(payload=text) for text in (b"<p:x/>", b"<x/><y/>")),
        notification(producer=b"<p>"),
        notification(subject=b"text"),
        *(notification(topic=topic) for topic in ("a//b", "1")),
        *(notification(name) for name in ("", "a\nb", "x" * 300)),
        notification(path=("no engine",)),
        notification(hops=-1),
        notification(package="nonsense"),
    ],
    ids=str,
)
def test_an_unreadable_notification_is_dropped_alone(engine: Engine, wrong: Notification) -> None:
    assert engine.push(wrong, notification("good")).status == 200
    assert engine.ids == ["good"]
    assert engine.receiver.dropped == {"unreadable": 1}


def test_refused_requests(engine: Engine) -> None:
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
    for answer, status, words in cases:
        assert answer.status == status, answer.body
        assert words in answer.body.decode()
        # Permanent refusals are Client faults: the link continues with the next message.
        assert (b"<faultcode>Client</faultcode>" in answer.body) is (status in (400, 413))
    assert engine.accepted == []


def test_the_newest_interest_of_each_sender_counts(engine: Engine) -> None:
    body = encode_interest("G/b", "G/a", 1, ["a"])
    as_push = engine.keys.signed("POST", PATH, body)
    assert engine.parts.post(body, INTEREST_PATH, **as_push).status == 401
    for version, topics in ((5, ["a", "b//."]), (4, ["c"]), (6, ["a", "b//."])):
        assert engine.interest(*topics, version=version).status == 200
    assert engine.parts.control.records == [PeerInterest("G/b", "G/b", 5, ("a", "b//."))]
    assert engine.interest("h", sender="H/x", to="G/", version=9).status == 200
    # Another member represents that group, with another clock.
    assert engine.interest("i", sender="H/y", to="G/", version=2).status == 200
    assert engine.interests.topics("H/") == ("i",)
    # The clock of a sender is set back by a day.
    now_ms = int(engine.parts.now.timestamp() * 1000)
    for version, topic in ((now_ms + 86_400_000, "x"), (now_ms, "y"), (now_ms - 1, "x")):
        assert engine.interest(topic, version=version).status == 200
    assert engine.interests.topics("G/b") == ("y",)


def test_signatures_of_large_requests_are_checked_in_a_thread(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_key_file_readable_by_others_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int) -> None:
    file = tmp_path / "federation.key"
    file.write_text(new_secret())
    file.chmod(mode)
    SharedKeys(str(file))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (mode != 0o600)


# Datagrams.


def listener(engine: Engine) -> DatagramListener:
    return DatagramListener(engine.receiver, Registry())


def datagram(
    engine: Engine, *sent: Notification, sender: str = "G/b", to: str = "G/a", key: bytes = b"", ago_s: int = 0
) -> bytes:
    body = encode_push(sent, Peer(sender, to, "only"))
    return encode_datagram(engine.signed(body, key, ago_s), body)


def take(at: DatagramListener, *sent: bytes) -> dict[str, int]:
    for each in sent:
        at.datagram_received(each, ("192.0.2.1", 1))
    asyncio.run(at.work())
    return dict(at.counts)


def test_datagrams_that_are_not_from_a_member_are_dropped(engine: Engine) -> None:
    one = notification()
    found = take(
        listener(engine),
        b"anything",
        b"ACD1" + bytes(9_000),
        datagram(engine, one, key=b"the key of another federation"),
        datagram(engine, one, ago_s=301),
        datagram(engine, one, sender="H/x"),
        datagram(engine, one, sender="G/a"),
        datagram(engine, one, to="G/other"),
        datagram(engine, *(notification(f"n{number}") for number in range(6))),
        b"ACD1not signed",
    )
    assert found == {"garbage": 2, "unsigned": 2, "refused": 3, "unreadable": 2}
    assert engine.accepted == []


def test_datagrams_are_lost_without_kafka_or_above_the_limit(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    at = listener(engine)
    engine.parts.started = False
    assert take(at, datagram(engine, notification())) == {"unstored": 1}
    engine.parts.started = True

    async def away(*_: object) -> None:
        raise InfrastructureError("no broker", 1.0)

    with monkeypatch.context() as patch:
        patch.setattr(engine.parts.notifications, "append", away)
        assert take(at, datagram(engine, notification())) == {"unstored": 2}
    assert take(at, datagram(engine, notification())) == {"unstored": 2, "taken": 1}
    monkeypatch.setattr(datagrams, "_MOST_WAITING", 3)
    sent = [datagram(engine, notification(f"m{number}")) for number in range(5)]
    assert take(listener(engine), *sent) == {"full": 2, "taken": 3}


async def test_datagrams_amid_a_flood_of_garbage(engine: Engine) -> None:
    """Reading continues, and the event loop is not blocked."""
    chance, at = random.Random(7), listener(engine)
    datagram_socket = functools.partial(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)
    with datagram_socket() as bound, datagram_socket() as out:
        bound.bind(("127.0.0.1", 0))
        bound.setblocking(False)
        where = bound.getsockname()
        running = asyncio.create_task(at.run(bound))
        good = datagram(engine, notification())
        while not engine.accepted:
            for _ in range(50):
                out.sendto(chance.choice((b"", b"ACD1")) + chance.randbytes(chance.randrange(1_000)), where)
            out.sendto(good, where)
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert at.counts["garbage"] > 0
    assert engine.ids == ["n1"]
