from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from arborcast.core import fence
from arborcast.core.fence import FILE, Fence


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fence:
    monkeypatch.setattr(fence, "_until", None)
    return Fence(tmp_path / "run" / "lease-1")


def test_a_process_without_a_lease_pushes() -> None:
    fence.wait()


def test_pushes_wait_until_the_lease_holds(own: Fence) -> None:
    waits = threading.Thread(target=fence.wait, daemon=True)
    waits.start()
    waits.join(0.1)
    assert waits.is_alive()

    own.extend(fence.clock() + 60)
    waits.join(60)
    assert not waits.is_alive()
    fence.wait()

    own.shut()
    waits = threading.Thread(target=fence.wait, daemon=True)
    waits.start()
    waits.join(0.1)
    assert waits.is_alive()
    own.extend(fence.clock() + 60)
    waits.join(60)


def test_whoever_waits_may_be_told_not_to(own: Fence) -> None:
    def stopped() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        fence.wait(stopped)
    own.extend(fence.clock() + 60)
    fence.wait(stopped)


def test_a_worker_sees_what_the_driver_says(own: Fence) -> None:
    code = "from arborcast.core import fence; fence.wait(); print('pushes', flush=True); input(); fence.wait()"
    own.extend(fence.clock() + 60)
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, FILE: own.file},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stdout.readline() == "pushes\n"
        own.shut()
        # Another job has a file of its own, and removes this one.
        Fence(Path(own.file).with_name("lease-2")).extend(fence.clock() + 60)
        assert not Path(own.file).exists()
        worker.stdin.write("\n")
        worker.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(0.5)
        own.extend(fence.clock() + 60)
        assert worker.wait(60) == 0


def test_a_worker_that_comes_when_another_job_has_been_here_does_not_push(tmp_path: Path) -> None:
    code = "from arborcast.core import fence; fence.wait()"
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", code], env={**os.environ, FILE: str(tmp_path / "gone")}, timeout=1.0)
