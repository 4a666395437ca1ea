"""The synchronous client: every call returns when it is done."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from types import TracebackType
from typing import Self

from ingest.client.calls import Call, Calls, Lasts, Namespaces, ResultT, notification_message
from ingest.client.received import ReceivedMessage
from ingest.client.session import BrokerSession
from ingest.client.values import (
    Credentials,
    Delivery,
    Remote,
    RemotePullPoint,
    RemoteRegistration,
    RemoteSubscription,
    Retries,
)
from topic_model.subscriptions import SoapVersion

# Connecting and answering. The answer waits for the broker's storage, which gives up by itself after ten seconds.
TIMEOUT_S = (5.0, 30.0)

_CONNECTIONS = 16


class Client:
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
        self._calls = Calls(url)
        self._soap = soap
        self._session = BrokerSession(timeout_s, retries or Retries(), _CONNECTIONS)

    @property
    def broker(self) -> str:
        """The address of the NotificationBroker."""
        return self._calls.broker.address

    def subscribe(
        self,
        topic: str | None,
        *,
        to: str | Remote,
        lasts: Lasts = None,
        raw: bool = False,
        current: bool = False,
        namespaces: Namespaces = None,
        signed: bool = False,
        secret: str = "",
        credentials: Credentials | None = None,
        delivery: Delivery | None = None,
    ) -> RemoteSubscription:
        """Have notifications pushed to the URL `to`, or gathered in the pull point `to`; no topic means all of them.

        `lasts` is how long, or until when; None leaves it to the broker. `raw` asks for payloads without wsnt:Notify,
        `current` for the current messages of topics that retain one, at once.

        An Arborcast broker signs the pushes with `secret`, or with one of its own making when they are to be `signed`
        (the result's `secret`, told this once), sends `credentials` along, and tries as hard as `delivery` says.
        """
        call = self._calls.subscribe(
            topic,
            to,
            lasts,
            raw=raw,
            current=current,
            namespaces=namespaces,
            signed=signed,
            secret=secret,
            credentials=credentials,
            delivery=delivery,
        )
        return self._perform(call)

    def rotate_secret(self, subscription: str | Remote, secret: str = "", *, overlap: timedelta | None = None) -> str:
        """Have pushes signed with another secret, given or made by the broker; returns it. The old one goes on
        signing too for the overlap, or for as long as the broker's settings say."""
        return self._perform(self._calls.rotate_secret(subscription, secret, overlap))

    def set_credentials(self, subscription: str | Remote, credentials: Credentials | None) -> None:
        """Have pushes carry these credentials instead of any others; None for none."""
        self._perform(self._calls.set_credentials(subscription, credentials))

    def renew(self, subscription: str | Remote, lasts: Lasts) -> RemoteSubscription:
        """Let the subscription last so long from now, or until then; None for no end."""
        return self._perform(self._calls.renew(subscription, lasts))

    def unsubscribe(self, subscription: str | Remote) -> None:
        """End the subscription."""
        self._perform(self._calls.unsubscribe(subscription))

    def pause(self, subscription: str | Remote) -> None:
        """Hold the pushes of the subscription."""
        self._perform(self._calls.pause(subscription))

    def resume(self, subscription: str | Remote) -> None:
        """Let the pushes of the subscription go on."""
        self._perform(self._calls.resume(subscription))

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

    def current_message(self, topic: str, *, namespaces: Namespaces = None) -> bytes | None:
        """The last payload on a topic whose messages are retained; None when there is none."""
        return self._perform(self._calls.current_message(topic, namespaces))

    def create_pull_point(self) -> RemotePullPoint:
        """A place at the broker where messages wait to be fetched: subscribe with it as `to`."""
        return self._perform(self._calls.create_pull_point())

    def get_messages(
        self, pull_point: str | Remote, maximum: int | None = None, *, wait_s: float | None = None
    ) -> list[ReceivedMessage]:
        """Take messages out of a pull point, oldest first, at most `maximum`. They are gone from there then.

        An Arborcast broker waits up to `wait_s` seconds for the first one; keep it below the client's timeout.
        """
        return self._perform(self._calls.get_messages(pull_point, maximum, wait_s))

    def destroy_pull_point(self, pull_point: str | Remote) -> None:
        """Give up a pull point and what waits in it."""
        self._perform(self._calls.destroy_pull_point(pull_point))

    def register_publisher(
        self,
        *topics: str,
        publisher: str | Remote | None = None,
        demand: bool = False,
        until: Lasts = None,
        namespaces: Namespaces = None,
    ) -> RemoteRegistration:
        """Register as a publisher of these topics.

        With `demand` the broker subscribes at `publisher` (the address of its NotificationProducer) while somebody is
        subscribed to the topics here. `until` is when, or after how long, the registration ends.
        """
        return self._perform(self._calls.register_publisher(topics, publisher, demand, until, namespaces))

    def destroy_registration(self, registration: str | Remote) -> None:
        """End a publisher's registration."""
        self._perform(self._calls.destroy_registration(registration))

    def close(self) -> None:
        """Close the connections; calls of other threads that fail from now on are not repeated."""
        self._session.stop_repeating()
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _perform(self, call: Call[ResultT]) -> ResultT:
        return self._session.perform(call, self._soap)
