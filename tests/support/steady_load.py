"""A steady load on the dispatch job, and checks that all of it has arrived, while parts of the engine are killed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import partition_of_key
from arborcast.core.settings import KafkaSettings
from tests.support.dispatch_job import Logs, logs, subscription
from tests.support.receiver import Receiver
from tests.support.waiting import TIMEOUT_S, wait_until

RATE = 100.0
PATHS = ("/one", "/two")


class Load:
    """Appends at a steady rate until `stop`. `accepted` has the acknowledged notifications, in order.

    `beside`: topics that get each message as well, and are not counted.
    """

    def __init__(self, log: Logs, beside: tuple[str, ...] = ()) -> None:
        self._log = log
        self._beside = beside
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self.accepted: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> list[str]:
        self._stop.set()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        return self.accepted

    def _run(self) -> None:
        while not self._stop.wait(1 / RATE):
            try:
                self.accepted.append(self._log.notify("a/b"))
                for topic in self._beside:
                    self._log.notify(topic)
            except InfrastructureError:
                # Without an acknowledgement, it may be lost.
                continue


@contextmanager
def under_load(kafka: KafkaSettings, receiver: Receiver, beside: tuple[str, ...] = ()) -> Iterator[Load]:
    with logs(kafka) as log:
        log.subscribe(*(subscription(path[1:], receiver.url(path), "a//.") for path in PATHS))
        load = Load(log, beside)
        load.start()
        try:
            yield load
        finally:
            load.stop()


def counted(receiver: Receiver, path: str) -> Counter[str]:
    return Counter(receiver.names(path))


def wait_for_more(receiver: Receiver, timeout: float = TIMEOUT_S) -> float:
    """Wait for a new arrival; returns the seconds until then."""
    started, before = time.monotonic(), len(receiver.requests)
    receiver.wait_for(before + 1, timeout=timeout)
    return time.monotonic() - started


def assert_all_arrived(
    receiver: Receiver, accepted: list[str], duplicates_allowed: int, timeout: float = TIMEOUT_S
) -> None:
    def missing() -> dict[str, set[str]]:
        return {path: names for path in PATHS if (names := set(accepted) - set(receiver.names(path)))}

    wait_until(lambda: not missing(), missing, timeout, every_s=0.1)
    for path in PATHS:
        arrived = counted(receiver, path)
        twice = sum(arrived[name] - 1 for name in accepted)
        assert twice <= duplicates_allowed, f"{twice} duplicates at {path}"
        firsts = list(dict.fromkeys(name for name in arrived if name in set(accepted)))
        assert firsts == accepted, "first attempts leave in the order of acceptance"


TOPICS = ("a/x", "a/y", "a/z")


class TopicsLoad:
    """Notifications, one after the other. `sent` has the id of each, its topic and when it was accepted."""

    def __init__(self, log: Logs, topics: Sequence[str] = TOPICS) -> None:
        self._log = log
        self._topics = topics
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent: list[tuple[str, str, int]] = []

    def _run(self) -> None:
        while not self._stopping.wait(0.01):
            topic, now_ms = self._topics[len(self.sent) % len(self._topics)], int(time.time() * 1000)
            self.sent.append((self._log.accept(topic, accepted_ms=now_ms), topic, now_ms))

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            self._thread.join()

    def names(self, *topics: str) -> list[str]:
        """The notifications of these topics, or all."""
        return [name for name, topic, _ in self.sent if not topics or topic in topics]

    def passing(self, interval_ms: int, partitions: int = 0) -> set[str]:
        """The notifications that a minimum interval passes; with `partitions`, over all topics of a partition."""
        until: dict[object, int] = {}
        found = set()
        for name, topic, at_ms in self.sent:
            counts_for = partition_of_key(topic.encode(), partitions) if partitions else topic
            if at_ms >= until.get(counts_for, 0):
                until[counts_for] = at_ms + interval_ms
                found.add(name)
        return found
