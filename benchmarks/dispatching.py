"""What the dispatch measurements share: a real broker, the job under spark-submit, a receiver in a process of its own,
and a loader that keeps to its schedule whatever the engine does."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import psutil

from arborcast.core.eventlog.client import make_producer
from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.control import ControlRecord, SubscriptionRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import DeliveryForm, EndpointReference, Subscription, TopicFilter
from arborcast.topic_model.topics import TopicPath
from tests.support.broker import new_broker, settings_for
from tests.support.dispatch_process import ROOT, Bundle, DispatchProcess, running_job

# An 800-byte payload: the size that the other systems were measured with.
PAYLOAD = b'<m:measured xmlns:m="urn:bench">' + b"x" * 754 + b"</m:measured>"


@dataclass(frozen=True)
class Arrival:
    """One notification as the receiver saw it."""

    at: float
    path: str
    notification: str


@dataclass
class Surroundings:
    """A broker, a receiver, and what is put into the log; the job is somebody else's."""

    home: Path
    kafka: KafkaSettings
    broker_pid: int
    receiver_pid: int
    receiver_url: str
    more_ports: Sequence[int]

    def __post_init__(self) -> None:
        self._control = ControlLog(self.kafka)

    def subscribe(self, names: Sequence[str], topic: str = "bench//.", form: DeliveryForm = "notify") -> None:
        """One subscription per name, pushed to the path of that name."""
        self._control.append(
            [
                SubscriptionRecord(
                    Subscription(
                        id=name,
                        consumer=EndpointReference(f"{self.receiver_url}/{name}"),
                        address=f"http://127.0.0.1/wsn/subscriptions/{name}",
                        topics=(TopicFilter("", topic, topic),),
                        form=form,
                    )
                )
                for name in names
            ]
        )

    def control(self, records: Sequence[ControlRecord]) -> None:
        """Append to the control log."""
        self._control.append(records)

    def append(self, ids: Sequence[str], topics: int = 4) -> dict[str, float]:
        """Put notifications into the log as fast as Kafka takes them. Id -> when it was handed over."""
        producer = make_producer(self.kafka, linger_ms=5)
        sent: dict[str, float] = {}
        for number, notification_id in enumerate(ids):
            key, value = _record(notification_id, number % topics)
            sent[notification_id] = time.time()
            producer.send(self.kafka.topic("notifications"), key=key, value=value)
        producer.flush()
        producer.close(timeout=5)
        return sent

    def append_at(self, rate: float, seconds: float, label: str, seed: int = 1, priority: int = 0) -> dict[str, float]:
        """Open loop: random arrivals at this mean rate, whatever the engine does. Id -> the time it was meant for."""
        generator = random.Random(seed)
        producer = make_producer(self.kafka)
        intended: dict[str, float] = {}
        at = time.time() + 0.1
        end = at + seconds
        number = 0
        while at < end:
            delay = at - time.time()
            if delay > 0:
                time.sleep(delay)
            notification_id = f"{label}-{number}"
            key, value = _record(notification_id, number % 4, priority)
            producer.send(self.kafka.topic("notifications"), key=key, value=value)
            intended[notification_id] = at
            number += 1
            at += generator.expovariate(rate)
        producer.flush()
        producer.close(timeout=5)
        return intended

    def arrivals(self, expected: int, timeout: float = 60.0) -> list[Arrival]:
        """What arrived, once there are `expected` notifications or nothing new came for `timeout` seconds."""
        quiet_since, before = time.monotonic(), -1
        while True:
            arrived = [
                Arrival(at, path, notification)
                for at, path, ids, _ in _get(f"{self.receiver_url}/_received")
                for notification in ids.split(",")
            ]
            if len(arrived) != before:
                quiet_since, before = time.monotonic(), len(arrived)
            if len(arrived) >= expected or time.monotonic() - quiet_since > timeout:
                return arrived
            time.sleep(0.5)

    def clear(self) -> None:
        """Forget what arrived."""
        _get(f"{self.receiver_url}/_clear")

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Processes by part."""
        return {"kafka": [psutil.Process(self.broker_pid)], "receiver": [psutil.Process(self.receiver_pid)]}


@dataclass
class Dispatching(Surroundings):
    """With the job, in processes of its own."""

    job: DispatchProcess

    def processes(self) -> dict[str, list[psutil.Process]]:
        return {**self.job.processes(), **super().processes()}


@contextmanager
def surroundings(partitions: int = 4, receiver_options: Sequence[str] = ()) -> Iterator[Surroundings]:
    """All up but the job; everything gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="arborcast-bench-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        broker = new_broker(home / "kafka")
        broker.start()  # before the receiver, which may take a thousand ports
        receiver = subprocess.Popen(
            [sys.executable, "-m", "tests.support.receiver", *receiver_options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        try:
            assert receiver.stdout is not None
            url, *more_ports = receiver.stdout.readline().split()
            assert broker.pid is not None
            kafka = KafkaSettings(bootstrap_servers=settings_for(broker).bootstrap_servers, partitions=partitions)
            ensure_topics(kafka)
            yield Surroundings(home, kafka, broker.pid, receiver.pid, url.rstrip("/"), [*map(int, more_ports)])
        finally:
            receiver.kill()
            receiver.wait()
            broker.kill()


@contextmanager
def dispatching(
    settings: Mapping[str, str | int | float] | None = None,
    partitions: int = 4,
    receiver_options: Sequence[str] = (),
    bundle: Bundle | None = None,
) -> Iterator[Dispatching]:
    """Everything up and ready; everything gone afterwards. With a bundle the job runs where that says."""
    with surroundings(partitions, receiver_options) as around:
        chosen = {"tables.interval_s": 5.0, **(settings or {})}
        with running_job(around.home / "job", around.kafka, chosen, bundle) as job:
            known = {each.name: getattr(around, each.name) for each in fields(around)}
            yield Dispatching(**known, job=job)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def out_of_order(arrived: Sequence[Arrival], intended: Mapping[str, float]) -> int:
    """How many first arrivals came before one of the same subscriber and topic that was sent earlier."""
    latest: dict[tuple[str, int], int] = {}
    wrong = 0
    for arrival in arrived:
        number = int(arrival.notification.rpartition("-")[2])
        lane = (arrival.path, number % 4)
        if number < latest.get(lane, -1):
            wrong += 1
        latest[lane] = max(number, latest.get(lane, -1))
    return wrong


def settings_arguments(pairs: Sequence[str]) -> dict[str, str | int | float]:
    """`dispatch.task_slots=2` and the like, as given on the command line."""
    settings: dict[str, str | int | float] = {}
    for pair in pairs:
        key, _, text = pair.partition("=")
        try:
            settings[key] = json.loads(text)
        except ValueError:
            settings[key] = text
    return settings


def _record(notification_id: str, topic: int, priority: int = 0) -> tuple[bytes, bytes]:
    path, now_ms = TopicPath(f"bench/topic{topic}"), int(time.time() * 1000)
    return notifications.encode(Notification(notification_id, path, PAYLOAD, now_ms, priority=priority))


def _get(url: str) -> list[tuple[float, str, str, str]]:
    with urllib.request.urlopen(url, timeout=60) as response:  # noqa: S310
        answer: list[tuple[float, str, str, str]] = json.loads(response.read())
        return answer
