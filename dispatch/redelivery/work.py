"""The parking lane at work: whose turn it is, what travels, and what follows from the outcome.

A lane has its turn when something in it may be due: then what is too old is ended, and one push begins at most, so
that no lane keeps another waiting. Deliveries that were never tried leave in order, one push at a time; those that were
tried wait each for its own time, and hold nobody up. In a strict lane the first one is settled before the next is
looked at.

Nothing happens for a lane before it is due, and nothing for an endpoint behind an open breaker except one probe now and
then, taken from its lanes in turn; so what waits for one that is dead costs nothing, however much it is. Memory is a
few hundred bytes per lane and what is under way.

One thread; all I/O is in the transport, the store and the journal, and time is handed in, so that thousands of
histories are tested without either.
"""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections.abc import Callable

from dispatch.envelope import Envelope
from dispatch.health_book import HealthBook
from dispatch.outcomes import classify, failed
from dispatch.push_spans import PushSpans, end
from dispatch.redelivery.agenda import Agenda
from dispatch.redelivery.endpoints import Endpoints
from dispatch.redelivery.events import DeadLetterAlarm, Listener, OperatorEvent
from dispatch.redelivery.journal import Journal
from dispatch.redelivery.lane import Lane
from dispatch.redelivery.parked_store import ParkedStore, Waiting
from dispatch.redelivery.ports import Holds, Subscriptions
from dispatch.redelivery.settling import Settling
from dispatch.redelivery.waiting_room import WaitingRoom
from dispatch.retry import RetryPolicy, policy_of
from dispatch.room import Bounds
from dispatch.settings import PushSettings, RetrySettings
from dispatch.transport.contract import PushRequest, PushResult, Transport
from dispatch.verdict import Push, Verdict
from topic_model.subscriptions import Subscription

# How many deliveries that are over (too old, not wanted any more) are ended before another lane has its turn.
_ENDED_AT_ONCE = 500

# An answer is quick when it took less than this share of what a batch would wait.
_QUICK_SHARE = 1 / 2

# How many turns are given before outcomes are taken in and newly parked deliveries looked at.
_TURNS_AT_ONCE = 1_000

_NO_REQUEST = PushRequest("", (), b"")


class Redelivery:
    """Works through the store."""

    def __init__(
        self,
        store: ParkedStore,
        transport: Transport,
        health: HealthBook,
        subscriptions: Subscriptions,
        journal: Journal,
        holds: Holds,
        envelope_of: Callable[[Subscription], Envelope],
        push: PushSettings,
        retry: RetrySettings,
        now_ms: Callable[[], int],
        chance: Callable[[], float],
        tell: Listener,
        spans: PushSpans | None = None,
    ) -> None:
        self._store = store
        self._transport = transport
        self._subscriptions = subscriptions
        self._journal = journal
        self._holds = holds
        self._envelope_of = envelope_of
        self._push = push
        self._retry = retry
        self._now_ms = now_ms
        self._tell = tell
        self._spans = spans
        self._alarm = DeadLetterAlarm(tell)
        self._settling = Settling(store, journal, chance, self._alarm)
        self._lanes: dict[str, Lane] = {}
        self._turns = Agenda()
        self._endpoints = Endpoints(health, retry.hot_budget_s * _QUICK_SHARE, tell)
        self._room = WaitingRoom(Bounds(push.max_in_flight_per_endpoint, push.max_in_flight_per_host))
        self._gone: set[str] = set()
        self._prefix = uuid.uuid4().hex[:16]
        self._numbers = itertools.count(1)

    @property
    def in_flight(self) -> int:
        """Pushes under way."""
        return self._transport.in_flight

    @property
    def lanes(self) -> int:
        """Lanes in which something waits."""
        return len(self._lanes)

    def held(self) -> frozenset[str]:
        """Lanes in which something waits that was never tried."""
        return frozenset(lane.name for lane in self._lanes.values() if lane.held)

    @property
    def dead(self) -> int:
        """Deliveries given up, or too old, since the start."""
        return self._settling.dead

    @property
    def delivered(self) -> int:
        """Deliveries made since the start."""
        return self._settling.delivered

    def due(self) -> int:
        """Lanes whose turn has come, and that wait for room."""
        return self._turns.overdue(self._now_ms()) + len(self._room)

    def found(self, name: str) -> None:
        """Something new waits in this lane."""
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(name)
        elif lane.held:
            return  # it comes behind others, and has its turn after theirs
        if self._store.has_untried(name):
            lane.held = True
            self._holds.found(name)
        self._turns.set(name, self._now_ms())

    def look_at_subscriptions(self) -> None:
        """Some subscription has changed: give those a turn that are over, paused, resumed, or something else now."""
        now_ms = self._now_ms()
        for lane in self._lanes.values():
            current = self._subscriptions.subscription(lane.name)
            changed = current is not lane.seen and current != lane.seen
            if changed or self._subscriptions.suspended(lane.name) != lane.suspended:
                self._turns.set(lane.name, now_ms)

    def next_turn_ms(self) -> int | None:
        """When there is something to do again; None when nothing waits for a time."""
        turns = [at_ms for at_ms in (self._turns.next_ms(), self._endpoints.next_probe_ms()) if at_ms is not None]
        return min(turns, default=None)

    def work(self) -> None:
        """Give everyone who is due their turn, as far as pushes may be under way."""
        now_ms = self._now_ms()
        for _ in range(_TURNS_AT_ONCE):
            if self._transport.in_flight >= self._push.max_in_flight:
                break
            endpoint = self._endpoints.due(now_ms)
            if endpoint is not None:
                self._probe(endpoint, now_ms)
                continue
            name = self._turns.pop(now_ms)
            if name is None:
                break
            self._serve(self._lanes[name], now_ms)
        self._alarm.look(now_ms)

    def drive(self, timeout_s: float) -> None:
        """Take outcomes in, waiting this long at most for the first."""
        self._transport.drive(timeout_s)

    def _serve(self, lane: Lane, now_ms: int) -> bool:
        """A lane's turn; whether a push began, or may begin at once when it is asked again."""
        subscription = None if lane.name in self._gone else self._subscriptions.subscription(lane.name)
        lane.seen = subscription
        if subscription is None or subscription.expired(now_ms):
            self._cancel(lane, now_ms)
            return False
        lane.endpoint = subscription.consumer.address
        policy = policy_of(subscription.policy, self._retry)
        if self._expire(lane, policy, now_ms):
            return False
        if subscription.paused or self._is_suspended(lane, now_ms):
            self._sleep(lane, policy, now_ms, until_due=False)
            return False
        health = self._endpoints.get(lane.endpoint)
        if not health.may_try(now_ms):
            self._block(lane, now_ms)
            self._sleep(lane, policy, now_ms, until_due=True)
            return False
        taken = self._choose(lane, subscription, now_ms, probing=health.breaker != "closed")
        if not taken:
            self._sleep(lane, policy, now_ms, until_due=True)
            return False
        if self._room.wait(lane.name, lane.endpoint):
            self._sleep(lane, policy, now_ms, until_due=False)
            return False
        self._begin(lane, subscription, policy, taken, now_ms)
        return True

    def _choose(self, lane: Lane, subscription: Subscription, now_ms: int, probing: bool) -> list[Waiting]:
        """What the next push carries, nothing when nothing is due."""
        if subscription.policy.strict:
            # Whatever has its push under way may be the first.
            first = None if lane.flight else self._store.first(lane.name)
            return [first] if first is not None and first.tries.due_ms <= now_ms else []
        if not lane.pushing:
            together = 1 if probing or subscription.form != "notify" else self._push.max_notify_messages
            untried = self._travelling(self._store.untried(lane.name, together))
            if untried:
                return untried
        if probing:
            # Not always the same one: it may be what the endpoint fails at.
            least = self._store.least_tried(lane.name, now_ms, lane.flight)
            return [least] if least is not None else []
        return self._store.due(lane.name, now_ms, 1, lane.flight)

    def _travelling(self, head: list[Waiting]) -> list[Waiting]:
        size = 0
        for count, waiting in enumerate(head):
            size += len(waiting.notification.payload)
            if count and size > self._push.max_notify_bytes:
                return head[:count]
        return head

    def _begin(
        self, lane: Lane, subscription: Subscription, policy: RetryPolicy, taken: list[Waiting], now_ms: int
    ) -> None:
        number = taken[0].tries.number + 1
        notifications = [waiting.notification for waiting in taken]
        first_try = number == 1
        span = self._spans.begin(subscription, notifications, number) if self._spans is not None else None
        try:
            envelope = self._envelope_of(subscription)
            request = envelope.request(notifications, number, now_ms / 1000, span.traceparent if span else None)
        except Exception as error:
            # Whatever it is, only this message is to suffer for it.
            push = Push("", notifications, _NO_REQUEST, PushResult(0), now_ms)
            outcome = failed("envelope", str(error))
            end(span, outcome)
            self._settling.settle(subscription, policy, taken, push, outcome, now_ms, probe=False)
            self._after(lane, now_ms)
            return
        endpoint = lane.endpoint
        probe = self._endpoints.begin_push(endpoint)
        lane.flight.update(waiting.delivery for waiting in taken)
        lane.pushing = lane.pushing or first_try
        self._room.enter(endpoint)

        def finished(result: PushResult) -> None:
            ended_ms = self._now_ms()
            outcome = classify(result)
            end(span, outcome)
            lane.flight.difference_update(waiting.delivery for waiting in taken)
            lane.pushing = lane.pushing and not first_try
            self._go_on(self._room.leave(endpoint), ended_ms)
            self._go_on(
                self._endpoints.push_ended(endpoint, notifications[0].id, outcome, result, probe, ended_ms), ended_ms
            )
            if result.response:
                result = dataclasses.replace(result, response=envelope.redact(result.response))
            push = Push(f"{self._prefix}-{next(self._numbers)}", notifications, request, result, now_ms)
            if self._settling.settle(subscription, policy, taken, push, outcome, ended_ms, probe):
                self._end_subscription(lane, ended_ms)
            elif not outcome.delivered:
                self._suspend_if_failing(lane, ended_ms)
            self._after(lane, ended_ms)

        self._transport.submit(request, finished)
        # There may be more to push beside this; but others come first.
        self._turns.set(lane.name, now_ms)

    def _after(self, lane: Lane, now_ms: int) -> None:
        """Something of the lane is settled."""
        self._let_pass(lane)
        self._turns.set(lane.name, now_ms)

    def _let_pass(self, lane: Lane) -> None:
        if lane.held and not lane.pushing and not self._store.has_untried(lane.name):
            lane.held = False
            self._holds.drained(lane.name)

    def _sleep(self, lane: Lane, policy: RetryPolicy, now_ms: int, until_due: bool) -> None:
        """Nothing to do in this lane until the next delivery is due (if that is what it waits for), or too old."""
        self._go_on(self._room.pass_on(lane.endpoint) if lane.endpoint else [], now_ms)
        oldest_ms = self._store.oldest_ms(lane.name, lane.flight)
        if oldest_ms is None:
            if not lane.flight:
                self._forget(lane, now_ms)
            return
        at_ms = policy.expires_ms(oldest_ms)
        if until_due:
            due_ms = self._store.next_due_ms(lane.name, lane.flight)
            if due_ms is not None and due_ms > now_ms:
                at_ms = min(at_ms, due_ms)
        self._turns.set(lane.name, at_ms)

    def _go_on(self, names: list[str], now_ms: int) -> None:
        for name in names:
            self._turns.set(name, now_ms)

    def _forget(self, lane: Lane, now_ms: int) -> None:
        self._let_pass(lane)
        del self._lanes[lane.name]
        self._turns.cancel(lane.name)
        self._room.forget(lane.name)
        self._gone.discard(lane.name)
        self._endpoints.forget(lane.name, lane.endpoint)
        if lane.failing:
            self._tell(OperatorEvent("subscription-recovered", now_ms, lane.endpoint, lane.name))

    # Ends without a push

    def _cancel(self, lane: Lane, now_ms: int) -> None:
        ended = self._store.accepted_before(lane.name, _EVER_MS, _ENDED_AT_ONCE, lane.flight)
        why = failed("ended", "the subscription is over")
        self._settling.end_untried(lane.name, lane.endpoint, ended, Verdict("cancelled"), why, now_ms)
        self._let_pass(lane)
        lane.failing = False
        if len(ended) == _ENDED_AT_ONCE:
            self._turns.set(lane.name, now_ms)
        elif not lane.flight:
            self._forget(lane, now_ms)

    def _expire(self, lane: Lane, policy: RetryPolicy, now_ms: int) -> bool:
        """End what has lived too long; whether there may be more of it."""
        latest_ms = now_ms - policy.lifespan_ms
        ended = self._store.accepted_before(lane.name, latest_ms, _ENDED_AT_ONCE, lane.flight)
        if ended:
            why = failed("lifespan", "it was not delivered within its lifespan")
            self._settling.end_untried(lane.name, lane.endpoint, ended, Verdict("expired"), why, now_ms)
            self._let_pass(lane)
        if len(ended) < _ENDED_AT_ONCE:
            return False
        self._turns.set(lane.name, now_ms)
        return True

    def _end_subscription(self, lane: Lane, now_ms: int) -> None:
        self._gone.add(lane.name)
        self._journal.gone(lane.name)
        self._tell(OperatorEvent("subscription-gone", now_ms, lane.endpoint, lane.name))

    # The endpoint

    def _block(self, lane: Lane, now_ms: int) -> None:
        self._endpoints.block(lane.name, lane.endpoint)
        if not lane.failing:
            lane.failing = True
            self._tell(OperatorEvent("subscription-failing", now_ms, lane.endpoint, lane.name))

    def _probe(self, endpoint: str, now_ms: int) -> None:
        if self._endpoints.get(endpoint).breaker == "closed":
            # A batch has found it well again.
            self._go_on(self._endpoints.unblock(endpoint), now_ms)
        else:
            self._endpoints.probe(endpoint, lambda name: self._serve(self._lanes[name], now_ms))

    def _suspend_if_failing(self, lane: Lane, now_ms: int) -> None:
        """When the endpoint has failed for too long: the lane, and all that wait for the same endpoint."""
        health = self._endpoints.get(lane.endpoint)
        since_ms = health.failing_since_ms
        if health.breaker == "closed" or not since_ms or now_ms - since_ms < int(self._retry.suspend_after_s * 1000):
            return
        for name in {lane.name, *self._endpoints.blocked(lane.endpoint)}:
            each = self._lanes[name]
            if not each.suspended:
                each.suspended = each.suspending = True
                self._journal.suspend(name, since_ms)
                self._tell(OperatorEvent("subscription-suspended", now_ms, lane.endpoint, name))

    def suspensions_are_known(self) -> None:
        """What was asked of the journal is written down, and `subscriptions` knows."""
        for lane in self._lanes.values():
            lane.suspending = False
        self.look_at_subscriptions()

    def _is_suspended(self, lane: Lane, now_ms: int) -> bool:
        suspended = lane.suspending or self._subscriptions.suspended(lane.name)
        if lane.suspended and not suspended:
            # Someone has resumed it: it gets the whole time once more.
            self._endpoints.forgive(lane.endpoint, now_ms)
        lane.suspended = suspended
        return suspended


# Later than any notification was accepted.
_EVER_MS = 1 << 62
