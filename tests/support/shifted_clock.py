"""The clock of processes, set forward and back while they run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Shifts the clock of a Python process with this on its path by the current number in the file.
_SHIFTED = """
import os, time
_file = os.path.join(os.path.dirname(__file__), "shift")
_time, _time_ns = time.time, time.time_ns

def _shift():
    with open(_file) as file:
        return int(file.read() or 0)

time.time = lambda: _time() + _shift()
time.time_ns = lambda: _time_ns() + _shift() * 1_000_000_000
"""


class Clock:
    """The clock of the Python processes that this process starts later; `path` is on their PYTHONPATH."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        path.mkdir()
        patch.setenv("PYTHONPATH", os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")]))
        self.path = path
        self.put(0)
        (path / "sitecustomize.py").write_text(_SHIFTED)

    def put(self, shift_s: int) -> None:
        """Set the difference from the right time."""
        draft = self.path / "draft"
        draft.write_text(str(shift_s))
        draft.replace(self.path / "shift")
