from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from arborcast.dispatch.monitoring.under_way import Gauge, InFlightGauge, ignore_count


def test_the_driver_sees_what_another_process_has_under_way(tmp_path: Path) -> None:
    driver = InFlightGauge(tmp_path / "run" / "pushes")
    Gauge(driver.file).of_task(3)(5)
    worker = (
        "import sys, os; from arborcast.dispatch.monitoring.under_way import Gauge;"
        " Gauge(sys.argv[1]).of_task(1_000_004)(70_000); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", worker, driver.file], check=False)
    assert driver.total() == 70_005

    Gauge(driver.file).of_task(3)(0)
    assert driver.total() == 70_000
    # A worker that was killed takes nothing back: the end of the batch does.
    driver.clear()
    assert driver.total() == 0


def test_workers_of_a_job_that_was_killed_tell_its_successor_nothing(tmp_path: Path) -> None:
    file = tmp_path / "pushes"
    orphan = Gauge(InFlightGauge(file).file)
    successor = InFlightGauge(file)
    orphan.of_task(0)(9)
    assert successor.total() == 0


def test_a_figure_is_no_reason_not_to_push(tmp_path: Path) -> None:
    assert Gauge("").of_task(0) is ignore_count
    assert Gauge(str(tmp_path / "none")).of_task(0) is ignore_count
