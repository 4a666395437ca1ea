"""A server of a work queue: it gets requests, does them, and answers whoever has asked.

with Worker(lambda request: b"<done/>", capacity=2) as worker:
    worker.serve(client, "jobs")
    ...

What was sent before and is done is not done again: it is only acknowledged, or answered once more where the answer had
not arrived.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from core.recent import Recent
from ingest.addresses import Kind
from ingest.client.calls import Namespaces, without_declaration
from ingest.client.http_server import Response, Server, in_thread
from ingest.client.later import open_push
from ingest.client.listener import HandledOnce, accepted
from ingest.client.received import Asker, ReceivedMessage, Verify
from ingest.client.transport import RequestsTransport, Transport
from ingest.client.values import ClientError, RemoteSubscription
from ingest.soap import answers
from topic_model.expressions import CONCRETE, write_topic
from topic_model.namespaces import ACTION_BW, ARBORCAST_QUEUE, SOAP11, WSA, WSNT
from topic_model.subscriptions import parameter_blocks

logger = logging.getLogger(__name__)

Handle = Callable[[ReceivedMessage], str | bytes | None]
"""Does a request; returns the answer, an XML element, or None where there is nothing to say."""

_DONE = f'<q:Done xmlns:q="{ARBORCAST_QUEUE}"/>'

_REPLY_ACTION = f"{ARBORCAST_QUEUE}/Reply"

# Between tries to answer; then the broker is asked to send the request again, and the answer is tried once more.
_WAITS_S = (0.2, 0.5, 1.0)

_INVALID, _NOT_ANSWERED = 422, 424

# Answers that could not be brought yet: bytes, twice, and for how long.
_KEPT = 32 * 1024 * 1024
_KEPT_S = 3_600.0


class Invalid(Exception):
    """Raised by what handles a request that cannot be done: another server gets it, and when all say so, its user hears
    of it."""


class Subscribes(Protocol):
    """A client, as far as a worker needs one."""

    def subscribe(self, topic: str | None, *, to: str, queue: int, namespaces: Namespaces) -> RemoteSubscription:
        """As `Client.subscribe`."""

    def proof_for(self, address: str) -> dict[str, str]:
        """As `Client.proof_for`."""


class Worker(Server):
    """Serves queues. `handle` runs in threads, `capacity` at a time for each queue; the request is acknowledged when it
    returns. What it raises makes the broker send the request again, but for `Invalid`.

    `advertised` is the address that the broker reaches it at, `url` when left out. `transport` carries the answers;
    `verify` is as for `Listener`.
    """

    def __init__(
        self,
        handle: Handle,
        capacity: int = 1,
        port: int = 0,
        host: str = "127.0.0.1",
        *,
        advertised: str = "",
        verify: Verify | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.capacity = capacity
        self._handle_request = handle
        self._advertised = advertised
        self._verify = verify
        self._own = RequestsTransport()
        self._transport: Transport = self._own if transport is None else transport
        self._repeats = HandledOnce()
        self._lock = threading.Lock()
        self._kept: Recent[str, str] = Recent(_KEPT, age_s=_KEPT_S)
        self._clients: list[Subscribes] = []
        super().__init__(self._handled, port, host, "worker")

    def serve(self, client: Subscribes, topic: str, namespaces: Namespaces = None) -> RemoteSubscription:
        """Have a broker send the requests of a queue here from now on; unsubscribing ends that. Answers to pull points
        of that broker say who we are, as the client does."""
        self._clients.append(client)
        return client.subscribe(topic, to=self._advertised or self.url, queue=self.capacity, namespaces=namespaces)

    def stop(self) -> None:
        """Stop receiving. Requests at work are not acknowledged any more: others get them."""
        super().stop()
        self._own.close()

    async def _handled(self, headers: Mapping[str, str], body: bytes) -> Response:
        return await in_thread("request", lambda: self._worked(headers, body))

    def _worked(self, headers: Mapping[str, str], body: bytes) -> Response:
        messages = accepted(headers, body, self._verify, open_push(headers, self._transport))
        if isinstance(messages, Response):
            return messages
        try:
            told = True
            for each in messages:
                told = self._did(each) and told
            return Response(202 if told else _NOT_ANSWERED)
        except Invalid as why:
            return Response(_INVALID, str(why).encode(), "text/plain; charset=utf-8")
        except Exception:
            logger.exception("a request could not be done; the broker will send it again")
            return Response(500)

    def _did(self, request: ReceivedMessage) -> bool:
        """Do a request, unless it is done, and answer it; whether everybody has the answer."""
        ids = [each.notification_id for each in request.askers] or [request.notification_id]
        to_do = self._repeats.begin(ids, request.sequence > 0)
        if not to_do:
            return True
        unanswered = set(to_do)
        try:
            answer = self._kept_for(to_do) if request.sequence else None
            if answer is None:
                answer = _text(self._handle_request(request))
            awaiting = [each for each in request.askers if each.notification_id in to_do]
            unanswered = {each.notification_id for each in awaiting if not self._answer(each, request, answer)}
            if unanswered:
                self._keep(unanswered, answer)
        finally:
            self._repeats.end(to_do - unanswered, handled=True)
            self._repeats.end(unanswered, handled=False)
        return not unanswered

    def _kept_for(self, ids: set[str]) -> str | None:
        with self._lock:
            return next((kept for each in sorted(ids) if (kept := self._kept.get(each)) is not None), None)

    def _keep(self, ids: set[str], answer: str) -> None:
        with self._lock:
            for each in ids:
                self._kept.put(each, answer, len(answer))

    def _answer(self, asker: Asker, request: ReceivedMessage, answer: str) -> bool:
        """Bring somebody the answer; whether it has arrived."""
        headers, body = reply_to(asker, request, answer)
        for client in self._clients:
            headers |= client.proof_for(asker.reply_to.address)
        why = ""
        for wait_s in (*_WAITS_S, None):
            try:
                status = self._transport.post(asker.reply_to.address, headers, body).status
            except ClientError as error:
                why = str(error)
            else:
                if 200 <= status < 300:
                    return True
                why = f"HTTP {status}"
            if wait_s is not None:
                time.sleep(wait_s)
        logger.warning("the answer to %s could not be brought, it is tried again: %s", asker.message_id, why)
        return False


def _text(answer: str | bytes | None) -> str:
    if answer is None:
        return _DONE
    return without_declaration(answer.decode() if isinstance(answer, bytes) else answer)


def reply_to(asker: Asker, request: ReceivedMessage, answer: str) -> tuple[dict[str, str], bytes]:
    """The HTTP headers and body of an answer. A pull point takes only notifications, and keeps no headers."""
    remote, action = asker.reply_to, _REPLY_ACTION
    related = f"<wsa:RelatesTo>{answers.text(asker.message_id)}</wsa:RelatesTo>"
    if Kind.PULL_POINT.value in remote.address:
        action = f"{ACTION_BW}/NotificationConsumer/Notify"
        answer = (
            f'<wsnt:Notify xmlns:wsnt="{WSNT}"><wsnt:NotificationMessage>{_topic(request)}<wsnt:ProducerReference>'
            f"<wsa:Address>{WSA}/anonymous</wsa:Address>"
            f"<wsa:ReferenceParameters>{related}</wsa:ReferenceParameters></wsnt:ProducerReference>"
            f"<wsnt:Message>{answer}</wsnt:Message></wsnt:NotificationMessage></wsnt:Notify>"
        )
    envelope = (
        f'<soap:Envelope xmlns:soap="{SOAP11}" xmlns:wsa="{WSA}"><soap:Header>'
        f"<wsa:To>{answers.text(remote.address)}</wsa:To><wsa:Action>{action}</wsa:Action>"
        f"<wsa:MessageID>urn:uuid:{uuid.uuid4()}</wsa:MessageID>{related}{parameter_blocks(remote.parameters)}"
        f"</soap:Header><soap:Body>{answer}</soap:Body></soap:Envelope>"
    )
    return {"Content-Type": "text/xml; charset=utf-8", "SOAPAction": f'"{action}"'}, envelope.encode()


def _topic(request: ReceivedMessage) -> str:
    if request.topic is None:
        return ""
    text, namespaces = write_topic(request.topic)
    declared: Any = "".join(f" xmlns:{prefix}={answers.attribute(uri)}" for prefix, uri in namespaces.items())
    return f'<wsnt:Topic{declared} Dialect="{CONCRETE}">{answers.text(text)}</wsnt:Topic>'
