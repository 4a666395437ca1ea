"""The loop between the sockets and the gateway. One thread; libzmq has its own for the network.

Received messages are published through the framed edge, with a bound on those in progress. Without room, or with the
gateway away, PULL is not read, so that senders block at their high-water mark; messages of PUB sockets are then counted
as lost. Prefixes of receivers become subscriptions, and a message is acknowledged when the socket has it: delivery from
there on is at most once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import zmq

from arborcast.client.framed import Connection, ConnectionFactory, ConnectionLost
from arborcast.client.values import BrokerUnavailable
from arborcast.core.errors import ArborcastError
from arborcast.core.log_limit import LogLimit
from arborcast.core.recent import Recent
from arborcast.ingest.settings import ZmqSettings
from arborcast.ingest.zeromq.messages import MessageError, expression_of, read_publication, read_topic, written_topic
from arborcast.ingest.zeromq.prefixes import LONGEST_PREFIX, Peer, Prefixes, peer_of
from arborcast.ingest.zeromq.sockets import KnownClient, Sockets
from arborcast.ingest.zeromq.upstream import Answer, FramedUpstream
from arborcast.wire import frames
from arborcast.wire.frames import Frame, FrameKind

logger = logging.getLogger(__name__)

# The framed edge reads a connection on while there are fewer frames and bytes without an answer.
_MOST_FRAMES = 900
_MOST_BYTES = 3 * 1024 * 1024

# Messages read from one socket before the next socket.
_TURN = 100

_BEAT_S = 1.0

# Poll timeout of the loop; shorter while a client waits for the state of a subscription.
_TURN_MS, _PENDING_MS = 200, 20

# Minimum interval of log lines for errors of a kind.
_LOG_AGAIN_S = 60.0

# Delay before a message that the gateway could not store is sent again.
_AGAIN_S = 0.5

# Time limit of `ready` for a subscription to become active.
_READY_S = 10.0

_REMEMBERED = 4 * 1024 * 1024

# More parts than any valid message has: a message with this number is refused.
_MOST_PARTS = 7

# Maximum number of REQ that wait for a subscription.
_MAX_PENDING = 1_000

# A publication that was in progress at this number of lost connections is sent alone once, and then given up.
_SUSPECT, _MOST_LOST = 3, 6

_TASKS_NAME = "zmq-tasks"
_WINDOW = 1_000


class _Publication(NamedTuple):
    """A publication from a PUSH socket."""

    by: str
    body: frames.PublishBody
    flags: int
    user: str
    lost: int = 0


class _InputSocket(NamedTuple):
    """A socket from which messages are taken, each with a frame that names its sender, while `is_read`."""

    name: str
    socket: zmq.Socket[bytes]
    take: Callable[[list[bytes], zmq.Frame | None], None]
    is_read: Callable[[], bool]


class _PendingReady(NamedTuple):
    """A REQ that waits until its subscription is active."""

    identity: bytes
    expression: str
    until: float


class _Outcomes(Counter[tuple[str, ...]]):
    """The number of messages, by socket and outcome."""

    def __init__(self) -> None:
        super().__init__()
        self._log_limit = LogLimit(1, _LOG_AGAIN_S)

    def note(self, socket: str, outcome: str, why: str = "") -> None:
        """Count one more. The log has one `why` of each outcome a minute."""
        self[socket, outcome] += 1
        if why and self._log_limit.passes(outcome):
            logger.warning("zmq.%s: %s: %s", socket, outcome, why)


class _LoopCalls:
    """Calls that other threads leave for the loop; `event` is readable while there are any."""

    def __init__(self) -> None:
        self.event = os.eventfd(0, os.EFD_NONBLOCK)
        self._calls: deque[Callable[[], None]] = deque()

    def wake(self) -> None:
        os.eventfd_write(self.event, 1)

    def add(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        self.wake()

    def run(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.event)
        while self._calls:
            self._calls.popleft()()

    def close(self) -> None:
        os.close(self.event)


class _Retries:
    """Publications of PUSH sockets that the gateway could not store, in their order."""

    def __init__(self) -> None:
        self._held: deque[_Publication] = deque()
        self._due_at = 0.0
        self._alone = False  # one of them is sent alone

    def __len__(self) -> int:
        return len(self._held)

    def add(self, publication: _Publication, now: float) -> None:
        if not self._held:
            self._due_at = now + _AGAIN_S
        self._held.append(publication)

    def due(self, now: float) -> list[_Publication]:
        """Publications to repeat now: all, or the first one alone while one is under suspicion."""
        if not self._held or self._alone or now < self._due_at:
            return []
        self._due_at = now + _AGAIN_S
        self._alone = any(each.lost >= _SUSPECT for each in self._held)
        return [self._held.popleft() for _ in range(1 if self._alone else len(self._held))]

    def answered(self, error: ArborcastError | None) -> None:
        """A publication of a PUSH socket has its answer; while one is sent by itself, it is that one."""
        if self._alone:
            self._alone = False
            self._due_at = 0.0 if error is None else self._due_at


class _GatewayConnections:
    """Publishes at the gateway, on one connection per user. `has_room` bounds unanswered publications."""

    def __init__(
        self, gateway: ConnectionFactory, clients: Mapping[str, KnownClient], own: FramedUpstream, calls: _LoopCalls
    ) -> None:
        """`own` is the connection of clients without a user."""
        self.own = own
        self._gateway = gateway
        self._clients = clients
        self._calls = calls
        self._users: dict[str, FramedUpstream] = {}
        self._frames = self._bytes = 0

    @property
    def has_room(self) -> bool:
        return self._frames < _MOST_FRAMES and self._bytes < _MOST_BYTES

    def publish(self, body: frames.PublishBody, flags: int, user: str, answer: Answer) -> None:
        """The loop calls `answer`."""
        size = len(body.payload)
        self._frames += 1
        self._bytes += size

        def done(name: str, error: ArborcastError | None) -> None:
            self._frames -= 1
            self._bytes -= size
            answer(name, error)

        connection = self._of(user) if user else self.own
        connection.publish(body, flags, lambda name, error: self._calls.add(lambda: done(name, error)))

    def close(self) -> None:
        for each in (self.own, *self._users.values()):
            each.close()

    def _of(self, user: str) -> FramedUpstream:
        found = self._users.get(user)
        if found is None:
            client = self._clients[user]
            factory = replace(self._gateway, user=client.user, password=client.password, name="zmq")
            found = self._users[user] = FramedUpstream(factory)
        return found


class ZmqEdge:
    """The edges of these settings; `largest` is the maximum size of a frame. `beat` is called about once a second by
    the running loop, after the first connection to the gateway."""

    def __init__(
        self, settings: ZmqSettings, gateway: ConnectionFactory, largest: int, beat: Callable[[], None]
    ) -> None:
        """Raises ConfigError."""
        self._settings = settings
        self._beat = beat
        self.counts = _Outcomes()
        # A message slightly too large is refused and counted.
        self._sockets = Sockets(settings, 2 * largest)
        self._calls = _LoopCalls()
        self._tasks: deque[tuple[Connection, Frame, frames.MessageBody]] = deque()
        self._peer_prefixes = Prefixes()
        self._prefixes: dict[str, set[bytes]] = {}  # by expression
        self._pending: list[_PendingReady] = []
        self._sent: Recent[str, bool] = Recent(_REMEMBERED)
        self._retries = _Retries()
        self._input_sockets = self._open_input_sockets()
        self._stopping = False
        factory = replace(gateway, user=settings.user, password=settings.password, name="zmq")
        self._gateway = _GatewayConnections(
            gateway,
            self._sockets.clients,
            FramedUpstream(factory, lambda *message: self._calls.add(lambda: self._send(*message))),
            self._calls,
        )
        self._task_source: FramedUpstream | None = None
        if self._sockets.tasks is not None and settings.tasks_topics:
            self._task_source = FramedUpstream(factory, self._take_task)
            self._task_source.subscribe(frames.SubscribeBody(settings.tasks_topics, _TASKS_NAME, window=_TURN))

    def stop(self) -> None:
        """End the loop. From any thread, or a signal handler."""
        self._stopping = True
        self._calls.wake()

    def run(self) -> None:
        beaten, reached = 0.0, False
        try:
            while not self._stopping:
                reached = reached or self._gateway.own.connected
                if reached and time.monotonic() - beaten >= _BEAT_S:
                    beaten = time.monotonic()
                    self._beat()
                    for prefix in self._peer_prefixes.sweep():
                        self._end_prefix(prefix)
                self._turn()
        finally:
            self._gateway.close()
            if self._task_source is not None:
                self._task_source.close()
            self._sockets.close()
            self._calls.close()

    def _turn(self) -> None:
        poller = zmq.Poller()
        poller.register(self._calls.event, zmq.POLLIN)
        for each in self._input_sockets:
            if each.is_read():
                poller.register(each.socket, zmq.POLLIN)
        if self._sockets.tasks is not None and self._tasks:
            poller.register(self._sockets.tasks, zmq.POLLOUT)
        ready = dict(poller.poll(_TURN_MS if not self._pending else _PENDING_MS))
        self._calls.run()
        for each in self._input_sockets:
            if each.socket in ready:
                self._take(each)
        if self._sockets.tasks in ready:
            self._hand_out()
        if self._pending:
            self._answer_ready()
        for publication in self._retries.due(time.monotonic()):
            self._store(publication)

    def _open_input_sockets(self) -> list[_InputSocket]:
        sockets, always = self._sockets, lambda: True

        def has_room() -> bool:
            return self._gateway.has_room

        def stores() -> bool:
            return self._gateway.has_room and not self._retries

        found = (
            ("subscribe", sockets.xpub, self._subscription, always),
            ("publish", sockets.sub, self._publish, always),
            ("pipeline", sockets.pull, partial(self._publish, by="pipeline"), stores),
            ("requests", sockets.router, self._request, has_room),
            ("results", sockets.results, self._result, stores),
        )
        return [
            _InputSocket(name, opened, take, is_read) for name, opened, take, is_read in found if opened is not None
        ]

    def _take(self, source: _InputSocket) -> None:
        opened = source.socket
        whole = bool(self._sockets.clients) or opened is self._sockets.xpub  # with its sender
        for _ in range(_TURN):
            parts: list[bytes] = []
            last: zmq.Frame | None = None
            try:
                while not parts or opened.getsockopt(zmq.RCVMORE):
                    if whole:
                        last = opened.recv(zmq.NOBLOCK, copy=False)
                    part = opened.recv(zmq.NOBLOCK) if last is None else last.bytes
                    if len(parts) < _MOST_PARTS:
                        parts.append(part)
            except zmq.Again:
                return
            try:
                source.take(parts, last)
            except MessageError as error:
                self.counts.note(source.name, error.reason, str(error))

    def _publish(self, parts: Sequence[bytes], last: zmq.Frame | None, by: str = "publish") -> None:
        if not self._gateway.has_room and by == "publish":
            raise MessageError("lost", "the queue to the gateway is full")
        self._store(_Publication(by, *read_publication(parts), _user_of(last)))

    def _store(self, publication: _Publication) -> None:
        by, body, flags, user, _ = publication

        def answer(_: str, error: ArborcastError | None) -> None:
            if by != "publish":
                self._retries.answered(error)
            lost = publication.lost + isinstance(error, ConnectionLost)
            if error is None:
                self.counts.note(by, "accepted")
            elif isinstance(error, BrokerUnavailable) and by != "publish" and lost < _MOST_LOST:
                self._retries.add(publication._replace(lost=lost), time.monotonic())
            else:
                self.counts.note(by, "refused", str(error))

        self._gateway.publish(body, flags, user, answer)

    def _request(self, parts: list[bytes], last: zmq.Frame | None) -> None:
        try:
            self._read_request(parts[0], parts[1:], _user_of(last))
        except MessageError as error:
            self._reply(parts[0], b"error", str(error).encode())
            raise

    def _read_request(self, identity: bytes, rest: list[bytes], user: str) -> None:
        if len(rest) < 2 or rest[0]:
            raise MessageError("parts", "a request is: publish, topic, payload [, properties]; or ready, prefix")
        word, *arguments = rest[1:]
        if word == b"ready" and len(arguments) == 1:
            if len(self._pending) >= _MAX_PENDING or len(arguments[0]) > LONGEST_PREFIX:
                self._reply(identity, b"error", b"too many wait for their subscriptions, or the prefix is too long")
                return
            self._pending.append(_PendingReady(identity, expression_of(arguments[0]), time.monotonic() + _READY_S))
            return
        if word != b"publish":
            raise MessageError("word", f"publish and ready are known, not {word[:60].decode('utf-8', 'replace')!r}")
        body, flags = read_publication(arguments)

        def answer(name: str, error: ArborcastError | None) -> None:
            self.counts.note("requests", "refused" if error else "accepted", str(error or ""))
            self._reply(identity, *((b"error", str(error).encode()) if error else (b"ok", name.encode())))

        self._gateway.publish(body, flags, user, answer)

    def _result(self, parts: list[bytes], last: zmq.Frame | None) -> None:
        if len(parts) != 3:
            raise MessageError("parts", f"a result has task id, topic and payload, not {len(parts)} parts")
        body, flags = read_publication(parts[1:])
        body.properties = {"task": read_topic(parts[0])}
        self._store(_Publication("results", body, flags, _user_of(last)))

    def _subscription(self, parts: list[bytes], last: zmq.Frame | None) -> None:
        """A receiver subscribes to a prefix, or cancels."""
        begins, prefix, peer = parts[0][:1], parts[0][1:], _peer_of(last)
        if begins == b"\x00" and self._peer_prefixes.end(prefix, peer):
            self._end_prefix(prefix)
        if begins != b"\x01" or not self._peer_prefixes.begin(prefix, peer):
            return
        expression = expression_of(prefix)
        self._prefixes.setdefault(expression, set()).add(prefix)
        self._gateway.own.subscribe(frames.SubscribeBody(expression, current=True, window=_WINDOW))

    def _end_prefix(self, prefix: bytes) -> None:
        expression = expression_of(prefix)
        prefixes = self._prefixes[expression]
        prefixes.discard(prefix)
        if not prefixes:
            del self._prefixes[expression]
            self._gateway.own.unsubscribe(expression)

    def _send(self, connection: Connection, frame: Frame, message: frames.MessageBody) -> None:
        """Send it once to all receivers of its prefixes, even if several subscriptions deliver it."""
        xpub = self._sockets.xpub
        if xpub is not None and self._sent.get(message.id) is None:
            self._sent.put(message.id, True, len(message.id))
            topic = written_topic(message.topic, self._settings.topics)
            parts = (topic, message.payload, message.id.encode())
            xpub.setsockopt(zmq.XPUB_NODROP, 1)
            try:
                xpub.send_multipart(parts, zmq.NOBLOCK)
            except zmq.Again:
                # One of them is full. It loses this one, the others do not.
                xpub.setsockopt(zmq.XPUB_NODROP, 0)
                xpub.send_multipart(parts, zmq.NOBLOCK)
                self.counts.note("subscribe", "dropped", "a receiver does not read its messages")
            self.counts.note("subscribe", "sent")
        connection.reply(FrameKind.ACK, frame.correlation)

    def _take_task(self, connection: Connection, frame: Frame, message: frames.MessageBody) -> None:
        def add() -> None:
            self._drop_lost_tasks()
            self._tasks.append((connection, frame, message))

        self._calls.add(add)

    def _drop_lost_tasks(self) -> None:
        """Drop the tasks of lost connections: the gateway sends them again."""
        while self._tasks and self._tasks[0][0].lost.is_set():
            self._tasks.popleft()

    def _hand_out(self) -> None:
        tasks = self._sockets.tasks
        self._drop_lost_tasks()
        while tasks is not None and self._tasks:
            connection, frame, message = self._tasks[0]
            topic = written_topic(message.topic, self._settings.topics)
            try:
                tasks.send_multipart((message.id.encode(), topic, message.payload), zmq.NOBLOCK)
            except zmq.Again:
                return
            self._tasks.popleft()
            self.counts.note("tasks", "sent")
            connection.reply(FrameKind.ACK, frame.correlation)

    def _answer_ready(self) -> None:
        now, waiting = time.monotonic(), list[_PendingReady]()
        for each in self._pending:
            if self._gateway.own.is_in_force(each.expression):
                self._reply(each.identity, b"ok", b"")
            elif now >= each.until:
                self._reply(each.identity, b"error", b"no subscription for this prefix, or the gateway is unavailable")
            else:
                waiting.append(each)
        self._pending = waiting

    def _reply(self, identity: bytes, *parts: bytes) -> None:
        if self._sockets.router is not None:
            self._sockets.router.send_multipart((identity, b"", *parts), zmq.NOBLOCK)


def _peer_of(frame: zmq.Frame | None) -> Peer | None:
    """The connection of a frame; None for a closed one."""
    try:
        return None if frame is None else peer_of(int(frame.get(zmq.SRCFD)))
    except zmq.ZMQError:
        return None


def _user_of(frame: zmq.Frame | None) -> str:
    if frame is None:
        return ""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""
