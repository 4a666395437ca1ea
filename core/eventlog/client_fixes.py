"""Fixes of kafka-python 3.0.12, independent of each other; each could be one patch of the library:

    ClosingSocket    net/inet.py, KafkaNetSocket.sock_connect    close the socket of a refused or abandoned attempt
    CachingSelector  net/selector.py, NetworkSelector            keep a socket registered for reading between answers
    Loop             net/selector.py, NetworkSelector.wakeup     wake the loop once per turn
    _DirectWrite     net/transport.py, KafkaTCPTransport.write   send at once, and wait for writability for the rest
    LeanConsumer     consumer/fetcher.py, Fetcher.send_fetches   no search for requests during another
    LeanProducer     producer/kafka.py, KafkaProducer.send       a shorter path for bytes on a chosen partition
    LeanProducer     producer/kafka.py, KafkaProducer.close      no flush for timeout=0
    built            the constructors of all clients             free threads and sockets after a failure; its cause
    built            cluster.py, ClusterMetadata                 take its settings from the client
    Loop.resolve     net/inet.py, KafkaNetSocket.dns_lookup      look up names without blocking

`Connections` and the `kafka_client` of `built` only install them. When the pinned version is raised, check whether each
is still needed.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import kafka
from kafka.errors import KafkaTimeoutError, SaslAuthenticationFailedError
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.structs import TopicPartition

from arborcast.core.security.outbound import AutoCloseSocket

if TYPE_CHECKING:
    from arborcast.core.eventlog.client import RecordFuture

# An upper bound of a record's size beyond its key and value, including its batch.
RECORD_OVERHEAD = 256

# For metadata requests only; reconnects back off up to `reconnect_backoff_max_ms`.
_METADATA_RETRY_MS = 10

_T = TypeVar("_T")


class ClosingSocket(KafkaNetSocket):  # type: ignore[misc]  # the base has no types
    """A direct connection. kafka-python leaves the sockets of refused attempts, and of clients that are closed with
    unwritten data, to the garbage collector.

    Subclasses register themselves for a scheme of the `proxy_url` setting, which selects them.
    """

    SCHEMES = ("direct",)
    resolved: ClassVar[dict[tuple[str, int], list[Any]]] = {}
    """Addresses of a host and port, only while a connection with them is built."""

    def dns_lookup(self, host: str, port: int, raise_error: bool = False) -> Any:
        found = self.resolved.pop((host, port), None)
        return super().dns_lookup(host, port, raise_error) if found is None else found

    def socket(
        self,
        family: int = socket.AF_UNSPEC,
        sock_type: int = socket.SOCK_STREAM,
        proto: int = socket.IPPROTO_TCP,
    ) -> AutoCloseSocket:
        return AutoCloseSocket(family, sock_type, proto)

    async def sock_connect(
        self, net: Any, sock: AutoCloseSocket, sockaddr: Any, timeout_at: float | None = None
    ) -> Any:
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


class CachingSelector(selectors.DefaultSelector):
    """The system's selector with fewer calls.

    kafka-python registers a socket for each answer that it waits for, and unregisters it afterwards: two system calls,
    and two more for the text of an error about an unregistered socket. Here a socket registered for reading stays so
    until unexpected data arrive.
    """

    def __init__(self) -> None:
        super().__init__()
        self._active: dict[int, selectors.SelectorKey] = {}
        self._registered: dict[int, selectors.SelectorKey] = {}

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._active[fileobj.fileno()]

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = fileobj.fileno()
        registered = self._registered.pop(number, None)
        if registered is not None and registered.fileobj is not fileobj:
            super().unregister(registered.fileobj)  # closed; its file number was reused
            registered = None
        key = (super().register if registered is None else super().modify)(fileobj, events, data)
        self._active[number] = key
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._active[fileobj.fileno()] = super().modify(fileobj, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = self._active.pop(fileobj.fileno())
        if key.events == selectors.EVENT_READ:
            self._registered[key.fd] = key
        else:
            super().unregister(fileobj)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout)
        for key, _ in ready:
            if self._registered.pop(key.fd, None) is not None:
                super().unregister(key.fileobj)
        return [each for each in ready if each[0].fd in self._active]


class Loop(NetworkSelector):  # type: ignore[misc]  # the base has no types
    """Woken once per turn, however many requests arrive."""

    resolve: Callable[[str, int], Any] | None = None
    """Resolves a host without blocking; set if the loop must not block."""
    _awake = False

    def fileno(self) -> int:
        """The descriptor of epoll or kqueue, which another event loop can poll."""
        return int(self._selector.fileno())

    def next_s(self) -> float | None:
        """Seconds until the next scheduled work; None without any."""
        if self._ready:
            return 0.0
        wait_s: float | None = self._next_scheduled_timeout(time.monotonic())
        return wait_s

    def wakeup(self) -> None:
        # Two concurrent threads may wake it twice, which is harmless.
        if not self._awake:
            self._awake = True
            super().wakeup()

    def _process_events(self, event_list: list[tuple[selectors.SelectorKey, int]]) -> None:
        super()._process_events(event_list)
        # After the wake-up is read and before the search for work: threads that skipped the wake-up have queued their
        # work, and later threads wake the loop again.
        self._awake = False


class _DirectWrite:
    """Sends at once, where kafka-python first waits two turns of its loop for writability."""

    def write(self: Any, data: bytes) -> None:
        if self._writing or self._closed or not self._write or not data:
            super().write(data)  # type: ignore[misc]  # the next class in the MRO is a transport
            return
        self._write_buffer.append(data)
        _, error = self._sock_send()
        self.last_write = time.monotonic()
        if error is not None:
            self._net.call_soon(lambda: self.abort(error=error))
        elif self._write_buffer:
            self._writing = True
            self._write_task = self._net.call_soon(self._write_to_sock)


class PlainTransport(_DirectWrite, KafkaTCPTransport):  # type: ignore[misc]  # the base has no types
    pass


class TlsTransport(_DirectWrite, KafkaSSLTransport):  # type: ignore[misc]  # the base has no types
    pass


class Connections(KafkaConnectionManager):  # type: ignore[misc]  # the base has no types
    failure: BaseException | None = None
    """Why the last attempt to connect failed. Refused credentials stay: later attempts may be cut without a reason."""

    def nodes(self) -> list[int]:
        """The brokers with a connection."""
        return list(self._conns)

    async def _connect(self, node: Any, conn: Any, **options: Any) -> None:
        await super()._connect(node, conn, **options)
        failure = conn.init_future.exception
        if failure is None or (failure.args and not isinstance(self.failure, SaslAuthenticationFailedError)):
            self.failure = failure

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        place = node.host, node.port
        if self._net.resolve is not None:
            ClosingSocket.resolved[place] = await self._net.resolve(*place)
        try:
            transport = await super()._build_transport(node, timeout_at=timeout_at)
        finally:
            ClosingSocket.resolved.pop(place, None)
        # It has no setting for the class, and names it within the code of a connection.
        transport.__class__ = TlsTransport if self.ssl_enabled else PlainTransport
        return transport


class LeanConsumer(kafka.KafkaConsumer):  # type: ignore[misc]  # the base has no types
    """KafkaConsumer whose thread prepares fetch requests only if some may be sent.

    Each poll of KafkaConsumer makes the thread prepare requests and waits for it: two thread switches. But a broker has
    one request at a time, and after an empty poll that request is pending. And while records of the last response are
    left, it would fetch only the other partitions; the broker holds that request for its full wait, which delays the
    partition with more records.
    """

    def __init__(self, **configs: Any) -> None:
        super().__init__(**configs)
        fetcher, brokers = self._fetcher, self._cluster.brokers
        send_fetches = fetcher.send_fetches

        def send_fetches_to_idle_brokers() -> list[Any]:
            if fetcher._next_partition_records:  # noqa: SLF001  # no public way to see remaining records
                return []
            pending = len(fetcher._nodes_with_pending_fetch_requests)  # noqa: SLF001  # nor open requests
            return [] if pending and pending >= len(brokers()) else send_fetches()

        fetcher.send_fetches = send_fetches_to_idle_brokers

    def topic_id(self, topic: str) -> str:
        """The id of a topic after `partitions_for_topic`; empty from a broker without ids."""
        return str(self._cluster.topic_id(topic) or "")


class LeanProducer(kafka.KafkaProducer):  # type: ignore[misc]  # the base has no types
    """KafkaProducer with a shorter path for most records, and an abort.

    KafkaProducer.close(timeout=0) raises in its flush and leaves its thread running with waiting records.
    """

    _aborting = False

    def __init__(self, **configs: Any) -> None:
        super().__init__(**configs)
        self._known_topics: set[str] = set()
        self._longest = int(self.config["max_request_size"]) - RECORD_OVERHEAD

    @property
    def broken(self) -> bool:
        return bool(self._transaction_manager.has_fatal_error())

    def send(
        self, topic: str, value: bytes | None = None, key: bytes | None = None, *, partition: int | None = None
    ) -> RecordFuture:
        """Shorter for bytes on a given partition: KafkaProducer.send spends a third of its time on these checks."""
        if (
            partition is None
            or value is None
            or key is None
            or topic not in self._known_topics
            or len(key) + len(value) > self._longest
            or self._closed
        ):
            future: RecordFuture = super().send(topic, value=value, key=key, partition=partition)
            # `send` has waited for the topic's metadata, which is cached from here on.
            self._known_topics.add(topic)
            return future
        future, full, new_batch, _ = self._accumulator.append(TopicPartition(topic, partition), None, key, value, [])
        if full or new_batch:
            self._sender.wakeup()
        return future

    def flush(self, timeout: float | None = None) -> None:
        if not self._aborting:
            super().flush(timeout)

    def abort(self) -> None:
        self._aborting = True
        self.close(timeout=0)


def built(factory: Callable[..., _T], arguments: Mapping[str, Any]) -> _T:
    """Build a connected client of kafka-python; after a failure free its thread and sockets, and raise its cause, if
    known, instead of a time-out.

    kafka-python does not free them: a process that waits for its broker would gain a thread with every attempt.
    """
    networks: list[KafkaNetClient] = []
    connections: list[Connections] = []

    def network(**options: Any) -> KafkaNetClient:
        options["selector"] = CachingSelector
        loop = Loop(**options)
        kind = getattr(factory, "network", KafkaNetClient)
        connections.append(Connections(loop, **options))
        networks.append(kind(loop, connections[-1]))
        # The clients' settings of these names have no effect on the cluster metadata, which by default waits 100 ms
        # between the requests for brokers and for topics.
        networks[-1].cluster.config |= {"retry_backoff_ms": _METADATA_RETRY_MS, "allow_auto_create_topics": False}
        return networks[-1]

    try:
        return factory(**arguments, kafka_client=network)
    except BaseException as error:
        cause = next((each.failure for each in connections), None)
        for client in networks:
            client.close()
        if cause is not None and isinstance(error, KafkaTimeoutError):
            raise cause from error
        raise
