"""A client of WS-Notification brokers: ours, and any other that speaks the standard.

    client = Client("http://127.0.0.1:8080")
    subscription = client.subscribe("plant/line1//.", to="http://127.0.0.1:9000/")
    client.notify("plant/line1/press", "<reading xmlns='urn:plant'>42</reading>")
    client.unsubscribe(subscription.address)

Topics are written the way people write them (`topic_model.expressions.parse_friendly`): `a/b`, `a:b`, `a//.`,
`{urn:plant}a/b`, or `p:a/b` with `namespaces={"p": "urn:plant"}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self
from uuid import uuid4

import requests
from lxml import etree

from ingest import answers, termination
from ingest.addresses import Kind
from ingest.client_errors import BrokerUnavailable, BrokerUnreachable, ClientError, FaultReceived, UnreadableAnswer
from ingest.envelope import make_parser
from ingest.namespaces import ACTION_BW, SOAP11, SOAP12, WSA, WSNT, WSRF_BF, XSI, wsa, wsnt
from topic_model.errors import ExpressionError
from topic_model.expressions import CONCRETE, parse_friendly, write_topic
from topic_model.patterns import EVERYTHING, parse_normal
from topic_model.subscriptions import SoapVersion, TopicFilter
from topic_model.topics import TopicPath

__all__ = [
    "BrokerUnavailable",
    "BrokerUnreachable",
    "Client",
    "ClientError",
    "FaultReceived",
    "RemoteSubscription",
    "UnreadableAnswer",
]

# Connecting and answering. The answer waits for the broker's storage, which gives up by itself after ten seconds.
_TIMEOUT_S = (5.0, 30.0)


@dataclass(frozen=True)
class RemoteSubscription:
    """A subscription at a broker. `address` is where it is renewed and ended; `terminates` None means no end."""

    address: str
    terminates: datetime | None


class Client:
    """Talks to one broker. Not for several threads at once: each takes its own, as it takes its own connection.

    `url` is the broker's base address, or the full address of its NotificationBroker. Every call raises FaultReceived
    for a SOAP fault, BrokerUnavailable when the broker asks to come back later, BrokerUnreachable when nobody answers.
    """

    def __init__(self, url: str, *, soap: SoapVersion = "1.1", timeout_s: tuple[float, float] = _TIMEOUT_S) -> None:
        url = url.rstrip("/")
        self.broker = url if _has_path(url) else url + Kind.BROKER.value
        self._soap = soap
        self._timeout = timeout_s
        self._session = requests.Session()
        # Neither proxies nor credentials from the surroundings: a broker is addressed on purpose. Also much faster.
        self._session.trust_env = False

    def subscribe(
        self,
        topic: str | None,
        *,
        to: str,
        lasts: timedelta | datetime | None = None,
        raw: bool = False,
        namespaces: Mapping[str, str] | None = None,
    ) -> RemoteSubscription:
        """Have notifications pushed to the URL `to`; no topic means all of them.

        `lasts` is how long, or until when; None leaves it to the broker. `raw` asks for payloads without wsnt:Notify.
        Raises ExpressionError for a topic that cannot be read.
        """
        expression = parse_friendly(topic, namespaces) if topic is not None else None
        policy = "<wsnt:SubscriptionPolicy><wsnt:UseRaw/></wsnt:SubscriptionPolicy>" if raw else ""
        response = self._call(
            self.broker,
            f'<wsnt:Subscribe xmlns:wsnt="{WSNT}" xmlns:wsa="{WSA}">'
            f"<wsnt:ConsumerReference><wsa:Address>{answers.text(to)}</wsa:Address></wsnt:ConsumerReference>"
            f"{_filter(expression)}{_termination('InitialTerminationTime', lasts)}{policy}</wsnt:Subscribe>",
            f"{ACTION_BW}/NotificationProducer/SubscribeRequest",
        )
        address = None if response is None else response.findtext(f"{wsnt('SubscriptionReference')}/{wsa('Address')}")
        if response is None or not address:
            raise UnreadableAnswer("the broker's answer to Subscribe names no subscription address")
        return RemoteSubscription(address.strip(), _terminates(response))

    def renew(self, address: str, lasts: timedelta | datetime | None) -> RemoteSubscription:
        """Let the subscription at `address` last so long, or until then; None for no end."""
        element = _termination("TerminationTime", lasts) or f'<wsnt:TerminationTime xmlns:xsi="{XSI}" xsi:nil="true"/>'
        response = self._call(
            address,
            f'<wsnt:Renew xmlns:wsnt="{WSNT}">{element}</wsnt:Renew>',
            f"{ACTION_BW}/SubscriptionManager/RenewRequest",
        )
        return RemoteSubscription(address, None if response is None else _terminates(response))

    def unsubscribe(self, address: str) -> None:
        """End the subscription at `address`."""
        self._manage(address, "Unsubscribe", "SubscriptionManager")

    def pause(self, address: str) -> None:
        """Hold the pushes of the subscription at `address`."""
        self._manage(address, "PauseSubscription", "PausableSubscriptionManager")

    def resume(self, address: str) -> None:
        """Let the pushes of the subscription at `address` go on."""
        self._manage(address, "ResumeSubscription", "PausableSubscriptionManager")

    def notify(self, topic: str, payload: str | bytes, *, namespaces: Mapping[str, str] | None = None) -> None:
        """Publish one XML element; when this returns the broker has stored it. Raises ExpressionError."""
        self.notify_all([(topic, payload)], namespaces=namespaces)

    def notify_all(
        self, messages: Iterable[tuple[str, str | bytes]], *, namespaces: Mapping[str, str] | None = None
    ) -> None:
        """Publish several (topic, payload) in one request, in this order."""
        parts = [f'<wsnt:Notify xmlns:wsnt="{WSNT}">']
        for topic, payload in messages:
            text, declarations = write_topic(single_topic(topic, namespaces))
            content = payload.decode() if isinstance(payload, bytes) else payload
            parts.append(
                f"<wsnt:NotificationMessage><wsnt:Topic{_declared(declarations)} Dialect={answers.attribute(CONCRETE)}>"
                f"{answers.text(text)}</wsnt:Topic><wsnt:Message>{_without_declaration(content)}</wsnt:Message>"
                "</wsnt:NotificationMessage>"
            )
        parts.append("</wsnt:Notify>")
        self._call(self.broker, "".join(parts), f"{ACTION_BW}/NotificationConsumer/Notify")

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _manage(self, address: str, operation: str, port_type: str) -> None:
        self._call(address, f'<wsnt:{operation} xmlns:wsnt="{WSNT}"/>', f"{ACTION_BW}/{port_type}/{operation}Request")

    def _call(self, address: str, body: str, action: str) -> etree._Element | None:
        """Send one operation; the answer's body child, None for an empty answer."""
        namespace = SOAP11 if self._soap == "1.1" else SOAP12
        message = (
            f'<soap:Envelope xmlns:soap="{namespace}"><soap:Header xmlns:wsa="{WSA}">'
            f"<wsa:To>{answers.text(address)}</wsa:To><wsa:Action>{action}</wsa:Action>"
            f"<wsa:MessageID>urn:uuid:{uuid4()}</wsa:MessageID></soap:Header>"
            f"<soap:Body>{body}</soap:Body></soap:Envelope>"
        )
        headers = {"Content-Type": answers.media_type(self._soap).decode()}
        if self._soap == "1.1":
            headers["SOAPAction"] = f'"{action}"'
        try:
            response = self._session.post(
                address, data=message.encode(), headers=headers, timeout=self._timeout, allow_redirects=False
            )
        except requests.RequestException as error:
            raise BrokerUnreachable(f"no answer from {address}: {error}") from error
        return _read_answer(response, address)


def single_topic(text: str, namespaces: Mapping[str, str] | None = None) -> TopicPath:
    """The one topic that a friendly expression names. Raises ExpressionError when it is several."""
    topic = parse_normal(parse_friendly(text, namespaces).normal).single_topic()
    if topic is None:
        raise ExpressionError(f"{text!r} selects several topics; a notification is published on exactly one", text)
    return topic


def _read_answer(response: requests.Response, address: str) -> etree._Element | None:
    if response.status_code == 503:
        raise BrokerUnavailable(f"{address} asks to come back later", _retry_after(response))
    if not response.content.strip():
        if response.ok:
            return None
        raise UnreadableAnswer(f"{address} answered {response.status_code} without a message")
    try:
        root = etree.fromstring(response.content, make_parser())
    except (etree.XMLSyntaxError, ValueError) as error:
        raise UnreadableAnswer(
            f"{address} answered {response.status_code} and no SOAP message: {response.text[:200]!r}"
        ) from error
    namespace = etree.QName(root).namespace
    child = root.find(f"{{{namespace}}}Body/*")
    if child is not None and child.tag == f"{{{namespace}}}Fault":
        raise _fault(child)
    if not response.ok:
        raise UnreadableAnswer(f"{address} answered {response.status_code}: {response.text[:200]!r}")
    return child


def _fault(fault: etree._Element) -> FaultReceived:
    namespace = etree.QName(fault).namespace
    if namespace == SOAP11:
        reason, detail = fault.findtext("faultstring"), fault.find("detail")
    else:
        reason = fault.findtext(f"{{{namespace}}}Reason/{{{namespace}}}Text")
        detail = fault.find(f"{{{namespace}}}Detail")
    if detail is None or not len(detail):
        return FaultReceived((reason or "no reason given").strip(), "")
    description = detail[0].findtext(f"{{{WSRF_BF}}}Description")
    return FaultReceived((description or reason or "no reason given").strip(), etree.QName(detail[0]).localname)


def _retry_after(response: requests.Response) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdigit() else None


def _filter(expression: TopicFilter | None) -> str:
    if expression is None or expression.normal == EVERYTHING:
        return ""
    return (
        f"<wsnt:Filter><wsnt:TopicExpression{_declared(expression.namespaces)} "
        f"Dialect={answers.attribute(expression.dialect)}>{answers.text(expression.text)}"
        "</wsnt:TopicExpression></wsnt:Filter>"
    )


def _declared(namespaces: Mapping[str, str]) -> str:
    return "".join(f" xmlns:{prefix}={answers.attribute(uri)}" for prefix, uri in namespaces.items())


def _termination(element: str, lasts: timedelta | datetime | None) -> str:
    match lasts:
        case None:
            return ""
        case timedelta():
            text = f"PT{lasts.total_seconds():.3f}S"
        case datetime():
            text = termination.written(lasts)
    return f"<wsnt:{element}>{text}</wsnt:{element}>"


def _terminates(response: etree._Element) -> datetime | None:
    text = (response.findtext(wsnt("TerminationTime")) or "").strip()
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError as error:
        raise UnreadableAnswer(f"the broker's TerminationTime {text[:60]!r} is no time") from error


def _has_path(url: str) -> bool:
    return "/" in url.partition("://")[2]


def _without_declaration(payload: str) -> str:
    """A file begins with <?xml …?>, which cannot stand inside a message."""
    payload = payload.removeprefix("\ufeff").lstrip()
    if payload.startswith("<?xml") and payload[5:6].isspace():
        payload = payload.partition("?>")[2].lstrip()
    return payload
