from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from arborcast.dispatch.job.lease import (
    HOLD_S,
    LEASE_S,
    RENEW_S,
    Holder,
    JobLeaseRecord,
    JobLeaseState,
    has_ended,
    this_job,
)


class Group:
    """Jobs on one log with one clock; each may stop between any two steps of a look."""

    def __init__(self, *names: str) -> None:
        self.log: list[JobLeaseRecord] = []
        self.jobs = {name: JobLeaseState(Holder(name=name)) for name in names}
        self.until = dict.fromkeys(names, float("-inf"))
        self.now = 0.0
        self._looks = {name: self._look(name) for name in names}

    def step(self, name: str) -> None:
        next(self._looks[name])

    def whole_look(self, name: str) -> None:
        while next(self._looks[name]) != "done":
            pass

    def holders(self) -> list[str]:
        return [name for name, until in self.until.items() if self.now < until]

    def _read(self, name: str) -> None:
        job = self.jobs[name]
        for offset in range(job.end, len(self.log)):
            job.apply(self.log[offset], offset, self.now)

    def _look(self, name: str) -> Iterator[str]:
        """The loop of `JobLease`."""
        job = self.jobs[name]
        while True:
            self._read(name)
            yield "read"
            if not job.is_held and (job.holder is None or self.now - job.last_record_at > LEASE_S):
                claim = job.claim()
                yield "decided"
                self.log.append(claim)
                yield "claimed"
                self._read(name)
            if job.is_held:
                sent = self.now
                renewal = job.renewal()
                yield "sends"
                self.log.append(renewal)
                yield "renewed"
                self._read(name)
                if job.is_held:
                    self.until[name] = sent + HOLD_S
            yield "done"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["step", "look", "wait"])), max_size=100))
@example([("a", "look"), ("a", "step"), ("a", "step"), ("a", "wait"), ("a", "wait"), ("a", "wait"), ("b", "look")])
@example([*[("a", "step")] * 12, ("b", "step"), ("c", "step"), ("a", "step")])
def test_one_holder_at_most_and_one_after_the_lease_ends(steps: list[tuple[str, str]]) -> None:
    group = Group("a", "b", "c")
    for name, step in steps:
        if step == "wait":
            group.now += RENEW_S
        elif step == "look":
            group.whole_look(name)
        else:
            group.step(name)
        assert len(group.holders()) <= 1
    for name in "bcbc":  # a has stopped; the first look of each may have begun before its last record
        group.whole_look(name)
    group.now += LEASE_S + RENEW_S
    for name in "bcbc":
        group.whole_look(name)
    (holder,) = group.holders()
    group.whole_look("a")
    assert group.holders() == [holder]


def test_a_released_lease_is_free_at_once() -> None:
    group = Group("a", "b")
    group.whole_look("a")
    group.whole_look("b")
    group.log.append(group.jobs["a"].release())
    group.until["a"] = 0.0
    group.whole_look("b")

    assert group.holders() == ["b"]


def test_a_process_has_ended_on_this_machine() -> None:
    me = this_job(Path("/data"))
    assert (me.pid, me.home) == (os.getpid(), "/data")
    assert not has_ended(me)
    other = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    ended = structs.replace(me, pid=int(other.stdout))
    assert has_ended(ended)
    assert has_ended(structs.replace(me, started=me.started + 1)), "the process id is reused"
    assert not has_ended(structs.replace(ended, machine="elsewhere")), "unknown"
