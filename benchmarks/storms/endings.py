"""Subscriptions at ever new addresses without a listener, which end while their pushes wait, and their traces."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import count

import msgspec
import pyarrow.dataset as ds

from arborcast.client import Client, FuturesClient
from arborcast.core.eventlog.scan import LogScan
from arborcast.dispatch.logs.parked import with_parked_overhead
from arborcast.dispatch.settings import TableSettings
from arborcast.dispatch.tables import DEAD_LETTERS, RETRIES, ROUTES, SUBSCRIPTIONS
from arborcast.dispatch.tables.spec import TableSpec, open_table, table_exists
from benchmarks.report import wait_for
from benchmarks.storms.victim import Victim

_TOPIC = "ending/all"

# The tables are written every five seconds, less often when busy.
_SETTLE_S = 20.0
_PATIENCE_S = 300.0


class Endings:
    """Waves of subscriptions at one engine."""

    def __init__(self, victim: Victim) -> None:
        self._victim = victim
        self._hosts = count(1)
        self._file = victim.home.path.absolute() / "parked" / "parked.sqlite"

    def wave(self, subscriptions: int) -> None:
        """Subscribe, publish, wait until all pushes have failed, unsubscribe, and wait until no delivery waits."""
        with FuturesClient(self._victim.gateway, workers=16) as many, Client(self._victim.gateway) as one:
            made = [many.subscribe(_TOPIC, to=self._address()) for _ in range(subscriptions)]
            known = [each.result(_PATIENCE_S) for each in made]
            lanes = [each.address.rpartition("/")[2] for each in known]
            one.notify(_TOPIC, "<n/>")
            wait_for(lambda: self._waiting(lanes) == subscriptions, "all pushes have failed", _PATIENCE_S)
            for each in [many.unsubscribe(subscription) for subscription in known]:
                each.result(_PATIENCE_S)
            wait_for(lambda: self._waiting(lanes) == 0, "no delivery waits", _PATIENCE_S)

    def traces(self) -> dict[str, float]:
        """Live keys of the compacted logs, rows of tables of the current state, and endpoints of the driver."""
        time.sleep(_SETTLE_S)
        found: dict[str, float] = {}
        for log in ("control", "parked", "dead", "retained"):
            live: set[bytes] = set()
            with LogScan(with_parked_overhead(self._victim.kafka), log) as reading:
                for record in reading.read_all():
                    (live.discard if record.value is None else live.add)(record.key)
            found[f"live keys of {log}"] = len(live)
        for spec in (ROUTES, RETRIES, DEAD_LETTERS):
            found[f"rows of {spec.name}"] = self._rows(spec)
        found["subscriptions in force"] = self._rows(SUBSCRIPTIONS, ds.field("state") != "ended")
        with closing(self._opened()) as opened:
            kept = opened.execute("SELECT value FROM fact WHERE name = 'health'").fetchone()
        found["endpoints in the next start"] = len(msgspec.msgpack.decode(kept[0])) if kept else 0
        return found

    def _address(self) -> str:
        """Each is another host of loopback."""
        number = next(self._hosts)
        return f"http://127.{1 + (number >> 16) % 250}.{(number >> 8) % 256}.{number % 256}:9/r{number}"

    def _waiting(self, lanes: Sequence[str]) -> int:
        statement = f"SELECT COUNT(*) FROM waiting WHERE lane IN ({', '.join('?' * len(lanes))})"  # noqa: S608  # question marks only
        with closing(self._opened()) as opened:
            return int(opened.execute(statement, lanes).fetchone()[0])

    def _opened(self) -> sqlite3.Connection:
        return sqlite3.connect(f"{self._file.as_uri()}?mode=ro", uri=True)

    def _rows(self, spec: TableSpec, wanted: ds.Expression | None = None) -> float:
        location = spec.location(TableSettings(), self._victim.home.path)
        return spec.dataset(open_table(location)).count_rows(filter=wanted) if table_exists(location) else 0
