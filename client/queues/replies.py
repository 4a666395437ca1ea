"""Answers to requests: awaited by message id, sent by servers to a listener or to a pull point.

Without a listener the client creates a pull point at the broker, polls it while an answer is awaited, and destroys it
when it is closed. So it needs no incoming connections.
"""

from __future__ import annotations

import logging
import threading
import time
from queue import Empty, SimpleQueue
from typing import Protocol

from lxml import etree

from arborcast.client.received import ReceivedMessage
from arborcast.client.values import (
    BrokerUnavailable,
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    FaultReceived,
    RemotePullPoint,
    UnreadableAnswer,
)
from arborcast.core.threads import start_thread
from arborcast.core.xml import xml_parser
from arborcast.topic_model.namespaces import SOAP12, SOAP_FAULTS

logger = logging.getLogger(__name__)

# The wait of a GetMessages at the broker, and the pause after a failed one.
_WAIT_S = 10.0
_PAUSE_S = 0.5

Outcome = ReceivedMessage | ClientError


class Replies:
    """Awaited answers by message id. Several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._awaited: dict[str, SimpleQueue[Outcome]] = {}

    def begin(self, message_id: str) -> None:
        """Start to await the answer to this request."""
        with self._lock:
            self._awaited[message_id] = SimpleQueue()

    def end(self, message_id: str) -> None:
        """Stop awaiting it."""
        with self._lock:
            self._awaited.pop(message_id, None)

    def take(self, message: ReceivedMessage) -> bool:
        """Pass a message to the call that awaits it; returns whether there is one."""
        with self._lock:
            awaited = self._awaited.get(message.relates_to) if message.relates_to else None
        if awaited is not None:
            awaited.put(message)
        return awaited is not None

    def fail(self, error: ClientError) -> None:
        """Fail all awaited answers."""
        with self._lock:
            for awaited in self._awaited.values():
                awaited.put(error)

    def wait(self, message_id: str, until: float) -> bytes:
        """Wait until `until`, on the monotonic clock, for the answer's payload. Raises TimeoutError, ClientError."""
        try:
            outcome = self._awaited[message_id].get(timeout=max(0.0, until - time.monotonic()))
        except Empty:
            raise TimeoutError("no worker has answered the request in time") from None
        if isinstance(outcome, ClientError):
            raise outcome
        return _payload(outcome)


def _payload(answer: ReceivedMessage) -> bytes:
    """The payload of an answer. Raises FaultReceived if it is a fault."""
    if b"Fault" in answer.payload:
        root = etree.fromstring(answer.payload, xml_parser())
        if root.tag in SOAP_FAULTS:
            code = (
                root.findtext("faultcode") or root.findtext(f".//{{{SOAP12}}}Subcode/{{{SOAP12}}}Value") or ""
            ).strip()
            reason = root.findtext("faultstring") or root.findtext(f".//{{{SOAP12}}}Text") or "no reason given"
            raise FaultReceived(reason.strip(), code.rpartition(":")[2])
    return answer.payload


class Pulls(Protocol):
    """The used part of a client."""

    def create_pull_point(self) -> RemotePullPoint: ...

    def get_messages(
        self, pull_point: RemotePullPoint, maximum: int | None = None, *, wait_s: float | None = None
    ) -> list[ReceivedMessage]: ...

    def destroy_pull_point(self, pull_point: RemotePullPoint) -> None: ...


class PulledReplies(Replies):
    """Answers through a pull point, created on the first use. A thread polls it while an answer is awaited."""

    def __init__(self, client: Pulls) -> None:
        super().__init__()
        self._client = client
        self._point_lock = threading.Lock()
        self._point: RemotePullPoint | None = None
        self._changed = threading.Condition()
        self._closed = False

    @property
    def address(self) -> RemotePullPoint:
        """The pull point. Raises ClientError."""
        with self._point_lock:
            if self._closed:
                raise ClientClosed("the client is closed", sent=False)
            if self._point is None:
                self._point = self._client.create_pull_point()
                start_thread("replies", self._run, self._point)
            return self._point

    def begin(self, message_id: str) -> None:
        super().begin(message_id)
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Stop polling, and destroy the pull point."""
        with self._point_lock:
            point, self._point, self._closed = self._point, None, True
        with self._changed:
            self._changed.notify_all()
        self.fail(ClientClosed("the client was closed before the answer", sent=True))
        if point is not None:
            try:
                self._client.destroy_pull_point(point)
            except ClientError as error:
                logger.info("the pull point of answers could not be destroyed: %s", error)

    def _run(self, point: RemotePullPoint) -> None:
        while not self._closed:
            with self._changed:
                self._changed.wait_for(lambda: self._awaited or self._closed)
            if not self._fetch(point):
                return

    def _fetch(self, point: RemotePullPoint) -> bool:
        """Fetch answers once; returns whether to continue."""
        try:
            messages = self._client.get_messages(point, wait_s=_WAIT_S)
            for message in messages:
                if message.part is None:
                    self.take(message)
            if any(message.part for message in messages):
                raise ClientError("the parts of an answer could not be stored: see the log")
        except (BrokerUnavailable, BrokerUnreachable) as error:
            if self._closed:
                return False
            logger.info("answers cannot be fetched now: %s", error)
            time.sleep(_PAUSE_S)
        except ClientError as error:
            refused = isinstance(error, FaultReceived) and error.fault != "ResourceUnknownFault"
            if refused or isinstance(error, UnreadableAnswer):
                # A proxy answered for the broker, or a limit of requests was reached. Pull points do not expire: each
                # further one would stay at the broker.
                self.fail(error)
                time.sleep(_PAUSE_S)
                return not self._closed
            # The pull point no longer exists, or the parts of an answer could not be stored: the next request creates
            # another.
            with self._point_lock:
                self._point = None
            self.fail(error)
            return False
        return True
