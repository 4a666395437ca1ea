"""Pushes to topics of an MQTT broker, beside another transport.

A push to `mqtt://host:port/TOPIC`, or `TOPIC?retain`, is a PUBLISH with QoS 1, and its PUBACK the result: status 200,
or the HTTP status with the meaning of its reason code (`_STATUSES`), with the code and its name as the answer. The
headers become user properties. Each process has one connection, opened by the first push, to the broker of the
settings only; the outbound policy checks its address. After a lost connection or a late PUBACK a new one is opened, so
no message is sent after its push has failed.

A thread reads and writes the connection. It queues events for the thread that calls `drive`.
"""

from __future__ import annotations

import itertools
import math
import secrets
import socket
import struct
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from paho.mqtt import MQTTException
from paho.mqtt.client import Client

from arborcast.core import fence
from arborcast.core.errors import TopicError
from arborcast.core.mqtt.connection import ConnectFailed, connect, make_client, properties_of, refusal_of
from arborcast.core.mqtt.settings import EXPIRES_HEADER, LOOP_PROPERTY, MqttSettings
from arborcast.core.security.outbound import AddressPolicy
from arborcast.core.threads import start_thread
from arborcast.dispatch.delivery.transport.contract import Callback, Ended, Failure, PushRequest, PushResult, Transport
from arborcast.dispatch.settings import PushSettings
from arborcast.topic_model.mqtt_names import check_published, is_mqtt

# Reason codes of a PUBACK from 0x80 on. Codes about the message are treated like these statuses.
_STATUSES = {0x87: 403, 0x90: 404, 0x97: 429, 0x99: 415}
_UNKNOWN_STATUS = 500

_TOO_LARGE = 413

# Of a PUBLISH beside topic, payload and properties.
_HEAD = 32

_LONGEST_EXPIRY_S = 0xFFFFFFFF

_CLOSE_S = 1.0


class _Push(NamedTuple):
    """A push as a PUBLISH of this size."""

    callback: Callback
    started: float
    topic: str
    payload: bytes
    retain: bool
    properties: Any
    size: int


class _Link:
    """One connection. `events` are ("up", properties of the CONNACK), ("acked", packet identifier, reason code) and, as
    the last one, ("over", failure, detail)."""

    def __init__(self, settings: MqttSettings, timeout_s: float, policy: AddressPolicy, transport: Transport) -> None:
        self.events: deque[tuple[Any, ...]] = deque()
        self.waiting: deque[int] = deque()  # pushes that are not sent yet
        self.sent: dict[int, int] = {}  # packet identifiers and their pushes
        self.room = 0  # the Receive Maximum of the broker; 0 before CONNACK
        self.largest = math.inf
        self.retains = True
        self.client: Client | None = None
        self._closed = False
        self._settings, self._timeout_s, self._policy, self._transport = settings, timeout_s, policy, transport
        self._failure: tuple[Failure, str] = ("disconnected", "the broker has closed the connection")
        self.thread = start_thread("mqtt-push", self._run)

    def close(self) -> None:
        """End the connection, and everything in flight on it."""
        self._closed = True
        client = self.client
        if client is not None:
            opened = client.socket()
            if isinstance(opened, socket.socket):
                with suppress(OSError):
                    socket.socket.shutdown(opened, socket.SHUT_RDWR)  # not that of TLS, which waits for the broker
            with suppress(RuntimeError, AttributeError):  # its thread is made, but not started, or ends meanwhile
                client.loop_stop()

    def _run(self) -> None:
        try:
            client = make_client(self._settings, f"{self._settings.client_id}-{secrets.token_hex(6)}", self._timeout_s)
            client.on_connect = self._connected
            client.on_publish = lambda _client, _data, mid, reason, _properties: self._emit("acked", mid, reason)
            client.on_disconnect = self._disconnected
            connect(client, self._settings, self._policy, properties_of("CONNECT"), clean=True)
            self.client = client
            if self._closed:
                client.disconnect()
            client.loop_start()
        except ConnectFailed as error:
            self._emit("over", error.failure, str(error))
        except Exception as error:
            self._emit("over", "internal", repr(error))

    def _connected(self, _client: Client, _data: object, _flags: object, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self._failure = "connect", refusal_of(reason, self._settings.place[1])
        else:
            self._emit("up", properties)

    def _disconnected(self, _client: Client, _data: object, flags: Any, reason: Any, _properties: object) -> None:
        if flags.is_disconnect_packet_from_server:
            self._failure = "disconnected", f"the broker has closed the connection: {reason.getName()}"
        self._emit("over", *self._failure)

    def _emit(self, *event: Any) -> None:
        self.events.append(event)
        self._transport.wake()


class WithMqtt:
    """The contract for mqtt:// and mqtts:// addresses; others go to `others`."""

    def __init__(self, others: Transport, push: PushSettings, policy: AddressPolicy, settings: MqttSettings) -> None:
        self._others = others
        self._push = push
        self._policy = policy
        self._settings = settings
        self._link: _Link | None = None
        self._numbers = itertools.count()
        self._pushes: dict[int, _Push] = {}  # in the order of their deadlines
        self._done = Ended()

    @property
    def in_flight(self) -> int:
        return self._others.in_flight + len(self._pushes) + len(self._done)

    def submit(self, request: PushRequest, callback: Callback) -> None:
        if not is_mqtt(request.url):
            self._others.submit(request, callback)
            return
        fence.wait()
        if not request.url.startswith(self._settings.base):
            # Not a failure of the message: the settings of this process may be older.
            detail = f"this process pushes only to the broker of mqtt.url, {self._settings.base}"
            self._done.append((callback, PushResult(0, "connect", detail)))
            return
        try:
            push = self._read(request, callback)
        except (TopicError, ValueError, MQTTException, struct.error) as error:
            self._done.append((callback, PushResult(0, "address", f"it cannot be an MQTT message: {error}")))
            return
        self._take_in()  # otherwise the push could be sent on a lost connection
        number = next(self._numbers)
        self._pushes[number] = push
        if self._link is None:
            self._link = _Link(self._settings, self._push.connect_timeout_s, self._policy, self._others)
        self._link.waiting.append(number)
        self._send(self._link)

    def drive(self, timeout_s: float) -> None:
        if self._work():
            timeout_s = 0.0
        if self._pushes:
            timeout_s = max(0.0, min(timeout_s, self._due() - time.monotonic()))
        self._others.drive(timeout_s)
        self._work()

    def wake(self) -> None:
        self._others.wake()

    def close(self) -> None:
        self._pushes.clear()
        self._done.clear()
        link, self._link = self._link, None
        if link is not None:
            link.close()
            link.thread.join(_CLOSE_S)
        self._others.close()

    def _due(self) -> float:
        return next(iter(self._pushes.values())).started + self._push.total_timeout_s

    def _work(self) -> int:
        """Process events, and run the callbacks that are due; returns their number."""
        self._take_in()
        return self._done.run()

    def _take_in(self) -> None:
        """Process the events of the connection, and end it if a PUBACK is late."""
        link = self._link
        while link is not None and link.events:
            kind, *facts = link.events.popleft()
            if kind == "up":
                link.room = getattr(facts[0], "ReceiveMaximum", 65_535)
                link.largest = getattr(facts[0], "MaximumPacketSize", math.inf)
                link.retains = bool(getattr(facts[0], "RetainAvailable", 1))
            elif kind == "acked":
                self._finish(link.sent.pop(facts[0], -1), _result(facts[1]))
            else:
                self._lose(link, *facts)
                link = None
        if link is not None and self._pushes and self._due() <= time.monotonic():
            # The pushes behind it fail, too: a message that was sent may be published after its push has failed.
            first = next(iter(self._pushes))
            self._finish(first, PushResult(0, "timeout", "no PUBACK in time"))
            link.close()
            self._lose(link, "disconnected", "a PUBACK for an earlier message did not arrive in time")
        elif link is not None:
            self._send(link)

    def _send(self, link: _Link) -> None:
        client = link.client
        while client is not None and link.waiting and len(link.sent) < link.room:
            number = link.waiting.popleft()
            push = self._pushes.get(number)
            if push is None:
                continue
            # The broker would end the connection, and with it the other pushes.
            if push.size > link.largest:
                self._finish(number, _refused(_TOO_LARGE, f"the broker takes {link.largest:.0f} bytes at most"))
                continue
            if push.retain and not link.retains:
                self._finish(number, _refused(_UNKNOWN_STATUS, "the broker retains no messages"))
                continue
            info = client.publish(push.topic, push.payload, 1, push.retain, push.properties)
            link.sent[info.mid] = number

    def _lose(self, link: _Link, failure: Failure, detail: str) -> None:
        self._link = None
        for number in (*link.sent.values(), *link.waiting):
            self._finish(number, PushResult(0, failure, detail))

    def _finish(self, number: int, result: PushResult) -> None:
        push = self._pushes.pop(number, None)
        if push is not None:
            took_s = time.monotonic() - push.started
            answer = result.response[: self._push.keep_response_bytes]
            self._done.append((push.callback, replace(result, duration_s=took_s, response=answer, reused=True)))

    def _read(self, request: PushRequest, callback: Callback) -> _Push:
        """Raises TopicError, or an error of the library for an invalid property."""
        parts = urlsplit(request.url)
        topic = unquote(parts.path[1:], errors="strict")
        check_published(topic)
        properties = properties_of("PUBLISH")
        pairs = [(LOOP_PROPERTY, self._settings.client_id)]
        for name, value in request.headers:
            if name == EXPIRES_HEADER:
                left_s = math.ceil(int(value) / 1000 - time.time())
                properties.MessageExpiryInterval = min(max(1, left_s), _LONGEST_EXPIRY_S)
            elif name == "Content-Type":
                properties.ContentType = value
            else:
                pairs.append((name, value))
        properties.UserProperty = pairs
        properties.PayloadFormatIndicator = 1
        size = _HEAD + len(topic.encode()) + len(request.body) + len(properties.pack())
        return _Push(callback, time.monotonic(), topic, request.body, parts.query == "retain", properties, size)


def _result(reason: Any) -> PushResult:
    if not reason.is_failure:
        return PushResult(200)
    return _refused(_STATUSES.get(reason.value, _UNKNOWN_STATUS), f"MQTT 0x{reason.value:02X}: {reason.getName()}")


def _refused(status: int, answer: str) -> PushResult:
    return PushResult(status, response=answer.encode(), response_bytes=len(answer.encode()))
