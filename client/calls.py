"""Requests as values: address, content, and the parser of the answer. No network access.

The methods of `Calls` define the operations: both clients have them as methods of the same name, with these parameters
and docstrings (`client.client.Operations`).

Topics are in the notations of `topic_model.expressions.parse_friendly`: `a/b`, `a:b`, `a//.`, `{urn:plant}a/b`, or
`p:a/b` with `namespaces={"p": "urn:plant"}`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Generic, Literal, TypeVar
from xml.sax.saxutils import quoteattr

from arborcast.client import received
from arborcast.client.assembler import Assembler
from arborcast.client.publications import conditions, message_types, publications
from arborcast.client.received import ReceivedMessage, Reply
from arborcast.client.values import (
    ClientError,
    Credentials,
    Delivery,
    Remote,
    RemotePullPoint,
    RemoteRegistration,
    RemoteSubscription,
)
from arborcast.core.errors import ExpressionError
from arborcast.core.log_limit import LogLimit
from arborcast.core.reasons import reason_of
from arborcast.topic_model.expressions import CONCRETE, parse_friendly, write_topic
from arborcast.topic_model.namespaces import (
    ACTION_BRW,
    ACTION_BW,
    ARBORCAST_POLICY,
    SOAP11,
    SOAP12,
    WSA,
    WSN_BR,
    WSNT,
    XSI,
)
from arborcast.topic_model.patterns.patterns import EVERYTHING, parse_normal
from arborcast.topic_model.subscriptions import EndpointReference, SoapVersion, TopicFilter, parameter_blocks
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.prefixes import prefixes_in
from arborcast.wire import answers, times
from arborcast.wire.endpoints import Kind, reference_content

logger = logging.getLogger(__name__)
logger.addFilter(LogLimit())  # each part on a full disk

ResultT = TypeVar("ResultT")
Lasts = timedelta | datetime | float | str | None
Namespaces = Mapping[str, str] | None

_CACHED_TOPICS = 1_000

# The namespace of an attribute of GetMessages for Arborcast; by the schema other brokers ignore it.
_PULL = "urn:arborcast:pull"


@dataclass(frozen=True)
class Call(Generic[ResultT]):
    """One request.

    `repeatable`: it is idempotent, and may be repeated without an answer. `absent` is a fault that is read like an
    empty answer, since it only means that nothing exists. `traceparent` is the trace context (W3C Trace Context), empty
    for none. `reply_to` is the address for a separate, later answer to the request with this `message_id`; such an
    answer has the id of its request as `relates_to`.
    """

    to: Remote
    action: str
    body: str = field(repr=False)  # may contain a secret
    read: Callable[[Reply], ResultT]
    repeatable: bool = True
    absent: str = ""
    traceparent: str = ""
    message_id: str = ""
    reply_to: Remote | None = None
    relates_to: str = ""

    def encode(self, soap: SoapVersion, message_id: str) -> tuple[bytes, dict[str, str]]:
        """The HTTP body and headers; a repetition sends them unchanged."""
        namespace = SOAP11 if soap == "1.1" else SOAP12
        reply_to = "" if self.reply_to is None else _endpoint("wsa:ReplyTo", self.reply_to)
        related = f"<wsa:RelatesTo>{answers.text(self.relates_to)}</wsa:RelatesTo>" if self.relates_to else ""
        message = (
            f'<soap:Envelope xmlns:soap="{namespace}"><soap:Header xmlns:wsa="{WSA}">'
            f"<wsa:To>{answers.text(self.to.address)}</wsa:To><wsa:Action>{self.action}</wsa:Action>"
            f"<wsa:MessageID>{message_id}</wsa:MessageID>{related}{reply_to}{parameter_blocks(self.to.parameters)}"
            f"</soap:Header><soap:Body>{self.body}</soap:Body></soap:Envelope>"
        )
        headers = {"Content-Type": answers.media_type(soap).decode()}
        if soap == "1.1":
            headers["SOAPAction"] = f'"{self.action}"'
        if self.traceparent:
            headers["traceparent"] = self.traceparent
        return message.encode(), headers


class Calls:
    """The requests to one broker. `url` is its base address, or the full address of its NotificationBroker.

    An invalid topic raises ExpressionError.
    """

    def __init__(self, url: str) -> None:
        url = url.rstrip("/")
        has_path = "/" in url.partition("://")[2]
        self.broker = Remote(url if has_path else url + Kind.BROKER.value)
        self.assembler = Assembler()
        self._pull_points = Remote(url if has_path else url + Kind.PULL_POINT_FACTORY.value)

    def subscribe(
        self,
        topic: str | None,
        *,
        to: str | Remote,
        lasts: Lasts = None,
        raw: bool = False,
        cloudevents: str = "",
        current: bool = False,
        namespaces: Namespaces = None,
        signed: bool = False,
        secret: str = "",
        credentials: Credentials | None = None,
        delivery: Delivery | None = None,
        types: Iterable[str] = (),
        queue: int = 0,
    ) -> Call[RemoteSubscription]:
        """Subscribe: notifications are pushed to the URL `to`, or stored in the pull point `to`. No topic means all.

        `lasts` is the duration (a timedelta, seconds, or an ISO 8601 duration), or the end (a datetime with a zone, or
        ISO 8601); with None the broker decides. `raw` requests payloads without wsnt:Notify, `cloudevents` CloudEvents
        in this content mode (binary, structured or batched), `current` the current messages of topics that retain one,
        at once.

        The following parameters are for Arborcast brokers. Pushes are signed with `secret`, or, if `signed`, with a
        generated secret (`secret` of the result, returned only once), and have the `credentials`. `delivery` is the
        delivery policy. With `types`, each written `{namespace}name` or `p:name`, only messages of these types are
        delivered. `queue` is the maximum number of concurrent requests for a server of the work queue `topic`; see
        `Worker`.
        """
        expression = parse_friendly(topic, namespaces) if topic is not None else None
        policy = "<wsnt:UseRaw/>" * raw + f'<p:CurrentMessage xmlns:p="{ARBORCAST_POLICY}"/>' * current
        if cloudevents:
            policy += f'<p:CloudEvents xmlns:p="{ARBORCAST_POLICY}" Mode={quoteattr(cloudevents)}/>'
        if signed or secret:
            policy += f'<p:Signing xmlns:p="{ARBORCAST_POLICY}">{_secret(secret)}</p:Signing>'
        if credentials is not None:
            policy += f'<p:Credentials xmlns:p="{ARBORCAST_POLICY}">{_credentials(credentials)}</p:Credentials>'
        if delivery is not None:
            policy += _delivery(delivery)
        if queue:
            policy += f'<p:Queue xmlns:p="{ARBORCAST_POLICY}" Capacity="{queue}"/>'
        if policy:
            policy = f"<wsnt:SubscriptionPolicy>{policy}</wsnt:SubscriptionPolicy>"
        return Call(
            self.broker,
            f"{ACTION_BW}/NotificationProducer/SubscribeRequest",
            f'<wsnt:Subscribe xmlns:wsnt="{WSNT}" xmlns:wsa="{WSA}">{_endpoint("wsnt:ConsumerReference", to)}'
            f"{_filter(expression, message_types(types, namespaces))}{_termination('InitialTerminationTime', lasts)}"
            f"{policy}</wsnt:Subscribe>",
            received.subscription,
        )

    def renew(self, subscription: str | Remote, lasts: Lasts = None) -> Call[RemoteSubscription]:
        """Renew the subscription for this duration from now, or until this time, as in `subscribe`; None for no end."""
        remote = _remote(subscription)
        element = _termination("TerminationTime", lasts) or f'<wsnt:TerminationTime xmlns:xsi="{XSI}" xsi:nil="true"/>'
        return Call(
            remote,
            f"{ACTION_BW}/SubscriptionManager/RenewRequest",
            f'<wsnt:Renew xmlns:wsnt="{WSNT}">{element}</wsnt:Renew>',
            lambda reply: received.renewed(reply, remote),
        )

    def unsubscribe(self, subscription: str | Remote) -> Call[None]:
        """End the subscription."""
        # Not repeatable: a repetition after success is a fault.
        return _plain(subscription, "Unsubscribe", "SubscriptionManager", repeatable=False)

    def pause(self, subscription: str | Remote) -> Call[None]:
        """Pause the pushes of the subscription."""
        return _plain(subscription, "PauseSubscription", "PausableSubscriptionManager")

    def resume(self, subscription: str | Remote) -> Call[None]:
        """Resume the pushes of the subscription."""
        return _plain(subscription, "ResumeSubscription", "PausableSubscriptionManager")

    def rotate_secret(
        self, subscription: str | Remote, secret: str = "", *, overlap: timedelta | None = None
    ) -> Call[str]:
        """Sign pushes with another secret, by default one generated by the broker; returns it.

        During the overlap, by default that of the broker's settings, pushes are also signed with the old secret.
        """
        # Repeatable only with a given secret: otherwise each repetition generates another one.
        attribute = "" if overlap is None else f' Overlap="PT{overlap.total_seconds():.3f}S"'
        return Call(
            _remote(subscription),
            f"{ARBORCAST_POLICY}/RotateSecretRequest",
            f'<p:RotateSecret xmlns:p="{ARBORCAST_POLICY}"{attribute}>{_secret(secret)}</p:RotateSecret>',
            lambda reply: secret or received.returned_secret(reply),
            repeatable=bool(secret),
        )

    def set_credentials(self, subscription: str | Remote, credentials: Credentials | None) -> Call[None]:
        """Replace the credentials of pushes; None for none."""
        content = _credentials(credentials) if credentials is not None else ""
        return Call(
            _remote(subscription),
            f"{ARBORCAST_POLICY}/SetCredentialsRequest",
            f'<p:SetCredentials xmlns:p="{ARBORCAST_POLICY}">{content}</p:SetCredentials>',
            received.nothing,
        )

    def notify(
        self,
        messages: Iterable[str],
        consumer: str | Remote | None = None,
        traceparent: str = "",
        attributes: Sequence[str] = (),
    ) -> Call[None]:
        """A Notify with results of `notification_message`, and the `publication_attributes` of each message."""
        body = "".join((f'<wsnt:Notify xmlns:wsnt="{WSNT}">', *messages, publications(attributes), "</wsnt:Notify>"))
        to = self.broker if consumer is None else _remote(consumer)
        action = f"{ACTION_BW}/NotificationConsumer/Notify"
        return Call(to, action, body, received.nothing, traceparent=traceparent)

    def current_message(self, topic: str, *, namespaces: Namespaces = None) -> Call[bytes | None]:
        """The last payload on a topic with retained messages; None without any."""
        return Call(
            self.broker,
            f"{ACTION_BW}/NotificationProducer/GetCurrentMessageRequest",
            f'<wsnt:GetCurrentMessage xmlns:wsnt="{WSNT}">{_topic("wsnt:Topic", topic, namespaces)}'
            "</wsnt:GetCurrentMessage>",
            received.current_message,
            absent="NoCurrentMessageOnTopicFault",
        )

    def create_pull_point(self) -> Call[RemotePullPoint]:
        """Create a queue at the broker from which messages are fetched: subscribe with it as `to`."""
        # Not repeatable: each repetition creates another one.
        return Call(
            self._pull_points,
            f"{ACTION_BW}/CreatePullPoint/CreatePullPointRequest",
            f'<wsnt:CreatePullPoint xmlns:wsnt="{WSNT}"/>',
            received.pull_point,
            repeatable=False,
        )

    def get_messages(
        self,
        pull_point: str | Remote,
        maximum: int | None = None,
        *,
        wait_s: float | None = None,
        parts: Literal["joined", "apart"] = "joined",
    ) -> Call[list[ReceivedMessage]]:
        """Fetch and remove messages of a pull point, oldest first, at most `maximum`.

        An Arborcast broker waits up to `wait_s` seconds for the first one; it must be less than the client's timeout.
        Messages in parts are joined: this client stores the parts until the last one arrives. With "apart", or if it
        cannot be stored, a part is returned as it arrives.
        """
        # Not repeatable: fetched messages are removed, so the caller must see an error.
        wait = "" if wait_s is None else f' xmlns:p="{_PULL}" p:Wait="PT{wait_s:.3f}S"'
        number = "" if maximum is None else f"<wsnt:MaximumNumber>{maximum}</wsnt:MaximumNumber>"
        return Call(
            _remote(pull_point),
            f"{ACTION_BW}/PullPoint/GetMessagesRequest",
            f'<wsnt:GetMessages xmlns:wsnt="{WSNT}"{wait}>{number}</wsnt:GetMessages>',
            received.messages if parts == "apart" else lambda reply: self._joined(received.messages(reply)),
            repeatable=False,
        )

    def _joined(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        joined = []
        for message in messages:
            try:
                with self.assembler.joined(message) as each:
                    if each is not None:
                        joined.append(each)
            except OSError as error:
                # The pull point no longer has these messages.
                logger.warning("a part of a message is returned alone: it cannot be stored: %s", reason_of(error))
                joined.append(message)
        return joined

    def destroy_pull_point(self, pull_point: str | Remote) -> Call[None]:
        """Remove a pull point with its messages."""
        return _plain(pull_point, "DestroyPullPoint", "PullPoint", repeatable=False)

    def create_trigger(
        self,
        name: str,
        topic: str | None,
        publish: str,
        payload: str | bytes | None = None,
        *,
        content: Iterable[str] = (),
        types: Iterable[str] = (),
        minimum_interval: timedelta | None = None,
        interval_per_topic: bool = True,
        namespaces: Namespaces = None,
    ) -> Call[str]:
        """Create a trigger at an Arborcast broker: for each matching message it publishes the XML element `payload`, by
        default the matching payload, on the topic `publish`. Returns the trigger's id, as in records.

        `topic` and `types` are as in `subscribe`; each of `content` is an XPath 1.0 condition on the payload. Within
        the `minimum_interval` only the first matching message counts, for each topic, or for all together.
        """
        # Not repeatable: after success the repetition fails because the name is in use.
        expression = parse_friendly(topic, namespaces) if topic is not None else None
        filters = conditions(content, namespaces) + message_types(types, namespaces)
        policy = ""
        if minimum_interval is not None:
            delivery = Delivery(minimum_interval=minimum_interval, interval_per_topic=interval_per_topic)
            policy = f"<wsnt:SubscriptionPolicy>{_delivery(delivery)}</wsnt:SubscriptionPolicy>"
        message = "" if payload is None else f"<wsnt:Message>{without_declaration(as_text(payload))}</wsnt:Message>"
        return Call(
            self.broker,
            f"{ARBORCAST_POLICY}/CreateTriggerRequest",
            f'<p:CreateTrigger xmlns:p="{ARBORCAST_POLICY}" xmlns:wsnt="{WSNT}" Name={answers.attribute(name)}>'
            f"{_filter(expression, filters)}{policy}"
            f"<p:Publish>{_topic('wsnt:Topic', publish, namespaces)}{message}</p:Publish></p:CreateTrigger>",
            received.trigger_id,
            repeatable=False,
        )

    def destroy_trigger(self, name: str) -> Call[None]:
        """End a trigger."""
        return Call(
            self.broker,
            f"{ARBORCAST_POLICY}/DestroyTriggerRequest",
            f'<p:DestroyTrigger xmlns:p="{ARBORCAST_POLICY}" Name={answers.attribute(name)}/>',
            received.nothing,
            repeatable=False,
        )

    def register_publisher(
        self,
        *topics: str,
        publisher: str | Remote | None = None,
        demand: bool = False,
        until: timedelta | datetime | None = None,
        namespaces: Namespaces = None,
    ) -> Call[RemoteRegistration]:
        """Register as a publisher of these topics.

        With `demand` the broker subscribes at `publisher` (the address of its NotificationProducer) while the topics
        have subscribers at the broker. `until` is the end of the registration, or its duration.
        """
        if isinstance(until, timedelta):
            # The schema allows no duration here.
            until = datetime.now(UTC) + until
        end = "" if until is None else f"<br:InitialTerminationTime>{times.written(until)}</br:InitialTerminationTime>"
        return Call(
            self.broker,
            f"{ACTION_BRW}/RegisterPublisher/RegisterPublisherRequest",
            f'<br:RegisterPublisher xmlns:br="{WSN_BR}" xmlns:wsa="{WSA}">'
            f"{'' if publisher is None else _endpoint('br:PublisherReference', publisher)}"
            f"{''.join(_topic('br:Topic', topic, namespaces) for topic in topics)}"
            f"<br:Demand>{'true' if demand else 'false'}</br:Demand>{end}</br:RegisterPublisher>",
            received.registration,
            repeatable=False,
        )

    def destroy_registration(self, registration: str | Remote) -> Call[None]:
        """End a publisher's registration."""
        return Call(
            _remote(registration),
            f"{ACTION_BRW}/PublisherRegistrationManager/DestroyRegistrationRequest",
            f'<br:DestroyRegistration xmlns:br="{WSN_BR}"/>',
            received.nothing,
            repeatable=False,
        )


def notification_message(topic: str, payload: str | bytes, namespaces: Namespaces = None) -> str:
    """A wsnt:NotificationMessage with one XML element. Raises ExpressionError, and ClientError as `as_text`."""
    return (
        f"<wsnt:NotificationMessage>{_topic('wsnt:Topic', topic, namespaces)}"
        f"<wsnt:Message>{without_declaration(as_text(payload))}</wsnt:Message></wsnt:NotificationMessage>"
    )


def as_text(payload: str | bytes) -> str:
    """Raises ClientError for bytes that are not UTF-8, and for text that UTF-8 cannot express."""
    try:
        if isinstance(payload, bytes):
            return payload.decode()
        payload.encode()  # otherwise its whole batch could not be encoded, when no caller waits
    except UnicodeDecodeError as error:
        raise ClientError(f"the payload is not text in UTF-8 (at byte {error.start}): save it as UTF-8") from error
    except UnicodeEncodeError as error:
        raise ClientError(
            f"the payload has half of a surrogate pair (at character {error.start}), which UTF-8 cannot express: "
            "remove it, or write the whole character"
        ) from error
    return payload


def single_topic(text: str, namespaces: Namespaces = None) -> TopicPath:
    """The topic of an expression in a notation of `parse_friendly`. Raises ExpressionError if it selects several."""
    topic = parse_normal(parse_friendly(text, namespaces).normal).single_topic()
    if topic is None:
        raise ExpressionError(f"{text[:200]!r} selects several topics; a notification is published on exactly one")
    return topic


def _topic(element: str, topic: str, namespaces: Namespaces) -> str:
    return _written_topic(element, topic, tuple((namespaces or {}).items()))


@lru_cache(_CACHED_TOPICS)
def _written_topic(element: str, topic: str, namespaces: tuple[tuple[str, str], ...]) -> str:
    path = single_topic(topic, dict(namespaces))
    text, declarations = write_topic(path, prefixes_in(topic, path, dict(namespaces)))
    dialect = answers.attribute(CONCRETE)
    return f"<{element}{answers.declarations(declarations)} Dialect={dialect}>{answers.text(text)}</{element}>"


def _plain(to: str | Remote, operation: str, port_type: str, *, repeatable: bool = True) -> Call[None]:
    return Call(
        _remote(to),
        f"{ACTION_BW}/{port_type}/{operation}Request",
        f'<wsnt:{operation} xmlns:wsnt="{WSNT}"/>',
        received.nothing,
        repeatable,
    )


def _secret(secret: str) -> str:
    return f"<p:Secret>{answers.text(secret)}</p:Secret>" if secret else ""


def _credentials(credentials: Credentials) -> str:
    content = ""
    if credentials.user:
        user, password = answers.text(credentials.user), answers.text(credentials.password)
        content += f"<p:Basic><p:User>{user}</p:User><p:Password>{password}</p:Password></p:Basic>"
    if credentials.bearer:
        content += f"<p:Bearer>{answers.text(credentials.bearer)}</p:Bearer>"
    if credentials.certificate:
        content += f"<p:ClientCertificate>{answers.text(credentials.certificate)}</p:ClientCertificate>"
    return content


def _remote(to: str | Remote) -> Remote:
    return Remote(to) if isinstance(to, str) else to


def _endpoint(element: str, to: str | Remote) -> str:
    remote = _remote(to)
    content = reference_content(EndpointReference(remote.address, remote.parameters))
    return f"<{element}>{content}</{element}>"


def _filter(expression: TopicFilter | None, types: str) -> str:
    topics = ""
    if expression is not None and expression.normal != EVERYTHING:
        topics = (
            f"<wsnt:TopicExpression{answers.declarations(expression.namespaces)} "
            f"Dialect={answers.attribute(expression.dialect)}>{answers.text(expression.text)}</wsnt:TopicExpression>"
        )
    return f"<wsnt:Filter>{topics}{types}</wsnt:Filter>" if topics or types else ""


def _delivery(delivery: Delivery) -> str:
    reliability = "" if delivery.reliability == "adaptive" else f' Reliability="{delivery.reliability}"'
    order = ' Order="strict"' * delivery.strict
    priority = f' Priority="{delivery.priority}"' if delivery.priority else ""
    attempts = "" if delivery.maximum_attempts is None else f' MaximumAttempts="{delivery.maximum_attempts}"'
    durations = {
        "Lifespan": delivery.lifespan,
        "Deadline": delivery.deadline,
        "MinimumInterval": delivery.minimum_interval,
    }
    times = "".join(f' {name}="PT{each.total_seconds():.3f}S"' for name, each in durations.items() if each is not None)
    per = ' DeadlinePer="topic"' * delivery.deadline_per_topic
    per += ' IntervalPer="subscription"' * (not delivery.interval_per_topic)
    return f'<p:Delivery xmlns:p="{ARBORCAST_POLICY}"{reliability}{order}{priority}{attempts}{times}{per}/>'


def _termination(element: str, lasts: Lasts) -> str:
    match lasts:
        case None:
            return ""
        case timedelta():
            text = f"PT{lasts.total_seconds():.3f}S"
        case datetime():
            text = times.written(lasts)
        case str():
            text = lasts  # the broker parses it, and answers a fault with the text
        case int() | float() if not isinstance(lasts, bool) and math.isfinite(lasts):
            text = f"PT{lasts:.3f}S"
        case _:
            raise TypeError(
                f"lasts must be a timedelta, a number of seconds, a datetime, an ISO 8601 text or None, not {lasts!r}"
            )
    return f"<wsnt:{element}>{answers.text(text)}</wsnt:{element}>"


def without_declaration(payload: str) -> str:
    """The payload without an XML declaration, which is not allowed within a message."""
    payload = payload.removeprefix("\ufeff").lstrip()
    if payload.startswith("<?xml") and payload[5:6].isspace():
        payload = payload.partition("?>")[2].lstrip()
    return payload
