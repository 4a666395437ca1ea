"""What a Subscribe asks for of how its messages are delivered.

    <p:Delivery xmlns:p="urn:arborcast:policy" Order="strict" MaximumAttempts="3" Lifespan="PT2H"/>

Each attribute may be left out; then the engine's setting holds.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import cast

from lxml import etree

from ingest import termination
from ingest.errors import InvalidRequest
from ingest.namespaces import ARBORCAST_POLICY
from topic_model.subscriptions import DEFAULT_POLICY, DeliveryPolicy, Order

DELIVERY = f"{{{ARBORCAST_POLICY}}}Delivery"

_ORDERS = ("acceptance", "strict")
_MOST_ATTEMPTS = 1_000
_LONGEST_LIFESPAN_S = 366 * 86_400


def read_delivery(policy: etree._Element) -> DeliveryPolicy:
    """The delivery that a wsnt:SubscriptionPolicy asks for. Raises InvalidRequest."""
    element = policy.find(DELIVERY)
    if element is None:
        return DEFAULT_POLICY
    unknown = sorted(set(map(str, element.attrib)) - {"Order", "MaximumAttempts", "Lifespan"})
    if unknown:
        raise InvalidRequest(f"p:Delivery has Order, MaximumAttempts and Lifespan, no {unknown[0]:.100}")
    order = element.get("Order", "acceptance")
    if order not in _ORDERS:
        raise InvalidRequest(f"p:Delivery: Order is acceptance or strict, not {order:.100}")
    return DeliveryPolicy(
        order=cast(Order, order),
        lifespan_ms=_lifespan_ms(element.get("Lifespan")),
        maximum_attempts=_attempts(element.get("MaximumAttempts")),
    )


def _attempts(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and 1 <= int(text) <= _MOST_ATTEMPTS):
        raise InvalidRequest(f"p:Delivery: MaximumAttempts is a number from 1 to {_MOST_ATTEMPTS}, not {text:.100}")
    return int(text)


def _lifespan_ms(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        seconds = termination.duration_s(text, datetime.now(UTC))
    except ValueError as error:
        raise InvalidRequest(f"p:Delivery: Lifespan: {error}") from error
    if not 0 < seconds <= _LONGEST_LIFESPAN_S:
        raise InvalidRequest(f"p:Delivery: Lifespan is more than nothing and at most a year, not {text:.100}")
    return int(seconds * 1000)
