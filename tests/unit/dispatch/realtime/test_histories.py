"""Histories of the real-time mode: two tasks, the redelivery and the driver, with simulated time and endpoints, crashes
and any order of writes and reads of the logs. Kafka, Spark and sockets are simulated, all decisions are the product's.

Invariants: first attempts of each subscription keep the order of each partition, for each priority; in a strict
subscription each waits for the one before it, of any partition and priority. Over a link each partition arrives in
order, repetitions aside. Nothing is pushed after its validity. A minimum interval passes the same messages as without a
crash. Timely messages are never parked, nor pushed after newer ones; reliable ones are as those of other subscriptions.
At the end, with healthy endpoints and all logs read, everything is delivered. Rare histories follow the random ones.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from arborcast.dispatch.delivery.envelope import ATTEMPT_HEADER, SUBSCRIPTION_HEADER
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult
from arborcast.dispatch.hot import task as partition_task
from arborcast.dispatch.hot.intake import Exclusions
from arborcast.dispatch.hot.intervals import encoded, fold
from arborcast.dispatch.hot.recovered import NOTHING, RecoveredDeliveries
from arborcast.dispatch.logs import attempts, parked
from arborcast.dispatch.logs.attempts import RUN_NUMBERS, WRITE_S, Attempt, Evaluation
from arborcast.dispatch.logs.parked import Parked
from arborcast.dispatch.realtime import task
from arborcast.dispatch.realtime.driver import exclusion_changes
from arborcast.dispatch.realtime.messages import WorkerProgress, WorkerUpdate
from arborcast.dispatch.realtime.task import RealtimeJob
from arborcast.topic_model.records import notifications, results
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.routing import Found
from arborcast.topic_model.topics import TopicPath
from tests.support.fake_producer import Sent
from tests.support.realtime_setup import PUSH, RETRY, SETTINGS, Running
from tests.support.redelivery_setup import OK, REFUSED, FakeEndpoint, Setup, ids_of

NAMES = ("plain", "together", "strict", "link", "sparse", "timely", "timely-together")
TIMELY = NAMES[5:]
# Events that end a worker: a crash, its death (which the driver notices with the next crash), a cut connection.
EVENTS = ("crash", "death", "cut")
INTERVAL_MS = 15_000
PARTITIONS = (0, 1)
ANSWERS = {
    "ok": OK,
    "broken": PushResult(500),
    "refused": REFUSED,
    "wrong": PushResult(400),
    "hanging": PushResult(0, "timeout", "no answer", duration_s=1.0),
}


class Histories(RuleBasedStateMachine):
    """One engine, seven subscriptions at separate endpoints, two partitions."""

    @initialize(kinds=st.sets(st.sampled_from(EVENTS)))
    def begin(self, kinds: Collection[str] = EVENTS) -> None:
        # A history has a part of the events: workers that often die push little.
        self.kinds = kinds
        self.setup = Setup(retry=RETRY, push=PUSH, now_ms=int(time.time() * 1000))
        self._patch = pytest.MonkeyPatch()
        clock = SimpleNamespace(time=lambda: self.setup.now_ms / 1000, monotonic=self.monotonic)
        self._patch.setattr(partition_task, "time", clock)
        self._patch.setattr(task, "clock_of", lambda here: clock.time)
        self.setup.subscribe("plain", form="raw")
        self.setup.subscribe("together", form="notify")
        self.setup.subscribe("strict", form="raw", order="strict")
        self.setup.link("link")
        self.known_there: dict[int, list[int]] = {partition: [] for partition in PARTITIONS}
        self.behave("link", "ok")
        self.setup.subscribe("sparse", form="raw", interval_ms=INTERVAL_MS)
        self.evaluations: list[Evaluation] = []
        self.passing: dict[int, list[int]] = {partition: [] for partition in PARTITIONS}
        self.passes: set[str] = set()
        self.setup.subscribe("timely", form="raw", reliability="timely")
        self.setup.subscribe("timely-together", endpoint="timely-together", form="notify", reliability="timely")
        self.reliable: set[str] = set()
        self.accepted: dict[int, list[bytes]] = {partition: [] for partition in PARTITIONS}
        self.place: dict[str, tuple[int, int]] = {}
        self.parked: list[tuple[bytes, bytes, int]] = []
        self.read_to = 0
        self.rows: list[Attempt] = []
        self.known: dict[int, WorkerProgress] = {}
        self.strict: list[str] = []
        self.valid: dict[str, int] = {}  # the ends of validities
        self.late: list[str] = []
        self.priority: dict[str, int] = {}
        self.began: dict[tuple[str, int, int], list[int]] = {}  # by subscription, partition and priority
        self.attempted: set[tuple[str, str]] = set()  # also before a crash, without a row
        self.arrivals_seen = 0
        self.run_number = 0
        self.tasks: list[Running] = []
        self.published = Exclusions()
        self._start(dict.fromkeys(PARTITIONS, 0), NOTHING)

    # Used by the parts

    def monotonic(self) -> float:
        return self.setup.now_ms / 1000

    def of(self, notification: Notification) -> Found:
        return Found([self.setup.subscriptions[name] for name in NAMES], [])

    def write(self, progress: WorkerProgress) -> None:
        if progress.is_newer_than(self.known.get(progress.partition)):
            self.known[progress.partition] = progress
        for endpoint, sign in progress.signs:
            self.setup.health.note(endpoint, sign, self.setup.now_ms)

    def is_late(self) -> bool:
        return False

    def settle(self, timeout_s: float) -> None:
        pass

    def written(self, record: Sent) -> int:
        """A record of a worker is stored in its log; returns its offset."""
        if record.topic.endswith("parked"):
            self.parked.append((record.key, record.value, self.setup.write(record.key, record.value)))
            return len(self.parked) - 1
        if record.topic.endswith("results"):
            self.setup.redelivery.reported(results.decode(record.value))
        if record.topic.endswith("attempts"):
            read = attempts.decode(record.value)
            self.rows += read.attempts
            self.evaluations += [read.evaluation] if read.evaluation is not None else []
        return 0

    def seen(self, request: PushRequest) -> None:
        headers = dict(request.headers)
        name = headers[SUBSCRIPTION_HEADER]
        ids, attempt = ids_of(request), int(headers[ATTEMPT_HEADER])
        partitions = {self.place[each][0] for each in ids}
        beside = [each for each in self.setup.pushes_in_flight(name, attempt=1) if self.place[each][0] in partitions]
        assert not beside, f"{name} is pushed {ids} during a push of {beside} by the redelivery"
        self._note(headers[SUBSCRIPTION_HEADER], ids, attempt, self.setup.now_ms)

    # Events

    @rule(
        partition=st.sampled_from(PARTITIONS),
        count=st.integers(1, 4),
        valid_ms=st.sampled_from((0, 0, 0, 1, 500, 5_000)),
        priorities=st.lists(st.sampled_from((-100, 0, 0, 5)), min_size=4, max_size=4),
        reliable=st.booleans(),
    )
    def accept(
        self,
        partition: int,
        count: int,
        valid_ms: int = 0,
        priorities: Sequence[int] = (0, 0, 0, 0),
        reliable: bool = False,
    ) -> None:
        """Notifications are accepted, some with a validity, some reliable."""
        for priority in priorities[:count]:
            offset = len(self.accepted[partition])
            name, now_ms = f"{partition}-{offset}", self.setup.now_ms
            until_ms = now_ms + valid_ms if valid_ms else 0
            notification = Notification(
                name, TopicPath("a"), b"<x/>", now_ms, valid_until_ms=until_ms, priority=priority, reliable=reliable
            )
            self.priority[name] = priority
            if reliable:
                self.reliable.add(name)
            if valid_ms:
                self.valid[name] = until_ms
            if not self.passing[partition] or now_ms >= self.passing[partition][-1] + INTERVAL_MS:
                self.passing[partition].append(now_ms)
                self.passes.add(name)
            value = notifications.encode(notification)[1]
            self.accepted[partition].append(value)
            self.place[notification.id] = partition, offset
            self.tasks[partition].rows.append((value, partition, offset))

    @rule(partition=st.sampled_from(PARTITIONS), times=st.integers(1, 3))
    def step(self, partition: int, times: int) -> None:
        """A task runs some rounds."""
        for _ in range(times):
            self.tasks[partition].step()

    @precondition(lambda self: {"crash", "death"} <= {*self.kinds})
    @rule(partition=st.sampled_from(PARTITIONS), landing=st.integers(0, 4))
    def end_worker(self, partition: int, landing: int) -> None:
        """A worker on another host has exited, unnoticed; some of its last records are in the logs."""
        for producer in self.tasks[partition].producers:
            producer.take(landing)
        self.tasks[partition].end()

    @precondition(lambda self: {"crash", "cut"} <= {*self.kinds})
    @rule(partition=st.sampled_from(PARTITIONS))
    def cut_off(self, partition: int) -> None:
        """A worker on another host no longer reads messages of the driver, and continues while its lease lasts, though
        its run has ended. It ends with `crash`."""
        self.tasks[partition].reads_feed = False

    @rule(partition=st.sampled_from(PARTITIONS), which=st.integers(0, 3))
    def answer(self, partition: int, which: int) -> None:
        """A push of a task is answered."""
        self.tasks[partition].wire.answer(which)

    @rule(partition=st.sampled_from(PARTITIONS), count=st.integers(1, 6))
    def acknowledge(self, partition: int, count: int) -> None:
        """Kafka acknowledges some records of a worker."""
        for producer in self.tasks[partition].producers:
            producer.take(count)

    @rule(partition=st.sampled_from(PARTITIONS))
    def settle_all(self, partition: int) -> None:
        """A task has settled all its notifications and reported it."""
        for _ in range(4):
            self.step(partition, 1)
            self.tasks[partition].wire.drive(1)
            self.acknowledge(partition, 1_000)
            self.pass_time(300)

    @rule(count=st.integers(1, 6))
    def read(self, count: int) -> None:
        """The redelivery reads some parked records."""
        self._read(self.read_to + count)

    @rule()
    def feed(self) -> None:
        """The driver sends the exclusions to the workers."""
        held, read = self.setup.lanes.for_workers()
        health, now_ms = self.setup.health, self.setup.now_ms
        on_trial = health.on_trial(now_ms, patient=True)
        now = Exclusions(held, read, health.degraded(), health.watched(), on_trial=on_trial)
        for each in exclusion_changes(self.published, now):
            for running in self.tasks:
                if running.reads_feed:
                    running.messages.append(WorkerUpdate(self.run_number, 0, 0, 0, exclusions=each))
        self.published = now

    @rule(for_ms=st.sampled_from([1, 50, 300, 1_500, 20_000]))
    def pass_time(self, for_ms: int) -> None:
        """Time passes; the redelivery works."""
        while for_ms > 0:
            # In small steps of the length of a worker's push timeout.
            step_ms = min(for_ms, 500) if any(running.wire.in_flight for running in self.tasks) else for_ms
            self.setup.run(step_ms)
            for_ms -= step_ms
            for running in self.tasks:
                running.wire.time_out()
            self._note_redelivered()

    @rule(name=st.sampled_from(NAMES), how=st.sampled_from(sorted(ANSWERS)), takes_ms=st.sampled_from([10, 900]))
    def behave(self, name: str, how: str, takes_ms: int = 10) -> None:
        """An endpoint gives this answer from now on."""
        endpoint = FakeEndpoint(lambda ids: self._answered(name, how, ids), takes_ms)
        self.setup.endpoints[self.setup.subscriptions[name].consumer.address] = endpoint

    @precondition(lambda self: "crash" in self.kinds)
    @rule(landing=st.integers(0, 4), driver=st.booleans())
    def crash(self, landing: int, driver: bool) -> None:
        """The workers exit, perhaps with the driver; some of their last records are in the logs."""
        for producer in itertools.chain.from_iterable(running.producers for running in self.tasks):
            producer.take(landing)
        if driver:
            self.setup.restart()
            self.read_to = len(self.parked)
            self.setup.lanes.applied(0, self.read_to)
        self._read(len(self.parked))
        positions = {partition: self.known[partition].position for partition in PARTITIONS}
        since = min(each.since for each in self.known.values())
        rows = [*(row for row in self.rows if row.batch >= since), *self.setup.attempts]
        settled = frozenset((row.subscription, row.notification) for row in rows)
        for (name, partition, _), offsets in self.began.items():
            if name in TIMELY:
                # A message pushed without a row may be past its validity; then the messages dropped for it are not
                # repeated. Reliable messages without an end are repeated, even after one of those.
                numbered = [(each, f"{partition}-{each}") for each in offsets]
                unsure = [
                    each
                    for each, one in numbered
                    if (name, one) not in settled and (self._drops(name, one) or one in self.valid)
                ]
                first = min(unsure, default=len(self.accepted[partition]))
                offsets[:] = [each for each, one in numbered if (name, one) in settled or each < first]
        self._start(positions, RecoveredDeliveries.of(settled, self._behind(positions), since), since)

    @invariant()
    def first_attempts_are_in_order(self) -> None:
        for (name, partition, priority), offsets in self.began.items():
            assert offsets == sorted(offsets), f"{name}, partition {partition}, priority {priority}: {offsets}"

    @invariant()
    def strict_ones_follow_each_other(self) -> None:
        assert len(set(self.strict)) == len(self.strict), f"pushed before the previous one was settled: {self.strict}"

    @invariant()
    def the_other_engine_has_all_in_the_order_of_acceptance(self) -> None:
        for partition, offsets in self.known_there.items():
            assert offsets == sorted(offsets), f"link, partition {partition}: {offsets}"

    @invariant()
    def nothing_is_pushed_after_its_validity(self) -> None:
        assert self.late == []

    @invariant()
    def omitted_messages_have_no_row(self) -> None:
        assert {row.notification for row in self._all_rows() if row.subscription == "sparse"} <= self.passes

    @invariant()
    def only_messages_with_a_validity_expire(self) -> None:
        assert {row.notification for row in self._all_rows() if row.state == "expired"} <= self.valid.keys()
        assert not [letter for letter in self.setup.buried if letter.state == "expired"]

    @invariant()
    def timely_messages_never_wait(self) -> None:
        rows = [row for row in self._all_rows() if self._drops(row.subscription, row.notification)]
        assert {row.state for row in rows} <= {"delivered", "dropped", "expired"}
        assert {row.error for row in rows if row.state == "dropped"} <= {"timely"}
        dropped = {(row.subscription, row.notification) for row in self.rows if row.state == "dropped"}
        assert all(self._drops(*each) for each in dropped)
        for key, value in self.setup.log.items():
            record = parked.decode(value)
            if isinstance(record, Parked):
                assert not self._drops(parked.decode_key(key)[0].subscription, record.notification.id)

    def _all_rows(self) -> list[Attempt]:
        return [*self.rows, *self.setup.attempts]

    def _drops(self, name: str, notification: str) -> bool:
        return name in TIMELY and notification not in self.reliable

    def teardown(self) -> None:
        if not hasattr(self, "tasks"):
            return
        try:
            if not all(running.alive and running.reads_feed for running in self.tasks):
                self.crash(landing=1, driver=False)  # the end of a worker is noticed
            for name in NAMES:
                self.behave(name, "ok")
            wanted = {(name, each) for name in NAMES for each in self.place if name != "sparse" or each in self.passes}
            for _ in range(100 + 3 * len(self.place)):
                self._run_round()
                if not wanted - self._over() and not self.setup.log:
                    break
            self.first_attempts_are_in_order()
            self.strict_ones_follow_each_other()
            self.the_other_engine_has_all_in_the_order_of_acceptance()
            assert not wanted - self._over()
            assert not self.setup.log, "messages are still parked"
            self._timely_ones_get_what_comes()
        finally:
            self._patch.undo()

    def _run_round(self) -> None:
        for partition in PARTITIONS:
            self.step(partition, 3)
            self.tasks[partition].wire.drive(1)
            self.acknowledge(partition, 1_000)
        self._read(len(self.parked))
        self.feed()
        self.pass_time(1_500)

    def _timely_ones_get_what_comes(self) -> None:
        """No waiting message of timely subscriptions could reveal the recovery of their endpoints."""
        for _ in range(3):
            self.pass_time(600_000)
            self.feed()
            self.accept(partition=0, count=1)
            newest = f"0-{len(self.accepted[0]) - 1}"
            for _ in range(5):
                self._run_round()
        states = {(row.subscription, row.notification): row.state for row in self.rows}
        assert [states.get((name, newest)) for name in TIMELY] == ["delivered"] * len(TIMELY)

    def _over(self) -> set[tuple[str, str]]:
        return {(row.subscription, row.notification) for row in self._all_rows() if row.state in attempts.FINAL}

    def _answered(self, name: str, how: str, ids: tuple[str, ...]) -> PushResult:
        """The other engine drops repetitions. It may have taken a message without an answer in time; it never takes
        a single message that it refuses."""
        if name == "link" and (how in ("ok", "hanging") or (how == "wrong" and len(ids) == 1)):
            for each in ids:
                partition, offset = self.place[each]
                if offset not in self.known_there[partition]:
                    self.known_there[partition].append(offset)
        return ANSWERS[how]

    def _start(self, positions: Mapping[int, int], before: RecoveredDeliveries, since: int = -1) -> None:
        self.run_number += RUN_NUMBERS
        run = self.run_number
        again = {partition: len(self.accepted[partition]) for partition in PARTITIONS}
        for partition, position in positions.items():
            self.known[partition] = WorkerProgress(run, partition, position, run if since < 0 else since, task=-1)
        known = cast(Any, SimpleNamespace(value=before))
        passed: dict[int, dict[tuple[str, str], int]] = {}
        fold(passed, self.evaluations, positions, {"sparse": self.setup.subscriptions["sparse"].policy})
        job = RealtimeJob(
            settings=SETTINGS,
            number=run,
            recovered=known,
            passed=encoded(passed),
            began_s=self.setup.now_ms / 1000,
            again=again if since >= 0 else {},
            since=since,
        )
        self.tasks = [Running(self, job, partition, positions[partition]) for partition in PARTITIONS]
        self.published = Exclusions()
        self.feed()
        for running in self.tasks:
            running.messages.append(WorkerUpdate(run, 0, 0, 0))

    def _behind(self, positions: Mapping[int, int]) -> Iterator[tuple[str, str, parked.Place]]:
        for key, value in self.setup.log.items():
            delivery, is_tries = parked.decode_key(key)
            if is_tries or delivery.place.offset < positions[delivery.place.partition]:
                continue
            record = parked.decode(value)
            assert isinstance(record, Parked)
            yield delivery.subscription, record.notification.id, delivery.place

    def _read(self, to: int) -> None:
        for record in self.parked[self.read_to : to]:
            lane = self.setup.store.apply(*record)
            if lane is not None:
                self.setup.redelivery.found(lane)
        self.read_to = max(self.read_to, min(to, len(self.parked)))
        self.setup.lanes.applied(0, self.read_to)

    def _note_redelivered(self) -> None:
        for arrival in self.setup.arrivals[self.arrivals_seen :]:
            for partition in {self.place[each][0] for each in arrival.notifications if arrival.attempt == 1}:
                running, name = self.tasks[partition], arrival.subscription
                # A timely message is dropped when its push takes long, and does not delay later ones.
                beside = running.awaited(name) if name in TIMELY else running.wire.pushes(name)
                assert not beside, f"{arrival.notifications} could overtake {beside}"
            self._note(arrival.subscription, arrival.notifications, arrival.attempt, arrival.at_ms)
        self.arrivals_seen = len(self.setup.arrivals)

    def _note(self, name: str, ids: tuple[str, ...], attempt: int, at_ms: int) -> None:
        self.late += [each for each in ids if at_ms >= self.valid.get(each, at_ms + 1)]
        if name == "strict" and self.strict[-1:] != list(ids):
            self.strict += ids
        if attempt != 1:
            return
        for each in ids:
            partition, offset = self.place[each]
            # Timely messages keep the order at any priority, as strict ones do.
            priority = 0 if name in ("strict", "link") or self._drops(name, each) else self.priority[each]
            offsets = self.began.setdefault((name, partition, priority), [])
            repeated = (name, each) in self.attempted and not self._drops(name, each)
            self.attempted.add((name, each))
            if offset not in offsets and not repeated:
                offsets.append(offset)


Histories.TestCase.settings = settings(stateful_step_count=100, deadline=None)
TestHistories = Histories.TestCase


@pytest.fixture
def state() -> Histories:
    begun = Histories()
    begun.begin()
    return begun


def test_a_push_at_a_crash_is_not_overtaken_by_a_parked_delivery(state: Histories) -> None:
    state.behave(name="strict", how="ok", takes_ms=900)
    for partition in PARTITIONS:
        state.accept(partition=partition, count=1)
        state.step(partition=partition, times=1)
    state.acknowledge(partition=1, count=6)
    state.read(count=6)
    state.pass_time(for_ms=1)
    assert state.strict == ["1-0"]
    state.crash(landing=4, driver=True)
    state.pass_time(for_ms=20_000)
    assert state.strict == ["1-0", "0-0"]
    state.teardown()


def test_priorities_in_both_paths_and_order_of_strict(state: Histories, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived: dict[str, list[str]] = {name: [] for name in NAMES}

    def note(name: str, ids: tuple[str, ...], attempt: int, at_ms: int) -> None:
        arrived[name] += ids

    monkeypatch.setattr(state, "_note", note)
    state.accept(partition=0, count=4, priorities=(0, 0, 5, 7))
    state.step(partition=0, times=1)
    state.acknowledge(partition=0, count=6)
    state.read(count=6)
    for _ in range(20):
        state.answer(partition=0, which=0)
        state.step(partition=0, times=1)
        state.pass_time(for_ms=50)
    assert arrived["plain"] == ["0-3", "0-2", "0-0", "0-1"]
    assert arrived["together"] == ["0-3", "0-2", "0-0", "0-1"]
    assert arrived["strict"] == ["0-0", "0-1", "0-2", "0-3"]

    # Then the endpoints refuse: messages are parked, and pushed by the redelivery.
    for name in NAMES:
        state.behave(name, "refused")
    state.accept(partition=0, count=1)
    for _ in NAMES:
        state.step(partition=0, times=1)
        state.answer(partition=0, which=0)
    state.accept(partition=0, count=4, priorities=(-100, 0, 5, 0))
    state.teardown()
    for name in ("plain", "together"):
        assert list(dict.fromkeys(arrived[name]))[4:9] == ["0-4", "0-7", "0-6", "0-8", "0-5"]


def test_an_interval_after_a_crash(state: Histories) -> None:
    state.accept(partition=0, count=1)
    state.settle_all(partition=0)
    assert state.known[0].position == 1
    state.accept(partition=0, count=2)
    state.crash(landing=4, driver=True)
    assert state.passes == {"0-0"}
    state.teardown()
    assert [each for each in state.began["sparse", 0, 0] if each < 3] == [0]


def test_a_stop_within_the_range_of_an_earlier_run_is_unclean(state: Histories) -> None:
    for _ in range(60):
        state.accept(partition=0, count=4)
    first = state.run_number
    state.step(partition=0, times=1)
    state.crash(landing=1, driver=False)
    state.step(partition=0, times=1)
    state.tasks[0].messages.append(WorkerUpdate(state.run_number, 0, 0, 0, stop=True))
    state.step(partition=0, times=1)
    known = state.known[0]
    assert 0 < known.position < 240
    assert (known.clean, known.since) == (False, first), "the first run may have rows behind the position"
    state.crash(landing=1, driver=False)
    state.settle_all(partition=0)
    state.tasks[0].messages.append(WorkerUpdate(state.run_number, 0, 0, 0, stop=True))
    state.step(partition=0, times=1)
    assert (state.known[0].position, state.known[0].clean) == (240, True)
    state.crash(landing=1, driver=False)
    state.teardown()


def test_a_task_rests_until_its_rows_are_due(state: Histories) -> None:
    """A delivery that ended more than a tenth of a second before a crash has its row."""
    state.accept(partition=0, count=1)
    state.settle_all(partition=0)
    running = state.tasks[0]
    state.accept(partition=0, count=1)
    running.task.step(cast(Any, running.rows))
    state.acknowledge(partition=0, count=100)
    while running.task._link.pending:
        state.pass_time(for_ms=20)
        running.task.step(cast(Any, running.rows))
        state.acknowledge(partition=0, count=100)
    written = len(state.rows)
    running.wire.answer(0)
    rests_s = running.task.step(cast(Any, running.rows))
    assert len(state.rows) == written
    assert rests_s <= WRITE_S
    state.pass_time(for_ms=int(WRITE_S * 1000))
    running.task.step(cast(Any, running.rows))
    state.acknowledge(partition=0, count=100)
    assert len(state.rows) > written
    state.teardown()


def test_nothing_is_lost_by_a_late_detection_of_a_dead_worker(state: Histories) -> None:
    for partition in PARTITIONS:
        state.accept(partition=partition, count=2)
        state.step(partition=partition, times=1)
    state.end_worker(partition=0, landing=1)
    state.cut_off(partition=1)
    state.behave(name="plain", how="broken")
    for partition in PARTITIONS:
        state.accept(partition=partition, count=2)
        state.settle_all(partition=partition)
        state.feed()
    assert state.known[0].position == 0
    state.crash(landing=2, driver=False)
    state.teardown()
    for partition in PARTITIONS:
        assert state.began["plain", partition, 0][:4] == [0, 1, 2, 3]


def test_a_steady_flow_leaves_the_redelivery_after_a_failure(state: Histories) -> None:
    state.behave(name="plain", how="refused")
    state.accept(partition=0, count=3)
    state.step(partition=0, times=1)
    state.answer(partition=0, which=0)
    state.behave(name="plain", how="ok")
    for _ in range(200):
        # At each update of the driver a delivery waits that the redelivery has not tried.
        state.accept(partition=0, count=1)
        for _ in NAMES:
            state.step(partition=0, times=1)
            state.answer(partition=0, which=0)
        state.acknowledge(partition=0, count=1_000)
        state.read(count=1_000)
        state.feed()
        state.pass_time(for_ms=50)
    was_parked = {row.notification for row in state.rows if row.subscription == "plain" and row.state == "parked"}
    assert "0-2" in was_parked
    assert not was_parked & {f"0-{offset}" for offset in range(190, 203)}
    state.teardown()


def test_the_bytes_of_a_task_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading continues after the oldest are settled."""
    monkeypatch.setattr(partition_task, "_SMALL", 0)
    monkeypatch.setattr(task, "_MOST_BYTES", 400)
    state = Histories()
    state.begin()
    for _ in range(5):
        state.accept(partition=0, count=4)
    size = len(state.accepted[0][0])
    state.step(partition=0, times=3)
    assert len(state.tasks[0].rows) == 20 - -(-400 // size), "the rows up to the limit, and none is settled"
    for _ in range(40):
        state.settle_all(partition=0)
        state.read(count=6)
        state.feed()
    assert not state.tasks[0].rows
    state.teardown()
