from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InfrastructureError
from ingest.state.changes import KeyedLocks, SharedCommits
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts
from topic_model.records.control import ControlRecord, TopicRecord
from topic_model.routing import RoutingTable
from topic_model.topics import TopicPath


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


def test_a_lock_is_gone_when_its_holder_fails_or_is_cancelled() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def topics(*names: str) -> list[ControlRecord]:
    return [TopicRecord(TopicPath(name)) for name in names]


def test_what_comes_while_commits_are_under_way_shares_the_next_one() -> None:
    async def scenario() -> list[int]:
        committed: list[int] = []
        go_on = asyncio.Event()

        async def commit(records: Sequence[ControlRecord]) -> None:
            committed.append(len(records))
            await go_on.wait()

        shared = SharedCommits(commit)
        futures = []
        for number in range(100):
            futures.append(shared.commit(topics(f"t{number}")))
            await asyncio.sleep(0)
        assert not any(future.done() for future in futures)
        go_on.set()
        await asyncio.gather(*futures)
        return committed

    assert asyncio.run(scenario()) == [1, 1, 98]


def test_all_that_share_a_commit_hear_that_it_failed_and_the_next_one_goes_on() -> None:
    async def scenario() -> None:
        errors = [
            InfrastructureError("no broker"),
            InfrastructureError("no broker"),
            InfrastructureError("again"),
            None,
        ]

        async def commit(records: Sequence[ControlRecord]) -> None:
            await asyncio.sleep(0)
            error = errors.pop(0)
            if error is not None:
                raise error

        shared = SharedCommits(commit)
        first = [shared.commit(topics(name)) for name in "abcd"]
        found = await asyncio.gather(*first, return_exceptions=True)
        assert [str(each) for each in found] == ["no broker", "no broker", "again", "again"]
        await shared.commit(topics("e"))

    asyncio.run(scenario())


def test_one_that_hangs_up_takes_the_commit_from_nobody() -> None:
    async def scenario() -> None:
        async def commit(records: Sequence[ControlRecord]) -> None:
            await asyncio.sleep(0)

        shared = SharedCommits(commit)
        futures = [shared.commit(topics(name)) for name in "abcd"]
        gone = asyncio.ensure_future(asyncio.shield(futures[3]))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(*futures)
        with pytest.raises(asyncio.CancelledError):
            await gone

    asyncio.run(scenario())


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
