"""The scheduler of the redelivery: turns of lanes, contents of pushes, and consequences of outcomes.

A lane has a turn when a delivery in it may be due: expired deliveries are ended, and at most one push begins, so that
lanes do not delay each other. Untried deliveries leave by priority, equal ones in order, one push at a time; each tried
one is due at its own time, without delaying others. In a strict lane the first one is settled before the next begins.

A lane without due deliveries costs nothing, and an endpoint with an open breaker only its probes, provided by its lanes
in turn. Memory is a few hundred bytes per lane, and the pushes in flight.

One thread, except `subscription_changed`; all I/O is in the transport, the store and the journal, and time is a
parameter, so that tests can run thousands of histories.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from arborcast.core.wall_clock import WatchedClock
from arborcast.dispatch.delivery.capacity import InFlightLimiter
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.health import EndpointHealthRegistry, quick_s
from arborcast.dispatch.delivery.outcomes import Outcome
from arborcast.dispatch.delivery.pushes import MOST_BYTES, Pusher, PushSpans
from arborcast.dispatch.delivery.transport.contract import Transport
from arborcast.dispatch.delivery.verdict import GONE, RESULT_TRANSIT_MS, Push, RetryPolicy, policy_of
from arborcast.dispatch.logs.held_lanes import HeldLanes
from arborcast.dispatch.matching.filters import Allowance, Conditions, judged
from arborcast.dispatch.matching.view import RoutingView
from arborcast.dispatch.queues.servers import QueueFigures
from arborcast.dispatch.queues.work import QueueParts, Queues
from arborcast.dispatch.redelivery.amounts import Amounts
from arborcast.dispatch.redelivery.endpoints import Endpoints
from arborcast.dispatch.redelivery.events import DeadLetterAlarm, EventListener, OperatorEvent
from arborcast.dispatch.redelivery.lanes import DueDeliveries, RetryLane, RetryLanes
from arborcast.dispatch.redelivery.parked_store import ParkedStore, WaitingDelivery
from arborcast.dispatch.redelivery.pushes import (
    ENDED_AT_ONCE,
    Pushes,
    RedeliveryJournal,
    RedeliveryOutcomes,
    SubscriptionStops,
)
from arborcast.dispatch.redelivery.reports import NO_RESULT, AwaitedResults, outcome_of
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.records.results import Result
from arborcast.topic_model.subscriptions import Subscription, queue_topic

logger = logging.getLogger(__name__)

# The next turn of a lane: now; when its next delivery is due; when a slot is free, its subscription resumes or a
# delivery is too old; with the outcome of its push.
Follows = Literal["next", "due", "woken", "pushed"]

# Turns before outcomes and newly parked deliveries are processed.
_TURNS_AT_ONCE = 1_000


@dataclass(frozen=True)
class RedeliveryContext:
    """The parts of a redelivery that outlive its store and its connections."""

    push: PushSettings
    retry: RetrySettings
    health: EndpointHealthRegistry
    subscriptions: RoutingView
    held: HeldLanes
    envelope_of: Callable[[Subscription], Envelope]
    publish: EventListener
    spans: PushSpans | None = None
    alarm: DeadLetterAlarm | None = None


@dataclass(frozen=True)
class RedeliveryStatistics:
    """A snapshot. `due` counts lanes that are due or wait for a free slot; `breakers` endpoints by the state of their
    breaker, without healthy ones; `unread` records of the log; `failures` failed sessions since the start."""

    parked: int = 0
    unread: int = 0
    lanes: int = 0
    due: int = 0
    in_flight: int = 0
    breakers: Mapping[str, int] = field(default_factory=dict)
    queues: tuple[QueueFigures, ...] = ()
    failures: int = 0


class Redelivery:
    def __init__(
        self,
        context: RedeliveryContext,
        store: ParkedStore,
        transport: Transport,
        journal: RedeliveryJournal,
        now_ms: Callable[[], int],
        chance: Callable[[], float],
    ) -> None:
        self._context = context
        self._store = store
        push, retry, publish, subscriptions = context.push, context.retry, context.publish, context.subscriptions
        self._clock = clock = WatchedClock(now_ms)
        self._changed: dict[str, None] = {}
        self._conditions = Conditions()
        self._allowance = Allowance(push.conditions_ms, push.owner_conditions_ms)
        self._lanes = lanes = RetryLanes(store, context.held, subscriptions)
        self._reports = AwaitedResults(store)
        self._amounts = Amounts(store, retry)
        self._due = DueDeliveries(store, push)
        self._endpoints = endpoints = Endpoints(context.health, quick_s(retry), push.max_in_flight, publish)
        self.outcomes = outcomes = RedeliveryOutcomes(store, journal, chance, context.alarm or DeadLetterAlarm(publish))
        suspend_after_ms = int(retry.suspend_after_s * 1000)
        self._stops = stops = SubscriptionStops(subscriptions, lanes, endpoints, journal, suspend_after_ms, publish)
        pusher = Pusher(transport, context.spans)
        self._pushes = Pushes(pusher, endpoints, InFlightLimiter(push), clock, self._wake)
        parts = QueueParts(
            store=store,
            subscriptions=subscriptions,
            pushes=self._pushes,
            endpoints=endpoints,
            outcomes=outcomes,
            journal=journal,
            amounts=self._amounts,
            push=push,
            retry=retry,
            envelope_of=context.envelope_of,
            stops=stops,
            chance=chance,
        )
        self._queues = Queues(parts)

    @property
    def in_flight(self) -> int:
        return self._pushes.pusher.transport.in_flight

    @property
    def lanes(self) -> int:
        return len(self._lanes) + self._queues.waiting

    def statistics(self) -> RedeliveryStatistics:
        now_ms = self._clock.now_ms()
        return RedeliveryStatistics(
            parked=self._store.count,
            lanes=self.lanes,
            due=self._lanes.turns.overdue(now_ms) + self._pushes.capacity.waiting + self._queues.overdue(now_ms),
            in_flight=self.in_flight,
            queues=self._queues.figures(),
        )

    def caught_up(self) -> None:
        """The store has all deliveries that were parked before the session."""
        self._limit_waits()
        self._queues.caught_up()

    def kafka_was_unavailable(self, request_timeout_s: float) -> None:
        """Workers write the answers of pushes that ended meanwhile within this time: these are not pushed again."""
        self._store.extend_waits(self._clock.now_ms() + int(request_timeout_s * 1000) + RESULT_TRANSIT_MS)

    def workers_ended(self) -> None:
        """All workers have ended: deliveries of their pushes without a known result are due."""
        now_ms = self._clock.now_ms()
        for name in self._reports.ready_lanes():
            lane, subscription = self._lanes.get(name), self._context.subscriptions.subscription(name)
            if lane is not None and subscription is not None:
                self._resolve(lane, self._policy_of(lane, subscription), now_ms)
        for name in self._store.lose_all(now_ms):
            self._lanes.turns.set(name, now_ms)

    def continue_failing(self) -> None:
        """The health of endpoints is restored: for lanes behind an open breaker an earlier session has published the
        event."""
        for lane in self._lanes.values():
            subscription = self._context.subscriptions.subscription(lane.name)
            endpoint = "" if subscription is None else subscription.consumer.address
            lane.failing = self._endpoints.health.get(endpoint).breaker != "closed"

    def found(self, name: str) -> None:
        now_ms = self._clock.now_ms()
        if queue_topic(name) is not None:
            self._queues.found(name, now_ms)
            return
        self._lanes.found(name, now_ms)
        if self._amounts.too_much(name):
            self._lanes.turns.set(name, now_ms)

    def attempt_requested(self, name: str) -> None:
        """An operator requests attempts in this lane: an open breaker allows a probe now."""
        subscription = self._context.subscriptions.subscription(name)
        if subscription is not None and name in self._lanes:
            self._endpoints.health.allow_probe(subscription.consumer.address, self._clock.now_ms())
        self.turn_now(name)

    def turn_now(self, name: str) -> None:
        """Give a lane or queue a turn, also after another process has ended deliveries of it: those behind them may be
        due, or none waits."""
        if queue_topic(name) is not None:
            self._queues.found(name, self._clock.now_ms())
        elif name in self._lanes:
            self._lanes.turns.set(name, self._clock.now_ms())

    def reported(self, result: Result) -> None:
        now_ms = self._clock.now_ms()
        if not self._reports.add(result, now_ms):
            self._queues.reported_without_requests(result.promise, now_ms)

    def check_reports(self) -> None:
        """Give a turn to lanes with known results."""
        for name in self._reports.ready_lanes():
            lane = self._lanes.get(name)
            if lane is not None:
                self._lanes.turns.set(lane.name, self._clock.now_ms())
            elif queue_topic(name) is not None:
                self._queues.reported(name, self._reports.take(name), self._clock.now_ms())
            else:
                for _ in self._reports.take(name):
                    pass  # its subscription has ended

    def subscription_changed(self, subscription_id: str) -> None:
        """In any thread; `check_subscriptions` does the rest."""
        self._stops.gone.discard(subscription_id)
        # A new lane has a turn anyway.
        if subscription_id in self._lanes:
            self._changed[subscription_id] = None
        self._queues.subscription_changed(subscription_id)

    def check_subscriptions(self) -> None:
        """Give a turn to lanes whose subscription has ended, was paused or resumed, or has changed."""
        now_ms = self._clock.now_ms()
        self._queues.check_servers(now_ms)
        while self._changed:
            # One by one, since other threads add to it.
            lane = self._lanes.get(self._changed.popitem()[0])
            if lane is None:
                continue
            current = self._context.subscriptions.subscription(lane.name)
            changed = current is not lane.subscription and current != lane.subscription
            if changed or self._context.subscriptions.suspended(lane.name) != lane.suspended:
                self._lanes.turns.set(lane.name, now_ms)

    def next_turn_ms(self) -> int | None:
        turns = (self._lanes.turns.next_ms(), self._endpoints.next_probe_ms(), self._queues.next_turn_ms())
        return min((at_ms for at_ms in turns if at_ms is not None), default=None)

    def work(self) -> None:
        """Give every due lane its turn, while more pushes may begin. Bounded: the caller writes outcomes and reads the
        log in between."""
        self._check_clock()
        self.check_reports()
        now_ms = self._clock.now_ms()
        self._queues.work(now_ms)
        most_ended, self._pushes.unpushed_bytes = self.outcomes.ended + ENDED_AT_ONCE, 0
        for _ in range(_TURNS_AT_ONCE):
            if not self._pushes.pusher.has_room(self._context.push.max_in_flight) or self.outcomes.ended >= most_ended:
                break
            if self._pushes.unpushed_bytes > MOST_BYTES:
                break
            now_ms = self._clock.now_ms()  # each time: deliveries may expire while others begin
            endpoint = self._endpoints.due(now_ms)
            if endpoint is not None:
                self._probe(endpoint, now_ms)
                continue
            name = self._lanes.turns.pop(now_ms)
            if name is None:
                break
            self._serve(self._lanes[name], now_ms)
        self.outcomes.alarm.publish_due(now_ms)

    def drive(self, timeout_s: float) -> None:
        self._pushes.pusher.transport.drive(timeout_s)

    def _check_clock(self) -> None:
        """After the clock was put back the times of all turns are wrong: every lane has one now."""
        back_ms = self._clock.put_back_ms()
        if back_ms:
            logger.warning("the clock was put back by %.0f s: deliveries tried later than now are due", back_ms / 1000)
            self._limit_waits()
            self._lanes.wake(list(self._lanes), self._clock.now_ms())
            self._queues.clock_put_back(self._clock.now_ms())

    def _limit_waits(self) -> None:
        now_ms, push = self._clock.now_ms(), self._context.push
        answers_s, results_s = push.total_timeout_s, push.callback_s
        limits = [now_ms + int(each * 1000) + RESULT_TRANSIT_MS for each in (answers_s, results_s)]
        self._store.limit_waits(*limits)

    def _serve(self, lane: RetryLane, now_ms: int) -> bool:
        """A lane's turn; returns whether a push began, or may begin in another turn."""
        is_gone = lane.name in self._stops.gone
        subscription = None if is_gone else self._context.subscriptions.subscription(lane.name)
        if subscription is None:
            lane.subscription = subscription
            self._cancel(lane, now_ms)
            return False
        policy = self._policy_of(lane, subscription)
        self._resolve(lane, policy, now_ms)
        if lane.name in self._stops.gone:
            return False
        follows = self._step(lane, subscription, policy, now_ms)
        if follows == "next":
            self._lanes.turns.set(lane.name, now_ms)
        elif follows != "pushed":
            self._sleep(lane, policy, now_ms, until_due=follows == "due")
        return follows == "pushed"

    def _step(self, lane: RetryLane, subscription: Subscription, policy: RetryPolicy, now_ms: int) -> Follows:
        """End expired deliveries, or push due ones; returns when the lane has its next turn."""
        sheds = subscription.policy.reliability != "strict"
        if self.outcomes.expire(lane, policy, now_ms) or (
            sheds and self.outcomes.drop_excess(lane, self._amounts, now_ms)
        ):
            return "next"
        if subscription.paused or self._stops.holds(lane, now_ms):
            return "woken"
        if not self._endpoints.may_try(lane.endpoint, now_ms):
            self._block(lane, now_ms)
            return "due"
        probing = self._endpoints.health.get(lane.endpoint).breaker != "closed"
        taken = self._due.of(lane, subscription, now_ms, probing=probing)
        if not taken:
            return "due"
        first = taken[0]
        if first.tries.in_flight:
            self.outcomes.lost(lane, taken, now_ms)
            return "next"
        if first.tries.awaits:
            # No result in time: it is due by its schedule again.
            self.outcomes.resolve(lane, policy, first, NO_RESULT, now_ms)
            return "next"
        if any(waiting.notification.unjudged for waiting in taken):
            taken = self._judged(lane, subscription, taken, now_ms)
            if not taken:
                return "next"
        if self._pushes.must_wait(lane.name, lane.endpoint, taken, subscription.policy.priority):
            return "woken"
        self._push(lane, subscription, policy, taken, now_ms)
        return "pushed"

    def _push(
        self,
        lane: RetryLane,
        subscription: Subscription,
        policy: RetryPolicy,
        taken: list[WaitingDelivery],
        now_ms: int,
    ) -> None:
        """Push these deliveries, which have the same number of tries."""
        tries = taken[0].tries
        first_try = not tries.number

        def envelope_of(_: Subscription) -> Envelope:
            lane.envelope = lane.envelope or self._context.envelope_of(subscription)
            return lane.envelope

        def ended(push: Push, outcome: Outcome, ended_ms: int, probe: bool) -> None:
            lane.pushing = lane.pushing and not first_try
            if self.outcomes.settle(subscription, policy, taken, push, outcome, ended_ms, probe):
                # Its deliveries are cancelled at its next turn.
                self._stops.receiver_gone(lane.name, subscription.consumer.address, ended_ms)
            elif not outcome.taken and push.id:
                self._stops.push_failed(lane.name, subscription.consumer.address, ended_ms)
            self._lanes.turns.set(lane.name, ended_ms)

        lane.pushing = lane.pushing or first_try
        self._pushes.begin(lane, subscription, taken, tries, envelope_of, ended)
        # Another turn may push more.
        if not first_try:
            self._lanes.release(lane)
            self._lanes.turns.set(lane.name, now_ms)
        elif self._due.has_due(lane, subscription):
            self._lanes.turns.set(lane.name, now_ms)

    def _wake(self, names: Iterable[str], now_ms: int) -> None:
        """Give a turn to lanes and servers whose slot or endpoint is free."""
        self._lanes.wake((name for name in names if not self._queues.wake(name, now_ms)), now_ms)

    def _resolve(self, lane: RetryLane, policy: RetryPolicy, now_ms: int) -> None:
        for waiting, result in self._reports.take(lane.name):
            outcome, messages = outcome_of(result), result.promise.messages
            self.outcomes.resolve(lane, policy, waiting, outcome, now_ms, messages, result.retry_after_s)
            if outcome.status == GONE and lane.name not in self._stops.gone:
                self._stops.receiver_gone(lane.name, lane.endpoint, now_ms)
                self._lanes.turns.set(lane.name, now_ms)

    def _judged(
        self, lane: RetryLane, subscription: Subscription, taken: list[WaitingDelivery], now_ms: int
    ) -> list[WaitingDelivery]:
        """The deliveries without those that do not match the subscription's conditions; as many as may be evaluated in
        one turn."""
        matching: list[WaitingDelivery] = []
        spent = 0.0
        for waiting in taken:
            notification = waiting.notification
            if notification.unjudged and not waiting.tries.number:
                if spent > self._allowance.of_owner(notification):
                    break
                is_match, cost = judged(self._conditions, self._allowance, subscription, notification)
                spent += cost
                if not is_match:
                    self.outcomes.end_unmatched(lane, waiting, now_ms)
                    continue
            matching.append(waiting)
        return matching

    def _policy_of(self, lane: RetryLane, subscription: Subscription) -> RetryPolicy:
        """The policy of the subscription, computed again only after a change."""
        if lane.policy is None or lane.subscription is not subscription:
            if lane.endpoint != subscription.consumer.address:
                self._endpoints.forget(lane.name, lane.endpoint)
            lane.subscription, lane.endpoint, lane.envelope = subscription, subscription.consumer.address, None
            lane.policy = policy_of(subscription.policy, self._context.retry, link=subscription.peer is not None)
            lane.expires_ms = 0
        return lane.policy

    def _sleep(self, lane: RetryLane, policy: RetryPolicy, now_ms: int, until_due: bool) -> None:
        """Sleep until the next delivery of the lane is due, or expires."""
        self._lanes.release(lane)
        if not lane.flight:
            lane.envelope = None
        at_ms = self._store.expires_ms(lane.name, policy.lifespan_ms, lane.flight)
        if at_ms is not None:
            if until_due:
                due_ms = self._store.next_due_ms(lane.name, lane.flight)
                if due_ms is not None and due_ms > now_ms:
                    at_ms = min(at_ms, due_ms)
            self._lanes.turns.set(lane.name, at_ms)
        elif not lane.flight:
            self._forget(lane, now_ms)
        # Must be last: the free slot may give this lane its turn.
        self._pass_on(lane, now_ms)

    def _pass_on(self, lane: RetryLane, now_ms: int) -> None:
        """Free the slot reserved for this lane, for the next one."""
        if lane.endpoint:
            self._pushes.pass_on(lane.endpoint, now_ms)

    def _forget(self, lane: RetryLane, now_ms: int) -> None:
        self._lanes.forget(lane)
        self._pushes.capacity.forget(lane.name)
        self._endpoints.forget(lane.name, lane.endpoint)
        if lane.failing:
            self._context.publish(OperatorEvent("subscription-recovered", now_ms, lane.endpoint, lane.name))

    # Ends without a push

    def _cancel(self, lane: RetryLane, now_ms: int) -> None:
        self._pushes.capacity.forget(lane.name)
        self._pass_on(lane, now_ms)
        more = self.outcomes.cancel(lane, now_ms)
        self._lanes.release(lane)
        lane.failing = False
        if more:
            self._lanes.turns.set(lane.name, now_ms)
        elif not lane.flight:
            self._forget(lane, now_ms)

    # The endpoint

    def _block(self, lane: RetryLane, now_ms: int) -> None:
        self._endpoints.block(lane.name, lane.endpoint, now_ms)
        if not lane.failing:
            lane.failing = True
            self._context.publish(OperatorEvent("subscription-failing", now_ms, lane.endpoint, lane.name))

    def _probe(self, endpoint: str, now_ms: int) -> None:
        if self._endpoints.health.get(endpoint).breaker == "closed":
            # A batch has found it healthy.
            self._lanes.wake(self._endpoints.unblock(endpoint), now_ms)
        else:
            self._endpoints.probe(endpoint, lambda name: self._serve(self._lanes[name], now_ms))

    def suspensions_written(self) -> None:
        """The suspensions in the journal are in the control log, and in the routing view."""
        for name in self._stops.take_written():
            self.subscription_changed(name)
        self.check_subscriptions()
