"""One part through its lives, over a real process and hours of a clock that nobody waits for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from arborcast.core.telemetry.log_format import write
from arborcast.engine.embedded.parts import Part, PartSpec
from arborcast.engine.embedded.state import PartState
from arborcast.engine.settings.stack import StackSettings
from tests.support.engine import gone
from tests.support.waiting import wait_until

SETTINGS = StackSettings(start_timeout_s=120, restart_first_s=0.5)


@contextmanager
def part(
    folder: Path, is_ready: Callable[[], bool], code: str = "", report: Callable[[str], None] = lambda _words: None
) -> Iterator[Part]:
    sleeps = (sys.executable, "-c", f"import time; {code}; time.sleep(600)")
    made = Part(PartSpec("a", sleeps, {}, folder, folder / "a.log", is_ready), SETTINGS, report)
    try:
        yield made
    finally:
        made.kill()


def end_the_process_of(it: Part) -> None:
    (process,) = it.members()
    process.kill()
    wait_until(lambda: gone(process.pid))


def test_a_start_that_takes_long_and_leads_nowhere_is_not_forgiven(tmp_path: Path) -> None:
    with part(tmp_path, lambda: False) as it:
        for attempt in (1, 2, 3):
            it.step(attempt * 1_000.0)
            assert it.state is PartState.STARTING
            it.step(attempt * 1_000.0 + 121)
            it.step(attempt * 1_000.0 + 122)
            assert (it.process.failures, it.restarts) == (attempt, attempt)
        assert it.status.last_exit == "was not ready within 120 s"


def test_a_long_life_that_was_ready_is(tmp_path: Path) -> None:
    with part(tmp_path, lambda: True) as it:
        for life, (ran, failures) in enumerate([(1, 1), (1, 2), (61, 1), (1, 2)]):
            began = life * 1_000.0
            it.step(began)
            it.step(began)
            assert it.state is PartState.READY
            end_the_process_of(it)
            it.step(began + ran)
            assert it.process.failures == failures


def test_a_start_that_does_not_end_is_reported_with_the_reason_in_its_log(tmp_path: Path) -> None:
    line = write("human", 1.0, "warning", "dispatch", "push is started again in 1 s: chmod was not found")
    other = write("human", 2.0, "warning", "dispatch", "an endpoint fails")
    reported: list[str] = []
    with part(tmp_path, lambda: False, f"print({line!r}); print({other!r}, flush=True)", reported.append) as it:
        it.step(1_000.0)
        wait_until(lambda: "endpoint" in (tmp_path / "a.log").read_text())
        it.step(1_005.0)
        it.step(1_010.0)
    assert reported[1:] == [
        f"a: starting, {seconds} s so far; its log has: push is started again in 1 s: chmod was not found"
        for seconds in (5, 10)
    ]
