"""The gateway's appends, with a scripted producer."""

from __future__ import annotations

import asyncio
import dataclasses
import threading

import msgspec
import pytest
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import partition_of_key
from arborcast.core.settings import KafkaSettings
from arborcast.ingest.settings import GatewaySettings
from arborcast.ingest.state import notification_log
from arborcast.ingest.state.notification_log import NotificationLog
from arborcast.topic_model.records.notifications import Notification, decode, encode
from arborcast.wire.errors import TooLarge
from tests.support.fake_producer import FakeProducer, Sent
from tests.support.make import notification
from tests.support.waiting import wait_until_async

KAFKA = KafkaSettings(request_timeout_s=1)


class LoopProducer(FakeProducer):
    left = 0
    """Records without an outcome at a stop."""

    def attach(self) -> None:
        assert asyncio.get_running_loop()

    async def drained(self, timeout: float) -> None:
        self.left = len(self.open)


class Brokers:
    """Creates producers; `away` lets connecting fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.producers: list[LoopProducer] = []
        self.away = False
        monkeypatch.setattr(notification_log, "make_loop_producer", self._connect)
        monkeypatch.setattr(notification_log, "_RECONNECT_S", 0.01)
        monkeypatch.setattr(notification_log, "_SWEEP_S", 0.01)

    def _connect(self, _settings: KafkaSettings) -> LoopProducer:
        if self.away:
            raise InfrastructureError("away")
        self.producers.append(LoopProducer(partitions=3))
        return self.producers[-1]


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    return Brokers(monkeypatch)


AT_A_TIME = notification_log._AT_A_TIME


def one(number: int = 0, topic: str = "a", size: int = 1) -> Notification:
    return notification(f"n{number}", topic, b"x" * size)


def several(count: int) -> list[Notification]:
    return [one(number, "large") for number in range(count)]


async def connected(limit: int = 10_000_000, kafka: KafkaSettings = KAFKA) -> NotificationLog:
    """A log with this limit of unacknowledged bytes."""
    log = NotificationLog(kafka, GatewaySettings(max_unacknowledged_bytes=limit))
    log.start()
    await wait_until_async(lambda: not log.obstacle)
    return log


async def test_a_request_ends_after_all_its_acknowledgements(brokers: Brokers) -> None:
    log = await connected()
    counted: list[int] = []
    log.acknowledged = lambda count, _seconds: counted.append(count)
    await log.settled()
    cancelled, future = log.append([one()]), log.append([one(1), one(2, "b/c")])
    settled = asyncio.create_task(log.settled())
    cancelled.cancel()
    (producer,) = brokers.producers
    _, first, second = producer.open
    assert [decode(sent.value).id for sent in (first, second)] == ["n1", "n2"]
    assert (first.topic, first.key, second.key) == ("arborcast.notifications", b"a", b"b/c")
    assert (first.partition, second.partition) == (partition_of_key(b"a", 3), partition_of_key(b"b/c", 3))
    assert log.unacknowledged_bytes == sum(len(sent.value) for sent in producer.open)
    second.acknowledge(None)
    await asyncio.sleep(0.02)
    assert not future.done()
    assert not settled.done()
    producer.open.remove(second)
    producer.take()
    await asyncio.gather(future, settled)
    assert log.unacknowledged_bytes == 0
    again = log.append([msgspec.structs.replace(one(1), only="s1")])
    producer.take()
    await again
    assert counted == [2, 0], "a current message is not counted"
    unanswered = log.append([one(3)])
    await log.stop()
    with pytest.raises(InfrastructureError, match="stops"):
        await unanswered


async def test_a_refused_record_fails_only_its_request(brokers: Brokers) -> None:
    log = await connected()
    producer = brokers.producers[0]
    original = producer.send

    def refusing(topic: str, *, value: bytes, key: bytes, partition: int) -> Sent:
        if decode(value).id == "n3":
            raise MessageSizeTooLargeError("too large")
        return original(topic, value=value, key=key, partition=partition)

    producer.send = refusing  # type: ignore[method-assign]
    first, bad, good = (log.append([one(number) for number in numbers]) for numbers in ([1], [2, 3, 4], [5]))
    await wait_until_async(lambda: len(producer.open) == 3)
    producer.take()
    await asyncio.gather(first, good)
    with pytest.raises(InfrastructureError, match="too large") as caught:
        await bad
    assert (caught.value.retry_after, log.unacknowledged_bytes) == (None, 0)
    await log.stop()


async def test_requests_above_the_limit_are_refused_at_once(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []

    def counted(notification: Notification) -> tuple[bytes, bytes]:
        key, value = encode(notification)
        encoded.append(len(value))
        return key, value

    monkeypatch.setattr(notification_log, "encode", counted)
    log = await connected(limit=1024 * 1024)
    for notifications, retained in (([one(size=400_000)] * 1_000, []), ([one(size=600_000)], [one(size=600_000)])):
        encoded.clear()
        with pytest.raises(TooLarge, match=r"gateway\.max_unacknowledged_bytes"):  # a retry cannot succeed
            log.append(notifications, retained)
        assert sum(encoded) < 1_500_000, "encoding stops at the limit"
    assert (log.unacknowledged_bytes, brokers.producers[0].open) == (0, [])
    waiting = log.append([one(1, size=900_000)])
    with pytest.raises(InfrastructureError, match="Kafka is slow") as caught:
        log.append([one(2, size=200_000)])
    assert caught.value.retry_after is not None
    brokers.producers[0].take()
    await waiting
    log.append([one(3, size=200_000)])
    await log.stop()


@pytest.mark.parametrize("lost", ["by time-out", "by an error", "by a refusal"])
async def test_reconnect_after_a_missing_acknowledgement(brokers: Brokers, lost: str) -> None:
    timeout_s = 0.05 if lost == "by time-out" else 60.0
    log = await connected(kafka=dataclasses.replace(KAFKA, request_timeout_s=timeout_s))
    futures = [log.append([one(1)]), log.append([one(2)])]
    brokers.away = True
    first, second = brokers.producers[0].open
    if lost == "by an error":
        first.fail(KafkaTimeoutError("expired"))
    if lost == "by a refusal":  # of the broker, after which kafka-python's producer refuses all records
        brokers.producers[0].broken = True
        first.fail(MessageSizeTooLargeError("arborcast.notifications"))
    words = "within 0.05 s" if lost == "by time-out" else "cannot be stored|within"
    for future in futures:
        with pytest.raises(InfrastructureError, match=words) as caught:
            await future
        assert (caught.value.retry_after is None) == (lost == "by a refusal" and future is futures[0])
    assert (log.obstacle.startswith("Kafka takes no notifications: "), log.unacknowledged_bytes) == (True, 0)
    with pytest.raises(InfrastructureError, match="Kafka takes no notifications: "):
        log.append([one(3)])
    await wait_until_async(lambda: log.obstacle == "Kafka takes no notifications: away")
    await wait_until_async(lambda: brokers.producers[0].aborted)
    brokers.away = False
    await wait_until_async(lambda: not log.obstacle)
    # Late results of the old producer are ignored.
    first.acknowledge(None)
    second.fail(OSError("aborted"))
    await asyncio.sleep(0.01)
    again = log.append([one(4)])
    brokers.producers[1].take()
    await again
    assert log.unacknowledged_bytes == 0
    await log.stop()


async def test_unused_connections_are_closed(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection without the topic's metadata, and one that is made during a stop."""
    requested, released = threading.Event(), threading.Event()

    def unavailable(_producer: LoopProducer, topic: str) -> set[int]:
        raise InfrastructureError("no metadata")

    def slow(_producer: LoopProducer, topic: str) -> set[int]:
        requested.set()
        assert released.wait(60)
        return {0, 1, 2}

    monkeypatch.setattr(LoopProducer, "partitions_for", unavailable)
    log = NotificationLog(KAFKA, GatewaySettings())
    log.start()
    await wait_until_async(lambda: len(brokers.producers) > 2)
    monkeypatch.setattr(LoopProducer, "partitions_for", slow)
    await wait_until_async(requested.is_set)
    await log.stop()
    released.set()
    await wait_until_async(lambda: all(producer.aborted for producer in brokers.producers))
    assert log.obstacle


async def test_a_large_request_is_interleaved_with_others(brokers: Brokers) -> None:
    log = await connected()
    (producer,) = brokers.producers
    large, small = log.append(several(3 * AT_A_TIME)), log.append([one(topic="small")])
    assert len(producer.open) == AT_A_TIME
    turns = 0
    while len(producer.open) < 3 * AT_A_TIME + 1:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 2
    assert [decode(sent.value).id for sent in producer.open[:-1]] == [f"n{n}" for n in range(3 * AT_A_TIME)]
    producer.take()
    await asyncio.gather(large, small)
    # The rest of a failed request is not sent with the next producer.
    large = log.append(several(2 * AT_A_TIME))
    log._give_up("the broker refused a record")
    with pytest.raises(InfrastructureError):
        await large
    await wait_until_async(lambda: not log.obstacle)
    await asyncio.sleep(0)
    assert (producer.aborted, producer.open, brokers.producers[1].open) == (True, [], [])
    # A stop sends all of it.
    large = log.append(several(2 * AT_A_TIME + 1))
    await log.stop()
    assert brokers.producers[1].left == 2 * AT_A_TIME + 1
    with pytest.raises(InfrastructureError, match="stops"):
        await large
