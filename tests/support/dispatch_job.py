"""The dispatch job in the test process, on the shared Spark session, with functions that write to its logs."""

from __future__ import annotations

import itertools
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from deltalake import DeltaTable
from kafka.errors import KafkaTimeoutError
from pyspark.sql import SparkSession

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import Producer, make_producer, translated
from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.settings import KafkaSettings, SecretSettings
from arborcast.dispatch.job.runtime import DispatchJob
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.realtime.mode_controller import ModeController
from arborcast.dispatch.realtime.mode_policy import Mode
from arborcast.dispatch.settings import DispatchSettings, JobSettings, PushSettings, RetrySettings, TableSettings
from arborcast.dispatch.spark.query_supervisor import StopGate
from arborcast.dispatch.tables import ATTEMPTS
from arborcast.dispatch.tables.spec import TableSpec
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.control import ControlRecord, SubscriptionEnded, SubscriptionRecord
from arborcast.topic_model.records.notifications import UNSTAMPED, Notification
from arborcast.topic_model.subscriptions import Subscription, Trigger, queue_topic
from arborcast.topic_model.topics import TopicPath
from tests.support import make
from tests.support.broker import records_in
from tests.support.outbound import THIS_MACHINE
from tests.support.waiting import TIMEOUT_S, wait_until

Row = dict[str, Any]

MODES = ["realtime", pytest.param("batch", marks=pytest.mark.long)]
"""The second one runs in `make test-all` only, except for the tests of the first path."""

IN_BOTH_MODES = pytest.mark.parametrize("mode", MODES, indirect=True, scope="module")
"""For a module: its tests share one job for each mode."""


def job_settings(home: Path, kafka: KafkaSettings, mode: Mode | None = None, **push: float | str) -> JobSettings:
    """Settings for tests, with short times. Without a mode the job chooses."""
    settings: dict[str, float | str] = {"connect_timeout_s": 1.0, "total_timeout_s": 2.0, **push}
    return JobSettings(
        home,
        kafka,
        DispatchSettings(task_slots=2, mode=mode or "auto"),
        PushSettings(**settings),  # type: ignore[arg-type]
        TableSettings(interval_s=0.3),
        THIS_MACHINE,
        RetrySettings(first_wait_s=0.2, factor=1.0, jitter=0.0, first_probe_s=0.2, longest_probe_s=0.5),
        SecretSettings(key_file=str(home / "secrets.keys")),
    )


def subscription(name: str, url: str, topic: str, **more: object) -> Subscription:
    """A subscription to one topic or, with `//.`, to a subtree."""
    return make.subscription(name, topic, url, address=f"http://broker.example/wsn/subscriptions/{name}", **more)


def trigger(name: str, on: str, to: str, payload: str = "", **more: object) -> Subscription:
    """A trigger that publishes the matched payload, or this one (an element x), to a topic."""
    its = Trigger(name, TopicPath(to), payload, "x" if payload else "")
    return msgspec.structs.replace(subscription(name, its.endpoint, on, **more), address="", trigger=its)


class Logs:
    """Writes to the control and notifications logs, as the gateway does."""

    def __init__(self, kafka: KafkaSettings, numbers: Iterator[int] | None = None) -> None:
        """`numbers` are the numbers in the ids of its notifications."""
        ensure_topics(kafka)
        self._kafka = kafka
        self._control = ControlLog(kafka)
        self._producer: Producer = make_producer(kafka)
        self._numbers = numbers or itertools.count(1)
        self.position = 0
        """Behind the last control record of this writer."""

    def subscribe(self, *subscriptions: Subscription) -> None:
        self.control(*(SubscriptionRecord(each) for each in subscriptions))

    def end(self, subscription_id: str) -> None:
        self.control(SubscriptionEnded(subscription_id, "unsubscribed", int(time.time() * 1000)))

    def control(self, *records: ControlRecord) -> None:
        self.position = self._control.append(records) + 1

    def notify(self, topic: str, payload: bytes = b"<x/>") -> str:
        """Append one notification without a stamp; returns its id."""
        return self.accept(topic, payload, control=UNSTAMPED)

    def accept(
        self,
        topic: str,
        payload: bytes = b"<x/>",
        control: int | None = None,
        accepted_ms: int | None = None,
        again: str = "",
        only: str = "",
    ) -> str:
        """Append one notification accepted now or at a time, at the end of the control log or an offset; its id.

        `again` is the id of a notification repeated as the current message of its topic, to the subscription `only`.
        """
        notification_id = again or f"n{next(self._numbers)}"
        notification = Notification(
            notification_id,
            TopicPath(topic),
            payload,
            int(time.time() * 1000) if accepted_ms is None else accepted_ms,
            only=only,
            control=self.position if control is None else control,
        )
        key, value = notifications.encode(notification)
        self.raw(value, key)
        return notification_id

    def notify_many(self, topics: Iterable[str]) -> list[str]:
        """Append a notification for each topic, with one flush; returns their ids."""
        names, acknowledged = [], itertools.count()
        with translated("the notifications were not accepted"):
            for topic in topics:
                names.append(f"n{next(self._numbers)}")
                made = Notification(names[-1], TopicPath(topic), b"<x/>", int(time.time() * 1000))
                key, value = notifications.encode(made)
                future = self._producer.send(self._kafka.topic("notifications"), key=key, value=value)
                future.add_callback(lambda _: next(acknowledged))
            self._producer.flush(timeout=60)
        assert next(acknowledged) == len(names), "records without acknowledgement"
        return names

    def raw(self, value: bytes, key: bytes = b"raw") -> None:
        """Append bytes to the notifications log. Raises InfrastructureError without Kafka's acknowledgement."""
        acknowledged: list[object] = []
        try:
            with translated("the notification was not accepted"):
                future = self._producer.send(self._kafka.topic("notifications"), key=key, value=value)
                future.add_callback(acknowledged.append)
                self._producer.flush(timeout=60)
            if not acknowledged:
                raise InfrastructureError("the notification was not accepted", 1.0)
        except InfrastructureError:
            # After an expired record an idempotent producer may refuse all later ones.
            failed, self._producer = self._producer, make_producer(self._kafka)
            failed.abort()
            raise

    def close(self) -> None:
        self._control.close()
        with suppress(KafkaTimeoutError):  # an unacknowledged record of a broker outage
            self._producer.close(timeout=1)


def logs(kafka: KafkaSettings, numbers: Iterator[int] | None = None) -> closing[Logs]:
    return closing(Logs(kafka, numbers))


class RunningJob:
    """The job in a thread of this process. Tests that share a job use separate topics and subscriptions (`Own`).

    One runs at a time, since the names of queries are unique in a Spark session: a start stops the job before."""

    _last: RunningJob | None = None

    def __init__(self, spark: SparkSession, settings: JobSettings) -> None:
        self.settings = settings
        self.numbers = itertools.count(1)
        """Numbers in the ids of its notifications."""
        self._spark = spark
        self.gate = StopGate()
        self._thread: threading.Thread | None = None
        self._failures: list[BaseException] = []
        self._job: DispatchJob | None = None

    @property
    def modes(self) -> ModeController:
        """The modes of the running job."""
        assert self._job is not None
        return self._job.modes

    def start(self, timeout: float = 2 * TIMEOUT_S) -> None:
        """Return when the job is ready. Raises its error."""
        RunningJob.stop_last()
        RunningJob._last = self
        ready = threading.Event()
        self.gate = StopGate()
        self._failures = []
        self._thread = threading.Thread(target=self._run, args=(self.gate, ready), name="dispatch-job")
        self._thread.start()
        assert ready.wait(timeout), f"the job was not ready within {timeout} s"
        if self._failures:
            self.stop(timeout)

    def stop(self, timeout: float = 2 * TIMEOUT_S) -> None:
        """Stop in order. Raises the job's error."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self.gate.close()
            thread.join(timeout)
            assert not thread.is_alive(), "the job did not stop"
        if self._failures:
            raise self._failures.pop()

    @classmethod
    def stop_last(cls) -> None:
        """Stop the running job, if any."""
        if cls._last is not None:
            cls._last.stop()

    def resume(self) -> None:
        """`start`, unless it runs."""
        if self._thread is None or not self._thread.is_alive():
            self.start()

    def restart(self) -> None:
        """`stop`, then `start` with the same checkpoint."""
        self.stop()
        self.start()

    def _run(self, gate: StopGate, ready: threading.Event) -> None:
        try:
            self._job = DispatchJob(self._spark, self.settings, gate)
            self._job.run(ready.set)
        except BaseException as error:
            self._failures.append(error)
            ready.set()


@contextmanager
def running(spark: SparkSession, settings: JobSettings) -> Iterator[RunningJob]:
    """The job, ready at the entry of the context, stopped in order at its exit."""
    job = RunningJob(spark, settings)
    try:
        job.start()
        yield job
    finally:
        job.stop()


def kill_workers() -> int:
    """Kill Spark's Python workers; returns their number."""
    daemons, parents = set(), {}
    for each in psutil.Process(os.getpid()).children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            parents[each] = each.ppid()
            if "arborcast.dispatch.job.worker_daemon" in each.cmdline():
                daemons.add(each.pid)
    workers = [each for each, parent in parents.items() if parent in daemons]
    for each in workers:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    return len(workers)


class Own:
    """The part of one test in a shared job: topics below a root, and subscriptions under unique names.
    Names are passed in and returned without these prefixes."""

    _numbers = itertools.count(1)

    def __init__(self, job: RunningJob, log: Logs) -> None:
        self.job = job
        self._log = log
        self._prefix = f"own{next(self._numbers)}"
        self._names: set[str] = set()

    def topic(self, path: str) -> str:
        """`a/b` or `{urn:t}a//.` below the root of this test."""
        namespace, brace, steps = path.rpartition("}")
        return f"{namespace}{brace}{self._prefix}/{steps}"

    def name(self, subscription_id: str) -> str:
        """The id of a subscription of this test."""
        return f"{self._prefix}-{subscription_id}"

    def subscribe(self, name: str, url: str, topic: str, **more: object) -> None:
        """Add or change a subscription."""
        self._names.add(name)
        self._log.subscribe(subscription(self.name(name), url, self.topic(topic), **more))

    def end(self, name: str) -> None:
        self._names.remove(name)
        self._log.end(self.name(name))

    def notify(self, topic: str, payload: bytes = b"<x/>") -> str:
        """Append one notification; returns its id."""
        return self._log.notify(self.topic(topic), payload)

    def accept(self, topic: str, name: str = "", *, valid_ms: int = 0, **facts: Any) -> Notification:
        """Append one notification with these properties, as the gateway writes it."""
        now_ms = int(time.time() * 1000)
        facts["valid_until_ms"] = now_ms + valid_ms if valid_ms else 0
        made = Notification(
            self.name(name) if name else uuid.uuid4().hex, TopicPath(self.topic(topic)), b"<x/>", now_ms, **facts
        )
        key, value = notifications.encode(made)
        self._log.raw(value, key)
        return made

    def attempts(self, expected: int) -> list[dict[str, Any]]:
        """This number of rows of the test in the attempts table, when it has them."""
        return attempt_rows(self.job.settings, expected, own=self)

    def mine(self, row: dict[str, Any]) -> dict[str, Any] | None:
        """A row with the names of this test; None for a row of another test or of the engine itself."""
        own = dict(row)
        if "subscription" in row:
            queue = queue_topic(str(row["subscription"])) is not None
            if not queue and not str(row["subscription"]).startswith(self.name("")):
                return None
            own["subscription"] = "" if queue else row["subscription"].removeprefix(self.name(""))
        if "topic" in row:
            namespace, brace, steps = str(row["topic"]).rpartition("}")
            if not steps.startswith(f"{self._prefix}/"):
                return None
            own["topic"] = namespace + brace + steps.removeprefix(f"{self._prefix}/")
        return own

    def close(self) -> None:
        """End the remaining subscriptions."""
        for name in sorted(self._names):
            self._log.end(self.name(name))


def attempts_in(kafka: KafkaSettings) -> list[Attempt]:
    """All rows of the attempts log."""
    return [row for record in records_in(kafka, "attempts") for row in attempts.decode(record.value).attempts]


def attempt_rows(settings: JobSettings, expected: int, own: Own | None = None) -> list[dict[str, Any]]:
    """The rows of the attempts table, with `own` those of that test, once there are `expected`."""
    return wait_for_rows(settings, ATTEMPTS, lambda rows: len(rows) >= expected, own)


def wait_for_rows(
    settings: JobSettings, spec: TableSpec, enough: Callable[[list[Row]], object], own: Own | None = None
) -> list[Row]:
    """The rows of a table, with `own` those of that test, once they suffice."""
    location = spec.location(settings.tables, settings.home)
    rows: list[Row] = []

    def found() -> bool:
        if DeltaTable.is_deltatable(location):
            table = DeltaTable(location).to_pyarrow_table().to_pylist()
            rows[:] = [mine for row in table if (mine := row if own is None else own.mine(row)) is not None]
        return bool(enough(rows))

    wait_until(found, lambda: f"{spec.name} has {len(rows)} rows, the last ones are {rows[-5:]}", every_s=0.1)
    return rows
