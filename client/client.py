"""The synchronous client, and what all clients have in common: repetitions and the operations."""

from __future__ import annotations

import base64
import inspect
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import requests

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
    from arborcast.client.listener import Listener


class BrokerSession(requests.Session):
    """One request and its repetitions, for all clients; several threads may use it.

    It is a requests.Session because that is what requests-futures runs; the connections are the transport's."""

    def __init__(self, transport: Transport, retries: Retries, proof: tuple[str, str] = ("", "")) -> None:
        """`proof` is an address, and the Authorization header of all requests to its host and port, and no other."""
        super().__init__()
        self._transport = transport
        self._proof = (_origin(proof[0]), proof[1])
        self._retries = retries
        self._closing = threading.Event()

    def request(  # type: ignore[override]  # called by us and by requests-futures, never with the other parameters
        self, method: str | bytes, url: str | bytes, **arguments: Any
    ) -> HttpAnswer:
        """POST `data` with `headers`, the very same again while that may help.

        With `repeatable` False it is not sent again once it may have arrived. The answer is whatever came last, a 503
        too. Raises ClientError when none came.
        """
        address = str(url)
        headers: dict[str, str] = {**arguments["headers"], **self.proof_for(address)}
        repeatable: bool = arguments.get("repeatable", True)
        attempt = 1
        while True:
            asked: float | None = None
            problem: BrokerUnreachable | None = None
            try:
                answer = self._transport.post(address, headers, arguments["data"])
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
        self._session.close()
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def describe(method: Callable[..., object], make: Callable[..., Call[Any]], result: str) -> None:
    """Have help() show the parameters of a method of Calls, with what a client's method returns; type checkers know."""
    returned = str(make.__annotations__["return"]).removeprefix("Call[").removesuffix("]")
    method.__dict__["__signature__"] = inspect.signature(make).replace(return_annotation=result.format(returned))


def performed(
    make: Callable[Concatenate[CallsT, P], Call[ResultT]],
) -> Callable[Concatenate[SynchronousClient[CallsT], P], ResultT]:
    """The method of a synchronous client that makes this request and returns its result."""

    @wraps(make)
    def method(self: SynchronousClient[CallsT], /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        return self._exchange(make(self._calls, *args, **kwargs))[0]

    describe(method, make, "{}")
    return method


class SynchronousClient(BrokerClient[CallsT]):
    """Each call returns when it is done; see `performed`."""

    def close(self) -> None:
        """Close the connections; calls of other threads that fail from now on are not repeated."""
        self._free()

    def _exchange(self, call: Call[ResultT]) -> tuple[ResultT, HttpAnswer]:
        """What every request goes through: the call's result, and the answer that it was read from."""
        answer = self._session.request("POST", call.to.address, **arguments_of(call, self._soap))
        return result_of(call, answer), answer


class Client(SynchronousClient[Calls]):
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

    subscribe = performed(Calls.subscribe)
    renew = performed(Calls.renew)
    unsubscribe = performed(Calls.unsubscribe)
    pause = performed(Calls.pause)
    resume = performed(Calls.resume)
    rotate_secret = performed(Calls.rotate_secret)
    set_credentials = performed(Calls.set_credentials)
    current_message = performed(Calls.current_message)
    create_pull_point = performed(Calls.create_pull_point)
    get_messages = performed(Calls.get_messages)
    destroy_pull_point = performed(Calls.destroy_pull_point)
    create_trigger = performed(Calls.create_trigger)
    destroy_trigger = performed(Calls.destroy_trigger)
    register_publisher = performed(Calls.register_publisher)
    destroy_registration = performed(Calls.destroy_registration)

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
