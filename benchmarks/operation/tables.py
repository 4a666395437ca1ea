"""What recording costs and what asking costs: rows a second, bytes on disk, the usual questions over many attempts.

    python -m benchmarks.operation.tables [--quick] [--json FILE]

The log is fed from encoded records in memory, so this is what the writer of attempts does beside Kafka. Ids are
those of the gateway: sorted by time.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from arborcast.analysis import Tables
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.recording.archive import notification_rows
from arborcast.dispatch.recording.attempts_tables import EndedDeliveries
from arborcast.dispatch.recording.upkeep import Upkeep
from arborcast.dispatch.tables import ATTEMPTS, DELIVERIES, NOTIFICATIONS, RETRIES
from arborcast.dispatch.tables.delta_table import DeltaTableWriter, rows_of
from arborcast.engine.settings.loading import load_settings
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from benchmarks.harness import Report, run
from tests.support.table_rows import Logged, attempts_tables, logged, write

# What a commit holds at 1,000/s and an interval of 5 s.
_BATCH = 5_000
_SUBSCRIPTIONS = 1_000
_ENDPOINTS = 100
_START_MS = round(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
_PAYLOAD = b'<t:reading xmlns:t="urn:t">' + b"<t:value>21.5</t:value>" * 30 + b"</t:reading>"


def notification_id(number: int) -> str:
    """An id as the gateway makes them, of a thousand a second."""
    return f"{_START_MS + number:012x}7000b{number % 2**60:015x}"


def attempt(number: int) -> Attempt:
    """One delivery of a notification, at its first attempt; one in a hundred waits for another."""
    delivered = number % 100 != 0
    return Attempt(
        notification=notification_id(number),
        subscription=f"s{number % _SUBSCRIPTIONS:022d}",
        topic=TopicPath(f"{{urn:t}}building/floor-{number % 50}/temperature"),
        endpoint=f"http://receiver-{number % _ENDPOINTS}.example/inbox",
        number=1,
        push=f"{number // 3:016x}-{number % 7}",
        state="delivered" if delivered else "parked",
        accepted_ms=_START_MS + number,
        started_ms=_START_MS + number + 90,
        duration_ms=5.0 + number % 37,
        error="" if delivered else "server-error",
        detail="" if delivered else "HTTP 503",
        status=202 if delivered else 503,
        request_bytes=1_500,
        reused=True,
        batch=number // 100,
    )


def recording(report: Report) -> None:
    """From Kafka values to commits."""
    count = 20_000 if report.quick else 500_000
    with (
        tempfile.TemporaryDirectory() as folder,
        report.table(
            "Recording", "table", "rows", "rows/s", "longest commit ms", "MB per million, joined", "rows joined/s"
        ) as table,
    ):
        home = Path(folder)
        outcomes = attempts_tables(home / "attempts", home / "deliveries")
        outcomes.open()
        archive = DeltaTableWriter(NOTIFICATIONS, str(home / "notifications"))
        archive.open()

        def record_attempts(begin: int, batch: int, values: list[bytes]) -> None:
            write(outcomes, logged(values, begin))

        def record_notifications(begin: int, batch: int, values: list[bytes]) -> None:
            places = (Logged(value, 0, begin + each, _START_MS) for each, value in enumerate(values))
            archive.append(notification_rows(places, _START_MS), "archive", batch)

        for names, make, record in (
            (("attempts", "deliveries"), attempt_values, record_attempts),
            (("notifications",), notification_values, record_notifications),
        ):
            taken = [timed(lambda: record(*each)) for each in batches(count, make)]  # noqa: B023  # called at once
            specs = [each for each in (ATTEMPTS, DELIVERIES, NOTIFICATIONS) if each.name in names]
            joined = sum(timed(Upkeep(each, str(home / each.name), unused_hours=0).step) for each in specs)
            size = sum(file.stat().st_size for name in names for file in (home / name).rglob("*.parquet"))
            rate = round(count / sum(taken))
            table.add(
                " + ".join(names), count, rate, round(max(taken) * 1000), round(size / count, 1), round(count / joined)
            )


def attempt_values(begin: int, count: int) -> list[bytes]:
    return list(attempts.encode(attempt(number) for number in range(begin, begin + count)))


def notification_values(begin: int, count: int) -> list[bytes]:
    return [
        notifications.encode(
            Notification(notification_id(number), TopicPath("{urn:t}a/b"), _PAYLOAD, _START_MS + number)
        )[1]
        for number in range(begin, begin + count)
    ]


def batches(count: int, make: Callable[[int, int], list[bytes]]) -> Iterator[tuple[int, int, list[bytes]]]:
    for batch, begin in enumerate(range(0, count, _BATCH)):
        yield begin, batch, make(begin, min(_BATCH, count - begin))


def timed(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def questions(report: Report) -> None:
    """The usual questions over a table of many attempts, as upkeep leaves it."""
    count = 200_000 if report.quick else 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        made = home / "tables"
        attempts_table = DeltaTableWriter(ATTEMPTS, str(made / "attempts"))
        deliveries = EndedDeliveries(str(made / "deliveries"))
        piece = 100_000
        pattern = rows_of(attempt_values(0, piece))
        for batch in range(count // piece):
            rows = shifted(pattern, batch * piece)
            attempts_table.extend(rows, {})
            deliveries.append(rows, {})
        for spec in (ATTEMPTS, DELIVERIES):
            Upkeep(spec, str(made / spec.name), unused_hours=0).step()
        DeltaTableWriter(RETRIES, str(made / "retries")).open()
        tables = Tables(load_settings(home=home, environ={}))
        middle = datetime.fromtimestamp((_START_MS + count // 2) / 1000, UTC)
        span = {"since": middle, "until": middle + timedelta(hours=1)}
        wanted = ds.field("notification") == notification_id(count // 2)
        title = f"Questions over {count:,} attempts"
        with report.table(title, "question", "seconds", note="To be answered within 5 s.") as table:
            found = tables.attempts.arrow(where=wanted)
            assert found.num_rows == 1
            table.add("the attempts of one notification", round(timed(lambda: tables.attempts.arrow(where=wanted)), 2))
            table.add("audit of one hour", round(timed(lambda: tables.audit(**span, of="tables")), 2))
            table.add("slowest endpoints", round(timed(lambda: tables.slowest_endpoints(since=middle)), 2))


def shifted(pattern: pa.Table, by: int) -> pa.Table:
    """The rows of `pattern`, so many notifications later."""
    ids = pa.array([notification_id(number) for number in range(by, by + pattern.num_rows)])
    columns = {"notification": ids, "batch": pa.array(np.asarray(pattern["batch"]) + by // 100)}
    for name in ("accepted_at", "started_at"):
        moved = np.asarray(pattern[name].cast(pa.int64())) + by * 1_000
        columns[name] = pa.array(moved).cast(pa.timestamp("us", tz="UTC"))
    columns["day"] = columns["started_at"].cast(pa.date32())
    columns["push"] = pa.array([f"{number // 3:016x}-{number % 7}" for number in range(by, by + pattern.num_rows)])
    for name, column in columns.items():
        position = pattern.column_names.index(name)
        pattern = pattern.set_column(position, pattern.schema.field(name), column)
    return pattern


def measure(report: Report) -> None:
    recording(report)
    questions(report)


if __name__ == "__main__":
    run(measure)
