"""The parked deliveries: a fold of the `parked` log in a local file, with bounded memory for millions.

The file has the position in the log, from which a restart continues; without the file the log is read from its
beginning. A commit does not wait for the disk, since the log is the source of truth. Every query follows an index: it
does not scan deliveries that are not due, or other lanes.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from arborcast.core.errors import InfrastructureError
from arborcast.core.wall_clock import TOLERANCE_MS
from arborcast.dispatch.logs import parked
from arborcast.dispatch.logs.attempts import NO_BATCH
from arborcast.dispatch.logs.parked import UNANSWERED_PUSH, Delivery, Parked, Place, Tries
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.notifications import Notification

# Increased with every change of the tables: a file of another form is rebuilt from the log.
_FORM = 2

# `turn` is the order: the offset in the log, but not behind a delivery with a later place in its partition; negative
# for a displaced one (see `apply`). `server` and `refused` are for requests of queues: the server that gets a request
# again, empty for any server that has not refused it; NULL before the first push and during a push. No log has them:
# after the loss of the file, a request may be pushed again to a server that has refused it.
_SCHEMA = """
CREATE TABLE waiting (
    lane TEXT NOT NULL, batch INTEGER NOT NULL, part INTEGER NOT NULL, place INTEGER NOT NULL,
    redrive INTEGER NOT NULL, turn INTEGER NOT NULL,
    tried INTEGER NOT NULL, number INTEGER NOT NULL, counted INTEGER NOT NULL, due_ms INTEGER NOT NULL,
    decided_ms INTEGER NOT NULL, awaits TEXT NOT NULL, accepted_ms INTEGER NOT NULL, valid_ms INTEGER NOT NULL,
    priority INTEGER NOT NULL, merge BLOB NOT NULL, server TEXT, refused TEXT NOT NULL DEFAULT '',
    notification BLOB NOT NULL
);
CREATE UNIQUE INDEX waiting_place ON waiting (lane, part, batch, place, redrive);
CREATE INDEX waiting_turn ON waiting (lane, tried, turn, batch, place, redrive);
CREATE INDEX waiting_priority ON waiting (lane, priority DESC, turn, batch, place, redrive) WHERE tried = 0;
CREATE INDEX waiting_age ON waiting (lane, accepted_ms);
CREATE INDEX waiting_valid ON waiting (lane, valid_ms) WHERE valid_ms > 0 AND awaits = '';
CREATE INDEX waiting_due ON waiting (lane, due_ms) WHERE tried = 1;
CREATE INDEX waiting_decided ON waiting (lane, decided_ms) WHERE tried = 1;
CREATE INDEX waiting_tries ON waiting (lane, number, due_ms) WHERE tried = 1;
CREATE INDEX waiting_awaits ON waiting (lane, awaits) WHERE awaits != '';
CREATE INDEX waiting_merge ON waiting (lane, merge, tried, server, priority DESC, turn, batch, place, redrive)
    WHERE merge != x'';
CREATE INDEX waiting_server ON waiting (lane, server, due_ms) WHERE server IS NOT NULL;
CREATE INDEX waiting_again ON waiting (lane, due_ms) WHERE server IS NOT NULL;
CREATE INDEX waiting_refused ON waiting (lane) WHERE refused != '';
CREATE INDEX waiting_read ON waiting (part, place);
CREATE TABLE position (part INTEGER PRIMARY KEY, next INTEGER NOT NULL);
CREATE TABLE fact (name TEXT PRIMARY KEY, value BLOB NOT NULL);
"""


def _of_delivery(statement: str, more: str = "") -> str:
    return f"{statement} WHERE lane = ? AND batch = ? AND part = ? AND place = ? AND redrive = ?{more}"


_INSERT = """INSERT INTO waiting (lane, batch, part, place, redrive, turn, tried, number, counted, due_ms, decided_ms,
    awaits, accepted_ms, valid_ms, priority, merge, notification)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_FIND = _of_delivery("SELECT 1 FROM waiting")
_NEXT = "SELECT batch, part, place, redrive, turn FROM waiting WHERE lane = ? AND part = ?"
_NEXT += " AND (batch, place, redrive) >= (?, ?, ?) ORDER BY batch, place, redrive LIMIT 1"
_BEGUN = _of_delivery("UPDATE waiting SET tried = 1, server = NULL")
_DISPLACED = _of_delivery("SELECT 1 FROM waiting", " AND turn < 0")
_EARLIER = _of_delivery("UPDATE waiting SET turn = ?")
_DELETE = _of_delivery("DELETE FROM waiting")
_LATER = " AND (number < ? OR number = ? AND counted < ?)"
_TRIES = "UPDATE waiting SET tried = 1, number = ?, counted = ?, due_ms = ?, decided_ms = ?, awaits = ?"
_TRIED = _of_delivery(_TRIES, _LATER)

# An operator requests an attempt: the tries are those of the store, decided later. An untried delivery has no time yet.
_REQUESTED = "UPDATE waiting SET decided_ms = ?1, due_ms = CASE due_ms WHEN 0 THEN ?2 ELSE MIN(due_ms, ?2) END"
_REQUESTED += " WHERE lane = ?3 AND batch = ?4 AND part = ?5 AND place = ?6 AND redrive = ?7"
_REQUESTED += " AND number = ?8 AND counted = ?9 AND awaits = '' AND decided_ms < ?1"

# A push in parts is answered later than its worker has written before.
_LATER_ANSWER = _of_delivery("UPDATE waiting SET due_ms = MAX(due_ms, ?)", " AND awaits = ?")

# Results that workers will write.
_OF_WORKERS = "awaits != '' AND awaits >= ? AND awaits < ?"
_PUSHES = (UNANSWERED_PUSH, chr(ord(UNANSWERED_PUSH) + 1))

_AGAIN = """UPDATE waiting SET due_ms = ?, decided_ms = ?, awaits = ?
WHERE lane = ? AND batch = ? AND part = ? AND place = ? AND redrive = ? AND awaits != ''"""

_EARLIEST = "SELECT batch, part, place, redrive, {0} FROM waiting WHERE lane = ?{1} ORDER BY {0} LIMIT ?"
_BY_ACCEPTANCE = _EARLIEST.format("accepted_ms", "")
_BY_VALIDITY = _EARLIEST.format("valid_ms", " AND valid_ms > 0 AND awaits = ''")
_BY_DUE = _EARLIEST.format("due_ms", " AND tried = 1")

_DISPLACED_FACT = "displaced"

# Larger than every offset.
_OFFSETS = 1 << 62

# Bytes of messages read together. A larger message is read alone.
_READ_BYTES = 4 * 1024 * 1024

_PLACES = "SELECT batch, part, place, redrive FROM waiting WHERE lane = ? AND "

_READ = "SELECT batch, part, place, redrive, number, counted, due_ms, decided_ms, awaits, notification"
_READ += " FROM waiting WHERE lane = ? AND "

_IN_ORDER = "ORDER BY turn, batch, place, redrive LIMIT ?"
_BY_PRIORITY = "ORDER BY priority DESC, turn, batch, place, redrive LIMIT ?"

# After a large transaction its journal shrinks to this size.
_WAL_BYTES = 64 * 1024 * 1024

# Free pages, 4 KiB each, that the file keeps; a commit returns this number of others.
_FREE_PAGES = 8 * 1024
_FREED_PAGES = 1024

_SPOILT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class UnusableFile(InfrastructureError):
    """The file belongs to another log or version, or is damaged: remove it, and rebuild it from the log."""


class WaitingDelivery(NamedTuple):
    delivery: Delivery
    tries: Tries
    notification: Notification


def _waiting(lane: str, row: tuple[Any, ...]) -> WaitingDelivery:
    batch, part, place, redrive, number, counted, due_ms, decided_ms, awaits, notification = row
    tries = Tries(number, counted, due_ms, decided_ms, awaits)
    return WaitingDelivery(
        Delivery(lane, Place(batch, part, place, redrive)), tries, notifications.decode(notification)
    )


def newest_batch(file: Path, redriven: bool = True) -> int:
    """The highest batch number of the waiting deliveries, also of `redriven` ones, as of the last commit; NO_BATCH
    without any. Thread-safe. Raises InfrastructureError."""
    with _readable(file) as opened:
        (newest,) = opened.execute("SELECT MAX(batch) FROM waiting WHERE redrive = 0 OR ?", (redriven,)).fetchone()
    return NO_BATCH if newest is None else int(newest)


def parked_behind(file: Path, positions: Mapping[int, int]) -> Iterator[tuple[str, str, Place]]:
    """Subscription, notification and place of the waiting deliveries read behind these offsets of the `notifications`
    log, as of the last commit. Thread-safe. Raises InfrastructureError."""
    statement = "SELECT lane, notification, batch, part, place, redrive FROM waiting WHERE part = ? AND place >= ?"
    with _readable(file) as opened:
        for read_from in positions.items():
            for lane, notification, *place in opened.execute(statement, read_from):
                yield lane, notifications.decode(notification).id, Place(*place)


@contextmanager
def _readable(file: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as opened:
            yield opened
    except sqlite3.Error as error:
        raise InfrastructureError(f"the file of parked deliveries, {file}: {error}", 5.0) from error


class ParkedStore:
    """The waiting deliveries, by lane. Used by one thread; changes are durable after `commit`.

    `log` identifies the log: a file made from another one raises UnusableFile. Every method raises
    InfrastructureError if the file cannot be written or read, UnusableFile if it is damaged.
    """

    def __init__(self, file: Path | None, log: str = "") -> None:
        self._file = file
        # Finished here; their nulls in the log are not read yet.
        self._finished: set[bytes] = set()
        self.uncommitted = 0
        """Bytes of messages since the last commit."""
        self.partitions = 0
        """Of the log at the first read of the session; set by it."""
        self.ended_elsewhere: set[str] = set()
        """Lanes with deliveries that another process (an erasure) has ended, according to the log; read by the
        session."""
        self.requested: set[str] = set()
        """Lanes for which an operator requests attempts, according to the log; read by the session."""
        self.promised: list[tuple[str, str]] = []
        """New pairs of lane and push with an awaited result; read by `AwaitedResults`."""
        with self._translated():
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
            # isolation_level None: this class begins the transactions.
            self._db = sqlite3.connect(":memory:" if file is None else file, isolation_level=None)
        try:
            with self._translated():
                self._open(log)
                self.count = int(self._one("SELECT COUNT(*) FROM waiting"))
                self._has_displaced = self.recall(_DISPLACED_FACT) is not None  # or had one
        except BaseException:
            self._db.close()
            raise

    def _open(self, log: str) -> None:
        self._db.execute("PRAGMA auto_vacuum=INCREMENTAL")  # must be first in a new file
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(f"PRAGMA journal_size_limit={_WAL_BYTES}")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("PRAGMA secure_delete=ON")  # erased payloads stay in no free page
        form = self._one("PRAGMA user_version")
        if form == 0:
            self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={_FORM}; COMMIT;")
            self._db.execute("INSERT INTO fact VALUES ('log', ?)", (log,))
        elif form != _FORM or self._one("SELECT value FROM fact WHERE name = 'log'") != log:
            raise UnusableFile(f"the file of parked deliveries, {self._file}, is that of another log or version")
        self._db.execute("BEGIN")

    def apply(self, key: bytes, value: bytes | None, offset: int, displaced: bool = False) -> str | None:
        """Apply one record of the log; returns the lane if it has a new delivery. All of a lane is in one partition of
        the log; a `displaced` record is in another one, and precedes it. Raises RecordVersionError; a damaged record is
        skipped."""
        if key in self._finished:
            # Records of a delivery that was finished here, up to its null.
            if value is None:
                self._finished.discard(key)
            return None
        read = parked.readable(key, value, offset)
        if read is None:
            return None
        delivery, is_tries, record = read
        if record is None:
            if not is_tries and self.remove(delivery):
                self.ended_elsewhere.add(delivery.subscription)
            return None
        if isinstance(record, Parked):
            turn = offset - _OFFSETS if displaced else offset
            if displaced and not self._has_displaced:
                self._has_displaced = True
                self.remember(_DISPLACED_FACT, b"")
            return delivery.subscription if self._add(delivery, record, turn) else None
        number, counted, due_ms, decided_ms, awaits = record.tries
        if self._later(delivery, record.tries):
            return None
        if record.tries.in_flight:
            self._execute(_LATER_ANSWER, (due_ms, delivery.subscription, *delivery.place, awaits))
        elif not awaits:
            values = (decided_ms, due_ms, delivery.subscription, *delivery.place, number, counted)
            if self._execute(_REQUESTED, values).rowcount:
                self.requested.add(delivery.subscription)
        return None

    def _add(self, delivery: Delivery, record: Parked, turn: int) -> bool:
        lane, place, tries = delivery.subscription, delivery.place, record.tries
        found = self.query(_NEXT, lane, place.partition, place.batch, place.offset, place.redrive)
        for *following, its_turn in found:
            if Place(*following) == place:
                # A repeated batch has parked it again; the store may have a later try.
                if tries.awaits and self._execute(_AGAIN, (*tries[2:], lane, *place)).rowcount:
                    self.promised.append((lane, tries.awaits))
                if turn < 0 <= its_turn:
                    self._execute(_EARLIER, (turn, lane, *place))
                return False
            turn = min(turn, its_turn)
        message = record.notification
        _, notification = notifications.encode(message)
        facts = (message.accepted_ms, message.valid_until_ms, message.priority, message.merge, notification)
        self._execute(_INSERT, (lane, *place, turn, tries.number > 0, *tries, *facts))
        self.count += 1
        self.uncommitted += len(notification)
        if tries.awaits:
            self.promised.append((lane, tries.awaits))
        return True

    def tried(self, delivery: Delivery, tries: Tries) -> bool:
        """Store a further try, or the end of the last one, unless the store has a later one. Returns whether the
        delivery waits."""
        return self._later(delivery, tries) or self.has(delivery)

    def _later(self, delivery: Delivery, tries: Tries) -> bool:
        """Store further tries; returns whether they are new."""
        key = (delivery.subscription, *delivery.place)
        changed = self._execute(_TRIED, (*tries, *key, tries.number, tries.number, tries.counted)).rowcount
        if changed and tries.awaits:
            self.promised.append((delivery.subscription, tries.awaits))
        return bool(changed)

    def has(self, delivery: Delivery) -> bool:
        return bool(self.query(_FIND, delivery.subscription, *delivery.place))

    def is_displaced(self, delivery: Delivery) -> bool:
        """Whether its record may be in another partition of the log than that of its subscription."""
        return self._has_displaced and bool(self.query(_DISPLACED, delivery.subscription, *delivery.place))

    def lost(self, delivery: Delivery, now_ms: int) -> None:
        """The result of the push is lost: the delivery is due. A start finds the same in the log."""
        self._execute(_AGAIN, (now_ms, now_ms, "", delivery.subscription, *delivery.place))

    def limit_waits(self, answers_ms: int, results_ms: int) -> None:
        """No answer of a worker's push, and no result, is awaited after these times: the clock may have been put
        back."""
        limited = f"UPDATE waiting SET due_ms = MIN(due_ms, CASE WHEN {_OF_WORKERS} THEN ? ELSE ? END)"  # noqa: S608  # its text is made of constants, values are bound
        self._execute(f"{limited} WHERE awaits != ''", (*_PUSHES, answers_ms, results_ms))

    def extend_waits(self, until_ms: int) -> None:
        """Answers of workers' pushes, and results, are awaited until this time at least."""
        self._execute("UPDATE waiting SET due_ms = MAX(due_ms, ?) WHERE awaits != ''", (until_ms,))

    def lose_all(self, now_ms: int) -> list[str]:
        """All results of pushes of workers are lost: their deliveries are due. Returns their lanes."""
        found = self.query(f"SELECT DISTINCT lane FROM waiting WHERE {_OF_WORKERS}", *_PUSHES)  # noqa: S608  # its text is made of constants, values are bound
        lost = f"UPDATE waiting SET due_ms = ?, decided_ms = ?, awaits = '' WHERE {_OF_WORKERS}"  # noqa: S608  # its text is made of constants, values are bound
        self._execute(lost, (now_ms, now_ms, *_PUSHES))
        return [lane for (lane,) in found]

    def remove(self, delivery: Delivery) -> bool:
        """Returns whether the store had it."""
        removed = self._execute(_DELETE, (delivery.subscription, *delivery.place)).rowcount
        self.count -= removed
        return bool(removed)

    def finish(self, delivery: Delivery) -> None:
        """A delivery was finished here; its null follows in the log."""
        self._finished.add(delivery.key())
        self.remove(delivery)

    def get(self, delivery: Delivery) -> WaitingDelivery | None:
        found = self._read(
            delivery.subscription, "batch = ? AND part = ? AND place = ? AND redrive = ?", *delivery.place
        )
        return found[0] if found else None

    def begun(self, delivery: Delivery) -> None:
        """A push of a request has begun: the request is not untried any more, and waits for no server."""
        self._execute(_BEGUN, (delivery.subscription, *delivery.place))

    def untried(self, lane: str, limit: int) -> list[WaitingDelivery]:
        """The first untried deliveries of a lane: by priority, then by turn. As all reads: up to _READ_BYTES, but at
        least one."""
        return self._read(lane, f"tried = 0 {_BY_PRIORITY}", limit)

    def equal(self, head: WaitingDelivery, server: str | None, limit: int) -> Iterator[WaitingDelivery]:
        """The requests of a queue that are equal to this one, with itself, by priority, then by turn: those of the same
        push that wait for the same server; the untried ones if `server` is None. Read one by one, before the next
        change."""
        (lane, _), (number, _, due_ms, _, _), notification = head
        condition = "merge = ? AND merge != x'' AND tried = ? AND server IS ?"
        values: list[object] = [notification.merge, server is not None, server]
        if server is not None:
            condition += " AND number = ? AND due_ms = ?"
            values += [number, due_ms]
        rows = self._each(f"{condition} {_BY_PRIORITY}", lane, *values, limit)
        return (_waiting(lane, row) for row in rows)

    def in_flight(self, lane: str) -> bool:
        """Whether a worker waits for the answer to the first push of deliveries of the lane."""
        found = f"SELECT 1 FROM waiting WHERE lane = ? AND {_OF_WORKERS} LIMIT 1"  # noqa: S608  # its text is made of constants, values are bound
        return self._one(found, lane, *_PUSHES) is not None

    def oldest_untried(self, lane: str, limit: int) -> list[Delivery]:
        """The untried deliveries of a lane that have waited longest."""
        return self._places(lane, "tried = 0 ORDER BY turn", limit)

    def has_untried(self, lane: str) -> bool:
        return self._one("SELECT 1 FROM waiting WHERE lane = ? AND tried = 0 LIMIT 1", lane) is not None

    def first(self, lane: str, limit: int = 1) -> list[WaitingDelivery]:
        """The deliveries of a strict lane to settle first: the tried ones, else the first of the others, of any
        priority. After a crash the order is the same; the first one may have been in flight."""
        return self._read(lane, f"tried = 1 {_IN_ORDER}", limit) or self._read(lane, f"tried = 0 {_IN_ORDER}", limit)

    def due(self, lane: str, now_ms: int, limit: int, excluded: Collection[Delivery] = ()) -> list[WaitingDelivery]:
        """Deliveries of a lane that are due for another attempt, longest due first, without those `excluded`."""
        # The messages of those excluded are not read: they may have 64 MB, for each turn of the lane.
        found = self._places(lane, "tried = 1 AND due_ms <= ? ORDER BY due_ms", limit, now_ms, excluded=excluded)
        if len(found) < limit:
            found += self._put_back(lane, now_ms, limit - len(found), excluded)
        return [waiting for each in found if (waiting := self.get(each)) is not None]

    def _put_back(self, lane: str, now_ms: int, limit: int, excluded: Collection[Delivery]) -> list[Delivery]:
        """Deliveries that are due only because the clock was put back after their attempt."""
        condition = "tried = 1 AND awaits = '' AND decided_ms > ? AND due_ms > ? ORDER BY decided_ms"
        return self._places(lane, condition, limit, now_ms + TOLERANCE_MS, now_ms, excluded=excluded)

    def least_tried(self, lane: str, now_ms: int, excluded: Collection[Delivery] = ()) -> WaitingDelivery | None:
        """The delivery with the fewest tries of those due for another attempt. Deliveries that are due only because the
        clock was put back come last."""
        # From each number of tries to the next: there are few numbers.
        more = "SELECT MIN(number) FROM waiting WHERE lane = ? AND tried = 1 AND number > ?"
        number = self._one(more, lane, 0)
        while number is not None:
            condition = "tried = 1 AND number = ? AND due_ms <= ? ORDER BY due_ms"
            found = self._places(lane, condition, 1, number, now_ms, excluded=excluded)
            if found:
                return self.get(found[0])
            number = self._one(more, lane, number)
        found = self._put_back(lane, now_ms, 1, excluded)
        return self.get(found[0]) if found else None

    def next_due_ms(self, lane: str, excluded: Collection[Delivery] = ()) -> int | None:
        """When the next tried delivery of a lane is due, those `excluded` not counted."""
        return self._first(_BY_DUE, lane, excluded)

    def accepted_before(self, lane: str, ms: int, limit: int, excluded: Collection[Delivery] = ()) -> list[Delivery]:
        """Deliveries whose notification was accepted at or before `ms`, the oldest first, without those `excluded`."""
        return self._places(lane, "accepted_ms <= ? ORDER BY accepted_ms", limit, ms, excluded=excluded)

    def valid_until(self, lane: str, ms: int, limit: int, excluded: Collection[Delivery] = ()) -> list[Delivery]:
        """Deliveries whose validity ends by a time: the earliest first, without `excluded`, and without those accepted
        in time with a pending later result."""
        condition = "valid_ms > 0 AND awaits = '' AND valid_ms <= ? ORDER BY valid_ms"
        return self._places(lane, condition, limit, ms, excluded=excluded)

    def expires_ms(self, lane: str, lifespan_ms: int, excluded: Collection[Delivery] = ()) -> int | None:
        """When the first delivery of a lane expires, those `excluded` not counted; None for an empty lane."""
        oldest_ms = self._first(_BY_ACCEPTANCE, lane, excluded)
        if oldest_ms is None:
            return None
        valid_ms = self._first(_BY_VALIDITY, lane, excluded)
        return oldest_ms + lifespan_ms if valid_ms is None else min(oldest_ms + lifespan_ms, valid_ms)

    def _first(self, query: str, lane: str, excluded: Collection[Delivery]) -> int | None:
        rows = self.query(query, lane, len(excluded) + 1)
        return next((ms for *place, ms in rows if Delivery(lane, Place(*place)) not in excluded), None)

    def awaiting(self, lane: str, push: str) -> list[WaitingDelivery]:
        """The deliveries of a lane that wait for the result of this push."""
        return self._read(lane, "awaits != '' AND awaits = ?", push, most_bytes=sys.maxsize)

    def awaits_any(self) -> bool:
        return self._one("SELECT 1 FROM waiting WHERE awaits != '' LIMIT 1") is not None

    def query(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of a statement, also about other tables in the file."""
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._translate(error) from error

    def lanes(self) -> Iterator[str]:
        # From lane to lane in the index; DISTINCT would scan all deliveries.
        lane = ""
        while True:
            lane = self._one("SELECT MIN(lane) FROM waiting WHERE lane > ?", lane)
            if lane is None:
                return
            yield lane

    def positions(self) -> dict[int, int]:
        """The next offset in each partition of the log."""
        return dict(self.query("SELECT part, next FROM position"))

    def advance(self, partition: int, position: int) -> None:
        self._execute("INSERT OR REPLACE INTO position VALUES (?, ?)", (partition, position))

    def remember(self, name: str, value: bytes) -> None:
        """Store a fact beside the deliveries."""
        self._execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, value))

    def recall(self, name: str) -> bytes | None:
        value = self._one("SELECT value FROM fact WHERE name = ?", name)
        return None if value is None else bytes(value)

    def commit(self) -> None:
        """Commit all changes, and give some of the free space back to the file system."""
        with self._translated():
            self._db.execute("COMMIT")
            if self._one("PRAGMA freelist_count") > _FREE_PAGES:
                # As a script: a statement without columns ends after its first step.
                self._db.executescript(f"PRAGMA incremental_vacuum({_FREED_PAGES})")
            self._db.execute("BEGIN")
        self.uncommitted = 0

    def forget(self) -> None:
        """Empty the store; the log is read again from its beginning. Facts stay."""
        for table in ("waiting", "position"):
            self._execute(f"DELETE FROM {table}", ())  # noqa: S608  # its text is made of constants, values are bound
        self.count = 0
        self.commit()

    def close(self) -> None:
        """Roll back to the last commit, and close the file."""
        self._db.close()

    def _places(
        self, lane: str, condition: str, limit: int, *values: object, excluded: Collection[Delivery] = ()
    ) -> list[Delivery]:
        rows = self.query(f"{_PLACES}{condition} LIMIT ?", lane, *values, limit + len(excluded))
        found = (Delivery(lane, Place(*place)) for place in rows)
        return [each for each in found if each not in excluded][:limit]

    def _read(self, lane: str, condition: str, *values: object, most_bytes: int = _READ_BYTES) -> list[WaitingDelivery]:
        found: list[WaitingDelivery] = []
        size = 0
        with closing(self._each(condition, lane, *values)) as rows:
            for row in rows:
                size += len(row[-1])
                if found and size > most_bytes:
                    break
                found.append(_waiting(lane, row))
        return found

    def _each(self, condition: str, *values: object) -> Generator[tuple[Any, ...], None, None]:
        """Row by row: SQLite reads a message with its row."""
        try:
            with closing(self._db.execute(_READ + condition, values)) as rows:
                yield from rows
        except sqlite3.Error as error:
            raise self._translate(error) from error

    def _one(self, query: str, *values: object) -> Any:
        rows = self.query(query, *values)
        return rows[0][0] if rows else None

    def _execute(self, query: str, values: Sequence[object]) -> sqlite3.Cursor:
        # Not through `_translated`: a context manager costs as much as a look-up.
        try:
            return self._db.execute(query, values)
        except sqlite3.Error as error:
            raise self._translate(error) from error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> InfrastructureError:
        message = f"the file of parked deliveries, {self._file}: {error}"
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _SPOILT:
            return UnusableFile(message)
        return InfrastructureError(message, 5.0)
