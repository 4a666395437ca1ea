"""Requests as values: where each goes, what it says, and how its answer is read. Nothing here talks to anybody.

The methods of `Calls` are the one description of the operations: both clients have them as methods of the same name,
with these parameters and docstrings (`client.client.Operations`).

Topics are written the way people write them (`topic_model.expressions.parse_friendly`): `a/b`, `a:b`, `a//.`,
`{urn:plant}a/b`, or `p:a/b` with `namespaces={"p": "urn:plant"}`.
"""

from __future__ import annotations

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
from arborcast.topic_model.subscriptions import SoapVersion, TopicFilter, parameter_blocks
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.prefixes import prefixes_in
from arborcast.wire import answers, times
from arborcast.wire.endpoints import Kind

ResultT = TypeVar("ResultT")
Lasts = timedelta | datetime | float | str | None
Namespaces = Mapping[str, str] | None

_REMEMBERED_TOPICS = 1_000

# Namespace of what our broker adds to GetMessages; others ignore it, as the schema lets them.
_PULL = "urn:arborcast:pull"


@dataclass(frozen=True)
class Call(Generic[ResultT]):
    """One request.

    `repeatable` says that doing it twice does no harm, so that it may be repeated after no answer. `absent` is the
    fault that only says that there is nothing; it is read like an empty answer. `traceparent` is the trace that the
    request belongs to (W3C Trace Context), empty for none. `reply_to` is where another answer is awaited than that of
    the connection, to the request of this `message_id`.
    """

    to: Remote
    action: str
    body: str = field(repr=False)  # it may hold a secret
    read: Callable[[Reply], ResultT]
    repeatable: bool = True
    absent: str = ""
    traceparent: str = ""
    message_id: str = ""
    reply_to: Remote | None = None

    def encode(self, soap: SoapVersion, message_id: str) -> tuple[bytes, dict[str, str]]:
        """The HTTP body and headers. Repeating them is repeating this very message."""
        namespace = SOAP11 if soap == "1.1" else SOAP12
        message = (
            f'<soap:Envelope xmlns:soap="{namespace}"><soap:Header xmlns:wsa="{WSA}">'
            f"<wsa:To>{answers.text(self.to.address)}</wsa:To><wsa:Action>{self.action}</wsa:Action>"
            f"<wsa:MessageID>{message_id}</wsa:MessageID>{_reply_to(self.reply_to)}{parameter_blocks(self.to.parameters)}</soap:Header>"
            f"<soap:Body>{self.body}</soap:Body></soap:Envelope>"
        )
        headers = {"Content-Type": answers.media_type(soap).decode()}
        if soap == "1.1":
            headers["SOAPAction"] = f'"{self.action}"'
        if self.traceparent:
            headers["traceparent"] = self.traceparent
        return message.encode(), headers


def _reply_to(remote: Remote | None) -> str:
    return "" if remote is None else _endpoint("wsa:ReplyTo", remote)


class Calls:
    """The requests to one broker. `url` is its base address, or the full address of its NotificationBroker.

    A topic that cannot be read raises ExpressionError.
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
        """Have notifications pushed to the URL `to`, or gathered in the pull point `to`; no topic means all of them.

        `lasts` is how long (a timedelta, seconds, or an ISO 8601 duration), or until when (a datetime with a zone, or
        ISO 8601); None leaves it to the broker. `raw` asks for payloads without wsnt:Notify,
        `cloudevents` for CloudEvents in this content mode (binary, structured or batched), `current` for the current
        messages of topics that retain one, at once.

        An Arborcast broker signs the pushes with `secret`, or with one of its own making when they are to be `signed`
        (the result's `secret`, shown this once), sends `credentials` along, and tries as hard as `delivery` says. With
        `types`, each written `{namespace}name` or `p:name`, it delivers messages of these types only.
        `queue` is how many requests at a time a server of the work queue `topic` takes, see `Worker`.
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
        """Let the subscription last so long from now, or until then, as in `subscribe`; None for no end."""
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
        # Not repeatable: the repetition of one that was carried out is a fault.
        return _plain(subscription, "Unsubscribe", "SubscriptionManager", repeatable=False)

    def pause(self, subscription: str | Remote) -> Call[None]:
        """Hold the pushes of the subscription."""
        return _plain(subscription, "PauseSubscription", "PausableSubscriptionManager")

    def resume(self, subscription: str | Remote) -> Call[None]:
        """Let the pushes of the subscription go on."""
        return _plain(subscription, "ResumeSubscription", "PausableSubscriptionManager")

    def rotate_secret(
        self, subscription: str | Remote, secret: str = "", *, overlap: timedelta | None = None
    ) -> Call[str]:
        """Have pushes signed with another secret, given or made by the broker; returns it.

        The old one goes on signing too for the overlap, or for as long as the broker's settings say.
        """
        # Not repeatable: each one that is not given a secret makes another.
        attribute = "" if overlap is None else f' Overlap="PT{overlap.total_seconds():.3f}S"'
        return Call(
            _remote(subscription),
            f"{ARBORCAST_POLICY}/RotateSecretRequest",
            f'<p:RotateSecret xmlns:p="{ARBORCAST_POLICY}"{attribute}>{_secret(secret)}</p:RotateSecret>',
            lambda reply: secret or received.returned_secret(reply),
            repeatable=bool(secret),
        )

    def set_credentials(self, subscription: str | Remote, credentials: Credentials | None) -> Call[None]:
        """Have pushes carry these credentials instead of any others; None for none."""
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
        said: Sequence[str] = (),
    ) -> Call[None]:
        """A Notify with texts that `notification_message` made, and what is `said_of` each of them."""
        body = "".join((f'<wsnt:Notify xmlns:wsnt="{WSNT}">', *messages, publications(said), "</wsnt:Notify>"))
        to = self.broker if consumer is None else _remote(consumer)
        action = f"{ACTION_BW}/NotificationConsumer/Notify"
        return Call(to, action, body, received.nothing, traceparent=traceparent)

    def current_message(self, topic: str, *, namespaces: Namespaces = None) -> Call[bytes | None]:
        """The last payload on a topic whose messages are retained; None when there is none."""
        return Call(
            self.broker,
            f"{ACTION_BW}/NotificationProducer/GetCurrentMessageRequest",
            f'<wsnt:GetCurrentMessage xmlns:wsnt="{WSNT}">{_topic("wsnt:Topic", topic, namespaces)}'
            "</wsnt:GetCurrentMessage>",
            received.current_message,
            absent="NoCurrentMessageOnTopicFault",
        )

    def create_pull_point(self) -> Call[RemotePullPoint]:
        """A place at the broker where messages wait to be fetched: subscribe with it as `to`."""
        # Not repeatable: each one makes another.
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
        """Take messages out of a pull point, oldest first, at most `maximum`. They are gone from there then.

        An Arborcast broker waits up to `wait_s` seconds for the first one; keep it below the client's timeout. What
        comes in parts is returned as a whole when its last part is there, which waits in this client until then; with
        "apart" each part as it comes.
        """
        # Not repeatable: what was handed out is gone, and an error must be seen.
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
        whole = []
        for message in messages:
            with self.assembler.joined(message) as each:
                if each is not None:
                    whole.append(each)
        return whole

    def destroy_pull_point(self, pull_point: str | Remote) -> Call[None]:
        """Give up a pull point and what waits in it."""
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
        """Have an Arborcast broker publish on the topic `publish` whenever something matches: the XML element
        `payload`, or, without one, the payload that matched. Returns the id that stands in its records.

        `topic` and `types` are as in `subscribe`; each of `content` is an XPath 1.0 that the payload must fulfil. Of
        what matches within the `minimum_interval` the first one counts, of each topic, or of all together.
        """
        # Not repeatable: the repetition of one that was carried out finds its name taken.
        expression = parse_friendly(topic, namespaces) if topic is not None else None
        filters = conditions(content, namespaces) + message_types(types, namespaces)
        policy = ""
        if minimum_interval is not None:
            asked = Delivery(minimum_interval=minimum_interval, interval_per_topic=interval_per_topic)
            policy = f"<wsnt:SubscriptionPolicy>{_delivery(asked)}</wsnt:SubscriptionPolicy>"
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

        With `demand` the broker subscribes at `publisher` (the address of its NotificationProducer) while somebody is
        subscribed to the topics here. `until` is when, or after how long, the registration ends.
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
    """A wsnt:NotificationMessage with one XML element. Raises ExpressionError, and ClientError for bytes that are not
    UTF-8."""
    return (
        f"<wsnt:NotificationMessage>{_topic('wsnt:Topic', topic, namespaces)}"
        f"<wsnt:Message>{without_declaration(as_text(payload))}</wsnt:Message></wsnt:NotificationMessage>"
    )


def as_text(payload: str | bytes) -> str:
    """Raises ClientError for bytes that are not UTF-8."""
    try:
        return payload.decode() if isinstance(payload, bytes) else payload
    except UnicodeDecodeError as error:
        raise ClientError(f"the payload is not text in UTF-8 (at byte {error.start}): save it as UTF-8") from error


def single_topic(text: str, namespaces: Namespaces = None) -> TopicPath:
    """The one topic that a friendly expression names. Raises ExpressionError when it is several."""
    topic = parse_normal(parse_friendly(text, namespaces).normal).single_topic()
    if topic is None:
        raise ExpressionError(f"{text[:200]!r} selects several topics; a notification is published on exactly one")
    return topic


def _topic(element: str, topic: str, namespaces: Namespaces) -> str:
    return _written_topic(element, topic, tuple((namespaces or {}).items()))


@lru_cache(_REMEMBERED_TOPICS)
def _written_topic(element: str, topic: str, namespaces: tuple[tuple[str, str], ...]) -> str:
    path = single_topic(topic, dict(namespaces))
    text, declarations = write_topic(path, prefixes_in(topic, path, dict(namespaces)))
    dialect = answers.attribute(CONCRETE)
    return f"<{element}{_declared(declarations)} Dialect={dialect}>{answers.text(text)}</{element}>"


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
    extra = "".join(remote.parameters)
    parameters = f"<wsa:ReferenceParameters>{extra}</wsa:ReferenceParameters>" if extra else ""
    return f"<{element}><wsa:Address>{answers.text(remote.address)}</wsa:Address>{parameters}</{element}>"


def _filter(expression: TopicFilter | None, types: str) -> str:
    topics = ""
    if expression is not None and expression.normal != EVERYTHING:
        topics = (
            f"<wsnt:TopicExpression{_declared(expression.namespaces)} "
            f"Dialect={answers.attribute(expression.dialect)}>{answers.text(expression.text)}</wsnt:TopicExpression>"
        )
    return f"<wsnt:Filter>{topics}{types}</wsnt:Filter>" if topics or types else ""


def _declared(namespaces: Mapping[str, str]) -> str:
    return "".join(f" xmlns:{prefix}={answers.attribute(uri)}" for prefix, uri in namespaces.items())


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
            text = lasts  # the broker reads it, and answers a fault that quotes it
        case int() | float() if not isinstance(lasts, bool) and math.isfinite(lasts):
            text = f"PT{lasts:.3f}S"
        case _:
            raise TypeError(
                f"lasts must be a timedelta, a number of seconds, a datetime, an ISO 8601 text or None, not {lasts!r}"
            )
    return f"<wsnt:{element}>{answers.text(text)}</wsnt:{element}>"


def without_declaration(payload: str) -> str:
    """A file begins with <?xml …?>, which cannot stand inside a message."""
    payload = payload.removeprefix("\ufeff").lstrip()
    if payload.startswith("<?xml") and payload[5:6].isspace():
        payload = payload.partition("?>")[2].lstrip()
    return payload
