"""Thousands of histories of the redelivery against what must always hold, with time, endpoints and crashes made up.

After each step, whatever happened:

- nothing is lost: what was parked is waiting or over, and its last row says which;
- first attempts leave by priority, and those of one priority in order of place, per subscription;
- in a strict lane, none is pushed before the one before it is settled;
- nobody is pushed to who is paused, suspended or over, and nothing that is too old, for us or for its publisher;
- no more is under way at an endpoint than allowed, and behind an open breaker only a probe;
- what a receiver has taken for later waits for its word, and counts with it;
- what is tried again is tried when it was promised, not earlier; and not more often than the policy says: without end
  where the reliability is strict;
- no more waits of a subscription than may, or only what was tried, but where the reliability is strict;
- nobody who may be tried is left alone for longer than was promised, though somebody sets the clock.

And in the end, when all endpoints answer and time passes, nothing waits any more.
"""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from arborcast.core.wall_clock import TOLERANCE_MS
from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.logs.parked import Delivery, Parked, Tries, decode, decode_key
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.records.results import State
from arborcast.topic_model.subscriptions import Subscription
from tests.support.redelivery_world import FakeEndpoint, World

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

# How long an endpoint is left alone at most while something waits for it: a push that hangs, then a probe that waits
# for its time, then a message that waits for its own; the clock may be a little wrong.
LEFT_ALONE_MS = 15_000 + 20_000 + 20_000 + TOLERANCE_MS
FIRST_WAIT_MS = 2_000
CALLBACK_S = 10.0

# For how long publishers want their messages delivered, counted from when they are parked; 0: without end.
VALID_MS = (0, 0, 0, 1, 1_000, 30_000, 2 * LIFESPAN_MS)

PRIORITIES = st.lists(st.sampled_from((-100, 0, 0, 5)), min_size=5, max_size=5)

NAMES = ("plain", "together", "strict", "stubborn", "mate", "legacy", "timely")

# So many may wait of a subscription, in histories in which that is limited.
LIMIT = 6


class Histories(RuleBasedStateMachine):
    """One engine, seven subscriptions at six endpoints."""

    @initialize(happens=st.sets(st.sampled_from(("crash", "clock", "end", "pause", "suspend", "limit"))))
    def begin(self, happens: set[str]) -> None:
        # Not everything in every history: what comes after a crash, say, is checked less sharply.
        self.happens = happens
        self.world = World(
            retry=RetrySettings(
                retransmissions=ATTEMPTS - 1,
                lifespan_s=LIFESPAN_MS / 1000,
                jitter=0.0,
                breaker_failures=2,
                suspend_after_s=30.0,
                longest_probe_s=20.0,
                longest_wait_s=20.0,  # of those that are tried without end
                parked_messages=LIMIT if "limit" in happens else 0,
            ),
            push=PushSettings(
                max_in_flight=4,
                max_in_flight_per_host=3,
                max_in_flight_per_endpoint=2,
                max_notify_messages=3,
                callback_s=CALLBACK_S,
            ),
        )
        # All on one host, and two at one endpoint: they compete for room.
        self.world.subscribe("plain", endpoint="host/plain", form="raw")
        self.world.subscribe("together", endpoint="host/together", form="notify")
        self.world.subscribe("strict", endpoint="host/strict", order="strict")
        self.world.subscribe("stubborn", endpoint="host/stubborn", reliability="strict")
        # What is reliable waits for it, too.
        self.world.subscribe("timely", endpoint="host/timely", reliability="timely")
        self.world.subscribe("mate", endpoint="host/together", form="raw")
        self.world.subscribe("legacy", endpoint="host/legacy", form="legacy")
        self.accepted: dict[str, int] = {}
        self.valid: dict[str, int] = {}  # until when, of those that have an end
        self.priority: dict[str, int] = {}
        self.parked: dict[str, list[str]] = {name: [] for name in NAMES}
        self.checked = 0
        self.over: set[str] = set()
        self.crashed = False
        # Those that batches have tried, and when: the true time, and what the clock showed.
        self.tried: dict[str, tuple[int, int]] = {}
        # When somebody last set the clock, and how many rows there were then: what was promised before means nothing.
        self.set_ms, self.rows_when_set = self.world.true_ms, 0
        # Since when nobody has changed anything.
        self.quiet_ms = self.world.true_ms

    @rule(
        name=st.sampled_from(NAMES),
        count=st.integers(1, 5),
        age_ms=st.sampled_from([0, 0, 0, LIFESPAN_MS // 2]),
        valid_ms=st.sampled_from(VALID_MS),
        priorities=PRIORITIES,
    )
    def park(self, name: str, count: int, age_ms: int, valid_ms: int, priorities: list[int]) -> None:
        """A batch parks some messages; one that was long in coming, older ones than before."""
        for priority in priorities[:count]:
            notification = f"{name}-{len(self.parked[name])}"
            self.parked[name].append(notification)
            self.priority[notification] = priority
            self._park(name, notification, None, age_ms, valid_ms)

    @rule(
        name=st.sampled_from(("plain", "together", "mate", "legacy", "timely")),
        count=st.integers(1, 5),
        valid_ms=st.sampled_from(VALID_MS),
        priorities=PRIORITIES,
    )
    def park_tried(self, name: str, count: int, valid_ms: int, priorities: list[int]) -> None:
        """A batch parks messages that it has tried."""
        for priority in priorities[:count]:
            notification = f"{name}-{len(self.parked[name])}"
            self.parked[name].append(notification)
            self.priority[notification] = priority
            self.tried[notification] = self.world.true_ms, self.world.now_ms
            tries = Tries(1, 1, self.world.now_ms + FIRST_WAIT_MS, self.world.now_ms)
            self._park(name, notification, tries, 0, valid_ms)

    @rule(name=st.sampled_from(NAMES), how=st.sampled_from(sorted(ANSWERS)))
    def behave(self, name: str, how: str) -> None:
        """From now on an endpoint answers like this."""
        self._behave(name, how)

    @precondition(lambda self: self.world.arrivals)
    @rule(back=st.integers(0, 5), state=st.sampled_from(("delivered", "failed", "refused")))
    def report(self, back: int, state: State) -> None:
        """The receiver of one of the last pushes says how it ended, whether or not it had said that it would."""
        arrivals = self.world.arrivals
        self.world.report(arrivals[max(len(arrivals) - 1 - back, 0)], state)
        self.world.run(0)

    @precondition(lambda self: self.world.arrivals)
    @rule(
        name=st.sampled_from(NAMES),
        wait_ms=st.sampled_from([100, 5_000]),
        state=st.sampled_from(("delivered", "failed")),
    )
    def take_for_later_and_report(self, name: str, wait_ms: int, state: State) -> None:
        """An endpoint takes what comes, and soon says of each push how it ended."""
        self._behave(name, "later")
        before = len(self.world.arrivals)
        self.world.run(wait_ms)
        for arrival in self.world.arrivals[before:]:
            self.world.report(arrival, state)
        self.world.run(20)

    @rule(name=st.sampled_from(NAMES), index=st.integers(0, 8))
    def poison(self, name: str, index: int) -> None:
        """One message that the endpoint always fails at."""
        self._set(name, lambda ids: ANSWERS["broken" if f"{name}-{index}" in ids else "ok"], 10)

    @rule(for_ms=st.sampled_from([1, 100, 1_000, 2_500, 20_000, 130_000, LIFESPAN_MS + 60_000]))
    def pass_time(self, for_ms: int) -> None:
        """Time goes on."""
        self.world.run(for_ms)
        self._nobody_waits_for_nothing()
        self._nobody_waits_longer_than_promised()
        self._nothing_is_too_old()
        self._nothing_is_too_much()

    @precondition(lambda self: "pause" in self.happens)
    @rule(name=st.sampled_from(NAMES), paused=st.booleans())
    def pause_or_resume(self, name: str, paused: bool) -> None:
        """The subscriber pauses, or resumes."""
        known = self.world.subscriptions.get(name)
        if known is not None:
            self.world.subscriptions[name] = msgspec.structs.replace(known, paused=paused)
            self.world.hear()
            self._changed()

    @precondition(lambda self: "suspend" in self.happens)
    @rule()
    def suspend(self) -> None:
        """What was asked for is in the control log now."""
        self.world.suspended_now |= self.world.suspended_said.keys()
        self.world.suspended_said.clear()
        self.world.redelivery.suspensions_written()

    @precondition(lambda self: self.world.suspended_now)
    @rule()
    def resume_all(self) -> None:
        """Somebody resumes what was suspended."""
        self.world.suspended_now.clear()
        self.world.hear()
        self._changed()

    @precondition(lambda self: "end" in self.happens)
    @rule(name=st.sampled_from(NAMES))
    def unsubscribe(self, name: str) -> None:
        """The subscription ends."""
        self.over.add(name)
        if name in self.world.subscriptions:
            del self.world.subscriptions[name]
        self.world.hear()

    @precondition(lambda self: "crash" in self.happens)
    @rule(remembered=st.booleans())
    def crash(self, remembered: bool) -> None:
        """Everything that is not in a log is lost; what was known of endpoints may have been kept."""
        health = self.world.health.everything()
        self.world.restart()
        if remembered:
            self.world.health.restore(health)
        self.crashed = True

    @precondition(lambda self: "crash" in self.happens)
    @rule(writes=st.integers(0, 12), landing=st.tuples(st.booleans(), st.booleans(), st.booleans()))
    def crash_while_writing(self, writes: int, landing: tuple[bool, ...]) -> None:
        """The process ends after so many more records are in the logs, and before what should come behind them. What
        was sent and not waited for may get there, in some logs."""
        self.world.writes_left, self.world.landing = writes, landing
        self.crashed = True

    @rule(forward_ms=st.sampled_from([3_600_000, 60_000, -1_000, -10_000, -60_000, -3_600_000]))
    @precondition(lambda self: "clock" in self.happens)
    def set_the_clock(self, forward_ms: int) -> None:
        """Somebody sets the clock."""
        self.world.set_clock(forward_ms)
        self.set_ms, self.rows_when_set = self.world.true_ms, len(self.world.attempts)
        self._changed()

    @invariant()
    def nothing_is_lost(self) -> None:
        waiting = {
            (decode_key(key)[0].subscription, record.notification.id)
            for key, value in self.world.log.items()
            if isinstance(record := decode(value), Parked)
        }
        over = {key for key, state in self.world.states().items() if state != "parked"}
        everything = {(name, each) for name, names in self.parked.items() for each in names}
        assert waiting | over == everything
        if not self.crashed:
            assert waiting.isdisjoint(over)
        assert self.world.store.count == len(waiting)
        for name, _ in waiting:
            assert name in self.world.redelivery._lanes, "nobody would look at it again"

    @invariant()
    def what_is_dead_is_kept(self) -> None:
        ended = {
            (row.subscription, row.notification)
            for row in self.world.attempts
            if row.state == "dead" or (row.state == "expired" and not self._over_for_publisher(row.notification))
        }
        kept = [(letter.subscription, letter.notification.id) for letter in self.world.buried]
        assert ended <= set(kept)
        if not self.crashed:
            assert len(kept) == len(ended)

    @invariant()
    def what_has_ended_stays_so(self) -> None:
        if self.crashed:
            return  # it is done again when only its row was written
        over: set[tuple[str, str]] = set()
        for row in self.world.attempts:
            assert (row.subscription, row.notification) not in over
            if row.state != "parked":
                over.add((row.subscription, row.notification))

    @invariant()
    def tries_are_numbered_on(self) -> None:
        if self.crashed:
            return  # what only its row tells of is done again, under the number that it had
        last: dict[str, int] = {}
        for row in filter(lambda row: row.push, self.world.attempts):
            assert row.number >= last.get(row.notification, 0)
            last[row.notification] = row.number

    @invariant()
    def nobody_dies_for_their_companions(self) -> None:
        assert all(row.messages == 1 for row in self.world.attempts if row.state == "dead" and row.status == 400)

    @invariant()
    def nobody_is_given_up_too_early_or_tried_too_often(self) -> None:
        if self.crashed:
            return  # what was under way counts, though nobody knows what came of it
        for row in self.world.attempts:
            counted = row.number - self.world.excused[row.notification]
            if row.subscription == "stubborn":
                assert row.state != "dead" or row.status == 400 or "refuses it" in row.detail
                continue
            if row.state == "dead" and row.status != 400 and "refuses it" not in row.detail:
                assert counted == ATTEMPTS
            assert counted <= ATTEMPTS

    @invariant()
    def each_failure_counts_but_that_of_a_probe_without_an_answer(self) -> None:
        if self.crashed:
            return
        for notification, tries in self._tries().items():
            counted = tries.counted + bool(tries.awaits)
            assert counted == tries.number - self.world.excused[notification]

    @invariant()
    def nobody_is_tried_before_the_time_that_was_promised(self) -> None:
        if self.crashed:
            return
        for arrival in self.world.arrivals[self.checked :]:
            for each in arrival.notifications:
                assert arrival.at_ms < self._end_of(each)
                assert arrival.at_ms >= self._promised(each, arrival.attempt)
        self.checked = len(self.world.arrivals)

    @invariant()
    def no_more_waits_than_may(self) -> None:
        dropped = [row for row in self.world.attempts if row.state == "dropped"]
        assert "limit" in self.happens or not dropped
        assert {(row.error, row.number) for row in dropped} <= {("resources", 0)}
        assert "stubborn" not in {row.subscription for row in dropped}
        if not self.crashed:
            # The oldest go first, but for those that are under way.
            for name in NAMES:
                gone = {row.notification for row in dropped if row.subscription == name}
                assert len(self.world.arrived(name)) == len([e for e in self.world.arrived(name) if e not in gone])

    def _end_of(self, notification: str) -> int:
        end_ms = self.accepted[notification] + LIFESPAN_MS
        return min(end_ms, self.valid.get(notification, end_ms))

    def _over_for_publisher(self, notification: str) -> bool:
        """Whether it is its publisher who ends it, for then nobody wants it back."""
        return self.valid.get(notification, 1 << 62) <= self.accepted[notification] + LIFESPAN_MS

    def _promised(self, notification: str, attempt: int) -> int:
        if attempt == 2 and notification in self.tried:
            true_ms, clock_ms = self.tried[notification]
            return clock_ms + FIRST_WAIT_MS if true_ms > self.set_ms else 0
        rows = self.world.attempts[self.rows_when_set :]
        # Of those of one try the last counts: the word of its receiver, where that had taken it for later.
        promised = {
            row.number: row.next_ms for row in rows if row.notification == notification and row.number < attempt
        }
        return max(promised.values(), default=0)

    @invariant()
    def first_attempts_are_in_order(self) -> None:
        for name in NAMES:
            firsts = [
                each
                for arrival in self.world.arrivals
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
            return  # what was pushed last may come once more
        for name in ("strict", "stubborn"):
            seen = self.world.arrived(name)
            order = {each: index for index, each in enumerate(self.parked[name])}
            assert [order[each] for each in seen] == sorted(order[each] for each in seen)

    @invariant()
    def lanes_with_something_untried_are_held(self) -> None:
        held = self.world.lanes.for_workers()[0]
        for name in NAMES:
            if self.world.store.has_untried(name) or self.world.under_way(name, attempt=1):
                assert name in held

    @invariant()
    def bounds_are_kept(self) -> None:
        assert self.world.most_in_flight <= 3
        assert all(count <= 2 for count in self.world.most_at.values())
        assert self.world.too_much == []

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.writes_left = None
        for name in NAMES:
            if name in self.world.subscriptions:
                self._behave(name, "ok")
                self.pause_or_resume(name, paused=False)
        self.world.suspended_said.clear()
        self.world.suspended_now.clear()
        self.world.redelivery.suspensions_written()
        self.world.hear()
        # Hanging pushes, waits, probes and Retry-After take less together; lifespans take longer.
        self.world.run(120_000)
        self.nothing_is_lost()
        left = [decode_key(key) for key in self.world.log]
        assert (left, self.world.redelivery.lanes, self.world.in_flight) == ([], 0, 0)
        assert self.world.redelivery.next_turn_ms() is None
        assert self.world.lanes.for_workers()[0] == frozenset()

    def _changed(self) -> None:
        self.quiet_ms = self.world.true_ms

    def _park(self, name: str, notification: str, tries: Tries | None, age_ms: int, valid_ms: int) -> None:
        self._changed()
        self.accepted[notification] = self.world.now_ms - age_ms
        if valid_ms:
            self.valid[notification] = self.world.now_ms + valid_ms
        until_ms = self.valid.get(notification, 0)
        self.world.park(
            name,
            notification,
            tries,
            self.accepted[notification],
            valid_until_ms=until_ms,
            priority=self.priority[notification],
        )

    def _nobody_waits_for_nothing(self) -> None:
        """With nothing under way, whatever may be tried has been."""
        world = self.world
        if world.in_flight or world.true_ms - self.set_ms < TOLERANCE_MS:
            return  # a clock that was put back by less than that has to get there again
        for name, subscription in world.subscriptions.items():
            closed = world.health.get(subscription.consumer.address).breaker == "closed"
            if closed and not self._stopped(subscription) and not subscription.policy.strict:
                assert not world.store.has_untried(name)
                assert not world.store.due(name, world.now_ms, 1)

    def _nobody_waits_longer_than_promised(self) -> None:
        """With nothing under way, everyone has been tried when it was promised, counted from the last time that
        somebody set the clock at the latest, and endpoints that do not answer are asked now and then."""
        world = self.world
        if world.in_flight:
            return
        promised = {name: (at_ms, FIRST_WAIT_MS) for name, (at_ms, _) in self.tried.items()}
        for row, (true_ms, clock_ms) in zip(world.attempts, world.decided, strict=True):
            promised[row.notification] = true_ms, max(row.next_ms - clock_ms, 0)
        for subscription, notification in self._waiting():
            endpoint = subscription.consumer.address
            if self._stopped(subscription):
                continue
            asked_ms = [arrival.true_ms for arrival in world.arrivals if arrival.endpoint == endpoint]
            assert world.true_ms - max([self.quiet_ms, *asked_ms]) <= LEFT_ALONE_MS
            if notification in promised and world.health.get(endpoint).breaker == "closed":
                since_ms, wait_ms = promised[notification]
                assert world.true_ms - max(since_ms, self.set_ms) <= wait_ms + TOLERANCE_MS

    def _tries(self) -> dict[str, Tries]:
        """What those that wait have been through, by the log."""
        names: dict[Delivery, str] = {}
        tries: dict[Delivery, Tries] = {}
        for key, value in self.world.log.items():
            delivery, record = decode_key(key)[0], decode(value)
            if isinstance(record, Parked):
                names[delivery] = record.notification.id
                tries.setdefault(delivery, record.tries)
            else:
                tries[delivery] = record.tries
        return {name: tries[delivery] for delivery, name in names.items()}

    def _waiting(self) -> list[tuple[Subscription, str]]:
        """What waits by the log, for subscriptions that are in force."""
        return [
            (self.world.subscriptions[name], record.notification.id)
            for key, value in self.world.log.items()
            if isinstance(record := decode(value), Parked)
            and (name := decode_key(key)[0].subscription) in self.world.subscriptions
        ]

    def _stopped(self, subscription: Subscription) -> bool:
        """Whether nothing is to be tried for it."""
        return subscription.paused or subscription.id in self.world.suspended_now | self.world.suspended_said.keys()

    def _nothing_is_too_old(self) -> None:
        """Lifespans run on for everybody, whatever else they wait for; with a push under way, once that has ended."""
        if self.world.true_ms - self.set_ms < TOLERANCE_MS:
            return  # a clock that was put back by less than that has to get there again
        for lane in self.world.redelivery._lanes.values():
            old_ms = self.world.now_ms - LIFESPAN_MS
            if self.world.true_ms - self.set_ms < TOLERANCE_MS:
                continue  # a clock that was put back by less than that has to get there again
            if lane.flight:
                old_ms -= 20_000
                if self.world.true_ms - self.set_ms < 20_000:
                    continue
            assert self.world.store.accepted_before(lane.name, old_ms, 1, lane.flight) == []
            assert self.world.store.valid_until(lane.name, old_ms + LIFESPAN_MS, 1, lane.flight) == []

    def _nothing_is_too_much(self) -> None:
        if "limit" in self.happens and self.world.true_ms - self.set_ms >= TOLERANCE_MS:
            for lane in self.world.redelivery._lanes.values():
                untried = [
                    each for each in self.world.store.untried(lane.name, 1_000) if each.delivery not in lane.flight
                ]
                count = len(self.world.store.accepted_before(lane.name, 1 << 62, 1_000))
                assert not untried or count <= LIMIT or lane.name == "stubborn"

    def _behave(self, name: str, how: str) -> None:
        self._set(name, lambda ids: ANSWERS[how], TAKES_MS.get(how, 10))

    def _set(self, name: str, answer: object, takes_ms: int) -> None:
        subscription = self.world.subscriptions.get(name)
        if subscription is not None:
            self.world.endpoints[subscription.consumer.address] = FakeEndpoint(answer, takes_ms)  # type: ignore[arg-type]


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=3 * settings().max_examples,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
