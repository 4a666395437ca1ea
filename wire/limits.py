"""Fixed limits of requests, the same for all protocols. Configurable limits are settings.

docs/limits.md is generated from this table. The limits of topics and of expressions are from `topic_model`.
"""

from __future__ import annotations

from typing import Final

from arborcast.topic_model import message_types, topics
from arborcast.topic_model.patterns import grammar
from arborcast.topic_model.records.notifications import MAX_PRIORITY


class Limit(int):
    """A maximum, with the description of its unit."""

    text: str

    def __new__(cls, maximum: int, text: str) -> Limit:
        limit = super().__new__(cls, maximum)
        limit.text = text
        return limit


_KIB = 1024

# XML. libxml2 accepts any number of attributes and declarations, and the gateway could, in linear time. Receivers of a
# payload may not: many parsers compare each attribute with each other.
LEVELS: Final = Limit(256, "levels of a document (libxml2's own bound)")
XML_NAME: Final = Limit(50_000, "characters of the name of an element or attribute (libxml2's own bound)")
PAYLOAD_LEVELS: Final = Limit(
    200, "levels of a payload, its root included; the rest is for the elements around it where it is handed out"
)
ATTRIBUTES: Final = Limit(1_000, "attributes of one element, its namespace declarations among them")
DECLARATIONS: Final = Limit(256, "namespace declarations of one element")
ALL_DECLARATIONS: Final = Limit(100_000, "namespace declarations of one request")
PAYLOAD_DECLARATIONS: Final = Limit(50_000, "namespace declarations of one payload")
NAMESPACES_AROUND: Final = Limit(256, "namespaces declared around a payload")
AROUND_BYTES: Final = Limit(16 * _KIB, "bytes of the declarations around a payload")
LOOSE_NAMESPACES: Final = Limit(64, "namespaces declared around a message of WsnProcess")

# Requests.
SMALL_REQUEST: Final = Limit(64 * _KIB, "bytes of a request, or of a frame, that carries no notifications")
UNKNOWN_CLIENT: Final = Limit(16 * _KIB, "bytes of a frame before CONNECTED")
HEADER_BLOCKS: Final = Limit(100, "header blocks of an envelope")
MESSAGE_ID: Final = Limit(2 * _KIB, "characters of a `wsa:MessageID`")

# Notifications.
KEY: Final = Limit(200, "characters of an `Idempotency-Key`, or of the `key` of a PUBLISH")
PRODUCER: Final = Limit(16 * _KIB, "bytes of a `wsnt:ProducerReference`")
PROPERTIES: Final = Limit(256, "properties of a PUBLISH")
PROPERTY_CHARACTERS: Final = Limit(16 * _KIB, "characters of the names and values of the properties of a PUBLISH")
EVENTS: Final = Limit(1_000, "events of a batch of CloudEvents")
MERGE: Final = Limit(1_000, "characters of a `Merge`")
TYPE: Final = Limit(message_types.MAX_LENGTH, "characters of a `Type`, its namespace included")
PRIORITY: Final = Limit(MAX_PRIORITY, "as `Priority`; its negative as the least")
LIFESPAN_MS: Final = Limit(366 * 86_400_000, "milliseconds of a `Lifespan`: a year")

# Endpoints.
ADDRESS: Final = Limit(2 * _KIB, "characters of the address of a ConsumerReference, ReplyTo or PublisherReference")
REFERENCE: Final = Limit(
    16 * _KIB, "bytes of a ConsumerReference, ReplyTo or PublisherReference: its address, parameters and metadata"
)
CREDENTIALS: Final = Limit(8 * _KIB, "bytes of the credentials that pushes carry")

# Subscriptions.
FILTERS: Final = Limit(256 * _KIB, "characters of all expressions of a request, each with its namespaces")
CONDITIONS: Final = Limit(16, "`wsnt:MessageContent`, and as many `wsnt:ProducerProperties`, of one Filter")
TYPES: Final = Limit(64, "types in a `p:MessageType`")
ATTEMPTS: Final = Limit(1_000, "`MaximumAttempts`")
CAPACITY: Final = Limit(1_000, "`Capacity` of a worker of a queue")
CURRENT_MESSAGES: Final = Limit(1_000, "current messages of one Subscribe")
DELIVERY_ATTRIBUTES: Final = Limit(16, "attributes of the `delivery` of a SUBSCRIBE")
WINDOW: Final = Limit(10_000, "`window` of a SUBSCRIBE, and `MessageLimit` of PullMessages")
CONNECTION_SUBSCRIPTIONS: Final = Limit(1_000, "subscriptions of one framed connection")
NAME: Final = Limit(200, "characters of the name of a pull point, or of a durable subscription")
REGISTERED_TOPICS: Final = Limit(500, "topics of one RegisterPublisher")

# Topics and expressions.
TOPIC_CHARACTERS: Final = Limit(topics.MAX_PATH_LENGTH, "characters of a topic")
TOPIC_LEVELS: Final = Limit(topics.MAX_DEPTH, "levels of a topic")
EXPRESSION: Final = Limit(grammar.MAX_EXPRESSION_LENGTH, "characters of a topic expression")
ALTERNATIVES: Final = Limit(grammar.MAX_ALTERNATIVES, "alternatives of a topic expression")


def limits() -> dict[str, Limit]:
    """All limits, by name."""
    return {name: value for name, value in globals().items() if isinstance(value, Limit)}
