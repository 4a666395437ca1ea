"""The memory budget of requests: bodies that are read, wait, or are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.ingest.http.inflight import SMALL, Inflight, Reservation

MB = 1024 * 1024
LIMIT = 64 * MB
LARGE = 4 * MB
FULL = 10  # bodies of this size in five eighths of the budget


class Client:
    """A body that arrives in packets."""

    def __init__(self, budget: Inflight, expected: int = LARGE) -> None:
        self.budget = budget
        self.expected = expected
        self.reservation = Reservation(budget, self)
        self.reads = True
        self.refused = ""

    def resume_body(self) -> None:
        self.reads = True

    def reject_body(self, reason: str) -> None:
        self.refused = reason

    def send(self, size: int) -> bool:
        """A packet before the last one. Returns whether reading continues."""
        assert self.reads
        self.reservation.add(size)
        self.reads = self.budget.partly(self.reservation, self.expected)
        return self.reads

    def finish(self) -> None:
        """The last packet."""
        assert self.reads
        self.reservation.add(self.expected - self.reservation.came)
        self.budget.whole(self.reservation)


class Setup:
    """A budget with a fake clock, and the number of its calls to return memory."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.fell = 0
        self.budget = Inflight(LIMIT, self._fell, lambda: self.now)

    def _fell(self) -> None:
        self.fell += 1

    def later(self, seconds: float = 0) -> None:
        self.now += seconds
        self.budget.assign()

    def clients(self, count: int, sent: int = 1, expected: int = LARGE) -> list[Client]:
        made = [Client(self.budget, expected) for _ in range(count)]
        for client in made:
            client.send(sent)
        return made


@pytest.fixture
def setup() -> Iterator[Setup]:
    """The loop serves only the timer, whose work is done by `later`."""
    loop = asyncio.new_event_loop()
    asyncio._set_running_loop(loop)
    try:
        yield Setup()
    finally:
        asyncio._set_running_loop(None)
        loop.close()


def test_waiting_bodies_are_in_order_and_time_out(setup: Setup) -> None:
    busy = setup.clients(FULL)
    third, fourth = setup.clients(2, sent=0)
    assert [third.reads, fourth.reads] == [False, False]
    busy.pop().finish()
    setup.later()
    assert [third.reads, fourth.reads] == [False, False], "not answered yet"
    busy.pop().reservation.release()
    setup.later()
    assert [third.reads, fourth.reads] == [True, False]
    for _ in range(10):
        setup.later(0.5)
        for client in (*busy, third):
            client.send(20_000)
    assert "use all the memory" in fourth.refused
    assert not any(client.refused for client in (*busy, third))
    assert setup.budget.refused == 1


def test_waiting_bodies_are_bounded(setup: Setup) -> None:
    setup.clients(FULL)
    packet = 256 * 1024
    waiting = sum(not client.refused for client in setup.clients(200, sent=packet))
    assert setup.budget.taken <= LIMIT * 3 / 4 + packet
    assert waiting * packet >= LIMIT / 8


def test_a_stalled_body_makes_room_for_others(setup: Setup) -> None:
    idle = setup.clients(FULL, sent=LARGE - 1)
    setup.later(60)
    assert not any(client.refused for client in idle), "no other body"
    late = setup.clients(3)
    assert all(client.reads for client in late)
    assert [bool(client.refused) for client in idle] == [True] * 3 + [False] * (FULL - 3)
    assert "stalled" in idle[0].refused


def test_dripping_bodies_count_as_stalled(setup: Setup) -> None:
    dripping = setup.clients(FULL, sent=100_000)
    steady = dripping.pop()
    late = setup.clients(1)[0]
    for _ in range(3):
        setup.now += 0.4
        for client in dripping:
            client.send(1)
        steady.send(16 * 1024)
    setup.later()
    assert late.reads
    assert sum(bool(client.refused) for client in dripping) == 1
    assert not steady.refused


def test_small_bodies_have_reserved_memory(setup: Setup) -> None:
    setup.clients(FULL + 1)
    assert all(client.reads for client in setup.clients(20, sent=1_000, expected=SMALL))
    assert setup.budget.take(Reservation(setup.budget), 100_000)
    setup.budget.count(Reservation(setup.budget), LIMIT)
    assert not setup.budget.take(Reservation(setup.budget), 1)
    assert setup.clients(1, sent=1_000, expected=2_000)[0].refused


def test_the_rest_of_an_answered_body_needs_no_memory(setup: Setup) -> None:
    setup.clients(FULL)
    (late,) = setup.clients(1)
    taken = setup.budget.taken
    assert [late.reads] == [False]
    late.reservation.release()  # refused by its head
    assert [late.reads] == [True]
    assert late.send(100_000)
    assert setup.budget.taken == taken - 1


def test_release_is_idempotent_and_one_body_may_be_large(setup: Setup) -> None:
    (client,) = setup.clients(1)
    client.reservation.release()
    client.reservation.release()
    client.reservation.add(10)
    setup.budget.count(client.reservation, 10)
    assert setup.budget.taken == 0
    assert setup.budget.take(Reservation(setup.budget), 2 * LIMIT)


def test_memory_is_returned_only_after_a_peak(setup: Setup) -> None:
    for _ in range(100):
        setup.clients(1, expected=MB)[0].reservation.release()
    assert setup.fell == 0
    for client in setup.clients(6):
        client.reservation.release()
    assert setup.fell


async def test_large_bodies_are_parsed_in_order_within_seconds() -> None:
    now = 0.0
    budget = Inflight(LIMIT, clock=lambda: now)
    first, second, third = (Reservation(budget) for _ in range(3))
    budget.count(first, 40 * MB)
    budget.count(second, LIMIT - 40 * MB)
    got: list[str] = []

    async def read(name: str, size: int) -> None:
        reservation = Reservation(budget)
        await budget.wait(reservation, size)
        got.append(name)
        reservation.release()

    tasks = [asyncio.ensure_future(read(name, size)) for name, size in (("large", 40 * MB), ("small", MB))]
    for _ in range(2):
        await asyncio.sleep(0)
        budget.assign()
    assert got == [], "first in, first out"
    first.release()
    second.release()
    budget.assign()
    await asyncio.gather(*tasks)
    assert (got, budget.taken) == (["large", "small"], 0)

    budget.count(third, LIMIT)
    waits = asyncio.ensure_future(budget.wait(Reservation(budget), 1))
    await asyncio.sleep(0)
    now = 6.0
    budget.assign()
    with pytest.raises(InfrastructureError, match="use all the memory") as refused:
        await waits
    assert refused.value.retry_after
