"""kill -9 of the whole job while it writes its tables, again and again: they hold what the logs hold, each row once.

The tables are written all the time here (five commits a second, small files joined every second), so a kill meets
commits half done. What counts is the log: a push that a crash repeated is two attempts there, and so in the table.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from dispatch.recording.rows import rows_of
from dispatch.recording.tail import Tail
from dispatch.tables import ATTEMPTS, DELIVERIES, NOTIFICATIONS, RETRIES
from tests.support.dispatch_job import logs, subscription
from tests.support.dispatch_process import DispatchProcess, running_job
from tests.support.receiver import Receiver
from topic_model import notifications
from topic_model.settings import KafkaSettings

pytestmark = [pytest.mark.chaos, pytest.mark.kafka, pytest.mark.spark]

KILLS = 3
PER_LIFE = 100
SETTINGS: dict[str, str | int | float] = {
    "tables.interval_s": 0.2,
    "tables.upkeep_interval_s": 1,
    # What the sick receiver does not take stays in the table of what waits.
    "retry.first_wait_s": 3_600,
    "retry.longest_wait_s": 3_600,
}
FINAL = ("delivered", "dead", "expired", "cancelled")


def test_tables_hold_each_row_once_however_often_their_writer_is_killed(
    tmp_path: Path, kafka_settings: KafkaSettings
) -> None:
    moments = random.Random(7)  # noqa: S311
    sent: list[str] = []
    tables = Tables(tmp_path)
    with (
        Receiver() as receiver,
        logs(kafka_settings) as log,
        running_job(tmp_path, kafka_settings, SETTINGS) as job,
    ):
        log.subscribe(
            subscription("well", receiver.url("/well"), "a//."),
            subscription("sick", receiver.url("/status/503"), "a//."),
        )
        for _ in range(KILLS):
            versions = tables.versions()
            sent += [log.notify("a/b") for _ in range(PER_LIFE)]
            wait(lambda: all(new > old for new, old in zip(tables.versions(), versions, strict=True)), job, "commits")  # noqa: B023
            sent += [log.notify("a/b") for _ in range(moments.randrange(100))]
            job.kill()
            job.start()
        sent += [log.notify("a/b") for _ in range(PER_LIFE)]
        written = Written(kafka_settings)
        wait(lambda: tables.caught_up(written, sent), job, "the tables to have all that is in the logs")

    rows = written.attempts
    # Beside them what the engine publishes itself: events about the sick receiver.
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
    """The tables of a job, as a stranger reads them."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "tables"

    def versions(self) -> list[int]:
        """Of those that are written to."""
        return [
            DeltaTable(str(self._folder / spec.name)).version() if (self._folder / spec.name).exists() else -1
            for spec in (NOTIFICATIONS, ATTEMPTS, DELIVERIES, RETRIES)
        ]

    def counted(self, name: str, *columns: str) -> Counter[tuple[Any, ...]]:
        rows = DeltaTable(str(self._folder / name)).to_pyarrow_dataset().to_table(columns=list(columns)).to_pylist()
        return Counter(tuple(row[column] for column in columns) for row in rows)

    def caught_up(self, written: Written, sent: list[str]) -> bool:
        """Whether everything is recorded; too much is the test's to find."""
        rows = written.read()
        return (
            len({row["notification"] for row in rows if row["state"] == "delivered"}) == len(sent)
            and self.counted(ATTEMPTS.name, "notification").total() >= len(rows)
            and self.counted(NOTIFICATIONS.name, "notification").total() >= written.notifications.total()
            and self.counted(DELIVERIES.name, "notification").total() >= len(sent)
            and self.counted(RETRIES.name, "notification").total() >= len(sent)
        )


class Written:
    """What the logs hold."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self.attempts: list[dict[str, Any]] = []
        self.notifications: Counter[str] = Counter()

    def read(self) -> list[dict[str, Any]]:
        """Everything anew; the rows of attempts."""
        self.attempts = rows_of(self._values("attempts")).to_pylist()
        self.notifications = Counter(notifications.decode(value).id for value in self._values("notifications"))
        return self.attempts

    def _values(self, log: str) -> list[bytes]:
        tail = Tail(self._kafka, log, {})
        found: list[bytes] = []
        try:
            while records := tail.read(10_000):
                found += [record.value for record in records if record.value is not None]
        finally:
            tail.close()
        return found


def wait(condition: Callable[[], bool], job: DispatchProcess, what: str, timeout: float = 90.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}\n{job.log()}"
        time.sleep(0.05)
