"""The connection that holds the persistent session at the MQTT broker: subscriptions, messages, acknowledgements.

A message is acknowledged when it is settled (`Incoming.take`); the broker repeats all others after the next connect,
also to another gateway, which continues the session under the same client id. Received messages are bounded by the
Receive Maximum and, in bytes, by a pause of reading. Everything runs on the event loop except the connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Sequence
from itertools import islice
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.subscribeoptions import SubscribeOptions

from arborcast.core.backoff import Backoff, retried
from arborcast.core.errors import InfrastructureError
from arborcast.core.mqtt.connection import connect, make_client, properties_of, refusal_of
from arborcast.core.mqtt.settings import LOOP_PROPERTY
from arborcast.ingest.http.inflight import Reservation
from arborcast.ingest.mqtt.incoming import AT_ONCE, Incoming, MqttMessage

logger = logging.getLogger(__name__)

_CONNECT_S = 10.0

# Received bytes that are not settled, beyond which the connection is not read.
_MOST_BYTES = 4 * 1024 * 1024

# Of a message beside its payload.
_OVERHEAD = 500

# Interval of keep-alive checks, and of writes that the network did not take at once.
_TICK_S = 1.0

_BACKOFF = Backoff(0.5, 15.0)

# Retained messages are sent for new subscriptions of the session only, not after each connect.
_RETAINED_IF_NEW = 1


class Session:
    """One connection."""

    def __init__(self, incoming: Incoming) -> None:
        self._settings = incoming.settings
        self._filters = [each.filter for each in incoming.rules.incoming.values()]
        self._incoming = incoming
        self._inflight = inflight = incoming.gateway.inflight
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._over.add_done_callback(lambda over: over.cancelled() or over.exception())  # read also after a cancel
        self._memory = Reservation(inflight)
        self._messages: deque[tuple[int, int, MqttMessage]] = deque()  # with packet identifiers and QoS
        self._arrived = asyncio.Event()
        self._read_from = -1  # the descriptor, while it is read
        self.connected = False

    async def run(self) -> None:
        """Until cancelled. Raises InfrastructureError when the connection is over, or cannot be made."""
        settings, policy = self._settings, self._incoming.gateway.outbound
        client = make_client(settings, settings.client_id, _CONNECT_S, manual_ack=True)
        client.on_connect, client.on_disconnect = self._connected, self._disconnected
        client.on_subscribe, client.on_message = self._subscribed, self._received
        await asyncio.to_thread(connect, client, settings, policy, self._properties(), clean=False)
        client.on_socket_close = lambda *_: self._stop_reading()
        tasks = [self._loop.create_task(work) for work in (self._take(client), self._tick(client))]
        try:
            self._read(client)
            done, _ = await asyncio.wait([self._over, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for task in tasks:
                task.cancel()
            self.connected = False
            self._memory.release()
            client.disconnect()  # the broker keeps the session
            self._stop_reading()

    def _properties(self) -> Any:
        found = properties_of("CONNECT")
        found.SessionExpiryInterval = self._settings.session_hours * 3_600
        found.ReceiveMaximum = self._settings.receive_maximum
        # So that a slightly too large message is refused and counted; a larger one is not sent by the broker.
        found.MaximumPacketSize = min(2 * self._incoming.gateway.settings.max_body_bytes, 0xFFFFFFFF)
        return found

    def _read(self, client: Client) -> None:
        opened = client.socket()
        if opened is not None and self._read_from < 0:
            self._read_from = opened.fileno()
            self._loop.add_reader(self._read_from, self._readable, client)
            self._loop.call_soon(self._readable, client)  # TLS may have decrypted more than was read

    def _stop_reading(self) -> None:
        if self._read_from >= 0:
            self._loop.remove_reader(self._read_from)
            self._read_from = -1

    def _readable(self, client: Client) -> None:
        while self._read_from >= 0:
            try:
                client.loop_read()
                if client.want_write():  # packets queued by a callback
                    client.loop_write()
            except Exception as error:
                logger.exception("mqtt: a packet of the broker cannot be read")
                self._lose(f"a packet of the broker cannot be read: {error!r}")
                return
            opened = client.socket()
            if not (isinstance(opened, ssl.SSLSocket) and opened.pending()):
                return

    async def _tick(self, client: Client) -> None:
        read_at = self._loop.time()
        while True:
            await asyncio.sleep(_TICK_S)
            now = self._loop.time()
            if self._read_from >= 0:
                read_at = now
            elif now - read_at > self._settings.keep_alive_s / 2:
                # PINGRESP is not read either. The broker repeats the messages after the next connect.
                raise InfrastructureError(
                    f"received messages wait for Kafka: reading stopped {now - read_at:.0f} s ago"
                )
            client.loop_misc()
            if client.want_write():
                client.loop_write()

    async def _take(self, client: Client) -> None:
        def store() -> Awaitable[int]:
            return self._incoming.take([each for *_, each in islice(self._messages, AT_ONCE)])

        while True:
            self._arrived.clear()
            while self._messages:
                waiting = "mqtt: messages wait at the broker"
                for _ in range(await retried(waiting, store, _BACKOFF, InfrastructureError)):
                    identifier, qos, message = self._messages.popleft()
                    client.ack(identifier, qos)
                    self._inflight.shrink(self._memory, len(message.payload) + _OVERHEAD)
                if self._memory.counted <= _MOST_BYTES / 2:
                    self._read(client)
            await self._arrived.wait()

    def _connected(self, client: Client, _data: object, flags: Any, reason: Any, _properties: object) -> None:
        _, host, port = self._settings.place
        if reason.is_failure:
            self._lose(refusal_of(reason, f"{host}:{port}"))
            return
        session = "the session continues" if flags.session_present else "a new session begins"
        logger.info("mqtt: connected to %s:%d as %s: %s", host, port, self._settings.client_id, session)
        options = SubscribeOptions(qos=1, retainHandling=_RETAINED_IF_NEW)
        client.subscribe([(each, options) for each in self._filters])

    def _subscribed(self, _client: Client, _data: object, _mid: int, reasons: Sequence[Any], _more: object) -> None:
        self.connected = True
        for each, reason in zip(self._filters, reasons, strict=False):
            if reason.is_failure:
                logger.error("mqtt: the broker refuses the subscription to %s: %s", each, reason.getName())
            elif reason.value == 0:
                logger.warning("mqtt: the broker delivers %s at most once: it grants QoS 0", each)

    def _received(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        topic = None
        with contextlib.suppress(UnicodeDecodeError):
            topic = message.topic
        marks = dict(getattr(message.properties, "UserProperty", ()))
        lifespan_s = getattr(message.properties, "MessageExpiryInterval", None)
        read = MqttMessage(
            topic,
            bytes(message.payload),
            marks.get(LOOP_PROPERTY, ""),
            0 if lifespan_s is None else max(1, lifespan_s),
            message.dup,
        )
        self._messages.append((message.mid, message.qos, read))
        self._inflight.count(self._memory, len(read.payload) + _OVERHEAD)
        if self._memory.counted >= _MOST_BYTES:
            self._stop_reading()
        self._arrived.set()

    def _disconnected(self, _client: Client, _data: object, flags: Any, reason: Any, _properties: object) -> None:
        why = reason.getName() if flags.is_disconnect_packet_from_server else "without a reason"
        own = self._settings.client_id
        self._lose(f"the connection to the broker is lost: {why}; if this repeats, another client has the id {own}")

    def _lose(self, why: str) -> None:
        self.connected = False
        if not self._over.done():
            self._over.set_exception(InfrastructureError(why))
