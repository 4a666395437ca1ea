"""Lookups of host names before their pushes, each in a thread.

A lookup cannot be ended, and its thread waits ten seconds and more for a name server that does not answer. So their
number is limited, and hosts with the fewest failed lookups in a row are first: thousands of names without an answer
delay each other only, and a host with an address has its turn.
"""

from __future__ import annotations

import logging
import queue
import re
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from arborcast.core.reasons import reason_of
from arborcast.core.recent import Recent
from arborcast.core.threads import start_thread

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Lookups at a time.
MOST = 128

# A host that is an address.
_NUMBER = re.compile(r":|(?:^|\.)[0-9]+$")

# Bytes of host names, twice: some thirty thousand.
_REMEMBERED = 8 * 1024 * 1024


class Lookups(Generic[T]):
    """Used by one thread; T is a push. `wake` is called in any thread, after each lookup."""

    def __init__(self, timeout_s: float, wake: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._wake = wake
        self._clock = clock
        self._failures: Recent[str, int] = Recent(_REMEMBERED, 3_600.0)  # in a row, by host
        self._began: OrderedDict[T, tuple[str, float]] = OrderedDict()  # hosts and times of the pushes
        self._pushes: dict[str, dict[T, None]] = {}  # by host
        self._queued: dict[str, None] = {}  # hosts that wait for a thread
        self._running: set[str] = set()
        self._ended: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    def resolves(self, host: str) -> bool:
        """Whether the host is an address, or its last lookup succeeded."""
        return _NUMBER.search(host) is not None or self._failures.get(host) == 0

    def failed(self, host: str) -> None:
        """A lookup elsewhere has failed."""
        self._failures.put(host, (self._failures.get(host) or 0) + 1, len(host))

    @property
    def due_at(self) -> float:
        """When the first push has its time-out, on the clock."""
        return next((began + self._timeout_s for _, began in self._began.values()), float("inf"))

    def add(self, host: str, push: T) -> None:
        self._began[push] = host, self._clock()
        self._pushes.setdefault(host, {})[push] = None
        if host not in self._running:
            self._queued[host] = None

    def take(self) -> Iterator[tuple[T, str, float]]:
        """The pushes whose lookup has ended, or took too long: each with the reason of its failure, empty after a
        success, and its time. Begins further lookups."""
        now = self._clock()
        while not self._ended.empty():
            host, failure = self._ended.get()
            self._running.discard(host)
            if failure:
                self.failed(host)
            else:
                self._failures.put(host, 0, len(host))
            for push in self._pushes.pop(host, ()):
                yield push, failure, now - self._began.pop(push)[1]
        while self.due_at <= now:
            push, (host, began) = self._began.popitem(last=False)
            yield push, self._late(host), now - began
            del self._pushes[host][push]
            if not self._pushes[host]:
                del self._pushes[host]
                self._queued.pop(host, None)
        while self._queued and len(self._running) < MOST:
            host = min(self._queued, key=lambda each: self._failures.get(each) or 0)
            try:
                start_thread("lookup", self._look_up, host)
            except RuntimeError as error:  # the system has no thread left: a later turn tries again
                logger.warning("the lookup of %s cannot begin now, and is tried again: %s", host, error)
                break
            del self._queued[host]
            self._running.add(host)

    def _late(self, host: str) -> str:
        if host in self._running:
            return f"the lookup of {host} had no answer within {self._timeout_s:g} s"
        others = len(self._running)
        return f"the lookup of {host} did not begin within {self._timeout_s:g} s: {others} others have no answer yet"

    def _look_up(self, host: str) -> None:
        """In a thread."""
        failure = ""
        for family in (socket.AF_INET, socket.AF_INET6):  # one by one: some name servers answer to one of them only
            try:
                socket.getaddrinfo(host.encode(), None, family, socket.SOCK_STREAM)
                failure = ""
                break
            except (OSError, ValueError) as error:
                failure = f"{host}: {reason_of(error)}"
        self._ended.put((host, failure))
        self._wake()
