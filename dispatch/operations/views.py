"""Views of the logs `parked` and `dead` for lists: waiting deliveries and dead letters, without their messages.

A cached view reads only new records at each use, and nothing in between. It is a temporary file of some hundred bytes
for each delivery; memory is SQLite's cache.
"""

from __future__ import annotations

import heapq
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import closing, contextmanager
from itertools import chain, islice
from typing import NamedTuple, TypeVar, cast

import msgspec

from arborcast.core import liveness
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import RETRY_AFTER_S, ConsumerRecord
from arborcast.core.eventlog.consumer import Discontinued
from arborcast.core.eventlog.follower import LogCursor
from arborcast.core.eventlog.topics import CONTROL_HISTORY_MS
from arborcast.core.fence import clock
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

# Nulls for an older view may be compacted away, also while this machine is suspended: it is read again from the
# beginning of the log.
_VALID_S = CONTROL_HISTORY_MS / 2000

# Up to this number, subscriptions are read each by its index.
_MERGED = 50

# Bytes of cached last attempts.
_LAST_BYTES = 4 * 1024 * 1024


ViewPlace = tuple[int, int, int]
"""The place of an entry in the order: its time, its partition and its offset."""


class ViewGroup(NamedTuple):
    """Entries that a list counts together. Waiting deliveries have no endpoint and no reason here."""

    subscription: str
    endpoint: str
    topic: TopicPath
    reason: str


class ViewEntry(NamedTuple):
    """An entry of a list: the key of its delivery, its first time (ms), and its record without the message."""

    key: bytes
    at_ms: int
    part: int
    place: int
    group: ViewGroup
    value: bytes

    @property
    def order(self) -> ViewPlace:
        return self.at_ms, self.part, self.place


class ViewFilter(NamedTuple):
    """A selection of entries. `group` tests all entries of a group at once; with other conditions than `subscription`
    the entries are tested one by one. Times are those of the entries, `until_ms` is excluded."""

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
    """Entries in order, and the number of all selected ones, by group."""

    entries: list[ViewEntry]
    counts: Counter[ViewGroup]


class DeliveryView:
    """The entries of a log. For one thread at a time."""

    log = ""

    def __init__(self, kafka: KafkaSettings) -> None:
        self.kafka = kafka
        self._cursor = LogCursor(parked.with_parked_overhead(kafka), self.log, {}, max_records=_AT_ONCE)
        self._db = _new_database()
        self._read_at = clock()

    def catch_up(self) -> None:
        """Read the log to its end. Raises InfrastructureError; a later call continues."""
        if clock() - self._read_at > _VALID_S:
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
        self._read_at = clock()

    def page(self, selection: ViewFilter, limit: int, skip: int = 0, *, newest_first: bool = False) -> ViewPage:
        """The entries behind the first `skip`, up to `limit`, and the numbers of all."""
        groups = self._groups(selection)
        chosen = self._selected(selection, groups, newest_first)
        if not selection.by_entry:
            return ViewPage(list(islice(chosen, skip, skip + limit)), groups)
        found: list[ViewEntry] = []
        counts = Counter[ViewGroup]()
        for number, each in enumerate(chosen):
            if skip <= number < skip + limit:
                found.append(each)
            counts[each.group] += 1
        return ViewPage(found, counts)

    def following(
        self, selection: ViewFilter, limit: int, after: ViewPlace | None, *, newest_first: bool = False
    ) -> list[ViewEntry]:
        """The entries behind a place, up to `limit`; all are read in such parts without a count of all at each."""
        groups = self._groups(selection)
        return list(islice(self._selected(selection, groups, newest_first, after), limit))

    def count(self, subscription: str) -> int:
        (number,) = self._db.execute(
            "SELECT SUM(number) FROM counted WHERE subscription = ?", (subscription,)
        ).fetchone()
        return int(number or 0)

    def close(self) -> None:
        self._cursor.close()
        self._db.close()

    def _fold(self, record: ConsumerRecord) -> None:
        raise NotImplementedError  # in subclasses

    def _read(self) -> None:
        ends = self._cursor.ends()
        if any(self._cursor.positions[number] > end for number, end in ends.items()):
            raise Discontinued(f"the {self.log} log ends before a position that was read")
        last_record_at = time.monotonic()
        while not self._cursor.has_reached(ends):
            liveness.beat()
            polled = self._cursor.poll(0.2)
            try:
                for record in chain.from_iterable(polled.values()):
                    self._fold(record)
            except BaseException as error:
                # The position is behind records that are not folded, and without a journal the file may be damaged.
                self._forget()
                if isinstance(error, sqlite3.Error):
                    raise InfrastructureError(
                        f"a temporary file cannot be written (TMPDIR sets its folder): {error}", RETRY_AFTER_S
                    ) from error
                raise
            if polled:
                last_record_at = time.monotonic()
            elif time.monotonic() - last_record_at > self.kafka.request_timeout_s:
                why = f"no record arrived for {self.kafka.request_timeout_s:g} s"
                raise InfrastructureError(f"the {self.log} log could not be read to its end: {why}", RETRY_AFTER_S)

    def _forget(self) -> None:
        self._cursor.close()
        self._cursor = LogCursor(parked.with_parked_overhead(self.kafka), self.log, {}, max_records=_AT_ONCE)
        self._db.close()
        self._db = _new_database()

    def _groups(self, selection: ViewFilter) -> Counter[ViewGroup]:
        query = "SELECT subscription, endpoint, topic, reason, number FROM counted"
        values: tuple[str, ...] = ()
        if selection.subscription:
            query, values = f"{query} WHERE subscription = ?", (selection.subscription,)
        found = ((_group(*group), number) for *group, number in self._db.execute(query, values))
        return Counter({group: number for group, number in found if selection.group(group)})

    def _selected(
        self, selection: ViewFilter, groups: Counter[ViewGroup], newest_first: bool, after: ViewPlace | None = None
    ) -> Iterator[ViewEntry]:
        """The selected entries of these groups in order, behind a place."""

        def ordered(condition: str = "", value: str = "") -> Iterator[ViewEntry]:
            # A place is within the times: it replaces one of them, and the index begins there.
            bounds: dict[str, tuple[object, ...]] = {
                condition: (value,),
                "at_ms >= ?": (selection.since_ms if newest_first or after is None else None,),
                "at_ms < ?": (selection.until_ms if not newest_first or after is None else None,),
                f"(at_ms, part, place) {'<' if newest_first else '>'} (?, ?, ?)": after or (None,),
            }
            conditions = {name: each for name, each in bounds.items() if name and each[0] is not None}
            where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
            direction = " DESC" if newest_first else ""
            query = f"{_ROW}{where} ORDER BY at_ms{direction}, part{direction}, place{direction}"  # constants
            for row in self._db.execute(query, tuple(chain.from_iterable(conditions.values()))):
                key, at_ms, part, place = row[:4]
                yield ViewEntry(key, at_ms, part, place, _group(*row[4:8]), row[8])

        names = {each.subscription for each in groups}
        if selection.notification:
            found = ordered("notification = ?", selection.notification)
        elif len(names) > _MERGED:
            found = ordered()
        else:
            by_name = (ordered("subscription = ?", name) for name in names)
            found = heapq.merge(*by_name, key=lambda entry: entry.order, reverse=newest_first)
        for each in found:
            if each.group in groups and (selection.test is None or selection.test(each)):
                yield each

    def _value(self, key: bytes) -> bytes | None:
        found = self._db.execute("SELECT value FROM entry WHERE key = ?", (key,)).fetchone()
        return found[0] if found else None

    def _put(self, record: ConsumerRecord, at_ms: int, group: ViewGroup, notification: str, value: bytes) -> None:
        self._remove(record.key)
        row = (record.key, at_ms, record.partition, record.offset, *group, notification, value)
        self._db.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def _remove(self, key: bytes) -> None:
        self._db.execute("DELETE FROM entry WHERE key = ?", (key,))


def _new_database() -> sqlite3.Connection:
    # An empty name is a temporary file.
    database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    database.executescript(_SCHEMA)
    return database


class PendingView(DeliveryView):
    """The waiting deliveries, since their first record: a repeated batch parks them again."""

    log = "parked"

    def _fold(self, record: ConsumerRecord) -> None:
        read = parked.readable(record.key, record.value, (record.partition, record.offset))
        if read is None:
            return
        delivery, of_tries, entry = read
        key = delivery.key()
        if entry is None:
            if not of_tries:
                self._remove(key)
            return
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
        read = parked.readable_letter(record.key, record.value, (record.partition, record.offset))
        if read is None:
            return
        _, letter = read
        if letter is None:
            self._remove(record.key)
            return
        reason = str(letter.status or letter.error or letter.state)
        group = ViewGroup(letter.subscription, letter.endpoint, letter.notification.topic, reason)
        message = _without_message(letter.notification)
        value = dead_letters.encode(msgspec.structs.replace(letter, notification=message, response=b""))
        self._put(record, letter.at_ms, group, message.id, value)


class DeliveryViews:
    """Cached views of the logs of one Kafka, and cached last attempts. Thread-safe."""

    def __init__(self) -> None:
        # The value None is an attempt that the log no longer has.
        self._last: Recent[Hashable, tuple[Attempt | None]] = Recent(_LAST_BYTES, age_s=3_600.0)
        self._lock = threading.Lock()  # of the last attempts
        self._views: dict[str, DeliveryView] = {}
        self._locks = {kind.log: threading.Lock() for kind in (PendingView, LettersView)}

    def last(self, name: Hashable) -> tuple[Attempt | None] | None:
        """A cached last attempt; None without one. The element is None if the log no longer has the attempt."""
        with self._lock:
            return self._last.get(name)

    def cache_last(self, name: Hashable, attempt: Attempt | None) -> None:
        """Cache a last attempt, without the answer of the receiver."""
        cached = attempt and msgspec.structs.replace(attempt, response=b"")
        size = 500 + (len(attempt.detail) if attempt else 0)
        with self._lock:
            self._last.put(name, (cached,), size)

    @contextmanager
    def opened(self, kind: type[V], kafka: KafkaSettings) -> Iterator[V]:
        """The view of this kind, up to date. Raises InfrastructureError."""
        with self._locks[kind.log]:
            view = self._views.get(kind.log)
            if not isinstance(view, kind) or view.kafka != kafka:
                if view is not None:
                    view.close()
                view = self._views[kind.log] = kind(kafka)
            view.catch_up()
            yield view


@contextmanager
def opened(kind: type[V], kafka: KafkaSettings, views: DeliveryViews | None = None) -> Iterator[V]:
    """A view, up to date: a cached one, or a new one. Raises InfrastructureError, RecordVersionError."""
    if views is not None:
        with views.opened(kind, kafka) as cached:
            yield cached
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
    """With equal numbers the later decision counts: an operator may have requested an attempt."""
    return (tries.number, tries.counted, tries.decided_ms) > (known.number, known.counted, known.decided_ms)


def _without_message(message: Notification) -> Notification:
    return Notification(message.id, message.topic, b"", message.accepted_ms, priority=message.priority)
