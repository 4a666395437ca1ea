"""A steady load on the dispatch job, and whether all of it has arrived, while parts of the engine are killed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from core.errors import InfrastructureError
from core.settings import KafkaSettings
from tests.support.dispatch_job import Logs, logs, subscription
from tests.support.receiver import Receiver

RATE = 100.0
PATHS = ("/one", "/two")


class Load:
    """Appends at a steady rate until told to stop. `accepted` holds what Kafka has acknowledged, in order.

    `beside`: topics that get one of each as well, and are not counted.
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
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.accepted

    def _run(self) -> None:
        while not self._stop.wait(1 / RATE):
            try:
                self.accepted.append(self._log.notify("a/b"))
                for topic in self._beside:
                    self._log.notify(topic)
            except InfrastructureError:
                # Not acknowledged, so nobody was promised anything.
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
    return Counter(
        name for request in receiver.received(path) for name in request.headers["arborcast-notification-id"].split(",")
    )


def wait_for_more(receiver: Receiver, timeout: float = 60.0) -> float:
    """Until something arrives that was not there; how long that took, in seconds."""
    started, before = time.monotonic(), len(receiver.requests)
    while len(receiver.requests) == before:
        assert time.monotonic() - started < timeout, "nothing arrives any more"
        time.sleep(0.02)
    return time.monotonic() - started


def assert_all_arrived(receiver: Receiver, accepted: list[str], duplicates_allowed: int, timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while any(set(accepted) - set(counted(receiver, path)) for path in PATHS) and time.monotonic() < deadline:
        time.sleep(0.1)
    for path in PATHS:
        arrived = counted(receiver, path)
        missing = [name for name in accepted if name not in arrived]
        assert not missing, f"{len(missing)} of {len(accepted)} never arrived at {path}, the first is {missing[0]}"
        twice = sum(arrived[name] - 1 for name in accepted)
        assert twice <= duplicates_allowed, f"{twice} duplicates at {path}"
        firsts = list(dict.fromkeys(name for name in arrived if name in set(accepted)))
        assert firsts == accepted, "first attempts leave in the order of acceptance"
