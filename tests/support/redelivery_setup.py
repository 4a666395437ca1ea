"""A simulated setup of the redelivery: endpoints with given answers, a clock that the test moves, logs in lists."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import weakref
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from arborcast.dispatch.delivery.envelope import (
    ATTEMPT_HEADER,
    CALLBACK_HEADER,
    ID_HEADER,
    SEQUENCE_HEADER,
    SUBSCRIPTION_HEADER,
    Envelope,
)
from arborcast.dispatch.delivery.health import EndpointHealthRegistry, Sign
from arborcast.dispatch.delivery.outcomes import classify
from arborcast.dispatch.delivery.transport.contract import Callback, PushRequest, PushResult
from arborcast.dispatch.logs import parked
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.held_lanes import HeldLanes
from arborcast.dispatch.logs.parked import Delivery, Parked, Place, Tried, Tries
from arborcast.dispatch.redelivery.events import OperatorEvent
from arborcast.dispatch.redelivery.parked_store import ParkedStore
from arborcast.dispatch.redelivery.pushes import RedeliveryJournal
from arborcast.dispatch.redelivery.scheduler import Redelivery, RedeliveryContext
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.records import pull
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.peers import MEDIA_TYPE, decode_push
from arborcast.topic_model.records.pull import StoredMessage
from arborcast.topic_model.records.results import Promise, Result, State, read_promise
from arborcast.topic_model.subscriptions import (
    DeliveryPolicy,
    EndpointReference,
    Peer,
    Subscription,
    TopicFilter,
    queue_of,
    queue_topic,
)
from arborcast.topic_model.topics import TopicPath
from tests.support.sealed import SECRET_OPENER

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

# More turns than there can be work at one time.
_MOST_TURNS = 10_000

# Stores of deleted setups. The garbage collector may delete a setup in any thread, and SQLite closes a connection only
# in its own.
_UNUSED: deque[ParkedStore] = deque()

OK = PushResult(202)
REFUSED = PushResult(0, "connect", "refused")
BROKEN = PushResult(500)
LATER = PushResult(202, later=True)


def retry(**settings: object) -> RetrySettings:
    """The settings of a setup, without random times."""
    return dataclasses.replace(RetrySettings(jitter=0.0), **settings)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Arrival:
    """A push as received; `at_ms` by the engine's clock, `true_ms` by a clock that is never set."""

    at_ms: int
    true_ms: int
    endpoint: str
    subscription: str
    notifications: tuple[str, ...]
    attempt: int
    promise: Promise
    sequence: int = 0


@dataclass
class FakeEndpoint:
    """`answer` returns the result of a push of these notifications, after `takes_ms`."""

    answer: Callable[[tuple[str, ...]], PushResult] = lambda _: OK
    takes_ms: int = 10


class Crash(Exception):
    """A crash of the process during a write."""


class Subscriptions(dict[str, Subscription]):
    """The subscriptions of a setup, and their changes since the last read of them."""

    def __init__(self) -> None:
        super().__init__()
        self.touched: dict[str, set[str]] = {}  # name to the endpoints that it had

    def __setitem__(self, name: str, subscription: Subscription) -> None:
        self._touch(name)
        super().__setitem__(name, subscription)

    def __delitem__(self, name: str) -> None:
        self._touch(name)
        super().__delitem__(name)

    def _touch(self, name: str) -> None:
        had = self.touched.setdefault(name, set())
        if name in self:
            had.add(self[name].consumer.address)


def ids_of(request: PushRequest) -> tuple[str, ...]:
    """The notifications of a push; over a link they are in its body."""
    headers = dict(request.headers)
    if headers.get("Content-Type") == MEDIA_TYPE:
        return tuple(each.id for each in decode_push(request.body).notifications)
    return tuple(headers.get(ID_HEADER, "").split(","))


def _promise(headers: dict[str, str]) -> Promise:
    address = headers.get(CALLBACK_HEADER)
    return read_promise(address.rpartition("/")[2], SECRET_OPENER.keys) if address else Promise("", "", 0, 0)


class FakeLog:
    """A log of the setup: records are stored when they are settled."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._unsettled: list[Callable[[], None]] = []
        self._settled = 0

    def settle(self, timeout_s: float) -> None:
        """Raises Crash when the process crashes before all records are stored."""
        while self._unsettled:
            if self._setup.writes_left == 0:
                raise Crash
            if self._setup.writes_left is not None:
                self._setup.writes_left -= 1
            self._unsettled.pop(0)()
            self._settled += 1

    def land(self) -> None:
        """Records sent before the crash may be stored."""
        for write in self._unsettled:
            write()

    def close(self) -> None:
        self._unsettled.clear()

    def add(self, attempt: Attempt) -> None:
        def written() -> None:
            self._setup.attempts.append(attempt)
            self._setup.decided.append(now)

        now = self._setup.true_ms, self._setup.now_ms
        self._unsettled.append(written)

    def write_dead_letter(self, delivery: Delivery, letter: DeadLetter) -> int:
        self._unsettled.append(lambda: self._setup.buried.append(letter))
        return self._settled + len(self._unsettled)

    def send(self, partition: int, value: bytes, key: bytes) -> None:
        point, message = pull.decode(key, value)
        assert isinstance(message, StoredMessage)
        self._unsettled.append(lambda: self._setup.faults.append((point, message.element.decode())))

    def has(self, number: int) -> bool:
        return number <= self._settled

    def tried(self, delivery: Delivery, tries: Tries, everywhere: bool = False) -> None:
        self._put(delivery.tried_key(), parked.encode(Tried(tries)))

    def finished(self, delivery: Delivery, tried: bool, everywhere: bool = False) -> None:
        if tried:
            self._put(delivery.tried_key(), None)
        self._put(delivery.key(), None)

    def _put(self, key: bytes, value: bytes | None) -> None:
        def written() -> None:
            if value is None:
                self._setup.log.pop(key, None)
            else:
                self._setup.write(key, value)
            self._setup.store.apply(key, value, self._setup.offsets.get(key, 0))

        self._unsettled.append(written)


@dataclass
class Setup:
    """All dependencies of a Redelivery, and its effects."""

    retry: RetrySettings = field(default_factory=retry)
    push: PushSettings = field(default_factory=PushSettings)
    now_ms: int = START_MS
    subscriptions: Subscriptions = field(default_factory=Subscriptions)
    suspended_now: set[str] = field(default_factory=set)
    endpoints: dict[str, FakeEndpoint] = field(default_factory=dict)
    arrivals: list[Arrival] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    buried: list[DeadLetter] = field(default_factory=list)
    gone_reported: list[str] = field(default_factory=list)
    crashes: int = 0
    writes_left: int | None = None
    landing: tuple[bool, ...] = ()
    uncounted: Counter[str] = field(default_factory=Counter)
    suspended_reported: dict[str, int] = field(default_factory=dict)
    log: dict[bytes, bytes] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    offsets: dict[bytes, int] = field(default_factory=dict)
    events: list[OperatorEvent] = field(default_factory=list)
    most_in_flight: int = 0
    reads: int = 0
    most_at: dict[str, int] = field(default_factory=dict)
    too_much: list[str] = field(default_factory=list)
    # Notices to users: endpoint and text.
    faults: list[tuple[str, str]] = field(default_factory=list)
    # The offset of the engine's clock.
    ahead_ms: int = 0
    # The true time at which each row was decided, and the clock's.
    decided: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._places = itertools.count(1)
        self._ties = itertools.count()
        self._offsets = itertools.count()
        self._unused_store: Callable[[], object] = lambda: None
        self.restart()

    def restart(self) -> None:
        """A restart loses all state outside the logs: pushes in flight, the store, the health of endpoints."""
        self._in_flight: list[tuple[int, int, PushRequest, Callback]] = []
        self._unused_store()
        while _UNUSED:
            _UNUSED.popleft().close()
        self.store = ParkedStore(None)
        self._unused_store = weakref.finalize(self, _UNUSED.append, self.store)
        self.lanes = HeldLanes()
        self.health = EndpointHealthRegistry(self.retry, self.is_pushed_to)
        self.writes_left = None
        self.logs = FakeLog(self), FakeLog(self), FakeLog(self), FakeLog(self)
        self.journal: RedeliveryJournal = cast(Any, RedeliveryJournal)(*self.logs, self.store.is_displaced)
        context = RedeliveryContext(
            push=self.push,
            retry=self.retry,
            health=self.health,
            subscriptions=cast(Any, self),
            held=self.lanes,
            envelope_of=lambda subscription: Envelope(subscription, SECRET_OPENER, self.push.callback_s),
            publish=self.events.append,
        )
        self.redelivery = Redelivery(context, self.store, self, self.journal, lambda: self.now_ms, lambda: 0.0)
        for key in sorted(self.log, key=self.offsets.__getitem__):
            self.store.apply(key, self.log[key], self.offsets[key])
        for lane in self.store.lanes():
            self.redelivery.found(lane)
        self.redelivery.caught_up()
        for result in self.results:
            self.redelivery.reported(result)
        self._suspended = set(self.suspended_now)

    def write(self, key: bytes, value: bytes) -> int:
        """A record is stored in the log of parked deliveries; returns its offset."""
        self.log[key] = value
        self.offsets[key] = next(self._offsets)
        return self.offsets[key]

    # Actions of tests

    def subscribe(self, name: str, endpoint: str = "", form: str = "raw", **policy: object) -> Subscription:
        """Add a subscription, with its own endpoint unless one is named."""
        address = f"http://{endpoint or name}/"
        subscription = Subscription(
            name,
            EndpointReference(address),
            address=f"http://gateway/wsn/subscriptions/{name}",
            form=form,  # type: ignore[arg-type]
            policy=DeliveryPolicy(**policy),  # type: ignore[arg-type]
        )
        self.subscriptions[name] = subscription
        self.endpoints.setdefault(address, FakeEndpoint())
        return subscription

    def link(self, name: str) -> Subscription:
        """A link to another engine."""
        made = self.subscribe(name, form="peer", reliability="strict")
        self.subscriptions[name] = msgspec.structs.replace(made, peer=Peer("G/here", "G/there"))
        return self.subscriptions[name]

    def read_changes(self) -> None:
        """The redelivery reads the changes of the control log."""
        touched, self.subscriptions.touched = self.subscriptions.touched, {}
        changed = touched.keys() | (self._suspended ^ self.suspended_now)
        self._suspended = set(self.suspended_now)
        for name in changed:
            self.redelivery.subscription_changed(name)
            for endpoint in touched.get(name, ()):
                if not self.is_pushed_to(endpoint):
                    self.health.forget(endpoint)
        self.redelivery.check_subscriptions()

    def endpoint(self, name: str) -> FakeEndpoint:
        """The endpoint of a subscription."""
        return self.endpoints[self.subscriptions[name].consumer.address]

    def answers(
        self, name: str, answer: PushResult | Callable[[tuple[str, ...]], PushResult], takes_ms: int = 0
    ) -> None:
        """From now on the endpoint of a subscription gives this answer, after this time if given."""
        endpoint = self.endpoint(name)
        endpoint.answer = (lambda _: answer) if isinstance(answer, PushResult) else answer
        endpoint.takes_ms = takes_ms or endpoint.takes_ms

    def change(self, name: str, **fields: object) -> None:
        """Change values of a subscription; the redelivery has read the change."""
        self.subscriptions[name] = msgspec.structs.replace(self.subscriptions[name], **fields)
        self.read_changes()

    def end(self, name: str) -> None:
        """End a subscription; the redelivery has read the change."""
        del self.subscriptions[name]
        self.read_changes()

    def suspend(self) -> None:
        """The suspensions that the redelivery requested are in the control log."""
        self.suspended_now |= self.suspended_reported.keys()
        self.suspended_reported.clear()
        self.redelivery.suspensions_written()

    def resume(self, *names: str) -> None:
        """Resume these subscriptions."""
        self.suspended_now -= set(names)
        self.read_changes()

    def open_breaker(self, name: str) -> None:
        """Pushes of batches to the endpoint of a subscription fail until its breaker opens."""
        endpoint = self.subscriptions[name].consumer.address
        for number in range(self.retry.breaker_failures):
            self.health.note(endpoint, Sign("unreachable", f"of a batch {number}"), self.now_ms)

    def park(
        self,
        name: str,
        notification: str,
        tries: Tries | None = None,
        accepted_ms: int = 0,
        topic: str = "a",
        payload: bytes = b"<x/>",
        reply_to: str = "",
        **facts: Any,
    ) -> Delivery:
        """A batch parks a delivery; `facts` are further fields of its notification."""
        delivery = Delivery(name, Place(1, 0, next(self._places)))
        message = Notification(
            notification,
            TopicPath(topic),
            payload,
            accepted_ms or self.now_ms,
            queue=queue_topic(name) is not None,
            reply_to=EndpointReference(reply_to) if reply_to else None,
            message_id=f"urn:{notification}" if reply_to else "",
            **facts,
        )
        value = parked.encode(Parked(message, tries or Tries()))
        lane = self.store.apply(delivery.key(), value, self.write(delivery.key(), value))
        if lane is not None:
            self.redelivery.found(lane)
        return delivery

    def park_some(self, name: str, count: int, *more: str, **facts: Any) -> None:
        """A batch parks `n0`, `n1` and so on, and then the named ones."""
        for notification in (*(f"n{number}" for number in range(count)), *more):
            self.park(name, notification, **facts)

    def serve(self, name: str, queue: str = "q", capacity: int = 1, takes_ms: int = 10) -> Subscription:
        """Add a server of a queue, with its own endpoint."""
        address = f"http://{name}/"
        topic = TopicFilter("", queue, queue)
        manager = f"http://gateway/wsn/subscriptions/{name}"
        server = Subscription(name, EndpointReference(address), topics=(topic,), queue=capacity, address=manager)
        self.subscriptions[name] = server
        self.endpoints.setdefault(address, FakeEndpoint(takes_ms=takes_ms))
        return server

    def park_request(self, request: str, queue: str = "q", **facts: Any) -> Delivery:
        """A batch parks a request."""
        return self.park(queue_of(TopicPath(queue)).id, request, topic=queue, **facts)

    def park_requests(self, count: int, *more: str, **facts: Any) -> None:
        """A batch parks the requests `r0`, `r1` and so on, and then the named ones."""
        for request in (*(f"r{number}" for number in range(count)), *more):
            self.park_request(request, **facts)

    def repark(self, delivery: Delivery, tries: Tries) -> None:
        """A batch that was interrupted has pushed it again, and parks it once more."""
        record = parked.decode(self.log[delivery.key()])
        assert isinstance(record, Parked)
        value = parked.encode(Parked(record.notification, tries))
        self.store.apply(delivery.key(), value, self.write(delivery.key(), value))

    def request_attempt(self, delivery: Delivery) -> None:
        """An operator requests an attempt of a delivery now."""
        record = parked.decode(self.log.get(delivery.tried_key(), self.log[delivery.key()]))
        value, key = parked.encode(Tried(record.tries.requested(self.now_ms))), delivery.tried_key()
        self.store.apply(key, value, self.write(key, value))
        while self.store.requested:
            self.redelivery.attempt_requested(self.store.requested.pop())

    def report(self, arrival: Arrival, state: State, text: str = "") -> None:
        """A receiver reports the result of a push through the gateway."""
        if self.now_ms > arrival.promise.until_ms:
            return
        result = Result(arrival.promise, state, self.now_ms, text)
        self.results.append(result)
        self.redelivery.reported(result)

    @property
    def true_ms(self) -> int:
        """The true time, independent of the clock."""
        return self.now_ms - self.ahead_ms

    def set_clock(self, forward_ms: int) -> None:
        """Set the engine's clock; pushes in flight end at their true times."""
        self.now_ms += forward_ms
        self.ahead_ms += forward_ms
        self._in_flight = [
            (at_ms + forward_ms, tie, request, callback) for at_ms, tie, request, callback in self._in_flight
        ]

    def run(self, for_ms: int) -> None:
        """Let time pass, with all events in it."""
        end_ms = self.now_ms + for_ms
        moved_ms, turns = self.now_ms, 0
        while True:
            self._alive(self.redelivery.work)
            self.most_in_flight = max(self.most_in_flight, len(self._in_flight))
            times = [at_ms for at_ms, *_ in self._in_flight[:1]]
            next_turn = self.redelivery.next_turn_ms()
            # At the limit of pushes in flight, due deliveries wait until one ends.
            if next_turn is not None and len(self._in_flight) < self.push.max_in_flight:
                times.append(next_turn)
            if not times or min(times) > end_ms:
                break
            self.now_ms = max(self.now_ms, min(times))
            turns = turns + 1 if self.now_ms == moved_ms else 0
            moved_ms = self.now_ms
            assert turns < _MOST_TURNS, "busy without progress"
            self._alive(lambda: self.drive(0.0))
        self.now_ms = end_ms

    def _alive(self, work: Callable[[], None]) -> None:
        """Run and write it down, unless the process crashes in between."""
        try:
            work()
            self.journal.catch_up()
        except Crash:
            self.crashes += 1
            for log in itertools.compress(self.logs, self.landing):
                log.land()
            self.restart()
        self.gone_reported += self.journal.gone
        self.suspended_reported.update(self.journal.suspended)
        self.journal.gone, self.journal.suspended = set(), {}

    def states(self) -> dict[tuple[str, str], str]:
        """The state in the last row of each delivery."""
        return {(row.subscription, row.notification): row.state for row in self.attempts}

    def pushes_in_flight(self, name: str, attempt: int) -> list[str]:
        """The notifications in flight to a subscription at this attempt."""
        pushes = [(dict(request.headers), request) for _, _, request, _ in self._in_flight]
        which = name, str(attempt)
        mine = [each for headers, each in pushes if (headers[SUBSCRIPTION_HEADER], headers[ATTEMPT_HEADER]) == which]
        return [notification for each in mine for notification in ids_of(each)]

    def arrived(self, name: str) -> list[str]:
        """The pushes that the receiver of a subscription got, in order."""
        return [each for arrival in self.arrivals if arrival.subscription == name for each in arrival.notifications]

    # Transport

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def submit(self, request: PushRequest, callback: Callback) -> None:
        if SUBSCRIPTION_HEADER not in dict(request.headers):
            self.faults.append((request.url, request.body.decode()))
            heapq.heappush(self._in_flight, (self.now_ms + 1, next(self._ties), request, callback))
            return
        self._check(request)
        takes_ms = self.endpoints[request.url].takes_ms
        headers = dict(request.headers)
        ids = ids_of(request)
        # No other push begins during a probe.
        probe = self.health.get(request.url).breaker == "half-open"

        def answered(result: PushResult) -> None:
            if probe and classify(result).endpoint_unreachable:
                self.uncounted.update(ids)
            callback(result)

        heapq.heappush(self._in_flight, (self.now_ms + takes_ms, next(self._ties), request, answered))
        self.arrivals.append(
            Arrival(
                at_ms=self.now_ms,
                true_ms=self.true_ms,
                endpoint=request.url,
                subscription=headers[SUBSCRIPTION_HEADER],
                notifications=ids,
                attempt=int(headers[ATTEMPT_HEADER]),
                promise=_promise(headers),
                sequence=int(headers.get(SEQUENCE_HEADER, "0")),
            )
        )

    def _check(self, request: PushRequest) -> None:
        """Invariants of all tests."""
        subscription = self.subscriptions.get(dict(request.headers)[SUBSCRIPTION_HEADER])
        if subscription is None or subscription.paused or subscription.id in self.suspended_now:
            self.too_much.append(f"{self.now_ms}: pushed to {subscription and subscription.id}, who wants nothing")
        at = 1 + sum(each.url == request.url for _, _, each, _ in self._in_flight)
        self.most_at[request.url] = max(self.most_at.get(request.url, 0), at)
        breaker = self.health.get(request.url).breaker
        served = subscription is not None and subscription.queue  # equal messages in it are one request
        if breaker == "half-open" and len(ids_of(request)) > 1 and not served:
            self.too_much.append(f"{self.now_ms}: several messages in a probe of {request.url}")
        self._check_order(subscription, request)
        if breaker == "open":
            self.too_much.append(f"{self.now_ms}: pushed to {request.url}, whose breaker is open")

    def _check_order(self, subscription: Subscription | None, request: PushRequest) -> None:
        """No untried delivery with a higher priority than the pushed ones is left behind."""
        headers = dict(request.headers)
        if subscription is None or subscription.policy.strict or headers[ATTEMPT_HEADER] != "1":
            return
        ids = ids_of(request)
        pushed: list[int] = []
        left: list[int] = []
        for waiting in self.store.untried(subscription.id, 1_000):
            which = pushed if waiting.notification.id in ids else left
            which.append(waiting.notification.priority)
        if pushed and left and max(left) > min(pushed):
            self.too_much.append(f"{self.now_ms}: pushed {ids}, and {max(left)} waits, which is higher")

    def drive(self, timeout_s: float) -> None:
        while self._in_flight and self._in_flight[0][0] <= self.now_ms:
            _, _, request, callback = heapq.heappop(self._in_flight)
            endpoint = self.endpoints.get(request.url)  # none of a user's request
            callback(endpoint.answer(ids_of(request)) if endpoint else OK)

    def wake(self) -> None:
        raise AssertionError("unused")

    def close(self) -> None:
        pass

    # Subscriptions

    def subscription(self, subscription_id: str) -> Subscription | None:
        self.reads += 1
        return self.subscriptions.get(subscription_id)

    def is_pushed_to(self, endpoint: str) -> bool:
        return any(each.consumer.address == endpoint for each in self.subscriptions.values())

    def servers(self, queue: TopicPath) -> list[Subscription]:
        return [each for each in self.subscriptions.values() if each.queue and each.selector() == queue]

    def suspended(self, subscription_id: str) -> bool:
        return subscription_id in self.suspended_now


def one(answer: PushResult = OK, **settings: Any) -> Setup:
    """A setup with one subscription, `s`, whose endpoint gives this answer."""
    setup = Setup(**settings)
    setup.subscribe("s")
    setup.endpoint("s").answer = lambda ids: answer
    return setup
