"""Histories of the redelivery with simulated time, endpoints and crashes, and the invariants that hold after each step:

- Nothing is lost: each parked delivery waits or has ended, by its last row.
- First attempts are made by priority, equal ones in the order of their places, per subscription.
- In a strict lane a message is pushed after the one before it is settled.
- Nothing is pushed to a paused, suspended or ended subscription, or after its lifespan or validity.
- Pushes in flight stay within the limits of an endpoint; an open breaker allows one probe.
- A message with a later result waits for it, and the result counts as the attempt.
- A retry is made at its time, not earlier, and within the number of attempts; without a limit for a strict reliability.
- No more messages of a subscription wait than allowed, except tried ones and those of a strict reliability.
- Each due delivery is tried within a bounded time, though the clock is set.

At the end, with healthy endpoints, nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from arborcast.core.wall_clock import TOLERANCE_MS
from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.logs.parked import Delivery, Parked, Tries, decode, decode_key
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.records.results import State
from arborcast.topic_model.subscriptions import Subscription
from tests.support.redelivery_setup import FakeEndpoint, Setup

LIFESPAN_MS = 600_000
ATTEMPTS = 3

ANSWERS = {
    "ok": PushResult(202, duration_s=0.01),
    "later": PushResult(202, duration_s=0.01, later=True),
    "slow": PushResult(202, duration_s=5.0),
    "broken": PushResult(500),
    "refused": PushResult(0, "connect", "refused"),
    "hanging": PushResult(0, "timeout", "no answer", duration_s=15.0),
    "busy": PushResult(503, retry_after_s=20.0),
    "wrong": PushResult(400),
}
TAKES_MS = {"slow": 5_000, "hanging": 15_000}

# The longest time without a push to an endpoint with waiting messages: a hanging push, the waits for a probe and for
# a message, and a small error of the clock.
LONGEST_PAUSE_MS = 15_000 + 20_000 + 20_000 + TOLERANCE_MS
FIRST_WAIT_MS = 2_000
CALLBACK_S = 10.0

# Validities, from the time of parking; 0: without an end.
VALID_MS = (0, 0, 0, 1, 1_000, 30_000, 2 * LIFESPAN_MS)

PRIORITIES = st.lists(st.sampled_from((-100, 0, 0, 5)), min_size=5, max_size=5)

NAMES = ("plain", "together", "strict", "stubborn", "mate", "legacy", "timely")

# The limit of waiting messages of a subscription, in histories with "limit".
LIMIT = 6


class Histories(RuleBasedStateMachine):
    """One engine, seven subscriptions at six endpoints."""

    @initialize(kinds=st.sets(st.sampled_from(("crash", "clock", "end", "pause", "suspend", "limit"))))
    def begin(self, kinds: set[str]) -> None:
        # Some events in each history: after a crash, for example, fewer invariants hold.
        self.kinds = kinds
        self.setup = Setup(
            retry=RetrySettings(
                retransmissions=ATTEMPTS - 1,
                lifespan_s=LIFESPAN_MS / 1000,
                jitter=0.0,
                breaker_failures=2,
                suspend_after_s=30.0,
                longest_probe_s=20.0,
                longest_wait_s=20.0,  # for an unlimited number of attempts
                parked_messages=LIMIT if "limit" in kinds else 0,
            ),
            push=PushSettings(
                max_in_flight=4,
                max_in_flight_per_host=3,
                max_in_flight_per_endpoint=2,
                max_notify_messages=3,
                callback_s=CALLBACK_S,
            ),
        )
        # All on one host, and two at one endpoint: they share its limits.
        self.setup.subscribe("plain", endpoint="host/plain", form="raw")
        self.setup.subscribe("together", endpoint="host/together", form="notify")
        self.setup.subscribe("strict", endpoint="host/strict", order="strict")
        self.setup.subscribe("stubborn", endpoint="host/stubborn", reliability="strict")
        # Reliable messages of a timely subscription wait, too.
        self.setup.subscribe("timely", endpoint="host/timely", reliability="timely")
        self.setup.subscribe("mate", endpoint="host/together", form="raw")
        self.setup.subscribe("legacy", endpoint="host/legacy", form="legacy")
        self.accepted: dict[str, int] = {}
        self.valid: dict[str, int] = {}  # the ends of validities
        self.priority: dict[str, int] = {}
        self.parked: dict[str, list[str]] = {name: [] for name in NAMES}
        self.checked = 0
        self.crashed = False
        # Deliveries that batches have tried: the true time, and the time of the clock.
        self.tried: dict[str, tuple[int, int]] = {}
        # The last change of the clock, and the number of rows by then: times of earlier rows do not count.
        self.set_ms, self.rows_when_set = self.setup.true_ms, 0
        # The last change of subscriptions or the clock.
        self.quiet_ms = self.setup.true_ms

    @rule(
        name=st.sampled_from(NAMES),
        count=st.integers(1, 5),
        age_ms=st.sampled_from([0, 0, 0, LIFESPAN_MS // 2]),
        valid_ms=st.sampled_from(VALID_MS),
        priorities=PRIORITIES,
    )
    def park(self, name: str, count: int, age_ms: int, valid_ms: int, priorities: list[int]) -> None:
        """A batch parks some messages; a late batch parks old ones."""
        for priority in priorities[:count]:
            self._park(name, priority, None, age_ms, valid_ms)

    @rule(
        name=st.sampled_from(("plain", "together", "mate", "legacy", "timely")),
        count=st.integers(1, 5),
        valid_ms=st.sampled_from(VALID_MS),
        priorities=PRIORITIES,
    )
    def park_tried(self, name: str, count: int, valid_ms: int, priorities: list[int]) -> None:
        """A batch parks messages that it has tried."""
        tries = Tries(1, 1, self.setup.now_ms + FIRST_WAIT_MS, self.setup.now_ms)
        for priority in priorities[:count]:
            notification = self._park(name, priority, tries, 0, valid_ms)
            self.tried[notification] = self.setup.true_ms, self.setup.now_ms

    @rule(name=st.sampled_from(NAMES), how=st.sampled_from(sorted(ANSWERS)))
    def behave(self, name: str, how: str) -> None:
        """An endpoint gives this answer from now on."""
        self._behave(name, how)

    @precondition(lambda self: self.setup.arrivals)
    @rule(back=st.integers(0, 5), state=st.sampled_from(("delivered", "failed", "refused")))
    def report(self, back: int, state: State) -> None:
        """The receiver of one of the last pushes reports its result, announced or not."""
        arrivals = self.setup.arrivals
        self.setup.report(arrivals[max(len(arrivals) - 1 - back, 0)], state)
        self.setup.run(0)

    @precondition(lambda self: self.setup.arrivals)
    @rule(
        name=st.sampled_from(NAMES),
        wait_ms=st.sampled_from([100, 5_000]),
        state=st.sampled_from(("delivered", "failed")),
    )
    def take_for_later_and_report(self, name: str, wait_ms: int, state: State) -> None:
        """An endpoint announces later results, and reports them soon."""
        self._behave(name, "later")
        before = len(self.setup.arrivals)
        self.setup.run(wait_ms)
        for arrival in self.setup.arrivals[before:]:
            self.setup.report(arrival, state)
        self.setup.run(20)

    @rule(name=st.sampled_from(NAMES), index=st.integers(0, 8))
    def poison(self, name: str, index: int) -> None:
        """The endpoint fails for one message."""
        self._set(name, lambda ids: ANSWERS["broken" if f"{name}-{index}" in ids else "ok"], 10)

    @rule(for_ms=st.sampled_from([1, 100, 1_000, 2_500, 20_000, 130_000, LIFESPAN_MS + 60_000]))
    def pass_time(self, for_ms: int) -> None:
        self.setup.run(for_ms)
        self._all_due_are_tried()
        self._waits_are_bounded()
        self._nothing_is_too_old()
        self._nothing_is_too_much()

    @precondition(lambda self: "pause" in self.kinds)
    @rule(name=st.sampled_from(NAMES), paused=st.booleans())
    def pause_or_resume(self, name: str, paused: bool) -> None:
        """The subscriber pauses, or resumes."""
        if name in self.setup.subscriptions:
            self.setup.change(name, paused=paused)
            self._changed()

    @precondition(lambda self: "suspend" in self.kinds)
    @rule()
    def suspend(self) -> None:
        """The requested suspensions are in the control log."""
        self.setup.suspend()

    @precondition(lambda self: self.setup.suspended_now)
    @rule()
    def resume_all(self) -> None:
        """An operator resumes the suspended subscriptions."""
        self.setup.resume(*self.setup.suspended_now)
        self._changed()

    @precondition(lambda self: "end" in self.kinds)
    @rule(name=st.sampled_from(NAMES))
    def unsubscribe(self, name: str) -> None:
        if name in self.setup.subscriptions:
            self.setup.end(name)

    @precondition(lambda self: "crash" in self.kinds)
    @rule(remembered=st.booleans())
    def crash(self, remembered: bool) -> None:
        """Everything outside the logs is lost, perhaps except the health of endpoints."""
        health = self.setup.health.everything()
        self.setup.restart()
        if remembered:
            self.setup.health.restore(health)
        self.crashed = True

    @precondition(lambda self: "crash" in self.kinds)
    @rule(writes=st.integers(0, 12), landing=st.tuples(st.booleans(), st.booleans(), st.booleans()))
    def crash_while_writing(self, writes: int, landing: tuple[bool, ...]) -> None:
        """The process ends after this number of further records. Records that were sent, but not acknowledged, may be
        in some of the logs."""
        self.setup.writes_left, self.setup.landing = writes, landing
        self.crashed = True

    @rule(forward_ms=st.sampled_from([3_600_000, 60_000, -1_000, -10_000, -60_000, -3_600_000]))
    @precondition(lambda self: "clock" in self.kinds)
    def set_the_clock(self, forward_ms: int) -> None:
        self.setup.set_clock(forward_ms)
        self.set_ms, self.rows_when_set = self.setup.true_ms, len(self.setup.attempts)
        self._changed()

    @invariant()
    def nothing_is_lost(self) -> None:
        waiting = {
            (decode_key(key)[0].subscription, record.notification.id)
            for key, value in self.setup.log.items()
            if isinstance(record := decode(value), Parked)
        }
        over = {key for key, state in self.setup.states().items() if state != "parked"}
        everything = {(name, each) for name, names in self.parked.items() for each in names}
        assert waiting | over == everything
        if not self.crashed:
            assert waiting.isdisjoint(over)
        assert self.setup.store.count == len(waiting)
        for name, _ in waiting:
            assert name in self.setup.redelivery._lanes, "no lane"

    @invariant()
    def dead_letters_are_kept(self) -> None:
        ended = {
            (row.subscription, row.notification)
            for row in self.setup.attempts
            if row.state == "dead" or (row.state == "expired" and not self._ends_by_validity(row.notification))
        }
        kept = [(letter.subscription, letter.notification.id) for letter in self.setup.buried]
        assert ended <= set(kept)
        if not self.crashed:
            assert len(kept) == len(ended)

    @invariant()
    def ended_deliveries_stay_ended(self) -> None:
        if self.crashed:
            return  # repeated if only its row was written
        over: set[tuple[str, str]] = set()
        for row in self.setup.attempts:
            assert (row.subscription, row.notification) not in over
            if row.state != "parked":
                over.add((row.subscription, row.notification))

    @invariant()
    def attempts_are_numbered_in_sequence(self) -> None:
        if self.crashed:
            return  # an attempt with a row alone is repeated with the same number
        last: dict[str, int] = {}
        for row in filter(lambda row: row.push, self.setup.attempts):
            assert row.number >= last.get(row.notification, 0)
            last[row.notification] = row.number

    @invariant()
    def no_message_is_dead_because_of_others_in_its_push(self) -> None:
        assert all(row.messages == 1 for row in self.setup.attempts if row.state == "dead" and row.status == 400)

    @invariant()
    def attempts_are_bounded(self) -> None:
        if self.crashed:
            return  # a push in flight counts, though its outcome is unknown
        for row in self.setup.attempts:
            counted = row.number - self.setup.uncounted[row.notification]
            if row.subscription == "stubborn":
                assert row.state != "dead" or row.status == 400 or "refuses it" in row.detail
                continue
            if row.state == "dead" and row.status != 400 and "refuses it" not in row.detail:
                assert counted == ATTEMPTS
            assert counted <= ATTEMPTS

    @invariant()
    def failures_count_except_unanswered_probes(self) -> None:
        if self.crashed:
            return
        for notification, tries in self._tries().items():
            counted = tries.counted + bool(tries.awaits)
            assert counted == tries.number - self.setup.uncounted[notification]

    @invariant()
    def no_attempt_is_before_its_time(self) -> None:
        if self.crashed:
            return
        for arrival in self.setup.arrivals[self.checked :]:
            for each in arrival.notifications:
                assert arrival.at_ms < self._end_of(each)
                assert arrival.at_ms >= self._due(each, arrival.attempt)
        self.checked = len(self.setup.arrivals)

    @invariant()
    def waiting_messages_are_bounded(self) -> None:
        dropped = [row for row in self.setup.attempts if row.state == "dropped"]
        assert "limit" in self.kinds or not dropped
        assert {(row.error, row.number) for row in dropped} <= {("resources", 0)}
        assert "stubborn" not in {row.subscription for row in dropped}
        if not self.crashed:
            # The oldest are dropped first, except those in flight.
            for name in NAMES:
                removed = {row.notification for row in dropped if row.subscription == name}
                assert len(self.setup.arrived(name)) == len([e for e in self.setup.arrived(name) if e not in removed])

    def _end_of(self, notification: str) -> int:
        end_ms = self.accepted[notification] + LIFESPAN_MS
        return min(end_ms, self.valid.get(notification, end_ms))

    def _ends_by_validity(self, notification: str) -> bool:
        """Whether it ends by its validity, without a dead letter."""
        return self.valid.get(notification, 1 << 62) <= self.accepted[notification] + LIFESPAN_MS

    def _due(self, notification: str, attempt: int) -> int:
        if attempt == 2 and notification in self.tried:
            true_ms, clock_ms = self.tried[notification]
            return clock_ms + FIRST_WAIT_MS if true_ms > self.set_ms else 0
        rows = self.setup.attempts[self.rows_when_set :]
        # The last row of an attempt counts: the later result, if announced.
        times_ms = {
            row.number: row.next_ms for row in rows if row.notification == notification and row.number < attempt
        }
        return max(times_ms.values(), default=0)

    @invariant()
    def first_attempts_are_in_order(self) -> None:
        for name in NAMES:
            firsts = [
                each
                for arrival in self.setup.arrivals
                if arrival.subscription == name and arrival.attempt == 1
                for each in arrival.notifications
            ]
            order = {each: index for index, each in enumerate(self.parked[name])}
            once = list(dict.fromkeys(firsts))
            classes = {self.priority[each] for each in once} if name != "strict" else {None}
            for priority in classes:
                equals = [each for each in once if priority is None or self.priority[each] == priority]
                assert equals == sorted(equals, key=order.__getitem__)
            if not self.crashed:
                assert firsts == once

    @invariant()
    def strict_ones_follow_each_other(self) -> None:
        if self.crashed:
            return  # the last push may be repeated
        for name in ("strict", "stubborn"):
            seen = self.setup.arrived(name)
            order = {each: index for index, each in enumerate(self.parked[name])}
            assert [order[each] for each in seen] == sorted(order[each] for each in seen)

    @invariant()
    def lanes_with_untried_messages_are_held(self) -> None:
        held = self.setup.lanes.for_workers()[0]
        for name in NAMES:
            if self.setup.store.has_untried(name) or self.setup.pushes_in_flight(name, attempt=1):
                assert name in held

    @invariant()
    def bounds_are_kept(self) -> None:
        assert self.setup.most_in_flight <= 3
        assert all(count <= 2 for count in self.setup.most_at.values())
        assert self.setup.too_much == []

    def teardown(self) -> None:
        if not hasattr(self, "setup"):
            return
        self.setup.writes_left = None
        for name in NAMES:
            if name in self.setup.subscriptions:
                self._behave(name, "ok")
                self.pause_or_resume(name, paused=False)
        self.setup.suspended_reported.clear()
        self.setup.suspended_now.clear()
        self.setup.redelivery.suspensions_written()
        self.setup.read_changes()
        # Longer than hanging pushes, waits, probes and Retry-After together; shorter than lifespans.
        self.setup.run(120_000)
        self.nothing_is_lost()
        left = [decode_key(key) for key in self.setup.log]
        assert (left, self.setup.redelivery.lanes, self.setup.in_flight) == ([], 0, 0)
        assert self.setup.redelivery.next_turn_ms() is None
        assert self.setup.lanes.for_workers()[0] == frozenset()
        # With its last subscription an endpoint is forgotten.
        used = {each.consumer.address for each in self.setup.subscriptions.values()}
        assert self.setup.health.everything().keys() <= used

    def _changed(self) -> None:
        self.quiet_ms = self.setup.true_ms

    def _park(self, name: str, priority: int, tries: Tries | None, age_ms: int, valid_ms: int) -> str:
        """Park a new message; returns its id."""
        self._changed()
        notification = f"{name}-{len(self.parked[name])}"
        self.parked[name].append(notification)
        self.priority[notification] = priority
        self.accepted[notification] = self.setup.now_ms - age_ms
        if valid_ms:
            self.valid[notification] = self.setup.now_ms + valid_ms
        until_ms = self.valid.get(notification, 0)
        self.setup.park(
            name, notification, tries, self.accepted[notification], valid_until_ms=until_ms, priority=priority
        )
        return notification

    def _all_due_are_tried(self) -> None:
        """With nothing in flight, every due delivery has been tried."""
        setup = self.setup
        if setup.in_flight or setup.true_ms - self.set_ms < TOLERANCE_MS:
            return  # the clock was set back a little and has not reached the time again
        for name, subscription in setup.subscriptions.items():
            closed = setup.health.get(subscription.consumer.address).breaker == "closed"
            if closed and not self._stopped(subscription) and not subscription.policy.strict:
                assert not setup.store.has_untried(name)
                assert not setup.store.due(name, setup.now_ms, 1)

    def _waits_are_bounded(self) -> None:
        """With nothing in flight, each delivery was tried at its time, counted from the last change of the clock at the
        latest, and failing endpoints are probed."""
        setup = self.setup
        if setup.in_flight:
            return
        due = {name: (at_ms, FIRST_WAIT_MS) for name, (at_ms, _) in self.tried.items()}
        for row, (true_ms, clock_ms) in zip(setup.attempts, setup.decided, strict=True):
            due[row.notification] = true_ms, max(row.next_ms - clock_ms, 0)
        for subscription, notification in self._waiting():
            endpoint = subscription.consumer.address
            if self._stopped(subscription):
                continue
            pushed_ms = [arrival.true_ms for arrival in setup.arrivals if arrival.endpoint == endpoint]
            assert setup.true_ms - max([self.quiet_ms, *pushed_ms]) <= LONGEST_PAUSE_MS
            if notification in due and setup.health.get(endpoint).breaker == "closed":
                since_ms, wait_ms = due[notification]
                assert setup.true_ms - max(since_ms, self.set_ms) <= wait_ms + TOLERANCE_MS

    def _tries(self) -> dict[str, Tries]:
        """The tries of waiting deliveries, by the log."""
        names: dict[Delivery, str] = {}
        tries: dict[Delivery, Tries] = {}
        for key, value in self.setup.log.items():
            delivery, record = decode_key(key)[0], decode(value)
            if isinstance(record, Parked):
                names[delivery] = record.notification.id
                tries.setdefault(delivery, record.tries)
            else:
                tries[delivery] = record.tries
        return {name: tries[delivery] for delivery, name in names.items()}

    def _waiting(self) -> list[tuple[Subscription, str]]:
        """The waiting deliveries of existing subscriptions, by the log."""
        return [
            (self.setup.subscriptions[name], record.notification.id)
            for key, value in self.setup.log.items()
            if isinstance(record := decode(value), Parked)
            and (name := decode_key(key)[0].subscription) in self.setup.subscriptions
        ]

    def _stopped(self, subscription: Subscription) -> bool:
        """Whether it gets no attempts."""
        return subscription.paused or subscription.id in self.setup.suspended_now | self.setup.suspended_reported.keys()

    def _nothing_is_too_old(self) -> None:
        """Lifespans end during any wait; during a push, at its end."""
        if self.setup.true_ms - self.set_ms < TOLERANCE_MS:
            return  # the clock was set back a little and has not reached the time again
        for lane in self.setup.redelivery._lanes.values():
            old_ms = self.setup.now_ms - LIFESPAN_MS
            if lane.flight:
                old_ms -= 20_000
                if self.setup.true_ms - self.set_ms < 20_000:
                    continue
            assert self.setup.store.accepted_before(lane.name, old_ms, 1, lane.flight) == []
            assert self.setup.store.valid_until(lane.name, old_ms + LIFESPAN_MS, 1, lane.flight) == []

    def _nothing_is_too_much(self) -> None:
        if "limit" in self.kinds and self.setup.true_ms - self.set_ms >= TOLERANCE_MS:
            for lane in self.setup.redelivery._lanes.values():
                untried = [
                    each for each in self.setup.store.untried(lane.name, 1_000) if each.delivery not in lane.flight
                ]
                count = len(self.setup.store.accepted_before(lane.name, 1 << 62, 1_000))
                assert not untried or count <= LIMIT or lane.name == "stubborn"

    def _behave(self, name: str, how: str) -> None:
        self._set(name, lambda ids: ANSWERS[how], TAKES_MS.get(how, 10))

    def _set(self, name: str, answer: Callable[[tuple[str, ...]], PushResult], takes_ms: int) -> None:
        subscription = self.setup.subscriptions.get(name)
        if subscription is not None:
            self.setup.endpoints[subscription.consumer.address] = FakeEndpoint(answer, takes_ms)


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=3 * settings().max_examples,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
