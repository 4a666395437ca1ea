from __future__ import annotations

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.damaged import DamagedRecords


def test_damaged_records_are_counted_and_logged_once_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    times = iter((0.0, 0.0, 1.0, 1.0, 3_599.0, 3_599.0, 3_600.0, 3_600.0))
    damaged = DamagedRecords(lambda: next(times))
    for log in ("parked", "dead") * 4:
        damaged.skip(log, (0, 7), InfrastructureError("no record"))
    assert len(caplog.records) == 4
    assert "skipped so far: 4" in caplog.records[-1].message
