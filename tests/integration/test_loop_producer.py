"""The producer of the gateway on an event loop, over real brokers."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections import Counter
from contextlib import closing
from typing import Any

import pytest
import uvloop
from kafka.errors import KafkaError, MessageSizeTooLargeError
from kafka.net.connection import KafkaConnection

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog import loop_producer
from arborcast.core.eventlog.client import Admin, make_loop_producer
from arborcast.core.eventlog.loop_producer import LoopProducer
from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings
from tests.support.broker import BrokerProcess, records_in, settings_for
from tests.support.open_sockets import sockets
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.kafka


class Sending:
    """Sends records, and counts their outcomes."""

    def __init__(self, topic: str, producer: LoopProducer) -> None:
        self._topic, self.producer = topic, producer
        self._sent = 0
        self.stored: list[bytes] = []
        self.failed: list[BaseException] = []

    @property
    def in_flight(self) -> int:
        return self._sent - len(self.stored) - len(self.failed)

    def send(self, value: bytes, partition: int = 0) -> None:
        self._sent += 1
        future = self.producer.send(self._topic, value, b"k", partition=partition)
        future.add_callback(lambda _: self.stored.append(value))
        future.add_errback(self.failed.append)


async def attached(kafka: KafkaSettings) -> Sending:
    await asyncio.to_thread(ensure_topics, kafka)
    producer = await asyncio.to_thread(make_loop_producer, kafka)
    topic = kafka.topic("notifications")
    assert await asyncio.to_thread(producer.partitions_for, topic) == {0, 1}
    producer.attach()
    return Sending(topic, producer)


def values(kafka: KafkaSettings, partition: int) -> list[bytes]:
    return [each.value or b"" for each in records_in(kafka, "notifications") if each.partition == partition]


async def test_records_are_stored_in_order_and_gather_behind_a_request_without_a_thread(
    kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: Counter[str] = Counter()
    send = KafkaConnection._send_request

    def counted(self: Any, request: Any, *args: Any, **options: Any) -> Any:
        requests[type(request).__name__] += 1
        return send(self, request, *args, **options)

    sending = await attached(kafka_settings)
    monkeypatch.setattr(KafkaConnection, "_send_request", counted)
    threads = threading.active_count()
    for number in range(2_000):
        sending.send(b"%d" % number, number % 2)
        if number % 100 == 0:
            await asyncio.sleep(0)
    await sending.producer.drained(120)
    sending.producer.abort()
    assert (len(sending.stored), sending.failed) == (2_000, [])
    assert requests["ProduceRequest"] < 200
    assert threading.active_count() == threads
    for partition in (0, 1):
        assert values(kafka_settings, partition) == [b"%d" % each for each in range(partition, 2_000, 2)]


def test_a_timer_that_is_already_due_is_no_error(
    kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a suspension of the thread: uvloop then returns a handle without a time."""
    for name in ("_SHORTEST_S", "_LONGEST_S"):
        monkeypatch.setattr(loop_producer, name, 0.0)
    problems: list[dict[str, Any]] = []

    async def send() -> Sending:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        sending = await attached(kafka_settings)
        for number in range(100):
            sending.send(b"%d" % number)
            await asyncio.sleep(0)
        await sending.producer.drained(120)
        sending.producer.abort()
        return sending

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sending = runner.run(send())
    assert (len(sending.stored), sending.failed, problems) == (100, [], [])


async def test_a_too_large_record_is_refused_and_the_largest_is_stored(kafka_settings: KafkaSettings) -> None:
    sending = await attached(kafka_settings)
    most = kafka_settings.max_record_bytes
    with pytest.raises(MessageSizeTooLargeError):
        sending.send(b"x" * most)
    sending.send(b"x" * (most - 1_000))
    await sending.producer.drained(120)
    sending.producer.abort()
    assert [len(each) for each in sending.stored] == [most - 1_000]


async def test_a_record_that_the_broker_refuses_is_the_only_one_that_fails(kafka_settings: KafkaSettings) -> None:
    topic = kafka_settings.topic("notifications")
    with closing(Admin(kafka_settings)) as admin:
        admin.create_topics({topic: (1, 1, {"max.message.bytes": "2000"})})
    with closing(LogWriter(kafka_settings, "notifications")) as log:
        with pytest.raises(InfrastructureError, match="too large"):
            log.append_encoded([(b"k", b"x" * 5_000)])
        assert log.append_encoded([(b"k", b"v")]) == 0
    producer = await asyncio.to_thread(make_loop_producer, kafka_settings)
    await asyncio.to_thread(producer.partitions_for, topic)
    producer.attach()
    sending = Sending(topic, producer)
    assert not producer.broken
    sending.send(b"x" * 5_000)
    await producer.drained(120)
    producer.abort()
    assert ([type(each).__name__ for each in sending.failed], producer.broken) == (["MessageSizeTooLargeError"], True)


async def test_each_record_is_stored_once_despite_a_stopped_broker(own_broker: BrokerProcess) -> None:
    kafka = settings_for(own_broker)
    sending = await attached(kafka)
    assert own_broker.pid is not None
    os.kill(own_broker.pid, signal.SIGSTOP)
    try:
        for number in range(50):
            sending.send(b"%d" % number)
            await asyncio.sleep(0.002)
        assert sending.in_flight == 50
    finally:
        os.kill(own_broker.pid, signal.SIGCONT)
    await sending.producer.drained(120)
    sending.producer.abort()
    assert len(sending.stored) == 50
    assert values(kafka, 0) == [b"%d" % number for number in range(50)]


async def test_a_name_server_that_does_not_answer_blocks_no_request(
    own_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = settings_for(own_broker)
    sending = await attached(kafka)
    asked, answer = threading.Event(), threading.Event()
    look_up = socket.getaddrinfo

    def slow(*args: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            asked.set()
            assert answer.wait(120)
        return look_up(*args)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    own_broker.kill()
    own_broker.start()
    sending.send(b"x")
    await wait_until_async(asked.is_set)
    assert sending.in_flight == 1
    answer.set()
    await wait_until_async(lambda: sending.in_flight == 0)
    sending.producer.abort()
    assert sending.stored == [b"x"]


async def test_without_a_broker_records_fail_in_time_and_nothing_is_left_open(own_broker: BrokerProcess) -> None:
    before = len(sockets())
    kafka = settings_for(own_broker)
    sending = await attached(kafka)
    sending.send(b"stored")
    await wait_until_async(lambda: sending.in_flight == 0)
    own_broker.kill()
    sending.send(b"lost")
    await wait_until_async(lambda: sending.in_flight == 0)
    assert (sending.stored, [isinstance(each, KafkaError) for each in sending.failed]) == ([b"stored"], [True])
    sending.send(b"given up")
    sending.producer.abort()
    assert len(sending.failed) == 2
    await wait_until_async(lambda: len(sockets()) <= before, "sockets are left")
