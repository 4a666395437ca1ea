"""One broker and one slapd for a whole run, shared by all processes of pytest-xdist.

The first process that needs a server starts and stops it; the others find its state in a file.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

State = dict[str, Any]
"""The addresses of the server; JSON."""

Start = Callable[[Path], tuple[State, Callable[[], None]]]
"""Starts the server in an empty folder; returns its state, and the function that stops it."""


@contextmanager
def once_per_run(factory: pytest.TempPathFactory, name: str, start: Start) -> Iterator[State]:
    """The state of the server that all processes of this run share; started by the first, stopped when all are done."""
    base = factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"shared-{name}"
    users = shared / "users"
    users.mkdir(parents=True, exist_ok=True)
    mine = users / str(os.getpid())
    described = shared / "state.json"
    stop: Callable[[], None] | None = None
    with _locked(shared):
        mine.touch()
        if not described.exists():
            state, stop = start(shared / "home")
            described.write_text(json.dumps(state))
    try:
        yield json.loads(described.read_text())
    finally:
        mine.unlink()
        if stop is not None:
            # The other processes may run for minutes, which pytest-timeout counts for the last test of this one.
            signal.setitimer(signal.ITIMER_REAL, 0)
            while any(psutil.pid_exists(int(user.name)) for user in users.iterdir()):
                time.sleep(0.1)
            stop()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
