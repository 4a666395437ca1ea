"""Logs of deliveries as lists, for their views."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from arborcast.core.eventlog.consumer import Replaced
from arborcast.core.eventlog.scan import OffsetRange
from arborcast.dispatch.logs import dead_letters, parked
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.parked import Delivery, Parked, Tried, Tries
from arborcast.dispatch.operations import views
from arborcast.topic_model.records.notifications import Notification

_UNTRIED = Tries()


@dataclass
class Listed:
    """A record of Kafka."""

    key: bytes
    value: bytes | None
    offset: int
    timestamp: int = 0
    partition: int = 0


class ListedLogs:
    """Logs of an engine without Kafka, for the cursors of a module. `read` counts the records read, and
    `began_at` has the positions at which cursors began."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType = views) -> None:
        self.records: defaultdict[str, list[Listed]] = defaultdict(list)
        self.read = 0
        self.began_at: list[Mapping[int, int]] = []
        self.topic_id = "first"
        monkeypatch.setattr(module, "LogCursor", self._cursor)

    def park(self, delivery: Delivery, message: Notification, tries: Tries = _UNTRIED, at_ms: int = 0) -> None:
        self.write("parked", delivery.key(), parked.encode(Parked(message, tries)), at_ms)

    def tried(self, delivery: Delivery, tries: Tries) -> None:
        self.write("parked", delivery.tried_key(), parked.encode(Tried(tries)))

    def finished(self, delivery: Delivery) -> None:
        self.write("parked", delivery.tried_key(), None)
        self.write("parked", delivery.key(), None)

    def bury(self, delivery: Delivery, letter: DeadLetter | None) -> None:
        """Write a dead letter, or its removal."""
        self.write("dead", delivery.key(), None if letter is None else dead_letters.encode(letter))

    def write(self, log: str, key: bytes, value: bytes | None, at_ms: int = 0) -> None:
        self.records[log].append(Listed(key, value, len(self.records[log]), at_ms))

    def scanned(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        """Replace the logs for scans of these modules, too."""
        for module in modules:
            monkeypatch.setattr(module, "LogScan", self._scan)

    def _scan(self, _kafka: object, log: str, *_: Any, **__: Any) -> AbstractContextManager[ListedScan]:
        return nullcontext(ListedScan(self.records[log]))

    def _cursor(
        self, _kafka: object, log: str, positions: Mapping[int, int], seen: Mapping[int, int] | None = None, **_: Any
    ) -> ListedCursor:
        self.began_at.append(dict(positions))
        return ListedCursor(self, log, positions, seen or {})


class ListedScan:
    """A `LogScan` of a listed log."""

    def __init__(self, records: Sequence[Listed]) -> None:
        self._records = records

    def partitions(self) -> list[int]:
        return [0]

    def beginnings(self) -> dict[int, int]:
        return {0: 0}

    def ends(self) -> dict[int, int]:
        return {0: len(self._records)}

    def read(self, ranges: Mapping[int, OffsetRange]) -> Iterator[Listed]:
        yield from self._records[slice(*ranges[0])]

    def at(self, ms: int) -> dict[int, int]:
        return {0: next((each.offset for each in self._records if each.timestamp >= ms), len(self._records))}

    def read_all(self) -> Iterator[Listed]:
        return self.read_from(self.beginnings())

    def read_from(self, firsts: Mapping[int, int], ends: Mapping[int, int] | None = None) -> Iterator[Listed]:
        yield from self._records[firsts[0] : (ends or self.ends())[0]]


class ListedCursor:
    """A `LogCursor` of a listed log."""

    def __init__(self, logs: ListedLogs, log: str, positions: Mapping[int, int], seen: Mapping[int, int]) -> None:
        self._logs = logs
        self._seen = seen
        self._log = log
        self.positions = {0: 0, **positions}

    def topic_id(self) -> str:
        return self._logs.topic_id

    def ends(self) -> dict[int, int]:
        return {0: len(self._logs.records[self._log])}

    def has_reached(self, ends: Mapping[int, int]) -> bool:
        return self.positions[0] >= ends[0]

    def poll(self, _timeout_s: float) -> dict[int, Sequence[Listed]]:
        found = self._logs.records[self._log][self.positions[0] :]
        self.positions = {0: self.positions[0] + len(found)}
        self._logs.read += len(found)
        return {0: found} if found else {}

    def read(self, limit: int, limit_bytes: int | None = None) -> Sequence[Listed]:
        if self._seen.get(0, 0) > self.ends()[0]:
            raise Replaced("created again")
        found: list[Listed] = []
        for each in self._logs.records[self._log][self.positions[0] :][:limit]:
            if limit_bytes is not None and sum(len(one.value or b"") for one in found) >= limit_bytes:
                break
            found.append(each)
        self.positions = {0: self.positions[0] + len(found)}
        self._logs.read += len(found)
        return found

    def close(self) -> None:
        """There is no connection."""


class ListedConsumer:
    """A `LogConsumer` or `LogReader` of a log with one partition; offsets without a record were compacted away."""

    placed = True

    def __init__(self, name: str, records: Sequence[Listed]) -> None:
        self.name, self.topic = name, f"arborcast.{name}"
        self._records, self._at = records, 0

    def ends(self, _timeout_s: float) -> dict[int, int]:
        return {0: self._records[-1].offset + 1}

    def seek(self, positions: Mapping[int, int]) -> None:
        self._at = positions[0]

    def poll(self, _timeout_s: float) -> dict[int, Sequence[Listed]]:
        found = [each for each in self._records if each.offset >= self._at]
        self._at = max([self._at, *(each.offset + 1 for each in found)])
        return {0: found}

    def read(self, offsets: Sequence[int]) -> dict[int, bytes | None]:
        return {each.offset: each.value for each in self._records if each.offset in offsets}

    def close(self) -> None:
        """There is no connection."""


@contextmanager
def cached_views() -> Iterator[views.DeliveryViews]:
    """Cached views, closed at the end."""
    made = views.DeliveryViews()
    yield made
    for each in made._views.values():
        each.close()
