"""Replays: the notifications of an interval once more, for one subscription only.

They are appended to their log again, marked with the subscription and the replay, so all rules for others apply to
them: retries, parking, order, rows in the tables, the audit.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import msgspec

from arborcast.core.errors import ArborcastError
from arborcast.core.eventlog.client import partition_of_key
from arborcast.core.eventlog.scan import LogScan, OffsetRange
from arborcast.core.eventlog.writers import DurableWriter
from arborcast.core.progress import Progress, no_progress
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import CLOCKS_APART_MS, time_ms
from arborcast.dispatch.matching.filters import Conditions, Subject
from arborcast.topic_model.projections.erasures import covering
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.control import ErasureScope
from arborcast.topic_model.records.notifications import Notification, notification_in, replayed
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath

# Records sent before their acknowledgements are awaited: bounds memory, and the error of a failed replay's count.
_AT_ONCE = 500

_WRITE_S = 30.0


class ReplayRefused(ArborcastError):
    """The reason against a replay."""


@dataclass(frozen=True)
class ReplaySpan:
    """The notifications of a replay: accepted from `since_ms` on and before `until_ms`, on matching topics."""

    since_ms: int
    until_ms: int
    topic: Callable[[TopicPath], bool]


class Replay:
    """One replay to one subscription. Used by one thread.

    `table` is the current control log: the subscription's current filters decide. Replayed notifications are accepted
    as of that table.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        table: RoutingTable,
        subscription_id: str,
        span: ReplaySpan,
        erased: Sequence[ErasureScope] = (),
        continued: str = "",
    ) -> None:
        """`erased` are scopes of erasures: covered notifications are in the log until Kafka deletes them, and are not
        replayed. `continued` is the id of a failed replay: what it has sent is omitted. Raises ReplayRefused if nothing
        could be delivered to the subscription."""
        self._kafka = kafka
        self._table = table
        self._subscription = _checked(table, subscription_id)
        self._span = span
        self._conditions = Conditions()
        self._erased = erased
        self._continues = bool(continued)
        self.id = continued or secrets.token_hex(6)

    def find(self, limit: int, progress: Progress = no_progress) -> list[tuple[int, int]]:
        """Partitions and offsets of the matching notifications, in order.

        Up to `limit`, and one more if there are more. Raises InfrastructureError, RecordVersionError.
        """
        found = []
        with LogScan(self._kafka, "notifications") as log:
            first, ends = log.at(self._span.since_ms - CLOCKS_APART_MS), log.at(self._span.until_ms + CLOCKS_APART_MS)
            total = sum(max(0, ends[partition] - start) for partition, start in first.items())
            examined = 0
            ours = (
                each
                for record in (log.read_from(first) if self._continues else ())
                if (each := notification_in(record)) and (each.replay, each.only) == (self.id, self._subscription.id)
            )
            sent = {each.original_id for each in ours}
            for partition, start in first.items():
                for notification, offset in _readable(log, partition, OffsetRange(start, ends[partition])):
                    examined += 1
                    progress("searching matching notifications", examined, total)
                    if self._matches(notification) and notification.id not in sent:
                        found.append((partition, offset))
                        if len(found) > limit:
                            return found
        return found

    def send(self, places: list[tuple[int, int]], progress: Progress = no_progress) -> int:
        """Append these notifications again; returns their number. After an error the earlier ones may be appended.

        Raises InfrastructureError.
        """
        sent = 0
        with (
            LogScan(self._kafka, "notifications") as log,
            closing(DurableWriter(self._kafka, "notifications")) as writer,
        ):
            for partition, some in groupby(places, itemgetter(0)):
                offsets = [offset for _, offset in some]
                chosen = frozenset(offsets)
                for notification, offset in _readable(log, partition, OffsetRange(offsets[0], offsets[-1] + 1)):
                    if offset not in chosen:
                        continue
                    again = replayed(notification, self.id, self._subscription.id, time_ms(), self._table.position)
                    if self._subscription.policy.reliability == "timely":
                        # A replay delivers all notifications, without the rule for the newest.
                        again = msgspec.structs.replace(again, reliable=True)
                    key, value = notifications.encode(again)
                    writer.send(partition_of_key(key, writer.partitions), value, key)
                    sent += 1
                    progress("sending again", sent, len(places))
                    if sent % _AT_ONCE == 0:
                        writer.settle(_WRITE_S)
            writer.settle(_WRITE_S)
        return sent

    def _matches(self, notification: Notification) -> bool:
        # Notifications for one subscription only (replays, notices) are not replayed.
        if notification.only or not self._span.since_ms <= notification.accepted_ms < self._span.until_ms:
            return False
        if not self._span.topic(notification.topic):
            return False
        subscription = self._subscription
        if not any(each.id == subscription.id for each in self._table.match(notification.topic)):
            return False
        if covering(self._erased, notification):
            return False
        if not (subscription.content or subscription.producer or subscription.types):
            return True
        return Subject(self._conditions, notification).passes(subscription)


def _checked(table: RoutingTable, subscription_id: str) -> Subscription:
    subscription = table.get(subscription_id)
    if subscription is None or subscription.expired(time_ms()):
        raise ReplayRefused(f"there is no subscription {subscription_id}; it may have ended")
    if subscription.trigger is not None:
        raise ReplayRefused(
            f"{subscription_id} is the trigger {subscription.trigger.name}: it publishes new notifications only"
        )
    if subscription.pull_point:
        raise ReplayRefused(
            f"subscription {subscription_id} delivers into a pull point, where a message cannot be labelled as a replay"
        )
    if not subscription.receives:
        raise ReplayRefused(
            f"subscription {subscription_id} is paused, and deliveries to it are not stored: resume it first"
        )
    return subscription


def _readable(log: LogScan, partition: int, stretch: OffsetRange) -> Iterator[tuple[Notification, int]]:
    """The notifications and their offsets, without damaged records, which were never delivered."""
    for record in log.read({partition: stretch}):
        notification = notification_in(record)
        if notification is not None:
            yield notification, record.offset
