"""For old brokers of the HPwsn family, and Arborcast at its old address: their envelope WsnProcess.

Those brokers look for literal text, so start tags and white space are as their own clients write them.
"""

from __future__ import annotations

import codecs
import html
import io
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
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
from arborcast.topic_model.records.packages import MOST_PARTS, Fragment, wrapped
from arborcast.topic_model.subscriptions import SoapVersion
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.answers import text

# What the old system's own clients write where there is no endpoint.
_NO_ENDPOINT = "endpoint:null"

# A whole message, no part of one; a broker may cut it.
_WHOLE = Fragment(alone=True)

_ADDRESS = re.compile(r"<(?:[\w.-]+:)?Address(?:\s[^<>]*)?>\s*([^<\s]+)\s*</")

_REPEATED = "Repeated subscriptions"

# The old system says faild, and failed.
_REFUSED = re.compile(r"\bfaile?d\b")


@dataclass(frozen=True)
class LegacySubscription:
    """A subscription at an old broker: to that topic and all below it, until it is ended.

    It is known by the address that is pushed to and the topic. `address` is what the broker calls it, empty when the
    broker only said that it had it already.
    """

    topic: str
    subscriber: str
    address: str = ""


@dataclass(frozen=True)
class _WsnProcess(Call[ResultT]):
    """A message in the old envelope: as text, and without any header."""

    def encode(self, soap: SoapVersion, message_id: str) -> tuple[bytes, dict[str, str]]:
        """The HTTP body and headers."""
        message = (
            f'<?xml version="1.0" encoding="UTF-8"?><soapenv:Envelope xmlns:soapenv="{SOAP11}" xmlns:org="{HPWSN}">'
            f"<soapenv:Header/><soapenv:Body><org:WsnProcess>{text(self.body)}</org:WsnProcess></soapenv:Body>"
            "</soapenv:Envelope>"
        )
        return message.encode(), {"Content-Type": "text/xml; charset=utf-8", "SOAPAction": '""'}


class LegacyCalls:
    """The requests to one old broker. `address` is the one that clients of those brokers append /wsnprocess/ to, or a
    full address that is taken as it is.

    What is not one topic raises ExpressionError, a topic in a namespace, or a payload that is not UTF-8, ClientError.
    """

    def __init__(self, address: str) -> None:
        has_path = "/" in address.partition("://")[2].rstrip("/")
        self.broker = Remote(address if has_path else f"{address.rstrip('/')}/wsnprocess/")
        self._standard = Calls(self.broker.address)
        # Distinguishes messages of one publisher, where somebody puts parts together.
        self._source = int(time.time())
        self._numbers = count(1)

    def create_pull_point(self, name: str = "") -> Call[RemotePullPoint]:
        """An endpoint at the broker: give it as `endpoint` to `subscribe`. Some brokers know it again by its name."""
        message = f'<wsnt:CreatePullPoint xmlns:wsnt="{WSNT}">{text(name)}</wsnt:CreatePullPoint>'
        return _WsnProcess(self.broker, "", message, _pull_point, repeatable=False)

    def subscribe(
        self, topic: str, *, to: str | Remote, endpoint: str | Remote | None = None, fragment_bytes: int = 0
    ) -> Call[LegacySubscription]:
        """Have what is published on the topic and below it pushed to the address `to`, or kept in the pull point `to`;
        with `fragment_bytes`, by an Arborcast broker, in parts of at most so many bytes, which a Listener joins.

        Doing it again does no harm.
        """
        path, subscriber = _colon_path(topic), _address_of(to)
        reference = _NO_ENDPOINT if endpoint is None else _address_of(endpoint)
        message = (
            f'<wsnt:Subscribe xmlns:wsnt="{WSNT}" xmlns:wsa="{WSA}"><wsnt:ConsumerReference> '
            f"<wsa:Address>{text(reference)}</wsa:Address></wsnt:ConsumerReference>"
            f"{_which(path, subscriber)}{_in_parts(fragment_bytes)}</wsnt:Subscribe>"
        )

        def read(reply: Reply) -> LegacySubscription:
            if _said(reply, "Subscribe") == _REPEATED:
                return LegacySubscription(path, subscriber)
            return LegacySubscription(path, subscriber, _address_in(reply, "Subscribe"))

        return _WsnProcess(self.broker, "", message, read)

    def notify(self, topic: str, payload: str | bytes, *, plain: bool = False) -> Call[None]:
        """Publish XML, or with `plain` any characters; when this is done the broker has taken it."""
        content = as_text(payload)
        inside = text(content) if plain else without_declaration(content)
        message = wrapped(inside, _old_topic(topic), self._identification(), _WHOLE)
        return _WsnProcess(self.broker, "", message, lambda reply: _done(reply, "Notify"), repeatable=False)

    def parts(self, topic: str, content: IO[bytes], part_bytes: int, alone: bool) -> Iterator[Call[None]]:
        """One call for each part of the content, which is read as they are asked for."""
        path, identification = _old_topic(topic), self._identification()
        decoder = codecs.getincrementaldecoder("utf-8")()
        read = iter(lambda: content.read(part_bytes), b"")
        try:
            pieces = (decoder.decode(each) for each in read)
            piece = next(pieces, "")
            for number in count():
                following = next(pieces, None)
                if following is None:
                    decoder.decode(b"", final=True)
                if number >= MOST_PARTS:
                    raise ClientError(f"there are more than {MOST_PARTS} parts of {part_bytes} bytes: make them larger")
                fragment = Fragment(True, following is not None, alone, number)
                message = wrapped(piece, path, identification, fragment)
                # A part that comes again counts once, where they are put together.
                yield _WsnProcess(self.broker, "", message, _part_done, repeatable=not alone)
                if following is None:
                    return
                piece = following
        except UnicodeDecodeError as error:
            raise ClientError(f"the content is not UTF-8: {error}") from error

    def _identification(self) -> str:
        return f"{self._source}:{next(self._numbers)}"

    def unsubscribe(self, subscription: LegacySubscription | str) -> Call[None]:
        """End the subscription, given as `subscribe` returned it, or by the address that the broker calls it."""
        if isinstance(subscription, str):
            return self._standard.unsubscribe(subscription)
        message = (
            f'<wsnt:Unsubscribe xmlns:wsnt="{WSNT}" xmlns:wsa="{WSA}">'
            f"{_which(subscription.topic, subscription.subscriber)}</wsnt:Unsubscribe>"
        )
        return _WsnProcess(self.broker, "", message, lambda reply: _done(reply, "Unsubscribe"), repeatable=False)


class LegacyOperations:
    """The operations of `LegacyClient` and `LegacyFuturesClient`."""

    create_pull_point = Operation(LegacyCalls.create_pull_point)
    subscribe = Operation(LegacyCalls.subscribe)
    notify = Operation(LegacyCalls.notify)
    unsubscribe = Operation(LegacyCalls.unsubscribe)


class LegacyClient(LegacyOperations, SynchronousClient[LegacyCalls]):
    """Talks to one old broker; several threads may share it.

        with LegacyClient("http://127.0.0.1:8080") as client:
            subscription = client.subscribe("all:alarm", to="http://127.0.0.1:9000/")
            client.notify("all:alarm:alarm1", "<alarm>42</alarm>")
            client.unsubscribe(subscription)

    `address` is the one that clients of those brokers append /wsnprocess/ to, or a full address that is taken as it is.
    Topics are colon paths, or written with slashes. A Listener receives what the broker pushes: its messages name no
    topic, and the payload is the content that was published, as text.

    The broker's "faild" is a FaultReceived. Other errors, `retries`, `credentials` and `transport` are those of Client;
    but the old envelope has no id that a broker could know a repetition by, so a notification is only sent again when
    it certainly did not arrive.
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
        """Publish XML that is too large for one message, from a file perhaps, in parts of so many bytes, one after the
        other; when this is done the broker has taken all.

        With `alone` each part is a notification, which a Listener joins; without, the broker joins them, up to a size
        that it has (`fragments.max_bytes`), and subscribers get the whole.
        """
        if isinstance(content, str | bytes):
            content = io.BytesIO(without_declaration(as_text(content)).encode())
        for call in self._calls.parts(topic, content, part_bytes, alone):
            self._exchange(call)


class LegacyFuturesClient(LegacyOperations, AsynchronousClient[LegacyCalls]):
    """Talks to one old broker without waiting for it; several threads may share it.

        with LegacyFuturesClient("http://127.0.0.1:8080") as client:
            for alarm in alarms:
                client.notify("all:alarm:alarm1", alarm).add_done_callback(report)

    The calls are those of LegacyClient, and so are the errors, which the futures carry; what cannot be written as a
    message is raised at once. `workers`, `max_waiting` and `close` are those of FuturesClient. Each notification is a
    request of its own, as the old envelope wants it; with one worker their order is kept.
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


def _which(path: str, subscriber: str) -> str:
    return (
        f'<wsnt:Filter><wsnt:TopicExpression Dialect="{SIMPLE}">{text(path)}</wsnt:TopicExpression></wsnt:Filter>'
        f"<wsnt:SubscriberAddress>{text(subscriber)}</wsnt:SubscriberAddress>"
    )


def _part_done(reply: Reply) -> None:
    _done(reply, "Notify")


def _old_topic(topic: str) -> TopicPath:
    """Raises as _colon_path."""
    return TopicPath(_colon_path(topic))


def _colon_path(topic: str) -> str:
    """Raises ExpressionError for what is not one topic, ClientError for one in a namespace."""
    path = single_topic(topic)
    if "{" in path:
        raise ClientError(f"{topic!r} is in a namespace: old brokers know topics without one only")
    return path.replace("/", ":")


def _address_of(place: str | Remote) -> str:
    return place if isinstance(place, str) else place.address


def _said(reply: Reply, operation: str) -> str:
    """The broker's words. Raises FaultReceived, UnreadableAnswer."""
    if reply is None or not reply.name.endswith("}WsnProcessResponse"):
        raise UnreadableAnswer(
            f"the answer to {operation} is no WsnProcessResponse: is it the address of an old broker?"
        )
    said = "".join(map(str, reply.operation.itertext())).strip()
    if _REFUSED.search(said) and "Address>" not in said:
        raise FaultReceived(f"the broker refused the {operation}, it says {said[:200]!r} and no more", "", 200)
    return said


def _done(reply: Reply, operation: str) -> None:
    _said(reply, operation)


def _pull_point(reply: Reply) -> RemotePullPoint:
    return RemotePullPoint(_address_in(reply, "CreatePullPoint"))


def _address_in(reply: Reply, operation: str) -> str:
    said = _said(reply, operation)
    # As text, which is how they send it; some frameworks make elements of it.
    element = None if reply is None else next(reply.operation.iter(wsa("Address")), None)
    if element is not None and element.text:
        return element.text.strip()
    found = _ADDRESS.search(said)
    if found is None:
        raise UnreadableAnswer(f"the broker's answer to {operation} holds no address: {said[:200]!r}")
    return html.unescape(found[1])
