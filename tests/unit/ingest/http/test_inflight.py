"""The budget for what requests hold: who gets room, who waits, and who is sent away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.ingest.http.inflight import SMALL, Inflight, Reservation

MB = 1024 * 1024
LIMIT = 64 * MB
LARGE = 4 * MB
FULL = 10  # of these, in five eighths


class Client:
    """A body that comes when it is told to go on."""

    def __init__(self, budget: Inflight, expected: int = LARGE) -> None:
        self.budget = budget
        self.expected = expected
        self.reservation = Reservation(budget, self)
        self.reads = True
        self.refused = ""

    def go_on(self) -> None:
        self.reads = True

    def let_go(self, reason: str) -> None:
        self.refused = reason

    def send(self, size: int) -> bool:
        """A packet that is not the last; whether more is read."""
        assert self.reads
        self.reservation.add(size)
        self.reads = self.budget.partly(self.reservation, self.expected)
        return self.reads

    def finish(self) -> None:
        """The last packet."""
        assert self.reads
        self.reservation.add(self.expected - self.reservation.came)
        self.budget.whole(self.reservation)


class World:
    """A budget with a clock that stands, and what it told about memory to be given back."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.fell = 0
        self.budget = Inflight(LIMIT, self._fell, lambda: self.now)

    def _fell(self) -> None:
        self.fell += 1

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.budget.look()

    def clients(self, count: int, sent: int = 1, expected: int = LARGE) -> list[Client]:
        made = [Client(self.budget, expected) for _ in range(count)]
        for client in made:
            client.send(sent)
        return made


@pytest.fixture
def world() -> Iterator[World]:
    """The loop is only there for the timer; what it would do, `later` does."""
    loop = asyncio.new_event_loop()
    asyncio._set_running_loop(loop)
    try:
        yield World()
    finally:
        asyncio._set_running_loop(None)
        loop.close()


def test_others_wait_in_their_order(world: World) -> None:
    first, second, *_ = world.clients(FULL)
    third, fourth = world.clients(2, sent=0)
    assert [third.reads, fourth.reads] == [False, False]
    first.finish()
    first.reservation.release()
    world.later(0)
    assert [third.reads, fourth.reads] == [True, False]
    second.reservation.release()
    world.later(0)
    assert [third.reads, fourth.reads] == [True, True]


def test_who_waits_for_too_long_is_sent_away(world: World) -> None:
    busy = world.clients(FULL)
    late = world.clients(1)[0]
    for _ in range(10):
        world.later(0.5)
        for client in busy:
            client.send(20_000)
    assert "use all the memory" in late.refused
    assert not any(client.refused for client in busy)
    assert world.budget.refused == 1


def test_few_wait(world: World) -> None:
    world.clients(FULL)
    packet = 256 * 1024
    waiting = []
    for _ in range(200):
        client = Client(world.budget)
        client.send(packet)
        if not client.refused:
            waiting.append(client)
    assert world.budget.taken <= LIMIT * 3 / 4 + packet
    assert len(waiting) * packet >= LIMIT / 8


def test_a_body_that_does_not_come_on_is_let_go_when_others_wait(world: World) -> None:
    idle = world.clients(FULL, sent=LARGE - 1)
    world.later(60)
    assert not any(client.refused for client in idle), "nobody needs its room"
    late = world.clients(3)
    assert all(client.reads for client in late)
    assert [bool(client.refused) for client in idle] == [True] * 3 + [False] * (FULL - 3)
    assert "stalled" in idle[0].refused


def test_a_byte_now_and_then_is_no_progress(world: World) -> None:
    dripping = world.clients(FULL, sent=100_000)
    steady = dripping.pop()
    late = world.clients(1)[0]
    for _ in range(3):
        world.now += 0.4
        for client in dripping:
            client.send(1)
        steady.send(16 * 1024)
    world.later(0)
    assert late.reads
    assert sum(bool(client.refused) for client in dripping) == 1
    assert not steady.refused


def test_small_bodies_wait_for_nobody_and_have_room_of_their_own_until_all_is_taken(world: World) -> None:
    world.clients(FULL)
    world.clients(1)
    small = world.clients(20, sent=1_000, expected=SMALL)
    assert all(client.reads for client in small)
    assert world.budget.take(Reservation(world.budget), 100_000)
    world.budget.count(Reservation(world.budget), LIMIT)
    assert not world.budget.take(Reservation(world.budget), 1)
    assert world.clients(1, sent=1_000, expected=2_000)[0].refused


def test_what_is_answered_early_is_thrown_away_as_it_comes(world: World) -> None:
    world.clients(FULL)
    late = world.clients(1)
    assert [each.reads for each in late] == [False]
    taken = world.budget.taken
    late[0].reservation.release()  # refused for what its head says
    assert [each.reads for each in late] == [True]
    assert late[0].send(100_000)
    assert world.budget.taken == taken - 1


def test_what_takes_more_than_there_is_alone_may_and_it_is_released_once(world: World) -> None:
    client = world.clients(1)[0]
    client.reservation.release()
    client.reservation.release()
    client.reservation.add(10)
    world.budget.count(client.reservation, 10)
    assert world.budget.taken == 0
    assert world.budget.take(Reservation(world.budget), 2 * LIMIT)


def test_memory_is_given_back_after_a_peak_and_not_for_little(world: World) -> None:
    for _ in range(100):
        world.clients(1, expected=MB)[0].reservation.release()
    assert world.fell == 0
    for client in world.clients(6):
        client.reservation.release()
    assert world.fell


async def _waited(first: Reservation, second: Reservation, budget: Inflight) -> list[str]:
    got: list[str] = []

    async def read(name: str, size: int) -> None:
        reservation = Reservation(budget)
        try:
            await budget.wait(reservation, size)
        except InfrastructureError as error:
            got.append(f"{name}: {error.retry_after}")
        else:
            got.append(name)
            reservation.release()

    tasks = [asyncio.ensure_future(read("large", 40 * MB)), asyncio.ensure_future(read("small", 1 * MB))]
    await asyncio.sleep(0)
    budget.look()
    await asyncio.sleep(0)
    assert got == [], "the small one does not overtake"
    first.release()
    second.release()
    budget.look()
    await asyncio.gather(*tasks)
    return got


def test_large_bodies_are_read_in_turn() -> None:
    budget = Inflight(LIMIT)
    first, second = Reservation(budget), Reservation(budget)
    budget.count(first, 40 * MB)
    budget.count(second, LIMIT - 40 * MB)
    assert asyncio.run(_waited(first, second, budget)) == ["large", "small"]
    assert budget.taken == 0


def test_nobody_waits_for_ever_to_be_read() -> None:
    now = 0.0

    async def run() -> None:
        nonlocal now
        budget = Inflight(LIMIT, clock=lambda: now)
        budget.count(Reservation(budget), LIMIT)
        waits = asyncio.ensure_future(budget.wait(Reservation(budget), 1))
        await asyncio.sleep(0)
        now = 6.0
        budget.look()
        with pytest.raises(InfrastructureError, match="use all the memory") as refused:
            await waits
        assert refused.value.retry_after

    asyncio.run(run())
