"""The exception tree of the whole engine; every package hangs its own branch on these four.

ArborcastError
├── ConfigError              wrong settings, found at start
├── PeerError                the other side broke a rule; carries the WS-Notification fault to answer with
│   ├── EnvelopeError            not a SOAP request we can read
│   ├── FilterError              a filter we cannot honour
│   │   ├── ExpressionError          a topic expression
│   │   │   ├── UnknownDialect           in a language that is not ours
│   │   │   └── MultipleTopics           names several topics where one is needed
│   │   └── ConditionError           an expression over payload or producer properties
│   │       ├── ContentExpressionError
│   │       └── ProducerExpressionError
│   ├── TopicError               a topic that cannot be, or is not there
│   │   ├── TopicNotSupported        not in the (fixed) topic set
│   │   └── DocumentError            a TopicSet, TopicNamespace or JSON document of topics
│   ├── UnknownResource          no such subscription, pull point, registration
│   └── SignatureError           a push that is not signed by whom it should be
├── DeliveryError            somebody that we called did not answer, or said no; the message names the address
│   ├── NotCalled                an address that may not be reached
│   └── NoAnswer                 no whole answer within the limits of the call
└── InfrastructureError      Kafka, Delta or LDAP; carries what to do and when to try again
    └── SecretError              a secret that cannot be read, sealed or opened; never quotes it
"""

from __future__ import annotations


class ArborcastError(Exception):
    """Root of everything that Arborcast raises on purpose."""

    def __init__(self, message: str = "") -> None:
        # Two arguments would make the message a tuple of both.
        super().__init__(message)


class ConfigError(ArborcastError):
    """A wrong setting. The message has the key, the value, and the allowed ones."""


class NotFound(ConfigError):
    """What a command names is not there: the command is right, and fails."""


class PeerError(ArborcastError):
    """The peer broke a rule. `fault` is the local name of the WS-Notification fault element to answer with."""

    fault: str = "SubscribeCreationFailedFault"


class EnvelopeError(PeerError):
    """What arrived is not a SOAP request that can be read."""

    fault = "Client"


class FilterError(PeerError):
    """A filter of a Subscribe cannot be honoured."""

    fault = "InvalidFilterFault"


class ExpressionError(FilterError):
    """A topic expression is illegal. Carries the position of the trouble."""

    fault = "InvalidTopicExpressionFault"

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class UnknownDialect(ExpressionError):
    """The expression's dialect is not one of ours."""

    fault = "TopicExpressionDialectUnknownFault"


class MultipleTopics(ExpressionError):
    """The expression may select several topics where exactly one has to be named."""

    fault = "MultipleTopicsSpecifiedFault"


class ConditionError(FilterError):
    """An expression over the payload or over the producer's properties that is illegal, or has no answer."""


class ContentExpressionError(ConditionError):
    """A wsnt:MessageContent that cannot be honoured."""

    fault = "InvalidMessageContentExpressionFault"


class ProducerExpressionError(ConditionError):
    """A wsnt:ProducerProperties that cannot be honoured."""

    fault = "InvalidProducerPropertiesExpressionFault"


class TopicError(PeerError):
    """A topic is illegal, already there, or not there."""

    fault = "InvalidTopicExpressionFault"


class TopicNotSupported(TopicError):
    """The topic is well formed but not part of the (fixed) topic set."""

    fault = "TopicNotSupportedFault"


class DocumentError(TopicError):
    """A document of topics cannot be read. `line` is where, counted from 1, None when that is not known."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")


class UnknownResource(PeerError):
    """No subscription, pull point or registration with this id."""

    fault = "ResourceUnknownFault"


class SignatureError(PeerError):
    """A push is unsigned, signed by a foreign key, or too old."""

    fault = "Client"


class DeliveryError(ArborcastError):
    """A called address did not answer, or refused. The message has the address and the failure; pushes do not raise it,
    their outcome is a value (`dispatch.delivery.outcomes`)."""


class NotCalled(DeliveryError):
    """An address that may not be reached. Carries the rule of the policy."""

    def __init__(self, message: str, rule: str) -> None:
        super().__init__(message)
        self.rule = rule


class NoAnswer(DeliveryError):
    """A call without an answer, or with one that is late, too large or not HTTP."""


class InfrastructureError(ArborcastError):
    """Kafka, Delta or LDAP did not do its part. `retry_after` is in seconds, None when trying again is of no use."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RecordVersionError(InfrastructureError):
    """A log holds a record that a newer Arborcast wrote. Going on would misread it: upgrade this process first."""


class SecretError(InfrastructureError):
    """A secret cannot be read, sealed or opened. The message never quotes it."""
