"""kafka-python's producer on an asyncio event loop, without a separate thread.

Its sender is a loop of steps that do not block and of one wait for sockets and timers. Here the event loop waits. An
append from a request costs no change of threads, which took more time than the append. One request at a time is in
progress with each broker; records of later appends are sent together in the next one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import TYPE_CHECKING, Any

from kafka import errors
from kafka.future import Future
from kafka.net.compat import KafkaNetClient
from kafka.producer.record_accumulator import RecordAccumulator
from kafka.producer.sender import Sender
from kafka.producer.transaction_manager import TransactionManager
from kafka.structs import TopicPartition

from arborcast.core.eventlog.client_fixes import RECORD_OVERHEAD, Connections, Loop

if TYPE_CHECKING:
    from arborcast.core.eventlog.client import RecordFuture

logger = logging.getLogger(__name__)

# Shortest and longest time to the next step without an event: while it connects, the sender requests immediate steps.
_SHORTEST_S = 0.005
_LONGEST_S = 1.0


class LoopClient(KafkaNetClient):  # type: ignore[misc]  # the base has no types
    """A client of kafka-python; `poll` blocks until it is attached to an event loop."""

    attached = False
    next_step_s = _LONGEST_S
    """Seconds until the sender's next step."""

    @property
    def loop(self) -> Loop:
        loop: Loop = self._net
        return loop

    @property
    def connections(self) -> Connections:
        connections: Connections = self._manager
        return connections

    def is_ready(self, node_id: int) -> bool:
        return bool(super().is_ready(node_id)) and not self.in_flight_request_count(node_id)

    def is_free(self) -> bool:
        """Whether there are connections, and all of them can take a request."""
        nodes = self.connections.nodes()
        return bool(nodes) and all(map(self.is_ready, nodes))

    def poll(self, timeout_ms: float | None = None, future: Any = None) -> None:
        if self.attached:
            self.next_step_s = _LONGEST_S if timeout_ms is None else timeout_ms / 1_000
            timeout_ms = 0
        super().poll(timeout_ms=timeout_ms, future=future)


class LoopProducer:
    """The constructor connects and blocks, in any thread. `attach` binds the producer to the running event loop, whose
    thread calls all other methods."""

    network = LoopClient

    def __init__(self, kafka_client: Any, **configs: Any) -> None:
        client: LoopClient = kafka_client(**configs)
        self._client = client
        self._deadline = time.monotonic() + configs["max_block_ms"] / 1_000
        client.connections.bootstrap(configs["bootstrap_timeout_ms"])
        version = client.connections.broker_version
        self._transactions = TransactionManager(api_version=version, metadata=client.cluster)
        shared = {"transaction_manager": self._transactions}
        self._accumulator = RecordAccumulator(**shared, **configs)
        self._sender = Sender(
            client, client.cluster, self._accumulator, guarantee_message_order=True, **shared, **configs | {"acks": -1}
        )
        while not self._transactions.has_producer_id():
            if self.broken:  # for instance without the right to write
                raise self._transactions.last_error
            self._check_time("no producer id")
            self._sender.run_once()
        self._longest = int(configs["max_request_size"])
        self._loop: asyncio.AbstractEventLoop | None = None
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        self._closed = False

    @property
    def broken(self) -> bool:
        """See `Producer`."""
        return bool(self._transactions.has_fatal_error())

    def partitions_for(self, topic: str) -> set[int]:
        """Blocks; before `attach` only."""
        cluster = self._client.cluster
        cluster.add_topic(topic)
        while (partitions := cluster.partitions_for_topic(topic)) is None:
            self._check_time(f"no metadata of topic {topic}")
            future = cluster.request_update()
            self._client.poll(timeout_ms=100, future=future)
            if future.failed() and not future.retriable():
                raise future.exception
            if topic in cluster.unauthorized_topics:
                raise errors.TopicAuthorizationFailedError({topic})
        found: set[int] = partitions
        return found

    def attach(self) -> None:
        """Bind the producer to the running event loop."""
        self._client.attached = True
        self._client.loop.resolve = self._resolve
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._client.loop.fileno(), self._step)
        self._step(due=True)

    def send(
        self, topic: str, value: bytes | None = None, key: bytes | None = None, *, partition: int | None = None
    ) -> RecordFuture:
        """The record is sent at the end of this turn of the event loop, or with the next request to its broker. Raises
        KafkaError for a record that is too large."""
        if len(value or b"") + len(key or b"") > self._longest - RECORD_OVERHEAD:
            raise errors.MessageSizeTooLargeError(f"a record of more than {self._longest} bytes")
        future: RecordFuture
        future, *_ = self._accumulator.append(TopicPartition(topic, partition), None, key, value, [])
        if self._soon is None and self._loop is not None:
            self._soon = self._loop.call_soon(self._step, False)
        return future

    async def drained(self, timeout: float) -> None:
        """Return when every record is acknowledged or has failed, or after the timeout."""
        end = time.monotonic() + timeout
        while self._accumulator.has_incomplete and time.monotonic() < end:
            await asyncio.sleep(_SHORTEST_S)

    def abort(self) -> None:
        """Close, and give up everything that is not acknowledged."""
        if self._closed:
            return
        self._closed = True
        if self._loop is not None:
            self._loop.remove_reader(self._client.loop.fileno())
            for handle in (self._soon, self._timer):
                if handle is not None:
                    handle.cancel()
        self._accumulator.close()
        self._accumulator.abort_incomplete_batches()
        self._client.close()

    def _resolve(self, host: str, port: int) -> Any:
        """A future of kafka-python with the addresses of a broker, none if they cannot be looked up. In a thread, since
        a name server may take seconds to answer."""
        future, loop = Future(), asyncio.get_running_loop()

        def store(looked_up: asyncio.Future[Any]) -> None:
            failed = looked_up.cancelled() or looked_up.exception() is not None
            future.success([] if failed else looked_up.result())
            self._step()

        lookup = loop.run_in_executor(None, socket.getaddrinfo, host, port, socket.AF_UNSPEC, socket.SOCK_STREAM)
        lookup.add_done_callback(store)
        return future

    def _check_time(self, what: str) -> None:
        if time.monotonic() > self._deadline:
            raise errors.KafkaTimeoutError(what)

    def _step(self, answers: bool = True, due: bool = False) -> None:
        """Process responses, unless `answers` is False, and send waiting records. `due`: the sender checks its
        timeouts too."""
        if self._closed:
            return
        self._soon = None
        try:
            if answers:
                self._client.poll()
            if due or self._accumulator.has_undrained():
                self._sender.run_once()
        except Exception as error:
            logger.warning("records cannot be sent to Kafka now: %s", error)
            self._client.next_step_s = _LONGEST_S
        if self._loop is not None:
            self._plan(self._loop)

    def _plan(self, loop: asyncio.AbstractEventLoop) -> None:
        scheduled = self._client.loop.next_s()
        # The second condition: responses arrived just after the search for records to send.
        if scheduled == 0.0 or (not self._client.next_step_s and self._client.is_free()):
            self._soon = loop.call_soon(self._step)
            return
        wait_s = min(self._client.next_step_s, _LONGEST_S if scheduled is None else scheduled, _LONGEST_S)
        at = loop.time() + max(wait_s, _SHORTEST_S)
        if self._timer is None or self._timer_at > at:
            if self._timer is not None:
                self._timer.cancel()
            # For a time that is due already, uvloop returns a handle without a time.
            self._timer, self._timer_at = loop.call_at(at, self._on_time), at

    def _on_time(self) -> None:
        self._timer = None
        self._step(due=True)
