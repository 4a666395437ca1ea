from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import chain, repeat
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import SaslAuthenticationFailedError, TopicAuthorizationFailedError

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog import consumer, follower
from arborcast.core.eventlog.client import TopicPartition, as_infrastructure_error
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.fence import clock
from arborcast.core.settings import KafkaSettings
from arborcast.ingest.operations.publishing import PublishRequest, publish
from arborcast.ingest.state import log_view
from arborcast.ingest.state.changes import ControlChanges, GatewayPositions, KeyedLocks, LogEnd
from arborcast.ingest.state.log_view import ControlLogView, LoggedState
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.records.control import ControlRecord, TopicRecord, encode
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.topics import TopicPath
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts
from tests.support.listed_logs import Listed, ListedConsumer
from tests.support.make import notification


async def test_keyed_locks() -> None:
    locks, order = KeyedLocks(), list[str]()

    async def work(key: str, name: str) -> None:
        async with locks.hold(key):
            order.append(f"{name} begins")
            await asyncio.sleep(0)
            order.append(f"{name} ends")

    await asyncio.gather(work("k", "first"), work("k", "second"), work("other", "third"))
    assert order.index("first ends") < order.index("second begins")
    assert order.index("third begins") < order.index("first ends")
    assert not locks._locks
    # A holder and a waiter are cancelled.
    tasks = [asyncio.create_task(work("k", name)) for name in ("holder", "waiter")]
    await asyncio.sleep(0)
    assert "k" in locks
    while tasks:
        tasks.pop().cancel()
        await asyncio.sleep(0)
    gc.collect()
    assert "k" not in locks


async def test_an_error_of_end_offset_is_raised_in_all_waiters(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [OSError("the connection is lost"), {TopicPartition("arborcast.control", 0): 7}]
    kafka = Mock(**{"partitions_for_topic.return_value": {0}, "end_offsets.side_effect": answers})
    monkeypatch.setattr(consumer, "make_consumer", lambda *_, **__: kafka)
    end = LogEnd(KafkaSettings(), "control")
    failed = await asyncio.gather(end.end_offset(), end.end_offset(), return_exceptions=True)
    assert [type(each) for each in failed] == [InfrastructureError] * 2
    assert await end.end_offset() == 7
    end.close()


class LateView:
    """The commits of one of two gateways. Its view ends with its last commit."""

    append_s = 10.0

    def __init__(self, log: list[ControlRecord], table: RoutingTable, turns: list[int]) -> None:
        self._log, self._table, self._turns = log, table, turns

    async def catch_up(self) -> None:
        self.read(len(self._log))

    async def keep_up(self) -> None:
        await self.catch_up()

    async def commit(self, records: Sequence[ControlRecord]) -> int:
        await self._others_run()
        first = len(self._log)
        self._log += records
        await self._others_run()
        self.read(first + len(records))
        return first

    def read(self, end: int) -> None:
        for offset in range(self._table.position, end):
            self._table.apply(self._log[offset], offset)

    async def _others_run(self) -> None:
        for _ in range(self._turns.pop() if self._turns else 0):
            await asyncio.sleep(0)


NAMES = st.sampled_from(["t:a", "t:a/b", "t:c", "t:d/e"])


@given(
    st.lists(st.tuples(st.booleans(), st.lists(NAMES, min_size=1, max_size=3)), min_size=1, max_size=12),
    st.lists(st.integers(0, 5), max_size=20),
)
def test_two_gateways_add_equal_topics_concurrently(notifies: list[tuple[bool, list[str]]], turns: list[int]) -> None:
    log, pair = list[ControlRecord](), (GatewayParts(), GatewayParts())
    views = [LateView(log, parts.table, turns) for parts in pair]
    for parts, view in zip(pair, views, strict=True):
        parts.gateway.changes = view

    async def scenario() -> None:
        bodies = [(pair[second], soap.envelope(soap.notify(*map(soap.message, names)))) for second, names in notifies]
        requests = [parts.request("POST", "/wsn/NotificationBroker", body) for parts, body in bodies]
        assert {answer.status for answer in await asyncio.gather(*requests)} == {202}
        for view in views:
            await view.catch_up()

    asyncio.run(scenario())
    first, second = ({path: parts.table.topics.get(path) for path in parts.table.topics.paths()} for parts in pair)
    assert first == second
    assert set(first) == {f"{{urn:t}}{name.removeprefix('t:')}" for _, names in notifies for name in names}
    begins: dict[str, int] = {}
    for offset, record in enumerate(log):
        assert isinstance(record, TopicRecord)
        begins.setdefault(record.path, offset)
    for parts in pair:
        # The topic's record is before the position of its notifications.
        assert all(begins[one.topic] < one.control for one in parts.notifications.accepted)


def test_a_view_stops_before_it_is_connected() -> None:
    view = ControlLogView(KafkaSettings(), ControlView(), lambda error: pytest.fail(str(error)))
    asyncio.run(view.stop())


def record_at(offset: int) -> Listed:
    return Listed(*encode(TopicRecord(TopicPath("t"))), offset)


async def test_a_view_ends_where_unread_records_were_compacted_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends of subscriptions may have been among them."""
    records = [record_at(2), record_at(5)]
    monkeypatch.setattr(follower, "LogConsumer", lambda *_, **__: ListedConsumer("control", records))
    failed = asyncio.get_running_loop().create_future()
    view = ControlLogView(KafkaSettings(), ControlView(), failed.set_result)
    view.start()
    await view.until_caught_up()
    records.append(record_at(6))
    await view.wait_applied(6, 60.0)
    records.append(record_at(9))
    error = await asyncio.wait_for(failed, 60.0)
    assert "from 7 to 8 of the control log" in str(error)
    await view.stop()


@pytest.mark.parametrize("refusal", [TopicAuthorizationFailedError, SaslAuthenticationFailedError])
async def test_a_view_reads_on_when_a_missing_right_or_user_of_kafka_is_added(
    monkeypatch: pytest.MonkeyPatch, refusal: type[Exception]
) -> None:
    log, refused = ListedConsumer("control", [record_at(2)]), as_infrastructure_error("cannot be read", refusal())
    monkeypatch.setattr(log, "ends", Mock(side_effect=chain([refused], repeat({0: 3}))))
    monkeypatch.setattr(follower, "LogConsumer", lambda *_, **__: log)
    failed: list[Exception] = []
    view = ControlLogView(KafkaSettings(), ControlView(), failed.append)
    view.start()
    await asyncio.wait_for(view.until_caught_up(), 60.0)
    assert (failed, view.failures) == ([], 1)
    await view.stop()


class Worker:
    """The view and the changes of one of two workers. The log ends at `end`; requests for that are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, sole: bool) -> None:
        self.end = self.requests = 0
        memory = memoryview(bytearray(GatewayPositions.size(2)))
        own, self.sibling = GatewayPositions(memory, 0), GatewayPositions(memory, 1)
        own.is_sole_until(clock() + 3600 if sole else 0)
        kafka = KafkaSettings()
        self._view = ControlLogView(kafka, ControlView(), lambda error: pytest.fail(str(error)), moved=own.moved)
        monkeypatch.setattr(self._view, "_loop", asyncio.get_running_loop(), raising=False)
        self.changes = ControlChanges(kafka, ControlLog(kafka), self._view, own)
        monkeypatch.setattr(self.changes._end, "end_offset", self._end)

    def apply(self) -> None:
        """Applies one more record."""
        position = self._view.applied
        self._view._apply([(TopicRecord(TopicPath(f"t{position}")), position)], position + 1, threading.Event())

    async def _end(self) -> int:
        self.requests += 1
        await asyncio.sleep(0)
        return self.end


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("sole", [True, False])
async def test_acknowledged_changes_of_others_are_applied_first(monkeypatch: pytest.MonkeyPatch, sole: bool) -> None:
    worker = Worker(monkeypatch, sole=sole)
    worker.apply()
    worker.sibling.moved(1)
    if sole:
        await worker.changes.keep_up()
        worker.sibling.moved(3)
    worker.end = 3
    waiting = [asyncio.create_task(worker.changes.keep_up()) for _ in range(100)]
    await turns()
    worker.apply()
    await turns()
    assert not any(each.done() for each in waiting)
    worker.apply()
    await asyncio.gather(*waiting)
    assert worker.requests == (not sole), "none for a sole gateway, otherwise a shared one"


@pytest.mark.parametrize("sole", [True, False])
async def test_requests_continue_in_order(monkeypatch: pytest.MonkeyPatch, sole: bool) -> None:
    worker = Worker(monkeypatch, sole=sole)
    worker.end = 1
    worker.sibling.moved(1)
    order: list[int] = []

    async def request(number: int) -> None:
        await worker.changes.keep_up()
        order.append(number)

    first = [asyncio.create_task(request(number)) for number in range(3)]
    await turns()
    first[1].cancel()
    # In the same turn of the loop the view advances and another request arrives.
    asyncio.get_running_loop().call_soon(worker.apply)
    later = []
    for number in range(3, 12):
        later.append(asyncio.create_task(request(number)))
        await asyncio.sleep(0)
    await asyncio.gather(*first, *later, return_exceptions=True)
    assert order == [0, 2, *range(3, 12)]


async def test_a_notification_has_the_position_of_acknowledged_changes(
    parts: GatewayParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts.table.apply(TopicRecord(TopicPath("a")), 0)
    request = PublishRequest([notification("n", "a")], None)

    async def keep_up() -> None:
        parts.table.apply(TopicRecord(TopicPath("b")), 1)

    monkeypatch.setattr(parts.gateway.changes, "keep_up", keep_up)
    await publish(parts.gateway, request)
    assert [each.control for each in parts.notifications.accepted] == [2]
    # While the end of the log is unknown, notifications are refused.
    worker = Worker(monkeypatch, sole=False)
    away = AsyncMock(side_effect=InfrastructureError("Kafka is unavailable", retry_after=1))
    monkeypatch.setattr(worker.changes._end, "end_offset", away)
    monkeypatch.setattr(parts.gateway.changes, "keep_up", worker.changes.keep_up)
    with pytest.raises(InfrastructureError, match="Kafka is unavailable"):
        await publish(parts.gateway, request)
    assert len(parts.notifications.accepted) == 1


class SlowLog(LogWriter):
    """Kafka acknowledges after `released`, and refuses the key `refused`; `begun` counts the changes on their way."""

    def __init__(self, kafka: KafkaSettings) -> None:
        super().__init__(kafka, "control")
        self.released = threading.Event()
        self.begun = threading.Semaphore(0)
        self.appended: list[bytes] = []

    def begin(self, encoded: Sequence[tuple[bytes, bytes | None]]) -> Callable[[], int]:
        if encoded[0][0] == b"refused":
            raise InfrastructureError("too large")
        self.appended += [key for key, _ in encoded]
        last = len(self.appended) - 1
        self.begun.release()
        return lambda: last if self.released.wait(60) else -1


@asynccontextmanager
async def slow_log(timeout_s: float) -> AsyncIterator[tuple[SlowLog, LoggedState[bytes], list[asyncio.Future[int]]]]:
    """A log, and the changes that its threads have begun."""
    kafka = KafkaSettings(request_timeout_s=timeout_s)
    log = SlowLog(kafka)
    state: LoggedState[bytes] = LoggedState(kafka, log, lambda key: (key, None))
    begun: list[asyncio.Future[int]] = []
    try:
        for _ in range(log_view._WRITERS):
            begun.append(asyncio.ensure_future(state.commit([b"begun"])))
            assert await asyncio.to_thread(log.begun.acquire, timeout=60)
        yield log, state, begun
    finally:
        log.released.set()
        state.close()


async def test_a_change_that_waits_for_others_is_left_out_in_time() -> None:
    """Kafka may accept connections for an hour and take nothing: later, changes of clients long gone would be made."""
    async with slow_log(0.1) as (log, state, begun):
        with pytest.raises(InfrastructureError, match="in time"):
            await state.commit([b"waits"])
    await asyncio.gather(*begun, return_exceptions=True)
    await asyncio.to_thread(state._writers.shutdown)
    assert log.appended == [b"begun"] * log_view._WRITERS


async def test_no_change_is_left_behind_by_a_thread_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """All later changes would wait behind it, and none would be made until a restart."""
    kafka = KafkaSettings(request_timeout_s=0.1)
    log = SlowLog(kafka)
    log.released.set()
    state: LoggedState[bytes] = LoggedState(kafka, log, lambda key: (key, None))

    class Preempted(deque[log_view._Change]):
        """A thread takes the changes in the moment after their number was read."""

        preempted = False

        def __len__(self) -> int:
            number = super().__len__()
            if not self.preempted:
                self.preempted = True
                thread = threading.Thread(target=state._append)
                thread.start()
                thread.join()
            return number

    given_up = log_view._Change([(b"given up", None)], concurrent.futures.Future())
    given_up.last.cancel()
    monkeypatch.setattr(state, "_changes", Preempted([given_up]))
    assert [await state.commit([b"a"]), await state.commit([b"b"])] == [0, 1]
    state.close()


async def test_a_change_without_a_thread_does_not_hold_up_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = KafkaSettings(request_timeout_s=60)
    log = SlowLog(kafka)
    log.released.set()
    state: LoggedState[bytes] = LoggedState(kafka, log, lambda key: (key, None))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        with pytest.raises(InfrastructureError, match="control log cannot be made now: can't start new thread"):
            await state.commit([b"a"])
    assert await state.commit([b"b"]) == 0
    assert log.appended == [b"b"]
    state.close()


async def test_changes_during_an_append_are_appended_together_with_an_outcome_each() -> None:
    async with slow_log(60) as (log, state, begun):
        keys = [[b"a"], [b"refused"], [b"b", b"c"], [b"d"]]
        together = [asyncio.ensure_future(state.commit(each)) for each in keys]
        await asyncio.sleep(0)
        log.released.set()
        await asyncio.gather(*begun)
        first, refused, second, third = await asyncio.gather(*together, return_exceptions=True)
    n = log_view._WRITERS
    assert log.appended[n:] == [b"a", b"b", b"c", b"d"]
    assert (first, second, third) == (n, n + 1, n + 3)
    assert isinstance(refused, InfrastructureError)
