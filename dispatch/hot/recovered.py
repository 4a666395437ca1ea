"""Recovery of the deliveries behind the position at which a run starts, from the logs.

After a crash notifications are read again. Deliveries with a row in `attempts` are not pushed again, so only pushes
in flight at the crash, or ended just before, are repeated; their dead letters are removed. Parked deliveries keep their
place.

The log is read from the time at which the first notification behind the positions was appended, without partitions that
end at their position; rows of the redelivery count, too. When Spark repeats one task of a batch, because its worker has
died, the rows of this batch and of the redelivery are read from an end of the log before the batch, and `parked`: a
worker may have died between a parked record and its row.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from typing import NamedTuple

from arborcast.core.eventlog.client import partition_of_key
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.progress import LoggedProgress
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import CLOCKS_APART_MS, time_ms
from arborcast.dispatch.delivery.verdict import GONE
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.logs.parked import DeadLetterLog, Parked, Place, readable, readable_letter, with_parked_overhead
from arborcast.topic_model.topics import TopicPath

logger = logging.getLogger(__name__)

Settled = frozenset[tuple[str, str]]
"""Subscriptions and notifications of deliveries."""

Newest = Mapping[tuple[str, TopicPath], tuple[int, int]]
"""By subscription and topic, a partition and offset of the `notifications` log."""


class SettledRows(NamedTuple):
    """The rows of `attempts` behind some positions. `gone`: subscriptions whose receivers answered 410."""

    deliveries: Settled
    newest: Newest
    gone: frozenset[str]


# Time for which ends of the logs are used: a request before each batch would delay it.
_ENDS_S = 60.0

# Size of the cache of topics' partitions while rows are read.
_TOPICS = 65_536

# Periods in which the newest batch is searched, in seconds, before the whole log is read.
_SEARCH_PERIODS_S = (60, 3_600, 86_400)


class RecoveredDeliveries(NamedTuple):
    """`settled`: deliveries with a row in `attempts`. `unwritten`: parked deliveries whose row was lost in the crash.
    `numbers`: by partition, sorted, the first offset and the number by which notifications were parked. `newest`: by
    subscription and topic, the partition and offset of the newest notification that was pushed."""

    settled: Settled = frozenset()
    unwritten: Settled = frozenset()
    numbers: Mapping[int, Sequence[tuple[int, int]]] = {}
    newest: Mapping[tuple[str, TopicPath], tuple[int, int]] = {}

    @classmethod
    def of(
        cls, settled: Settled, parked: Iterable[tuple[str, str, Place]], since: int, newest: Newest | None = None
    ) -> RecoveredDeliveries:
        """By the subscription, notification and place of each delivery with a row or a parked record. Places of runs
        before `since` belong to another log."""
        unwritten: set[tuple[str, str]] = set()
        last: dict[int, dict[int, int]] = {}
        for subscription, notification, place in parked:
            if (subscription, notification) not in settled:
                unwritten.add((subscription, notification))
            if place.batch >= since and not place.redrive:
                last.setdefault(place.partition, {})[place.offset] = place.batch
        numbers = {partition: sorted(known.items()) for partition, known in last.items()}
        return cls(settled, frozenset(unwritten), numbers, newest or {})

    def has_newer(self, subscription_id: str, topic: TopicPath, partition: int, offset: int) -> bool:
        """Whether a newer notification on the topic was pushed to the subscription."""
        found = self.newest.get((subscription_id, topic), (partition, offset))
        return found[0] == partition and found[1] > offset

    def number(self, partition: int, offset: int) -> int | None:
        """The number under which a notification is parked, in order with earlier parked ones; None if it is after them
        all."""
        known = self.numbers.get(partition)
        if not known or offset > known[-1][0]:
            return None
        return known[max(0, bisect_right(known, offset, key=lambda each: each[0]) - 1)][1]


NOTHING = RecoveredDeliveries()


class StartState(NamedTuple):
    """Where a query starts: the offset in each partition of the `notifications` log, whose Kafka topic has the id
    `topic`; the deliveries that are settled behind these; and the highest number of a run or batch so far. `since` is
    the first run whose rows count behind the positions, -1 if no push was started behind them. `batches`: batches were
    cut off behind the positions."""

    positions: Mapping[int, int]
    recovered: RecoveredDeliveries
    newest: int
    since: int = -1
    batches: bool = False
    topic: str = ""

    def advanced(self, positions: Mapping[int, int], ends: Mapping[int, int], newest: int) -> StartState:
        """The start of the next query, given how far this one got, with the log ending at `ends` when it started. The
        recovered deliveries are kept until every partition is past its end."""
        if self.since < 0 or all(positions[partition] >= end for partition, end in ends.items()):
            return StartState(positions, NOTHING, newest, topic=self.topic)
        return self._replace(positions=positions, newest=newest, batches=False)

    def starting(self, kafka: KafkaSettings) -> str:
        """The `startingOffsets` of Spark's source."""
        at = {str(number): position for number, position in sorted(self.positions.items())}
        return json.dumps({kafka.topic("notifications"): at})


class OutcomeEnds(NamedTuple):
    """Ends of the logs `attempts` and `parked` before a batch, by partition. Not times: clocks of hosts differ."""

    attempts: Mapping[int, int] = {}
    parked: Mapping[int, int] = {}


class OutcomeLogs:
    """The ends of the logs that batches write to."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._ends = OutcomeEnds()
        self._read_at = -math.inf

    def ends(self) -> OutcomeEnds:
        """Ends of the last minute. Raises InfrastructureError."""
        if time.monotonic() - self._read_at > _ENDS_S:
            with LogScan(self._kafka, "attempts") as rows, LogScan(self._kafka, "parked") as parked:
                self._ends = OutcomeEnds(rows.ends(), parked.ends())
            self._read_at = time.monotonic()
        return self._ends


def settled_in_batch(kafka: KafkaSettings, batch: int, ends: OutcomeEnds, timeout_s: float) -> SettledRows:
    """The deliveries with a row of a batch behind these ends, or of the redelivery. Read the parked deliveries before:
    the redelivery may complete them meanwhile, and then their rows are here. Raises InfrastructureError if the log
    cannot be read to its end in time."""
    with LogScan(kafka, "attempts", timeout_s) as log:
        found = _settled(log, batch, {0: _behind(log, ends.attempts)}, 1)  # as if all topics were in one partition
    if found.deliveries:
        logger.info("%d deliveries of batch %d were settled before it was cut off", len(found.deliveries), batch)
    return found


def parked_in_batch(
    kafka: KafkaSettings, batch: int, ends: OutcomeEnds, timeout_s: float, earlier: Collection[int] = ()
) -> list[tuple[str, str, Place]]:
    """Subscription, notification and place of waiting deliveries that a batch has parked behind these ends, under its
    number or `earlier` ones, from the `parked` log. Raises InfrastructureError if the log cannot be read to its end in
    time."""
    batches = {batch, *earlier}
    waiting: dict[bytes, tuple[str, str, Place]] = {}
    with LogScan(with_parked_overhead(kafka), "parked", timeout_s) as log:
        for record in log.read_from(_behind(log, ends.parked)):
            read = readable(record.key, record.value, (record.partition, record.offset))
            if read is None or read.of_tries or read.delivery.place.batch not in batches:
                continue
            delivery, _, parked = read
            if isinstance(parked, Parked):
                waiting[record.key] = delivery.subscription, parked.notification.id, delivery.place
            else:
                waiting.pop(record.key, None)
    return list(waiting.values())


def _behind(log: LogScan, ends: Mapping[int, int]) -> dict[int, int]:
    """Offsets of all partitions: one that was added since is read from its beginning."""
    return {number: ends.get(number, 0) for number in log.partitions()}


def appended_ms(kafka: KafkaSettings, positions: Mapping[int, int]) -> dict[int, int]:
    """The timestamps of the first records at or behind these positions of the `notifications` log, by partition;
    without the partitions that end there. Raises InfrastructureError."""
    with LogScan(kafka, "notifications") as log:
        return {record.partition: record.timestamp for record in log.first_behind(positions)}


def settled_since(kafka: KafkaSettings, first: int, behind_ms: Mapping[int, int], partitions: int) -> SettledRows:
    """The deliveries with a row of a batch of this number or a higher one, or of the redelivery, that can belong to
    notifications behind the positions of a run. A delivery with a row of the redelivery was parked, and waits there or
    is settled, even without a row of its worker. Also returns the partition and offset of the newest pushed
    notification of each subscription and topic, if an evaluation has them.

    `behind_ms` are the timestamps of the first notifications behind these positions, by partition: no row is older than
    its notification. Partitions without one have no such notification; `partitions` is the number of partitions of the
    `notifications` log. Raises InfrastructureError.
    """
    with LogScan(kafka, "attempts", progress=LoggedProgress(logger)) as log:
        # Offsets, not the timestamps of rows: a clock may have been put back, and those of several brokers differ.
        firsts = {number: log.at(since_ms - CLOCKS_APART_MS) for number, since_ms in behind_ms.items()}
        return _settled(log, first, firsts, partitions)


def remove_letters_without_rows(
    kafka: KafkaSettings, first: int, positions: Mapping[int, int], since_ms: int, settled: Settled
) -> None:
    """Remove the dead letters behind these positions of a run of this number or a higher one, except those of `settled`
    deliveries: the crash came between a letter and its row, and the next run repeats the delivery. `since_ms` is the
    timestamp of the first notification behind the positions. Raises InfrastructureError."""
    found: dict[bytes, int] = {}
    with LogScan(with_parked_overhead(kafka), "dead", progress=LoggedProgress(logger)) as log:
        for record in log.read_from(log.at(since_ms - CLOCKS_APART_MS)):
            read = readable_letter(record.key, record.value, (record.partition, record.offset))
            if read is None:
                continue
            delivery, letter = read
            batch, partition, offset, redrive = delivery.place
            is_behind = batch >= first and not redrive and offset >= positions.get(partition, sys.maxsize)
            if letter is not None and is_behind and (letter.subscription, letter.notification.id) not in settled:
                found[record.key] = record.partition
            else:
                found.pop(record.key, None)
    if found:
        with closing(DeadLetterLog(kafka)) as letters:
            letters.connect()
            # In its partition only: the repeated delivery may leave a letter with this key, and a reader may read the
            # null of another partition after it.
            for key, partition in found.items():
                letters.send(partition, None, key)
            letters.settle(kafka.request_timeout_s)


def _settled(log: LogScan, first: int, firsts: Mapping[int, Mapping[int, int]], partitions: int) -> SettledRows:
    """For each partition of the `notifications` log, the rows behind offsets of `attempts`."""
    partition_of = lru_cache(_TOPICS)(lambda topic: partition_of_key(topic.encode(), partitions))
    found: set[tuple[str, str]] = set()
    gone: set[str] = set()
    pushed: dict[tuple[str, TopicPath], tuple[int, str]] = {}  # when the newest was accepted, and its id
    places: dict[str, tuple[int, int]] = {}
    for record in log.read_from({each: min(at[each] for at in firsts.values()) for each in log.partitions()}):
        batch = attempts.batch_of(record.key)
        if record.value is None or batch is None or (batch < first and batch != attempts.NO_BATCH):
            continue
        partitions_read = {number for number, at in firsts.items() if record.offset >= at[record.partition]}
        read = attempts.readable(record.value)
        for each in read.attempts:
            if partition_of(each.topic) in partitions_read:
                found.add((each.subscription, each.notification))
                if each.state == "cancelled" and each.status == GONE:
                    gone.add(each.subscription)
                if each.push:
                    lane, one = (each.subscription, each.topic), (each.accepted_ms, each.notification)
                    pushed[lane] = max(pushed.get(lane, one), one)
        evaluation = read.evaluation
        if evaluation is not None and evaluation.partition in partitions_read:
            places.update({each.notification: (evaluation.partition, each.offset) for each in evaluation.matched})
    newest = {lane: places[name] for lane, (_, name) in pushed.items() if name in places}
    return SettledRows(frozenset(found), newest, frozenset(gone))


def newest_batch(kafka: KafkaSettings) -> int:
    """The highest batch number in the `attempts` log, NO_BATCH without any. Raises InfrastructureError."""
    now_ms = time_ms()
    with LogScan(kafka, "attempts", progress=LoggedProgress(logger)) as log:
        for since_ms in (*(now_ms - back_s * 1000 for back_s in _SEARCH_PERIODS_S), 0):
            batches = (attempts.batch_of(record.key) for record in log.read_from(log.at(since_ms)))
            newest = max((each for each in batches if each is not None), default=attempts.NO_BATCH)
            if newest != attempts.NO_BATCH:
                break
    return newest
