"""Erasures: payloads are removed from the logs and the tables, by the job.

An erasure is a record in the control log before anything is removed. The job passes over all places, until a pass finds
no copy, and all notifications accepted before the request are dispatched and archived; so a restart in the middle, or a
delivery in flight, costs another pass and loses nothing. Each removal is idempotent. Workers cancel deliveries that an
open erasure covers (`dispatch.hot.intake`), so that a backlog is not delivered meanwhile.

Kafka removes records at its own times: those of a compacted log some time after a null, others by their age. If all
notifications before a time are erased, they are deleted at the beginning of their log at once.
"""

from __future__ import annotations

import functools
import logging
import operator
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from lxml import etree

from arborcast.core import liveness
from arborcast.core.errors import ExpressionError
from arborcast.core.eventlog.client import Admin, ConsumerRecord
from arborcast.core.eventlog.damaged import unless_damaged
from arborcast.core.eventlog.removal import remove_keys
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.eventlog.topics import FRAGMENT_LOG, PULL_LOG
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import time_ms
from arborcast.core.xml import parse_xml, xml_parser
from arborcast.dispatch.delivery.outcomes import failed
from arborcast.dispatch.delivery.settlement import unpushed, untried
from arborcast.dispatch.delivery.verdict import Verdict
from arborcast.dispatch.logs import parked
from arborcast.dispatch.logs.attempts import Attempt, AttemptsLog, erased_by, partition_of_subscription
from arborcast.dispatch.logs.parked import Delivery, Parked, ParkingLog
from arborcast.dispatch.operations.dead_letters import DeadLetterAdmin, letters
from arborcast.dispatch.recording.folds import moment
from arborcast.dispatch.recording.follower import Work
from arborcast.dispatch.tables import DEAD_LETTERS, NOTIFICATIONS, RETRIES
from arborcast.dispatch.tables.delta_table import COMMIT_TURNS, REWRITE_TURNS, WRITER, positions_in
from arborcast.dispatch.tables.spec import TableSpec, open_table, quoted, table_exists
from arborcast.topic_model.expressions import concrete_topic
from arborcast.topic_model.projections.erasures import covering, covers, selects
from arborcast.topic_model.projections.pull_store import PullLimits, PullStore
from arborcast.topic_model.records import pull
from arborcast.topic_model.records.control import ControlRecord, ErasedPlace, Erasure, ErasureScope, Tombstone
from arborcast.topic_model.records.notifications import Notification, notification_in
from arborcast.topic_model.records.pull import ERASED, Claimed, Settled, StoredMessage
from arborcast.topic_model.topics import TopicPath

if TYPE_CHECKING:
    # A command that uses `kept_until` does not need pyspark.
    from arborcast.dispatch.matching.view import RoutingView

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

# Deliveries, and messages in pull points, in memory; some 500 bytes each. The log is read again for the others.
_AT_ONCE = 50_000

# Rows that one commit rewrites.
_ROWS_AT_ONCE = 50_000

# Bytes of files that are read and rewritten together; a larger one alone.
_FILE_BYTES = 32 * 1024 * 1024

# Payloads have up to some megabytes each, and all of a piece are in memory.
_PAYLOADS_AT_ONCE = 64

_SETTLE_S = 60.0

# A claim that is settled in the same append needs no time.
_CLAIM_MS = 60_000

_UNLIMITED = PullLimits(messages=1 << 60, bytes=1 << 60, resident_bytes=0, total=1 << 60)

# Kafka deletes at intervals: log.retention.check.interval.ms, log.cleaner.backoff.ms.
_KAFKA_INTERVALS_MS = 300_000

# Difference of the clocks of brokers and gateways, and of a clock with a wrong date or time zone.
_CLOCKS_MS = 86_400_000

# Kafka's value for no limit is the largest number of 64 bits.
_NO_LIMIT_MS = 1 << 50


class _Covered(NamedTuple):
    """A waiting delivery: its erasure, its last row, and the partition of its record."""

    erasure: str
    row: Attempt
    partition: int


class Eraser(Work):
    """Carries out the open erasures. `settled` returns the offsets before which all notifications are dispatched, also
    for the next start; `append` writes to the control log; `location` returns the location of a table."""

    name = "erasures"

    def __init__(
        self,
        kafka: KafkaSettings,
        view: RoutingView,
        settled: Callable[[], Mapping[int, int]],
        append: Callable[[Sequence[ControlRecord]], object],
        location: Callable[[TableSpec], str],
        *,
        archive: bool,
        unused_files_hours: int,
    ) -> None:
        self._kafka = kafka
        self._view = view
        self._settled = settled
        self._append = append
        self._location = location
        self._archive = archive
        self._unused_files_ms = unused_files_hours * 3_600_000
        self._ends: dict[str, dict[int, int]] = {}  # by erasure: the end of the notifications, after its request
        self._passed: frozenset[str] = frozenset()  # erasures for which the last pass found nothing
        self._parked: tuple[set[str], dict[int, int]] = set(), {}  # erasures; the positions of `parked` without copies
        self.open = 0
        self.erased = 0
        """Removed copies since the start."""

    def step(self) -> bool:
        """A pass over all places for all open erasures, unless no new copies are possible. Raises
        InfrastructureError."""
        self._view.catch_up(self._kafka.request_timeout_s)
        known = {each.scope.id: each for each in self._view.erasures.open}
        self.open = len(known)
        if not known:
            self._forget()
            return False
        for name in known.keys() - self._ends.keys():
            self._ends[name] = _ends(self._kafka, "notifications")
        settled = {name for name in known if self._is_settled(self._ends[name])}
        if not settled and known.keys() <= self._passed:
            return False  # the others are not dispatched or archived yet
        ends = {log: _ends(self._kafka, log) for log in ("parked", "dead")}
        found = self._pass_over(known)
        self._passed = frozenset(known.keys() - found)
        if self._tables_follow(ends):
            self._finish([known[name] for name in settled & self._passed])
        return False

    def _pass_over(self, known: dict[str, Erasure]) -> set[str]:
        """Remove all copies; returns the erasures with a removed copy. Counts are written place by place."""
        scopes = [each.scope for each in known.values()]
        found: set[str] = set()
        places: tuple[tuple[ErasedPlace, Callable[[Sequence[ErasureScope]], Counter[str]]], ...] = (
            ("waiting", self._waiting),
            ("dead_letters", self._dead_letters),
            ("current_messages", self._current_messages),
            ("pull_points", self._pull_points),
            ("notifications", self._archived),
        )
        for place, erase in places:
            counts = erase(scopes)
            found |= counts.keys()
            self.erased += counts.total()
            for name, count in (+counts).items():
                erased = {**known[name].erased, place: known[name].erased.get(place, 0) + count}
                known[name] = msgspec.structs.replace(known[name], erased=erased)
            if +counts:
                self._append([known[name] for name in +counts])
        return found

    def _finish(self, erasures: Sequence[Erasure]) -> None:
        if not erasures:
            return
        for each in erasures:
            is_cut = self._cut(each.scope)
            now_ms = time_ms()
            kept_ms = {**kept_until(self._kafka, now_ms, is_cut), "tables": now_ms + self._unused_files_ms}
            self._append([msgspec.structs.replace(each, done_ms=now_ms, kept_until_ms=kept_ms)])
            del self._ends[each.scope.id]
            logger.info("erasure %s is done: %s", each.scope.id, each.erased)

    def _cut(self, scope: ErasureScope) -> bool:
        """Delete notifications at the beginning of their log, if the erasure covers all before a time. Returns whether
        Kafka has no other covered notification."""
        if scope.topic or scope.subject or scope.notification:
            return False
        with LogScan(self._kafka, "notifications") as log, closing(Admin(self._kafka)) as admin:
            begin, settled = log.beginnings(), self._settled()
            ends = log.at(scope.before_ms + _CLOCKS_MS)
            # Only records near that time are read: those before it are covered, those after it are not.
            near = {number: max(at, begin[number]) for number, at in log.at(scope.before_ms - _CLOCKS_MS).items()}
            cuts = {number: min(end, settled.get(number, 0)) for number, end in ends.items()}
            covered = dict(near)
            for record in log.read_from(near, ends):
                message = notification_in(record)
                if message is None or covers(scope, message):
                    covered[record.partition] = record.offset + 1
                else:
                    cuts[record.partition] = min(cuts[record.partition], record.offset)
            for number, offset in cuts.items():
                if offset > begin[number]:
                    admin.delete_before(self._kafka.topic("notifications"), number, offset)
        return all(covered[number] <= cut for number, cut in cuts.items())

    def _forget(self) -> None:
        """Remove erasures without remaining copies in Kafka from the control log; the table keeps their rows."""
        now_ms = time_ms()
        # Another thread may have applied a request since `step` found no open one.
        done = [each for each in self._view.erasures.all() if each.done_ms]
        over = [each for each in done if all(0 < at_ms < now_ms for at_ms in each.kept_until_ms.values())]
        if over:
            self._append([Tombstone.of("erase", each.scope.id) for each in over])

    def _is_settled(self, ends: Mapping[int, int]) -> bool:
        """Whether all notifications before these offsets are dispatched, and archived."""
        archived = not self._archive or _reached(self._positions(NOTIFICATIONS, "notifications"), ends)
        return archived and _reached(self._settled(), ends)

    # Logs

    def _waiting(self, scopes: Sequence[ErasureScope]) -> Counter[str]:
        found = Counter[str]()
        names = {scope.id for scope in scopes}
        passed, before = self._parked
        with LogScan(parked.with_parked_overhead(self._kafka), "parked") as log:
            firsts, ends = log.beginnings(), log.ends()
            if names <= passed:
                # Behind these positions are only deliveries parked since the last pass.
                firsts = {number: max(first, before.get(number, 0)) for number, first in firsts.items()}
            while firsts:
                waiting, firsts = self._covered_waiting(log.read_from(firsts, ends), scopes)
                if waiting:
                    self._end(waiting)
                found.update(each.erasure for each in waiting.values())
        self._parked = names, ends
        return found

    def _covered_waiting(
        self, records: Iterable[ConsumerRecord], scopes: Sequence[ErasureScope]
    ) -> tuple[dict[bytes, _Covered], dict[int, int]]:
        """Up to _AT_ONCE covered deliveries that wait, each with its erasure and its last row; and where the others
        begin in the log, empty if these are all. The null of a delivery is behind its record, so the log can be read
        from any offset to its end."""
        waiting: dict[bytes, _Covered] = {}
        others: dict[int, int] = {}
        for record in records:
            read = parked.readable(record.key, record.value, (record.partition, record.offset))
            if read is None or read.of_tries:
                continue
            delivery, _, entry = read
            if entry is None:
                waiting.pop(record.key, None)
            elif isinstance(entry, Parked) and (name := covering(scopes, entry.notification)):
                if record.partition in others or len(waiting) >= _AT_ONCE:
                    others.setdefault(record.partition, record.offset)
                else:
                    waiting[record.key] = _Covered(name, self._row(delivery, entry, name), record.partition)
        return waiting, others

    def _end(self, waiting: Mapping[bytes, _Covered]) -> None:
        """End these deliveries: first their rows, then the nulls."""
        with closing(AttemptsLog(self._kafka)) as rows, closing(ParkingLog(self._kafka)) as log:
            for each in waiting.values():
                rows.add(each.row)
            rows.settle(_SETTLE_S)
            for key, each in waiting.items():
                delivery = parked.decode_key(key)[0]
                own = partition_of_subscription(delivery.subscription, log.partitions)
                log.finished(delivery, tried=True, everywhere=each.partition != own)
            log.settle(_SETTLE_S)

    def _row(self, delivery: Delivery, entry: Parked, name: str) -> Attempt:
        subscription = self._view.subscription(delivery.subscription)
        endpoint = subscription.consumer.address if subscription is not None else ""
        decision = unpushed(entry, Verdict("cancelled"), failed("erased", erased_by(name)))
        return untried(delivery.subscription, endpoint, entry.notification, decision, time_ms())

    def _dead_letters(self, scopes: Sequence[ErasureScope]) -> Counter[str]:
        return +Counter({scope.id: self._purged(scope) for scope in scopes})

    def _purged(self, scope: ErasureScope) -> int:
        covered = letters(self._kafka, lambda letter: covers(scope, letter.notification))
        with DeadLetterAdmin(self._kafka) as admin:
            return admin.purge(covered, erased_by(scope.id))

    def _current_messages(self, scopes: Sequence[ErasureScope]) -> Counter[str]:
        last: dict[bytes, str] = {}
        with LogScan(self._kafka, "retained") as log:
            ends = log.ends()
            for record in log.read_from(log.beginnings(), ends):
                message = None if record.value is None else notification_in(record)
                last.pop(record.key, None)
                if message is not None and (name := covering(scopes, message)):
                    last[record.key] = name
        if last:
            remove_keys(self._kafka, "retained", last, ends)
        return Counter(last.values())

    def _pull_points(self, scopes: Sequence[ErasureScope]) -> Counter[str]:
        found = Counter[str]()
        with LogScan(self._kafka, PULL_LOG) as log:
            firsts = log.beginnings()
            while firsts:
                store, firsts = _covered_in(log, firsts, scopes)
                # A claimed one is being delivered to the client: it is settled, or waits again at the next pass.
                for point, claim, _ in store.open_claims():
                    found.update({each.notification: 0 for each in store.claimed(point, claim)})
                taken = [(point, each) for point in store.ids() for each in store.head(point, _AT_ONCE, sys.maxsize)]
                if taken:
                    with closing(LogWriter(self._kafka, PULL_LOG)) as writer:
                        for some in _pieces(taken, 500):
                            removals = (self._removal(point, each.offset) for point, each in some)
                            writer.append_encoded(list(chain.from_iterable(removals)))
                found.update(each.notification for _, each in taken)
        return found

    def _removal(self, pull_point: str, offset: int) -> Iterator[tuple[bytes, bytes]]:
        """The records that remove a message from a pull point, as after its delivery by a gateway."""
        claim = f"{ERASED}{secrets.token_hex(8)}"
        yield pull.encode(pull_point, Claimed(claim, offset, offset, time_ms() + _CLAIM_MS))
        yield pull.encode(pull_point, Settled(claim))

    # Tables

    def _archived(self, scopes: Sequence[ErasureScope]) -> Counter[str]:
        """Empty the payloads of the archive, day by day. Rows stay, with the id of the erasure."""
        found: Counter[str] = Counter()
        location = self._location(NOTIFICATIONS)
        if not table_exists(location):
            return found
        with COMMIT_TURNS[location]:
            table = NOTIFICATIONS.ensure(location)
        before_ms = max(scope.before_ms for scope in scopes)
        last_day = moment(before_ms).date().isoformat()
        for day in sorted({str(each["day"]) for each in table.partitions()}):
            liveness.beat()
            # Later days have replays of covered notifications.
            for files in _files_of_day(table, day, "" if day <= last_day else _id_at(before_ms)):
                for some in _pieces(_covered_rows(files, scopes), _ROWS_AT_ONCE):
                    found += _empty(location, day, some)
        return found

    def _tables_follow(self, ends: Mapping[str, Mapping[int, int]]) -> bool:
        """Whether the tables of waiting deliveries and dead letters, which have payloads, have reached these ends."""
        return all(
            not table_exists(self._location(spec)) or _reached(self._positions(spec, log), ends[log])
            for spec, log in ((RETRIES, "parked"), (DEAD_LETTERS, "dead"))
        )

    def _positions(self, spec: TableSpec, log: str) -> dict[int, int]:
        """The position of a table in a log: the next offset, by partition."""
        location = self._location(spec)
        return positions_in(open_table(location), log) if table_exists(location) else {}


def _covered_in(
    log: LogScan, firsts: Mapping[int, int], scopes: Sequence[ErasureScope]
) -> tuple[PullStore, dict[int, int]]:
    """Up to _AT_ONCE covered messages of pull points that are not settled, each with the erasure in place of its
    notification; and where the others begin in the log, empty if these are all. A claim is behind its messages, so
    the log can be read from any offset."""
    store = PullStore(_UNLIMITED)
    others: dict[int, int] = {}
    for record in log.read_from(firsts):
        read = unless_damaged(PULL_LOG, (record.partition, record.offset), pull.decode, record.key, record.value)
        if read is None:
            continue
        pull_point, entry = read
        if isinstance(entry, StoredMessage):
            name = "" if others else covering(scopes, _as_notification(entry, record.timestamp, scopes))
            if name and store.messages >= _AT_ONCE:
                others[record.partition] = record.offset
            if not name or others:
                continue
            entry = StoredMessage(b"", notification=name)
        store.apply(pull_point, entry, record.offset)
    return store, others


def _as_notification(entry: StoredMessage, written_ms: int, scopes: Sequence[ErasureScope]) -> Notification:
    """A message of a pull point, with the fields that scopes test."""
    topic = _topic_of(entry.element) if any(scope.topic for scope in scopes) else TopicPath("")
    return Notification(entry.notification, topic, entry.element, entry.accepted_ms or written_ms)


def _topic_of(element: bytes) -> TopicPath:
    """The topic of a wsnt:NotificationMessage; empty if unreadable."""
    try:
        topic = parse_xml(element, xml_parser(comments=False)).find("{*}Topic")
        if topic is None:
            return TopicPath("")
        namespaces = {prefix: uri for prefix, uri in topic.nsmap.items() if prefix}
        return concrete_topic((topic.text or "").strip(), topic.get("Dialect"), namespaces)
    except (etree.XMLSyntaxError, ExpressionError):
        return TopicPath("")


def _id_at(at_ms: int) -> str:
    """A lower bound of the ids that are made from this time on."""
    return f"{at_ms:012x}"


def _files_of_day(table: DeltaTable, day: str, before_id: str = "") -> Iterator[ds.FileSystemDataset]:
    """The files of the archive, some megabytes at a time, in the order of their ids: a commit that rewrites them takes
    several times their size in memory. With `before_id` only those with a smaller id."""
    files = pa.table(table.get_add_actions(flatten=True))
    sizes = dict(zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True))
    firsts = dict(zip(files["path"].to_pylist(), files["min.notification"].to_pylist(), strict=True))
    dataset = NOTIFICATIONS.dataset(
        table, f"day = '{day}'" + (f" and notification < '{before_id}'" if before_id else "")
    )
    some: list[ds.Fragment] = []
    size = 0
    for each in sorted(dataset.get_fragments(), key=lambda each: firsts.get(each.path) or ""):
        if some and size + sizes.get(each.path, 0) > _FILE_BYTES:
            yield ds.FileSystemDataset(some, dataset.schema, dataset.format, dataset.filesystem)
            some, size = [], 0
        some.append(each)
        size += sizes.get(each.path, 0)
    if some:
        yield ds.FileSystemDataset(some, dataset.schema, dataset.format, dataset.filesystem)


def _covered_rows(files: ds.FileSystemDataset, scopes: Sequence[ErasureScope]) -> Iterator[tuple[str, str]]:
    """Ids of archived notifications whose payloads must be removed, each with the erasure. Payloads are only read if an
    erasure names a subject."""
    column = ds.field
    before_ms = max(scope.before_ms for scope in scopes)
    # By its id, which has the time of the first acceptance, a replay may be covered, too.
    accepted = (column("accepted_at") < moment(before_ms)) | (column("notification") < _id_at(before_ms))
    where = column("erased").is_null() & accepted
    if all(scope.notification for scope in scopes):
        # Its replays, too: their ids begin with it.
        ids, name = [scope.notification for scope in scopes], column("notification")
        where &= functools.reduce(operator.or_, ((name >= each) & (name < each + "\x7f") for each in ids))
    columns = ["notification", "topic", "accepted_at"]
    subject = any(scope.subject for scope in scopes)
    found = files.scanner(
        columns=[*columns, "payload", "producer"] if subject else columns,
        filter=where,
        batch_size=_PAYLOADS_AT_ONCE if subject else _ROWS_AT_ONCE,
        batch_readahead=1,
        fragment_readahead=1,
    )
    for batch in found.to_batches():
        liveness.beat()
        topics = {each for each in pc.unique(batch["topic"]).to_pylist() if any(selects(one, each) for one in scopes)}
        for row in batch.to_pylist() if topics else ():
            if row["topic"] in topics:
                accepted_ms = int(row["accepted_at"].timestamp() * 1000)
                payload, producer = row.get("payload", b""), row.get("producer", b"")
                message = Notification(row["notification"], row["topic"], payload, accepted_ms, producer)
                if name := covering(scopes, message):
                    yield message.id, name


def _empty(location: str, day: str, rows: Sequence[tuple[str, str]]) -> Counter[str]:
    ids = [notification for notification, _ in rows]
    empty = pa.array([b""] * len(ids), pa.binary())
    emptied = pa.table({"notification": ids, "payload": empty, "producer": empty, "erased": [name for _, name in rows]})
    # Statistics exclude whole files by the bounds.
    match = f"t.day = '{day}' and t.notification = s.notification"
    match += f" and t.notification >= {quoted(min(ids))} and t.notification <= {quoted(max(ids))}"
    with REWRITE_TURNS[location], COMMIT_TURNS[location]:
        # Not by a list of the ids: delta-rs overflows its stack with some ten thousands.
        merger = open_table(location).merge(emptied, match, "s", "t", writer_properties=WRITER)
        merger.when_matched_update({name: f"s.{name}" for name in ("payload", "producer", "erased")}).execute()
    return Counter(name for _, name in rows)


def _pieces(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    remaining = iter(items)
    while some := list(islice(remaining, size)):
        yield some


def _ends(kafka: KafkaSettings, log: str) -> dict[int, int]:
    """The ends of the non-empty partitions."""
    with LogScan(kafka, log) as scan:
        beginnings, ends = scan.beginnings(), scan.ends()
    return {number: end for number, end in ends.items() if end > beginnings[number]}


def _reached(known: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    return all(known.get(number, 0) >= end for number, end in ends.items())


def kept_until(kafka: KafkaSettings, now_ms: int, is_cut: bool = False) -> dict[str, int]:
    """By topic, until when Kafka may keep records that were accepted, or removed by a null, before now; 0 if its
    configuration has no limit. `is_cut`: notifications are deleted, except in a segment that is still open. Raises
    InfrastructureError."""
    found: dict[str, int] = {}
    with closing(Admin(kafka)) as admin:
        for log in ("notifications", PULL_LOG, FRAGMENT_LOG):
            configs = admin.configs(kafka.topic(log))
            retention = "0" if is_cut and log == "notifications" else configs.get("retention.ms")
            found[kafka.topic(log)] = _until(now_ms, retention, configs.get("segment.ms"))
        for log in ("parked", "dead", "retained"):
            configs = admin.configs(kafka.topic(log))
            found[kafka.topic(log)] = _until(now_ms, configs.get("max.compaction.lag.ms"), "0")
    return found


def _until(now_ms: int, *spans_ms: str | None) -> int:
    spans = [int(each or -1) for each in spans_ms]
    return now_ms + sum(spans) + _KAFKA_INTERVALS_MS if all(0 <= each < _NO_LIMIT_MS for each in spans) else 0
