"""Notifications and attempts in the logs: the newest of a topic and of a subscription, the busiest topics, and a search
of payloads."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple, TypeVar
from xml.sax.saxutils import escape

import msgspec

from arborcast.admin.filters import TopicTest
from arborcast.admin.times import moment_ms
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import ConsumerRecord, partition_of_key
from arborcast.core.eventlog.consumer import LogConsumer
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.logs.attempts import Attempt, partition_of_subscription
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.projections.erasures import covering
from arborcast.topic_model.records.control import ErasureScope
from arborcast.topic_model.records.notifications import notification_in
from arborcast.topic_model.topics import TopicPath

T = TypeVar("T")

# Characters of a message in a list.
_SHOWN_CHARACTERS = 2_000

_SHOWN = 5

# Of a search: bytes of records, the time, and the bytes before the text in an excerpt.
_SEARCHED_BYTES = 256 * 1024 * 1024
_SEARCHED_S = 5.0
_BEFORE = 200

# The newest records that are read; more if the time permits. Only keys are compared and payloads dropped, but they must
# be transferred.
_READ_AT_ONCE = 500
_PATIENCE_S = 3.0

# For the busiest topics: records of each partition. Only keys are counted, but payloads must be transferred.
_NEWEST = 500
_BUSIEST_WITHIN_S = 2.0


class NewestMessage(NamedTuple):
    """One decoded message. `kept`: it is retained for later subscribers."""

    id: str
    at_ms: int
    publisher: str
    payload: str
    kept: bool


class LastMessages(NamedTuple):
    """Messages, newest first. `looked_at` is the number of records read, of all topics; `complete`: the log has no
    more. `problem` is the reason for a failed read."""

    messages: tuple[NewestMessage, ...] = ()
    looked_at: int = 0
    complete: bool = False
    problem: str = ""


def last_messages(
    kafka: KafkaSettings,
    path: TopicPath,
    *,
    kept: bool,
    patience_s: float = _PATIENCE_S,
    erased: Sequence[ErasureScope] = (),
) -> LastMessages:
    """The retained message if `kept`, else the newest messages; without those that erasures of these scopes cover.
    Never raises."""
    deadline = time.monotonic() + patience_s
    try:
        if kept:
            current = _newest(kafka, "retained", path, 1, deadline, erased)
            if current.messages:
                return current
        return _newest(kafka, "notifications", path, _SHOWN, deadline, erased)
    except InfrastructureError as error:
        return LastMessages(problem=str(error))


def _newest(
    kafka: KafkaSettings, name: str, path: TopicPath, most: int, deadline: float, erased: Sequence[ErasureScope]
) -> LastMessages:
    key, kept = path.encode(), name == "retained"

    def take(record: ConsumerRecord) -> Iterator[NewestMessage | None]:
        if record.key == key:
            message = _message(record, kept, erased)
            # If the retained message is removed, older ones are obsolete, too.
            if message is not None or kept:
                yield message

    # Payloads may be large, and all requested messages are in memory at once.
    with closing(LogConsumer(kafka, name, max_records=50)) as log:
        partition = partition_of_key(key, len(log.partitions()))
        found, looked_at, complete = _backwards(log, partition, take, most, deadline)
    return LastMessages(tuple(each for each in found if each is not None), looked_at, complete)


def _backwards(
    log: LogConsumer,
    partition: int,
    take: Callable[[ConsumerRecord], Iterable[T]],
    most: int,
    deadline: float,
    step: int = _READ_AT_ONCE,
) -> tuple[list[T], int, bool]:
    """The items that `take` yields from the end of the log backwards, the newest first; it reads `step` records, then
    each time twice as many. With the number of records read, and whether the log has no more."""
    found: list[T] = []
    begin, last = log.beginnings()[partition], log.ends()[partition]
    end = last
    while end > begin and len(found) < most and time.monotonic() < deadline:
        start = max(begin, end - step)
        log.seek({partition: start})
        batch: deque[T] = deque(maxlen=most - len(found))
        while log.positions()[partition] < end and time.monotonic() < deadline:
            for record in log.poll(0.2).get(partition, ()):
                if record.offset < end:
                    batch.extend(take(record))
        if log.positions()[partition] < end:
            break  # later ones may be older than unseen ones
        found += reversed(batch)
        end, step = start, step * 2
    return found, last - end, end <= begin


def last_attempts(kafka: KafkaSettings, subscription: str, most: int = 50) -> list[Attempt]:
    """The newest pushes to a subscription with a result, the newest first. Raises InfrastructureError."""
    name = subscription.encode()

    def take(record: ConsumerRecord) -> Iterator[Attempt]:
        # Records contain ids as they are: most need not be decoded.
        if record.value is not None and name in record.value:
            for each in attempts.readable(record.value).attempts:
                if each.subscription == subscription and each.push:
                    yield msgspec.structs.replace(each, response=each.response[:_SHOWN_CHARACTERS])

    with closing(LogConsumer(kafka, "attempts", max_records=500)) as log:
        partition = partition_of_subscription(subscription, len(log.partitions()))
        return _backwards(log, partition, take, most, time.monotonic() + _PATIENCE_S)[0]


def _message(record: ConsumerRecord, kept: bool, erased: Sequence[ErasureScope]) -> NewestMessage | None:
    """None for a retracted, erased or damaged message, and for a replay to one subscription."""
    notification = None if record.value is None else notification_in(record)
    if notification is None or notification.only or covering(erased, notification):
        return None
    shown = _excerpt(notification.payload)
    return NewestMessage(notification.id, notification.accepted_ms, notification.publisher, shown, kept)


def _excerpt(payload: bytes, begin: int = 0) -> str:
    text = payload[begin : begin + 4 * _SHOWN_CHARACTERS].decode(errors="replace")
    more = len(text) > _SHOWN_CHARACTERS
    return "…" * bool(begin) + text[:_SHOWN_CHARACTERS] + "…" * more


class MessageSearch(NamedTuple):
    """Notifications that topics select, with `text` in their payloads, stored from `since` to `until`: a span before
    now, or an ISO time. An empty `until` is now. `after` is the `next` of a search that this one continues."""

    text: str
    topic: TopicTest
    since: str
    until: str = ""
    after: str = ""


class FoundMessage(NamedTuple):
    """A notification, with the part of its payload that has the text."""

    id: str
    topic: TopicPath
    at_ms: int
    publisher: str
    payload: str


class FoundMessages(NamedTuple):
    """Messages, oldest first. `looked_at` records and `read_bytes` were read. `next` is the place where another search
    continues, empty where the whole time was searched."""

    messages: tuple[FoundMessage, ...]
    looked_at: int
    read_bytes: int
    next: str


def search(
    kafka: KafkaSettings,
    wanted: MessageSearch,
    control: ControlView,
    *,
    most: int = 50,
    most_bytes: int = _SEARCHED_BYTES,
    patience_s: float = _SEARCHED_S,
) -> FoundMessages:
    """With `most` messages the search ends. Raises ConfigError, ExpressionError, InfrastructureError."""
    since_ms = moment_ms("since", wanted.since)
    until_ms = moment_ms("until", wanted.until) if wanted.until else None
    find = _finder(wanted.text, wanted.topic.test(kafka, control), control.erasures.scopes)
    found: list[FoundMessage] = []
    looked_at, read_bytes, deadline = 0, 0, time.monotonic() + patience_s
    # Payloads may be large, and all requested messages are in memory at once.
    with closing(LogConsumer(kafka, "notifications", max_records=50)) as log:
        # Until now is to the end: messages of a clock that was put back since may precede the newest.
        ends, places = log.ends() if until_ms is None else log.at(until_ms + 1), log.at(since_ms)
        places |= {number: max(place, places[number]) for number, place in _places(wanted.after) if number in places}
        while unread := {number: place for number, place in places.items() if place < ends[number]}:
            # Partitions that were read to their end are fetched no more.
            log.seek(unread)
            while all(places[number] < ends[number] for number in unread):
                if len(found) >= most or read_bytes >= most_bytes or time.monotonic() >= deadline:
                    onward = ".".join(str(places[number]) for number in sorted(places))
                    return FoundMessages(_in_order(found), looked_at, read_bytes, onward)
                for number, records in log.poll(0.2).items():
                    here = [record for record in records if record.offset < ends[number]]
                    looked_at += len(here)
                    read_bytes += sum(len(record.value or b"") for record in here)
                    found += filter(None, map(find, here))
                places |= log.positions()
    return FoundMessages(_in_order(found), looked_at, read_bytes, "")


def _places(text: str) -> Iterator[tuple[int, int]]:
    for number, place in enumerate(text.split(".")):
        if place.isascii() and place.isdecimal() and len(place) < 19:
            yield number, int(place)


def _in_order(found: Iterable[FoundMessage]) -> tuple[FoundMessage, ...]:
    return tuple(sorted(found, key=lambda each: each.at_ms))


def _finder(
    text: str, matches: Callable[[TopicPath], bool], erased: Sequence[ErasureScope]
) -> Callable[[ConsumerRecord], FoundMessage | None]:
    """The message of a record that is searched for, else None."""
    # Text of JSON and other loose content is escaped in its envelope.
    needles = {text.encode(), escape(text).encode()}

    def find(record: ConsumerRecord) -> FoundMessage | None:
        # The payload is in the record as it is: most records need not be decoded.
        if record.value is None or not any(each in record.value for each in needles):
            return None
        notification = notification_in(record)
        if notification is None or notification.only or covering(erased, notification):
            return None
        at = max(notification.payload.find(each) for each in needles)
        if at < 0 or not matches(notification.topic):
            return None
        shown = _excerpt(notification.payload, max(0, at - _BEFORE))
        return FoundMessage(
            notification.id, notification.topic, notification.accepted_ms, notification.publisher, shown
        )

    return find


class RecentNotification(NamedTuple):
    """An accepted notification, without its payload."""

    id: str
    topic: TopicPath
    at_ms: int


def recent(kafka: KafkaSettings, most: int = 20) -> tuple[RecentNotification, ...]:
    """The newest notifications, newest first. Raises InfrastructureError."""

    def take(record: ConsumerRecord) -> Iterator[RecentNotification]:
        notification = None if record.value is None else notification_in(record)
        if notification is not None and not notification.only:
            yield RecentNotification(notification.id, notification.topic, notification.accepted_ms)

    deadline = time.monotonic() + _PATIENCE_S
    found: list[RecentNotification] = []
    with closing(LogConsumer(kafka, "notifications", max_records=50)) as log:
        for partition in log.partitions():
            found += _backwards(log, partition, take, most, deadline, most)[0]
    return tuple(sorted(found, key=lambda each: -each.at_ms)[:most])


class Busiest(NamedTuple):
    """Topics with their shares of the newest notifications, the number of these notifications, and the time of the
    oldest (ms)."""

    topics: list[tuple[str, int]]
    of: int = 0
    since_ms: int = 0


def busiest(kafka: KafkaSettings, most: int) -> Busiest:
    """The topics of the newest notifications, the busiest first. Raises InfrastructureError."""
    # Payloads may be large, and all requested messages are in memory at once.
    with closing(LogConsumer(kafka, "notifications", max_records=50)) as log:
        ends, begins = log.ends(_BUSIEST_WITHIN_S), log.beginnings(_BUSIEST_WITHIN_S)
        positions = {number: max(begins[number], end - _NEWEST) for number, end in ends.items()}
        log.seek(positions)
        counted: Counter[str] = Counter()
        since_ms, deadline = 0, time.monotonic() + _BUSIEST_WITHIN_S
        while time.monotonic() < deadline and any(log.positions()[number] < end for number, end in ends.items()):
            for records in log.poll(0.2).values():
                for record in records:
                    counted[(record.key or b"").decode(errors="replace")] += 1
                    since_ms = min(since_ms or record.timestamp, record.timestamp)
    return Busiest(counted.most_common(most), counted.total(), since_ms)
