"""Notifications at times that a test knows, so that it knows what passes a minimum interval."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from core.eventlog.client import partition_of_key
from tests.support.dispatch_job import Logs
from tests.support.receiver import Receiver

TOPICS = ("a/x", "a/y", "a/z")


class Load:
    """Notifications, one after the other, with the time at which each was accepted."""

    def __init__(self, log: Logs) -> None:
        self._log = log
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent: list[tuple[str, str, int]] = []

    def _run(self) -> None:
        while not self._stopping.wait(0.01):
            topic, now_ms = TOPICS[len(self.sent) % len(TOPICS)], int(time.time() * 1000)
            self.sent.append((self._log.accept(topic, accepted_ms=now_ms), topic, now_ms))

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            self._thread.join()

    def passing(self, interval_ms: int, partitions: int = 0) -> set[str]:
        """What passes, one after the other; with `partitions`, of all topics of each of so many together."""
        until: dict[object, int] = {}
        found = set()
        for name, topic, at_ms in self.sent:
            counts_for = partition_of_key(topic.encode(), partitions) if partitions else topic
            if at_ms >= until.get(counts_for, 0):
                until[counts_for] = at_ms + interval_ms
                found.add(name)
        return found


def ids(receiver: Receiver, path: str) -> list[str]:
    return [one.headers["arborcast-notification-id"] for one in receiver.received(path)]
