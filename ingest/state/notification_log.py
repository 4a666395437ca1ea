"""Appends to the `notifications` log from asyncio, for the hot path.

kafka-python sends and settles records in a thread, and each meeting of the two threads costs more than a record. A
request while nothing is in progress is passed on at once; others are collected for two milliseconds (a producer's
linger_ms would also delay a single request). Acknowledgements are collected, too: one wake-up of the event loop settles
all.

Without Kafka, unacknowledged records fail with InfrastructureError after the timeout, the producer is closed (its
records must not be written after their publishers got an error), and until a new one is connected every append fails at
once. Nothing is queued.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import (
    RETRY_AFTER_S,
    Acknowledgement,
    Producer,
    as_infrastructure_error,
    make_producer,
    partition_of_key,
    producer_for,
)
from arborcast.core.recent import Recent
from arborcast.core.settings import KafkaSettings
from arborcast.core.single_flight import stops
from arborcast.ingest.settings import GatewaySettings
from arborcast.topic_model.records.notifications import Notification, encode

logger = logging.getLogger(__name__)

# How long requests gather while earlier ones are under way. CPU per request, 64 at a time, without HTTP: 135 us when
# none gather, 90 us at 1 ms, 77 us at 2 ms, and the throughput doubles.
_GATHER_S = 0.002

# Records passed on before the event loop serves others: five milliseconds.
_AT_A_TIME = 250
_ALL_SENT: Final = object()

# Interval of the search for appends that take too long; only while there are appends.
_SWEEP_S = 0.25

# Between attempts to find the broker again.
_RECONNECT_S = 0.5

# A topic's partition is a hash over its whole path, in Python: worth remembering. Bytes, twice: some fifty thousand of
# ordinary length.
_REMEMBERED = 16 * 1024 * 1024


_Record = tuple[str, bytes, bytes]
"""Topic, key and value."""


class _Append:
    """The records of one request, settled together."""

    __slots__ = ("accepted", "began", "deadline", "future", "outcomes", "records", "size")

    def __init__(
        self,
        future: asyncio.Future[None],
        records: list[_Record],
        size: int,
        began: float,
        deadline: float,
        accepted: int,
    ) -> None:
        self.accepted = accepted
        self.began = began
        self.future = future
        self.records = records
        self.size = size  # of the values
        self.deadline = deadline
        self.outcomes: list[BaseException | None] = []
        """What became of each record so far; appended to in the producer's thread as well."""

    @property
    def settled(self) -> bool:
        return len(self.outcomes) == len(self.records)


class _Settled:
    """Appends whose records are acknowledged or failed. The producer's thread adds them, the event loop takes them;
    one wake-up of the loop serves all that were added."""

    def __init__(self, on_wake: Callable[[], None]) -> None:
        self._on_wake = on_wake
        self._appends: deque[_Append] = deque()
        self._wake_pending = False
        self._loop: asyncio.AbstractEventLoop

    def use(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def add(self, append: _Append, outcome: BaseException | None) -> None:
        """One more outcome of an append. In any thread."""
        append.outcomes.append(outcome)
        if append.settled:
            self._appends.append(append)
            # A wake-up too many is harmless, one too few is not: `take` clears the mark before it reads the queue.
            if not self._wake_pending:
                self._wake_pending = True
                self._loop.call_soon_threadsafe(self._on_wake)

    def take(self) -> Iterator[_Append]:
        self._wake_pending = False
        while self._appends:
            yield self._appends.popleft()


class _Topics:
    """A producer, and the topics to which it appends, with their partitions."""

    def __init__(self, producer: Producer, notifications: str, retained: str, partitions: int) -> None:
        self.producer = producer
        self.notifications = notifications
        self.retained = retained
        self._partitions = partitions
        self._known_partitions: Recent[bytes, int] = Recent(_REMEMBERED)

    def send(self, append: _Append, settled: _Settled) -> Iterator[None]:
        """Sends a record at each step."""

        def acknowledged(_: Acknowledgement) -> None:
            settled.add(append, None)

        def failed(error: BaseException) -> None:
            settled.add(append, error)

        sent = 0
        try:
            for topic, key, value in append.records:
                partition = 0 if topic == self.retained else self._partition(key)
                future = self.producer.send(topic, value=value, key=key, partition=partition)
                sent += 1
                future.add_callback(acknowledged)
                future.add_errback(failed)
                yield
        except Exception as error:
            # Not sent, nor are the ones behind it: they must not be stored without it.
            for _ in range(len(append.records) - sent):
                settled.add(append, error)

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

    def add(self, appends: Iterable[Iterator[None]]) -> None:
        self._appends.extend(appends)
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
    """The gateway's way into the log. Everything but the acknowledgements runs on the event loop's thread."""

    def __init__(self, kafka: KafkaSettings, settings: GatewaySettings) -> None:
        self._kafka = kafka
        self._limit = settings.max_unacknowledged_bytes
        self._timeout_s = kafka.request_timeout_s
        self._topics: _Topics | None = None
        self._under_way: dict[_Append, None] = {}
        self._settled = _Settled(self._settle)
        self._gathered: list[_Append] = []
        self._gathering: asyncio.TimerHandle | None = None
        self._outgoing = _Outgoing()
        self._sweep: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[None] | None = None
        # A thread that connects cannot be cancelled: what it comes back with after the end, it has to close.
        self._ending = threading.Lock()
        self._ended = False
        self.unacknowledged_bytes = 0
        self.acknowledged: Callable[[int, float], object] = lambda _count, _seconds: None
        """Called for every request once its notifications are stored, with the seconds it took and how many are new: a
        topic's current message, which is stored again for who subscribes later, is not."""

    @property
    def connected(self) -> bool:
        """Whether an append has a chance."""
        return self._topics is not None

    def start(self) -> None:
        """Begin to look for the broker, and never stop. Call on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._settled.use(self._loop)
        self._connecting = self._loop.create_task(self._connect(), name="notification-log-connect")

    async def settled(self) -> None:
        """Return when all that is under way now is stored, or refused."""
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
        self._hand_over()
        self._outgoing.flush()
        topics, self._topics = self._topics, None
        if topics is not None:
            await asyncio.to_thread(topics.producer.close, 1)
        self._settle()
        self._fail_all(stops())

    def append(
        self, notifications: Sequence[Notification], retained: Sequence[Notification] = ()
    ) -> asyncio.Future[None]:
        """Send these in this order; the future is done when all are acknowledged by all replicas.

        `retained` are those of them that become the current messages of their topics.

        Raises InfrastructureError at once when the broker is away or too much waits for it; the future fails with one
        when the acknowledgements do not come in time. Some of the records may be in the log then.
        """
        topics = self._topics
        if topics is None:
            raise InfrastructureError("the Kafka broker does not answer", RETRY_AFTER_S)
        records = self._encoded(topics.notifications, notifications, 0)
        size = sum([len(value) for _, _, value in records])
        if retained:
            records += self._encoded(topics.retained, retained, size)
            size = sum([len(value) for _, _, value in records])
        began = self._loop.time()
        accepted = sum(not each.only for each in notifications)
        append = _Append(self._loop.create_future(), records, size, began, began + self._timeout_s, accepted)
        self._gathered.append(append)
        if not self._under_way:
            self._hand_over()
        elif self._gathering is None:
            self._gathering = self._loop.call_later(_GATHER_S, self._hand_over)
        self._under_way[append] = None
        self.unacknowledged_bytes += append.size
        if self._sweep is None:
            self._sweep = self._loop.call_later(_SWEEP_S, self._look_for_late)
        return append.future

    def _encoded(self, topic: str, notifications: Sequence[Notification], size: int) -> list[_Record]:
        """Their records, of a request with so many bytes already. Encodes no more than one record beyond the limit."""
        room, records = self._limit - self.unacknowledged_bytes - size, []
        for notification in notifications:
            key, value = encode(notification)
            records.append((topic, key, value))
            room -= len(value)
            if room < 0:
                raise InfrastructureError(
                    f"Kafka is slow: {self.unacknowledged_bytes} bytes wait for its acknowledgement", RETRY_AFTER_S
                )
        return records

    def _hand_over(self) -> None:
        """Give the collected records to the producer."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        gathered, self._gathered = self._gathered, []
        topics = self._topics
        if topics is not None:  # else what had gathered was failed when the producer went
            self._outgoing.add([topics.send(append, self._settled) for append in gathered])

    def _settle(self) -> None:
        away = False
        for append in self._settled.take():
            if append not in self._under_way:
                continue  # given up, or reported by both threads
            self._forget(append)
            if append.future.done():
                continue
            error = next(filter(None, append.outcomes), None)
            if error is None:
                append.future.set_result(None)
                self.acknowledged(append.accepted, self._loop.time() - append.began)
            else:
                failure = as_infrastructure_error("the notification cannot be stored", error)
                append.future.set_exception(failure)
                away = away or failure.retry_after is not None
        if away and self._topics is not None:
            self._give_up()

    def _forget(self, append: _Append) -> None:
        del self._under_way[append]
        self.unacknowledged_bytes -= append.size

    def _look_for_late(self) -> None:
        self._sweep = None
        if not self._under_way:
            return
        # Oldest first: dictionaries keep their order.
        if next(iter(self._under_way)).deadline <= self._loop.time():
            # The producer should have given up by itself; it does not while it waits for its producer id.
            self._give_up()
        else:
            self._sweep = self._loop.call_later(_SWEEP_S, self._look_for_late)

    def _give_up(self) -> None:
        logger.warning("Kafka does not acknowledge: connecting again")
        topics, self._topics = self._topics, None
        if topics is not None:
            self._loop.run_in_executor(None, topics.producer.abort)
        self._fail_all(InfrastructureError(f"Kafka did not acknowledge within {self._timeout_s:g} s", RETRY_AFTER_S))
        self._connecting = self._loop.create_task(self._connect(), name="notification-log-connect")

    def _fail_all(self, error: InfrastructureError) -> None:
        self._gathered.clear()
        self._outgoing.clear()
        waiting = list(self._under_way)
        self._under_way.clear()
        self.unacknowledged_bytes = 0
        for append in waiting:
            if not append.future.done():
                append.future.set_exception(error)

    async def _connect(self) -> None:
        warned = False
        while self._topics is None:
            try:
                await asyncio.to_thread(self._find_producer)
            except InfrastructureError as error:
                # Once: this goes on twice a second while the broker is away.
                logger.log(logging.DEBUG if warned else logging.WARNING, "notifications cannot be accepted: %s", error)
                warned = True
                await asyncio.sleep(_RECONNECT_S)
            else:
                logger.info("notifications are accepted")

    def _find_producer(self) -> None:
        # Its asking for the topics now keeps `send` from waiting for them on the event loop.
        names = self._kafka.topic("notifications"), self._kafka.topic("retained")
        producer, (partitions, _) = producer_for(self._kafka, names, make_producer)
        with self._ending:
            if not self._ended:
                self._topics = _Topics(producer, *names, partitions)
                return
        producer.abort()
