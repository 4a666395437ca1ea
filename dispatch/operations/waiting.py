"""The waiting deliveries and their last attempts; attempts that operators request."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from arborcast.core.eventlog.scan import LogScan, OffsetRange
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import time_ms
from arborcast.dispatch.logs import attempts, parked
from arborcast.dispatch.logs.attempts import NO_BATCH, Attempt, partition_of_subscription
from arborcast.dispatch.logs.parked import Delivery, ParkingLog, Tries
from arborcast.dispatch.operations.views import (
    DeliveryViews,
    PendingView,
    ViewEntry,
    ViewFilter,
    ViewPlace,
    opened,
    pending_of,
)
from arborcast.topic_model.topics import TopicPath

# Requested attempts that are being written, and their timeout.
_AT_ONCE = 1_000
_SETTLE_S = 30.0


class Wait(NamedTuple):
    """A delivery that waits since `since_ms`, without its message. `last` is its last attempt, if the log of attempts
    still has it."""

    delivery: Delivery
    notification: str
    topic: TopicPath
    accepted_ms: int
    since_ms: int
    tries: Tries
    last: Attempt | None = None
    priority: int = 0


class Waiting:
    """The waiting deliveries; `views` are cached for later queries. Raises InfrastructureError, RecordVersionError."""

    def __init__(self, kafka: KafkaSettings, views: DeliveryViews | None = None) -> None:
        self._kafka = kafka
        self._views = views

    def oldest(
        self, selection: ViewFilter, most: int, skip: int = 0, *, newest_first: bool = False
    ) -> tuple[list[Wait], int, Counter[str]]:
        """The deliveries that wait longest, or shortest, in that order, up to `most` behind the first `skip`; the
        number of the others; and the number of all for each subscription."""
        with opened(PendingView, self._kafka, self._views) as view:
            entries, groups = view.page(selection, most, skip, newest_first=newest_first)
        counts = Counter[str]()
        for group, number in groups.items():
            counts[group.subscription] += number
        return [_wait(each) for each in entries], max(0, groups.total() - skip - len(entries)), counts

    def following(
        self, selection: ViewFilter, most: int, after: ViewPlace | None, *, newest_first: bool = False
    ) -> tuple[list[Wait], ViewPlace | None]:
        """The deliveries behind a place in this order, up to `most`; and the place of the last, None if these are all
        the others."""
        with opened(PendingView, self._kafka, self._views) as view:
            entries = view.following(selection, most, after, newest_first=newest_first)
        return [_wait(each) for each in entries], entries[-1].order if len(entries) == most else None

    def request_attempts(self, selection: ViewFilter, limit: int = sys.maxsize) -> int:
        """Make deliveries due now, the longest waiting first, up to `limit`; returns their number. Deliveries with an
        awaited result are skipped: their receiver has the message. The redelivery reads the requests; it also probes an
        endpoint with an open breaker.
        """

        def idle(entry: ViewEntry) -> bool:
            return not pending_of(entry.value).tries.awaits and (selection.test is None or selection.test(entry))

        chosen = selection._replace(test=idle)
        now_ms, number, after = time_ms(), 0, None
        # In parts: a million deliveries may wait.
        with opened(PendingView, self._kafka, self._views) as view, closing(ParkingLog(self._kafka)) as requests:
            while found := view.following(chosen, min(_AT_ONCE, limit - number), after):
                for each in found:
                    requests.tried(parked.decode_key(each.key)[0], pending_of(each.value).tries.requested(now_ms))
                requests.settle(_SETTLE_S)
                number, after = number + len(found), found[-1].order
        return number

    def tally(self, subscriptions: Collection[str]) -> dict[str, tuple[int, int]]:
        """Of these subscriptions, those with waiting deliveries: their number, and the time of the oldest (ms)."""
        found: dict[str, tuple[int, int]] = {}
        with opened(PendingView, self._kafka, self._views) as view:
            for name in subscriptions:
                oldest, counts = view.page(ViewFilter(subscription=name), 1)
                if oldest:
                    found[name] = counts.total(), oldest[0].at_ms
        return found

    def with_last(self, waits: Sequence[Wait], within_s: float = 10.0) -> tuple[list[Wait], bool]:
        """The same with the last attempt of each; and whether the search was complete within the time.

        The search reads the log of attempts near the time of each decision. Attempts that it no longer has are left
        out.
        """
        found: dict[Delivery, Attempt] = {}
        sought = []
        for each in waits:
            cached = None if self._views is None else self._views.last(_attempt_of(each))
            if cached is None:
                sought.append(each)
            elif cached[0] is not None:
                found[each.delivery] = cached[0]
        complete = not sought or (within_s > 0 and self._search(sought, found, time.monotonic() + within_s))
        return [each._replace(last=found.get(each.delivery)) for each in waits], complete

    def _search(self, sought: Sequence[Wait], found: dict[Delivery, Attempt], until: float) -> bool:
        """Find the last attempts of these deliveries, up to a time; returns whether the search was complete."""
        settled_ms = time_ms() - 2 * _AROUND_MS
        with LogScan(self._kafka, "attempts") as log:
            for first_ms, last_ms, some in _windows(sought):
                last_attempts: dict[tuple[str, str], Attempt] = {}
                for attempt in _near(log, first_ms, last_ms, some):
                    if attempt is not None:
                        name = (attempt.notification, attempt.subscription)
                        if _is_later(attempt, last_attempts.get(name)):
                            last_attempts[name] = attempt
                    if time.monotonic() > until:
                        return False
                for each in some:
                    last = last_attempts.get((each.notification, each.delivery.subscription))
                    if last is not None:
                        found[each.delivery] = last
                    if self._views is not None and (last is not None or _decided_ms(each) < settled_ms):
                        self._views.cache_last(_attempt_of(each), last)
        return True


def _attempt_of(wait: Wait) -> tuple[Delivery, int, int]:
    """The key of the last attempt of a delivery: a requested one changes only its time."""
    return wait.delivery, wait.tries.number, wait.tries.counted


def _wait(entry: ViewEntry) -> Wait:
    delivery, _ = parked.decode_key(entry.key)
    waits = pending_of(entry.value)
    message = waits.notification
    return Wait(
        delivery, message.id, message.topic, message.accepted_ms, entry.at_ms, waits.tries, priority=message.priority
    )


# Clocks differ, and an outcome is written up to some seconds after its decision.
_AROUND_MS = 30_000


def _decided_ms(wait: Wait) -> int:
    return max(wait.since_ms, wait.tries.decided_ms)


def _windows(waits: Iterable[Wait]) -> Iterator[tuple[int, int, list[Wait]]]:
    """Intervals in which the last attempts were written, with the deliveries: near ones are combined."""
    near: list[list[Wait]] = []
    for wait in sorted(waits, key=_decided_ms):
        if not near or _decided_ms(wait) - _decided_ms(near[-1][-1]) > 2 * _AROUND_MS:
            near.append([])
        near[-1].append(wait)
    for some in near:
        yield _decided_ms(some[0]) - _AROUND_MS, _decided_ms(some[-1]) + _AROUND_MS, some


def _near(log: LogScan, first_ms: int, last_ms: int, waits: Sequence[Wait]) -> Iterator[Attempt | None]:
    """Records of these deliveries written in an interval; None for each other record."""
    partitions = len(log.partitions())
    selected: defaultdict[int, set[tuple[str, str]]] = defaultdict(set)
    for wait in waits:
        subscription = wait.delivery.subscription
        selected[partition_of_subscription(subscription, partitions)].add((wait.notification, subscription))
    firsts, ends = log.at(first_ms), log.at(last_ms)
    for record in log.read({number: OffsetRange(firsts[number], ends[number]) for number in selected}):
        selection = selected[record.partition]
        # Records contain ids as they are: most need not be decoded.
        if record.value is None or not any(notification.encode() in record.value for notification, _ in selection):
            yield None
            continue
        for attempt in attempts.readable(record.value).attempts:
            if (attempt.notification, attempt.subscription) in selection:
                yield attempt


def _is_later(attempt: Attempt, known: Attempt | None) -> bool:
    """Rows of a batch precede all rows of the redelivery."""
    return known is None or attempt.batch == NO_BATCH or known.batch != NO_BATCH
