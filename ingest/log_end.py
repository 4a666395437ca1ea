"""Where a log ends now: what another gateway has answered for lies before it.

A gateway learns of the others' records by following the log, a few milliseconds behind. Whoever must not miss what
another gateway has acknowledged asks for the end and waits until the view has come there.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from topic_model.kafka_client import Consumer, TopicPartition, make_consumer, translated
from topic_model.settings import KafkaSettings


class End(Protocol):
    """What is needed of a LogEnd."""

    async def ask(self) -> int:
        """The offset after the last record that was acknowledged before this call. Raises InfrastructureError."""


class LogEnd:
    """Asks Kafka. Requests that come while a question is under way share the next one: under load one round trip,
    about a millisecond, serves all of them."""

    def __init__(self, kafka: KafkaSettings, name: str) -> None:
        self._kafka = kafka
        self._name = name
        self._partition = TopicPartition(kafka.topic(name), 0)
        # One thread, so that the connection has one user, and a question waits for the one before.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-end")
        self._consumer: Consumer | None = None
        self._lock = threading.Lock()
        self._waiting: asyncio.Future[int] | None = None
        self._serving: asyncio.Task[None] | None = None

    async def ask(self) -> int:
        """See End."""
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_future()
            if self._serving is None:
                self._serving = asyncio.create_task(self._serve(), name=f"{self._name}-end")
        # Whoever hangs up must not cancel it for the others.
        return await asyncio.shield(self._waiting)

    async def _serve(self) -> None:
        while self._waiting is not None:
            # While the question is under way a record may be acknowledged that the answer does not count: who asks from
            # now on gets the next one.
            waiting, self._waiting = self._waiting, None
            try:
                waiting.set_result(await asyncio.get_running_loop().run_in_executor(self._thread, self._question))
            except Exception as error:
                waiting.set_exception(error)
                waiting.exception()  # it is for those who still wait; that nobody does is no news
        self._serving = None

    def close(self) -> None:
        """Free the connection; nothing can be asked any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._disconnect()

    def _question(self) -> int:
        with self._lock:
            try:
                if self._consumer is None:
                    self._consumer = make_consumer(self._kafka, wait_ms=10)
                with translated(f"the end of the {self._name} log cannot be found"):
                    timeout_ms = int(self._kafka.request_timeout_s * 1000)
                    return self._consumer.end_offsets([self._partition], timeout_ms=timeout_ms)[self._partition]
            except BaseException:
                self._disconnect()
                raise

    def _disconnect(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close(autocommit=False, timeout_ms=500)
