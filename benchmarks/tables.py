"""Recording: its rate and size, changes of rows, questions to the tables, and the audit.

    python -m benchmarks.tables [CASE ...] [--count N]

Cases: recording (from Kafka values to commits), changes (one of many rows of states, beside a merge of delta-rs),
questions (to a table of many attempts; target: at most 5 s), audit (of deliveries in the logs of a real broker).
Without cases: recording and questions.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.dataset as ds

from arborcast.analysis import Tables
from arborcast.core.eventlog.writers import DurableWriter
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.logs.attempts import Attempt, AttemptsLog, Matched
from arborcast.dispatch.operations.audit import audit
from arborcast.dispatch.recording.archive import notification_rows
from arborcast.dispatch.recording.attempts_tables import EndedDeliveries
from arborcast.dispatch.recording.upkeep import Upkeep
from arborcast.dispatch.tables import ATTEMPTS, DELIVERIES, NOTIFICATIONS, RETRIES, SUBSCRIPTIONS
from arborcast.dispatch.tables.delta_table import DeltaTableWriter, rows_of
from arborcast.dispatch.tables.spec import open_table
from arborcast.engine.settings.loading import load_settings
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.expressions import parse_friendly
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath
from benchmarks.report import Report, resident, run, seconds
from benchmarks.rig import started_broker
from tests.support.broker import settings_for
from tests.support.listed_logs import Listed
from tests.support.table_rows import attempt, attempts_tables, logged, neutral, write

_T = TypeVar("_T")

# Rows of a commit at 1,000/s and an interval of 5 s.
_BATCH = 5_000
_SUBSCRIPTIONS = 1_000
_ENDPOINTS = 100
_START_MS = round(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
_PAYLOAD = b'<t:reading xmlns:t="urn:t">' + b"<t:value>21.5</t:value>" * 30 + b"</t:reading>"


def notification_id(number: int) -> str:
    """An id as the gateway makes them, of a thousand a second."""
    return f"{_START_MS + number:012x}7000b{number % 2**60:015x}"


def delivery(number: int) -> Attempt:
    """One delivery of a notification, at its first attempt; one in a hundred waits for another."""
    delivered = number % 100 != 0
    return attempt(
        notification_id(number),
        f"s{number % _SUBSCRIPTIONS:022d}",
        "delivered" if delivered else "parked",
        topic=TopicPath(f"{{urn:t}}building/floor-{number % 50}/temperature"),
        endpoint=f"http://receiver-{number % _ENDPOINTS}.example/inbox",
        push=f"{number // 3:016x}-{number % 7}",
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
            places = (Listed(b"", value, begin + each, _START_MS) for each, value in enumerate(values))
            archive.extend(notification_rows(places, _START_MS), {"archive": batch})

        for names, make, record in (
            (("attempts", "deliveries"), attempt_values, record_attempts),
            (("notifications",), notification_values, record_notifications),
        ):
            taken = [seconds(partial(record, *each)) for each in batches(count, make)]
            specs = [each for each in (ATTEMPTS, DELIVERIES, NOTIFICATIONS) if each.name in names]
            joined = sum(seconds(Upkeep(each, str(home / each.name), unused_hours=0).step) for each in specs)
            size = sum(file.stat().st_size for name in names for file in (home / name).rglob("*.parquet"))
            rate = round(count / sum(taken))
            table.add(
                " + ".join(names), count, rate, round(max(taken) * 1000), round(size / count, 1), round(count / joined)
            )


def attempt_values(begin: int, count: int) -> list[bytes]:
    return [attempts.encode(*map(delivery, range(begin, begin + count)))]


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


def changes(report: Report) -> None:
    """One subscription of many ended ones changes."""
    count = 20_000 if report.quick else 1_600_000
    with tempfile.TemporaryDirectory() as folder:
        table = DeltaTableWriter(SUBSCRIPTIONS, folder)
        for first in range(0, count, 20_000):
            table.extend(SUBSCRIPTIONS.arrow([_ended(number) for number in range(first, first + 20_000)]), {})
        Upkeep(SUBSCRIPTIONS, folder, unused_hours=0).step()
        key, changed = _ended(count // 2)["subscription"], SUBSCRIPTIONS.arrow([_ended(count // 2) | {"reason": "x"}])

        def change() -> None:
            table.change([key], lambda _: [_ended(count // 2) | {"reason": "y"}], {})

        def merge() -> None:
            merger = open_table(folder).merge(changed, "t.subscription = s.subscription", "s", "t")
            merger.when_matched_update({"reason": "s.reason"}).execute()

        title = f"One changed row of {count:,}"
        with report.table(title, "by", "seconds", "memory at most, MiB more") as rows:
            for name, action in (("a change", change), ("a merge of delta-rs", merge)):
                rows.add(name, *map(partial(round, ndigits=1), _with_peak(partial(seconds, action))))


def _ended(number: int) -> dict[str, Any]:
    name = hashlib.sha256(str(number).encode()).hexdigest()
    endpoint, content = f"http://{name[:12]}.example/inbox", f"//t:value[. > {number % 997}] and //t:id = '{name[32:]}'"
    facts = {"subscription": name[:32], "state": "ended", "endpoint": endpoint, "content": content}
    return neutral(SUBSCRIPTIONS, **facts, expression=f"{{urn:t}}building/floor-{number % 50}//.")


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
            assert tables.attempts.arrow(where=wanted).num_rows == 1
            asked: dict[str, Callable[[], object]] = {
                "the attempts of one notification": lambda: tables.attempts.arrow(where=wanted),
                "audit of one hour": lambda: tables.audit(**span, of="tables"),
                "slowest endpoints": lambda: tables.slowest_endpoints(since=middle),
            }
            for question, ask in asked.items():
                table.add(question, round(seconds(ask), 2))


def shifted(pattern: pa.Table, by: int) -> pa.Table:
    """The rows of `pattern`, shifted by a number of notifications."""
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


_FAN_OUT, _AUDIT_TOPICS, _WRITTEN_S = 10, 1_000, 600.0


def audits(report: Report) -> None:
    """Each notification is for ten of 10,000 subscriptions; one delivery in a hundred was parked before."""
    count = 50_000 if report.quick else report.options.count
    count -= count % _FAN_OUT
    with started_broker() as (broker, _):
        kafka, since_ms = settings_for(broker), int(time.time() * 1000)
        _write(kafka, count)
        shallow, shallow_grown = _with_peak(lambda: audit(kafka, since_ms))
        deep, deep_grown = _with_peak(lambda: audit(kafka, since_ms, deep=True))
        order, order_grown = _with_peak(lambda: audit(kafka, since_ms, order=True))
    assert shallow.balanced, shallow.problems[:3]
    assert deep.balanced, deep.problems[:3]
    assert shallow.totals.delivered == order.first_attempts == count
    assert order.balanced, order.problems[:3]
    columns = ("audit", "seconds", "memory at most, MiB more")
    with report.table(f"audit of {count:,} deliveries, {shallow.rows:,} rows", *columns) as table:
        table.add("plain", shallow.seconds, shallow_grown)
        table.add("--deep", deep.seconds, deep_grown)
        table.add("--order", order.seconds, order_grown)


def _with_peak(action: Callable[[], _T]) -> tuple[_T, float]:
    """The result, and by how many MiB this process was larger in between."""
    before, process, over = resident(), psutil.Process(), threading.Event()
    sizes = [before]

    def look() -> None:
        while not over.wait(0.02):
            sizes.append(process.memory_info().rss)

    with ThreadPoolExecutor(1) as beside:
        beside.submit(look)
        try:
            return action(), (max(sizes) - before) / 2**20
        finally:
            over.set()


def _write(kafka: KafkaSettings, count: int) -> None:
    with closing(ControlLog(kafka)) as control:
        control.ensure_created()
        subscriptions = [
            Subscription(
                id=f"subscription-{number:08}",
                consumer=EndpointReference(f"http://receiver{number}.example/"),
                topics=(parse_friendly(f"plant:line{number // _FAN_OUT}"),),
            )
            for number in range(_AUDIT_TOPICS * _FAN_OUT)
        ]
        known = control.append([SubscriptionRecord(each) for each in subscriptions]) + 1
    log, attempts = DurableWriter(kafka, "notifications"), AttemptsLog(kafka)
    attempts.connect()
    offsets: dict[int, int] = {}
    made = _audited(count // _FAN_OUT)
    number = 0
    while batch := [each for _, each in zip(range(2_000), made, strict=False)]:
        matched: dict[int, list[Matched]] = {}
        for notification in batch:
            partition = int(notification.topic[10:]) % log.partitions
            log.send(partition, notifications.encode(notification)[1], notification.topic.encode())
            offset = offsets[partition] = offsets.get(partition, -1) + 1
            row = Matched(notification.id, notification.topic, notification.accepted_ms, offset, _FAN_OUT, priority=0)
            matched.setdefault(partition, []).append(row)
        for partition, counts in matched.items():
            attempts.add_matched(partition, number, known, counts)
        for place, notification in enumerate(batch):
            for each in range(_FAN_OUT):
                subscription = subscriptions[int(notification.topic[10:]) * _FAN_OUT + each]
                if place % 10 == 0 and each == 0:
                    attempts.add(_row(notification, subscription, number, parked=True))
                attempts.add(_row(notification, subscription, number))
        log.settle(_WRITTEN_S)
        attempts.settle(_WRITTEN_S)
        number += 1
    attempts.close()
    log.close()


def _audited(count: int) -> Iterator[Notification]:
    for number in range(count):
        yield Notification(
            f"{number:032x}",
            TopicPath(f"plant/line{number % _AUDIT_TOPICS}"),
            b"<m>x</m>" * 40,
            int(time.time() * 1000),
        )


def _row(notification: Notification, subscription: Subscription, batch: int, parked: bool = False) -> Attempt:
    return attempt(
        notification.id,
        subscription.id,
        "parked" if parked else "delivered",
        topic=notification.topic,
        endpoint=subscription.consumer.address,
        push=f"0123456789abcdef-{batch}",
        accepted_ms=notification.accepted_ms,
        started_ms=notification.accepted_ms + 40,
        request_bytes=1_500,
        batch=batch,
    )


CASES = {"recording": recording, "changes": changes, "questions": questions, "audit": audits}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--count", type=int, default=1_000_000, help="deliveries of the audit")


def measure(report: Report) -> None:
    for case in report.options.cases or ("recording", "questions"):
        CASES[case](report)


if __name__ == "__main__":
    run(measure, options)
