"""Connections of the framed protocol: the client, and raw frames, with a server whose logs are lists."""

from __future__ import annotations

import asyncio
import gc
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import zmq

from arborcast.client.framed import Connection, ConnectionFactory, Outgoing, published
from arborcast.client.values import BrokerUnavailable, FaultReceived
from arborcast.core.errors import ConfigError, InfrastructureError
from arborcast.ingest.access.grants import ClientRequest
from arborcast.ingest.access.settings import LimitSettings
from arborcast.ingest.framed import server, subscriptions
from arborcast.ingest.framed.publishing import Publisher
from arborcast.ingest.settings import FramedSettings, ZmqSettings
from arborcast.ingest.zeromq.edge import ZmqEdge
from arborcast.topic_model.records.control import SubscriptionRecord, TriggerRecord
from arborcast.topic_model.subscriptions import EndpointReference, Peer, Subscription
from arborcast.wire import frames, limits
from arborcast.wire.errors import IdentitiesUnavailable, NotAuthenticated, TooManyRequests
from arborcast.wire.frames import Decoder, Frame, FrameKind
from tests.support.framed import Connects, FramedEdge, client, deliver, element, framed_edge, publication, stored
from tests.support.gateway_parts import GatewayParts
from tests.support.guarded_gateway import guarded
from tests.support.routing import make_trigger
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import wait_until


def sweep(edge: FramedEdge, later_s: float) -> None:
    async def run() -> None:
        edge.server.sweep(asyncio.get_running_loop().time() + later_s)

    edge.on_loop(run)


# Publishing.


def test_pipelined_publications_keep_their_order(edge: FramedEdge, connection: Connection) -> None:
    producers = [connection.session().producer(topic) for topic in ("a", "b", "new/c")]
    begun = [producers[number % 3].begin(f"<n>{number}</n>" if number != 50 else "<n>") for number in range(1_000)]
    assert not begun[0].cancel(), "already sent"
    with pytest.raises(FaultReceived):
        published(begun.pop(50), 120)
    names = [published(each, 120) for each in begun]
    accepted = edge.parts.notifications.accepted
    assert {each.id for each in accepted} == set(names)
    assert len(accepted) == 999
    for topic in ("a", "b", "new/c"):
        numbers = [int(each.payload[3:-4]) for each in accepted if each.topic == topic]
        assert numbers == sorted(numbers)


def test_refused_publications_keep_the_connection(edge: FramedEdge, connection: Connection) -> None:
    for topic, out, code in (
        ("a//", Outgoing("<x/>"), "ExpressionError"),
        ("a", Outgoing("\x00", is_text=True), "MalformedMessage"),
        ("a", Outgoing(b"\xff", is_text=True), "InvalidRequest"),
        ("a", Outgoing("<x/>", priority=101), "InvalidRequest"),
        ("a", Outgoing("<x/>", lifespan=-1), "InvalidRequest"),
        ("a", Outgoing("<x/>", lifespan=float("nan")), "InvalidRequest"),
        ("a", Outgoing("<x/>", valid_until=-1), "InvalidRequest"),
        ("a", Outgoing("<x/>", type="p:x"), "InvalidRequest"),
        ("a", Outgoing("<x/>", {"": "x"}), "InvalidRequest"),
        ("a", Outgoing("<x/>", {"a": "\x00"}), "InvalidRequest"),
        ("a", Outgoing("<x/>", key="ü"), "InvalidRequest"),
    ):
        with pytest.raises(FaultReceived) as refused:
            connection.session().producer(topic).send(out)
        assert refused.value.fault == code, out
    edge.parts.notifications.error = InfrastructureError("Kafka is unavailable", 2.0)
    with pytest.raises(BrokerUnavailable) as away:
        connection.session().producer("a").send("<x/>")
    assert away.value.retry_after == 2.0
    edge.parts.notifications.error = None
    assert edge.parts.notifications.accepted == []
    assert connection.session().producer("a").send("<x/>")


LINK = Subscription("peer-berlin", EndpointReference("http://berlin/"), form="peer", peer=Peer("G/here", "G/berlin"))


def test_refused_frames_keep_the_connection(edge: FramedEdge, dial: Connects) -> None:
    """Unknown frames, frames that are costly to decode, and refused subscriptions. Link ids are derived from engine
    names."""
    for record in (SubscriptionRecord(LINK), TriggerRecord(make_trigger("hot", "a", "b"))):
        edge.parts.control.apply(record)
    raw, many = dial(edge), {f"a{number}": "" for number in range(257)}
    publish = frames.encode(FrameKind.PUBLISH, 5)
    wanted = (
        (frames.SubscribeBody("a["), "ExpressionError"),
        (frames.SubscribeBody("a", window=0), "InvalidRequest"),
        (frames.SubscribeBody("a", name="x" * 201), "InvalidRequest"),
        (frames.SubscribeBody("a", delivery={"Speed": "1"}), "InvalidRequest"),
        (frames.SubscribeBody("a", delivery={"a b": "1"}), "InvalidRequest"),
        (frames.SubscribeBody("a", delivery={"Reliability": "timely", "Order": "strict"}), "UnsupportedPolicy"),
        (frames.SubscribeBody("a", delivery=dict(list(many.items())[:17])), "BodyError"),
        (frames.SubscribeBody("a", types=["p:x"]), "UnknownFilters"),
        (frames.SubscribeBody("a", types=["\x00"]), "InvalidRequest"),
        (frames.SubscribeBody("a", types=["{urn:t}x"] * 8_000), "TooLarge"),
    )
    ended = ("nothing", "UnknownResource"), ("peer-berlin", "UnknownResource"), ("hot", "UnknownResource")
    for frame, code in (
        (publish[:5] + b"\x63" + publish[6:], "InvalidRequest"),
        (publish, "BodyError"),
        (publication(5, properties=many), "BodyError"),
        (publication(5, properties={"a": "x" * 20_000}), "InvalidRequest"),
        (frames.encode(FrameKind.CONNECT, 5, frames.ConnectBody()), "InvalidRequest"),
        (frames.encode(FrameKind.RECEIPT, 5, frames.ReceiptBody()), "InvalidRequest"),
        (frames.encode(FrameKind.UNSUBSCRIBE, 5, frames.UnsubscribeBody("x" * 70_000)), "TooLarge"),
        *((frames.encode(FrameKind.UNSUBSCRIBE, 5, frames.UnsubscribeBody(name)), code) for name, code in ended),
        *((frames.encode(FrameKind.SUBSCRIBE, 5, body), code) for body, code in wanted),
    ):
        raw.send(frame)
        assert raw.error().code == code, frame[:100]
    raw.send(frames.encode(FrameKind.ACK, 12_345))
    assert raw.request(FrameKind.PING, number=7)[:3] == (FrameKind.PONG, 0, 7)
    assert (edge.parts.control.records, edge.parts.notifications.accepted) == ([], [])
    assert edge.parts.table.get("peer-berlin") == LINK


def test_a_close_during_publications_logs_no_error(dial: Connects, caplog: pytest.LogCaptureFixture) -> None:
    """Large payloads are parsed in a thread; later frames are dropped during that."""
    with framed_edge() as edge:
        for _ in range(5):
            raw = dial(edge)
            raw.send(b"".join(publication(number, element(500_000)) for number in range(6)))
            raw.close()
        wait_until(lambda: edge.server.connections == 0)
        edge.on_loop(edge.server.stop)
    gc.collect()
    assert not [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]


def test_a_publication_that_ends_each_connection_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ZeroMQ edge with a gateway that fails for one message."""
    add = Publisher.add

    def fail(publisher: Publisher, frame: Frame) -> None:
        if b"poison" in frame.body:
            raise frames.FrameError("the connection ends")
        add(publisher, frame)

    monkeypatch.setattr(Publisher, "add", fail)
    settings = ZmqSettings(pipeline=f"ipc://{tmp_path}/p", subscribe="", publish="", requests="")
    payloads = [b"<n>%d</n>" % number if number != 10 else b"<poison/>" for number in range(20)]
    with framed_edge() as gateway:
        edge = ZmqEdge(settings, ConnectionFactory(gateway.url), 4 * 1024 * 1024, lambda: None)
        thread = threading.Thread(target=edge.run)
        thread.start()
        try:
            with zmq.Context() as context, context.socket(zmq.PUSH) as push:
                push.connect(settings.pipeline)
                for payload in payloads:
                    push.send_multipart([b"a", payload])
                wait_until(lambda: edge.counts["pipeline", "refused"] == 1)
                push.send_multipart([b"a", b"<next/>"])
                wait_until(lambda: edge.counts["pipeline", "accepted"] == 20)
        finally:
            edge.stop()
            thread.join(120)
        accepted = {each.payload for each in gateway.parts.notifications.accepted}
    assert accepted == {b"<next/>", *payloads} - {b"<poison/>"}


# Connections.


def test_frames_before_connected_are_bounded(edge: FramedEdge, dial: Connects) -> None:
    connect = frames.encode(FrameKind.CONNECT, 1, frames.ConnectBody())
    for data, words in (
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "begins with"),
        (publication(1), "CONNECT"),
        (frames.encode(FrameKind.CONNECT, 1, frames.ConnectBody("x" * 20_000))[:16], "16384 bytes"),
        (connect + 2 * publication(2, element(10_000)), "wait for it"),
        (connect + 1_025 * frames.encode(FrameKind.PING), "wait for it"),
    ):
        assert edge.parts.notifications.accepted == []
        raw = dial(edge, connect=False)
        raw.send(data)
        error = raw.error()
        assert words in error.text
        assert data != publication(1) or error.code == "NotAuthenticated"
        assert raw.ends()
    raw = dial(edge, connect=False)
    raw.send(connect + publication(2))
    assert [raw.read().kind, raw.read().kind] == [FrameKind.CONNECTED, FrameKind.RECEIPT]
    edge.parts.started = False
    with pytest.raises(BrokerUnavailable, match="starting"):
        client(edge).connection()


def test_idle_connections_are_closed(edge: FramedEdge, dial: Connects) -> None:
    silent, half, idle, good = dial(edge, connect=False), dial(edge), dial(edge), dial(edge)
    half.send(publication(1)[:20])
    wait_until(lambda: edge.server.connections == 4)
    time.sleep(0.2)  # the half frame is read
    sweep(edge, 21)
    assert "CONNECT" in silent.error().text
    sweep(edge, 30)
    assert "incomplete" in half.error().text
    assert good.is_alive()
    sweep(edge, 59)
    sweep(edge, 62)
    assert idle.error().code == "Idle"


def test_the_time_out_of_a_frame_begins_with_the_frame(edge: FramedEdge, dial: Connects) -> None:
    raw = dial(edge)

    async def pause() -> None:
        (each,) = edge.server._connections
        each.received_at -= 50
        each.whole_at -= 50

    edge.on_loop(pause)
    raw.send(publication(1)[:20])
    wait_until(lambda: pending(edge)[0])
    sweep(edge, 1)
    raw.send(publication(1)[20:])
    assert raw.read().kind == FrameKind.RECEIPT


def pending(edge: FramedEdge) -> tuple[int, int]:
    """The bytes of incomplete frames, and of the budget."""

    async def look() -> tuple[int, int]:
        return sum(each._decoder.pending for each in edge.server._connections), edge.inflight.taken

    return edge.on_loop(look)


def test_a_closed_connection_with_unsent_bytes_is_aborted(edge: FramedEdge, dial: Connects) -> None:
    """A dead peer: TCP would keep the bytes, and the claims, for a quarter of an hour."""
    raw = dial(edge)
    name = raw.subscribe("a", window=10_000)

    async def unsent() -> int:
        (each,) = edge.server._connections
        assert each._transport is not None
        return each._transport.get_write_buffer_size()

    number = itertools.count()
    while not edge.on_loop(unsent):
        deliver(edge, name, stored("a", f"<x>{'y' * 90_000}</x>", f"n{next(number)}"))
    assert not edge.server.unread
    sweep(edge, 61)
    sweep(edge, 1)
    assert edge.server.counts.refused["Idle"] == 1, "refused once"
    assert edge.server.connections == 1
    sweep(edge, 1 + LimitSettings().send_timeout_s)
    wait_until(lambda: not edge.server.connections)


def test_only_connections_with_a_due_deadline_are_checked(
    edge: FramedEdge, dial: Connects, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = [dial(edge) for _ in range(5)]
    checked: list[server.FramedConnection] = []
    deadlines = server.FramedConnection.deadlines

    def count(each: server.FramedConnection) -> Iterator[tuple[float, Callable[[], None]]]:
        checked.append(each)
        return deadlines(each)

    sweep(edge, 21)
    monkeypatch.setattr(server.FramedConnection, "deadlines", count)
    connections[0].send(publication(1)[:20])
    wait_until(lambda: pending(edge)[0])
    sweep(edge, 10)
    assert not checked
    sweep(edge, 22)
    assert len(set(checked)) == 1
    assert "incomplete" in connections[0].error().text


def test_pings_do_not_replace_connect(edge: FramedEdge, dial: Connects) -> None:
    silent = dial(edge, connect=False)
    assert silent.is_alive()

    async def pinged() -> None:
        (each,) = edge.server._connections
        each.received_at = each.whole_at = each.made_at + 20.5
        edge.server.sweep(each.made_at + 21)

    edge.on_loop(pinged)
    assert "no CONNECT" in silent.error().text


def test_the_number_of_connections(dial: Connects, monkeypatch: pytest.MonkeyPatch) -> None:
    with framed_edge(settings=FramedSettings(max_connections=2)) as edge:
        _first, _second = dial(edge), dial(edge)
        assert dial(edge, connect=False).error().code == "TooManyConnections"
    with framed_edge(limits=LimitSettings(connections_per_client=1)) as edge:
        _first = dial(edge)
        assert edge.server.connections == 1
    # Connections without CONNECT are bounded per address.
    monkeypatch.setattr(server, "_MOST_UNKNOWN", 3)
    with framed_edge() as edge:
        _known = [dial(edge) for _ in range(5)]
        unknown = [dial(edge, connect=False) for _ in range(3)]
        refused = dial(edge, connect=False).error()
        assert (refused.code, refused.retry_after) == ("TooManyConnections", 1.0)
        unknown[0].close()
        wait_until(lambda: edge.server.connections == 7)
        assert dial(edge)


def test_a_stop_stores_started_publications(dial: Connects) -> None:
    parts = GatewayParts()
    with framed_edge(parts) as edge:
        before = threading.active_count()
        for _ in range(50):
            raw = dial(edge)
            raw.subscribe("a")
            raw.close()
        wait_until(lambda: edge.server.connections == 0 and not list(parts.table.subscriptions()))
        assert threading.active_count() == before
        raw = dial(edge)
        raw.send(publication(1))
        assert raw.read().kind == FrameKind.RECEIPT
    assert raw.ends()
    assert len(parts.notifications.accepted) == 1


def test_a_factory_reads_its_settings(tmp_path: Path, edge: FramedEdge) -> None:
    file = tmp_path / "client.toml"
    file.write_text(f'[framed_client]\nurl = "{edge.url}"\nuser = "pump"\n')
    assert ConnectionFactory.from_settings(file) == ConnectionFactory(edge.url, "pump")
    file.write_text("[framed_client]\nspeed = 1\n")
    with pytest.raises(ConfigError, match="speed"):
        ConnectionFactory.from_settings(file)
    with pytest.raises(BrokerUnavailable):
        ConnectionFactory("framed://127.0.0.1:1").connection()


def test_a_silent_broker_is_detected() -> None:
    """Also in a thread that is blocked in a send."""

    def answer(plain: socket.socket) -> None:
        decoder = Decoder(2**30)
        while data := plain.recv(65_536):
            for frame in decoder.feed(data):
                if frame.kind == FrameKind.CONNECT:
                    body = frames.ConnectedBody("s", 2**30, 1.0)
                    plain.sendall(frames.encode(FrameKind.CONNECTED, frame.correlation, body))
                else:
                    plain.sendall(frames.encode(FrameKind.PONG, 0))
                    ended.wait(120)
                    return

    ended = threading.Event()
    with (
        ScriptedServer(answer, "framed") as broker,
        ThreadPoolExecutor(1) as threads,
        ConnectionFactory(broker.url, timeout_s=120).connection() as opened,
    ):
        sending = threads.submit(opened.session().producer("a").send, f"<x>{'y' * 2**26}</x>")
        try:
            with pytest.raises(BrokerUnavailable, match="nothing received from the broker for 1 s"):
                sending.result(120)
            assert opened.lost.is_set()
        finally:
            ended.set()


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (NotAuthenticated("removed"), True),
        (TooManyRequests("many wrong tokens from this address", 1.0), True),
        (IdentitiesUnavailable("LDAP is away"), False),
    ],
)
def test_connections_are_authenticated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, ends: bool
) -> None:
    parts = guarded(tmp_path, time.time)
    with (
        framed_edge(parts, FramedSettings(idle_s=10_000)) as edge,
        client(edge, "anna", "pa").connection() as connection,
    ):
        entered = threading.Event()

        async def authenticate(_: object) -> ClientRequest:
            entered.set()
            raise error

        assert parts.gateway.gate is not None
        monkeypatch.setattr(parts.gateway.gate, "authenticate", authenticate)
        sweep(edge, 61)
        assert entered.wait(120)
        if ends:
            assert connection.lost.wait(120)
        else:
            with pytest.raises(FaultReceived, match="may not publish"):
                connection.session().producer("a").send("<x/>")


def test_a_slow_password_check_is_no_missing_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = guarded(tmp_path, time.time)
    gate = parts.gateway.gate
    assert gate is not None
    enter, entered, released = gate.enter, threading.Event(), asyncio.Event()

    async def slow(scope: Mapping[str, Any]) -> ClientRequest:
        entered.set()
        await released.wait()
        return await enter(scope)

    monkeypatch.setattr(gate, "enter", slow)
    with framed_edge(parts) as edge, ThreadPoolExecutor() as pool:
        connecting = pool.submit(client(edge, "anna", "pa").connection)
        assert entered.wait(120)

        async def swept() -> None:
            edge.server.sweep(asyncio.get_running_loop().time() + 20)
            released.set()

        edge.on_loop(swept)
        connecting.result(120).close()


# Memory.


def test_incomplete_frames_are_in_the_budget_of_all_requests(dial: Connects) -> None:
    """As with HTTP bodies: some are read, others wait or are refused, and the budget is free at the end."""
    limit = 4 * 1024 * 1024
    with framed_edge(inflight_bytes=limit) as edge:
        opened = [dial(edge) for _ in range(12)]
        rest = {each: memoryview(publication(7, element(1_000_000))[:-1]) for each in opened}
        for each in opened:
            each.socket.setblocking(False)

        def most_are_refused() -> bool:
            for each in [each for each in opened if rest[each]]:
                try:
                    rest[each] = rest[each][each.socket.send(rest[each]) :]
                except BlockingIOError:
                    pass
                except OSError:
                    rest[each] = memoryview(b"")
            there, counted = pending(edge)
            assert there <= counted <= limit
            return edge.server.connections <= 4  # memory for three frames

        wait_until(most_are_refused)
        for each in opened:
            each.close()
        wait_until(lambda: edge.server.connections == 0)
        assert pending(edge) == (0, 0)


def test_the_budget_is_released_within_one_turn_of_the_loop(edge: FramedEdge, dial: Connects) -> None:
    """uvloop's clock does not advance within a turn, in which two reads may complete two frames."""
    dial(edge)
    ping, publish = frames.encode(FrameKind.PING, 7), publication(8, element(40_000))

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


def test_waiting_publications_use_the_budget(edge: FramedEdge, dial: Connects, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, loops = asyncio.Event(), list[asyncio.AbstractEventLoop]()

    async def hold(*_: object) -> None:
        loops.append(asyncio.get_running_loop())
        await stuck.wait()

    monkeypatch.setattr(edge.parts.notifications, "append", hold)
    raw = dial(edge)
    for number in range(10):
        raw.send(publication(number, element(50_000)))
    wait_until(lambda: edge.inflight.taken >= 500_000 and loops)
    loops[0].call_soon_threadsafe(stuck.set)
    wait_until(lambda: edge.inflight.taken < 50_000)  # the connection keeps a buffer until the next sweep


def test_concurrent_requests_of_a_connection_are_bounded(
    edge: FramedEdge, dial: Connects, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, now, released, original = 0, 0, asyncio.Event(), subscriptions.subscribe

    async def slow(*arguments: Any) -> Any:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await released.wait()
        now -= 1
        return await original(*arguments)

    monkeypatch.setattr(subscriptions, "subscribe", slow)
    monkeypatch.setattr(limits, "CONNECTION_SUBSCRIPTIONS", 20)
    raw = dial(edge)
    raw.send(b"".join(frames.encode(FrameKind.SUBSCRIBE, n, frames.SubscribeBody("a")) for n in range(2, 42)))
    wait_until(lambda: now == 16 and edge.server.counts.received["SUBSCRIBE"] == 40)

    async def finish() -> None:
        assert [bool(each._held) for each in edge.server._connections] == [True]
        released.set()

    edge.on_loop(finish)
    kinds = [raw.read().kind for _ in range(40)]
    assert (most, kinds.count(FrameKind.RECEIPT), kinds.count(FrameKind.ERROR)) == (16, 20, 20)
    assert raw.is_alive()


def test_a_client_that_does_not_read_delays_no_other(edge: FramedEdge, dial: Connects) -> None:
    raw, other = dial(edge), dial(edge)
    name, sent = raw.subscribe("a", window=10_000), 0
    while not edge.server.unread:
        deliver(edge, name, stored("a", f"<x>{'y' * 90_000}</x>", f"n{sent}"))
        sent += 1
    other.send(publication(1))
    assert other.read().kind == FrameKind.RECEIPT
    found = [frames.read_body(raw.read(), frames.MessageBody).id for _ in range(sent)]
    assert found == [f"n{number}" for number in range(sent)]


def test_a_client_that_does_not_read_answers_is_not_read(edge: FramedEdge, dial: Connects) -> None:
    raw = dial(edge)
    raw.socket.setblocking(False)
    # The error is longer than the refused frame.
    refused, sent = frames.encode(FrameKind.CONNECTED, 1) * 4_096, 0
    while not edge.server.unread:
        try:
            sent += raw.socket.send(refused[sent % 16 :])
        except BlockingIOError:
            time.sleep(0.001)
        assert sent < 256 * 1024 * 1024

    async def sizes() -> tuple[bool, int]:
        (each,) = edge.server._connections
        assert each._transport is not None
        return bool(each._held), each._transport.get_write_buffer_size()

    held, size = edge.on_loop(sizes)
    assert held
    assert size < 1024 * 1024
