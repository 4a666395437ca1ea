"""The lanes in which something waits: which they are, when each has its next turn, and which no batch may push past."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dispatch.redelivery.agenda import Agenda
from dispatch.redelivery.lane import Lane
from dispatch.redelivery.parked_store import ParkedStore
from dispatch.redelivery.ports import Holds


class Lanes:
    """Used by one thread. In memory are only the lanes, a few hundred bytes each."""

    def __init__(self, store: ParkedStore, holds: Holds) -> None:
        self._store = store
        self._holds = holds
        self._lanes: dict[str, Lane] = {}
        self._turns = Agenda()

    def __len__(self) -> int:
        return len(self._lanes)

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def __contains__(self, name: str) -> bool:
        return name in self._lanes

    def __getitem__(self, name: str) -> Lane:
        return self._lanes[name]

    def get(self, name: str) -> Lane | None:
        """The lane, if something waits in it."""
        return self._lanes.get(name)

    def held(self) -> frozenset[str]:
        """Those in which something waits that was never tried."""
        return frozenset(lane.name for lane in self if lane.held)

    def found(self, name: str, now_ms: int) -> None:
        """Something new waits in this lane."""
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(name)
        lane.expires_ms = 0
        if lane.held:
            # It comes behind others, and has its turn after theirs; but it may be older than they are.
            oldest_ms = self._store.oldest_ms(name, lane.flight)
            if lane.policy is not None and oldest_ms is not None:
                self._turns.set_by(name, lane.policy.expires_ms(oldest_ms))
            return
        if self._store.has_untried(name):
            lane.held = True
            self._holds.found(name)
        self.turn(lane, now_ms)

    def let_pass(self, lane: Lane) -> None:
        """Batches may push past a lane once all in it has had its first attempt, with an outcome."""
        if lane.held and not self._store.has_untried(lane.name):
            lane.held = False
            self._holds.drained(lane.name)

    def forget(self, lane: Lane) -> None:
        """Nothing waits in it any more."""
        self.let_pass(lane)
        del self._lanes[lane.name]
        self._turns.cancel(lane.name)

    def turn(self, lane: Lane, at_ms: int) -> None:
        """Its next turn is then, whatever was said before."""
        self._turns.set(lane.name, at_ms)

    def go_on(self, names: Iterable[str], now_ms: int) -> None:
        """These have a turn now."""
        for name in names:
            self._turns.set(name, now_ms)

    def next_turn_ms(self) -> int | None:
        """When the next turn is; None when nobody has one."""
        return self._turns.next_ms()

    def take_turn(self, now_ms: int) -> Lane | None:
        """Whose turn it is, without having one from now on; None when nobody is due."""
        name = self._turns.pop(now_ms)
        return None if name is None else self._lanes[name]

    def overdue(self, now_ms: int) -> int:
        """How many are due, counted up to some thousands."""
        return self._turns.overdue(now_ms)
