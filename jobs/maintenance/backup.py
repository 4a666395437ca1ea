"""Taking a backup of an engine that may be running.

The order in which the logs are read is what makes it whole. Something moves from `notifications` to `parked` to `dead`,
each time written at its new place before it leaves the old one; so they are read in that order of places, after it is
known which batches are done, and nothing can be between two of them. Only a redrive goes the other way, from `dead` to
`parked`, perhaps when that has been read: so a letter that leaves `dead` after the backup has begun is still in it.

What is read twice is restored twice at worst, and pushed again under its id. The control log is read last: no delivery
is without its subscription.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from core.eventlog.client import ConsumerRecord
from core.eventlog.scan import LogScan
from core.eventlog.settings import KafkaSettings
from core.eventlog.topics import PULL_LOG
from dispatch.logs import attempts, dead_letters, parked
from dispatch.logs.parked import roomy
from jobs.maintenance.archive import Contents, Manifest, Record, seal, write_log
from topic_model.projections.pull_store import PullLimits, PullStore
from topic_model.records import notifications, pull

# Records are time-stamped by other machines than notifications.
_CLOCKS_MS = 60_000


class Evaluated(NamedTuple):
    """A record about what a batch has made of notifications of one partition: from which offset to which, and when it
    was written."""

    written_ms: int
    batch: int
    partition: int
    first: int
    last: int


class Progress(NamedTuple):
    """How far batches have come for certain.

    What lies at or behind `begins` of its partition may be under way. In other partitions what was accepted after
    `before_ms` may be; None means that nothing is known of them.
    """

    begins: Mapping[int, int]
    behind: Mapping[int, int]
    before_ms: int | None

    def first_owed(self, partition: int, at_before: int) -> int:
        """The first offset of a partition that is not settled or parked for certain. `at_before` is the first that was
        written at `before_ms` or later."""
        if partition in self.begins:
            return self.begins[partition]
        return max(at_before, self.behind.get(partition, 0))


def progress(seen: Iterable[Evaluated]) -> Progress:
    """What the newest records say. A batch begins when the one before it has come to its end, all outcomes written: so
    everything before the newest batch is done, and the newest may be cut off anywhere.

    Before batches had numbers of their own they began anew with a new checkpoint, and clocks differ: older is what
    has a lower number, or is older by more than clocks differ.
    """
    known = list(seen)
    if not known:
        return Progress({}, {}, None)
    newest = max(known)
    begins: dict[int, int] = {}
    behind: dict[int, int] = {}
    before_ms = None
    for each in known:
        if each.batch < newest.batch or each.written_ms < newest.written_ms - _CLOCKS_MS:
            behind[each.partition] = max(behind.get(each.partition, 0), each.last + 1)
            before_ms = max(before_ms or 0, each.written_ms - _CLOCKS_MS)
        else:
            begins[each.partition] = min(begins.get(each.partition, each.first), each.first)
    return Progress(begins, behind, before_ms)


# How far back the newest batches are looked for, in seconds, before all of the log is read.
_LOOKS_BACK_S = (60, 600, 3_600, 86_400)

_EVER = 1 << 62


def take(kafka: KafkaSettings, folder: Path, limits: PullLimits) -> Manifest:
    """Write a backup into a folder that has none; what is in it.

    `limits` are those of the gateways' pull points. Raises InfrastructureError, RecordVersionError, BackupError.
    """
    made_ms = int(time.time() * 1000)
    owed = _first_owed(kafka)
    # Before the parked deliveries are read; what had left the log by then waits among them, or is done.
    letters_until = _ends(kafka, "dead")
    logs: dict[str, Contents] = {}
    # Some of what is owed waits in `parked`, the rest was not dispatched yet. One file: first the older.
    logs["notifications"] = write_log(folder, "notifications", _owed(kafka, owed))
    logs["dead"] = write_log(folder, "dead", _letters(kafka, letters_until))
    logs["pullpoints"] = write_log(folder, "pullpoints", _pullable(kafka, limits))
    for name in ("retained", "control"):
        logs[name] = write_log(folder, name, (Record(each.key, each.value) for each in _all(kafka, name)))
    manifest = Manifest(made_ms, logs)
    seal(folder, manifest)
    return manifest


def _all(kafka: KafkaSettings, name: str) -> Iterator[ConsumerRecord]:
    with LogScan(roomy(kafka), name) as log:
        yield from log.read_all()


def _ends(kafka: KafkaSettings, name: str) -> dict[int, int]:
    with LogScan(kafka, name) as log:
        return log.ends()


def _first_owed(kafka: KafkaSettings) -> dict[int, int]:
    """Where in each partition begins what no batch is done with for certain."""
    found = _progress(kafka)
    with LogScan(kafka, "notifications") as log:
        firsts = log.beginnings()
        at = firsts if found.before_ms is None else log.at(found.before_ms)
        return {number: max(first, found.first_owed(number, at[number])) for number, first in firsts.items()}


def _progress(kafka: KafkaSettings) -> Progress:
    with LogScan(kafka, "attempts") as log:
        ends, now_ms = log.ends(), int(time.time() * 1000)
        for back_s in _LOOKS_BACK_S:
            found = progress(_evaluated(log, log.at(now_ms - back_s * 1000), ends))
            # Without a batch before the newest one, its beginning may lie further back.
            if found.before_ms is not None:
                return found
        return progress(_evaluated(log, log.beginnings(), ends))


def _evaluated(log: LogScan, firsts: dict[int, int], ends: dict[int, int]) -> Iterator[Evaluated]:
    for record in log.read_from(firsts, ends):
        _, evaluation = attempts.decode_all(record.value or attempts.NOTHING)
        if evaluation is not None and evaluation.matched:
            offsets = [each.offset for each in evaluation.matched]
            yield Evaluated(record.timestamp, evaluation.batch, evaluation.partition, min(offsets), max(offsets))


def _owed(kafka: KafkaSettings, first_owed: dict[int, int]) -> Iterator[Record]:
    # A file of SQLite's that goes with the connection: what waits need not fit into memory.
    with closing(sqlite3.connect("")) as waiting:
        waiting.execute("create table waiting (key blob primary key, batch, partition, offset, subscription, value)")
        for record in _all(kafka, "parked"):
            _note(waiting, record, first_owed)
        rows = waiting.execute("select subscription, value from waiting order by batch, partition, offset")
        for subscription, value in rows:
            kept = parked.decode(value)
            if isinstance(kept, parked.Parked):
                yield Record(*notifications.encode(msgspec.structs.replace(kept.notification, only=subscription)))
    with LogScan(kafka, "notifications") as log:
        for record in log.read_from(first_owed):
            yield Record(record.key, record.value)


def _note(waiting: sqlite3.Connection, record: ConsumerRecord, first_owed: dict[int, int]) -> None:
    delivery, of_tries = parked.decode_key(record.key)
    if of_tries:
        return  # tries begin anew
    place = delivery.place
    if record.value is None:
        waiting.execute("delete from waiting where key = ?", (record.key,))
    elif place.redrive or place.offset < first_owed.get(place.partition, 0):
        waiting.execute(
            "insert or replace into waiting values (?, ?, ?, ?, ?, ?)",
            (record.key, place.batch, place.partition, place.offset, delivery.subscription, record.value),
        )

    # Else its notification is dispatched anew as a whole.


def _letters(kafka: KafkaSettings, until: dict[int, int]) -> Iterator[Record]:
    """The letters that were in the log when it ended there, and all later ones: whether one that was taken out since is
    among what was read of `parked`, or has been given up again, nobody knows."""
    with closing(sqlite3.connect("")) as letters:
        letters.execute("create table letters (key blob primary key, value)")
        for record in _all(kafka, "dead"):
            if record.value is not None:
                letters.execute("insert or replace into letters values (?, ?)", (record.key, record.value))
            elif record.offset < until.get(record.partition, 0):
                letters.execute("delete from letters where key = ?", (record.key,))
        for key, value in letters.execute("select key, value from letters order by rowid"):
            delivery, _ = parked.decode_key(key)
            # Batches and offsets begin anew, and their letters must not take the place of these.
            place = delivery.place._replace(redrive=delivery.place.redrive or dead_letters.decode(value).at_ms)
            yield Record(delivery._replace(place=place).key(), value)


def _pullable(kafka: KafkaSettings, limits: PullLimits) -> Iterator[Record]:
    """What waits or was claimed and not settled, as it was put in."""
    store = PullStore(limits)
    for record in _all(kafka, PULL_LOG):
        store.apply(*pull.decode(record.key, record.value), record.offset)
    kept = {each.offset for name in store.ids() for each in store.head(name, _EVER, _EVER)}
    kept |= {each.offset for name, claim in store.overdue(_EVER) for each in store.claimed(name, claim)}
    for record in _all(kafka, PULL_LOG):
        if record.offset in kept:
            yield Record(record.key, record.value)
