from __future__ import annotations

from collections import Counter

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog import damaged
from arborcast.core.log_limit import LogLimit


def test_damaged_records_are_counted_and_logged_once_an_hour(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    times = iter((0.0, 0.0, 1.0, 1.0, 3_599.0, 3_599.0, 3_600.0, 3_600.0))
    monkeypatch.setattr(damaged, "_log_limit", LogLimit(1, 3_600.0, lambda: next(times)))
    monkeypatch.setattr(damaged, "_skipped", Counter())

    def decode() -> object:
        raise InfrastructureError("no record")

    for log in ("parked", "dead") * 4:
        assert damaged.unless_damaged(log, (0, 7), decode) is None
    assert len(caplog.records) == 4
    assert "skipped so far: 4" in caplog.records[-1].message
