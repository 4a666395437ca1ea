"""What waits to be delivered: the way through the compacted `parked` log, and what became of the last tries."""

from __future__ import annotations

import heapq
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from arborcast.core.eventlog.client import ConsumerRecord
from arborcast.core.eventlog.scan import LogScan, Stretch
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import attempts, parked
from arborcast.dispatch.logs.attempts import NO_BATCH, Attempt, partition_of_subscription
from arborcast.dispatch.logs.parked import Delivery, Parked, Tries
from arborcast.topic_model.topics import TopicPath


@dataclass(frozen=True)
class Asked:
    """Which deliveries: to these subscriptions, of these topics, and of this notification if it is not empty."""

    subscription: Callable[[str], bool]
    topic: Callable[[TopicPath], bool]
    notification: str = ""

    def includes(self, entry: Parked) -> bool:
        message = entry.notification
        return (not self.notification or message.id == self.notification) and self.topic(message.topic)


class Wait(NamedTuple):
    """A delivery that waits since then, without its message. `last` is what became of it last, where the log of
    attempts still says so."""

    delivery: Delivery
    notification: str
    topic: TopicPath
    accepted_ms: int
    since_ms: int
    tries: Tries
    last: Attempt | None = None
    priority: int = 0


class _Standing(NamedTuple):
    """Where the last record of a delivery stands, and when its first one was written."""

    since_ms: int
    partition: int
    offset: int


class Waiting:
    """The deliveries that wait now. Raises InfrastructureError, RecordVersionError."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka

    def oldest(
        self, asked: Asked, most: int, skip: int = 0, *, newest_first: bool = False
    ) -> tuple[list[Wait], int, Counter[str]]:
        """Those that wait longest, or shortest, in that order, at most so many behind the first `skip`; how many
        further ones there are; and how many in all for each subscription.

        The log is read twice: first where the record of each delivery stands, then those of the oldest. So memory is
        some two hundred bytes for each that is asked for, however large the messages, and none for the others.
        """
        with LogScan(parked.roomy(self._kafka), "parked") as log:
            beginnings, ends = log.beginnings(), log.ends()
            standing, tried = _fold(log.read_from(beginnings, ends), asked)
            choose = heapq.nlargest if newest_first else heapq.nsmallest
            chosen = choose(skip + most, standing.items(), key=lambda item: item[1])[skip:]
            waits = list(_waits(_records(log, [each for _, each in chosen]), standing, tried))
        waits.sort(key=lambda wait: standing[wait.delivery.key()], reverse=newest_first)
        counts = Counter(parked.decode_key(key)[0].subscription for key in standing)
        return waits, max(0, len(standing) - skip - len(chosen)), counts

    def tally(self, subscriptions: Collection[str]) -> dict[str, tuple[int, int]]:
        """Of these subscriptions for which something waits: how many deliveries, and since when the oldest (ms)."""
        with LogScan(parked.roomy(self._kafka), "parked") as log:
            asked = Asked(subscriptions.__contains__, lambda _: True)
            standing, _ = _fold(log.read_from(log.beginnings(), log.ends()), asked)
        found: dict[str, tuple[int, int]] = {}
        for key, each in standing.items():
            name = parked.decode_key(key)[0].subscription
            count, since_ms = found.get(name, (0, each.since_ms))
            found[name] = count + 1, min(since_ms, each.since_ms)
        return found

    def with_last(self, waits: Sequence[Wait], within_s: float = 10.0) -> tuple[list[Wait], bool]:
        """The same with what became of each last; and whether the log was searched for all within the time.

        Each is looked for where it was decided, for the log of attempts may be long. What it has forgotten is left out.
        """
        found: dict[tuple[str, str], Attempt] = {}
        until = time.monotonic() + within_s
        complete = True
        with LogScan(self._kafka, "attempts") as log:
            for attempt in chain.from_iterable(_near(log, *window) for window in _windows(waits)):
                if attempt is not None:
                    name = (attempt.notification, attempt.subscription)
                    if _is_later(attempt, found.get(name)):
                        found[name] = attempt
                if time.monotonic() > until:
                    complete = False
                    break
        named = [(each, found.get((each.notification, each.delivery.subscription))) for each in waits]
        return [each._replace(last=last) for each, last in named], complete


def _fold(records: Iterable[ConsumerRecord], asked: Asked) -> tuple[dict[bytes, _Standing], dict[bytes, Tries]]:
    """What waits of that which is asked for, and what it has been through, by the key of the delivery."""
    standing: dict[bytes, _Standing] = {}
    tried: dict[bytes, Tries] = {}
    for record in records:
        delivery, is_tries = parked.decode_key(record.key)
        if not asked.subscription(delivery.subscription):
            continue
        key = delivery.key()
        if record.value is None:
            tried.pop(key, None)
            if not is_tries:
                standing.pop(key, None)
            continue
        entry = parked.decode(record.value)
        if isinstance(entry, Parked):
            if not asked.includes(entry):
                continue
            # A batch that is repeated parks the same ones again: they wait since the first time.
            since_ms = standing[key].since_ms if key in standing else record.timestamp
            standing[key] = _Standing(since_ms, record.partition, record.offset)
        tried[key] = max(tried.get(key, entry.tries), entry.tries)
    return standing, tried


def _records(log: LogScan, places: Iterable[_Standing]) -> Iterator[ConsumerRecord]:
    wanted = {(each.partition, each.offset) for each in places}
    stretches: dict[int, Stretch] = {}
    for partition, offset in wanted:
        known = stretches.get(partition, Stretch(offset, offset))
        stretches[partition] = Stretch(min(known.first, offset), max(known.end, offset + 1))
    return (record for record in log.read(stretches) if (record.partition, record.offset) in wanted)


def _waits(
    records: Iterable[ConsumerRecord], standing: dict[bytes, _Standing], tried: dict[bytes, Tries]
) -> Iterator[Wait]:
    for record in records:
        delivery, _ = parked.decode_key(record.key)
        entry = parked.decode(record.value or b"")
        if isinstance(entry, Parked):  # as all are that stand somewhere
            message = entry.notification
            tries, since_ms = tried[record.key], standing[record.key].since_ms
            accepted_ms, priority = message.accepted_ms, message.priority
            yield Wait(delivery, message.id, message.topic, accepted_ms, since_ms, tries, priority=priority)


# Clocks differ, and an outcome is written up to some seconds after it was decided.
_AROUND_MS = 30_000


def _decided_ms(wait: Wait) -> int:
    return max(wait.since_ms, wait.tries.decided_ms)


def _windows(waits: Iterable[Wait]) -> Iterator[tuple[int, int, list[Wait]]]:
    """From when to when what became of them last was written down: one stretch of time for all that are near."""
    some: list[Wait] = []
    for wait in sorted(waits, key=_decided_ms):
        if some and _decided_ms(wait) - _decided_ms(some[-1]) > 2 * _AROUND_MS:
            yield _decided_ms(some[0]) - _AROUND_MS, _decided_ms(some[-1]) + _AROUND_MS, some
            some = []
        some.append(wait)
    if some:
        yield _decided_ms(some[0]) - _AROUND_MS, _decided_ms(some[-1]) + _AROUND_MS, some


def _near(log: LogScan, first_ms: int, last_ms: int, waits: Sequence[Wait]) -> Iterator[Attempt | None]:
    """Records of these deliveries written in an interval; None for each record about none of them."""
    partitions = len(log.partitions())
    wanted: defaultdict[int, set[tuple[str, str]]] = defaultdict(set)
    for wait in waits:
        subscription = wait.delivery.subscription
        wanted[partition_of_subscription(subscription, partitions)].add((wait.notification, subscription))
    firsts, ends = log.at(first_ms), log.at(last_ms)
    for record in log.read({number: Stretch(firsts[number], ends[number]) for number in wanted}):
        asked = wanted[record.partition]
        # Ids are in the record as they are: most records need not be decoded.
        if record.value is None or not any(notification.encode() in record.value for notification, _ in asked):
            yield None
            continue
        for attempt in attempts.decode(record.value):
            if (attempt.notification, attempt.subscription) in asked:
                yield attempt


def _is_later(attempt: Attempt, known: Attempt | None) -> bool:
    """Rows of a batch come before all those of the redelivery."""
    return known is None or attempt.batch == NO_BATCH or known.batch != NO_BATCH
