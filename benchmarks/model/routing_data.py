"""Topics and subscriptions as the routing measurements use them: long texts, nothing in common that need not be."""

from __future__ import annotations

from arborcast.topic_model.subscriptions import EndpointReference, Subscription, TopicFilter
from arborcast.topic_model.topics import TopicPath

NAMESPACE = "urn:example:plant"
CONCRETE = "http://docs.oasis-open.org/wsn/t-1/TopicExpression/Concrete"
NOW_MS = 1_780_000_000_000


def topic(number: int, depth: int = 4, tree: str = "plant") -> TopicPath:
    """Topic number so-and-so of a tree whose branches are ten wide near the root and as wide as needed at the end."""
    middle = "/".join(f"level{level}-{number // 10 ** (level % 3 + 1) % 10}" for level in range(1, depth - 1))
    return TopicPath(
        f"{{{NAMESPACE}}}{tree}/{middle}/machine{number}" if middle else f"{{{NAMESPACE}}}{tree}/m{number}"
    )


def subscription(number: int, normal: str, consumer: int | None = None) -> Subscription:
    """A subscription as a client makes it; every consumer is another one unless said otherwise."""
    consumer = number if consumer is None else consumer
    subscription_id = f"{number:032x}"
    return Subscription(
        id=subscription_id,
        consumer=EndpointReference(f"http://10.{consumer % 200}.7.9:8080/consumers/{consumer}"),
        address=f"http://broker.example:9000/subscriptions/{subscription_id}",
        topics=(TopicFilter(CONCRETE, normal.replace(f"{{{NAMESPACE}}}", "p:"), normal, {"p": NAMESPACE}),),
        created_ms=NOW_MS + number,
        terminates_ms=NOW_MS + 3_600_000 + number,
    )
