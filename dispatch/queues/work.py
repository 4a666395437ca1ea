"""The work of queues: requests pushed to their servers, and the consequences of answers.

A part of the redelivery, in its thread, with the same store, pushes, limits, journal and health. An idle server gets
the next request at once; one with an open breaker only its probe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from arborcast.core.timer_queue import TimerQueue
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.outcomes import Outcome
from arborcast.dispatch.delivery.pushes import MOST_BYTES, payload_bytes
from arborcast.dispatch.delivery.settlement import attempt, unpushed, untried
from arborcast.dispatch.delivery.transport.contract import NO_REQUEST
from arborcast.dispatch.delivery.transport.contract import NO_RESULT as PUSHED
from arborcast.dispatch.delivery.verdict import Push, RetryPolicy, Verdict, policy_of
from arborcast.dispatch.logs.parked import Delivery, Tries
from arborcast.dispatch.matching.view import RoutingView
from arborcast.dispatch.queues.backlog import Backlog, QueueRequest
from arborcast.dispatch.queues.faults import QueueUsers
from arborcast.dispatch.queues.servers import QueueFigures, QueueServer, QueueServers
from arborcast.dispatch.queues.verdict import Sent, all_refuse, answer_of, decide, sequence_of
from arborcast.dispatch.redelivery.amounts import Amounts
from arborcast.dispatch.redelivery.endpoints import Endpoints
from arborcast.dispatch.redelivery.lanes import RetryLane
from arborcast.dispatch.redelivery.parked_store import ParkedStore, WaitingDelivery
from arborcast.dispatch.redelivery.pushes import Pushes, RedeliveryJournal, RedeliveryOutcomes, SubscriptionStops
from arborcast.dispatch.redelivery.reports import NO_RESULT, outcome_of
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.records.results import Promise, Result
from arborcast.topic_model.subscriptions import DEFAULT_POLICY, Subscription, queue_of, queue_topic
from arborcast.topic_model.topics import TopicPath

# Share of the limits of pushes in flight, and of their bytes: the other half is for other subscriptions.
_SHARE = 2

# Check interval while another push probes the endpoint, whose end gives no turn to a queue.
_PROBED_MS = 1_000

_NEVER_MS = 1 << 62

# Prefix of the name of a server that waits for a slot: no lane has such a name.
_SLOT = "server:"


class AwaitedPush(NamedTuple):
    """A push whose server is busy until it reports the result, or until the deadline."""

    server: str
    begun_ms: int
    messages: int
    until_ms: int


@dataclass(slots=True)
class Queue:
    """A queue with requests or servers. `lane` is that of its requests, `gone` are ended servers whose end is not yet
    in the log; `awaited` are accepted pushes without a result."""

    topic: TopicPath
    lane: RetryLane
    servers: QueueServers = field(default_factory=QueueServers)
    gone: set[str] = field(default_factory=set)
    awaited: dict[str, AwaitedPush] = field(default_factory=dict)


@dataclass(frozen=True)
class QueueParts:
    """The parts shared with the redelivery."""

    store: ParkedStore
    subscriptions: RoutingView
    pushes: Pushes
    endpoints: Endpoints
    outcomes: RedeliveryOutcomes
    journal: RedeliveryJournal
    amounts: Amounts
    push: PushSettings
    retry: RetrySettings
    envelope_of: Callable[[Subscription], Envelope]
    stops: SubscriptionStops
    chance: Callable[[], float]


class Queues:
    """All queues. Used by one thread, except `subscription_changed`."""

    def __init__(self, parts: QueueParts) -> None:
        self._parts = parts
        self._backlog = Backlog(parts.store)
        self._policy: RetryPolicy = policy_of(DEFAULT_POLICY, parts.retry)
        self._most = max(1, parts.push.max_in_flight // _SHARE)
        self._queues: dict[str, Queue] = {}
        self._turns: TimerQueue[str] = TimerQueue()
        self._serving: dict[str, str] = {}  # server to queue
        self._granted: set[str] = set()  # servers with a slot
        self._waiting: set[str] = set()
        self._in_flight = 0
        self._bytes = 0  # of these pushes
        self._changed: dict[str, None] = {}  # queues whose servers may have changed
        self._envelopes: dict[str, tuple[Subscription, Envelope]] = {}
        self._users = QueueUsers(parts.pushes.pusher.transport, parts.journal)
        parts.outcomes.unanswered = self._users.unanswered

    @property
    def waiting(self) -> int:
        """The number of queues with waiting requests or requests in flight."""
        return len(self._waiting)

    def caught_up(self) -> None:
        """The log is read to its end: all its requests may have been pushed by an earlier process."""
        self._backlog.restart()

    def found(self, name: str, now_ms: int) -> None:
        queue = self._queues.get(name)
        if queue is None:
            topic = queue_topic(name)
            if topic is None:
                return
            queue = self._queues[name] = Queue(topic, RetryLane(name))
            self._update_servers(queue, now_ms)
            self._changed[name] = None  # the subscriptions may be incomplete
        queue.lane.expires_ms = 0
        self._waiting.add(name)
        self._turns.set(name, now_ms)

    def subscription_changed(self, subscription_id: str) -> None:
        """In any thread."""
        if not self._queues:
            return  # a new queue reads its servers
        served = [self._serving.get(subscription_id, "")]
        now = self._parts.subscriptions.subscription(subscription_id)
        if now is not None and now.queue:
            served.append(queue_of(TopicPath(now.selector())).id)
        self._changed.update(dict.fromkeys(name for name in served if name in self._queues))

    def check_servers(self, now_ms: int) -> None:
        """Read the servers of changed queues."""
        while self._changed:
            name = self._changed.popitem()[0]
            queue = self._queues.get(name)
            if queue is None:
                continue
            self._update_servers(queue, now_ms)
            if name in self._waiting:
                self._turns.set(name, now_ms)
            elif not queue.servers:
                self._drop(name)

    def figures(self) -> tuple[QueueFigures, ...]:
        return tuple(self._figures_of(name, queue) for name, queue in self._queues.items())

    def _figures_of(self, name: str, queue: Queue) -> QueueFigures:
        servers, flight = list(queue.servers.values()), queue.lane.flight
        executing = len(flight) + sum(each.messages for each in queue.awaited.values())
        busy = [(each.id, min(each.running)) for each in servers if each.running]
        sick = [each for each in servers if self._parts.endpoints.health.get(each.endpoint).breaker != "closed"]
        return QueueFigures(
            queue.topic,
            self._parts.amounts.count(name) - executing,
            executing,
            self._parts.store.expires_ms(name, 0, flight) or 0,
            len(servers) - len(busy) - sum(not each.running for each in sick),
            len(sick),
            tuple(busy),
        )

    def reported(self, name: str, found: Iterator[tuple[WaitingDelivery, Result]], now_ms: int) -> None:
        """Apply results of accepted pushes, with their requests."""
        queue = self._queues.get(name)
        if queue is None:
            return
        for push, some in groupby(found, key=lambda each: each[1].promise.push):
            pairs = list(some)
            self._end_awaited(queue, push, [each for each, _ in pairs], outcome_of(pairs[0][1]), now_ms)
        self._turns.set(name, now_ms)

    def reported_without_requests(self, promise: Promise, now_ms: int) -> None:
        """The result of an accepted push whose requests have expired or were erased: its server is idle again."""
        queue = self._queues.get(promise.subscription)
        if queue is not None:
            self._end_awaited(queue, promise.push, [], NO_RESULT, now_ms)
            self._turns.set(queue.lane.name, now_ms)

    def clock_put_back(self, now_ms: int) -> None:
        """All stored times are in the future."""
        until_ms = self._result_by_ms(now_ms)
        self._backlog.clock_put_back(now_ms)
        for queue in self._queues.values():
            for push, each in queue.awaited.items():
                queue.awaited[push] = each._replace(until_ms=min(each.until_ms, until_ms))
        for name in self._waiting:
            self._turns.set(name, now_ms)

    def next_turn_ms(self) -> int | None:
        return self._turns.next_ms() if self._has_room() else None

    def overdue(self, now_ms: int) -> int:
        return self._turns.overdue(now_ms)

    def work(self, now_ms: int) -> None:
        """Push the next request to every server with room."""
        self.check_servers(now_ms)
        while self._has_room() and (name := self._turns.pop(now_ms)) is not None:
            self._serve(self._queues[name], now_ms)

    def wake(self, slot: str, now_ms: int) -> bool:
        """Give a slot to the server that waits under this name; returns False for the name of a lane."""
        if not slot.startswith(_SLOT):
            return False
        server = slot.removeprefix(_SLOT)
        queue = self._queues.get(self._serving.get(server, ""))
        if queue is not None and server in queue.servers:
            self._granted.add(server)
            self._turns.set(queue.lane.name, now_ms)
        return True

    def _has_room(self) -> bool:
        if not self._parts.pushes.pusher.has_room(self._parts.push.max_in_flight):
            return False
        return self._in_flight < self._most and self._bytes < MOST_BYTES // _SHARE

    def _update_servers(self, queue: Queue, now_ms: int) -> None:
        view = self._parts.subscriptions
        current = view.servers(queue.topic)
        queue.gone.intersection_update({each.id for each in current})
        serving = [each for each in current if not (each.paused or each.id in queue.gone or view.suspended(each.id))]
        removed = queue.servers.replace(serving)
        for server in removed:
            self._forget(queue, server, now_ms)
        for server in queue.servers.values():
            self._serving[server.id] = queue.lane.name
        if removed:
            self._refused_by_all(queue, now_ms)

    def _forget(self, queue: Queue, server: QueueServer, now_ms: int) -> None:
        self._serving.pop(server.id, None)
        self._envelopes.pop(server.id, None)
        self._parts.pushes.capacity.forget(_SLOT + server.id)
        self._granted.discard(server.id)
        self._parts.pushes.pass_on(server.endpoint, now_ms)
        self._backlog.release(queue.lane.name, server.id, now_ms)

    def _drop(self, name: str) -> None:
        self._turns.cancel(name)
        del self._queues[name]

    def _refused_by_all(self, queue: Queue, now_ms: int) -> None:
        """After a server has left: end the requests that all others have refused."""
        for waiting in list(self._backlog.refused_by_all(queue.lane.name, frozenset(queue.servers))):
            why = all_refuse(len(queue.servers), "the others have left")
            decision = unpushed(waiting, Verdict("dead"), why)
            self._parts.outcomes.write_untried(queue.lane, waiting, decision, now_ms)

    def _serve(self, queue: Queue, now_ms: int) -> None:
        """A queue's turn: servers with room get one request each in turn, while there are requests."""
        lane, outcomes = queue.lane, self._parts.outcomes
        for push in [push for push, each in queue.awaited.items() if each.until_ms <= now_ms]:
            self._end_awaited(queue, push, self._parts.store.awaiting(lane.name, push), NO_RESULT, now_ms)
        too_much = self._users.too_many
        if not too_much and (
            outcomes.expire(lane, self._policy, now_ms) or outcomes.drop_excess(lane, self._parts.amounts, now_ms)
        ):
            self._turns.set(lane.name, now_ms)
            return
        next_check_ms = now_ms + _PROBED_MS if too_much else _NEVER_MS
        began = True
        while began and (ready := self._ready(queue, now_ms)):
            began = False
            for server in ready:
                if not self._has_room():
                    self._turns.set(lane.name, now_ms)
                    return
                health = self._parts.endpoints.health.get(server.endpoint)
                if not health.may_try(now_ms):
                    at_ms = health.probe_at_ms if health.breaker == "open" else now_ms + _PROBED_MS
                    next_check_ms = min(next_check_ms, max(at_ms, now_ms + 1))
                elif self._begin_next(queue, server, now_ms):
                    began = True
                elif began:
                    break  # the servers before it may have got all due requests
        self._sleep(queue, now_ms, next_check_ms)

    def _ready(self, queue: Queue, now_ms: int) -> list[QueueServer]:
        """The servers with room and a due request, in order. Others may get the requests of sick servers."""
        lane, with_room = queue.lane.name, queue.servers.with_room()
        if not self._backlog.anything(lane, now_ms):
            return []
        for server in with_room:
            if self._parts.endpoints.health.get(server.endpoint).breaker != "closed":
                self._backlog.release(lane, server.id, now_ms)
        served = set(self._backlog.served(lane, [each.id for each in with_room], now_ms))
        return [each for each in with_room if each.id in served]

    def _begin_next(self, queue: Queue, server: QueueServer, now_ms: int) -> bool:
        """Push the next request for a server, if there is one and a slot; returns whether a push has begun."""
        request = self._backlog.next(queue.lane.name, server.id, now_ms)
        if request is None:
            return False
        awaits = request.together[0].tries.awaits
        if awaits:
            # An earlier process pushed it, and its result was lost.
            self._end_awaited(queue, awaits, self._parts.store.awaiting(queue.lane.name, awaits), NO_RESULT, now_ms)
            return True
        if self._parts.pushes.must_wait(_SLOT + server.id, server.endpoint, request.together):
            return False
        self._granted.discard(server.id)
        self._begin(queue, server, request, now_ms)
        return True

    def _begin(self, queue: Queue, server: QueueServer, request: QueueRequest, now_ms: int) -> None:
        size = payload_bytes(each.notification for each in request.together)
        tries = max(each.tries for each in request.together)
        if request.maybe_sent:
            # A server that has it must recognise it.
            tries = tries._replace(number=1)

        def ended(push: Push, outcome: Outcome, ended_ms: int, probe: bool) -> None:
            self._in_flight -= 1
            self._bytes -= size
            if outcome.taken and not outcome.delivered:
                until_ms = self._result_by_ms(ended_ms)
                queue.awaited[push.id] = AwaitedPush(server.id, now_ms, len(request.together), until_ms)
            else:
                queue.servers.end(server.id, now_ms)
            if answer_of(outcome, push.result.response, self._policy) == "gone" and server.id in queue.servers:
                self._parts.stops.receiver_gone(server.id, server.endpoint, ended_ms)
                queue.gone.add(server.id)
                self._update_servers(queue, ended_ms)
            health = self._parts.endpoints.health.get(server.endpoint)
            sick = server.id not in queue.servers or health.breaker != "closed"
            sent = Sent(server.id, request.refused, frozenset(queue.servers), sick, probe)
            self._decide(queue, sent, server.endpoint, request.together, tries, push, outcome, ended_ms)
            if not outcome.taken and server.id in queue.servers:
                self._parts.stops.push_failed(server.id, server.endpoint, ended_ms)
            self._turns.set(queue.lane.name, ended_ms)

        self._in_flight += 1
        self._bytes += size
        queue.servers.begin(server.id, now_ms)
        self._backlog.begun(request)
        self._parts.pushes.begin(
            queue.lane, server.subscription, request.together, tries, self._envelope_of, ended, sequence_of(tries)
        )

    def _end_awaited(
        self, queue: Queue, push_id: str, together: list[WaitingDelivery], outcome: Outcome, now_ms: int
    ) -> None:
        """The result of an accepted push, or its absence in time: the server is idle again."""
        awaited = queue.awaited.pop(push_id, None)
        server = awaited.server if awaited is not None else ""
        if awaited is not None:
            queue.servers.end(server, awaited.begun_ms)
        if not together:
            return
        known = self._parts.subscriptions.subscription(server)
        endpoint = known.consumer.address if known is not None else ""
        push = Push(push_id, tuple(each.notification for each in together), NO_REQUEST, PUSHED, now_ms)
        sick = server not in queue.servers
        sent = Sent(server, self._backlog.refused(together[0].delivery), frozenset(queue.servers), sick, probe=False)
        self._decide(queue, sent, endpoint, together, together[0].tries, push, outcome, now_ms)

    def _decide(
        self,
        queue: Queue,
        sent: Sent,
        endpoint: str,
        together: list[WaitingDelivery],
        tries: Tries,
        push: Push,
        outcome: Outcome,
        now_ms: int,
    ) -> None:
        policy = self._policy
        first = together[0]._replace(tries=tries)
        (verdict, tries, why, _), server_again, refused = decide(
            first, push, outcome, sent, policy, now_ms, self._parts.chance()
        )
        name = queue.lane.name
        waits: list[Delivery] = []
        for number, waiting in enumerate(together):
            if number and verdict.state == "delivered":
                why = Outcome("merged", f"done with {first.notification.id}, which is equal", why.status)
            decision = unpushed(waiting._replace(tries=tries), verdict, why, policy.lifespan_ms)
            row = attempt(name, endpoint, waiting.notification, decision, push)
            if push.request is NO_REQUEST:
                row = untried(name, endpoint, waiting.notification, decision, now_ms)
            if self._parts.outcomes.write(waiting, decision, row):
                waits.append(waiting.delivery)
        self._backlog.requeue(waits, server_again, refused, tries.due_ms)

    def _result_by_ms(self, now_ms: int) -> int:
        """The deadline of the result of a push that was accepted now."""
        return now_ms + int(self._parts.push.callback_s * 1000)

    def _sleep(self, queue: Queue, now_ms: int, next_check_ms: int) -> None:
        """Sleep until a request is due, or expires, or a server may be tried again. The end of a push wakes it, too."""
        lane = queue.lane
        # A request may end before the deadline of its result.
        next_check_ms = min([next_check_ms, *(each.until_ms for each in queue.awaited.values())])
        expires_ms = self._parts.store.expires_ms(lane.name, self._policy.lifespan_ms, lane.flight)
        if expires_ms is not None:
            due_ms = self._backlog.next_due_ms(lane.name)
            if due_ms is not None and due_ms > now_ms:
                next_check_ms = min(next_check_ms, due_ms)
            self._turns.set(lane.name, min(next_check_ms, max(expires_ms, now_ms + 1)))
        elif not lane.flight:
            self._waiting.discard(lane.name)
            self._turns.cancel(lane.name)
            if not queue.servers:
                self._drop(lane.name)
        # Must be last: it frees slots that no server of this queue uses.
        for server in [each for each in queue.servers.values() if each.id in self._granted]:
            self._granted.remove(server.id)
            self._parts.pushes.pass_on(server.endpoint, now_ms)

    def _envelope_of(self, subscription: Subscription) -> Envelope:
        cached = self._envelopes.get(subscription.id)
        if cached is None or cached[0] is not subscription:
            cached = self._envelopes[subscription.id] = subscription, self._parts.envelope_of(subscription)
        return cached[1]
