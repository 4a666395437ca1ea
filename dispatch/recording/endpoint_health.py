"""`endpoint_health`: a row for each change of an endpoint's breaker or speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pyarrow as pa

from arborcast.dispatch.delivery.health import HEALTHY, Health
from arborcast.dispatch.recording.folds import moment
from arborcast.dispatch.recording.follower import Work
from arborcast.dispatch.tables import ENDPOINT_HEALTH
from arborcast.dispatch.tables.delta_table import DeltaTableWriter
from arborcast.dispatch.tables.spec import queried


class _State(NamedTuple):
    """The columns whose changes make a row. A probe in flight lasts milliseconds, and counts as open."""

    breaker: str
    degraded: bool


_HEALTHY = _State("closed", False)


class HealthHistory(Work):
    """Compares the current health with the table, so a restart repeats no row."""

    name = "endpoint health"

    def __init__(
        self, location: str, known: Callable[[], Mapping[str, Health]], clock: Callable[[], float] = time.time
    ) -> None:
        """`known` returns the health of endpoints; all others are healthy."""
        self._table = DeltaTableWriter(ENDPOINT_HEALTH, location)
        self._known = known
        self._clock = clock
        self._states: dict[str, _State] | None = None

    def step(self) -> bool:
        now_ms = int(self._clock() * 1000)
        if self._states is None:
            self._states = self._latest()
        known = self._known()
        rows = []
        for endpoint in sorted(known.keys() | self._states.keys()):
            health = known.get(endpoint, HEALTHY)
            state = _State("closed" if health.breaker == "closed" else "open", health.degraded)
            if state != self._states.get(endpoint, _HEALTHY):
                rows.append(_row(endpoint, state, health, now_ms))
        if rows:
            try:
                self._table.extend(ENDPOINT_HEALTH.arrow(rows), {})
            except BaseException:
                self._table.reopen()
                self._states = None
                raise
            self._states.update((str(row["endpoint"]), _State(str(row["breaker"]), bool(row["sick"]))) for row in rows)
            self._states = {endpoint: state for endpoint, state in self._states.items() if state != _HEALTHY}
        return False

    def _latest(self) -> dict[str, _State]:
        latest = "LAST_VALUE(breaker ORDER BY at) AS breaker, LAST_VALUE(sick ORDER BY at) AS sick"
        found = pa.table(queried(self._table.open(), f"SELECT endpoint, {latest} FROM data GROUP BY endpoint"))  # noqa: S608  # its text is made of constants, values are bound
        states = ((row["endpoint"], _State(row["breaker"], row["sick"])) for row in found.to_pylist())
        return {endpoint: state for endpoint, state in states if state != _HEALTHY}


def _row(endpoint: str, state: _State, health: Health, now_ms: int) -> dict[str, object]:
    now = moment(now_ms)
    return {
        "day": now.date(),
        "at": now,
        "endpoint": endpoint,
        "breaker": state.breaker,
        "sick": state.degraded,
        "failures": health.failures,
        "relapses": health.relapses,
        "probe_at": moment(health.probe_at_ms) if health.probe_at_ms else None,
    }
