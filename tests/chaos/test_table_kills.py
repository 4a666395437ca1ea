"""Tables whose writer is killed repeatedly, after a loss of power, and when they cannot be written at all: they have
the records of the logs, each row once, and no delivery waits for them.

The tables are written all the time here (five commits a second, small files joined every second), so a kill meets
unfinished commits. The log is the reference: a push that a crash repeated is two attempts there, and so in the table.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from arborcast.core.eventlog.scan import LogScan
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.tables import ATTEMPTS, DELIVERIES, NOTIFICATIONS, RETRIES, SUBSCRIPTIONS
from arborcast.dispatch.tables.delta_table import rows_of
from arborcast.dispatch.tables.spec import TableSpec
from arborcast.topic_model.records import notifications
from tests.chaos.test_disasters import tear
from tests.support.dispatch_job import Logs, logs, subscription
from tests.support.dispatch_process import DispatchProcess, running_job
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.chaos, pytest.mark.kafka, pytest.mark.spark]

KILLS = 3
PER_LIFE = 100
Settings = dict[str, str | int | float]

SETTINGS: Settings = {
    "tables.interval_s": 0.2,
    "tables.upkeep_interval_s": 1,
    # Messages for the failing receiver stay in the table of retries.
    "retry.first_wait_s": 3_600,
    "retry.longest_wait_s": 3_600,
}
FINAL = ("delivered", "dead", "expired", "cancelled", "dropped")


@contextmanager
def written_to(home: Path, kafka: KafkaSettings, settings: Settings) -> Iterator[tuple[Logs, DispatchProcess]]:
    """A job with a receiver that works and one that fails."""
    with Receiver() as receiver, logs(kafka) as log, running_job(home, kafka, settings) as job:
        log.subscribe(
            subscription("well", receiver.url("/well"), "a//."),
            subscription("sick", receiver.url("/status/503"), "a//."),
        )
        yield log, job


def test_tables_hold_each_row_once_however_often_their_writer_is_killed(
    tmp_path: Path, kafka_settings: KafkaSettings
) -> None:
    moments = random.Random(7)
    sent: list[str] = []
    tables = Tables(tmp_path)
    with written_to(tmp_path, kafka_settings, SETTINGS) as (log, job):
        for _ in range(KILLS):
            versions = tables.versions()
            sent += [log.notify("a/b") for _ in range(PER_LIFE)]
            wait(lambda: all(new > old for new, old in zip(tables.versions(), versions, strict=True)), job, "commits")  # noqa: B023  # called at once
            sent += [log.notify("a/b") for _ in range(moments.randrange(100))]
            job.kill()
            job.start()
        sent += [log.notify("a/b") for _ in range(PER_LIFE)]
        written = Written(kafka_settings)
        wait(lambda: tables.caught_up(written, sent), job, "the tables to have all that is in the logs")

    assert_each_once(tables, written, sent)


def test_tables_that_a_power_cut_has_damaged_are_whole_again_by_themselves(
    tmp_path: Path, kafka_settings: KafkaSettings
) -> None:
    tables = Tables(tmp_path)
    with written_to(tmp_path, kafka_settings, {**SETTINGS, "tables.upkeep_interval_s": 3_600}) as (log, job):
        sent: list[str] = []
        for _ in range(3):
            versions = tables.versions()
            sent += [log.notify("a/b") for _ in range(PER_LIFE)]
            wait(lambda: all(new > old for new, old in zip(tables.versions(), versions, strict=True)), job, "commits")  # noqa: B023  # called at once
        written = Written(kafka_settings)
        wait(lambda: tables.caught_up(written, sent), job, "the tables to have all that is in the logs")
        job.kill()
        # The queries' checkpoints are intact and cover all rows.
        newest = tables.newest(ATTEMPTS, "_delta_log/*.json")
        tear(newest)
        newest.with_name(f"{int(newest.stem) + 1:020}.json.tmp").write_text('{"add":{"path":"part-')
        tables.newest(NOTIFICATIONS, "_delta_log/*.json").write_bytes(b"")
        tear(tables.newest(DELIVERIES, "*/*.parquet"))
        tables.newest(RETRIES, "*.parquet").unlink()
        (tmp_path / "tables" / SUBSCRIPTIONS.name / "_delta_log" / f"{0:020}.json").write_bytes(b"")
        job.start()
        sent += [log.notify("a/b") for _ in range(PER_LIFE)]
        wait(lambda: tables.caught_up(written, sent), job, "the tables to have all that is in the logs again")
        wait(lambda: tables.counted(SUBSCRIPTIONS.name, "subscription").total() == 2, job, "the subscriptions")
        assert "was restored to version" in job.log(100_000)
    assert_each_once(tables, written, sent)


def test_tables_that_cannot_be_written_hold_up_no_delivery(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    tables = Tables(tmp_path)
    blocked = tmp_path / "tables"
    blocked.write_text("a file where the folder should be")
    with (
        Receiver() as receiver,
        logs(kafka_settings) as log,
        running_job(tmp_path, kafka_settings, SETTINGS) as job,
    ):
        log.subscribe(subscription("well", receiver.url("/well"), "a//."))
        sent = [log.notify("a/b") for _ in range(PER_LIFE)]
        wait(lambda: arrived(receiver, "/well") == set(sent), job, "the deliveries")
        assert "attempts cannot be written" in job.log(100_000)
        blocked.unlink()
        wait(lambda: tables.counted(DELIVERIES.name, "notification").total() == len(sent), job, "the tables")


def arrived(receiver: Receiver, path: str) -> set[str]:
    headers = (request.headers["arborcast-notification-id"] for request in receiver.received(path))
    return {name for each in headers for name in each.split(",")}


def assert_each_once(tables: Tables, written: Written, sent: list[str]) -> None:
    """Each row of the logs is in the tables, once."""
    rows = written.attempts
    # And the engine's own events about the failing receiver.
    assert written.notifications.keys() >= set(sent)
    assert tables.counted(NOTIFICATIONS.name, "notification") == {(name,): 1 for name in written.notifications}
    assert tables.counted(ATTEMPTS.name, *IDENTITY) == Counter(identity(row) for row in rows)
    ended = {(row["notification"], row["subscription"]) for row in rows if row["state"] in FINAL}
    assert ended == {(name, "well") for name in sent}
    assert tables.counted(DELIVERIES.name, "notification", "subscription") == dict.fromkeys(ended, 1)
    assert tables.counted(RETRIES.name, "notification", "subscription") == {(name, "sick"): 1 for name in sent}


IDENTITY = ("notification", "subscription", "number", "push", "state", "started_at", "batch")


def identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in IDENTITY)


class Tables:
    """The tables of a job, read with another library."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "tables"

    def versions(self) -> list[int]:
        """The tables that are written to."""
        return [
            DeltaTable(str(self._folder / spec.name)).version() if (self._folder / spec.name).exists() else -1
            for spec in (NOTIFICATIONS, ATTEMPTS, DELIVERIES, RETRIES)
        ]

    def newest(self, spec: TableSpec, pattern: str) -> Path:
        """The newest file."""
        return max((self._folder / spec.name).glob(pattern), key=lambda path: path.stat().st_mtime_ns)

    def counted(self, name: str, *columns: str) -> Counter[tuple[Any, ...]]:
        if not DeltaTable.is_deltatable(str(self._folder / name)):
            return Counter()
        rows = DeltaTable(str(self._folder / name)).to_pyarrow_dataset().to_table(columns=list(columns)).to_pylist()
        return Counter(tuple(row[column] for column in columns) for row in rows)

    def caught_up(self, written: Written, sent: list[str]) -> bool:
        """Whether all rows are recorded; the test checks for repeated ones."""
        rows = written.read()
        return (
            len({row["notification"] for row in rows if row["state"] == "delivered"}) == len(sent)
            and self.counted(ATTEMPTS.name, "notification").total() >= len(rows)
            and self.counted(NOTIFICATIONS.name, "notification").total() >= written.notifications.total()
            and self.counted(DELIVERIES.name, "notification").total() >= len(sent)
            and self.counted(RETRIES.name, "notification").total() >= len(sent)
        )


class Written:
    """The records of the logs."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self.attempts: list[dict[str, Any]] = []
        self.notifications: Counter[str] = Counter()

    def read(self) -> list[dict[str, Any]]:
        """Read all logs again; returns the rows of attempts."""
        self.attempts = rows_of(self._values("attempts")).to_pylist()
        self.notifications = Counter(notifications.decode(value).id for value in self._values("notifications"))
        return self.attempts

    def _values(self, log: str) -> list[bytes]:
        with LogScan(self._kafka, log) as scan:
            return [record.value for record in scan.read_all() if record.value is not None]


def wait(condition: Callable[[], bool], job: DispatchProcess, what: str) -> None:
    wait_until(condition, lambda: f"{what}\n{job.log()}")
