"""The gateway's appends over a producer that acknowledges and fails as the test says."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

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
from arborcast.topic_model.topics import TopicPath
from tests.support.waiting import wait_until_async

KAFKA = KafkaSettings(request_timeout_s=1)


@dataclass
class Sent:
    """One record under way; `acknowledge` and `fail` are what the producer would do."""

    topic: str
    key: bytes
    value: bytes
    partition: int
    offset: int = 0
    callbacks: list[Callable[[object], object]] = field(default_factory=list)
    errbacks: list[Callable[[BaseException], object]] = field(default_factory=list)

    def add_callback(self, call: Callable[[object], object]) -> None:
        self.callbacks.append(call)

    def add_errback(self, call: Callable[[BaseException], object]) -> None:
        self.errbacks.append(call)

    def acknowledge(self) -> None:
        for call in self.callbacks:
            call(self)

    def fail(self, error: BaseException) -> None:
        for call in self.errbacks:
            call(error)


class ScriptedProducer:
    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.aborted = False

    def send(self, topic: str, value: bytes, key: bytes, *, partition: int) -> Sent:
        self.sent.append(Sent(topic, key, value, partition))
        return self.sent[-1]

    def partitions_for(self, topic: str) -> set[int]:
        return {0, 1, 2}

    def attach(self) -> None:
        assert asyncio.get_running_loop()

    async def drained(self, timeout: float) -> None: ...

    def abort(self) -> None:
        self.aborted = True


class Brokers:
    """Hands out producers; `away` makes connecting fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.producers: list[ScriptedProducer] = []
        self.away = False
        monkeypatch.setattr(notification_log, "make_loop_producer", self._connect)
        monkeypatch.setattr(notification_log, "_RECONNECT_S", 0.01)
        monkeypatch.setattr(notification_log, "_SWEEP_S", 0.01)

    def _connect(self, _settings: KafkaSettings) -> ScriptedProducer:
        if self.away:
            raise InfrastructureError("nobody", retry_after=1)
        self.producers.append(ScriptedProducer())
        return self.producers[-1]


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    return Brokers(monkeypatch)


def one(number: int = 0, topic: str = "a", size: int = 1) -> Notification:
    return Notification(id=f"n{number}", topic=TopicPath(topic), payload=b"x" * size, accepted_ms=0)


async def connected(settings: GatewaySettings | None = None, kafka: KafkaSettings = KAFKA) -> NotificationLog:
    log = NotificationLog(kafka, settings or GatewaySettings())
    log.start()
    await wait_until_async(lambda: log.connected)
    return log


async def test_done_when_all_are_acknowledged(brokers: Brokers) -> None:
    log = await connected()
    future = log.append([one(1), one(2, "b/c")])
    first, second = brokers.producers[0].sent
    assert [decode(sent.value).id for sent in (first, second)] == ["n1", "n2"]
    assert (first.topic, first.key, second.key) == ("arborcast.notifications", b"a", b"b/c")
    assert (first.partition, second.partition) == (partition_of_key(b"a", 3), partition_of_key(b"b/c", 3))
    assert log.unacknowledged_bytes == len(first.value) + len(second.value)
    second.acknowledge()
    await asyncio.sleep(0.02)
    assert not future.done()
    first.acknowledge()
    await asyncio.wait_for(future, 120)
    assert log.unacknowledged_bytes == 0
    await log.stop()


async def test_what_is_sent_again_to_a_late_subscriber_is_not_counted_as_accepted(brokers: Brokers) -> None:
    log = await connected()
    counted: list[int] = []
    log.acknowledged = lambda count, _seconds: counted.append(count)
    for notifications in ([one(1), one(2)], [msgspec.structs.replace(one(1), only="s1")]):
        future = log.append(notifications)
        for sent in brokers.producers[0].sent[-len(notifications) :]:
            sent.acknowledge()
        await asyncio.wait_for(future, 120)
    assert counted == [2, 0]
    await log.stop()


def test_a_record_that_the_producer_does_not_take_fails_its_request_only(brokers: Brokers) -> None:
    async def scenario() -> None:
        log = await connected()
        producer = brokers.producers[0]
        first = log.append([one(1)])
        original = producer.send

        def refusing(topic: str, value: bytes, key: bytes, *, partition: int) -> Sent:
            if decode(value).id == "n3":
                raise MessageSizeTooLargeError("too large")
            return original(topic, value, key, partition=partition)

        producer.send = refusing  # type: ignore[method-assign]
        bad, good = log.append([one(2), one(3), one(4)]), log.append([one(5)])
        await wait_until_async(lambda: len(producer.sent) == 3)
        for sent in producer.sent:
            sent.acknowledge()
        await asyncio.gather(first, good)
        with pytest.raises(InfrastructureError, match="too large") as caught:
            await bad
        assert caught.value.retry_after is None
        assert log.unacknowledged_bytes == 0
        await log.stop()

    asyncio.run(scenario())


async def test_beyond_the_limit_it_refuses_at_once(brokers: Brokers) -> None:
    log = await connected(GatewaySettings(max_unacknowledged_bytes=1024 * 1024))
    waiting = log.append([one(1, size=900_000)])
    with pytest.raises(InfrastructureError, match="Kafka is slow") as caught:
        log.append([one(2, size=200_000)])
    assert caught.value.retry_after is not None
    brokers.producers[0].sent[0].acknowledge()
    await waiting
    log.append([one(3, size=200_000)])
    await log.stop()


async def test_what_is_not_acknowledged_in_time_fails_and_another_connection_is_made(brokers: Brokers) -> None:
    log = await connected(kafka=dataclasses.replace(KAFKA, request_timeout_s=0.05))
    futures = [log.append([one(1)]), log.append([one(2)])]
    brokers.away = True
    for future in futures:
        with pytest.raises(InfrastructureError, match=r"within 0\.05 s"):
            await future
    assert not log.connected
    assert log.unacknowledged_bytes == 0
    with pytest.raises(InfrastructureError, match="does not answer"):
        log.append([one(3)])
    await wait_until_async(lambda: brokers.producers[0].aborted)
    brokers.away = False
    await wait_until_async(lambda: log.connected)
    # The old producer's late words change nothing.
    brokers.producers[0].sent[0].acknowledge()
    brokers.producers[0].sent[1].fail(OSError("aborted"))
    await asyncio.sleep(0.01)
    again = log.append([one(4)])
    brokers.producers[1].sent[0].acknowledge()
    await again
    assert log.unacknowledged_bytes == 0
    await log.stop()


async def test_a_broker_that_the_producer_calls_away_is_away_for_all(brokers: Brokers) -> None:
    log = await connected()
    futures = [log.append([one(1)]), log.append([one(2)])]
    brokers.away = True
    brokers.producers[0].sent[0].fail(KafkaTimeoutError("expired"))
    for future in futures:
        with pytest.raises(InfrastructureError) as caught:
            await future
        assert caught.value.retry_after is not None
    assert not log.connected
    brokers.away = False
    await wait_until_async(lambda: log.connected)
    await log.stop()


async def test_a_request_that_was_cancelled_does_not_disturb_the_others(brokers: Brokers) -> None:
    log = await connected()
    gone, stays = log.append([one(1)]), log.append([one(2)])
    gone.cancel()
    await wait_until_async(lambda: len(brokers.producers[0].sent) == 2)
    for sent in brokers.producers[0].sent:
        sent.acknowledge()
    await stays
    assert log.unacknowledged_bytes == 0
    await log.stop()


async def test_what_connects_while_the_gateway_stops_and_for_a_topic_that_cannot_be_had_is_closed(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def lost(_producer: ScriptedProducer, topic: str) -> set[int]:
        raise KafkaTimeoutError("no metadata")

    def slow(_producer: ScriptedProducer, topic: str) -> set[int]:
        asked.set()
        assert go_on.wait(60)
        return {0, 1, 2}

    monkeypatch.setattr(ScriptedProducer, "partitions_for", lost)
    log = NotificationLog(KAFKA, GatewaySettings())
    log.start()
    await wait_until_async(lambda: len(brokers.producers) > 2)
    monkeypatch.setattr(ScriptedProducer, "partitions_for", slow)
    await wait_until_async(asked.is_set)
    await log.stop()
    go_on.set()
    await wait_until_async(lambda: all(producer.aborted for producer in brokers.producers))
    assert not log.connected


async def test_a_large_request_is_handed_over_in_turns_with_others(brokers: Brokers) -> None:
    count = 3 * notification_log._AT_A_TIME
    log = await connected()
    producer = brokers.producers[0]
    large = log.append([one(number, topic="large") for number in range(count)])
    assert len(producer.sent) == notification_log._AT_A_TIME
    small = log.append([one(topic="small")])
    turns = 0
    while len(producer.sent) < count + 1:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 2
    assert [decode(sent.value).id for sent in producer.sent[:-1]] == [f"n{n}" for n in range(count)]
    for sent in producer.sent:
        sent.acknowledge()
    await asyncio.gather(large, small)
    await log.stop()


async def test_what_is_not_handed_over_when_the_broker_goes_is_not_sent_to_the_next(brokers: Brokers) -> None:
    log = await connected()
    large = log.append([one(number) for number in range(2 * notification_log._AT_A_TIME)])
    log._give_up()
    with pytest.raises(InfrastructureError):
        await large
    await wait_until_async(lambda: log.connected)
    await asyncio.sleep(0)
    assert len(brokers.producers[0].sent) == notification_log._AT_A_TIME
    assert brokers.producers[1].sent == []
    await log.stop()


async def test_at_a_stop_all_of_it_is_handed_over(brokers: Brokers) -> None:
    log = await connected()
    large = log.append([one(number) for number in range(2 * notification_log._AT_A_TIME + 1)])
    await log.stop()
    assert len(brokers.producers[0].sent) == 2 * notification_log._AT_A_TIME + 1
    with pytest.raises(InfrastructureError, match="stops"):
        await large


async def test_what_is_under_way_can_be_waited_for_however_it_ends(brokers: Brokers) -> None:
    log = await connected()
    await log.settled()
    future = log.append([one(1)])
    waiting = asyncio.create_task(log.settled())
    await asyncio.sleep(0)
    assert not waiting.done()
    await log.stop()
    await asyncio.wait_for(waiting, 120)
    with pytest.raises(InfrastructureError):
        future.result()


async def test_what_is_too_much_is_not_encoded_to_its_end(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []

    def counted(notification: Notification) -> tuple[bytes, bytes]:
        key, value = encode(notification)
        encoded.append(len(value))
        return key, value

    monkeypatch.setattr(notification_log, "encode", counted)
    log = await connected(GatewaySettings(max_unacknowledged_bytes=1024 * 1024))
    for notifications, retained in (([one(size=400_000)] * 1_000, []), ([one(size=600_000)], [one(size=600_000)])):
        encoded.clear()
        with pytest.raises(InfrastructureError, match="Kafka is slow"):
            log.append(notifications, retained)
        assert sum(encoded) < 1_500_000
    assert (log.unacknowledged_bytes, brokers.producers[0].sent) == (0, [])
    await log.stop()
