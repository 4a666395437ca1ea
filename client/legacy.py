"""Clients of old brokers of the HPwsn family, and of Arborcast at its old address: the envelope WsnProcess.

Those brokers search for literal text, so start tags and white space are as in messages of their own clients.
"""

from __future__ import annotations

import codecs
import html
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from secrets import randbits
from typing import IO

from arborcast.client.calls import Call, Calls, ResultT, as_text, single_topic, without_declaration
from arborcast.client.client import Operation, SynchronousClient
from arborcast.client.futures import MAX_WAITING, AsynchronousClient
from arborcast.client.received import Reply
from arborcast.client.transport import CONNECTIONS, TIMEOUT_S, Transport
from arborcast.client.values import (
    ClientError,
    Credentials,
    FaultReceived,
    Remote,
    RemotePullPoint,
    Retries,
    UnreadableAnswer,
)
from arborcast.topic_model.expressions import SIMPLE
from arborcast.topic_model.namespaces import ARBORCAST_POLICY, HPWSN, SOAP11, WSA, WSNT, wsa
from arborcast.topic_model.records.packages import MAX_PARTS, Fragment, wrapped
from arborcast.topic_model.subscriptions import SoapVersion
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.answers import text

# The placeholder of the old system's clients for no endpoint.
_NO_ENDPOINT = "endpoint:null"

# A complete message, not a part; a broker may split it.
_UNSPLIT = Fragment(alone=True)

_ADDRESS = re.compile(r"<(?:[\w.-]+:)?Address(?:\s[^<>]*)?>\s*([^<\s]+)\s*</")

_REPEATED = "Repeated subscriptions"

# The old system answers faild, or failed.
_REFUSED = re.compile(r"\bfaile?d\b")


@dataclass(frozen=True)
class LegacySubscription:
    """A subscription at an old broker: to the topic and all below it, until it is ended.

    The broker identifies it by subscriber and topic. `address` is its address at the broker, empty if the broker only
    answered that it exists already.
    """

    topic: str
    subscriber: str
    address: str = ""


@dataclass(frozen=True)
class _WsnProcess(Call[ResultT]):
    """A message in the old envelope: as text, without a header."""

    def encode(self, soap: SoapVersion, message_id: str) -> tuple[bytes, dict[str, str]]:
        """The HTTP body and headers."""
        message = (
            f'<?xml version="1.0" encoding="UTF-8"?><soapenv:Envelope xmlns:soapenv="{SOAP11}" xmlns:org="{HPWSN}">'
            f"<soapenv:Header/><soapenv:Body><org:WsnProcess>{text(self.body)}</org:WsnProcess></soapenv:Body>"
            "</soapenv:Envelope>"
        )
        return message.encode(), {"Content-Type": "text/xml; charset=utf-8", "SOAPAction": '""'}


class LegacyCalls:
    """The requests to one old broker. `address` is its base address, to which /wsnprocess/ is appended, or a full
    address.

    An expression for several topics raises ExpressionError; a topic in a namespace, or a payload that is not UTF-8,
    raises ClientError.
    """

    def __init__(self, address: str) -> None:
        has_path = "/" in address.partition("://")[2].rstrip("/")
        self.broker = Remote(address if has_path else f"{address.rstrip('/')}/wsnprocess/")
        self._standard = Calls(self.broker.address)

    def create_pull_point(self, name: str = "") -> Call[RemotePullPoint]:
        """Create an endpoint at the broker, for the parameter `endpoint` of `subscribe`. Some brokers return the
        existing one of this name."""
        message = f'<wsnt:CreatePullPoint xmlns:wsnt="{WSNT}">{text(name)}</wsnt:CreatePullPoint>'
        return _WsnProcess(self.broker, "", message, _pull_point, repeatable=False)

    def subscribe(
        self, topic: str, *, to: str | Remote, endpoint: str | Remote | None = None, fragment_bytes: int = 0
    ) -> Call[LegacySubscription]:
        """Subscribe to the topic and all topics below it; messages are pushed to the address `to`, or stored in the
        pull point `to`. With `fragment_bytes` an Arborcast broker pushes parts of at most this size, which a Listener
        joins.

        A repetition has no effect.
        """
        path, subscriber = _colon_path(topic), _address_of(to)
        reference = _NO_ENDPOINT if endpoint is None else _address_of(endpoint)
        message = (
            f'<wsnt:Subscribe xmlns:wsnt="{WSNT}" xmlns:wsa="{WSA}"><wsnt:ConsumerReference> '
            f"<wsa:Address>{text(reference)}</wsa:Address></wsnt:ConsumerReference>"
            f"{_subscription_key(path, subscriber)}{_in_parts(fragment_bytes)}</wsnt:Subscribe>"
        )

        def read(reply: Reply) -> LegacySubscription:
            if _answer(reply, "Subscribe") == _REPEATED:
                return LegacySubscription(path, subscriber)
            return LegacySubscription(path, subscriber, _address_in(reply, "Subscribe"))

        return _WsnProcess(self.broker, "", message, read)

    def notify(self, topic: str, payload: str | bytes, *, plain: bool = False) -> Call[None]:
        """Publish XML, or with `plain` any text. When it is done, the broker has accepted it."""
        content = as_text(payload)
        inner = text(content) if plain else without_declaration(content)
        message = wrapped(inner, _colon_path(topic), _identification(), _UNSPLIT)
        return _WsnProcess(self.broker, "", message, _done("Notify"), repeatable=False)

    def parts(self, topic: str, content: IO[bytes], part_bytes: int, alone: bool) -> Iterator[Call[None]]:
        """One call for each part of the content, which is read lazily."""
        path, identification = _colon_path(topic), _identification()
        decoder = codecs.getincrementaldecoder("utf-8")()
        read = iter(lambda: content.read(part_bytes), b"")
        try:
            pieces = (decoder.decode(each) for each in read)
            piece = next(pieces, "")
            for number in count():
                following = next(pieces, None)
                if following is None:
                    decoder.decode(b"", final=True)
                if number >= MAX_PARTS:
                    raise ClientError(
                        f"the content has more than {MAX_PARTS} parts of {part_bytes} bytes: use larger parts"
                    )
                fragment = Fragment(True, following is not None, alone, number)
                message = wrapped(piece, path, identification, fragment)
                # The broker ignores a repeated part if it joins the parts.
                yield _WsnProcess(self.broker, "", message, _done("Notify"), repeatable=not alone)
                if following is None:
                    return
                piece = following
        except UnicodeDecodeError as error:
            raise ClientError(f"the content is not UTF-8: {error}") from error

    def unsubscribe(self, subscription: LegacySubscription | str) -> Call[None]:
        """End the subscription, given as the result of `subscribe`, or by its address at the broker."""
        if isinstance(subscription, str):
            return self._standard.unsubscribe(subscription)
        message = (
            f'<wsnt:Unsubscribe xmlns:wsnt="{WSNT}" xmlns:wsa="{WSA}">'
            f"{_subscription_key(subscription.topic, subscription.subscriber)}</wsnt:Unsubscribe>"
        )
        return _WsnProcess(self.broker, "", message, _done("Unsubscribe"), repeatable=False)


class LegacyOperations:
    """The operations of `LegacyClient` and `LegacyFuturesClient`."""

    create_pull_point = Operation(LegacyCalls.create_pull_point)
    subscribe = Operation(LegacyCalls.subscribe)
    notify = Operation(LegacyCalls.notify)
    unsubscribe = Operation(LegacyCalls.unsubscribe)


class LegacyClient(LegacyOperations, SynchronousClient[LegacyCalls]):
    """A synchronous client of one old broker; several threads may share it.

        with LegacyClient("http://127.0.0.1:8080") as client:
            subscription = client.subscribe("all:alarm", to="http://127.0.0.1:9000/")
            client.notify("all:alarm:alarm1", "<alarm>42</alarm>")
            client.unsubscribe(subscription)

    `address` is the broker's base address, to which /wsnprocess/ is appended, or a full address. Topics are colon
    paths, or paths with slashes. A Listener receives the pushes: their messages have no topic, and the payload is the
    published content, as text.

    The broker's "faild" raises FaultReceived. Other exceptions, `retries`, `credentials` and `transport` are those of
    Client. But the old envelope has no id by which a broker could detect a repetition, so a notification is sent again
    only if it certainly did not arrive.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: tuple[float, float] = TIMEOUT_S,
        retries: Retries | None = None,
        credentials: Credentials | None = None,
        transport: Transport | None = None,
    ) -> None:
        super().__init__(LegacyCalls(address), "1.1", timeout_s, retries, CONNECTIONS, credentials, transport)

    def notify_in_parts(
        self, topic: str, content: str | bytes | IO[bytes], *, part_bytes: int = 100_000, alone: bool = True
    ) -> None:
        """Publish XML that is too large for one message, for instance from a file, in parts of `part_bytes`, one after
        the other; returns when the broker has accepted all.

        With `alone` each part is a notification, and Listeners join them. Otherwise the broker joins them, up to its
        limit (`fragments.max_bytes`), and subscribers get the complete message.
        """
        if isinstance(content, str | bytes):
            content = io.BytesIO(without_declaration(as_text(content)).encode())
        for call in self._calls.parts(topic, content, part_bytes, alone):
            self._exchange(call)


class LegacyFuturesClient(LegacyOperations, AsynchronousClient[LegacyCalls]):
    """An asynchronous client of one old broker; several threads may share it.

        with LegacyFuturesClient("http://127.0.0.1:8080") as client:
            for alarm in alarms:
                client.notify("all:alarm:alarm1", alarm).add_done_callback(report)

    The calls are those of LegacyClient. Futures have the same exceptions; invalid arguments raise at once. `workers`,
    `max_waiting` and `close` are as for FuturesClient. Each notification is a separate request, as the old envelope
    requires; one worker keeps their order.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: tuple[float, float] = TIMEOUT_S,
        retries: Retries | None = None,
        workers: int = CONNECTIONS,
        max_waiting: int = MAX_WAITING,
        credentials: Credentials | None = None,
        transport: Transport | None = None,
    ) -> None:
        calls = LegacyCalls(address)
        super().__init__(calls, "1.1", timeout_s, retries, workers, max_waiting, credentials, transport)


def _in_parts(fragment_bytes: int) -> str:
    if not fragment_bytes:
        return ""
    delivery = f'<p:Delivery xmlns:p="{ARBORCAST_POLICY}" FragmentBytes="{fragment_bytes}"/>'
    return f"<wsnt:SubscriptionPolicy>{delivery}</wsnt:SubscriptionPolicy>"


def _subscription_key(path: str, subscriber: str) -> str:
    return (
        f'<wsnt:Filter><wsnt:TopicExpression Dialect="{SIMPLE}">{text(path)}</wsnt:TopicExpression></wsnt:Filter>'
        f"<wsnt:SubscriberAddress>{text(subscriber)}</wsnt:SubscriberAddress>"
    )


def _identification() -> str:
    """Unique among all publishers, whose parts a subscriber joins. Old clients write a time and a number; publishers
    that start together would have the same."""
    return f"{randbits(31)}:{randbits(31)}"


def _colon_path(topic: str) -> TopicPath:
    """Raises ExpressionError for several topics, ClientError for a topic in a namespace."""
    path = single_topic(topic)
    if "{" in path:
        raise ClientError(f"{topic!r} is in a namespace: old brokers support only topics without a namespace")
    return TopicPath(path.replace("/", ":"))


def _address_of(place: str | Remote) -> str:
    return place if isinstance(place, str) else place.address


def _answer(reply: Reply, operation: str) -> str:
    """The text of the broker's answer. Raises FaultReceived, UnreadableAnswer."""
    if reply is None or not reply.name.endswith("}WsnProcessResponse"):
        raise UnreadableAnswer(
            f"the answer to {operation} is not a WsnProcessResponse: is it the address of an old broker?"
        )
    answer = "".join(map(str, reply.operation.itertext())).strip()
    if _REFUSED.search(answer) and "Address>" not in answer:
        raise FaultReceived(f"the broker refused the {operation} with the answer {answer[:200]!r}", "", 200)
    return answer


def _done(operation: str) -> Callable[[Reply], None]:
    """Reads an answer without a result."""

    def check(reply: Reply) -> None:
        _answer(reply, operation)

    return check


def _pull_point(reply: Reply) -> RemotePullPoint:
    return RemotePullPoint(_address_in(reply, "CreatePullPoint"))


def _address_in(reply: Reply, operation: str) -> str:
    answer = _answer(reply, operation)
    # Usually escaped as text; some frameworks send elements.
    element = None if reply is None else next(reply.operation.iter(wsa("Address")), None)
    if element is not None and element.text:
        return element.text.strip()
    found = _ADDRESS.search(answer)
    if found is None:
        raise UnreadableAnswer(f"the broker's answer to {operation} has no address: {answer[:200]!r}")
    return html.unescape(found[1])
