"""Tables with known rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.recording.attempts_tables import AttemptsTables
from arborcast.dispatch.settings import TableSettings
from arborcast.dispatch.tables import ATTEMPTS, DELIVERIES
from arborcast.dispatch.tables.delta_table import DeltaTableWriter
from arborcast.dispatch.tables.spec import TableSpec
from arborcast.topic_model.topics import TopicPath
from tests.support.listed_logs import Listed

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
NOON_MS = round(NOON.timestamp() * 1000)


def attempt(notification: str, subscription: str, state: str, after_ms: int = 50, **more: object) -> Attempt:
    """An attempt at a notification accepted at noon; its push took 10 ms."""
    values: dict[str, object] = {
        "topic": TopicPath("a/b"),
        "endpoint": f"http://{subscription}/",
        "number": 1,
        "push": f"{notification}-{subscription}-{more.get('number', 1)}",
        "accepted_ms": NOON_MS,
        "started_ms": NOON_MS + after_ms,
        "duration_ms": 10.0,
        "status": 202 if state == "delivered" else 0,
        **more,
    }
    return Attempt(notification=notification, subscription=subscription, state=state, **values)  # type: ignore[arg-type]


def logged(values: Iterable[bytes], first: int = 0, partition: int = 0) -> list[Listed]:
    """Records with these values, from this offset on."""
    return [Listed(b"", value, offset, partition=partition) for offset, value in enumerate(values, first)]


def attempts_tables(attempts: object, deliveries: object, **more: Any) -> AttemptsTables:
    """The writer of the tables, without a log."""
    return AttemptsTables(KafkaSettings(), str(attempts), str(deliveries), **more)


def write(tables: AttemptsTables, records: Sequence[Listed]) -> None:
    """Write these records to the tables, and commit."""
    tables.take(records)
    tables.commit({each.partition: each.offset + 1 for each in records})


def record(home: Path, *made: Attempt, offset: int = 0) -> None:
    """Write attempts, as a record of the log at `offset`, and the deliveries that ended with them, into the tables of
    this data directory."""
    settings = TableSettings()
    tables = attempts_tables(ATTEMPTS.location(settings, home), DELIVERIES.location(settings, home))
    write(tables, logged([attempts.encode(*made)], offset))


def neutral(spec: TableSpec, **facts: object) -> dict[str, object]:
    """A row of a table; missing columns get arbitrary values."""
    nothing = {
        "string": "",
        "long": 0,
        "integer": 0,
        "double": 0.0,
        "boolean": False,
        "binary": b"",
        "date": date(2026, 1, 2),
        "timestamp": NOON,
    }
    return {column.name: None if column.optional else nothing[column.type] for column in spec.columns} | facts


def fill(home: Path, spec: TableSpec, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows into a table; missing columns get arbitrary values."""
    table = DeltaTableWriter(spec, spec.location(TableSettings(), home))
    table.extend(spec.arrow([neutral(spec, **row) for row in rows]), {})


def read(location: object, *columns: str) -> list[tuple[Any, ...]]:
    """These columns of all rows of a table, sorted."""
    rows = DeltaTable(str(location)).to_pyarrow_table().to_pylist()
    return sorted(tuple(row[column] for column in columns) for row in rows)
