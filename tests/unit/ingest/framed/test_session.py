"""What a connection may ask for, and what it is answered: the client against a server whose logs are lists."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import zmq

from arborcast.client.framed import Connection, ConnectionFactory, Message, Outgoing, published
from arborcast.client.values import BrokerUnavailable, FaultReceived
from arborcast.core.errors import ConfigError, InfrastructureError
from arborcast.ingest.access.grants import ClientRequest
from arborcast.ingest.access.settings import LimitSettings
from arborcast.ingest.framed import server, subscriptions
from arborcast.ingest.framed.publishing import Publisher
from arborcast.ingest.settings import FramedSettings, ZmqSettings
from arborcast.ingest.zeromq.edge import ZmqEdge
from arborcast.topic_model.records.control import SubscriptionRecord, TriggerRecord
from arborcast.topic_model.records.pull import StoredMessage
from arborcast.topic_model.subscriptions import EndpointReference, Peer, Subscription
from arborcast.wire import frames, limits
from arborcast.wire.errors import NotAuthenticated, TooManyRequests
from arborcast.wire.frames import Decoder, Frame, FrameKind
from tests.support.framed import FramedEdge, framed_edge
from tests.support.gateway_parts import GatewayParts
from tests.support.guarded_gateway import guarded
from tests.support.routing import make_trigger
from tests.support.waiting import wait_until


@pytest.fixture
def edge() -> Iterator[FramedEdge]:
    with framed_edge() as running:
        yield running


@pytest.fixture
def connection(edge: FramedEdge) -> Iterator[Connection]:
    with ConnectionFactory(edge.url, timeout_s=120).connection() as opened:
        yield opened


def wait_for(true: Callable[[], object]) -> None:
    wait_until(true, every_s=0.005)


def stored(topic: str, payload: str, name: str) -> StoredMessage:
    return StoredMessage(
        (
            '<wsnt:NotificationMessage xmlns:wsnt="http://docs.oasis-open.org/wsn/b-2"><wsnt:Topic Dialect='
            f'"http://docs.oasis-open.org/wsn/t-1/TopicExpression/Concrete">{topic}</wsnt:Topic><wsnt:Message>{payload}'
            "</wsnt:Message></wsnt:NotificationMessage>"
        ).encode(),
        name,
    )


def deliver(edge: FramedEdge, subscription: str, *messages: StoredMessage) -> None:
    """What dispatch does."""
    edge.on_loop(lambda: edge.parts.pulls.put(subscription, messages))


class Raw:
    """A connection byte by byte."""

    def __init__(self, edge: FramedEdge, *, connect: bool = True) -> None:
        self.socket = socket.create_connection(("127.0.0.1", edge.port), 120)
        self._decoder = Decoder(2**30)
        self._frames: list[Frame] = []
        if connect:
            self.send(frames.encode(FrameKind.CONNECT, 1, frames.ConnectBody()))
            assert self.read().kind == FrameKind.CONNECTED

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self) -> Frame:
        while not self._frames:
            data = self.socket.recv(65_536)
            assert data, "the connection has ended"
            self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    def error(self) -> frames.ErrorBody:
        frame = self.read()
        assert frame.kind == FrameKind.ERROR
        return frames.read_body(frame, frames.ErrorBody)

    def ends(self) -> bool:
        while data := self.socket.recv(65_536):
            self._frames += self._decoder.feed(data)
        return all(frame.kind in (FrameKind.CLOSE, FrameKind.ERROR) for frame in self._frames)


Connects = Callable[..., Raw]


@pytest.fixture
def dial() -> Iterator[Connects]:
    """Makes connections, and closes them."""
    opened: list[Raw] = []

    def make(edge: FramedEdge, *, connect: bool = True) -> Raw:
        opened.append(Raw(edge, connect=connect))
        return opened[-1]

    yield make
    for each in opened:
        each.socket.close()


def test_many_at_a_time_keep_their_order_and_a_wrong_one_is_refused_alone(
    edge: FramedEdge, connection: Connection
) -> None:
    producers = [connection.session().producer(topic) for topic in ("a", "b", "new/c")]
    begun = [producers[number % 3].begin(f"<n>{number}</n>" if number != 50 else "<n>") for number in range(3_000)]
    with pytest.raises(FaultReceived):
        published(begun.pop(50), 120)
    names = [published(each, 120) for each in begun]
    accepted = edge.parts.notifications.accepted
    assert {each.id for each in accepted} == set(names)
    assert len(accepted) == 2_999
    for topic in ("a", "b", "new/c"):
        numbers = [int(each.payload[3:-4]) for each in accepted if each.topic == topic]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("topic", "out", "code"),
    [
        ("a//.", Outgoing("<x/>"), "ExpressionError"),
        ("a//", Outgoing("<x/>"), "ExpressionError"),
        ("a", Outgoing("no element"), "MalformedMessage"),
        ("a", Outgoing("<!DOCTYPE x []><x/>"), "MalformedMessage"),
        ("a", Outgoing(b"\xff", is_text=True), "InvalidRequest"),
        ("a", Outgoing("\x00", is_text=True), "MalformedMessage"),
        ("a", Outgoing("<x/>", priority=101), "InvalidRequest"),
        ("a", Outgoing("<x/>", lifespan=-1), "InvalidRequest"),
        ("a", Outgoing("<x/>", lifespan=float("nan")), "InvalidRequest"),
        ("a", Outgoing("<x/>", valid_until=-1), "InvalidRequest"),
        ("a", Outgoing("<x/>", type="p:x"), "InvalidRequest"),
        ("a", Outgoing("<x/>", {"": "x"}), "InvalidRequest"),
        ("a", Outgoing("<x/>", {"a": "\x00"}), "InvalidRequest"),
        ("a", Outgoing("<x/>", key="ü"), "InvalidRequest"),
    ],
)
def test_what_is_refused_leaves_nothing_and_the_connection_goes_on(
    edge: FramedEdge, connection: Connection, topic: str, out: Outgoing, code: str
) -> None:
    producer = connection.session().producer(topic)
    with pytest.raises(FaultReceived) as refused:
        producer.send(out)
    assert refused.value.fault == code
    assert edge.parts.notifications.accepted == []
    assert connection.session().producer("a").send("<x/>")


def test_a_log_that_is_away_says_when_to_come_back(edge: FramedEdge, connection: Connection) -> None:
    edge.parts.notifications.error = InfrastructureError("Kafka is away", 2.0)
    with pytest.raises(BrokerUnavailable) as away:
        connection.session().producer("a").send("<x/>")
    assert away.value.retry_after == 2.0


def test_messages_come_and_are_gone_when_acknowledged(edge: FramedEdge, connection: Connection) -> None:
    got: list[Message] = []
    consumer = connection.session().consumer("a//.", got.append, delivery={"Priority": "3"}, types=["{urn:m}x"])
    (subscription,) = edge.parts.table.subscriptions()
    assert subscription.id == subscription.pull_point == consumer.subscription
    assert (subscription.policy.priority, subscription.types) == (3, ("{urn:m}x",))
    deliver(edge, consumer.subscription, stored("a/b", "<x>1</x>", "n1"), stored("a/b", "<x>2</x>", "n2"))
    wait_for(lambda: len(got) == 2)
    assert got == [Message(b"<x>1</x>", "a/b", "n1"), Message(b"<x>2</x>", "a/b", "n2")]
    wait_for(lambda: not edge.parts.pull_log.store.ids())
    consumer.unsubscribe()
    assert list(edge.parts.table.subscriptions()) == []


def test_links_of_the_federation_and_triggers_are_no_subscriptions_to_end(edge: FramedEdge, dial: Connects) -> None:
    """Without users, too: the ids of links follow from the names of engines."""
    link = Subscription(
        "peer-berlin", EndpointReference("http://berlin/"), form="peer", peer=Peer("G/here", "G/berlin")
    )
    for fold in edge.parts.control.folds:
        fold.apply(SubscriptionRecord(link))
        fold.apply(TriggerRecord(make_trigger("hot", "a", "b")))
    raw = dial(edge)
    for name in ("peer-berlin", "hot"):
        raw.send(frames.encode(FrameKind.UNSUBSCRIBE, 5, frames.UnsubscribeBody(name)))
        error = raw.error()
        assert (error.code, error.text) == ("UnknownResource", f"there is no subscription '{name}' (any more)")
    assert edge.parts.control.records == []
    assert edge.parts.table.get("peer-berlin") == link


def test_text_and_properties_arrive_as_they_were_sent(edge: FramedEdge, connection: Connection) -> None:
    got: list[Message] = []
    session = connection.session()
    consumer = session.consumer("a", got.append)
    session.producer("a").send(Outgoing("4 < 5", {"unit": "bar", "empty": ""}, is_text=True))
    (accepted,) = edge.parts.notifications.accepted
    message = stored("a", accepted.payload.decode(), accepted.id)
    element = message.element.replace(b"<wsnt:Message>", accepted.producer + b"<wsnt:Message>")
    deliver(edge, consumer.subscription, StoredMessage(element, accepted.id))
    wait_for(lambda: bool(got))
    assert got == [Message(b"4 < 5", "a", accepted.id, {"unit": "bar", "empty": ""}, is_text=True)]


def test_what_a_handler_fails_with_comes_again_and_nothing_else(edge: FramedEdge, connection: Connection) -> None:
    got: list[tuple[str, int]] = []

    def handle(message: Message) -> None:
        got.append((message.id, message.attempt))
        if message.id == "n2" and message.attempt == 1:
            raise ValueError("not yet")

    consumer = connection.session().consumer("a", handle)
    deliver(edge, consumer.subscription, *(stored("a", "<x/>", f"n{number}") for number in (1, 2, 3)))
    wait_for(lambda: ("n2", 2) in got)
    wait_for(lambda: not edge.parts.pull_log.store.ids())
    assert sorted(got) == [("n1", 1), ("n2", 1), ("n2", 2), ("n3", 1)]


def test_a_passing_subscription_ends_with_its_connection_and_a_durable_one_stays(edge: FramedEdge) -> None:
    with ConnectionFactory(edge.url, timeout_s=120).connection() as connection:
        connection.session().consumer("a", print)
        durable = connection.session().consumer("a", print, name="archive").subscription
        assert len(list(edge.parts.table.subscriptions())) == 2
    wait_for(lambda: [each.id for each in edge.parts.table.subscriptions()] == [durable])
    with ConnectionFactory(edge.url, timeout_s=120).connection() as connection:
        consumer = connection.session().consumer("b//.", print, name="archive")
        assert consumer.subscription == durable
        (changed,) = edge.parts.table.subscriptions()
        assert [each.text for each in changed.topics] == ["b//."]


def test_no_more_are_on_their_way_than_the_window(edge: FramedEdge, dial: Connects) -> None:
    raw = dial(edge)
    raw.send(frames.encode(FrameKind.SUBSCRIBE, 2, frames.SubscribeBody("a", window=2)))
    receipt = frames.read_body(raw.read(), frames.ReceiptBody)
    deliver(edge, receipt.id, *(stored("a", "<x/>", f"n{number}") for number in range(5)))
    first, second = raw.read(), raw.read()
    raw.send(frames.encode(FrameKind.PING, 99))
    assert raw.read().kind == FrameKind.PONG, "and no third message"
    raw.send(frames.encode(FrameKind.ACK, second.correlation))
    raw.send(frames.encode(FrameKind.ACK, first.correlation))
    assert raw.read().kind == FrameKind.MESSAGE


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (frames.SubscribeBody("a["), "ExpressionError"),
        (frames.SubscribeBody("a", window=0), "InvalidRequest"),
        (frames.SubscribeBody("a", name="x" * 201), "InvalidRequest"),
        (frames.SubscribeBody("a", delivery={"Speed": "1"}), "InvalidRequest"),
        (frames.SubscribeBody("a", delivery={"Reliability": "timely", "Order": "strict"}), "UnsupportedPolicy"),
        (frames.SubscribeBody("a", delivery={"a b": "1"}), "InvalidRequest"),
        (frames.SubscribeBody("a", types=["p:x"]), "UnknownFilters"),
        (frames.SubscribeBody("a", types=["\x00"]), "InvalidRequest"),
    ],
)
def test_what_cannot_be_subscribed_to_leaves_nothing(
    edge: FramedEdge, wanted: frames.SubscribeBody, code: str, dial: Connects
) -> None:
    raw = dial(edge)
    raw.send(frames.encode(FrameKind.SUBSCRIBE, 2, wanted))
    assert raw.error().code == code
    assert list(edge.parts.table.subscriptions()) == []


def test_frames_that_nobody_knows_are_errors_and_the_connection_goes_on(edge: FramedEdge, dial: Connects) -> None:
    raw = dial(edge)
    for data, code in [
        (frames.encode(FrameKind.PUBLISH, 5)[:5] + b"\x63" + frames.encode(FrameKind.PUBLISH, 5)[6:], "InvalidRequest"),
        (frames.encode(FrameKind.PUBLISH, 5), "BodyError"),
        (frames.encode(FrameKind.CONNECT, 5, frames.ConnectBody()), "InvalidRequest"),
        (frames.encode(FrameKind.UNSUBSCRIBE, 5, frames.UnsubscribeBody("nobody")), "UnknownResource"),
        (frames.encode(FrameKind.RECEIPT, 5, frames.ReceiptBody()), "InvalidRequest"),
    ]:
        raw.send(data)
        assert raw.error().code == code
    raw.send(frames.encode(FrameKind.ACK, 12_345))
    raw.send(frames.encode(FrameKind.PING, 7))
    assert raw.read()[:3] == (FrameKind.PONG, 0, 7)


def test_bytes_that_are_no_frame_and_frames_without_connect_end_the_connection_with_a_reason(
    edge: FramedEdge, dial: Connects
) -> None:
    raw, unknown = dial(edge), dial(edge, connect=False)
    raw.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert "begins with" in raw.error().text
    unknown.send(frames.encode(FrameKind.PUBLISH, 1, frames.PublishBody("a", b"<x/>")))
    assert unknown.error().code == "NotAuthenticated"
    assert raw.ends()
    assert unknown.ends()
    assert edge.parts.notifications.accepted == []


def test_frames_behind_connect_wait_for_its_answer(edge: FramedEdge, dial: Connects) -> None:
    raw = dial(edge, connect=False)
    publish = frames.encode(FrameKind.PUBLISH, 2, frames.PublishBody("a", b"<x/>"))
    raw.send(frames.encode(FrameKind.CONNECT, 1, frames.ConnectBody()) + publish)
    assert [raw.read().kind, raw.read().kind] == [FrameKind.CONNECTED, FrameKind.RECEIPT]


def test_a_gateway_that_is_starting_says_so(edge: FramedEdge) -> None:
    edge.parts.started = False
    with pytest.raises(BrokerUnavailable, match="starting"):
        ConnectionFactory(edge.url, timeout_s=120).connection()


def test_who_keeps_a_connection_for_nothing_is_cut_off(edge: FramedEdge, dial: Connects) -> None:
    silent, half, idle, good = (
        dial(edge, connect=False),
        dial(edge),
        dial(edge),
        dial(edge),
    )
    half.send(frames.encode(FrameKind.PUBLISH, 1, frames.PublishBody("a", b"<x/>"))[:20])
    wait_for(lambda: edge.server.connections == 4)
    time.sleep(0.2)  # the half frame is read

    async def sweep(later: float) -> None:
        edge.server.sweep(asyncio.get_running_loop().time() + later)

    edge.on_loop(lambda: sweep(21))
    assert "CONNECT" in silent.error().text
    edge.on_loop(lambda: sweep(30))
    assert "as a whole" in half.error().text
    good.send(frames.encode(FrameKind.PING, 1))
    assert good.read().kind == FrameKind.PONG
    edge.on_loop(lambda: sweep(59))
    edge.on_loop(lambda: sweep(62))
    assert idle.error().code == "Idle"


def test_there_are_no_more_connections_than_may_be(dial: Connects) -> None:
    with framed_edge(settings=FramedSettings(max_connections=2)) as edge:
        _first, _second = dial(edge), dial(edge)
        third = dial(edge, connect=False)
        assert third.error().code == "TooManyConnections"
    with framed_edge(limits=LimitSettings(connections_per_client=1)) as edge:
        _first = dial(edge)
        assert edge.server.connections == 1


def test_a_client_that_does_not_read_is_not_waited_for(edge: FramedEdge, dial: Connects) -> None:
    raw, other = dial(edge), dial(edge)
    raw.send(frames.encode(FrameKind.SUBSCRIBE, 2, frames.SubscribeBody("a", window=10_000)))
    receipt = frames.read_body(raw.read(), frames.ReceiptBody)
    sent = 0
    while not edge.server.unread:
        deliver(edge, receipt.id, stored("a", f"<x>{'y' * 90_000}</x>", f"n{sent}"))
        sent += 1
    other.send(frames.encode(FrameKind.PUBLISH, 1, frames.PublishBody("b", b"<x/>")))
    assert other.read().kind == FrameKind.RECEIPT
    found = [frames.read_body(raw.read(), frames.MessageBody).id for _ in range(sent)]
    assert found == [f"n{number}" for number in range(sent)]


def test_an_orderly_stop_says_so_and_stores_what_it_has_begun(dial: Connects) -> None:
    parts = GatewayParts()
    with framed_edge(parts) as edge:
        raw = dial(edge)
        raw.send(frames.encode(FrameKind.PUBLISH, 1, frames.PublishBody("a", b"<x/>")))
        assert raw.read().kind == FrameKind.RECEIPT
    assert raw.ends()
    assert len(parts.notifications.accepted) == 1


def test_connections_leave_nothing(edge: FramedEdge, dial: Connects) -> None:
    before = threading.active_count()
    for _ in range(200):
        raw = dial(edge)
        raw.send(frames.encode(FrameKind.SUBSCRIBE, 2, frames.SubscribeBody("a")))
        raw.read()
        raw.socket.close()
    wait_for(lambda: edge.server.connections == 0 and not list(edge.parts.table.subscriptions()))
    assert threading.active_count() == before


def test_a_publication_that_was_sent_cannot_be_cancelled(connection: Connection) -> None:
    producer = connection.session().producer("a")
    first = producer.begin("<x/>")
    assert not first.cancel()
    assert producer.send("<x/>") != published(first, 120)


def test_a_factory_reads_its_settings(tmp_path: Path, edge: FramedEdge) -> None:
    file = tmp_path / "client.toml"
    file.write_text(f'[framed_client]\nurl = "{edge.url}"\nuser = "pump"\n')
    assert ConnectionFactory.from_settings(file) == ConnectionFactory(edge.url, "pump")
    file.write_text("[framed_client]\nspeed = 1\n")
    with pytest.raises(ConfigError, match="speed"):
        ConnectionFactory.from_settings(file)
    with pytest.raises(ConfigError, match="framed://"):
        ConnectionFactory("tcp://x").connection()
    with pytest.raises(BrokerUnavailable):
        ConnectionFactory("framed://127.0.0.1:1").connection()


@pytest.mark.parametrize("ends", [True, False])
def test_somebody_who_only_receives_is_asked_again_who_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """Who may not come in any more is cut off; whom a rate holds back is not."""
    parts = guarded(tmp_path, time.time)
    gate = parts.gateway.gate
    assert gate is not None
    with framed_edge(parts, FramedSettings(idle_s=10_000)) as edge:
        factory = ConnectionFactory(edge.url, "anna", "pa", timeout_s=120)
        with factory.connection() as connection:
            asked = threading.Event()

            async def enter(_: object) -> ClientRequest:
                asked.set()
                raise NotAuthenticated("gone") if ends else TooManyRequests("often", 1.0)

            async def sweep() -> None:
                edge.server.sweep(asyncio.get_running_loop().time() + 61)

            monkeypatch.setattr(gate, "enter", enter)
            edge.on_loop(sweep)
            assert asked.wait(120)
            if ends:
                assert connection.lost.wait(120)
            else:
                with pytest.raises(FaultReceived, match="may not publish"):
                    connection.session().producer("a").send("<x/>")


def test_who_has_said_who_it_is_waits_until_that_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords are checked a few at a time; those who wait have done what is asked of them."""
    parts = guarded(tmp_path, time.time)
    gate = parts.gateway.gate
    assert gate is not None
    enter, asked, go_on = gate.enter, threading.Event(), asyncio.Event()

    async def slow(scope: Mapping[str, Any]) -> ClientRequest:
        asked.set()
        await go_on.wait()
        return await enter(scope)

    monkeypatch.setattr(gate, "enter", slow)
    with framed_edge(parts) as edge, ThreadPoolExecutor() as pool:
        connecting = pool.submit(ConnectionFactory(edge.url, "anna", "pa", timeout_s=120).connection)
        assert asked.wait(120)

        async def sweep() -> None:
            edge.server.sweep(asyncio.get_running_loop().time() + 20)
            go_on.set()

        edge.on_loop(sweep)
        connecting.result(120).close()


def test_a_connection_that_ends_amid_its_publications_leaves_no_error(
    dial: Connects, caplog: pytest.LogCaptureFixture
) -> None:
    """Large payloads are read in a thread, and what waits behind them is forgotten meanwhile."""
    with framed_edge() as edge:
        for _ in range(5):
            raw = dial(edge)
            large = frames.PublishBody("a", b"<x>" + b"y" * 500_000 + b"</x>")
            raw.send(b"".join(frames.encode(FrameKind.PUBLISH, number, large) for number in range(6)))
            raw.socket.close()
        wait_for(lambda: edge.server.connections == 0)
        edge.on_loop(edge.server.stop)
    gc.collect()
    assert not [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]


def unreadable(name: str) -> StoredMessage:
    return stored("a", "<x>" * 256 + "</x>" * 256, name)


def test_a_message_that_cannot_be_read_costs_no_other_and_is_given_up_once(
    edge: FramedEdge, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[str] = []
    consumer = connection.session().consumer("a", lambda message: got.append(message.id))
    long = "xmlns " * 60_000  # two of these are more than a request may have
    deliver(
        edge,
        consumer.subscription,
        *(stored("a", f"<x>{long}</x>", "n1"), unreadable("n2"), stored("a", f"<x>{long}</x>", "n3")),
        *(StoredMessage(b"<nothing/>", "n4"), stored("a//", "<x/>", "n5"), stored("a", "<x/>", "n6")),
    )
    wait_for(lambda: got == ["n1", "n3", "n6"])
    wait_for(lambda: not edge.parts.pull_log.store.ids())
    assert edge.server.counts.unreadable == 3
    assert caplog.text.count("cannot be read") == 3
    deliver(edge, consumer.subscription, unreadable("n7"))
    wait_for(lambda: edge.server.counts.unreadable == 4 and not edge.parts.pull_log.store.ids())
    assert not connection.lost.is_set()


def test_a_claim_waits_again_at_once_when_sending_fails(
    edge: FramedEdge, dial: Connects, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = dial(edge)
    raw.send(frames.encode(FrameKind.SUBSCRIBE, 2, frames.SubscribeBody("a", "archive")))
    name = frames.read_body(raw.read(), frames.ReceiptBody).id

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("arborcast.ingest.framed.subscriptions.message_of", fail)
    deliver(edge, name, stored("a", "<x/>", "n1"))
    assert raw.ends()
    wait_for(lambda: edge.parts.pull_log.store.waiting(name) == 1 and not edge.parts.pull_log.store.claims)


def test_what_would_take_long_to_read_is_refused_unread(edge: FramedEdge, dial: Connects) -> None:
    raw = dial(edge)
    many = {f"a{number}": "" for number in range(257)}
    for kind, body, code in (
        (FrameKind.SUBSCRIBE, frames.SubscribeBody("a", delivery=dict(list(many.items())[:17])), "BodyError"),
        (FrameKind.SUBSCRIBE, frames.SubscribeBody("a", types=["{urn:t}x"] * 8_000), "TooLarge"),
        (FrameKind.UNSUBSCRIBE, frames.UnsubscribeBody("x" * 70_000), "TooLarge"),
        (FrameKind.PUBLISH, frames.PublishBody("a", b"<x/>", many), "BodyError"),
        (FrameKind.PUBLISH, frames.PublishBody("a", b"<x/>", {"a": "x" * 20_000}), "InvalidRequest"),
        (FrameKind.PUBLISH, frames.PublishBody("a", b"<x>" * 201 + b"</x>" * 201), "MalformedMessage"),
    ):
        raw.send(frames.encode(kind, 5, body))
        assert raw.error().code == code, body
    raw.send(frames.encode(FrameKind.PUBLISH, 6, frames.PublishBody("a", b"<x>" * 200 + b"</x>" * 200)))
    assert raw.read().kind == FrameKind.RECEIPT


def test_before_connect_a_frame_is_short(edge: FramedEdge, dial: Connects) -> None:
    raw = dial(edge, connect=False)
    raw.send(frames.encode(FrameKind.CONNECT, 1, frames.ConnectBody("x" * 20_000))[:16])
    assert "16384 bytes" in raw.error().text
    assert raw.ends()
    early = dial(edge, connect=False)
    publish = frames.encode(FrameKind.PUBLISH, 2, frames.PublishBody("a", f"<x>{'y' * 10_000}</x>".encode()))
    early.send(frames.encode(FrameKind.CONNECT, 1, frames.ConnectBody()) + 2 * publish)
    assert "wait for it" in early.error().text
    assert early.ends()


def test_pings_are_no_connect(edge: FramedEdge, dial: Connects) -> None:
    silent = dial(edge, connect=False)
    made = time.monotonic()
    silent.send(frames.encode(FrameKind.PING, 1))
    assert silent.read().kind == FrameKind.PONG

    async def pinged() -> None:
        (each,) = edge.server._connections
        each.received_at = each.whole_at = each.made_at + 20.5
        edge.server.sweep(each.made_at + 21)

    edge.on_loop(pinged)
    assert "no CONNECT" in silent.error().text, made


def test_of_one_address_few_may_be_unknown(edge: FramedEdge, dial: Connects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MOST_UNKNOWN", 3)
    with framed_edge() as few:
        _known = [dial(few) for _ in range(5)]
        unknown = [dial(few, connect=False) for _ in range(3)]
        refused = dial(few, connect=False).error()
        assert (refused.code, refused.retry_after) == ("TooManyConnections", 1.0)
        unknown[0].socket.close()
        wait_for(lambda: few.server.connections == 7)
        assert dial(few)


def test_frames_that_are_not_whole_are_in_the_budget_of_all_requests(dial: Connects) -> None:
    """As bodies of HTTP: some come on, the others wait or are refused, and nothing is left when they are gone."""
    limit = 16 * 1024 * 1024
    with framed_edge(inflight_bytes=limit) as edge:
        frame = frames.encode(FrameKind.PUBLISH, 7, frames.PublishBody("a", b"<x>" + b"y" * 4_000_000 + b"</x>"))[:-1]
        opened = [dial(edge) for _ in range(12)]
        rest = {each: memoryview(frame) for each in opened}
        for each in opened:
            each.socket.setblocking(False)

        def pending() -> tuple[int, int]:
            async def look() -> tuple[int, int]:
                return sum(each._decoder.pending for each in edge.server._connections), edge.inflight.taken

            return edge.on_loop(look)

        def most_are_refused() -> bool:
            for each in [each for each in opened if rest[each]]:
                try:
                    rest[each] = rest[each][each.socket.send(rest[each]) :]
                except BlockingIOError:
                    pass
                except OSError:
                    rest[each] = memoryview(b"")
            there, counted = pending()
            assert there <= counted <= limit
            return edge.server.connections <= 4  # there is memory for three of them

        wait_for(most_are_refused)
        for each in opened:
            each.socket.close()
        wait_for(lambda: edge.server.connections == 0)
        assert pending() == (0, 0)


def test_the_budget_of_a_whole_frame_is_free_though_the_clock_stands_still(edge: FramedEdge, dial: Connects) -> None:
    """That of uvloop does within a turn, in which two reads may complete two frames."""
    dial(edge)
    ping = frames.encode(FrameKind.PING, 7)
    publish = frames.encode(FrameKind.PUBLISH, 8, frames.PublishBody("a", b"<x>" + b"y" * 40_000 + b"</x>"))

    async def receive() -> int:
        (connection,) = edge.server._connections
        for data in (ping + publish[:20_000], publish[20_000:]):
            connection.get_buffer(-1)[: len(data)] = data
            connection.buffer_updated(len(data))
        assert connection.session is not None
        assert connection.session._publisher is not None
        while edge.parts.notifications.accepted == []:
            await asyncio.sleep(0)
        await connection.session._publisher.close()
        return edge.inflight.taken

    assert edge.on_loop(receive) == 0


def test_publications_that_wait_are_in_the_budget(
    edge: FramedEdge, dial: Connects, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, loops = asyncio.Event(), list[asyncio.AbstractEventLoop]()

    async def hold(*_: object) -> None:
        loops.append(asyncio.get_running_loop())
        await stuck.wait()

    monkeypatch.setattr(edge.parts.notifications, "append", hold)
    raw = dial(edge)
    for number in range(10):
        raw.send(frames.encode(FrameKind.PUBLISH, number, frames.PublishBody("a", b"<x>" + b"y" * 50_000 + b"</x>")))
    wait_for(lambda: edge.inflight.taken >= 500_000 and loops)
    loops[0].call_soon_threadsafe(stuck.set)
    wait_for(lambda: edge.inflight.taken < 50_000)  # a buffer stays with the connection until it is swept


def test_of_one_connection_few_requests_are_under_way(
    edge: FramedEdge, dial: Connects, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, now, go_on, original = 0, 0, asyncio.Event(), subscriptions.subscribe

    async def slow(*arguments: Any) -> Any:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await go_on.wait()
        now -= 1
        return await original(*arguments)

    monkeypatch.setattr(subscriptions, "subscribe", slow)
    monkeypatch.setattr(limits, "CONNECTION_SUBSCRIPTIONS", 20)
    raw = dial(edge)
    raw.send(b"".join(frames.encode(FrameKind.SUBSCRIBE, n, frames.SubscribeBody("a")) for n in range(2, 42)))
    wait_for(lambda: now == 16 and edge.server.counts.received["SUBSCRIBE"] == 40)

    async def finish() -> None:
        assert [each.held for each in edge.server._connections] == [True]
        go_on.set()

    edge.on_loop(finish)
    kinds = [raw.read().kind for _ in range(40)]
    assert (most, kinds.count(FrameKind.RECEIPT), kinds.count(FrameKind.ERROR)) == (16, 20, 20)
    raw.send(frames.encode(FrameKind.PING, 99))
    assert raw.read().kind == FrameKind.PONG


def test_who_does_not_read_answers_is_not_read_either(edge: FramedEdge, dial: Connects) -> None:
    raw = dial(edge)
    raw.socket.setblocking(False)
    pings, sent = frames.encode(FrameKind.PING, 1) * 4_096, 0
    while not edge.server.unread:
        try:
            sent += raw.socket.send(pings[sent % 16 :])
        except BlockingIOError:
            time.sleep(0.001)
        assert sent < 256 * 1024 * 1024

    async def sizes() -> tuple[bool, int]:
        (each,) = edge.server._connections
        assert each._transport is not None
        return each.held, each._transport.get_write_buffer_size()

    held, size = edge.on_loop(sizes)
    assert held
    assert size < 1024 * 1024


def test_few_messages_are_without_an_answer(edge: FramedEdge, dial: Connects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "_MOST_UNANSWERED", 150)
    raw = dial(edge)
    raw.send(frames.encode(FrameKind.SUBSCRIBE, 2, frames.SubscribeBody("a", window=10_000)))
    name = frames.read_body(raw.read(), frames.ReceiptBody).id
    deliver(edge, name, *(stored("a", "<x/>", f"n{number}") for number in range(400)))
    first = [raw.read() for _ in range(200)]
    raw.send(frames.encode(FrameKind.PING, 99))
    assert raw.read().kind == FrameKind.PONG, "and no further message"
    raw.send(b"".join(frames.encode(FrameKind.ACK, each.correlation) for each in first))
    assert [raw.read().kind for _ in range(200)] == [FrameKind.MESSAGE] * 200


def test_a_publication_that_ends_each_connection_is_given_up_and_the_others_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ZeroMQ edge, against a gateway that fails over one message."""
    add = Publisher.add

    def fail(publisher: Publisher, frame: Frame) -> None:
        if b"poison" in frame.body:
            raise frames.FrameError("this one ends the connection")
        add(publisher, frame)

    monkeypatch.setattr(Publisher, "add", fail)
    settings = ZmqSettings(pipeline=f"ipc://{tmp_path}/p", subscribe="", publish="", asked="")
    with framed_edge() as gateway:
        edge = ZmqEdge(settings, ConnectionFactory(gateway.url), 4 * 1024 * 1024, lambda: None)
        thread = threading.Thread(target=edge.run)
        thread.start()
        try:
            with zmq.Context() as context, context.socket(zmq.PUSH) as push:
                push.connect(settings.pipeline)
                for number in range(20):
                    push.send_multipart([b"a", b"<n>%d</n>" % number if number != 10 else b"<poison/>"])
                wait_for(lambda: edge.counts["pipeline", "refused"] == 1)
                push.send_multipart([b"a", b"<next/>"])
                wait_for(lambda: edge.counts["pipeline", "accepted"] == 20)
        finally:
            edge.stop()
            thread.join(120)
        stored = [each.payload for each in gateway.parts.notifications.accepted]
    assert {*stored} == {b"<next/>", *(b"<n>%d</n>" % number for number in range(20) if number != 10)}
