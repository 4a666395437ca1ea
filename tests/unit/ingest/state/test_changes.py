from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.errors import InfrastructureError
from arborcast.core.fence import clock
from arborcast.core.settings import KafkaSettings
from arborcast.ingest.operations.publishing import PublishRequest, publish
from arborcast.ingest.state.changes import ControlChanges, GatewayPositions, KeyedLocks
from arborcast.ingest.state.log_view import ControlLogView
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.records.control import ControlRecord, TopicRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.topics import TopicPath
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts


def test_holders_of_one_key_take_turns_and_others_do_not_wait() -> None:
    async def scenario() -> list[str]:
        locks = KeyedLocks()
        order: list[str] = []

        async def work(key: str, name: str) -> None:
            async with locks.hold(key):
                order.append(f"{name} begins")
                await asyncio.sleep(0)
                order.append(f"{name} ends")

        await asyncio.gather(work("k", "first"), work("k", "second"), work("other", "third"))
        assert len(locks) == 0
        return order

    order = asyncio.run(scenario())
    assert order.index("first ends") < order.index("second begins")
    assert order.index("third begins") < order.index("first ends")


async def test_a_lock_is_gone_when_its_holder_fails_or_is_cancelled() -> None:
    locks = KeyedLocks()

    async def hold() -> None:
        async with locks.hold("k"):
            await asyncio.sleep(60)

    holder, waiter = asyncio.create_task(hold()), asyncio.create_task(hold())
    await asyncio.sleep(0)
    assert "k" in locks
    waiter.cancel()
    holder.cancel()
    await asyncio.gather(holder, waiter, return_exceptions=True)
    assert "k" not in locks


class OneLog:
    """A log that two gateways write; each has applied what is in it up to some place."""

    def __init__(self) -> None:
        self.records: list[ControlRecord] = []


class LateView:
    """Commits of one gateway: its own view is as far as its commit then, and learns of the other's no sooner."""

    def __init__(self, log: OneLog, table: RoutingTable, turns: list[int]) -> None:
        self._log, self._table, self._turns = log, table, turns

    async def catch_up(self) -> None:
        self.read(len(self._log.records))

    async def keep_up(self) -> None:
        await self.catch_up()

    async def commit(self, records: Sequence[ControlRecord]) -> int:
        await self._others_run()
        first = len(self._log.records)
        self._log.records += records
        await self._others_run()
        self.read(first + len(records))
        return first

    def read(self, end: int) -> None:
        for offset in range(self._table.position, end):
            self._table.apply(self._log.records[offset], offset)

    async def _others_run(self) -> None:
        for _ in range(self._turns.pop() if self._turns else 0):
            await asyncio.sleep(0)


NAMES = st.sampled_from(["t:a", "t:a/b", "t:c", "t:d/e"])


@given(
    st.lists(st.tuples(st.booleans(), st.lists(NAMES, min_size=1, max_size=3)), min_size=1, max_size=12),
    st.lists(st.integers(0, 5), max_size=20),
)
def test_two_gateways_that_name_the_same_topics_at_once_agree(
    notifies: list[tuple[bool, list[str]]], turns: list[int]
) -> None:
    log, pair = OneLog(), (GatewayParts(), GatewayParts())
    views = [LateView(log, parts.table, turns) for parts in pair]
    for parts, view in zip(pair, views, strict=True):
        parts.gateway.changes = view

    async def scenario() -> None:
        requests = [
            pair[second].request(
                "POST", "/wsn/NotificationBroker", soap.envelope(soap.notify(*[soap.message(name) for name in names]))
            )
            for second, names in notifies
        ]
        assert {answer.status for answer in await asyncio.gather(*requests)} == {202}
        for view in views:
            await view.catch_up()

    asyncio.run(scenario())
    first, second = ({path: parts.table.topics.get(path) for path in parts.table.topics.paths()} for parts in pair)
    assert first == second
    assert set(first) == {f"{{urn:t}}{name.removeprefix('t:')}" for _, names in notifies for name in names}
    begins: dict[str, int] = {}
    for offset, record in enumerate(log.records):
        assert isinstance(record, TopicRecord)
        begins.setdefault(record.path, offset)
    for parts in pair:
        # Whoever matches a notification has its topic by then.
        assert all(begins[one.topic] < one.control for one in parts.notifications.accepted)


def test_a_view_that_was_not_started_stops() -> None:
    """A gateway that is stopped before it has reached Kafka ends in order."""
    view = ControlLogView(KafkaSettings(), ControlView(), lambda error: pytest.fail(str(error)))
    asyncio.run(view.stop())


class Worker:
    """The view and the changes of one of two workers; the log's end is `end`, and each question for it is counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, sole: bool) -> None:
        self.end = self.questions = 0
        memory = memoryview(bytearray(GatewayPositions.size(2)))
        own, self.sibling = GatewayPositions(memory, 0), GatewayPositions(memory, 1)
        own.is_sole_until(clock() + 3600 if sole else 0)
        kafka = KafkaSettings()
        self._view = ControlLogView(kafka, ControlView(), lambda error: pytest.fail(str(error)), moved=own.moved)
        monkeypatch.setattr(self._view, "_loop", asyncio.get_running_loop(), raising=False)
        self.changes = ControlChanges(kafka, ControlLog(kafka), self._view, own)
        monkeypatch.setattr(self.changes._end, "end_offset", self._end)

    def apply(self) -> None:
        """One more record."""
        position = self._view.applied
        self._view._apply([(TopicRecord(TopicPath(f"t{position}")), position)], position + 1, threading.Event())

    async def _end(self) -> int:
        self.questions += 1
        await asyncio.sleep(0)
        return self.end


async def turns(number: int = 10) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_the_only_gateway_accepts_without_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(monkeypatch, sole=True)
    worker.apply()
    worker.sibling.moved(1)
    await worker.changes.keep_up()
    assert worker.questions == 0


@pytest.mark.parametrize("sole", [True, False])
async def test_what_another_worker_or_gateway_has_answered_for_is_applied_first(
    monkeypatch: pytest.MonkeyPatch, sole: bool
) -> None:
    worker = Worker(monkeypatch, sole=sole)
    if sole:
        worker.sibling.moved(2)
    else:
        worker.end = 2
    waiting = [asyncio.create_task(worker.changes.keep_up()) for _ in range(100)]
    await turns()
    worker.apply()
    await turns()
    assert not any(each.done() for each in waiting)
    worker.apply()
    await asyncio.gather(*waiting)
    assert worker.questions == (not sole), "all that come together share one"


@pytest.mark.parametrize("sole", [True, False])
def test_requests_go_on_in_their_order(monkeypatch: pytest.MonkeyPatch, sole: bool) -> None:
    async def scenario() -> list[int]:
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
        # In the same turn of the loop: the view moves, and another request comes.
        asyncio.get_running_loop().call_soon(worker.apply)
        later = []
        for number in range(3, 12):
            later.append(asyncio.create_task(request(number)))
            await asyncio.sleep(0)
        await asyncio.gather(*first, *later, return_exceptions=True)
        return order

    assert asyncio.run(scenario()) == [0, 2, *range(3, 12)]


async def test_a_notification_is_not_accepted_when_the_end_of_the_log_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker(monkeypatch, sole=False)

    async def away() -> int:
        raise InfrastructureError("Kafka is away", retry_after=1)

    monkeypatch.setattr(worker, "_end", away)
    monkeypatch.setattr(worker.changes._end, "end_offset", away)
    parts = GatewayParts()
    monkeypatch.setattr(parts.gateway.changes, "keep_up", worker.changes.keep_up)
    parts.table.apply(TopicRecord(TopicPath("a")), 0)
    with pytest.raises(InfrastructureError, match="Kafka is away"):
        await publish(parts.gateway, PublishRequest([Notification("n", TopicPath("a"), b"<x/>", 0)], None))
    assert parts.notifications.accepted == []


async def test_a_notification_has_the_position_of_what_another_gateway_has_answered_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = GatewayParts()
    parts.table.apply(TopicRecord(TopicPath("a")), 0)

    async def keep_up() -> None:
        parts.table.apply(TopicRecord(TopicPath("b")), 1)

    monkeypatch.setattr(parts.gateway.changes, "keep_up", keep_up)
    await publish(parts.gateway, PublishRequest([Notification("n", TopicPath("a"), b"<x/>", 0)], None))
    assert [each.control for each in parts.notifications.accepted] == [2]
