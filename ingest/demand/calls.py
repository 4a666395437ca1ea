"""Requests to publishers: the subscriber's side of WS-BaseNotification.

Answers are parsed in the threads of the HTTP client: they may be large, and are not trusted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar
from uuid import uuid4

from lxml import etree

from arborcast.core.errors import NoAnswer, OutboundRefused
from arborcast.core.http_client import HttpAnswer, HttpClient
from arborcast.core.security.outbound import DIRECT, AddressPolicy, OutboundRoute
from arborcast.ingest.addresses import OwnAddresses
from arborcast.ingest.elements.endpoints import check_consumer
from arborcast.topic_model.namespaces import ACTION_BW, SOAP11, SOAP12, SOAP_FAULTS, WSA, WSNT, XSI, wsnt
from arborcast.topic_model.publishers import Registration
from arborcast.topic_model.subscriptions import EndpointReference, TopicFilter, parameter_blocks
from arborcast.wire import answers, times
from arborcast.wire.answers import expression_element
from arborcast.wire.endpoints import read_reference
from arborcast.wire.errors import (
    ConsumerRefused,
    InvalidRequest,
    MalformedMessage,
    PublisherRefused,
    PublisherUnreachable,
)
from arborcast.wire.fragments import Source
from arborcast.wire.xml_reading import read_xml

T = TypeVar("T")

PAUSE, RESUME = (f"PausableSubscriptionManager/{name}Subscription" for name in ("Pause", "Resume"))
UNSUBSCRIBE = "SubscriptionManager/Unsubscribe"
"""Port type and operation."""

# Parallel requests to publishers: this number may hang before others wait.
_AT_ONCE = 32

_TOTAL_S = 15
_MAX_ANSWER = 1024 * 1024

# Envelope, Body, SubscribeResponse, SubscriptionReference, (EndpointReference,) ReferenceParameters, parameter.
_PARAMETER_DEPTH = 7

# Statuses after which a repetition may succeed.
_LATER = frozenset({408, 425, 429, 502, 503, 504})

# Minimum time between renewals, whatever the publisher grants.
_SHORTEST_MS = 10_000


class PublisherCalls:
    """Requests to publishers. Each raises PublisherUnreachable (retry later) or PublisherRefused. The granted time is
    in milliseconds from now; None for no end."""

    def __init__(self, own: OwnAddresses, lasts_s: int, policy: AddressPolicy, route: OutboundRoute = DIRECT) -> None:
        self._own = own
        self._policy = policy
        self._client = HttpClient(policy, route, threads=_AT_ONCE, name="publishers")
        self._lasts_s = lasts_s

    def close(self) -> None:
        """Drop the requests that wait for a thread."""
        self._client.close()

    async def subscribe(
        self, registration: Registration, topic: TopicFilter, consumer: str
    ) -> tuple[EndpointReference, int | None]:
        """Subscribe at the registered publisher; returns the subscription's reference and its duration."""
        if registration.publisher is None:
            raise PublisherRefused("the registration names no publisher")
        expression = expression_element("TopicExpression", topic.dialect, topic.text, topic.namespaces)
        return await self._call(
            registration,
            registration.publisher,
            f"<wsnt:Subscribe><wsnt:ConsumerReference><wsa:Address>{answers.text(consumer)}</wsa:Address>"
            f"</wsnt:ConsumerReference><wsnt:Filter>{expression}</wsnt:Filter><wsnt:InitialTerminationTime>PT{self._lasts_s}S"
            "</wsnt:InitialTerminationTime></wsnt:Subscribe>",
            "NotificationProducer/SubscribeRequest",
            self._subscribed,
        )

    def _subscribed(self, root: etree._Element, document: bytes) -> tuple[EndpointReference, int | None]:
        element = root.find(f".//{wsnt('SubscribeResponse')}/{wsnt('SubscriptionReference')}")
        if element is None:
            raise PublisherRefused("the answer to Subscribe has no wsnt:SubscriptionReference")
        try:
            reference = read_reference(element, Source(document, root, _PARAMETER_DEPTH))
            check_consumer(reference, self._own, self._policy)
        except (InvalidRequest, ConsumerRefused, MalformedMessage) as error:
            raise PublisherRefused(f"the SubscriptionReference cannot be used: {error}") from error
        return reference, self._granted(root)

    async def renew(self, registration: Registration, subscription: EndpointReference) -> int | None:
        """Request the same time again."""
        return await self._call(
            registration,
            subscription,
            f"<wsnt:Renew><wsnt:TerminationTime>PT{self._lasts_s}S</wsnt:TerminationTime></wsnt:Renew>",
            "SubscriptionManager/RenewRequest",
            lambda root, _: self._granted(root),
        )

    async def change(self, registration: Registration, subscription: EndpointReference, operation: str) -> None:
        """Carry out PAUSE, RESUME or UNSUBSCRIBE."""
        body = f"<wsnt:{operation.rpartition('/')[2]}/>"
        await self._call(registration, subscription, body, f"{operation}Request", lambda *_: None)

    async def _call(
        self,
        registration: Registration,
        to: EndpointReference,
        body: str,
        action: str,
        read: Callable[[etree._Element, bytes], T],
    ) -> T:
        """The value that `read` makes of the answer's root and bytes."""
        action = f"{ACTION_BW}/{action}"
        addressing = registration.addressing or bool(to.reference_parameters)
        namespace = SOAP11 if registration.soap == "1.1" else SOAP12
        header = _header(to, action) if addressing else ""
        message = (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<soap:Envelope xmlns:soap="{namespace}" xmlns:wsnt="{WSNT}" '
            f'xmlns:wsa="{WSA}">{header}<soap:Body>{body}</soap:Body></soap:Envelope>'
        ).encode()
        media_type = answers.media_type(registration.soap).decode()
        headers = {"Content-Type": media_type}
        if registration.soap == "1.1":
            headers["SOAPAction"] = f'"{action if addressing else ""}"'
        elif addressing:
            headers["Content-Type"] += f'; action="{action}"'
        understood = partial(_understood, to.address, read)
        try:
            return await asyncio.wrap_future(
                self._client.call(
                    "POST", to.address, headers, message, understood, total_s=_TOTAL_S, max_answer=_MAX_ANSWER
                )
            )
        except OutboundRefused as error:
            raise PublisherRefused(str(error)) from error
        except NoAnswer as error:
            raise PublisherUnreachable(str(error)) from error

    def _granted(self, root: etree._Element) -> int | None:
        ends, now = root.find(f".//{wsnt('TerminationTime')}"), root.find(f".//{wsnt('CurrentTime')}")
        if ends is not None and ends.get(f"{{{XSI}}}nil", "").strip() in ("1", "true"):
            return None
        until = _moment(ends)
        if until is not None and times.is_last_day(until):
            return None
        if until is None:
            return self._lasts_s * 1000
        # By the publisher's own clock if it sends it: clocks differ.
        span = until - (_moment(now) or datetime.now(UTC))
        return max(_SHORTEST_MS, int(span.total_seconds() * 1000))


def _header(to: EndpointReference, action: str) -> str:
    return (
        f"<soap:Header><wsa:To>{answers.text(to.address)}</wsa:To><wsa:Action>{action}</wsa:Action>"
        f"<wsa:MessageID>urn:uuid:{uuid4()}</wsa:MessageID>{parameter_blocks(to.reference_parameters)}</soap:Header>"
    )


def _understood(url: str, read: Callable[[etree._Element, bytes], T], answer: HttpAnswer) -> T:
    status, content = answer.status, answer.body
    if status in _LATER:
        raise PublisherUnreachable(f"{url} answered {status}")
    ok = 200 <= status < 300
    if ok and not content.strip():
        # Some publishers answer with an empty 202.
        return read(etree.Element("nothing"), b"")
    try:
        root, content = read_xml(content, what="the answer")
    except MalformedMessage as error:
        raise PublisherRefused(f"{url} answered {status} and no SOAP message: {error}: {content[:200]!r}") from error
    fault = next(root.iter(*SOAP_FAULTS), None)
    if fault is not None or not ok:
        reason = "" if fault is None else " ".join(" ".join(str(part) for part in fault.itertext()).split())
        raise PublisherRefused(f"{url} answered {status}: {reason[:300] or content[:200]!r}")
    return read(root, content)


def _moment(element: etree._Element | None) -> datetime | None:
    try:
        moment = datetime.fromisoformat((element.text or "").strip()) if element is not None else None
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
