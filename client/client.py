"""The synchronous client, and the base of all clients: operations, repetitions, and threads of requests-futures."""

from __future__ import annotations

import base64
import inspect
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache, wraps
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload
from urllib.parse import urlsplit
from uuid import uuid4

from arborcast.client.calls import Call, Calls, Namespaces, ResultT, notification_message
from arborcast.client.publications import said_of
from arborcast.client.queues.replies import PulledReplies, Replies
from arborcast.client.received import read_reply, retry_after_s
from arborcast.client.transport import CONNECTIONS, TIMEOUT_S, HttpAnswer, RequestsTransport, Transport
from arborcast.client.values import (
    BrokerUnreachable,
    ClientClosed,
    Credentials,
    FaultReceived,
    Remote,
    Retries,
)
from arborcast.topic_model.subscriptions import SoapVersion

if TYPE_CHECKING:
    from arborcast.client.futures import AsynchronousClient
    from arborcast.client.listener import Listener


class BrokerSession:
    """One request and its repetitions, as the session that requests-futures runs; several threads may use it."""

    def __init__(self, transport: Transport, retries: Retries, proof: tuple[str, str] = ("", "")) -> None:
        """`proof` is an address, and the Authorization header of all requests to its host and port, and no other."""
        self._transport = transport
        self._proof = (_origin(proof[0]), proof[1])
        self._retries = retries
        self._closing = threading.Event()

    def request(
        self, method: str, address: str, *, data: bytes, headers: Mapping[str, str], repeatable: bool
    ) -> HttpAnswer:
        """POST `data` with `headers`, the very same again while that may help.

        With `repeatable` False it is not sent again once it may have arrived. The answer is whatever came last, a 503
        too. Raises ClientError when none came.
        """
        headers = {**headers, **self.proof_for(address)}
        attempt = 1
        while True:
            asked: float | None = None
            problem: BrokerUnreachable | None = None
            try:
                answer = self._transport.post(address, headers, data)
            except BrokerUnreachable as error:
                if not self._retries.unanswered or (not repeatable and error.sent):
                    raise
                problem = error
            else:
                if answer.status != 503:
                    return answer
                asked = retry_after_s(answer.header("Retry-After"))
            pause = self._retries.pause_after(attempt, asked)
            if pause is None:
                if problem is not None:
                    raise problem
                return answer
            if self._closing.wait(pause):
                raise ClientClosed(f"closed before {address} took the request", sent=True) from problem
            attempt += 1

    def proof_for(self, address: str) -> dict[str, str]:
        """The header that says who we are, to our broker and nobody else."""
        origin, authorization = self._proof
        return {"Authorization": authorization} if authorization and _origin(address) == origin else {}

    def perform(self, call: Call[ResultT], soap: SoapVersion) -> ResultT:
        """The call's result. Raises ClientError."""
        return result_of(call, self.request("POST", call.to.address, **arguments_of(call, soap)))

    def stop_repeating(self) -> None:
        """Requests that fail from now on are not repeated."""
        self._closing.set()


def arguments_of(call: Call[Any], soap: SoapVersion) -> dict[str, Any]:
    """What `BrokerSession.request` needs for a call, with a message id of its own."""
    body, headers = call.encode(soap, call.message_id or f"urn:uuid:{uuid4()}")
    return {"data": body, "headers": headers, "repeatable": call.repeatable}


def answer_of(sent: Future[HttpAnswer]) -> HttpAnswer:
    """Raises ClientError, of which ClientClosed where the client was closed before the request was sent."""
    try:
        return sent.result()
    except CancelledError:
        raise ClientClosed("the client was closed before the broker took this", sent=False) from None


def result_of(call: Call[ResultT], answer: HttpAnswer) -> ResultT:
    """What the answer means to the call. Raises ClientError."""
    try:
        reply = read_reply(
            call.to.address,
            answer.status,
            answer.header("Retry-After"),
            answer.header("Content-Type"),
            answer.body,
        )
    except FaultReceived as error:
        if error.fault and error.fault == call.absent:
            return call.read(None)
        raise
    return call.read(reply)


def _origin(address: str) -> tuple[str, str]:
    parts = urlsplit(address)
    return parts.scheme, parts.netloc


def _authorization(credentials: Credentials | None) -> str:
    if credentials is None:
        return ""
    if credentials.bearer:
        return f"Bearer {credentials.bearer}"
    pair = f"{credentials.user}:{credentials.password}".encode()
    return f"Basic {base64.b64encode(pair).decode()}"


P = ParamSpec("P")


class BrokerCalls(Protocol):
    """Requests to one broker, as methods that return a Call."""

    @property
    def broker(self) -> Remote:
        """Where they go."""


CallsT = TypeVar("CallsT", bound=BrokerCalls)


class BrokerClient(ABC, Generic[CallsT]):
    """What all clients are: the requests to one broker, a session, and something to close."""

    RETURNS: ClassVar[str]
    """The annotation of methods that are operations, by the one of a result."""

    def __init__(
        self,
        calls: CallsT,
        soap: SoapVersion,
        timeout_s: tuple[float, float],
        retries: Retries | None,
        connections: int,
        credentials: Credentials | None,
        transport: Transport | None,
    ) -> None:
        self._calls = calls
        self._soap = soap
        proof = (calls.broker.address, _authorization(credentials))
        own: RequestsTransport | None = None
        if transport is None:
            transport = own = RequestsTransport(timeout_s, connections)
        self._own = own  # another that we were given may be others', too: we do not close it
        self._session = BrokerSession(transport, retries or Retries(), proof)
        self._connections = connections
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._workers = ThreadPoolExecutor(self._connections, thread_name_prefix="wsn-client")
        # Loaded late: programs that replace this are quicker to begin.
        from requests_futures.sessions import FuturesSession

        self._futures = FuturesSession(executor=self._workers, session=self._session)

    def _send(self, call: Call[Any]) -> Future[HttpAnswer]:
        if self._process != os.getpid():
            # The threads are those of the process that was forked.
            self._start()
        try:
            sent: Future[HttpAnswer] = self._futures.request("POST", call.to.address, **arguments_of(call, self._soap))
        except RuntimeError:
            # The client was closed in another thread.
            sent = Future()
            sent.cancel()
        return sent

    @abstractmethod
    def _perform(self, call: Call[Any]) -> Any:
        """The value that a method returns for this call."""

    @property
    def broker(self) -> str:
        """The address that requests to the broker go to."""
        return self._calls.broker.address

    def proof_for(self, address: str) -> dict[str, str]:
        """The header that says who we are, to our broker and nobody else."""
        return self._session.proof_for(address)

    @abstractmethod
    def close(self) -> object:
        """Free the connections."""

    def _free(self) -> None:
        """Repeat nothing more, and close the connections. Messages that lack parts are given up."""
        if isinstance(self._calls, Calls):
            self._calls.assembler.close()
        self._session.stop_repeating()
        self._workers.shutdown(wait=False)
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SynchronousClient(BrokerClient[CallsT]):
    """Each call returns when it is done."""

    RETURNS = "{}"

    def close(self) -> None:
        """Close the connections; calls of other threads that fail from now on are not repeated."""
        self._free()

    def _perform(self, call: Call[ResultT]) -> ResultT:
        return self._exchange(call)[0]

    def _exchange(self, call: Call[ResultT]) -> tuple[ResultT, HttpAnswer]:
        """What every request goes through: the call's result, and the answer that it was read from."""
        answer = answer_of(self._send(call))
        return result_of(call, answer), answer


class Operation(Generic[CallsT, P, ResultT]):
    """The method of a client that makes a request: it returns the result, in an asynchronous client its future."""

    def __init__(self, make: Callable[Concatenate[CallsT, P], Call[ResultT]]) -> None:
        self._make = make

    @overload
    def __get__(self, client: None, owner: type[BrokerClient[Any]]) -> Callable[..., Any]: ...

    @overload
    def __get__(self, client: SynchronousClient[CallsT], owner: object) -> Callable[P, ResultT]: ...

    @overload
    def __get__(self, client: AsynchronousClient[CallsT], owner: object) -> Callable[P, Future[ResultT]]: ...

    def __get__(self, client: BrokerClient[CallsT] | None, owner: Any) -> Callable[..., Any]:
        method = _method(self._make, owner.RETURNS)
        return method if client is None else MethodType(method, client)


@cache
def _method(make: Callable[..., Call[Any]], returns: str) -> Callable[..., Any]:
    @wraps(make)
    def method(self: BrokerClient[Any], /, *args: Any, **kwargs: Any) -> Any:
        return self._perform(make(self._calls, *args, **kwargs))

    # For help(); type checkers know.
    returned = str(make.__annotations__["return"]).removeprefix("Call[").removesuffix("]")
    method.__dict__["__signature__"] = inspect.signature(make).replace(return_annotation=returns.format(returned))
    return method


class Operations:
    """The operations of `Client` and `FuturesClient`, apart from publishing."""

    subscribe = Operation(Calls.subscribe)
    renew = Operation(Calls.renew)
    unsubscribe = Operation(Calls.unsubscribe)
    pause = Operation(Calls.pause)
    resume = Operation(Calls.resume)
    rotate_secret = Operation(Calls.rotate_secret)
    set_credentials = Operation(Calls.set_credentials)
    current_message = Operation(Calls.current_message)
    create_pull_point = Operation(Calls.create_pull_point)
    get_messages = Operation(Calls.get_messages)
    destroy_pull_point = Operation(Calls.destroy_pull_point)
    create_trigger = Operation(Calls.create_trigger)
    destroy_trigger = Operation(Calls.destroy_trigger)
    register_publisher = Operation(Calls.register_publisher)
    destroy_registration = Operation(Calls.destroy_registration)


class Client(Operations, SynchronousClient[Calls]):
    """Talks to one broker; several threads may share it.

        with Client("http://127.0.0.1:8080") as client:
            subscription = client.subscribe("plant/line1//.", to="http://127.0.0.1:9000/")
            client.notify("plant/line1/press", "<reading xmlns='urn:plant'>42</reading>")
            client.unsubscribe(subscription)

    `url` is the broker's base address, or the full address of its NotificationBroker. Topics are written `a/b`, `a:b`,
    `a//.` (a and all below), `{urn:plant}a/b`, or `p:a/b` with `namespaces={"p": "urn:plant"}`; one that cannot be
    read raises ExpressionError. Subscriptions, pull points and registrations may be given as what created them
    returned, or as their addresses.

    `transport` takes the requests in place of requests (then `timeout_s` is its affair); closing it is, too.

    `credentials` say who we are, to the broker and nobody else: HTTP Basic, or a bearer token.

    What the broker cannot take now, and what may not have reached it, is repeated under the same wsa:MessageID as
    `retries` says. Then a call raises FaultReceived for a SOAP fault, BrokerUnavailable when the broker asks to come
    back later, BrokerUnreachable when nobody answers; all are ClientErrors.
    """

    def __init__(
        self,
        url: str,
        *,
        soap: SoapVersion = "1.1",
        timeout_s: tuple[float, float] = TIMEOUT_S,
        retries: Retries | None = None,
        credentials: Credentials | None = None,
        transport: Transport | None = None,
    ) -> None:
        super().__init__(Calls(url), soap, timeout_s, retries, CONNECTIONS, credentials, transport)
        self._replies = PulledReplies(self)

    def close(self) -> None:
        self._replies.close()
        super().close()

    def request(
        self,
        topic: str,
        payload: str | bytes,
        timeout: float = 30.0,
        *,
        listener: Listener | None = None,
        namespaces: Namespaces = None,
        traceparent: str = "",
        type: str = "",
        priority: int | None = None,
        merge: str = "",
    ) -> bytes:
        """Put a request to the work queue `topic`, and return what one of its servers answers, an XML element.

        The answer comes to `listener`, whose URL the servers have to reach, or, without one, through a pull point of
        the broker's. Requests that wait and are equal are done once, but for those with another `merge`. After the
        time nobody begins to work on it any more. Raises TimeoutError when no answer has come by then, FaultReceived
        when it cannot be done (its `fault` is Invalid, Unanswered or Dropped), and as `notify`.
        """
        until = time.monotonic() + timeout
        replies: Replies = self._replies if listener is None else listener.replies
        to: Remote = self._replies.address if listener is None else Remote(listener.url)
        said = said_of(None, timedelta(seconds=timeout), type, namespaces, priority, merge=merge)
        call = replace(
            self._calls.notify([notification_message(topic, payload, namespaces)], None, traceparent, [said]),
            message_id=f"urn:uuid:{uuid4()}",
            reply_to=to,
        )
        replies.begin(call.message_id)
        try:
            self._exchange(call)
            return replies.wait(call.message_id, until)
        finally:
            replies.end(call.message_id)

    def notify(
        self,
        topic: str,
        payload: str | bytes,
        *,
        to: str | Remote | None = None,
        namespaces: Namespaces = None,
        traceparent: str = "",
        valid_until: datetime | None = None,
        lifespan: timedelta | None = None,
        type: str = "",
        priority: int | None = None,
        reliable: bool = False,
    ) -> str:
        """Publish one XML element; when this returns the broker has stored it, under this id. The id is empty when
        the broker does not say one: another broker, or a repetition of what it had stored already.

        `to` is another NotificationConsumer than the broker, as a registration may name one. `traceparent` is the
        trace that this belongs to (W3C Trace Context); our broker passes it on to whom it pushes.

        An Arborcast broker pushes it until `valid_until`, and for `lifespan` after it has accepted it, and never later.
        `type`, `{namespace}name` or `p:name`, is what it is to those who want some types only; else the element's name.
        Of what waits for a subscriber the larger `priority` (-100 to 100) is pushed first; without one that of the
        topic counts.
        What is `reliable` waits for timely subscribers, too, when they cannot be reached.
        """
        ids = self.notify_all(
            [(topic, payload)],
            to=to,
            namespaces=namespaces,
            traceparent=traceparent,
            valid_until=valid_until,
            lifespan=lifespan,
            type=type,
            priority=priority,
            reliable=reliable,
        )
        return ids[0] if ids else ""

    def notify_all(
        self,
        messages: Iterable[tuple[str, str | bytes]],
        *,
        to: str | Remote | None = None,
        namespaces: Namespaces = None,
        traceparent: str = "",
        valid_until: datetime | None = None,
        lifespan: timedelta | None = None,
        type: str = "",
        priority: int | None = None,
        reliable: bool = False,
    ) -> list[str]:
        """Publish several (topic, payload) in one request, in this order; none is stored when one is refused. How
        they are to be delivered is said of all.

        Returns their ids, in this order; none where the broker does not say them, as of more than a hundred.
        """
        texts = [notification_message(topic, payload, namespaces) for topic, payload in messages]
        said = [said_of(valid_until, lifespan, type, namespaces, priority, reliable)] * len(texts)
        call = self._calls.notify(texts, to, traceparent, said)
        _, answer = self._exchange(call)
        ids = answer.header("Arborcast-Notification-Id")
        return [each.strip() for each in ids.split(",")] if ids else []
