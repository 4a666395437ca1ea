from __future__ import annotations

import asyncio

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.single_flight import SharedRounds, SingleFlight, shared


async def turns(number: int = 10) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


class Work:
    """Counts its calls; ends when `go_on` is set, with `error` if there is one."""

    def __init__(self) -> None:
        self.calls = 0
        self.go_on = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> int:
        self.calls += 1
        call = self.calls
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        return call


async def do(work: Work) -> None:
    await work()


async def lead(flight: SingleFlight[str, None], work: Work) -> None:
    with flight.lead(("k",)):
        await work()


async def test_equal_work_is_done_once_at_a_time() -> None:
    flight: SingleFlight[str, int] = SingleFlight()
    work, other = Work(), Work()
    callers = [asyncio.create_task(flight.run("k", work)) for _ in range(50)]
    callers.append(asyncio.create_task(flight.run("other", other)))
    await turns()
    assert ("k" in flight, len(flight)) == (True, 2)
    callers[0].cancel()
    work.go_on.set()
    other.go_on.set()
    assert await asyncio.gather(*callers[1:]) == [1] * 50
    assert (work.calls, other.calls, "k" in flight, len(flight)) == (1, 1, False, 0)
    assert await flight.run("k", work) == 2, "a result is not kept"


@pytest.mark.parametrize("inline", [True, False])
async def test_all_callers_get_the_exception_or_the_cancellation(inline: bool) -> None:
    flight: SingleFlight[str, None] = SingleFlight()

    async def begin(work: Work) -> tuple[asyncio.Future[None], asyncio.Future[None]]:
        """The leading caller, and another one."""
        leads = asyncio.ensure_future(lead(flight, work) if inline else do(work))
        if not inline:
            flight.begin(["k"], leads)
        await turns()
        other = flight.get("k")
        assert other is not None
        waits = asyncio.ensure_future(shared(other))
        await turns()
        return leads, waits

    work = Work()
    work.error = InfrastructureError("away", 1)
    callers = await begin(work)
    work.go_on.set()
    found = await asyncio.gather(*callers, return_exceptions=True)
    assert [str(each) for each in found] == ["away", "away"]
    assert len(flight) == 0

    leads, waits = await begin(Work())
    leads.cancel()
    with pytest.raises(InfrastructureError, match="this process stops") as stopped:
        await waits
    assert stopped.value.retry_after, "the caller may repeat it"
    await turns()
    assert len(flight) == 0


async def test_completed_work_is_not_shared_with_a_later_caller() -> None:
    """Otherwise a caller that needs a newer result would get it again and again."""
    flight: SingleFlight[str, int] = SingleFlight()
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    flight.begin(["k"], done)
    done.set_result(1)
    assert ("k" in flight, flight.get("k")) == (False, None)
    work = Work()
    work.go_on.set()
    assert await flight.run("k", work) == 1
    assert work.calls == 1


class Committed:
    """SharedRounds that record their items."""

    def __init__(self, at_once: int, *errors: Exception | None) -> None:
        self.rounds: list[list[str]] = []
        self.go_on = asyncio.Event()
        self._errors = list(errors)
        self.shared: SharedRounds[str, int] = SharedRounds("rounds", self._work, at_once)

    async def _work(self, items: list[str]) -> int:
        self.rounds.append(items)
        number = len(self.rounds)
        await self.go_on.wait()
        if self._errors and (error := self._errors.pop(0)) is not None:
            raise error
        return number


async def test_items_added_during_a_round_share_the_next_one() -> None:
    committed = Committed(2)
    futures = []
    for number in range(100):
        futures.append(committed.shared.join(str(number)))
        await asyncio.sleep(0)
    assert not any(future.done() for future in futures)
    committed.go_on.set()
    assert await asyncio.gather(*futures) == [1, 2, *[3] * 98]
    assert [len(items) for items in committed.rounds] == [1, 1, 98]
    await turns()
    assert committed.shared.idle


async def test_a_cancelled_caller_cancels_the_round_of_no_other() -> None:
    committed = Committed(1)
    futures = [committed.shared.join(name) for name in "abcd"]
    futures[0].cancel()
    committed.go_on.set()
    assert await asyncio.gather(*futures[1:]) == [1] * 3
    assert committed.rounds == [["a", "b", "c", "d"]], "its item is part of the round"


async def test_a_failed_round_fails_its_callers_and_not_the_next_round() -> None:
    committed = Committed(1, InfrastructureError("no broker"), None)
    first = [committed.shared.join(name) for name in "ab"]
    await asyncio.sleep(0)
    second = [committed.shared.join(name) for name in "cd"]
    committed.go_on.set()
    found = await asyncio.gather(*first, return_exceptions=True)
    assert [str(each) for each in found] == ["no broker"] * 2
    assert await asyncio.gather(*second) == [2, 2]


async def test_an_item_added_at_the_end_of_a_round_has_the_next_one() -> None:
    committed = Committed(1)
    committed.go_on.set()
    later: list[asyncio.Future[int]] = []
    for number in range(6):  # in each iteration around the end
        first = committed.shared.join("first")
        first.add_done_callback(lambda _: later.append(committed.shared.join("later")))
        await turns(number)
        later.append(committed.shared.join("turn"))
    await turns(100)
    assert len(later) == 12
    assert all(each.done() for each in later)
