"""The gateway as an ASGI application: from HTTP requests to operations and back.

Plain ASGI without a framework: there are few addresses, and the work of a framework would cost more than parsing the
request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import msgspec

from arborcast.core.errors import InfrastructureError, PeerError, UnknownResource
from arborcast.core.telemetry.metrics import CONTENT_TYPE, Registry
from arborcast.core.threads import pool
from arborcast.ingest.access.gate import Gate
from arborcast.ingest.access.grants import ClientRequest, may_manage
from arborcast.ingest.addresses import FACTORIES, Target, target_of
from arborcast.ingest.cameras import worker as cameras
from arborcast.ingest.cloudevents import web_hooks
from arborcast.ingest.cloudevents.publishing import PublishEvents, has_events
from arborcast.ingest.events import request as events
from arborcast.ingest.events.stream import EventStreams
from arborcast.ingest.http.asgi import (
    TEXT,
    Headers,
    Receive,
    Scope,
    Send,
    header,
    read_body,
    send_answer,
    send_text,
    traceparent_of,
    until_disconnected,
)
from arborcast.ingest.http.cross_origin import admit
from arborcast.ingest.http.inflight import RESERVATION, SMALL, Reservation
from arborcast.ingest.operations import (
    current_message,
    http_publish,
    notification_broker,
    onvif,
    publisher_registration,
    pull_points,
    push_results,
    resources,
    subscription_manager,
    triggers,
)
from arborcast.ingest.operations.gateway import Gateway, Operation, Reply, Stored
from arborcast.ingest.operations.legacy import operations as legacy
from arborcast.ingest.operations.legacy import plain
from arborcast.ingest.soap.wsdl import FOLDER, ServiceDescriptions
from arborcast.topic_model.grants import Caller
from arborcast.topic_model.namespaces import wsnt
from arborcast.topic_model.records.peers import PATH as PEERS
from arborcast.topic_model.records.results import PATH as RESULTS
from arborcast.topic_model.subscriptions import Subscription
from arborcast.wire import answers, faults
from arborcast.wire.endpoints import Kind
from arborcast.wire.envelope import Request, parse
from arborcast.wire.errors import AccessRefused, Compressed, PageRefused, TooLarge, UnknownOperation, UnreadableRequest
from arborcast.wire.faults import Answer
from arborcast.wire.xml_reading import memory_to_read


class RequestMetrics:
    """Declared in a registry, counted by the application."""

    def __init__(self, registry: Registry) -> None:
        self.answered = registry.counter("arborcast_gateway_requests_total", "Answers.", ("operation", "status"))
        self.refused = registry.counter(
            "arborcast_gateway_refused_total", "Faults, by class; Defect is internal.", ("reason",)
        )
        self.refused.begin(("Defect",), (InfrastructureError.__name__,))
        self.notify_seconds = registry.histogram("arborcast_gateway_notify_seconds", "Until Kafka's acknowledgement.")


logger = logging.getLogger(__name__)

_OPERATIONS: dict[tuple[str, Kind], Operation] = {
    (operation.name, kind): operation
    for operation in (
        *notification_broker.OPERATIONS,
        *current_message.OPERATIONS,
        *subscription_manager.OPERATIONS,
        *triggers.OPERATIONS,
        *pull_points.OPERATIONS,
        *onvif.OPERATIONS,
        *legacy.OPERATIONS,
        *publisher_registration.OPERATIONS,
        *resources.OPERATIONS,
    )
    for kind in operation.kinds
}

_NAMES = frozenset(name for name, _ in _OPERATIONS)

_NOTIFY = wsnt("Notify")

_ACCEPTED: dict[str, Any] = {"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]}

_NO_CONTENT: dict[str, Any] = {"type": "http.response.start", "status": 204, "headers": []}


class _Posted(NamedTuple):
    """A kind of request whose path has its credential."""

    name: str
    what: str
    limit: int
    answer: dict[str, Any]


_Take = Callable[[str, bytes], Awaitable[None]]

_RESULT = _Posted("PushResult", "the result of a push", push_results.LIMIT, _NO_CONTENT)
_CAMERA = _Posted("CameraNotify", "a Notify of a camera", cameras.LIMIT, _ACCEPTED)

# The answer for more messages has no ids: proxies accept some kB of headers, and a Notify may have thousands.
_MOST_IDS = 100

_NO_BODY = {"type": "http.response.body", "body": b""}

# Threads that parse large bodies: libxml2 releases the GIL, so the event loop continues.
_PARSERS = 2

# To find the messages in the bytes takes the GIL. During that, this is the maximum delay of each callback of the event
# loop, instead of Python's 5 ms. Permanently it would cost a tenth more CPU per request.
_GIL_TURN_S = 0.000_5


class GatewayApp:
    """Answers all requests; never raises, never sends a stack trace.

    `ready` returns the reason why the gateway is not ready, empty if it is. `liveness` returns the reason why this
    process must be restarted though it answers, empty without one.
    """

    def __init__(
        self, gateway: Gateway, metrics: Registry, ready: Callable[[], str], liveness: Callable[[], str] = lambda: ""
    ) -> None:
        self._gateway = gateway
        self._metrics = metrics
        self._ready = ready
        self._liveness = liveness
        self._pages = gateway.settings.pages
        self._limit = gateway.settings.max_body_bytes
        self.inflight = gateway.inflight
        """What the HTTP protocol counts bodies in."""
        self.streams = EventStreams(gateway)
        self._parsers = pool("parse", _PARSERS)
        self._parsing = 0
        self._usual_gil_turn_s = sys.getswitchinterval()
        self._counts = RequestMetrics(metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reservation: Reservation = scope.get(RESERVATION) or Reservation(self.inflight)
        path: str = scope["path"]
        try:
            streams = path == events.ROOT or path.startswith(f"{events.ROOT}/")
            # A stream makes a subscription, and a page can navigate a window a hundred times a second.
            admitted = await admit(self._pages, scope, send, links=not streams)
            if admitted is None:
                return
            send = admitted
            target = target_of(path)
            if path == http_publish.ROOT or path.startswith(f"{http_publish.ROOT}/"):
                await self._publish(scope, path, receive, send, reservation)
            elif streams:
                await self._events(scope, receive, send, reservation)
            elif path.startswith(RESULTS):
                await self._posted(scope, path, receive, send, self._gateway.results.take, _RESULT)
            elif self._gateway.cameras is not None and path.startswith(cameras.PATH):
                await self._posted(scope, path, receive, send, self._gateway.cameras.take, _CAMERA)
            elif self._gateway.federation is not None and path.startswith(PEERS):
                await self._gateway.federation.answer(scope, receive, send)
            elif target is None:
                await self._page(scope, path, send)
            elif scope["method"] in ("GET", "HEAD") and scope.get("query_string", b"").lower() == b"wsdl":
                await self._wsdl(send, lambda descriptions: descriptions.wsdl(target, self._gateway.own))
            elif scope["method"] != "POST":
                await _send_not_post(send, scope, "SOAP messages", f"; {path}?wsdl describes it")
            else:
                await self._answer(scope, target, receive, send, reservation)
        except PageRefused as error:
            self._counts.refused.add(type(error).__name__)
            # The body is not read, so no other request can follow on this connection.
            await send_text(send, error.status, str(error), [(b"connection", b"close")])
        except asyncio.CancelledError:
            # The server stops, and waits no longer. An answer that has begun cannot be completed.
            with contextlib.suppress(RuntimeError):
                await send_text(send, 503, "the gateway stops: send the request again", [(b"retry-after", b"1")])
        finally:
            reservation.release()

    async def _publish(self, scope: Scope, path: str, receive: Receive, send: Send, reservation: Reservation) -> None:
        if scope["method"] == "OPTIONS":
            gate = self._gateway.gate
            agreement = web_hooks.agreement(scope["headers"], gate.rates.requests_per_minute if gate is not None else 0)
            if agreement is not None:
                await send_answer(send, 200, b"", TEXT, agreement)
                return
        if scope["method"] != "POST":
            await _send_not_post(send, scope, "a notification's payload")
            return
        kind = PublishEvents if has_events(scope["headers"]) else http_publish.Publish
        publishing = kind(path, scope["headers"], self._limit)
        await self._answer(scope, Target(Kind.BROKER), receive, send, reservation, publishing)

    async def _events(self, scope: Scope, receive: Receive, send: Send, reservation: Reservation) -> None:
        if scope["method"] != "GET":
            await send_text(send, 405, "this address takes GET", [(b"allow", b"GET")])
            return
        try:
            await self.streams.answer(scope, receive, send, reservation)
        except (PeerError, InfrastructureError) as error:
            await self._fail(send, "Events", http_publish.refused(error), error)
        else:
            self._counts.answered.add("Events", "200")

    async def _posted(
        self, scope: Scope, path: str, receive: Receive, send: Send, take: _Take, posted: _Posted
    ) -> None:
        """A request whose path has its credential: the result of a push, or a Notify of a camera."""
        gate = self._gateway.gate
        if scope["method"] != "POST":
            await _send_not_post(send, scope, posted.what)
            return
        try:
            client = gate.unauthenticated(scope) if gate is not None else None
            body = await read_body(scope["headers"], receive, posted.limit)
            if body is None:
                return
            if gate is not None and client is not None:
                gate.rates.received(client.client, len(body))
            await take(path, body)
        except (PeerError, InfrastructureError) as error:
            await self._fail(send, posted.name, http_publish.refused(error), error)
        except Exception:
            await self._fail(send, posted.name, http_publish.DEFECT)
        else:
            self._counts.answered.add(posted.name, str(posted.answer["status"]))
            await send(posted.answer)
            await send(_NO_BODY)

    async def _answer(
        self,
        scope: Scope,
        target: Target,
        receive: Receive,
        send: Send,
        reservation: Reservation,
        publishing: http_publish.Publish | None = None,
    ) -> None:
        """A request with SOAP or, with `publishing`, without."""
        headers: Headers = scope["headers"]
        gate = self._gateway.gate
        request: Request | None = None
        operation = "unknown"
        try:
            client = None if gate is None else await self._enter(gate, scope, receive, reservation)
            body = await read_body(headers, receive, self._limit)
            if body is None:
                return
            if gate is not None and client is not None:
                gate.rates.received(client.client, len(body))
            request = await self._parse(body, header(headers, b"content-type"), reservation, publishing)
            request.traceparent = traceparent_of(headers)
            request.disconnected = lambda: until_disconnected(receive)
            if gate is not None and client is not None:
                if publishing is not None or request.name not in onvif.PRE_AUTH:
                    request.caller = await gate.identify(client, request.root)
                request.client = client.client
            known = _find(request, target) if publishing is None else publishing.operation
            operation = known.name.rpartition("}")[2]
            if len(body) > SMALL and not known.carries_messages:
                raise TooLarge(f"a {operation} may have {SMALL} bytes, this one has {len(body)}")
            self._gateway.check_started()
            began = time.perf_counter()
            reply = await self._perform(known, request, target)
            if known.name in (_NOTIFY, "Publish"):
                self._counts.notify_seconds.observe(time.perf_counter() - began)
            if isinstance(reply, Reply):
                self._reserve(reservation, reply)
        except (PeerError, InfrastructureError) as error:
            content_type = header(headers, b"content-type")
            answer = self._refusal(error, request, content_type) if publishing is None else http_publish.refused(error)
            await self._fail(send, operation, answer, error)
        except Exception:
            answer = faults.of_defect(*_manner(request)) if publishing is None else http_publish.DEFECT
            await self._fail(send, operation, answer)
        else:
            if isinstance(reply, Reply):
                self._counts.answered.add(operation, "200")
                await _send_reply(send, request, reply)
            else:
                self._counts.answered.add(operation, "202")
                await send(_stored(reply))
                await send(_NO_BODY)

    async def _fail(self, send: Send, operation: str, answer: Answer, error: Exception | None = None) -> None:
        """Count an error, and send it. Without `error` it is a defect, which is logged."""
        if error is None:
            logger.exception("%s failed", operation)
        self._counts.answered.add(operation, str(answer.status))
        self._counts.refused.add("Defect" if error is None else type(error).__name__)
        extra = list(answer.headers)
        if answer.retry_after_s is not None:
            extra.append((b"retry-after", str(answer.retry_after_s).encode()))
        if isinstance(error, (TooLarge, Compressed)):
            # The rest of the body is not read, so the connection cannot be reused.
            extra.append((b"connection", b"close"))
        await send_answer(send, answer.status, answer.body, answer.content_type, extra)

    async def _parse(
        self, body: bytes, content_type: bytes, reservation: Reservation, publishing: http_publish.Publish | None
    ) -> Request:
        size = memory_to_read if publishing is None else publishing.memory
        memory = size(body, self._gateway.settings.max_elements)
        long = len(body) > SMALL if publishing is None else publishing.takes_long(body, content_type)
        if not long:
            if not self.inflight.take(reservation, memory):
                raise self.inflight.no_memory()
            return parse(body, content_type) if publishing is None else publishing.read(body, content_type)
        if not self.inflight.take(reservation, memory):
            await self.inflight.wait(reservation, memory)
        self._parsing += 1
        sys.setswitchinterval(_GIL_TURN_S)
        try:
            read = _parse_large if publishing is None else publishing.read
            return await asyncio.get_running_loop().run_in_executor(self._parsers, read, body, content_type)
        finally:
            self._parsing -= 1
            if not self._parsing:
                sys.setswitchinterval(self._usual_gil_turn_s)

    def _reserve(self, reservation: Reservation, reply: Reply) -> None:
        """Memory for a large answer until its client has read it. Raises InfrastructureError."""
        size = len(reply.body)
        if size > SMALL and not self.inflight.take_answer(reservation, size):
            if reply.finish is not None:
                reply.finish(False)
            raise self.inflight.no_memory()

    async def _enter(self, gate: Gate, scope: Scope, receive: Receive, reservation: Reservation) -> ClientRequest:
        try:
            return await gate.enter(scope)
        except AccessRefused:
            reservation.release()
            # The body is read and thrown away, so that the next request can follow on this connection. Where it is too
            # large, TooLarge ends the connection.
            await read_body(scope["headers"], receive, self._limit, keep=False)
            raise

    async def _perform(self, known: Operation, request: Request, target: Target) -> Reply | Stored:
        # Another gateway may just have created, changed or ended the resource, and its record may not be read here yet.
        if target.id:
            await self._gateway.changes.catch_up()
        tracing = self._gateway.tracing
        if tracing is None:
            return await known.handler(self._gateway, request, target)
        with tracing.span(known.name.rpartition("}")[2], "server", request.traceparent) as span:
            request.traceparent = span.traceparent
            return await known.handler(self._gateway, request, target)

    def _refusal(self, error: PeerError | InfrastructureError, request: Request | None, content_type: bytes) -> Answer:
        soap, addressing = _manner(request)
        if request is None and content_type.startswith(b"application/soap+xml"):
            soap = "1.2"
        if isinstance(error, InfrastructureError):
            # Counted (arborcast_gateway_refused_total); its cause logs itself, once and not per request.
            logger.debug("refused: %s", error)
            return faults.of_infrastructure(error, soap, addressing)
        if request is None and isinstance(error, UnreadableRequest):
            soap = error.soap
        return faults.of_peer(error, soap, addressing, self._gateway.now())

    async def _page(self, scope: Scope, path: str, send: Send) -> None:
        match path.rstrip("/"):
            case "/health/live":
                problem = self._liveness()
                await send_text(send, 500 if problem else 200, problem or "alive")
            case "/health/ready":
                obstacle = self._ready()
                if self._gateway.gate is not None:
                    obstacle = obstacle.partition(":")[0]  # the cause, with hosts and users, is in the log
                await send_text(send, 503 if obstacle else 200, obstacle or "ready")
            case "/metrics" | "/status.json" as page:
                caller: Caller | None = None
                if self._gateway.gate is not None:
                    try:
                        caller = await self._gateway.gate.check_page(scope)
                    except (AccessRefused, InfrastructureError) as error:
                        await self._fail(send, "Page", http_publish.refused(error), error)
                        return
                if page == "/metrics":
                    await send_answer(send, 200, self._metrics.text().encode(), CONTENT_TYPE)
                else:
                    await self._status(scope, send, caller)
            case page if page.startswith(FOLDER):
                await self._wsdl(send, lambda descriptions: descriptions.document(page.removeprefix(FOLDER)))
            case _:
                await send_text(send, 404, f"no such address; the notification broker is at {self._gateway.own.broker}")

    async def _status(self, scope: Scope, send: Send, caller: Caller | None) -> None:
        """The messages of one pull point, for a caller with the right to fetch them."""
        (name,) = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("pull_point", [""])[:1]
        resource = self._gateway.pull_points.get(name) or self._gateway.table.get(name)
        topics = resource.topics if isinstance(resource, Subscription) else ()
        known = resource is not None and may_manage(caller, resource.owner, topics)
        status = self._gateway.pulls.status(name) if known else None
        if status is None:
            await send_text(send, 404, "there is no such pull point; its id is the parameter pull_point")
        else:
            await send_answer(send, 200, msgspec.json.encode(status), b"application/json")

    async def _wsdl(self, send: Send, find: Callable[[ServiceDescriptions], bytes | None]) -> None:
        descriptions = self._gateway.descriptions
        if descriptions is None:
            why = "no WSDL: the published schemas are not on this machine; its operator may run: arborcast fetch"
            await send_text(send, 503, why)
            return
        document = find(descriptions)
        if document is None:
            await send_text(send, 404, "there is no such document")
        else:
            await send_answer(send, 200, document, b"text/xml; charset=utf-8")


def _parse_large(body: bytes, content_type: bytes) -> Request:
    """Parse it and find its messages in the bytes, which takes even longer: the part that needs the body only."""
    request = parse(body, content_type)
    if request.name == _NOTIFY:
        # Its error is reported when it is requested again, in the client's SOAP.
        with contextlib.suppress(PeerError):
            request.source(notification_broker.PAYLOAD_DEPTH)
    return request


def _find(request: Request, target: Target) -> Operation:
    """The operation of a request. Raises UnknownOperation, or UnknownResource for a missing resource."""
    kind = Kind.BROKER if target.kind in FACTORIES else target.kind
    operation = plain.find(request, target) or _OPERATIONS.get((request.name, kind))
    if operation is not None:
        return operation
    if target.kind is Kind.REGISTRATION:
        raise UnknownResource(f"there is no registration {target.id[:200]!r}")
    if request.name not in _NAMES:
        raise UnknownOperation(f"the operation {request.name:.200} is not known here")
    raise UnknownOperation(f"the operation {request.name:.200} is not offered at this address")


def _manner(request: Request | None) -> tuple[Any, Any]:
    return ("1.1", None) if request is None else (request.soap, request.addressing)


def _stored(stored: Stored) -> dict[str, Any]:
    if not 0 < len(stored.ids) <= _MOST_IDS:
        return _ACCEPTED
    ids = (b"arborcast-notification-id", ",".join(stored.ids).encode())
    return {**_ACCEPTED, "headers": [(b"content-length", b"0"), ids]}


async def _send_not_post(send: Send, scope: Scope, what: str, more: str = "") -> None:
    text = f"this address takes {what} by POST, not {scope['method']}{more}"
    await send_text(send, 405, text, [(b"allow", b"POST")])


async def _send_reply(send: Send, request: Request, reply: Reply) -> None:
    action = answers.reply_action(request.addressing, reply.action)
    body = answers.envelope(request.soap, reply.body, action, request.addressing)
    left = False
    try:
        await send_answer(send, 200, body, answers.media_type(request.soap))
        left = True
    finally:
        if reply.finish is not None:
            reply.finish(left)
