"""Views of the logs `parked` and `dead` for lists: waiting deliveries and dead letters, without their messages.

A view that is kept reads only later records at each look, and nothing in between. It is a temporary file of some
hundred bytes for each delivery; memory is SQLite's cache.
"""

from __future__ import annotations

import heapq
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from typing import NamedTuple, TypeVar, cast

import msgspec

from arborcast.core import liveness
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import RETRY_AFTER_S, ConsumerRecord
from arborcast.core.eventlog.consumer import Discontinued
from arborcast.core.eventlog.follower import LogCursor
from arborcast.core.eventlog.topics import CONTROL_HISTORY_MS
from arborcast.core.recent import Recent
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import dead_letters, parked
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.parked import Parked, Tries
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath

V = TypeVar("V", bound="DeliveryView")

# `place` is the offset in the log; `counted` has the number of entries of each group.
_SCHEMA = """
PRAGMA journal_mode=OFF;
PRAGMA synchronous=OFF;
CREATE TABLE entry (
    key BLOB PRIMARY KEY, at_ms INTEGER NOT NULL, part INTEGER NOT NULL, place INTEGER NOT NULL,
    subscription TEXT NOT NULL, endpoint TEXT NOT NULL, topic TEXT NOT NULL, reason TEXT NOT NULL,
    notification TEXT NOT NULL, value BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX entry_at ON entry (at_ms, part, place);
CREATE INDEX entry_subscription ON entry (subscription, at_ms, part, place);
CREATE INDEX entry_notification ON entry (notification, at_ms, part, place);
CREATE TABLE counted (
    subscription TEXT NOT NULL, endpoint TEXT NOT NULL, topic TEXT NOT NULL, reason TEXT NOT NULL,
    number INTEGER NOT NULL, PRIMARY KEY (subscription, endpoint, topic, reason)
) WITHOUT ROWID;
CREATE TRIGGER added AFTER INSERT ON entry BEGIN
    INSERT INTO counted VALUES (new.subscription, new.endpoint, new.topic, new.reason, 1)
    ON CONFLICT DO UPDATE SET number = number + 1;
END;
CREATE TRIGGER removed AFTER DELETE ON entry BEGIN
    UPDATE counted SET number = number - 1 WHERE subscription = old.subscription AND endpoint = old.endpoint
        AND topic = old.topic AND reason = old.reason;
    DELETE FROM counted WHERE subscription = old.subscription AND endpoint = old.endpoint
        AND topic = old.topic AND reason = old.reason AND number = 0;
END;
"""

_ROW = "SELECT key, at_ms, part, place, subscription, endpoint, topic, reason, value FROM entry"

# Records of a poll: messages may be large.
_AT_ONCE = 500

# Of a view that is older, nulls may be compacted away: it is read again from the beginning of the log.
_VALID_S = CONTROL_HISTORY_MS / 2000

# So many subscriptions are read each by its index.
_MERGED = 50

# Last attempts that are kept, in bytes.
_LAST_BYTES = 4 * 1024 * 1024


class ViewGroup(NamedTuple):
    """Entries that a list counts together. Waiting deliveries have no endpoint and no reason here."""

    subscription: str
    endpoint: str
    topic: TopicPath
    reason: str


class ViewEntry(NamedTuple):
    """An entry of a list: the key of its delivery, since when it is there (ms), and its record without the message."""

    key: bytes
    at_ms: int
    part: int
    place: int
    group: ViewGroup
    value: bytes

    @property
    def order(self) -> tuple[int, int, int]:
        return self.at_ms, self.part, self.place


class ViewFilter(NamedTuple):
    """Which entries. `group` tests all entries of a group at once; with any other condition but `subscription` the
    entries are tested one by one. Times are those of the entries, `until_ms` is excluded."""

    group: Callable[[ViewGroup], bool] = lambda _: True
    subscription: str = ""
    notification: str = ""
    since_ms: int | None = None
    until_ms: int | None = None
    test: Callable[[ViewEntry], bool] | None = None

    @property
    def by_entry(self) -> bool:
        return bool(self.notification or self.test or self.since_ms is not None or self.until_ms is not None)


class ViewPage(NamedTuple):
    """Entries in order, and the number of all that are wanted, by group."""

    entries: list[ViewEntry]
    counts: Counter[ViewGroup]


class DeliveryView:
    """The entries of a log. For one thread at a time."""

    log = ""

    def __init__(self, kafka: KafkaSettings) -> None:
        self.kafka = kafka
        self._cursor = LogCursor(parked.roomy(kafka), self.log, {}, max_records=_AT_ONCE)
        # An empty name is a temporary file.
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._db.executescript(_SCHEMA)
        self._read_at = time.monotonic()

    def catch_up(self) -> None:
        """Read all that is in the log now. Raises InfrastructureError; a later call continues."""
        if time.monotonic() - self._read_at > _VALID_S:
            self._forget()
        try:
            self._read()
        except Discontinued:
            # The log was created again.
            self._forget()
            self._read()
        except BaseException:
            self._cursor.close()
            raise
        self._read_at = time.monotonic()

    def page(self, wanted: ViewFilter, limit: int, skip: int = 0, *, newest_first: bool = False) -> ViewPage:
        """The entries behind the first `skip`, at most `limit`, and the numbers of all."""
        groups = self._groups(wanted)
        chosen = (each for each in self._entries(wanted, groups, newest_first) if each.group in groups)
        if not wanted.by_entry:
            return ViewPage(list(islice(chosen, skip, skip + limit)), groups)
        found: list[ViewEntry] = []
        counts = Counter[ViewGroup]()
        for each in chosen:
            if wanted.test is None or wanted.test(each):
                if skip <= counts.total() < skip + limit:
                    found.append(each)
                counts[each.group] += 1
        return ViewPage(found, counts)

    def count(self, subscription: str) -> int:
        """The number of entries of a subscription."""
        (number,) = self._db.execute(
            "SELECT SUM(number) FROM counted WHERE subscription = ?", (subscription,)
        ).fetchone()
        return int(number or 0)

    def close(self) -> None:
        self._cursor.close()
        self._db.close()

    def _fold(self, record: ConsumerRecord) -> None:
        """Apply a record of the log."""
        raise NotImplementedError  # each kind of view has its own

    def _read(self) -> None:
        ends = self._cursor.ends()
        if any(self._cursor.positions[number] > end for number, end in ends.items()):
            raise Discontinued(f"the {self.log} log ends before a position that was read")
        heard = time.monotonic()
        while not self._cursor.has_reached(ends):
            liveness.beat()
            polled = self._cursor.poll(0.2)
            for records in polled.values():
                for record in records:
                    self._fold(record)
            if polled:
                heard = time.monotonic()
            elif time.monotonic() - heard > self.kafka.request_timeout_s:
                why = f"no record arrived for {self.kafka.request_timeout_s:g} s"
                raise InfrastructureError(f"the {self.log} log could not be read to its end: {why}", RETRY_AFTER_S)

    def _forget(self) -> None:
        self._cursor.close()
        self._cursor = LogCursor(parked.roomy(self.kafka), self.log, {}, max_records=_AT_ONCE)
        self._db.executescript("DELETE FROM entry; DELETE FROM counted;")

    def _groups(self, wanted: ViewFilter) -> Counter[ViewGroup]:
        asked = "SELECT subscription, endpoint, topic, reason, number FROM counted"
        values: tuple[str, ...] = ()
        if wanted.subscription:
            asked, values = f"{asked} WHERE subscription = ?", (wanted.subscription,)
        found = ((_group(*group), number) for *group, number in self._db.execute(asked, values))
        return Counter({group: number for group, number in found if wanted.group(group)})

    def _entries(self, wanted: ViewFilter, groups: Counter[ViewGroup], newest_first: bool) -> Iterator[ViewEntry]:
        """The entries of these groups in order, and possibly others."""
        names = {each.subscription for each in groups}
        if wanted.notification:
            return self._ordered("notification = ?", wanted.notification, wanted, newest_first)
        if len(names) > _MERGED:
            return self._ordered("", "", wanted, newest_first)
        each = (self._ordered("subscription = ?", name, wanted, newest_first) for name in names)
        return heapq.merge(*each, key=lambda entry: entry.order, reverse=newest_first)

    def _ordered(self, condition: str, value: str, wanted: ViewFilter, newest_first: bool) -> Iterator[ViewEntry]:
        given: dict[str, object] = {condition: value, "at_ms >= ?": wanted.since_ms, "at_ms < ?": wanted.until_ms}
        given = {name: each for name, each in given.items() if name and each is not None}
        where = f" WHERE {' AND '.join(given)}" if given else ""
        down = " DESC" if newest_first else ""
        asked = f"{_ROW}{where} ORDER BY at_ms{down}, part{down}, place{down}"  # constants
        for row in self._db.execute(asked, tuple(given.values())):
            key, at_ms, part, place = row[:4]
            yield ViewEntry(key, at_ms, part, place, _group(*row[4:8]), row[8])

    def _value(self, key: bytes) -> bytes | None:
        found = self._db.execute("SELECT value FROM entry WHERE key = ?", (key,)).fetchone()
        return found[0] if found else None

    def _put(self, record: ConsumerRecord, at_ms: int, group: ViewGroup, notification: str, value: bytes) -> None:
        self._remove(record.key)
        row = (record.key, at_ms, record.partition, record.offset, *group, notification, value)
        self._db.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def _remove(self, key: bytes) -> None:
        self._db.execute("DELETE FROM entry WHERE key = ?", (key,))


class PendingView(DeliveryView):
    """The waiting deliveries. They are there since their first record: a batch that is repeated parks them again."""

    log = "parked"

    def _fold(self, record: ConsumerRecord) -> None:
        delivery, is_tries = parked.decode_key(record.key)
        key = delivery.key()
        if record.value is None:
            if not is_tries:
                self._remove(key)
            return
        entry = parked.decode(record.value)
        known = self._value(key)
        if known is not None:
            before = pending_of(known)
            if _is_later(entry.tries, before.tries):
                value = parked.encode(Parked(before.notification, entry.tries))
                self._db.execute("UPDATE entry SET value = ? WHERE key = ?", (value, key))
        elif isinstance(entry, Parked):
            message = entry.notification
            group = ViewGroup(delivery.subscription, "", message.topic, "")
            value = parked.encode(Parked(_without_message(message), entry.tries))
            self._put(record, record.timestamp, group, message.id, value)


class LettersView(DeliveryView):
    """The dead letters, since they were given up."""

    log = "dead"

    def _fold(self, record: ConsumerRecord) -> None:
        if record.value is None:
            self._remove(record.key)
            return
        letter = dead_letters.decode(record.value)
        reason = str(letter.status or letter.error or letter.state)
        group = ViewGroup(letter.subscription, letter.endpoint, letter.notification.topic, reason)
        message = _without_message(letter.notification)
        value = dead_letters.encode(msgspec.structs.replace(letter, notification=message, response=b""))
        self._put(record, letter.at_ms, group, message.id, value)


class DeliveryViews:
    """Views that are kept, of the log of one Kafka each; and last attempts that were looked up. Thread-safe."""

    def __init__(self) -> None:
        # The value None is an attempt that the log does not have any more.
        self._last: Recent[Hashable, tuple[Attempt | None]] = Recent(_LAST_BYTES, age_s=3_600.0)
        self._lock = threading.Lock()  # of this
        self._kept: dict[str, DeliveryView] = {}
        self._locks = {kind.log: threading.Lock() for kind in (PendingView, LettersView)}

    def last(self, name: Hashable) -> tuple[Attempt | None] | None:
        """A last attempt that was kept; None if none was, and a place without one if the log has none."""
        with self._lock:
            return self._last.get(name)

    def keep_last(self, name: Hashable, attempt: Attempt | None) -> None:
        """Keep a last attempt, without the answer of the receiver."""
        kept = attempt and msgspec.structs.replace(attempt, response=b"")
        size = 500 + (len(attempt.detail) if attempt else 0)
        with self._lock:
            self._last.put(name, (kept,), size)

    @contextmanager
    def opened(self, kind: type[V], kafka: KafkaSettings) -> Iterator[V]:
        """The view of this kind, up to date. Raises InfrastructureError."""
        with self._locks[kind.log]:
            view = self._kept.get(kind.log)
            if not isinstance(view, kind) or view.kafka != kafka:
                if view is not None:
                    view.close()
                view = self._kept[kind.log] = kind(kafka)
            view.catch_up()
            yield view


@contextmanager
def opened(kind: type[V], kafka: KafkaSettings, views: DeliveryViews | None = None) -> Iterator[V]:
    """A view, up to date: a kept one, or one that is read now. Raises InfrastructureError, RecordVersionError."""
    if views is not None:
        with views.opened(kind, kafka) as kept:
            yield kept
        return
    with closing(kind(kafka)) as view:
        view.catch_up()
        yield view


def pending_of(value: bytes) -> Parked:
    """The delivery of an entry of `PendingView`."""
    return cast(Parked, parked.decode(value))


def letter_of(entry: ViewEntry) -> DeadLetter:
    """The letter of an entry of `LettersView`."""
    return dead_letters.decode(entry.value)


def _group(subscription: str, endpoint: str, topic: str, reason: str) -> ViewGroup:
    return ViewGroup(subscription, endpoint, TopicPath(topic), reason)


def _is_later(tries: Tries, known: Tries) -> bool:
    """Of equal numbers the later decision: an operator may have requested an attempt."""
    return (tries.number, tries.counted, tries.decided_ms) > (known.number, known.counted, known.decided_ms)


def _without_message(message: Notification) -> Notification:
    return Notification(message.id, message.topic, b"", message.accepted_ms, priority=message.priority)
