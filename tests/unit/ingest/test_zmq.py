"""ZeroMQ at the gateway: publications, subscribed prefixes, retries, and the connections of the sockets."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from arborcast.client.framed import ConnectionFactory
from arborcast.client.values import FaultReceived
from arborcast.core.telemetry import log_format
from arborcast.engine.gateway import zmq_edge
from arborcast.ingest.settings import ZmqSettings
from arborcast.ingest.zeromq.edge import ZmqEdge, _Publication, _Retries
from arborcast.ingest.zeromq.messages import Form, MessageError, expression_of, read_publication, written_topic
from arborcast.ingest.zeromq.prefixes import LONGEST_PREFIX, MOST_PREFIXES, Peer, Prefixes, is_open, peer_of
from arborcast.ingest.zeromq.sockets import Sockets
from arborcast.ingest.zeromq.upstream import FramedUpstream
from arborcast.topic_model.expressions import parse_friendly
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.topics import TopicPath
from arborcast.wire import frames
from arborcast.wire.frames import LOOSE, PublishBody
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    ("parts", "body", "flags"),
    [
        ([b"a/b", b"<x/>"], PublishBody("a/b", b"<x/>"), 0),
        ([b"ALL:ALARM", b" <?xml"], PublishBody("ALL:ALARM", b" <?xml"), 0),
        ([b"a", b"4 < 5"], PublishBody("a", b"4 < 5"), LOOSE),
        ([b"a", b"< 5"], PublishBody("a", b"< 5"), LOOSE),
        ([b"a", b""], PublishBody("a", b""), LOOSE),
        ([b"a", b"<x/>", b'{"unit": "bar"}'], PublishBody("a", b"<x/>", {"unit": "bar"}), 0),
        ([b"a", b"<x/>", b""], PublishBody("a", b"<x/>"), 0),
    ],
)
def test_publications(parts: list[bytes], body: PublishBody, flags: int) -> None:
    assert read_publication(parts) == (body, flags)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        *((parts, "parts") for parts in ([], [b"a"], [b"a", b"<x/>", b"{}", b""])),
        *(([topic, b"<x/>"], "topic") for topic in (b"", b" ", b"\xff")),
        *(([b"a", b"<x/>", text], "properties") for text in (b"no", b'{"a": 1}', b"[" * 100_000)),
    ],
)
def test_invalid_publications(parts: list[bytes], reason: str) -> None:
    with pytest.raises(MessageError) as wrong:
        read_publication(parts)
    assert wrong.value.reason == reason


@pytest.mark.parametrize(
    ("prefix", "expression"),
    [
        (b"ALL:ALARM", "ALL//."),
        (b"ALL:ALARM:", "ALL/ALARM//."),
        (b"ALL/ALARM/x", "ALL/ALARM//."),
        (b"{urn:t}a/b", "{urn:t}a//."),
        *((prefix, "") for prefix in (b"", b"ALL", b"{urn:t}a", b"a*/b", b"a|b/c", b"/a/", b"\xff/")),
    ],
)
def test_expressions_of_prefixes(prefix: bytes, expression: str) -> None:
    assert expression_of(prefix) == expression


NAMES = st.lists(st.sampled_from(["a", "b", "ab", "ALARM", "ALARM2"]), min_size=1, max_size=4)


@given(NAMES, st.sampled_from(["slash", "colon"]), st.integers(0, 20))
def test_topics_with_a_prefix_match_its_expression(names: list[str], form: Form, length: int) -> None:
    path = TopicPath("/".join(names))
    prefix = written_topic(path, form)[:length]
    expression = expression_of(prefix)
    assert not expression or parse_normal(parse_friendly(expression).normal).matches(path)


def publication(name: str, lost: int = 0) -> _Publication:
    return _Publication("pipeline", PublishBody(name, b""), 0, "", lost)


def test_failed_publications_are_repeated_in_order() -> None:
    """One that was sent on several lost connections is repeated alone."""
    retries = _Retries()
    for name in ("n0", "n1", "n2"):
        retries.add(publication(name), 10.0)
    assert (len(retries), retries.due(10.4)) == (3, [])
    assert [each.body.topic for each in retries.due(10.5)] == ["n0", "n1", "n2"]
    assert not retries
    for name, lost in (("n0", 0), ("n1", 3), ("n2", 0)):
        retries.add(publication(name, lost), 10.0)
    assert [each.body.topic for each in retries.due(10.5)] == ["n0"]
    assert retries.due(99.0) == [], "one is in flight"
    retries.answered(None)
    assert [each.body.topic for each in retries.due(10.6)] == ["n1"], "at once after a success"
    retries.answered(MessageError("x", "lost again"))
    assert retries.due(11.0) == []
    assert [each.body.topic for each in retries.due(11.1)] == ["n2"]


class Peers:
    """Connections closed by the test."""

    def __init__(self) -> None:
        self.closed: set[Peer] = set()
        self.requests = 0

    def is_alive(self, peer: Peer) -> bool:
        self.requests += 1
        return peer not in self.closed


A, B, C = (1, 10), (2, 20), (3, 30)


def test_a_prefix_ends_with_its_last_connection() -> None:
    peers = Peers()
    prefixes = Prefixes(peers.is_alive)
    assert [prefixes.begin(b"p", A), prefixes.begin(b"p", B), prefixes.begin(b"p", A)] == [True, False, False]
    peers.closed.add(B)
    # A later connection with the same file descriptor does not end a prefix, either.
    for stranger in (C, B, (2, 21), (1, 11), None):
        assert not prefixes.end(b"p", stranger)
    assert list(prefixes.sweep()) == []
    assert [prefixes.end(b"p", A), prefixes.end(b"p", A)] == [True, False]
    peers.closed.clear()
    assert [prefixes.begin(b"p", each) for each in (C, A, B)] == [True, False, False]
    prefixes.begin(b"q", B)
    assert [prefixes.end(b"p", C), prefixes.end(b"p", C)] == [False, False]
    peers.closed.add(B)
    assert list(prefixes.sweep()) == [b"q"]
    peers.closed.add(A)
    assert list(prefixes.sweep()) == [b"p"]
    assert not prefixes._peers


def test_prefixes_are_bounded() -> None:
    prefixes, half = Prefixes(Peers().is_alive), MOST_PREFIXES // 2
    with pytest.raises(MessageError, match="1024 bytes"):
        prefixes.begin(b"x" * (LONGEST_PREFIX + 1), A)
    assert all(prefixes.begin(b"%d" % number, A) for number in range(half))
    with pytest.raises(MessageError, match="a connection has"):
        prefixes.begin(b"half is for other connections", A)
    assert all(prefixes.begin(b"more %d" % number, (number, 1)) for number in range(half))
    with pytest.raises(MessageError, match="no further one"):
        prefixes.begin(b"one more", B)
    assert len(prefixes._peers) == MOST_PREFIXES
    assert not prefixes.begin(b"0", B), "an existing prefix is not counted again"
    long = Prefixes(Peers().is_alive)
    assert all(long.begin(b"%01024d" % number, (number, 1)) for number in range(256))
    with pytest.raises(MessageError, match="262144 bytes"):
        long.begin(b"x", B)


@pytest.mark.parametrize("connects", [False, True])
def test_idle_connections_are_checked(connects: bool) -> None:
    """For bound and connected sockets: a peer without power sends no FIN."""
    with socket.create_server(("127.0.0.1", 0)) as peer:
        there = f"tcp://127.0.0.1:{peer.getsockname()[1]}"
        own = f">{there}" if connects else "tcp://127.0.0.1:*"
        only = ZmqSettings(publish=own, subscribe="", pipeline="", requests="", tasks="", results="")
        sockets = Sockets(only, 1_000)
        assert sockets.sub is not None
        address = cast(bytes, sockets.sub.getsockopt(zmq.LAST_ENDPOINT)).decode().rpartition(":")[2].rstrip("\0")
        with closing(sockets), peer.accept()[0] if connects else socket.create_connection(("127.0.0.1", int(address))):
            wait_until(lambda: timer_of(int(address), at=2 if connects else 1) == KEEPALIVE)


def test_unread_messages_of_a_sender_are_bounded_in_bytes() -> None:
    """While the gateway is away, a sender blocks before the edge is out of memory."""
    settings = ZmqSettings(subscribe="", publish="", pipeline="tcp://127.0.0.1:*", requests="", tasks="", results="")
    sockets, sent = Sockets(settings, 64 * 1024 * 1024), 0
    assert sockets.pull is not None
    with closing(sockets), zmq.Context() as context, context.socket(zmq.PUSH) as push:
        push.setsockopt(zmq.SNDHWM, 1)
        push.connect(sockets.pull.getsockopt_string(zmq.LAST_ENDPOINT))
        while sent < 200 and push.poll(2_000, zmq.POLLOUT):
            push.send(bytes(256 * 1024))
            sent += 1
        assert 4 <= sent < 200, "others are in buffers of the operating system"
        for _ in range(sent):
            sockets.pull.recv()


@pytest.mark.parametrize(
    ("address", "text"), [("tcp://0.0.0.0:5558", "curve_key_file"), ("tcp://127.0.0.1:x", "zmq.requests")]
)
def test_wrong_addresses_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], address: str, text: str
) -> None:
    monkeypatch.setattr(log_format, "configure", lambda *_: None)
    config = tmp_path / "arborcast.toml"
    zmq_section = f'[zmq]\nsubscribe = ""\npublish = ""\npipeline = ""\nrequests = "{address}"\n'
    config.write_text(f'home = "home"\n[framed]\nport = 1\n{zmq_section}')
    assert zmq_edge.main(["--config", str(config)]) == 2
    assert text in capsys.readouterr().err


KEEPALIVE = "02"


def timer_of(port: int, at: int) -> str:
    """The timer of the established connection with this local (1) or remote (2) port, from /proc/net/tcp."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return next((row[5][:2] for row in rows if row[at].endswith(f":{port:04X}") and row[3] == "01"), "")


def test_closed_connections_are_removed_at_constant_cost() -> None:
    peers = Peers()
    prefixes = Prefixes(peers.is_alive)
    prefixes.begin(b"p", A)
    for number in range(10_000):
        peer = (4, number)
        prefixes.begin(b"p", peer)
        peers.closed.add(peer)
    assert len(prefixes._peers[b"p"]) < 200
    assert peers.requests < 30_000


def test_connections_are_identified_by_descriptor_and_inode() -> None:
    one, other = socket.socketpair()
    file = one.fileno()
    peer = peer_of(file)
    assert peer is not None
    assert is_open(peer)
    one.close()
    assert not is_open(peer)
    os.dup2(other.fileno(), file)
    assert not is_open(peer), "the descriptor has another connection"
    os.close(file)
    assert peer_of(file) is None
    other.close()


class FakeConnection:
    """A connection that grants or refuses each subscription, with the handlers of the active ones."""

    def __init__(self, refuses: bool) -> None:
        self.lost = threading.Event()
        self.refuses = refuses
        self.requests: list[str] = []
        self.handlers: dict[str, Callable[[frames.Frame, frames.MessageBody], None]] = {}
        self.at_end: list[str] | None = None
        self.replies: list[int] = []

    def reply(self, kind: frames.FrameKind, number: int) -> None:
        assert kind is frames.FrameKind.ACK
        self.replies.append(number)

    def request(self, kind: frames.FrameKind, body: frames.SubscribeBody | frames.UnsubscribeBody) -> frames.Frame:
        if isinstance(body, frames.UnsubscribeBody):
            self.at_end = sorted(self.handlers)
            return frames.Frame(frames.FrameKind.RECEIPT, 0, 1, b"")
        self.requests.append(body.expression)
        if self.refuses:
            raise FaultReceived("not allowed", "Forbidden", 0)
        receipt = frames.encode(frames.FrameKind.RECEIPT, 1, frames.ReceiptBody(f"id of {body.expression}"))
        return next(frames.Decoder(2**20).feed(receipt))

    def handle(self, subscription: str, handler: Callable[[frames.Frame, frames.MessageBody], None] | None) -> None:
        if handler is None:
            del self.handlers[subscription]
        else:
            self.handlers[subscription] = handler

    def close(self) -> None:
        self.lost.set()


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[FakeConnection]:
    """The connections of factories, the newest last."""
    made: list[FakeConnection] = []

    def connect(factory: ConnectionFactory) -> FakeConnection:
        made.append(FakeConnection(refuses=factory.user == "refused"))
        return made[-1]

    monkeypatch.setattr(ConnectionFactory, "connection", connect)
    return made


def test_unsubscribe_removes_a_refusal(connections: list[FakeConnection]) -> None:
    with closing(FramedUpstream(ConnectionFactory(user="refused"))) as made:
        for expression in ("a", "b"):
            made.subscribe(frames.SubscribeBody(expression))
        wait_until(lambda: sorted(made._failed) == ["a", "b"])
        made.unsubscribe("a")
        wait_until(lambda: list(made._failed) == ["b"])
        (connection,) = connections
        assert sorted(connection.requests) == ["a", "b"]


def test_the_handler_stays_until_the_receipt_of_unsubscribe(connections: list[FakeConnection]) -> None:
    with closing(FramedUpstream(ConnectionFactory())) as made:
        made.subscribe(frames.SubscribeBody("a"))
        wait_until(lambda: made.is_in_force("a"))
        (connection,) = connections
        made.unsubscribe("a")
        wait_until(lambda: connection.at_end is not None)
        assert connection.at_end == ["id of a"], "messages are accepted until then"
        wait_until(lambda: not connection.handlers)


def test_tasks_of_a_lost_connection_are_handed_out_once(connections: list[FakeConnection]) -> None:
    """The gateway sends them again on the next connection, with other numbers."""
    settings = ZmqSettings(
        subscribe="", publish="", pipeline="", requests="", tasks="tcp://127.0.0.1:*", tasks_topics="jobs"
    )
    edge = ZmqEdge(settings, ConnectionFactory(), 1_000, lambda: None)
    assert edge._sockets.tasks is not None
    address = edge._sockets.tasks.getsockopt_string(zmq.LAST_ENDPOINT)

    def with_tasks() -> list[FakeConnection]:
        return [each for each in connections if each.handlers]

    def arrive(connection: FakeConnection, number: int, text: str) -> None:
        frame = frames.Frame(frames.FrameKind.MESSAGE, 0, number, b"")
        connection.handlers["id of jobs"](frame, frames.MessageBody("id of jobs", "jobs", text.encode(), text))

    received: list[bytes] = []
    with zmq.Context() as context, context.socket(zmq.PULL) as worker:
        try:
            for numbers in ((1, 2), (7, 8)):
                wait_until(lambda: bool(with_tasks()))
                connection = with_tasks()[-1]
                for number, text in zip(numbers, ("n0", "n1"), strict=True):
                    arrive(connection, number, text)
                edge._turn()
                if numbers == (1, 2):
                    connection.lost.set()
                    wait_until(lambda: with_tasks()[-1] is not connection)  # noqa: B023  # called at once
            assert len(edge._tasks) == 2, "those of a lost connection take no memory"
            worker.connect(address)
            while len(connection.replies) < 2:
                edge._turn()
                if worker.poll(0):
                    received.append(worker.recv_multipart()[0])
            while len(received) < 2:
                received.append(worker.recv_multipart()[0])
        finally:
            edge.stop()
            edge.run()
    assert (received, connection.replies) == ([b"n0", b"n1"], [7, 8])
    assert [each.replies for each in connections if each is not connection and each.replies] == []
