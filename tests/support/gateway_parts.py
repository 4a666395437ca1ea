"""A gateway without Kafka and sockets, for unit tests: the logs are lists, the clock is set by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Self, TypeVar
from urllib.parse import urlsplit

import pytest
from lxml import etree

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.topics import RESULTS_LOG
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.security.keyring import KeyRing
from arborcast.core.security.outbound import AddressPolicy
from arborcast.core.settings import KafkaSettings, SecretSettings
from arborcast.core.telemetry.metrics import Registry
from arborcast.ingest.addresses import OwnAddresses
from arborcast.ingest.elements.protection import Protector
from arborcast.ingest.http.app import GatewayApp
from arborcast.ingest.operations.gateway import Gateway, GatewayView
from arborcast.ingest.operations.push_results import PushResults
from arborcast.ingest.settings import FragmentSettings, GatewaySettings, TopicSettings
from arborcast.ingest.state.log_view import LoggedState
from arborcast.ingest.state.pull_queues import KeyedRecord, PullQueues
from arborcast.topic_model.control_view import ControlView, Projection
from arborcast.topic_model.projections.open_messages import OpenMessage, OpenMessages
from arborcast.topic_model.projections.pull_store import PullLimits, PullStore
from arborcast.topic_model.records import results
from arborcast.topic_model.records.control import ControlRecord, Tombstone, TopicPolicy, TopicRecord, key_of
from arborcast.topic_model.records.fragments import FragmentRecord, StoredPart
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.pull import StoredMessage
from arborcast.topic_model.records.results import Result
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.outbound import THIS_MACHINE

START = datetime(2026, 1, 1, 0, 0, 0, tzinfo=UTC)


def live(records: Iterable[ControlRecord]) -> set[str]:
    """The keys that compaction would keep in the log."""
    last = {key_of(record): record for record in records}
    return {key for key, record in last.items() if not isinstance(record, Tombstone)}


_Record = TypeVar("_Record")


class RecordList(Generic[_Record]):
    """A log whose records are applied at once; with `error` set, appends fail."""

    def __init__(self, apply: Callable[[_Record, int], None]) -> None:
        self._apply = apply
        self.records: list[_Record] = []
        self.error: InfrastructureError | None = None

    async def commit(self, records: Sequence[_Record]) -> int:
        await asyncio.sleep(0)  # other tasks run, as during an append to Kafka
        if self.error is not None:
            raise self.error
        for record in records:
            self.records.append(record)
            self._apply(record, len(self.records) - 1)
        return len(self.records) - len(records)


class ControlList(RecordList[ControlRecord]):
    """The control log; `also` has further projections."""

    append_s = 10.0

    def __init__(self, view: ControlView) -> None:
        super().__init__(self.apply)
        self.view = view
        self.also: list[Projection] = []

    async def catch_up(self) -> None:
        """Nothing to read: there is no other gateway."""

    async def keep_up(self) -> None:
        """Nothing to read: there is no other gateway."""

    def apply(self, record: ControlRecord, offset: int | None = None) -> None:
        """Without an offset as if it was read before; the log does not have it."""
        self.view.apply(record, offset)
        for each in self.also:
            each.apply(record)


@dataclass
class NotificationList:
    """Accepts all notifications; with `error` set, none."""

    accepted: list[Notification] = field(default_factory=list)
    current: dict[TopicPath, Notification] = field(default_factory=dict)
    error: InfrastructureError | None = None

    def append(
        self, notifications: Sequence[Notification], retained: Sequence[Notification] = ()
    ) -> asyncio.Future[None]:
        if self.error is not None:
            raise self.error
        self.accepted.extend(notifications)
        self.current.update((notification.topic, notification) for notification in retained)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    async def settled(self) -> None:
        """Appends are complete at once."""


@dataclass
class CurrentMessageList:
    """The current messages appended to the list."""

    log: NotificationList

    async def topics(
        self, matches: Callable[[TopicPath], bool], among: Sequence[TopicPath] | None = None
    ) -> list[TopicPath]:
        current = self.log.current
        return [path for path in (current if among is None else among) if path in current and matches(path)]

    async def latest(self, paths: Sequence[TopicPath]) -> list[Notification]:
        return [self.log.current[path] for path in paths if path in self.log.current]

    async def end(self) -> int:
        return 0

    async def remove(self, paths: Sequence[TopicPath], end: int) -> None:
        for path in paths:
            del self.log.current[path]


class PullRecordList(RecordList[KeyedRecord]):
    """The log of the pull points. `failures` is set by the test."""

    failures = 0

    def __init__(self) -> None:
        super().__init__(lambda keyed, offset: self.store.apply(*keyed, offset))
        self.store = PullStore(PullLimits(messages=1_000, bytes=1_000_000, resident_bytes=1_000_000))

    async def elements(self, offsets: Iterable[int]) -> dict[int, bytes]:
        found = {offset: self.records[offset][1] for offset in offsets}
        return {offset: record.element for offset, record in found.items() if isinstance(record, StoredMessage)}

    async def cut(self) -> None:
        """Nothing is cut."""


RESULT_KEYS = KeyRing({"k": b"k" * 32})


class PartList(RecordList[FragmentRecord]):
    """The log of parts; the test moves the clock."""

    def __init__(self) -> None:
        super().__init__(lambda record, offset: self.messages.apply(record, offset, self.clock))
        self.messages = OpenMessages(1_000)
        self.clock = 0.0

    async def parts(self, message: OpenMessage) -> list[StoredPart]:
        found = [self.records[offset] for _, offset in sorted(message.offsets())]
        return [record for record in found if isinstance(record, StoredPart)]

    def now(self) -> float:
        return self.clock


class ResultList(LogWriter):
    """The appended results; with `error` set, appends fail."""

    def __init__(self) -> None:
        super().__init__(KafkaSettings(), RESULTS_LOG)
        self.taken: list[Result] = []
        self.error: InfrastructureError | None = None

    def begin(self, encoded: Sequence[tuple[bytes, bytes | None]]) -> Callable[[], int]:
        if self.error is not None:
            raise self.error
        self.taken += [results.decode(value) for _, value in encoded]
        last = len(self.taken) - 1
        return lambda: last


@dataclass
class HttpAnswer:
    """The application's answer."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def root(self) -> etree._Element:
        return etree.fromstring(self.body)

    def text(self, name: str) -> str | None:
        """Text of the first element of this local name; None when there is none."""
        found = self.root.find(f".//{{*}}{name}")
        return None if found is None else (found.text or "")

    @property
    def fault(self) -> str:
        """The detail element's name, or the fault code's (1.1) or innermost value's (1.2) local name without detail."""
        detail = self.root.find(".//{*}Fault/detail/*")
        if detail is None:
            detail = self.root.find(".//{*}Fault/{*}Detail/*")
        if detail is not None:
            return etree.QName(detail).localname
        code = self.root.findtext(".//{*}Fault/faultcode")
        if code is None:
            code = [value.text or "" for value in self.root.iterfind(".//{*}Value")][-1]
        return code.rpartition(":")[2]

    @property
    def reason(self) -> str:
        """The reason text of the fault."""
        return self.text("faultstring") or self.text("Text") or ""


class GatewayParts:
    """The gateway's application over lists."""

    def __init__(
        self,
        settings: GatewaySettings | None = None,
        topics: TopicSettings | None = None,
        outbound: AddressPolicy = THIS_MACHINE,
        fragments: FragmentSettings | None = None,
    ) -> None:
        self.parts = PartList()
        view = GatewayView()
        self.control = ControlList(view)
        self.table, self.suspensions, self.pull_points = view.table, view.suspensions, view.pull_points
        self.registrations, self.owners = view.registrations, view.owners
        self.pull_log = PullRecordList()
        self.pulls = PullQueues(
            self.pull_log.store, self.pull_log, self.pull_points.exists, claim_s=30, max_bytes=100_000, max_nodes=20_000
        )
        self.pull_log.store.changed = self.pulls.arrived
        self.notifications = NotificationList()
        self.results = ResultList()
        self.now = START
        self.obstacle = ""
        self.started = True
        self.metrics = Registry()
        self.gateway = Gateway(
            settings=settings or GatewaySettings(),
            topics=topics or TopicSettings(),
            own=OwnAddresses("127.0.0.1", 8080),
            view=view,
            changes=self.control,
            notifications=self.notifications,
            retained=CurrentMessageList(self.notifications),
            pulls=self.pulls,
            protector=Protector(SecretSettings(), RESULT_KEYS),
            parts=self.parts,
            fragments=fragments or FragmentSettings(),
            outbound=outbound,
            now=lambda: self.now,
            started=lambda: self.started,
            results=PushResults(
                LoggedState(KafkaSettings(), self.results, results.encode), RESULT_KEYS, lambda: self.now.timestamp()
            ),
        )
        self.app = GatewayApp(self.gateway, self.metrics, lambda: self.obstacle)

    def later(self, **span: float) -> None:
        """Advance the clock."""
        self.now += timedelta(**span)

    def have_topics(self, *paths: str, types: tuple[str, ...] = (), **policy: Any) -> None:
        """Add topics with this policy, as if read before; the log has no record of them."""
        for path in paths:
            self.control.apply(TopicRecord(TopicPath(path), message_types=types, policy=TopicPolicy(**policy)))

    def post(self, body: bytes, path: str = "/wsn/NotificationBroker", **headers: str) -> HttpAnswer:
        """One POST without concurrent requests."""
        return asyncio.run(self.request("POST", path, body, headers))

    def get(self, path: str) -> HttpAnswer:
        """One GET without concurrent requests."""
        return asyncio.run(self.request("GET", path))

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        pieces: Sequence[bytes] | None = None,
    ) -> HttpAnswer:
        """One request; `pieces` is a body that arrives in several parts."""
        scope = scope_of(method, path, headers)
        if pieces is None:
            pieces = [body]
            scope["headers"].append((b"content-length", str(len(body)).encode()))
        waiting = list(pieces)
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if not waiting:
                await asyncio.Event().wait()  # the client stays connected
            piece = waiting.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(waiting)}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        start, *parts = sent
        assert [each.get("more_body", False) for each in parts] == [True] * (len(parts) - 1) + [False]
        return HttpAnswer(start["status"], dict(start["headers"]), b"".join([each["body"] for each in parts]))

    async def hang_up_after_the_head(self, path: str, headers: dict[str, str]) -> HttpAnswer:
        """A GET whose client disconnects as soon as the answer begins."""
        async with Visit(self, path, headers) as visit:
            await visit.until(lambda: len(visit.sent) > 1)
            return HttpAnswer(visit.sent[0]["status"], dict(visit.sent[0]["headers"]), visit.sent[1]["body"])


def scope_of(method: str, path: str, headers: dict[str, str] | None) -> dict[str, Any]:
    """The ASGI scope of a request."""
    path, _, query = path.partition("?")
    encoded = [(name.replace("_", "-").lower().encode(), text.encode()) for name, text in (headers or {}).items()]
    return {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": encoded}


class Visit:
    """A GET with an endless answer: the bytes sent until the client disconnects. With `reading` cleared it reads no
    further bytes."""

    def __init__(self, parts: GatewayParts, path: str, headers: dict[str, str] | None = None) -> None:
        self.sent: list[dict[str, Any]] = []
        self.reading = asyncio.Event()
        self.reading.set()
        self._left = asyncio.Event()
        self._answer = asyncio.ensure_future(parts.app(scope_of("GET", path, headers), self._receive, self._send))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._left.set()
        self.reading.set()
        await self.ended()

    @property
    def body(self) -> str:
        return b"".join(each.get("body", b"") for each in self.sent).decode()

    async def until(self, there: Callable[[], bool]) -> None:
        """Return when the condition holds or the answer has ended."""
        while not (there() or self._answer.done()):
            await asyncio.sleep(0.005)

    async def ended(self) -> None:
        await self._answer

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.reading.wait()
        self.sent.append(message)


def path_of(answer: HttpAnswer) -> str:
    """The path of a new subscription's reference."""
    address = answer.root.findtext(".//{*}SubscriptionReference/{*}Address")
    assert address is not None
    assert address.startswith("http://127.0.0.1:8080/wsn/subscriptions/")
    return urlsplit(address).path


def only_subscription(parts: GatewayParts) -> Subscription:
    (subscription,) = parts.table.subscriptions()
    return subscription


def changed_elsewhere_first(
    monkeypatch: pytest.MonkeyPatch, parts: GatewayParts, change: Callable[[Subscription], list[ControlRecord]]
) -> None:
    """Another gateway's change gets into the log just before the next one of this gateway."""
    commit = parts.control.commit

    async def later(records: Sequence[ControlRecord]) -> int:
        monkeypatch.setattr(parts.control, "commit", commit)
        await commit(change(only_subscription(parts)))
        return await commit(records)

    monkeypatch.setattr(parts.control, "commit", later)
