"""The connection to the framed edge of the gateway: made again when it is lost, with the subscriptions that it had."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from arborcast.client.framed import Connection, ConnectionFactory, published
from arborcast.client.values import BrokerUnavailable, FaultReceived
from arborcast.core.backoff import Backoff
from arborcast.core.errors import ArborcastError
from arborcast.core.threads import Service
from arborcast.wire import frames
from arborcast.wire.frames import Frame, FrameKind

logger = logging.getLogger(__name__)

_BACKOFF = Backoff(0.1, 30.0)

_CHECK_S = 0.5

# Delay before a refused subscription is requested again.
_AGAIN_S = 30.0

Answer = Callable[[str, ArborcastError | None], None]
"""Called with the notification's id, or with an empty one and the error: after BrokerUnavailable try again."""

OnMessage = Callable[[Connection, Frame, frames.MessageBody], None]
"""Called with the connection of a message: its number is for an ACK on that one only."""


class FramedUpstream:
    """One user's connection. Thread-safe; callbacks run in its own threads."""

    def __init__(self, factory: ConnectionFactory, on_message: OnMessage = lambda *_: None) -> None:
        self._factory = replace(factory, timeout_s=30.0)
        self._on_message = on_message
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._refusal: FaultReceived | None = None  # the reason of a refused authentication
        self._requested: dict[str, frames.SubscribeBody] = {}
        self._in_force: dict[str, str] = {}  # expression to the subscription's name
        self._failed: dict[str, float] = {}  # expression to when it is tried again
        self._service = Service(
            "zmq-upstream", self._step, backoff=_BACKOFF, close=self._lose, what=f"the framed edge at {factory.url}"
        )
        self._service.start()

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def publish(self, body: frames.PublishBody, flags: int, answer: Answer) -> None:
        connection = self._connection
        if connection is None:
            answer("", self._refusal or BrokerUnavailable("the gateway cannot be reached now", None))
            return

        def done(future: Future[Frame]) -> None:
            try:
                answer(published(future, 0), None)
            except ArborcastError as error:
                answer("", error)

        connection.begin(FrameKind.PUBLISH, body, flags).add_done_callback(done)

    def subscribe(self, requested: frames.SubscribeBody) -> None:
        """Subscribe to this expression; some time later it `is_in_force`."""
        with self._lock:
            self._requested[requested.expression] = requested
        self._service.wake()

    def unsubscribe(self, expression: str) -> None:
        with self._lock:
            self._requested.pop(expression, None)
        self._service.wake()

    def is_in_force(self, expression: str) -> bool:
        """Whether later publications arrive."""
        return expression in self._in_force

    def close(self) -> None:
        """Close the connection, and end subscriptions without a name."""
        self._service.stop(60)

    def _step(self) -> float:
        """Connect; with a connection, set the required subscriptions."""
        connection = self._connection
        if connection is None:
            try:
                connection = self._factory.connection()
            except ArborcastError as error:
                self._refusal = error if isinstance(error, FaultReceived) else None
                raise
            self._refusal, self._connection = None, connection
        elif connection.lost.is_set():
            self._lose()
            return 0.0
        with self._lock:
            requested = dict(self._requested)
        self._failed = {each: at for each, at in self._failed.items() if each in requested}
        for expression in self._in_force.keys() - requested.keys():
            self._end(connection, self._in_force.pop(expression))
        for expression in requested.keys() - self._in_force.keys():
            if self._failed.get(expression, 0.0) <= time.monotonic():
                self._begin(connection, requested[expression])
        return _CHECK_S

    def _lose(self) -> None:
        connection, self._connection = self._connection, None
        self._in_force.clear()
        if connection is not None:
            connection.close()

    def _begin(self, connection: Connection, requested: frames.SubscribeBody) -> None:
        try:
            receipt = frames.read_body(connection.request(FrameKind.SUBSCRIBE, requested), frames.ReceiptBody)
        except ArborcastError as error:
            self._failed[requested.expression] = time.monotonic() + _AGAIN_S
            logger.warning("%r cannot be subscribed to: %s; trying again", requested.expression or "everything", error)
            return
        self._failed.pop(requested.expression, None)
        connection.handle(receipt.id, partial(self._on_message, connection))
        self._in_force[requested.expression] = receipt.id

    def _end(self, connection: Connection, name: str) -> None:
        try:
            connection.request(FrameKind.UNSUBSCRIBE, frames.UnsubscribeBody(name))
        except ArborcastError as error:
            logger.info("a subscription was not ended: %s", error)
        else:
            # Not before: the connection would keep messages without a handler.
            connection.handle(name, None)
