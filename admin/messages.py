"""The newest notifications in the logs: those of a topic, and the topics that have most of them."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import ConsumerRecord, partition_of_key
from arborcast.core.eventlog.consumer import LogConsumer
from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.projections.erasures import covering
from arborcast.topic_model.records.control import ErasureScope
from arborcast.topic_model.records.notifications import notification_in
from arborcast.topic_model.topics import TopicPath

# Characters of a message in a list.
_SHOWN_CHARACTERS = 2_000

_SHOWN = 5

# The newest records that are looked at; further back as long as that takes no longer. Keys are compared and payloads
# thrown away, but they have to come.
_LOOKED_AT = 500
_PATIENCE_S = 3.0

# For the busiest topics: records of each partition. Keys are counted and payloads thrown away, but they have to come.
_NEWEST = 500
_BUSIEST_WITHIN_S = 2.0


class NewestMessage(NamedTuple):
    """One decoded message. `kept`: the message is retained for later subscribers."""

    id: str
    at_ms: int
    publisher: str
    payload: str
    kept: bool


class LastMessages(NamedTuple):
    """Messages, newest first. `looked_at` is the number of records read, of all topics; `complete` is set when the log
    has no more. `problem` is the reason for a failed read."""

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
    """The message that is kept for later subscribers, where there is one, else the newest few; without those that
    erasures of these scopes cover. Never raises."""
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
    """From the end of the log backwards, each time twice as far."""
    key, kept = path.encode(), name == "retained"
    found: list[NewestMessage | None] = []
    # Payloads may be large, and all requested messages are in memory at once.
    with closing(LogConsumer(kafka, name, max_records=50)) as log:
        partition = partition_of_key(key, len(log.partitions()))
        begin, last = log.beginnings()[partition], log.ends()[partition]
        end, step = last, _LOOKED_AT
        while end > begin and len(found) < most and time.monotonic() < deadline:
            start = max(begin, end - step)
            log.seek({partition: start})
            here: deque[NewestMessage | None] = deque(maxlen=most - len(found))
            while log.positions()[partition] < end and time.monotonic() < deadline:
                for record in log.poll(0.2).get(partition, ()):
                    if record.offset < end and record.key == key:
                        message = _message(record, kept, erased)
                        # Where none is kept any more, an older one is not, either.
                        if message is not None or kept:
                            here.append(message)
            if log.positions()[partition] < end:
                break  # later ones may be older than unseen ones
            found = [*here, *found]
            end, step = start, step * 2
    return LastMessages(tuple(each for each in reversed(found) if each is not None), last - end, end <= begin)


def _message(record: ConsumerRecord, kept: bool, erased: Sequence[ErasureScope]) -> NewestMessage | None:
    """None for a retracted, erased or damaged message, and for a replay to one subscription."""
    notification = None if record.value is None else notification_in(record)
    if notification is None or notification.only or covering(erased, notification):
        return None
    payload = notification.payload.decode(errors="replace")
    shown = payload[:_SHOWN_CHARACTERS] + "…" * (len(payload) > _SHOWN_CHARACTERS)
    return NewestMessage(notification.id, notification.accepted_ms, notification.publisher, shown, kept)


class Busiest(NamedTuple):
    """Topics with their shares of the newest notifications, the number of these notifications, and the time of the
    oldest (ms). `problem` is the reason for a failed read."""

    topics: list[tuple[str, int]]
    of: int = 0
    since_ms: int = 0
    problem: str = ""


def busiest(kafka: KafkaSettings, most: int) -> Busiest:
    """The topics of the newest notifications, the busiest first. Raises InfrastructureError."""
    # Payloads may be large, and all requested messages are in memory at once.
    log = LogConsumer(kafka, "notifications", max_records=50)
    try:
        ends, begins = log.ends(_BUSIEST_WITHIN_S), log.beginnings(_BUSIEST_WITHIN_S)
        positions = {number: max(begins[number], end - _NEWEST) for number, end in ends.items()}
        log.seek(positions)
        counted: Counter[str] = Counter()
        since_ms, deadline = 0, time.monotonic() + _BUSIEST_WITHIN_S
        while time.monotonic() < deadline and any(log.positions()[number] < end for number, end in ends.items()):
            for records in log.poll(0.2).values():
                for record in records:
                    counted[record.key.decode() if record.key else ""] += 1
                    since_ms = min(since_ms or record.timestamp, record.timestamp)
    finally:
        log.close()
    return Busiest(counted.most_common(most), counted.total(), since_ms)
