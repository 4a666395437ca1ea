from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from arborcast.core import fence
from arborcast.core.fence import FILE, Fence


def waiting() -> threading.Thread:
    thread = threading.Thread(target=fence.wait, daemon=True)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    return thread


def test_pushes_wait_until_the_lease_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "_until", None)
    fence.wait()  # in a process without a lease
    own, stopped = Fence(tmp_path / "run" / "lease-1"), Mock(side_effect=TimeoutError)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            fence.wait(stopped)
        waits = waiting()
        own.extend(fence.clock() + 60)
        waits.join(60)
        assert not waits.is_alive()
        fence.wait(stopped)
        own.shut()


def worker(file: Path | str, code: str) -> subprocess.Popen[str]:
    code = f"from arborcast.core import fence; fence.wait(); {code}"
    command = [sys.executable, "-c", code]
    environ = {**os.environ, FILE: str(file)}
    return subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_worker_waits_for_the_lease_of_its_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "_until", None)
    own = Fence(tmp_path / "run" / "lease-1")
    own.extend(fence.clock() + 60)
    code = "print('pushes', flush=True); input(); fence.wait()"
    with worker(own.file, code) as early, worker(tmp_path / "removed", "") as late:
        assert early.stdin is not None
        assert early.stdout is not None
        assert early.stdout.readline() == "pushes\n"
        own.shut()
        # Another job has a different file, and removes this one.
        Fence(Path(own.file).with_name("lease-2")).extend(fence.clock() + 60)
        assert not Path(own.file).exists()
        early.stdin.write("\n")
        early.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            early.wait(0.5)
        own.extend(fence.clock() + 60)
        assert early.wait(60) == 0
        with pytest.raises(subprocess.TimeoutExpired):
            late.wait(0.5)
        late.kill()
