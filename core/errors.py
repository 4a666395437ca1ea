"""The exception tree of the engine; packages add their exceptions to these four branches.

ArborcastError
├── ConfigError              a wrong setting, found at start
├── PeerError                a peer broke a rule; has the WS-Notification fault of the answer
│   ├── EnvelopeError            not a readable SOAP request
│   ├── FilterError              an unusable filter
│   │   ├── ExpressionError          a topic expression
│   │   │   ├── UnknownDialect           in an unsupported dialect
│   │   │   └── MultipleTopics           selects several topics where one is required
│   │   └── ConditionError           an expression over payload or producer properties
│   │       ├── ContentExpressionError
│   │       └── ProducerExpressionError
│   ├── TopicError               an invalid, existing or missing topic
│   │   ├── TopicNotSupported        not in the (fixed) topic set
│   │   └── DocumentError            a TopicSet, TopicNamespace or JSON document of topics
│   ├── UnknownResource          no such subscription, pull point, registration
│   └── SignatureError           a push without a valid signature
├── DeliveryError            a called server did not answer, or refused; the message has its address
│   ├── OutboundRefused          a forbidden address
│   └── NoAnswer                 no complete answer within the limits of the call
└── InfrastructureError      Kafka, Delta or LDAP; has the time until a retry
    └── SecretError              a secret that cannot be read, sealed or opened
"""

from __future__ import annotations


class ArborcastError(Exception):
    """The root of Arborcast's exceptions."""

    def __init__(self, message: str = "") -> None:
        # Two arguments would make the message a tuple of both.
        super().__init__(message)


class ConfigError(ArborcastError):
    """A wrong setting. The message has the key, the value, and the allowed ones."""


class NotFound(ConfigError):
    """An object named in a command does not exist; the command itself is valid."""


class PeerError(ArborcastError):
    """The peer broke a rule. `fault` is the local name of the WS-Notification fault element of the answer."""

    fault: str = "SubscribeCreationFailedFault"


class EnvelopeError(PeerError):
    """Not a readable SOAP request."""

    fault = "Client"


class FilterError(PeerError):
    """A filter of a Subscribe is invalid or not supported."""

    fault = "InvalidFilterFault"


class ExpressionError(FilterError):
    """A topic expression is illegal. `position` is the index of the first wrong character, if known."""

    fault = "InvalidTopicExpressionFault"

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class UnknownDialect(ExpressionError):
    """The dialect of the expression is not supported."""

    fault = "TopicExpressionDialectUnknownFault"


class MultipleTopics(ExpressionError):
    """The expression may select several topics where exactly one is required."""

    fault = "MultipleTopicsSpecifiedFault"


class ConditionError(FilterError):
    """An expression over the payload or the producer's properties that is illegal or cannot be evaluated."""


class ContentExpressionError(ConditionError):
    """An invalid or unsupported wsnt:MessageContent."""

    fault = "InvalidMessageContentExpressionFault"


class ProducerExpressionError(ConditionError):
    """An invalid or unsupported wsnt:ProducerProperties."""

    fault = "InvalidProducerPropertiesExpressionFault"


class TopicError(PeerError):
    """A topic is illegal, exists already, or does not exist."""

    fault = "InvalidTopicExpressionFault"


class TopicNotSupported(TopicError):
    """The topic is well formed but not part of the (fixed) topic set."""

    fault = "TopicNotSupportedFault"


class DocumentError(TopicError):
    """A document of topics cannot be read. `line` counts from 1; None if unknown."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")


class UnknownResource(PeerError):
    """No subscription, pull point or registration with this id."""

    fault = "ResourceUnknownFault"


class SignatureError(PeerError):
    """A push is unsigned, signed with an unknown key, or too old."""

    fault = "Client"


class DeliveryError(ArborcastError):
    """A called server did not answer, or refused. The message has the address and the failure. Pushes return their
    outcome as a value instead (`dispatch.delivery.outcomes`)."""


class OutboundRefused(DeliveryError):
    """The outbound policy forbids the address. `rule` is the rule of the policy."""

    def __init__(self, message: str, rule: str) -> None:
        super().__init__(message)
        self.rule = rule


class NoAnswer(DeliveryError):
    """No answer to a call, or a late, oversized or non-HTTP one."""


class InfrastructureError(ArborcastError):
    """Kafka, Delta or LDAP failed. `retry_after` is in seconds; None if a retry cannot succeed."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RecordVersionError(InfrastructureError):
    """A log has a record of a newer Arborcast, which this process would misread: upgrade it first."""


class SecretError(InfrastructureError):
    """A secret cannot be read, sealed or opened. The message never quotes it."""
