"""Appends to the `notifications` log from asyncio, for the hot path.

The producer runs on the same event loop (`core.eventlog.loop_producer`). Records that arrive during a request to a
broker are sent together in the next one.

Without Kafka, unacknowledged records fail with InfrastructureError after the timeout, the producer is closed (its
records must not be written after their publishers got an error), and until a new one is connected every append fails at
once. Nothing is queued.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from arborcast.core.backoff import Backoff, retried
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import (
    RETRY_AFTER_S,
    Acknowledgement,
    as_infrastructure_error,
    make_loop_producer,
    partition_of_key,
    producer_for,
)
from arborcast.core.eventlog.loop_producer import LoopProducer
from arborcast.core.recent import Recent
from arborcast.core.settings import KafkaSettings
from arborcast.core.single_flight import stops
from arborcast.ingest.settings import GatewaySettings
from arborcast.topic_model.records.notifications import Notification, encode
from arborcast.wire.errors import TooLarge

logger = logging.getLogger(__name__)

# Records passed on before the event loop serves others: five milliseconds.
_AT_A_TIME = 250
_ALL_SENT: Final = object()

# Interval of the search for appends that take too long; only while there are appends.
_SWEEP_S = 0.25

# Time for pending appends at a stop.
_STOP_S = 1.0

# Between attempts to find the broker again.
_RECONNECT_S = 0.5

# A topic's partition is a hash over its whole path, in Python: worth remembering. Bytes, twice: some fifty thousand of
# ordinary length.
_REMEMBERED = 16 * 1024 * 1024


_Record = tuple[str, bytes, bytes]
"""Topic, key and value."""


@dataclass(slots=True, eq=False)
class _Append:
    """The records of one request, settled together; `size` is that of their values."""

    future: asyncio.Future[None]
    records: list[_Record]
    size: int
    began: float
    deadline: float
    accepted: int
    outcomes: list[BaseException | None] = field(default_factory=list)
    """The outcomes of records so far."""


class _Topics:
    """A producer, and the topics to which it appends, with their partitions."""

    def __init__(self, producer: LoopProducer, notifications: str, retained: str, partitions: int) -> None:
        self.producer = producer
        self.notifications = notifications
        self.retained = retained
        self._partitions = partitions
        self._known_partitions: Recent[bytes, int] = Recent(_REMEMBERED)

    def send(self, append: _Append, settle: Callable[[_Append], None]) -> Iterator[None]:
        """Sends a record at each step, and calls `settle` when all of them have an outcome."""

        def ended(outcome: BaseException | None) -> None:
            append.outcomes.append(outcome)
            if len(append.outcomes) == len(append.records):
                settle(append)

        def acknowledged(_: Acknowledgement) -> None:
            ended(None)

        sent = 0
        try:
            for topic, key, value in append.records:
                partition = 0 if topic == self.retained else self._partition(key)
                future = self.producer.send(topic, value=value, key=key, partition=partition)
                sent += 1
                future.add_callback(acknowledged)
                future.add_errback(ended)
                yield
        except Exception as error:
            # Not sent, nor are the ones behind it: they must not be stored without it.
            for _ in range(len(append.records) - sent):
                ended(error)

    def _partition(self, key: bytes) -> int:
        known = self._known_partitions.get(key)
        if known is None:
            known = partition_of_key(key, self._partitions)
            self._known_partitions.put(key, known, len(key))
        return known


class _Outgoing:
    """Records on their way to the producer, a limited number in each turn of the event loop: one request may have tens
    of thousands."""

    def __init__(self) -> None:
        self._appends: deque[Iterator[None]] = deque()
        self._next_turn: asyncio.Handle | None = None

    def add(self, records: Iterator[None]) -> None:
        self._appends.append(records)
        if self._next_turn is None:
            self._turn()

    def flush(self) -> None:
        """Send all of them now."""
        while self._appends:
            self._turn()

    def clear(self) -> None:
        self._appends.clear()

    def _turn(self) -> None:
        self._next_turn = None
        for _ in range(_AT_A_TIME):
            while self._appends and next(self._appends[0], _ALL_SENT) is _ALL_SENT:
                self._appends.popleft()
            if not self._appends:
                return
        self._next_turn = asyncio.get_running_loop().call_soon(self._turn)


class NotificationLog:
    """The gateway's way into the log, on the event loop's thread."""

    def __init__(self, kafka: KafkaSettings, settings: GatewaySettings) -> None:
        self._kafka = kafka
        self._limit = settings.max_unacknowledged_bytes
        self._timeout_s = kafka.request_timeout_s
        self._topics: _Topics | None = None
        self._under_way: dict[_Append, None] = {}
        self._outgoing = _Outgoing()
        self._sweep: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[None] | None = None
        # A connecting thread cannot be cancelled: after a stop it closes its own connection.
        self._ending = threading.Lock()
        self._ended = False
        self._failure = "not connected yet"
        self.unacknowledged_bytes = 0
        self.acknowledged: Callable[[int, float], object] = lambda _count, _seconds: None
        """Called for every request when its notifications are stored, with the number of new ones and the seconds it
        took. A current message that is stored again for a new subscriber is not new."""

    @property
    def obstacle(self) -> str:
        """Why no append has a chance; empty if one has."""
        return f"Kafka takes no notifications: {self._failure}" if self._topics is None else ""

    def start(self) -> None:
        """Start to connect to the broker, with retries until the stop. Call on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._connecting = self._loop.create_task(self._connect(), name="notification-log-connect")

    async def settled(self) -> None:
        """Return when all current appends are stored or refused."""
        if self._under_way:
            await asyncio.wait([append.future for append in self._under_way])

    async def stop(self) -> None:
        """Wait a short time for pending appends, then close."""
        with self._ending:
            self._ended = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._sweep is not None:
            self._sweep.cancel()
        self._outgoing.flush()
        topics, self._topics = self._topics, None
        if topics is not None:
            await topics.producer.drained(_STOP_S)
        self._fail_all(stops())
        if topics is not None:
            topics.producer.abort()

    def append(
        self, notifications: Sequence[Notification], retained: Sequence[Notification] = ()
    ) -> asyncio.Future[None]:
        """Append these in this order; the future is done when all replicas have acknowledged all of them.

        `retained` are the current messages of their topics among them.

        Raises InfrastructureError at once if the broker is away or the queue is full, TooLarge if the records exceed
        the limit alone. The future fails with InfrastructureError if acknowledgements do not arrive in time. Some of
        the records may then be in the log.
        """
        topics = self._topics
        if topics is None:
            raise InfrastructureError(self.obstacle, RETRY_AFTER_S)
        records, size = self._encoded({topics.notifications: notifications, topics.retained: retained})
        began = self._loop.time()
        accepted = sum(not each.only for each in notifications)
        append = _Append(self._loop.create_future(), records, size, began, began + self._timeout_s, accepted)
        self._under_way[append] = None
        self.unacknowledged_bytes += append.size
        self._outgoing.add(topics.send(append, self._settle))
        if self._sweep is None:
            self._sweep = self._loop.call_later(_SWEEP_S, self._check_deadlines)
        return append.future

    def _encoded(self, notifications: Mapping[str, Sequence[Notification]]) -> tuple[list[_Record], int]:
        """The records by topic, and their size. Encodes at most one record beyond the limit."""
        records: list[_Record] = []
        size, room = 0, self._limit - self.unacknowledged_bytes
        for topic, several in notifications.items():
            for notification in several:
                key, value = encode(notification)
                records.append((topic, key, value))
                size += len(value)
                if size > self._limit:  # no retry can succeed
                    raise TooLarge(
                        f"the records of this request have more than {self._limit} bytes together "
                        "(gateway.max_unacknowledged_bytes): send smaller messages, or fewer in one request"
                    )
                if size > room:
                    raise InfrastructureError(
                        f"Kafka is slow: {self.unacknowledged_bytes} bytes wait for its acknowledgement", RETRY_AFTER_S
                    )
        return records, size

    def _settle(self, append: _Append) -> None:
        if append not in self._under_way:
            return  # failed
        self._forget(append)
        if append.future.done():
            return
        error = next(filter(None, append.outcomes), None)
        if error is None:
            append.future.set_result(None)
            self.acknowledged(append.accepted, self._loop.time() - append.began)
            return
        failure = as_infrastructure_error("the notification cannot be stored", error)
        append.future.set_exception(failure)
        if self._topics is not None and (failure.retry_after is not None or self._topics.producer.broken):
            self._give_up(str(failure))

    def _forget(self, append: _Append) -> None:
        del self._under_way[append]
        self.unacknowledged_bytes -= append.size

    def _check_deadlines(self) -> None:
        self._sweep = None
        if not self._under_way:
            return
        # Oldest first: dictionaries keep their order.
        if next(iter(self._under_way)).deadline <= self._loop.time():
            # The producer has a time limit of its own, but not while it waits for its producer id.
            self._give_up(f"Kafka did not acknowledge within {self._timeout_s:g} s")
        else:
            self._sweep = self._loop.call_later(_SWEEP_S, self._check_deadlines)

    def _give_up(self, why: str) -> None:
        logger.warning("%s; connecting again", why)
        self._failure = why
        topics, self._topics = self._topics, None
        if topics is not None:
            self._loop.call_soon(topics.producer.abort)  # this may be one of its callbacks
        self._fail_all(InfrastructureError(f"connecting to Kafka again: {why}", RETRY_AFTER_S))
        self._connecting = self._loop.create_task(self._connect(), name="notification-log-connect")

    def _fail_all(self, error: InfrastructureError) -> None:
        self._outgoing.clear()
        waiting = list(self._under_way)
        self._under_way.clear()
        self.unacknowledged_bytes = 0
        for append in waiting:
            if not append.future.done():
                append.future.set_exception(error)

    async def _connect(self) -> None:
        find = partial(asyncio.to_thread, self._find_producer)
        pauses = Backoff(_RECONNECT_S, _RECONNECT_S)
        await retried("notifications cannot be accepted", find, pauses, InfrastructureError)
        if self._topics is not None:  # otherwise the gateway is stopping
            self._topics.producer.attach()
            logger.info("notifications are accepted")

    def _find_producer(self) -> None:
        # With the partitions of both topics `send` does not wait for them on the event loop.
        names = self._kafka.topic("notifications"), self._kafka.topic("retained")
        try:
            producer, (partitions, _) = producer_for(self._kafka, names, make_loop_producer)
        except InfrastructureError as error:
            self._failure = str(error)
            raise
        with self._ending:
            if not self._ended:
                self._topics = _Topics(producer, *names, partitions)
                return
        producer.abort()
