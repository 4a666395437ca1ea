"""The dispatch job inside the test process, on the shared Spark session, with what tests put into its logs."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dispatch.attempts import NO_BATCH
from dispatch.gate import StopGate
from dispatch.runtime import DispatchJob, JobSettings
from dispatch.settings import DispatchSettings, PushSettings, RetrySettings, TableSettings
from dispatch.tables import ATTEMPTS
from tests.support.outbound import THIS_MACHINE
from topic_model import notifications
from topic_model.control_log import ControlLog
from topic_model.errors import InfrastructureError
from topic_model.kafka_client import Producer, make_producer, translated
from topic_model.kafka_topics import ensure_topics
from topic_model.notifications import Notification
from topic_model.records import ControlRecord, SubscriptionEnded, SubscriptionRecord
from topic_model.settings import KafkaSettings, SecretSettings
from topic_model.subscriptions import EndpointReference, Subscription, TopicFilter
from topic_model.topics import TopicPath


def job_settings(home: Path, kafka: KafkaSettings, **push: float) -> JobSettings:
    """Settings for tests: short times."""
    settings = {"connect_timeout_s": 1.0, "total_timeout_s": 2.0, **push}
    return JobSettings(
        home,
        kafka,
        DispatchSettings(task_slots=2),
        PushSettings(**settings),  # type: ignore[arg-type]
        TableSettings(interval_s=0.3),
        THIS_MACHINE,
        RetrySettings(first_wait_s=0.2, factor=1.0, jitter=0.0, first_probe_s=0.2, longest_probe_s=0.5),
        SecretSettings(key_file=str(home / "secrets.keys")),
    )


def subscription(name: str, url: str, topic: str, **more: object) -> Subscription:
    """A subscription to one topic or, with `//.`, to a subtree."""
    return Subscription(
        id=name,
        consumer=EndpointReference(url),
        address=f"http://broker.example/wsn/subscriptions/{name}",
        topics=(TopicFilter("", topic, topic),),
        **more,  # type: ignore[arg-type]
    )


class Logs:
    """Writes to the control and notifications logs, as the gateway would."""

    def __init__(self, kafka: KafkaSettings) -> None:
        ensure_topics(kafka)
        self._kafka = kafka
        self._control = ControlLog(kafka)
        self._producer: Producer = make_producer(kafka)
        self._numbers = itertools.count(1)

    def subscribe(self, *subscriptions: Subscription) -> None:
        self.control(*(SubscriptionRecord(each) for each in subscriptions))

    def end(self, subscription_id: str) -> None:
        self.control(SubscriptionEnded(subscription_id, "unsubscribed", int(time.time() * 1000)))

    def control(self, *records: ControlRecord) -> None:
        self._control.append(records)

    def notify(self, topic: str, payload: bytes = b"<x/>") -> str:
        """Append one notification; its id."""
        notification_id = f"n{next(self._numbers)}"
        key, value = notifications.encode(
            Notification(notification_id, TopicPath(topic), payload, int(time.time() * 1000))
        )
        self.raw(value, key)
        return notification_id

    def notify_many(self, topics: Iterable[str], payload: bytes = b"<x/>") -> list[str]:
        """Append a notification for each topic, waiting for Kafka only once; their ids."""
        names, acknowledged = [], itertools.count()
        with translated("the notifications were not accepted"):
            for topic in topics:
                names.append(f"n{next(self._numbers)}")
                made = Notification(names[-1], TopicPath(topic), payload, int(time.time() * 1000))
                key, value = notifications.encode(made)
                future = self._producer.send(self._kafka.topic("notifications"), key=key, value=value)
                future.add_callback(lambda _: next(acknowledged))
            self._producer.flush(timeout=60)
        assert next(acknowledged) == len(names), "Kafka has not taken all of them"
        return names

    def raw(self, value: bytes, key: bytes = b"raw") -> None:
        """Append any bytes to the notifications log. Raises InfrastructureError when Kafka did not acknowledge them."""
        acknowledged: list[object] = []
        with translated("the notification was not accepted"):
            future = self._producer.send(self._kafka.topic("notifications"), key=key, value=value)
            future.add_callback(acknowledged.append)
            self._producer.flush(timeout=10)
        if not acknowledged:
            raise InfrastructureError("the notification was not accepted", 1.0)

    def close(self) -> None:
        self._control.close()
        self._producer.close(timeout=1)


@contextmanager
def logs(kafka: KafkaSettings) -> Iterator[Logs]:
    opened = Logs(kafka)
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def running(spark: SparkSession, settings: JobSettings, timeout: float = 60.0) -> Iterator[StopGate]:
    """The job in a thread, ready when the context is entered, stopped in order when it is left."""
    gate = StopGate()
    ready = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            DispatchJob(spark, settings, gate).run(ready.set)
        except BaseException as error:
            failures.append(error)
            ready.set()

    thread = threading.Thread(target=work, name="dispatch-job")
    thread.start()
    try:
        assert ready.wait(timeout), f"the job was not ready within {timeout} s"
        if not failures:
            yield gate
    finally:
        gate.close()
        thread.join(timeout)
        assert not thread.is_alive(), "the job did not stop"
    if failures:
        raise failures[0]


def attempt_rows(
    settings: JobSettings, expected: int, timeout: float = 30.0, of_batches: bool = False
) -> list[dict[str, object]]:
    """The rows of the attempts table (`of_batches`: without those of the redelivery) once there are `expected`."""
    location = ATTEMPTS.location(settings.tables, settings.home)
    deadline = time.monotonic() + timeout
    rows: list[dict[str, object]] = []
    while time.monotonic() < deadline:
        if DeltaTable.is_deltatable(location):
            rows = DeltaTable(location).to_pyarrow_table().to_pylist()
            rows = [row for row in rows if not of_batches or row["batch"] != NO_BATCH]
            if len(rows) >= expected:
                return rows
        time.sleep(0.1)
    raise TimeoutError(f"{len(rows)} of {expected} rows in {location} within {timeout} s")
