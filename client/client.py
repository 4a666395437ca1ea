"""The synchronous client, and the base of all clients: operations, retries, and the threads of requests-futures."""

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
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar, overload
from urllib.parse import urlsplit
from uuid import uuid4

from arborcast.client.calls import Call, Calls, Namespaces, ResultT, notification_message
from arborcast.client.publications import publication_attributes
from arborcast.client.queues.replies import PulledReplies, Replies
from arborcast.client.received import read_reply
from arborcast.client.transport import CONNECTIONS, TIMEOUT_S, HttpAnswer, RequestsTransport, Transport, retry_after_s
from arborcast.client.values import BrokerUnreachable, ClientClosed, Credentials, FaultReceived, Remote, Retries
from arborcast.topic_model.subscriptions import SoapVersion

if TYPE_CHECKING:
    from arborcast.client.futures import AsynchronousClient
    from arborcast.client.legacy import LegacyCalls
    from arborcast.client.listener import Listener


class BrokerSession:
    """Sends requests with retries, as the session of requests-futures; several threads may use it."""

    def __init__(self, transport: Transport, retries: Retries, proof: tuple[str, str] = ("", "")) -> None:
        """`proof` is an address, and the Authorization header for requests to its host and port only."""
        self._transport = transport
        self._proof = (urlsplit(proof[0])[:2], proof[1])
        self._retries = retries
        self._closing = threading.Event()

    def request(
        self, method: str, address: str, *, data: bytes, headers: Mapping[str, str], repeatable: bool
    ) -> HttpAnswer:
        """POST `data` with `headers`; repeat it unchanged as `retries` allows.

        Without `repeatable` it is not sent again once it may have arrived. Returns the last answer, also a 503. Raises
        ClientError without an answer.
        """
        headers = {**headers, **self.proof_for(address)}
        attempt = 1
        while True:
            retry_after: float | None = None
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
                retry_after = retry_after_s(answer.header("Retry-After"))
            pause = self._retries.pause_after(attempt, retry_after)
            if pause is None:
                if problem is not None:
                    raise problem
                return answer
            if self._closing.wait(pause):
                raise ClientClosed(
                    f"the client was closed before {address} accepted the request", sent=True
                ) from problem
            attempt += 1

    def proof_for(self, address: str) -> dict[str, str]:
        """The Authorization header for this address; empty for hosts other than the broker."""
        origin, authorization = self._proof
        return {"Authorization": authorization} if authorization and urlsplit(address)[:2] == origin else {}

    def perform(self, call: Call[ResultT], soap: SoapVersion) -> ResultT:
        """The call's result. Raises ClientError."""
        return result_of(call, self.request("POST", call.to.address, **arguments_of(call, soap)))

    def stop_repeating(self) -> None:
        """Do not repeat failing requests any more."""
        self._closing.set()


def arguments_of(call: Call[Any], soap: SoapVersion) -> dict[str, Any]:
    """The arguments of `BrokerSession.request` for a call, by default with a new message id."""
    body, headers = call.encode(soap, call.message_id or f"urn:uuid:{uuid4()}")
    return {"data": body, "headers": headers, "repeatable": call.repeatable}


def answer_of(sent: Future[HttpAnswer]) -> HttpAnswer:
    """The answer of a request. Raises ClientError; ClientClosed if the client was closed before the request was
    sent."""
    try:
        return sent.result()
    except CancelledError:
        raise ClientClosed("the client was closed before the request was sent", sent=False) from None


def result_of(call: Call[ResultT], answer: HttpAnswer) -> ResultT:
    """The result of a call for this answer. Raises ClientError."""
    try:
        reply = read_reply(
            call.to.address, answer.status, answer.header("Retry-After"), answer.header("Content-Type"), answer.body
        )
    except FaultReceived as error:
        if error.fault and error.fault == call.absent:
            return call.read(None)
        raise
    return call.read(reply)


def _authorization(credentials: Credentials | None) -> str:
    if credentials is None:
        return ""
    if credentials.bearer:
        return f"Bearer {credentials.bearer}"
    pair = f"{credentials.user}:{credentials.password}".encode()
    return f"Basic {base64.b64encode(pair).decode()}"


P = ParamSpec("P")
CallsT = TypeVar("CallsT", bound="Calls | LegacyCalls")


class BrokerClient(ABC, Generic[CallsT]):
    """The common part of all clients: the requests to one broker, a session, and the connections."""

    RETURNS: ClassVar[str]
    """The return annotation of operations, as a format for the annotation of the result."""

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
        self._proof = (calls.broker.address, _authorization(credentials))
        self._timeout_s = timeout_s
        self._retries = retries or Retries()
        self._transport = transport
        self._connections = connections
        self._process = os.getpid()
        self._start()

    def _start(self) -> None:
        """Make everything that belongs to one process: connections, threads, their locks, and waiting calls."""
        transport = self._transport
        # Closed with the client, unlike a given transport, which others may use.
        self._own: RequestsTransport | None = None
        if transport is None:
            transport = self._own = RequestsTransport(self._timeout_s, self._connections)
        self._session = BrokerSession(transport, self._retries, self._proof)
        self._start_workers()

    def _start_after_fork(self) -> None:
        """Called first in each call. The threads exist only in the parent process, which also answers its calls."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._start()

    def _start_workers(self) -> None:
        self._workers = ThreadPoolExecutor(self._connections, thread_name_prefix="wsn-client")
        # Imported here: programs that replace this method start faster.
        from requests_futures.sessions import FuturesSession

        self._futures = FuturesSession(executor=self._workers, session=self._session)

    def _send(self, call: Call[Any]) -> Future[HttpAnswer]:
        self._start_after_fork()
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
        """The address of requests to the broker."""
        return self._calls.broker.address

    def proof_for(self, address: str) -> dict[str, str]:
        """The Authorization header for this address; empty for hosts other than the broker."""
        return self._session.proof_for(address)

    @abstractmethod
    def close(self) -> object:
        """Free the connections."""

    def _free(self) -> None:
        """Stop retries, and close the connections. Incomplete messages are given up."""
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
    """A client whose calls return their results."""

    RETURNS = "{}"

    def close(self) -> None:
        """Close the connections; failing calls of other threads are no longer repeated."""
        self._free()

    def _perform(self, call: Call[ResultT]) -> ResultT:
        return self._exchange(call)[0]

    def _exchange(self, call: Call[ResultT]) -> tuple[ResultT, HttpAnswer]:
        """The call's result, and its HTTP answer."""
        answer = answer_of(self._send(call))
        return result_of(call, answer), answer


class Operation(Generic[CallsT, P, ResultT]):
    """A method of a client for a request. It returns the result; in an asynchronous client, a future."""

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

    # For help(); type checkers use `Operation.__get__`.
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
    """A synchronous client of one broker; several threads may share it.

        with Client("http://127.0.0.1:8080") as client:
            subscription = client.subscribe("plant/line1//.", to="http://127.0.0.1:9000/")
            client.notify("plant/line1/press", "<reading xmlns='urn:plant'>42</reading>")
            client.unsubscribe(subscription)

    `url` is the broker's base address, or the full address of its NotificationBroker. Topics are written `a/b`, `a:b`,
    `a//.` (a and all below), `{urn:plant}a/b`, or `p:a/b` with `namespaces={"p": "urn:plant"}`; an invalid topic raises
    ExpressionError. Subscriptions, pull points and registrations are given as the results of their creation, or as
    addresses.

    `transport` replaces requests; the caller closes it, and `timeout_s` has no effect on it.

    `credentials` are sent to the broker only: HTTP Basic, or a bearer token.

    Requests that the broker cannot accept now, or that may not have reached it, are repeated with the same
    wsa:MessageID as `retries` allows. Afterwards a call raises FaultReceived for a SOAP fault, BrokerUnavailable if the
    broker is temporarily unavailable, BrokerUnreachable without an answer; all are ClientErrors.
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

    def _start(self) -> None:
        super()._start()
        self._replies = PulledReplies(self)

    def close(self) -> None:
        self._start_after_fork()
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
        """Send a request to the work queue `topic`, and return the answer of one of its servers, an XML element.

        The answer arrives at `listener`, whose URL the servers must be able to reach; without one, through a pull point
        at the broker. Equal waiting requests are executed once, unless they differ in `merge`. After the timeout no
        server starts to execute it. Raises TimeoutError without an answer in time, FaultReceived if it cannot be
        executed (`fault` is Invalid, Unanswered or Dropped), and the exceptions of `notify`.
        """
        self._start_after_fork()
        until = time.monotonic() + timeout
        replies: Replies = self._replies if listener is None else listener.replies
        to: Remote = self._replies.address if listener is None else Remote(listener.url)
        attributes = publication_attributes(None, timedelta(seconds=timeout), type, namespaces, priority, merge=merge)
        call = replace(
            self._calls.notify([notification_message(topic, payload, namespaces)], None, traceparent, [attributes]),
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
        """Publish one XML element; returns its id once the broker has stored it. The id is empty if the broker returns
        none: another broker, or a repetition of a stored message.

        `to` is a NotificationConsumer other than the broker, for instance of a registration. `traceparent` is the trace
        context (W3C Trace Context); an Arborcast broker propagates it to subscribers.

        The following parameters are for Arborcast brokers. The message is not pushed after `valid_until`, or after
        `lifespan` since its acceptance. `type`, `{namespace}name` or `p:name`, is for subscriptions by type; the
        default is the element's name. Waiting messages of a subscriber are pushed by `priority` (-100 to 100), the
        largest first; the default is that of the topic. A `reliable` message also waits for timely subscribers that
        cannot be reached.
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
        """Publish several (topic, payload) in one request, in this order; all or none are stored. The other parameters
        apply to all messages; see `notify`.

        Returns their ids, in this order; none if the broker returns none, as for more than a hundred messages.
        """
        texts = [notification_message(topic, payload, namespaces) for topic, payload in messages]
        attributes = publication_attributes(valid_until, lifespan, type, namespaces, priority, reliable)
        call = self._calls.notify(texts, to, traceparent, [attributes] * len(texts))
        _, answer = self._exchange(call)
        ids = answer.header("Arborcast-Notification-Id")
        return [each.strip() for each in ids.split(",")] if ids else []
