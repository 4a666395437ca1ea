"""Where kafka-python falls short: sockets and threads that it does not free, a slow way to send, none to give up,
a pause before the first answer.

Only `client` uses these. When the pinned version is raised, check whether each is still needed.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import kafka
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket
from kafka.structs import TopicPartition

if TYPE_CHECKING:
    from core.eventlog.client import RecordFuture

# More than a record needs beside its key and value, with the batch that it may be alone in.
_RECORD_OVERHEAD = 256

# Brokers that are away are tried as seldom as `reconnect_backoff_max_ms` says.
_LOOK_AGAIN_MS = 10

_T = TypeVar("_T")


class _Socket(socket.socket):
    """Closed with its last reference, and not a word about it."""

    def __del__(self) -> None:
        self.close()


class ClosingSocket(KafkaNetSocket):  # type: ignore[misc]  # the base has no types
    """A direct connection. kafka-python's own leaves the socket of every refused attempt to the garbage collector, and
    that of a client that is closed while it has something to write.

    Subclasses register themselves for the scheme of the `proxy_url` setting, which is the way to replace it.
    """

    SCHEMES = ("direct",)

    def socket(
        self,
        family: int = socket.AF_UNSPEC,
        sock_type: int = socket.SOCK_STREAM,
        proto: int = socket.IPPROTO_TCP,
    ) -> _Socket:
        return _Socket(family, sock_type, proto)

    async def sock_connect(self, net: Any, sock: _Socket, sockaddr: Any, timeout_at: float | None = None) -> Any:
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


class LeanProducer(kafka.KafkaProducer):  # type: ignore[misc]  # the base has no types
    """KafkaProducer with a shorter way for what is sent most, and a way to give up.

    Its close(timeout=0) raises from its flush and leaves its thread running when records are waiting.
    """

    _aborting = False

    def __init__(self, **configs: Any) -> None:
        super().__init__(**configs)
        self._known_topics: set[str] = set()
        self._longest = int(self.config["max_request_size"]) - _RECORD_OVERHEAD

    def send(
        self, topic: str, value: bytes | None = None, key: bytes | None = None, *, partition: int | None = None
    ) -> RecordFuture:
        """For bytes on a chosen partition: a third of KafkaProducer.send's time goes into finding out just that."""
        if (
            partition is None
            or value is None
            or key is None
            or topic not in self._known_topics
            or len(key) + len(value) > self._longest
            or self._closed
        ):
            future: RecordFuture = super().send(topic, value=value, key=key, partition=partition)
            # It has waited for the topic's metadata, which stay known.
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
    """Build one of kafka-python's clients, which connects; free its thread and sockets when that fails.

    kafka-python does not: a process that waits for its broker would gain a thread with every attempt.
    """
    networks: list[KafkaNetClient] = []

    def network(*args: Any, **options: Any) -> KafkaNetClient:
        networks.append(KafkaNetClient(*args, **options))
        # Of its own it waits so long before it looks for a log, after it has looked for the brokers: 100 ms, and the
        # setting of that name does not come this far.
        networks[-1].cluster.config["retry_backoff_ms"] = _LOOK_AGAIN_MS
        return networks[-1]

    try:
        return factory(**arguments, kafka_client=network)
    except BaseException:
        for client in networks:
            client.close()
        raise
