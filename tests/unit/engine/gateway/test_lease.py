from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.settings import KafkaSettings
from arborcast.engine.gateway.lease import HOLD_S, LEASE_S, RENEW_S, Lease, LeaseKeeper, LeaseRecord, decode
from arborcast.ingest.state.changes import GatewayPositions


class Group:
    """Candidates on one log, with one clock."""

    def __init__(self, *names: str) -> None:
        self.log: list[LeaseRecord] = []
        self.candidates = {name: Lease(name) for name in names}
        self.read = dict.fromkeys(names, 0)
        self.now = 0.0

    def follow(self, name: str) -> None:
        for record in self.log[self.read[name] :]:
            self.candidates[name].apply(record, self.now)
        self.read[name] = len(self.log)

    def look(self, name: str) -> None:
        """A look of a process: read to the end, append, read the record."""
        self.follow(name)
        record = self.candidates[name].next(self.now)
        if record is not None:
            self.log.append(record)
            self.follow(name)

    def holders(self) -> list[str]:
        return [name for name, candidate in self.candidates.items() if candidate.is_held]


def test_a_lease_is_taken_kept_and_lost_in_time() -> None:
    group = Group("a", "b")
    for name in ("a", "b", "b"):
        group.look(name)
    assert [each.term for each in group.log] == [1, 0], "the other appends one record, and claims nothing"
    twice = LeaseRecord(kind="claim", holder="b", term=1)
    group.candidates["a"].apply(twice, 0.0)
    assert group.holders() == ["a"], "the first claim of a term counts"
    while not group.candidates["b"].is_held and group.now < 20:  # a neither reads nor writes
        group.now += RENEW_S
        group.look("b")
    assert HOLD_S < LEASE_S < group.now < 10
    late = group.candidates["a"].next(group.now)
    assert late is not None
    group.log.append(late)
    for name in ("a", "b"):
        group.follow(name)
    assert group.holders() == ["b"], "a renewal of a past term has no effect"


def test_a_restarted_process_has_its_own_lease_at_once() -> None:
    group = Group("host/8080#1", "host/8080#2", "host/8081#3")
    former, again, other = group.candidates
    group.look(former)
    group.look(other)
    assert group.holders() == [former]
    group.look(again)
    group.follow(former)
    assert group.holders() == [again]
    assert group.candidates[again].term == 2


def test_a_renewal_names_the_holder_without_the_first_claim() -> None:
    late = Lease("c")
    late.apply(LeaseRecord(kind="claim", holder="b", term=7), 0.0)  # the first claim is no longer in the log
    late.apply(LeaseRecord(kind="renewal", holder="a", term=7), 1.0)
    assert late.holder == "a"
    assert late.next(2.0) == LeaseRecord(kind="claim", holder="c", term=0), "it does not claim the holder's term"


Steps = st.tuples(st.sampled_from("abc"), st.sampled_from(["look", "follow", "stale", "wait", "long"]))


@given(st.lists(Steps, max_size=60))
def test_never_two_up_to_date_holders_and_soon_one(steps: list[tuple[str, str]]) -> None:
    group = Group("a", "b", "c")
    for name, step in steps:
        match step:
            case "look":
                group.look(name)
            case "follow":
                group.follow(name)
            case "stale":  # it appends without reading new records
                group.log += filter(None, [group.candidates[name].next(group.now)])
            case _:
                group.now += RENEW_S if step == "wait" else LEASE_S + 1
    for name in group.candidates:
        group.follow(name)
    assert len(group.holders()) <= 1
    for _ in range(2):  # a is stopped
        group.now += LEASE_S + RENEW_S
        for name in ("b", "c"):
            group.look(name)
    for name in group.candidates:
        group.follow(name)
    (holder,) = group.holders()
    group.log += filter(None, [group.candidates[holder].release()])
    group.follow(holder)
    (other,) = {"b", "c"} - {holder}
    group.look(other)
    assert group.holders() == [other], "a released lease is free at once"


Step = tuple[str, float]
"""A look of this gateway, or, for the empty name, a wait of this many seconds."""


class Gateways:
    """Gateways on one lease log. Between any two steps of one, other gateways take steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.now = 1000.0
        self.log: list[tuple[bytes, bytes]] = []
        self.steps: deque[Step] = deque()
        self.busy: set[str] = set()
        monkeypatch.setattr("arborcast.engine.gateway.lease.clock", lambda: self.now)
        monkeypatch.setattr("arborcast.ingest.state.changes.clock", lambda: self.now)
        self.positions = {name: GatewayPositions() for name in names}
        self.keepers = {
            name: LeaseKeeper(KafkaSettings(), name, lambda _: None, positions)
            for name, positions in self.positions.items()
        }
        for keeper in self.keepers.values():
            monkeypatch.setattr(keeper._log, "_follower", LogReader(self, keeper))
            monkeypatch.setattr(keeper._log, "_writer", LogAppender(self))

    def run(self, *steps: Step) -> None:
        """Run these steps, one after the other."""
        for each in steps:
            self.steps.append(each)
            self.step()

    def after(self, *steps: Step) -> list[tuple[bytes, bytes]]:
        """The log after these steps."""
        self.run(*steps)
        return self.log

    def step(self) -> None:
        """The next step, within which others may be taken."""
        if not self.steps:
            return
        name, seconds = self.steps.popleft()
        self.now += seconds
        if name and name not in self.busy:
            self.busy.add(name)
            self.keepers[name]._append_next()
            self.busy.remove(name)
        self.check()

    def sole(self) -> list[str]:
        return [name for name, positions in self.positions.items() if positions.newest() is not None]

    def check(self) -> None:
        for name in self.sole():
            answering = [other for other, positions in self.positions.items() if positions.shown and other != name]
            assert not answering, f"{name} does not wait for {answering}"


class LogReader:
    def __init__(self, setup: Gateways, keeper: LeaseKeeper) -> None:
        self._setup, self._keeper, self.position = setup, keeper, 0

    def read_to_end(self, timeout: float) -> None:
        end = len(self._setup.log)
        self._setup.step()
        for offset in range(self.position, end):
            self._keeper._apply(decode(*self._setup.log[offset]), offset)
        self.position = max(self.position, end)


class LogAppender:
    def __init__(self, setup: Gateways) -> None:
        self._setup = setup

    def append_encoded(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        self._setup.step()
        self._setup.log += records
        self._setup.step()


def test_the_sole_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until another one appends a record, which has to wait for a lease's time after the end of the first."""
    setup = Gateways(monkeypatch, "a", "b")
    found = []
    for look in (("a", RENEW_S), ("a", RENEW_S), ("b", 0.0), ("a", RENEW_S), ("b", 0.0)):
        setup.run(look)
        found.append((setup.sole(), setup.positions["b"].shown))
    assert found == [([], False), (["a"], False), (["a"], False), ([], False), ([], True)]
    setup = Gateways(monkeypatch, "a", "b")
    setup.run(("a", 0.0), ("a", RENEW_S))
    assert setup.sole() == ["a"]
    began = setup.now
    while not setup.positions["b"].shown:
        setup.run(("b", RENEW_S))
    assert LEASE_S < setup.now - began < 2 * LEASE_S
    again = Gateways(monkeypatch, "a")
    again.log += Gateways(monkeypatch, "a").after(("a", RENEW_S), ("a", RENEW_S))
    again.run(("a", RENEW_S), ("a", RENEW_S))
    assert again.sole() == ["a"], "a successor of the same name"


@pytest.mark.parametrize("looks", [1, 2])
@pytest.mark.parametrize("before", range(4))
def test_another_gateway_may_look_during_a_look(monkeypatch: pytest.MonkeyPatch, looks: int, before: int) -> None:
    """Before the log's end is read, before and behind the append, and before the record is read."""
    nothing = ("", 0.0)
    for first in ([], [("b", 0.0)]):
        setup = Gateways(monkeypatch, "a", "b")
        setup.run(*[("a", RENEW_S)] * looks, *first)
        setup.steps += [("a", RENEW_S), *[nothing] * before, ("b", 0.0), *[nothing] * 10]
        while setup.steps:
            setup.step()
        setup.run(("a", RENEW_S), ("b", 0.0))
        assert setup.sole() == []
        assert setup.positions["b"].shown
