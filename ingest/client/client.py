"""The synchronous client, and what both clients have in common."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self

from ingest.client.calls import Call, Calls, Namespaces, ResultT, notification_message
from ingest.client.session import BrokerSession
from ingest.client.values import Remote, Retries
from topic_model.subscriptions import SoapVersion

# Connecting and answering. The answer waits for the broker's storage, which gives up by itself after ten seconds.
TIMEOUT_S = (5.0, 30.0)

_CONNECTIONS = 16

P = ParamSpec("P")


class BrokerClient(ABC):
    """What both clients are: the requests to one broker, a session, and something to close."""

    def __init__(
        self,
        url: str,
        soap: SoapVersion,
        timeout_s: tuple[float, float],
        retries: Retries | None,
        connections: int,
    ) -> None:
        self._calls = Calls(url)
        self._soap = soap
        self._session = BrokerSession(timeout_s, retries or Retries(), connections)

    @property
    def broker(self) -> str:
        """The address of the NotificationBroker."""
        return self._calls.broker.address

    @abstractmethod
    def close(self) -> object:
        """Free the connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def signature_of(make: Callable[..., Call[Any]], result: str) -> inspect.Signature:
    """The parameters of a method of Calls with what a client's method returns: for help(), type checkers know it."""
    returned = str(make.__annotations__["return"]).removeprefix("Call[").removesuffix("]")
    return inspect.signature(make).replace(return_annotation=result.format(returned))


def performed(make: Callable[Concatenate[Calls, P], Call[ResultT]]) -> Callable[Concatenate[Client, P], ResultT]:
    """The method of Client that makes this request and returns its result."""

    @wraps(make)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        return self._perform(make(self._calls, *args, **kwargs))

    method.__signature__ = signature_of(make, "{}")  # type: ignore[attr-defined]
    return method


class Client(BrokerClient):
    """Talks to one broker; several threads may share it.

        with Client("http://127.0.0.1:8080") as client:
            subscription = client.subscribe("plant/line1//.", to="http://127.0.0.1:9000/")
            client.notify("plant/line1/press", "<reading xmlns='urn:plant'>42</reading>")
            client.unsubscribe(subscription)

    `url` is the broker's base address, or the full address of its NotificationBroker. Topics are written `a/b`, `a:b`,
    `a//.` (a and all below), `{urn:plant}a/b`, or `p:a/b` with `namespaces={"p": "urn:plant"}`; one that cannot be
    read raises ExpressionError. Subscriptions, pull points and registrations may be given as what created them
    returned, or as their addresses.

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
    ) -> None:
        super().__init__(url, soap, timeout_s, retries, _CONNECTIONS)

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
    ) -> None:
        """Publish one XML element; when this returns the broker has stored it.

        `to` is another NotificationConsumer than the broker, as a registration may name one. `traceparent` is the
        trace that this belongs to (W3C Trace Context); our broker passes it on to whom it pushes.
        """
        self.notify_all([(topic, payload)], to=to, namespaces=namespaces, traceparent=traceparent)

    def notify_all(
        self,
        messages: Iterable[tuple[str, str | bytes]],
        *,
        to: str | Remote | None = None,
        namespaces: Namespaces = None,
        traceparent: str = "",
    ) -> None:
        """Publish several (topic, payload) in one request, in this order; none is stored when one is refused."""
        texts = [notification_message(topic, payload, namespaces) for topic, payload in messages]
        self._perform(self._calls.notify(texts, to, traceparent))

    def close(self) -> None:
        """Close the connections; calls of other threads that fail from now on are not repeated."""
        self._session.stop_repeating()
        self._session.close()

    def _perform(self, call: Call[ResultT]) -> ResultT:
        return self._session.perform(call, self._soap)
