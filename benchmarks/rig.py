"""The one rig: a real broker, the dispatch job under spark-submit, a receiver and a gateway, in processes of their own.

Every run is checked: each accepted message has to arrive at each subscriber, once, in the order of its publisher.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from arborcast.core.eventlog.client import make_producer
from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.security.keyring import add_key
from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.control import ControlRecord, SubscriptionRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import DeliveryForm
from arborcast.topic_model.topics import TopicPath
from benchmarks.load import Sent, Traffic, send
from benchmarks.report import cpu_with_children_s, percentile
from tests.support.broker import BrokerProcess, new_broker, settings_for
from tests.support.dispatch_job import subscription
from tests.support.dispatch_process import ROOT, DispatchProcess, running_job
from tests.support.gateway_process import GatewayRun, gateway_run

Settings = Mapping[str, str | int | float]

# The log append has this many topics, in turn: one order is within one of them.
TOPICS = 4

OUTCOME = ("sent", "delivered/s", "p50 ms", "p99 ms", "lost", "twice", "disorder", "refused")


@dataclass(frozen=True)
class Arrival:
    """A message at the receiver."""

    at: float
    path: str
    mark: str


@dataclass
class Outcome:
    """The check of one run. Delays are in ms, from the moment at which a message was due."""

    sent: int = 0
    refused: int = 0
    delivered: int = 0
    lost: int = 0
    twice: int = 0
    disorder: int = 0
    seconds: float = 0.0
    delays: list[float] = field(default_factory=list)
    cpu: dict[str, float] = field(default_factory=dict)

    @property
    def per_second(self) -> float:
        return self.delivered / self.seconds if self.seconds else 0.0

    @property
    def p50_ms(self) -> float | None:
        return percentile(self.delays, 0.5) if self.delays else None

    @property
    def p99_ms(self) -> float | None:
        return percentile(self.delays, 0.99) if self.delays else None

    def cells(self) -> tuple[int | float | None, ...]:
        """A row of a table with the columns OUTCOME."""
        figures = (self.sent, self.per_second, self.p50_ms, self.p99_ms)
        return *figures, self.lost, self.twice, self.disorder, self.refused


def check(sent: Mapping[str, float], arrived: Sequence[Arrival], paths: Sequence[str], topics: int = 1) -> Outcome:
    """Compare. `sent`: mark -> when it was due; a publisher's messages are in order within each of its topics."""
    outcome = Outcome(sent=len(sent))
    seen: dict[str, set[str]] = {path: set() for path in paths}
    latest: defaultdict[tuple[str, str, int], int] = defaultdict(int)
    last = 0.0
    for each in arrived:
        if each.path not in seen or each.mark not in sent:
            continue
        if each.mark in seen[each.path]:
            outcome.twice += 1
            continue
        seen[each.path].add(each.mark)
        publisher, _, text = each.mark.rpartition("-")
        number = int(text)
        lane = (each.path, publisher, number % topics)
        outcome.disorder += number < latest[lane]
        latest[lane] = max(number, latest[lane])
        outcome.delays.append((each.at - sent[each.mark]) * 1e3)
        last = max(last, each.at)
    outcome.lost = sum(len(sent.keys() - marks) for marks in seen.values())
    outcome.delivered = len(outcome.delays)
    outcome.seconds = max(0.0, last - min(sent.values(), default=last))
    return outcome


class ReceiverProcess:
    """Subscribers in one process: each path is one, and its first step sets the behaviour."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "tests.support.receiver", "--marks", *options]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self._process.stdout is not None
        url, *ports = self._process.stdout.readline().split()
        self.url = url.rstrip("/")
        self.more_ports = [int(port) for port in ports]
        self.pid = self._process.pid

    def __enter__(self) -> ReceiverProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def arrivals(self, expected: int, quiet_s: float = 60.0, paths: Sequence[str] | None = None) -> list[Arrival]:
        """The arrivals, once there are `expected` different ones or none came for `quiet_s`."""
        known, since, chosen = -1, time.monotonic(), None if paths is None else frozenset(paths)
        while True:
            # The number first: repeated lists of all arrivals would take CPU time from the engine.
            count = self._get("_stats")["marks"]
            changed, quiet = count != known, time.monotonic() - since > quiet_s
            if changed:
                known, since = count, time.monotonic()
            if (changed and count >= expected) or (quiet and not changed):
                found = [
                    Arrival(at, path, mark)
                    for at, path, marks in self._get("_marks")
                    if chosen is None or path in chosen
                    for mark in marks.split(",")
                ]
                # Repeated ones must not count for those that are missing.
                if quiet or len({(each.path, each.mark) for each in found}) >= expected:
                    return found
            time.sleep(0.3)

    def clear(self) -> None:
        """Forget the arrivals."""
        self._get("_clear")

    def _get(self, name: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/{name}", timeout=60) as response:  # noqa: S310 - our own receiver
            return json.loads(response.read())


class Rig:
    """The running parts."""

    def __init__(self, home: Path, kafka: KafkaSettings, broker_pid: int, receiver: ReceiverProcess) -> None:
        self.home = home
        self.kafka = kafka
        self.receiver = receiver
        self.job: DispatchProcess | None = None
        self.gateway: GatewayRun | None = None
        self._broker_pid = broker_pid
        self._control = ControlLog(kafka)

    def subscribe(
        self, names: Sequence[str], topic: str = "bench//.", form: DeliveryForm = "notify", **more: Any
    ) -> list[str]:
        """A subscription for each name, pushed to the path of that name; these paths."""
        self.add({name: f"{self.receiver.url}/{name}" for name in names}, topic, form=form, **more)
        return [f"/{name}" for name in names]

    def add(self, consumers: Mapping[str, str], topic: str, **more: Any) -> None:
        """Subscriptions by these names, pushed to these URLs."""
        self.control([SubscriptionRecord(subscription(name, url, topic, **more)) for name, url in consumers.items()])

    def control(self, records: Sequence[ControlRecord]) -> None:
        """Append to the control log."""
        for start in range(0, len(records), 5_000):
            self._control.append(records[start : start + 5_000])

    def publish(self, paths: Sequence[str], traffic: Traffic) -> Outcome:
        """Publish at the gateway, wait until all has arrived at these paths, and check."""
        assert self.gateway is not None
        self.receiver.clear()
        before = self.cpu()
        sent = send(replace(traffic, port=self.gateway.port))
        return self.checked(sent, paths, before, traffic.topics)

    def checked(self, sent: Sent, paths: Sequence[str], before: Mapping[str, float], topics: int = 1) -> Outcome:
        """The check of a run of the load driver that began when the CPU time was `before`."""
        arrived = self.receiver.arrivals(len(sent.acknowledged) * len(paths), paths=paths)
        outcome = check(sent.acknowledged, arrived, paths, topics)
        outcome.refused = sent.refused
        outcome.cpu = {name: used - before.get(name, 0.0) for name, used in self.cpu().items()}
        return outcome

    def append(
        self, label: str, count: int, topics: int = TOPICS, rate: float | None = None, **more: Any
    ) -> dict[str, float]:
        """Append messages to the log, on topics in turn, as `paced`. Mark -> when it was due."""

        def encode(number: int, mark: str) -> tuple[bytes, bytes]:
            return _record(mark, number % topics, **more)

        return self.append_encoded(self.kafka.topic("notifications"), encode, label, count, rate)

    def append_encoded(
        self,
        log: str,
        encode: Callable[[int, str], tuple[bytes, bytes]],
        label: str,
        count: int,
        rate: float | None = None,
    ) -> dict[str, float]:
        """Append `encode(number, mark)` to a log of Kafka, as `paced`."""
        with closing(make_producer(self.kafka, linger_ms=0 if rate else 5)) as producer:

            def put(number: int, mark: str) -> None:
                key, value = encode(number, mark)
                producer.send(log, key=key, value=value)

            due = paced(put, label, count, rate)
            producer.flush()
        return due

    def delivered(self, sent: Mapping[str, float], paths: Sequence[str], topics: int = TOPICS) -> Outcome:
        """Wait until all of these have arrived at these paths, and check."""
        return check(sent, self.receiver.arrivals(len(sent) * len(paths), paths=paths), paths, topics)

    def warm(self, paths: Sequence[str], rate: float = 50, seconds: float = 5) -> None:
        """Run code, connections and caches once; nothing of it is counted."""
        self.delivered(self.append("warm", round(rate * seconds), rate=rate), paths)
        self.receiver.clear()

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Processes by part."""
        found = self.job.processes() if self.job is not None else {}
        if self.gateway is not None:
            found["gateway"] = [psutil.Process(self.gateway.pid)]
        return {**found, "kafka": [psutil.Process(self._broker_pid)], "receiver": [psutil.Process(self.receiver.pid)]}

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU so far, by part."""
        # With the times of ended children: a change of mode ends workers.
        return {name: cpu_with_children_s(processes) for name, processes in self.processes().items()}


@contextmanager
def started_broker() -> Iterator[tuple[BrokerProcess, Path]]:
    """A broker of its own, and the temporary folder that it is in."""
    with tempfile.TemporaryDirectory(prefix="arborcast-bench-", ignore_cleanup_errors=True) as name:
        broker = new_broker(Path(name) / "kafka")
        try:
            broker.start()
            yield broker, Path(name)
        finally:
            broker.kill()


@contextmanager
def rig(
    settings: Settings | None = None,
    *,
    partitions: int = 4,
    job: bool = True,
    gateway: bool = False,
    more_ports: int = 0,
    more: str = "",
) -> Iterator[Rig]:
    """The parts, started; nothing is left afterwards. `more` are sections of the gateway's settings file."""
    with started_broker() as (broker, home), ExitStack() as stack:
        receiver = stack.enter_context(ReceiverProcess("--more-ports", str(more_ports)))
        assert broker.pid is not None
        kafka = KafkaSettings(bootstrap_servers=settings_for(broker).bootstrap_servers, partitions=partitions)
        ensure_topics(kafka)
        made = Rig(home, kafka, broker.pid, receiver)
        if job:
            keys = home / "secrets.keys"
            add_key(keys, "k1")
            chosen = {"tables.interval_s": 5.0, "secrets.key_file": str(keys), **(settings or {})}
            made.job = stack.enter_context(running_job(home / "job", kafka, chosen))
        if gateway:
            made.gateway = stack.enter_context(gateway_run(home / "gateway", kafka, more=more, forked=False))
        yield made


def paced(put: Callable[[int, str], object], label: str, count: int, rate: float | None = None) -> dict[str, float]:
    """Call `put(number, mark)` as fast as it takes them, or in open loop at random times. Mark -> when it was due."""
    generator, at = random.Random(1), time.time()
    due: dict[str, float] = {}
    for number in range(count):
        at = time.time() if rate is None else at + generator.expovariate(rate)
        if (delay := at - time.time()) > 0:
            time.sleep(delay)
        mark = f"{label}-{number:08d}"
        due[mark] = at
        put(number, mark)
    return due


def payload(mark: str, size: int = 800) -> bytes:
    """A payload of `size` bytes with a mark."""
    start = f'<b:m xmlns:b="urn:bench" mark="{mark}">'
    return f"{start}{'x' * max(0, size - len(start) - 6)}</b:m>".encode()


def settings_of(pairs: Sequence[str]) -> dict[str, str | int | float]:
    """`dispatch.task_slots=2` and others, as given on the command line."""
    settings: dict[str, str | int | float] = {}
    for pair in pairs:
        key, _, text = pair.partition("=")
        try:
            settings[key] = json.loads(text)
        except ValueError:
            settings[key] = text
    return settings


def _record(
    mark: str, topic: int, path: str = "", size: int = 800, root: str = "bench", **more: Any
) -> tuple[bytes, bytes]:
    place, now_ms = TopicPath(path or f"{root}/topic{topic}"), int(time.time() * 1000)
    made = Notification(mark, place, payload(mark, size), now_ms, **more)
    return notifications.encode(made)
