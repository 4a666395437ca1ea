"""Progress of long operations in the log of a service."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from arborcast.core import progress
from arborcast.core.progress import LoggedProgress


def test_progress_is_logged_if_it_advances(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Ten seconds after the last line, also of a second range; not while it stands still."""
    times = iter([0, 5, 11, 22, 33, 40, 44])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(times)))
    caplog.set_level(logging.INFO)
    shown = LoggedProgress(logging.getLogger("arborcast.test"))
    for done, total in ((50, 100), (60, 100), (60, 100), (20, 1_000), (30, 1_000), (90, 1_000)):
        shown("reading", done, total)
    assert caplog.messages == [f"reading: {left} records are left" for left in (40, 980, 910)]
