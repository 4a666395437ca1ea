"""A worker of a work queue: it receives requests, executes them, and sends answers.

with Worker(lambda request: b"<done/>", capacity=2) as worker:
    worker.serve(client, "jobs")
    ...

A repetition of an executed request is not executed again: it is acknowledged, or answered again if the answer had not
arrived.
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
from typing import Protocol, get_args

from arborcast.client.calls import Call, Lasts, Namespaces, without_declaration
from arborcast.client.http_server import Response, Server, in_thread
from arborcast.client.later import DeferredResult, OpenPush
from arborcast.client.listener import HandledIds, accepted, answered
from arborcast.client.received import ReceivedMessage, Requester, Verify, nothing
from arborcast.client.transport import HttpAnswer, RequestsTransport, Transport
from arborcast.client.values import BrokerUnreachable, ClientError, FaultReceived, Remote, RemoteSubscription
from arborcast.core.recent import Recent
from arborcast.core.security.ip_addresses import Kind
from arborcast.core.security.outbound import AddressPolicy, OutboundSettings, Refusal, place_of
from arborcast.core.threads import Service, start_thread
from arborcast.core.wall_clock import is_due, time_ms
from arborcast.topic_model.expressions import CONCRETE, write_topic
from arborcast.topic_model.namespaces import ACTION_BW, ARBORCAST_QUEUE, WSA, WSNT
from arborcast.wire import answers, endpoints

logger = logging.getLogger(__name__)

Handle = Callable[[ReceivedMessage], str | bytes | None]
"""Executes a request; returns the answer, an XML element, or None for an empty answer."""

_DONE = f'<q:Done xmlns:q="{ARBORCAST_QUEUE}"/>'

_REPLY_ACTION = f"{ARBORCAST_QUEUE}/Reply"

# Pauses between attempts to send an answer. After the last one the broker repeats the request, and the stored answer is
# sent again.
_PAUSES_S = (0.2, 0.5, 1.0)

_INVALID, _NOT_ANSWERED = 422, 424

_ALLOW = "; to allow it, add its network: Worker(allow=...)"

# Outbound rules about the kind of an address, not about the spelling of its URL. A broker's address may break them.
_KINDS = frozenset(get_args(Kind)) - {"public"}

# Renewals within the duration of a subscription.
_RENEWALS = 5

# The cache of undelivered answers: bytes in each of two generations, and their age.
_UNDELIVERED_BYTES = 32 * 1024 * 1024
_UNDELIVERED_S = 3_600.0


class Invalid(Exception):
    """Raised by a handler for a request that cannot be executed: another worker gets it; if all raise this, its client
    gets a fault."""


class Subscribes(Protocol):
    """The used part of a client."""

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
    """A subscription of a worker, renewed at `renewed_ms` by the wall clock, which includes suspended time."""

    client: Subscribes
    subscribe: Callable[[], RemoteSubscription]
    subscription: RemoteSubscription | None
    renewed_ms: int


class Leases:
    """Subscriptions of limited duration, which are renewed until `stop`."""

    def __init__(self, lasts: timedelta) -> None:
        self.lasts = lasts
        self._leases: list[_Lease] = []
        self._lock = threading.Lock()
        self._service = Service("renew", self.renew, delay_s=lasts.total_seconds() / _RENEWALS)
        self.stop = self._service.stop

    def add(self, client: Subscribes, subscribe: Callable[[], RemoteSubscription]) -> RemoteSubscription:
        """Subscribe, and renew the subscription regularly. Raises ClientError."""
        subscription = subscribe()
        with self._lock:
            self._leases.append(_Lease(client, subscribe, subscription, time_ms()))
            if len(self._leases) == 1:
                self._service.start()
        return subscription

    def renew(self) -> float:
        """Renew all; returns the seconds until the next renewal. Raises the last error, after all."""
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
            until_ms = lease.renewed_ms + int(self.lasts.total_seconds() * 1000)
            if not is_due(until_ms, lease.renewed_ms, time_ms()):
                # Ended by a client, or by a broker whose clock was put forward.
                logger.warning("%s has ended: its queue is no longer served", lease.subscription.address)
                lease.subscription = None
                return
            # Expired during an outage of the broker or a suspension of this machine; or this clock was put back since.
            lease.subscription = lease.subscribe()
        lease.renewed_ms = time_ms()


class _Route:
    """Allowed addresses of answers, and the transport to them."""

    def __init__(self, policy: AddressPolicy) -> None:
        self.policy = policy
        self.transport = RequestsTransport(policy=policy)


class _ResultTransport:
    """The transport of later results: their addresses are in the pushes, which strangers can send, too, so the same
    addresses are allowed as for answers."""

    def __init__(self, route_to: Callable[[str], tuple[Transport, Refusal | None]]) -> None:
        self._route_to = route_to

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        transport, refusal = self._route_to(url)
        if refusal is not None:
            raise ClientError(f"{url:.200} is not called: it {refusal.reason}{_ALLOW}")
        return transport.post(url, headers, body)


class Worker(Server):
    """Serves queues. `handle` runs in threads, at most `capacity` at a time for each queue; a request is acknowledged
    when it returns. After an exception other than `Invalid` the broker repeats the request.

    `advertised` is the address at which the broker reaches this worker, by default `url`. Clients choose the addresses
    of their answers, and requests name those of later results, so both are sent only to the served brokers, to public
    addresses, to this machine if all served brokers are on it, and to the networks in `allow` (`"10.0.0.0/8,
    192.168.7.9"`). `transport` sends them; for a given transport URLs are checked as text only. `verify` is as for
    `Listener`.

    Its subscriptions have the duration `lease` and are renewed while it runs, so a crashed worker leaves its queues.

    With `later` a request is acknowledged at once and its result reported at the end, for requests that take longer
    than a push; the broker still sends at most `capacity` requests at a time.
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
        self._public = _Route(AddressPolicy(OutboundSettings(allow=allow)))
        self._local = _Route(AddressPolicy(OutboundSettings("loopback", allow)))
        self.capacity = capacity
        self._handle_request = handle
        self._advertised = advertised
        self._verify = verify
        self._to_broker = RequestsTransport()
        self._transport = transport
        self._repeats = HandledIds()
        self._lock = threading.Lock()
        self._undelivered: Recent[str, str] = Recent(_UNDELIVERED_BYTES, age_s=_UNDELIVERED_S)
        self._clients: list[Subscribes] = []
        self._brokers: dict[tuple[str, int], bool] = {}  # host and port, and whether they are on this machine
        super().__init__(self._handled, port, host, "worker")

    def serve(self, client: Subscribes, topic: str, namespaces: Namespaces = None) -> RemoteSubscription:
        """Serve a queue of the client's broker, until the returned subscription is ended. Answers to pull points of
        that broker have the client's credentials."""
        to = self._advertised or self.url

        def subscribe() -> RemoteSubscription:
            return client.subscribe(topic, to=to, queue=self.capacity, namespaces=namespaces, lasts=self.leases.lasts)

        subscription = self.leases.add(client, subscribe)
        self._clients.append(client)
        # The broker's pull points have the same host and port.
        refusal = AddressPolicy().check_url(subscription.address)
        self._brokers[place_of(subscription.address)] = refusal is not None and refusal.rule == "loopback"
        return subscription

    def stop(self) -> None:
        """Stop receiving. Running requests are not acknowledged: other workers get them."""
        self.leases.stop()
        super().stop()
        for own in (self._to_broker, self._public.transport, self._local.transport):
            own.close()

    async def _handled(self, headers: Mapping[str, str], body: bytes) -> Response:
        return await in_thread("request", lambda: self._serve_push(headers, body))

    def _serve_push(self, headers: Mapping[str, str], body: bytes) -> Response:
        push = OpenPush(headers, _ResultTransport(self._route_to))
        messages = accepted(headers, body, self._verify, push)
        if isinstance(messages, Response):
            return messages
        if self._later:
            # Without an address for the result the request is acknowledged at its end.
            with suppress(ClientError):
                deferred = [(each, each.later()) for each in messages]
                start_thread("request", self._execute_later, deferred)
                return answered(push)
        try:
            all_answered = True
            for each in messages:
                all_answered = self._execute(each) and all_answered
            return Response(202 if all_answered else _NOT_ANSWERED)
        except Invalid as why:
            return Response(_INVALID, str(why).encode(), "text/plain; charset=utf-8")
        except Exception:
            logger.exception("a request failed; the broker will repeat it")
            return Response(500)

    def _execute_later(self, deferred: Iterable[tuple[ReceivedMessage, DeferredResult]]) -> None:
        """Execute acknowledged requests, and report their results."""
        for request, end in deferred:
            try:
                report = end.delivered if self._execute(request) else partial(end.failed, "its answer was not accepted")
            except Invalid as why:
                report = partial(end.refused, str(why))
            except Exception:
                logger.exception("a request failed; the broker will repeat it")
                report = partial(end.failed, "the worker failed")
            try:
                report()
            except ClientError as error:
                logger.warning("the result of a request was not reported; the broker repeats the request: %s", error)

    def _execute(self, request: ReceivedMessage) -> bool:
        """Execute a request, unless it was executed before, and send its answers. Returns whether all were sent."""
        ids = [each.notification_id for each in request.requesters] or [request.notification_id]
        pending = self._repeats.begin(ids, request.sequence > 0)
        if not pending:
            return True
        unanswered = set(pending)
        try:
            answer = self._stored_answer(pending) if request.sequence else None
            if answer is None:
                answer = _text(self._handle_request(request))
            awaiting = [each for each in request.requesters if each.notification_id in pending]
            unanswered = {each.notification_id for each in awaiting if not self._answer(each, request, answer)}
            if unanswered:
                self._store_answer(unanswered, answer)
        finally:
            self._repeats.end(pending - unanswered, handled=True)
            self._repeats.end(unanswered, handled=False)
        return not unanswered

    def _stored_answer(self, ids: set[str]) -> str | None:
        with self._lock:
            return next((found for each in sorted(ids) if (found := self._undelivered.get(each)) is not None), None)

    def _store_answer(self, ids: set[str], answer: str) -> None:
        with self._lock:
            for each in ids:
                self._undelivered.put(each, answer, len(answer))

    def _answer(self, requester: Requester, request: ReceivedMessage, answer: str) -> bool:
        """Send an answer. Returns False if it should be sent again later."""
        address = requester.reply_to.address
        transport, refusal = self._route_to(address)
        if refusal is not None:
            logger.warning(
                "the answer to %s is not sent: %s %s%s", requester.message_id, address, refusal.reason, _ALLOW
            )
            return True
        body, headers = reply_to(requester, request, answer).encode("1.1", f"urn:uuid:{uuid.uuid4()}")
        for client in self._clients:
            headers |= client.proof_for(address)
        why = ""
        for pause_s in (*_PAUSES_S, None):
            try:
                status = transport.post(address, headers, body).status
            except BrokerUnreachable as error:
                why = str(error)
            except ClientError as error:
                logger.warning("the answer to %s is not sent: %s%s", requester.message_id, error, _ALLOW)
                return True
            else:
                if 200 <= status < 300:
                    return True
                why = f"HTTP {status}"
            if pause_s is not None:
                time.sleep(pause_s)
        logger.warning("the answer to %s could not be sent, it will be sent again: %s", requester.message_id, why)
        return False

    def _route_to(self, address: str) -> tuple[Transport, Refusal | None]:
        """The transport for an answer or a result to this address, and the refusal of a forbidden one."""
        route = self._local if self._brokers and all(self._brokers.values()) else self._public
        refusal = route.policy.check_url(address)
        if (refusal is None or refusal.rule in _KINDS) and place_of(address) in self._brokers:
            return self._transport or self._to_broker, None
        return self._transport or route.transport, refusal


def _text(answer: str | bytes | None) -> str:
    if answer is None:
        return _DONE
    return without_declaration(answer.decode() if isinstance(answer, bytes) else answer)


def reply_to(requester: Requester, request: ReceivedMessage, answer: str) -> Call[None]:
    """An answer as a request. A pull point accepts only notifications, and does not store headers."""
    remote, action = requester.reply_to, _REPLY_ACTION
    if endpoints.Kind.PULL_POINT.value in remote.address:
        action = f"{ACTION_BW}/NotificationConsumer/Notify"
        answer = (
            f'<wsnt:Notify xmlns:wsnt="{WSNT}" xmlns:wsa="{WSA}"><wsnt:NotificationMessage>{_topic(request)}'
            f"<wsnt:ProducerReference><wsa:Address>{WSA}/anonymous</wsa:Address><wsa:ReferenceParameters><wsa:RelatesTo>"
            f"{answers.text(requester.message_id)}</wsa:RelatesTo></wsa:ReferenceParameters></wsnt:ProducerReference>"
            f"<wsnt:Message>{answer}</wsnt:Message></wsnt:NotificationMessage></wsnt:Notify>"
        )
    return Call(remote, action, answer, nothing, relates_to=requester.message_id)


def _topic(request: ReceivedMessage) -> str:
    if request.topic is None:
        return ""
    text, namespaces = write_topic(request.topic)
    return f'<wsnt:Topic{answers.declarations(namespaces)} Dialect="{CONCRETE}">{answers.text(text)}</wsnt:Topic>'
