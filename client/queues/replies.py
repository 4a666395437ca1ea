"""Answers to requests: awaited by the message id of each, brought by servers to a listener or to a pull point.

Without a listener of the user's the client makes a pull point at the broker, asks it while an answer is awaited, and
destroys it in the end. So nobody has to be able to connect to us.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
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
)
from arborcast.core.xml import xml_parser
from arborcast.topic_model.namespaces import SOAP11, SOAP12

logger = logging.getLogger(__name__)

# How long a question for answers waits at the broker, and between two while it is away.
_WAIT_S = 10.0
_PAUSE_S = 0.5

Outcome = ReceivedMessage | ClientError


class Replies:
    """Who awaits which answer. Several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._awaited: dict[str, SimpleQueue[Outcome]] = {}

    def __len__(self) -> int:
        return len(self._awaited)

    def begin(self, message_id: str) -> None:
        """An answer to this is awaited from now on."""
        with self._lock:
            self._awaited[message_id] = SimpleQueue()

    def end(self, message_id: str) -> None:
        """Nobody awaits it any more."""
        with self._lock:
            self._awaited.pop(message_id, None)

    def take(self, message: ReceivedMessage) -> bool:
        """Whether a message is an answer that is awaited; then whoever awaits it has it."""
        with self._lock:
            awaited = self._awaited.get(message.relates_to) if message.relates_to else None
        if awaited is not None:
            awaited.put(message)
        return awaited is not None

    def fail(self, error: ClientError) -> None:
        """No answers will come."""
        with self._lock:
            for awaited in self._awaited.values():
                awaited.put(error)

    def wait(self, message_id: str, until: float) -> bytes:
        """The answer's payload; until that time of the monotonic clock. Raises TimeoutError, ClientError."""
        try:
            outcome = self._awaited[message_id].get(timeout=max(0.0, until - time.monotonic()))
        except Empty:
            raise TimeoutError("no server has answered the request in time") from None
        if isinstance(outcome, ClientError):
            raise outcome
        return _payload(outcome)


def _payload(answer: ReceivedMessage) -> bytes:
    """Raises FaultReceived where the answer is that there is none."""
    if b"Fault" in answer.payload:
        root = etree.fromstring(answer.payload, xml_parser())
        if root.tag in (f"{{{SOAP11}}}Fault", f"{{{SOAP12}}}Fault"):
            code = (
                root.findtext("faultcode") or root.findtext(f".//{{{SOAP12}}}Subcode/{{{SOAP12}}}Value") or ""
            ).strip()
            reason = root.findtext("faultstring") or root.findtext(f".//{{{SOAP12}}}Text") or "no reason given"
            raise FaultReceived(reason.strip(), code.rpartition(":")[2])
    return answer.payload


class Pulls(Protocol):
    """A client, as far as pull points need one."""

    def create_pull_point(self) -> RemotePullPoint: ...

    def get_messages(
        self, pull_point: RemotePullPoint, maximum: int | None = None, *, wait_s: float | None = None
    ) -> list[ReceivedMessage]: ...

    def destroy_pull_point(self, pull_point: RemotePullPoint) -> None: ...


class PulledReplies(Replies):
    """Answers in a pull point that is made when it is first needed. A thread asks for them while any is awaited."""

    def __init__(self, client: Pulls) -> None:
        super().__init__()
        self._client = client
        self._making = threading.Lock()
        self._point: RemotePullPoint | None = None
        self._asked = threading.Condition()
        self._closed = False

    @property
    def address(self) -> RemotePullPoint:
        """The pull point. Raises ClientError."""
        with self._making:
            if self._closed:
                raise ClientClosed("the client is closed", sent=False)
            if self._point is None:
                self._point = self._client.create_pull_point()
                threading.Thread(target=self._run, name="replies", args=(self._point,), daemon=True).start()
            return self._point

    def begin(self, message_id: str) -> None:
        super().begin(message_id)
        with self._asked:
            self._asked.notify_all()

    def close(self) -> None:
        """Ask no more, and destroy the pull point."""
        with self._making:
            point, self._point, self._closed = self._point, None, True
        with self._asked:
            self._asked.notify_all()
        self.fail(ClientClosed("the client was closed before the answer came", sent=True))
        if point is not None:
            try:
                self._client.destroy_pull_point(point)
            except ClientError as error:
                logger.info("the pull point of answers could not be destroyed: %s", error)

    def _run(self, point: RemotePullPoint) -> None:
        while not self._closed:
            with self._asked:
                while not len(self) and not self._closed:
                    self._asked.wait()
            if not self._ask(lambda: self._client.get_messages(point, wait_s=_WAIT_S)):
                return

    def _ask(self, ask: Callable[[], list[ReceivedMessage]]) -> bool:
        """Whether it is worth asking again."""
        try:
            for message in ask():
                self.take(message)
        except (BrokerUnavailable, BrokerUnreachable) as error:
            if self._closed:
                return False
            logger.info("answers cannot be fetched now: %s", error)
            time.sleep(_PAUSE_S)
        except ClientError as error:
            # It is not there any more: the next request makes another.
            with self._making:
                self._point = None
            self.fail(error)
            return False
        return True
