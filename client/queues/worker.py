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
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, get_args

from arborcast.client.calls import Lasts, Namespaces, without_declaration
from arborcast.client.http_server import Response, Server, in_thread
from arborcast.client.later import Later, open_push
from arborcast.client.listener import HandledOnce, accepted, answered
from arborcast.client.received import Asker, ReceivedMessage, Verify
from arborcast.client.transport import RequestsTransport, Transport
from arborcast.client.values import BrokerUnreachable, ClientError, FaultReceived, Remote, RemoteSubscription
from arborcast.core.recent import Recent
from arborcast.core.security.ip_addresses import Kind
from arborcast.core.security.outbound import AddressPolicy, OutboundSettings, Refusal, place_of
from arborcast.core.threads import Service, start_thread
from arborcast.topic_model.expressions import CONCRETE, write_topic
from arborcast.topic_model.namespaces import ACTION_BW, ARBORCAST_QUEUE, SOAP11, WSA, WSNT
from arborcast.topic_model.subscriptions import parameter_blocks
from arborcast.wire import answers, endpoints

logger = logging.getLogger(__name__)

Handle = Callable[[ReceivedMessage], str | bytes | None]
"""Does a request; returns the answer, an XML element, or None where there is nothing to say."""

_DONE = f'<q:Done xmlns:q="{ARBORCAST_QUEUE}"/>'

_REPLY_ACTION = f"{ARBORCAST_QUEUE}/Reply"

# Between tries to answer; then the broker is asked to send the request again, and the answer is tried once more.
_WAITS_S = (0.2, 0.5, 1.0)

_INVALID, _NOT_ANSWERED = 422, 424

_ALLOW = "; to answer there, name its network: Worker(allow=...)"

# Rules about the kind of an address, which a broker may have, not about how its URL is written.
_KINDS = frozenset(get_args(Kind)) - {"public"}

# Renewals in the time that a subscription lasts.
_RENEWALS = 5

# Answers that could not be brought yet: bytes, twice, and for how long.
_KEPT = 32 * 1024 * 1024
_KEPT_S = 3_600.0


class Invalid(Exception):
    """Raised by what handles a request that cannot be done: another server gets it, and when all say so, its user hears
    of it."""


class Subscribes(Protocol):
    """A client, as far as a worker needs one."""

    def subscribe(
        self, topic: str | None, *, to: str, queue: int, namespaces: Namespaces, lasts: Lasts
    ) -> RemoteSubscription:
        """As `Client.subscribe`."""

    def renew(self, subscription: str | Remote, lasts: Lasts) -> RemoteSubscription:
        """As `Client.renew`."""

    def proof_for(self, address: str) -> dict[str, str]:
        """As `Client.proof_for`."""


@dataclass
class _Lease:
    """A subscription of a worker. `until_s` is its end if it is not renewed."""

    client: Subscribes
    subscribe: Callable[[], RemoteSubscription]
    subscription: RemoteSubscription | None
    until_s: float


class Leases:
    """Subscriptions that last for a time, and are renewed until `stop`."""

    def __init__(self, lasts: timedelta) -> None:
        self.lasts = lasts
        self._leases: list[_Lease] = []
        self._lock = threading.Lock()
        self._service = Service("renew", self.renew, delay_s=lasts.total_seconds() / _RENEWALS)
        self.stop = self._service.stop

    def add(self, client: Subscribes, subscribe: Callable[[], RemoteSubscription]) -> RemoteSubscription:
        """Subscribe, and renew from now on. Raises ClientError."""
        subscription = subscribe()
        with self._lock:
            self._leases.append(_Lease(client, subscribe, subscription, self._end_s()))
            if len(self._leases) == 1:
                self._service.start()
        return subscription

    def renew(self) -> float:
        """Renew all of them; returns the seconds until the next time. Raises the last of the errors."""
        failed: ClientError | None = None
        with self._lock:
            leases = list(self._leases)
        for each in leases:
            try:
                self._renew_one(each)
            except ClientError as error:
                failed = error
        if failed is not None:
            raise failed
        return self.lasts.total_seconds() / _RENEWALS

    def _renew_one(self, lease: _Lease) -> None:
        if lease.subscription is None:
            return
        try:
            lease.client.renew(lease.subscription, self.lasts)
        except FaultReceived as error:
            if error.fault != "ResourceUnknownFault":
                raise
            if time.time() < lease.until_s:
                lease.subscription = None  # a client has ended it
                return
            # It has expired while the broker or this machine was away.
            lease.subscription = lease.subscribe()
        lease.until_s = self._end_s()

    def _end_s(self) -> float:
        return time.time() + self.lasts.total_seconds()


class _Way:
    """Where answers may go, and what takes them there."""

    def __init__(self, policy: AddressPolicy) -> None:
        self.policy = policy
        self.transport = RequestsTransport(policy=policy)


class Worker(Server):
    """Serves queues. `handle` runs in threads, `capacity` at a time for each queue; the request is acknowledged when it
    returns. What it raises makes the broker send the request again, but for `Invalid`.

    `advertised` is the address that the broker reaches it at, `url` when left out. Users choose where their answers go.
    So they go to the brokers that are served, to public addresses, to this machine where all these brokers are on it,
    and to the networks in `allow` (`"10.0.0.0/8, 192.168.7.9"`), and nowhere else. `transport` carries the answers:
    one of the caller's own gets URLs that are judged by their text alone. `verify` is as for `Listener`.

    Its subscriptions last for `lease` and are renewed while it runs: a queue has no server that does not exist.

    With `later` a request is acknowledged at once, and its result is reported when it is done: for requests that take
    longer than a push. The broker gives it no more than `capacity` requests meanwhile.
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
        allow: str = "",
        lease: timedelta = timedelta(minutes=5),
        later: bool = False,
    ) -> None:
        self._later = later
        self.leases = Leases(lease)
        self._far = _Way(AddressPolicy(OutboundSettings(allow=allow)))
        self._near = _Way(AddressPolicy(OutboundSettings("loopback", allow)))
        self.capacity = capacity
        self._handle_request = handle
        self._advertised = advertised
        self._verify = verify
        self._to_broker = RequestsTransport()
        self._given = transport
        self._repeats = HandledOnce()
        self._lock = threading.Lock()
        self._kept: Recent[str, str] = Recent(_KEPT, age_s=_KEPT_S)
        self._clients: list[Subscribes] = []
        self._brokers: dict[tuple[str, int], bool] = {}  # host and port, and whether that is this machine
        super().__init__(self._handled, port, host, "worker")

    def serve(self, client: Subscribes, topic: str, namespaces: Namespaces = None) -> RemoteSubscription:
        """Have a broker send the requests of a queue here from now on; unsubscribing ends that. Answers to pull points
        of that broker say who we are, as the client does."""
        to = self._advertised or self.url

        def subscribe() -> RemoteSubscription:
            return client.subscribe(topic, to=to, queue=self.capacity, namespaces=namespaces, lasts=self.leases.lasts)

        subscription = self.leases.add(client, subscribe)
        self._clients.append(client)
        # Its pull points have the same host and port.
        refusal = AddressPolicy().check_url(subscription.address)
        self._brokers[place_of(subscription.address)] = refusal is not None and refusal.rule == "loopback"
        return subscription

    def stop(self) -> None:
        """Stop receiving. Requests at work are not acknowledged any more: others get them."""
        self.leases.stop()
        super().stop()
        for own in (self._to_broker, self._far.transport, self._near.transport):
            own.close()

    async def _handled(self, headers: Mapping[str, str], body: bytes) -> Response:
        return await in_thread("request", lambda: self._worked(headers, body))

    def _worked(self, headers: Mapping[str, str], body: bytes) -> Response:
        push = open_push(headers, self._given or self._to_broker)
        messages = accepted(headers, body, self._verify, push)
        if isinstance(messages, Response):
            return messages
        if self._later:
            # Without an address for the result the request is acknowledged when it is done.
            with suppress(ClientError):
                ends = [(each, each.later()) for each in messages]
                start_thread("request", self._work_later, ends)
                return answered(push)
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

    def _work_later(self, ends: Iterable[tuple[ReceivedMessage, Later]]) -> None:
        """Do requests that are acknowledged, and report their results."""
        for request, end in ends:
            try:
                report = end.delivered if self._did(request) else partial(end.failed, "its answer was not taken")
            except Invalid as why:
                report = partial(end.refused, str(why))
            except Exception:
                logger.exception("a request could not be done; the broker will send it again")
                report = partial(end.failed, "the server failed")
            try:
                report()
            except ClientError as error:
                logger.warning("the result of a request was not reported; the broker sends it again: %s", error)

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
        """Bring a user the answer; whether it has arrived, or never will."""
        address = asker.reply_to.address
        transport, refusal = self._way_to(address)
        if refusal is not None:
            logger.warning("the answer to %s is not sent: %s %s%s", asker.message_id, address, refusal.reason, _ALLOW)
            return True
        headers, body = reply_to(asker, request, answer)
        for client in self._clients:
            headers |= client.proof_for(address)
        why = ""
        for wait_s in (*_WAITS_S, None):
            try:
                status = transport.post(address, headers, body).status
            except BrokerUnreachable as error:
                why = str(error)
            except ClientError as error:
                logger.warning("the answer to %s is not sent: %s%s", asker.message_id, error, _ALLOW)
                return True
            else:
                if 200 <= status < 300:
                    return True
                why = f"HTTP {status}"
            if wait_s is not None:
                time.sleep(wait_s)
        logger.warning("the answer to %s could not be brought, it is tried again: %s", asker.message_id, why)
        return False

    def _way_to(self, address: str) -> tuple[Transport, Refusal | None]:
        """What carries an answer there, and why none may go there."""
        judge = self._near if self._brokers and all(self._brokers.values()) else self._far
        refusal = judge.policy.check_url(address)
        if (refusal is None or refusal.rule in _KINDS) and place_of(address) in self._brokers:
            return self._given or self._to_broker, None
        return self._given or judge.transport, refusal


def _text(answer: str | bytes | None) -> str:
    if answer is None:
        return _DONE
    return without_declaration(answer.decode() if isinstance(answer, bytes) else answer)


def reply_to(asker: Asker, request: ReceivedMessage, answer: str) -> tuple[dict[str, str], bytes]:
    """The HTTP headers and body of an answer. A pull point takes only notifications, and keeps no headers."""
    remote, action = asker.reply_to, _REPLY_ACTION
    related = f"<wsa:RelatesTo>{answers.text(asker.message_id)}</wsa:RelatesTo>"
    if endpoints.Kind.PULL_POINT.value in remote.address:
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
