"""The asynchronous client: every call returns a future at once, and notifications can be batched.

It uses the threads of requests-futures, each with its own connection.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from arborcast.client.calls import Call, Calls, Namespaces, ResultT, notification_message
from arborcast.client.client import BrokerClient, CallsT, Operations, answer_of, result_of
from arborcast.client.publications import publication_attributes
from arborcast.client.transport import CONNECTIONS, TIMEOUT_S, HttpAnswer, Transport
from arborcast.client.values import Batching, ClientClosed, Credentials, FaultReceived, Retries
from arborcast.core.threads import start_thread
from arborcast.topic_model.subscriptions import SoapVersion


@dataclass
class NotifyBatch:
    """Notifications for one request, with their futures. `due` is the time of sending."""

    due: float
    messages: list[str] = field(default_factory=list)
    futures: list[Future[None]] = field(default_factory=list)
    size: int = 0
    attributes: list[str] = field(default_factory=list)


class BatchAccumulator:
    """Collects notifications into batches. The caller passes the time, of a monotonic clock."""

    def __init__(self, batching: Batching) -> None:
        self._limits = batching
        self._open: NotifyBatch | None = None

    @property
    def due(self) -> float | None:
        """The time at which `take` should be called; None without notifications."""
        return None if self._open is None else self._open.due

    def add(self, message: str, future: Future[None], now: float, attributes: str = "") -> list[NotifyBatch]:
        """Add a notification with its publication attributes; returns full batches."""
        full = []
        if self._open is not None and self._open.size + len(message) > self._limits.bytes:
            full += self.take()
        if self._open is None:
            self._open = NotifyBatch(now + self._limits.linger_s)
        self._open.messages.append(message)
        self._open.futures.append(future)
        self._open.attributes.append(attributes)
        self._open.size += len(message)
        if len(self._open.messages) >= self._limits.messages or self._open.size >= self._limits.bytes:
            full += self.take()
        return full

    def take(self) -> list[NotifyBatch]:
        """Take the current batch, if any."""
        batch, self._open = self._open, None
        return [] if batch is None else [batch]


logger = logging.getLogger(__name__)

MAX_WAITING = 10_000

# Size of the unanswered calls together, or of a single larger one.
_WAITING_BYTES = 64 * 1024 * 1024


class AsynchronousClient(BrokerClient[CallsT]):
    """A client whose calls return futures."""

    RETURNS = "Future[{}]"

    def __init__(
        self,
        calls: CallsT,
        soap: SoapVersion,
        timeout_s: tuple[float, float],
        retries: Retries | None,
        workers: int,
        max_waiting: int,
        credentials: Credentials | None,
        transport: Transport | None,
    ) -> None:
        self._max_waiting = max_waiting
        self._closed = False
        super().__init__(calls, soap, timeout_s, retries, workers, credentials, transport)

    def _start(self) -> None:
        super()._start()
        self._waiting: dict[Future[Any], int] = {}  # unanswered calls with their sizes
        self._waiting_bytes = 0
        self._changed = threading.Condition()  # guards them, and `_closed`
        self._in_callback = threading.local()

    def close(self, timeout_s: float = 30.0) -> int:
        """Refuse further calls, send the waiting ones, and wait for the answers, at most `timeout_s`.

        Returns the number of unanswered calls, whose futures fail with ClientClosed. Not for callbacks.
        """
        self._start_after_fork()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._send_rest()
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, timeout_s)
            given_up = len(self._waiting)
        if given_up:
            logger.warning("closed with %d calls unanswered; their futures fail", given_up)
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._free()
        return given_up

    def _send_rest(self) -> None:
        """Send the accepted notifications that were not sent yet. Called once no more are accepted."""

    def _perform(self, call: Call[ResultT]) -> Future[ResultT]:
        future: Future[ResultT] = self._begin(len(call.body))
        self._send(call).add_done_callback(lambda sent: self._settle(future, partial(_outcome, call, sent)))
        return future

    def _begin(self, size: int = 0) -> Future[ResultT]:
        """The future of a new call; waits while too many are unanswered. Raises ClientClosed."""
        self._start_after_fork()
        future: Future[ResultT] = Future()
        future.set_running_or_notify_cancel()
        with self._changed:
            if not getattr(self._in_callback, "yes", False):
                self._changed.wait_for(lambda: self._has_room(size) or self._closed)
            if self._closed:
                raise ClientClosed("the client is closed", sent=False)
            self._waiting[future] = size
            self._waiting_bytes += size
        return future

    def _has_room(self, size: int) -> bool:
        room = self._waiting_bytes + size <= _WAITING_BYTES or not self._waiting_bytes
        return room and len(self._waiting) < self._max_waiting

    def _settle(self, future: Future[ResultT], outcome: Callable[[], ResultT]) -> None:
        outer = getattr(self._in_callback, "yes", False)
        self._in_callback.yes = True
        try:
            try:
                result = outcome()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)
        finally:
            self._in_callback.yes = outer
            with self._changed:
                self._waiting_bytes -= self._waiting.pop(future)
                self._changed.notify_all()


class FuturesClient(Operations, AsynchronousClient[Calls]):
    """An asynchronous client of one broker; several threads may share it.

        with FuturesClient("http://127.0.0.1:8080", batching=Batching()) as client:
            for reading in readings:
                client.notify("plant/line1/press", reading).add_done_callback(report)

    The calls are those of Client. Futures have the same exceptions; an ExpressionError is raised at once. Futures
    cannot be cancelled. Callbacks run in the client's threads and should be short.

    Up to `workers` requests run concurrently, so notifications may be accepted in another order; one worker, which is
    fast enough with `batching`, keeps the order. With `max_waiting` calls or 64 MiB unanswered a further call blocks,
    so that the outage of a broker does not fill the memory; in callbacks it does not block. If the broker refuses a
    message of a batch, the batch is sent again message by message.

    `close` (or the end of the with block) waits for running calls.
    """

    def __init__(
        self,
        url: str,
        *,
        soap: SoapVersion = "1.1",
        timeout_s: tuple[float, float] = TIMEOUT_S,
        retries: Retries | None = None,
        workers: int = CONNECTIONS,
        batching: Batching | None = None,
        max_waiting: int = MAX_WAITING,
        credentials: Credentials | None = None,
        transport: Transport | None = None,
    ) -> None:
        self._batching = batching
        super().__init__(Calls(url), soap, timeout_s, retries, workers, max_waiting, credentials, transport)

    def _start(self) -> None:
        super()._start()
        self._accumulator = BatchAccumulator(self._batching or Batching(messages=1))
        # Reentrant: a callback may publish while it is held.
        self._gathered = threading.Condition(threading.RLock())
        if self._batching is not None:
            start_thread("wsn-client-batches", self._linger)

    def notify(
        self,
        topic: str,
        payload: str | bytes,
        *,
        namespaces: Namespaces = None,
        valid_until: datetime | None = None,
        lifespan: timedelta | None = None,
        type: str = "",
        priority: int | None = None,
        reliable: bool = False,
    ) -> Future[None]:
        """Publish one XML element; the future is done when the broker has stored it. For the parameters see
        `Client.notify`."""
        message = notification_message(topic, payload, namespaces)
        attributes = publication_attributes(valid_until, lifespan, type, namespaces, priority, reliable)
        future: Future[None] = self._begin(len(message))
        with self._gathered:
            batches = self._accumulator.add(message, future, time.monotonic(), attributes)
            if self._closed:  # in another thread, after `_begin`: no later call sends this batch
                batches += self._accumulator.take()
            self._gathered.notify()
            # With the lock held, so that no batch overtakes another.
            for batch in batches:
                self._send_batch(batch)
        return future

    def flush(self) -> None:
        """Send the current batch; does not wait for the answers."""
        self._start_after_fork()
        with self._gathered:
            for batch in self._accumulator.take():
                self._send_batch(batch)

    def _send_rest(self) -> None:
        self.flush()
        with self._gathered:
            self._gathered.notify()

    def _send_batch(self, batch: NotifyBatch) -> None:
        call = self._calls.notify(batch.messages, attributes=batch.attributes)
        self._send(call).add_done_callback(lambda sent: self._batch_answered(batch, call, sent))

    def _batch_answered(self, batch: NotifyBatch, call: Call[None], sent: Future[HttpAnswer]) -> None:
        try:
            _outcome(call, sent)
        except Exception as error:
            if _is_of_one_message(error, len(batch.messages)):
                # No message of the batch is stored. Repeated in this thread, so that one worker keeps the order.
                for message, future, attributes in zip(batch.messages, batch.futures, batch.attributes, strict=True):
                    alone = self._calls.notify([message], attributes=[attributes])
                    self._settle(future, partial(self._session.perform, alone, self._soap))
                return
            for future in batch.futures:
                self._settle(future, partial(_raise, error))
        else:
            for future in batch.futures:
                self._settle(future, lambda: None)

    def _linger(self) -> None:
        """Send due batches."""
        with self._gathered:
            while not self._closed:
                due = self._accumulator.due
                now = time.monotonic()
                if due is not None and due <= now:
                    for batch in self._accumulator.take():
                        self._send_batch(batch)
                else:
                    self._gathered.wait(None if due is None else due - now)


def _outcome(call: Call[ResultT], sent: Future[HttpAnswer]) -> ResultT:
    return result_of(call, answer_of(sent))


def _is_of_one_message(error: Exception, count: int) -> bool:
    """Whether one of several messages may be the reason of a failure, not the credentials or the rate of the client:
    each repetition would count against its limits."""
    return isinstance(error, FaultReceived) and count > 1 and error.status not in (401, 429)


def _raise(error: Exception) -> None:
    raise error
