"""The branch of the exception tree for requests, with the faults of the answers.

PeerError
├── UnreadableRequest              (an EnvelopeError) has the SOAP version of the answer
│   ├── MalformedMessage               not XML, a DTD, no body, two operations (HTTP 400)
│   ├── TooLarge                       too many bytes (HTTP 413)
│   ├── Compressed                     a compressed body (HTTP 415)
│   ├── WrongMedia                     an unsupported media type without SOAP (HTTP 415)
│   ├── Packaged                       a MIME package with an envelope (HTTP 415)
│   ├── VersionMismatch                an envelope of neither SOAP 1.1 nor 1.2
│   └── NotUnderstood                  an unsupported mandatory header
├── UnknownOperation               (an EnvelopeError) not an operation, or not one of this address
├── InvalidRequest                 an operation with a missing or invalid part
├── UnknownFilters                 (a FilterError) unknown filter elements
├── UnacceptableTermination        a termination time that cannot be granted
├── UnrecognizedPolicy             an unknown element of a subscription policy
├── UnsupportedPolicy              an unsupported element of a subscription policy
├── ConsumerRefused                a forbidden address of a consumer
├── NotRegistered                  a Notify of an unregistered publisher, though registration is required
├── ResultRefused                  an invalid or late result of a push (HTTP 403, 409, 410)
├── PeerRefused                    a request of another engine to the wrong engine (HTTP 409)
├── OperationRefused               a known operation that is not performed; has its declared fault
└── AccessRefused                  refused because of the caller; has the HTTP status and headers
    ├── PageRefused                    (403) a request of a foreign web page
    ├── TooManyRequests                (429) above the rate limit; has the time until a retry
    ├── NotAuthenticated               (401) an unknown caller; one of WS-Security's faults
    │   └── TokenRefused                   (500, by SOAP) an invalid WS-Security header
    └── Forbidden                      (403, or a declared fault of the operation) a known caller without the right

InfrastructureError
├── IdentitiesUnavailable          the directory of users is unavailable
└── TooManyTopics                  too many new topics; a retry may succeed

DeliveryError
├── PublisherUnreachable           no answer of a publisher, or a temporary refusal
└── PublisherRefused               a fault or an invalid answer of a publisher

Names of elements are written `{namespace}name`.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Literal

from arborcast.core.errors import DeliveryError, EnvelopeError, FilterError, InfrastructureError, PeerError
from arborcast.topic_model.subscriptions import SoapVersion


class UnreadableRequest(EnvelopeError):
    """The request has no readable operation. `soap` is the version of the answer, if known."""

    soap: SoapVersion = "1.1"


class MalformedMessage(UnreadableRequest):
    """The body is not a SOAP message."""


class TooLarge(UnreadableRequest):
    """The body exceeds the gateway's limit of bytes."""


class Compressed(UnreadableRequest):
    """The body is compressed. A few bytes may expand to gigabytes, so untrusted bodies are not decompressed."""


class WrongMedia(UnreadableRequest):
    """A body without SOAP and with an unsupported Content-Type."""


class Packaged(UnreadableRequest):
    """A MIME package: attachments, or MTOM."""


class VersionMismatch(UnreadableRequest):
    """The root is an Envelope of another SOAP."""

    fault = "VersionMismatch"


class NotUnderstood(UnreadableRequest):
    """A mandatory header is not supported. `header` is its name."""

    fault = "MustUnderstand"

    def __init__(self, message: str, header: str) -> None:
        super().__init__(message)
        self.header = header


class PeerRefused(PeerError):
    """Another engine sent a request to the wrong engine. It should retry: the representative may just be changing."""


class UnknownOperation(EnvelopeError):
    """The body's child is not an operation of this address."""

    fault = "ActionNotSupported"


class InvalidRequest(PeerError):
    """An operation whose content breaks its schema."""

    fault = "Client"


class UnknownFilters(FilterError):
    """The Filter has unknown elements. `names` are their names."""

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names


class UnacceptableTermination(PeerError):
    """An invalid termination time, or one that is not in the future. `minimum` is the earliest possible one."""

    fault = "UnacceptableTerminationTimeFault"

    def __init__(self, message: str, minimum: datetime, *, initial: bool) -> None:
        super().__init__(message)
        self.minimum = minimum
        if initial:
            self.fault = "UnacceptableInitialTerminationTimeFault"


class UnrecognizedPolicy(PeerError):
    """The SubscriptionPolicy has unknown elements. `names` are their names."""

    fault = "UnrecognizedPolicyRequestFault"

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names


class UnsupportedPolicy(PeerError):
    """The SubscriptionPolicy has known elements that are not supported here. `names` are their names."""

    fault = "UnsupportedPolicyRequestFault"

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names


class ConsumerRefused(PeerError):
    """The address of the ConsumerReference is refused. `rule` is the rule of the outbound policy, if it refused."""

    fault = "SubscribeCreationFailedFault"

    def __init__(self, message: str, rule: str = "") -> None:
        super().__init__(message)
        self.rule = rule


class NotRegistered(PeerError):
    """The sender of a Notify is not registered for its topic, as the settings require."""

    fault = "Client"


class PublisherUnreachable(DeliveryError):
    """No answer from a publisher; a retry may succeed."""


class PublisherRefused(DeliveryError):
    """A publisher answered with a fault, or with an unreadable message."""


class ResultRefused(PeerError):
    """The result of a push is refused; `status` is the HTTP status of the reason."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class OperationRefused(PeerError):
    """The operation is known and not performed; `fault` is a fault that its WSDL declares."""

    def __init__(self, message: str, fault: str) -> None:
        super().__init__(message)
        self.fault = fault


SecurityFault = Literal[
    "FailedAuthentication", "InvalidSecurity", "InvalidSecurityToken", "UnsupportedSecurityToken", "MessageExpired"
]
"""Faults of WS-Security (SOAP Message Security 1.1, section 12), by their local names."""


class AccessRefused(PeerError):
    """A request that is refused because of its caller, before any change."""

    fault = "Client"
    status = 403

    def headers(self) -> list[tuple[bytes, bytes]]:
        """HTTP headers of the answer."""
        return []


class PageRefused(AccessRefused):
    """A request of a web page of another origin, or for a foreign host name."""


class TooManyRequests(AccessRefused):
    """The client exceeds its rate limit. `retry_after_s` is the time until it no longer does."""

    status = 429

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = max(1, math.ceil(retry_after_s))

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Retry-After."""
        return [(b"retry-after", str(self.retry_after_s).encode())]


class NotAuthenticated(AccessRefused):
    """Missing or invalid credentials. The message never names the invalid part."""

    fault: str = "FailedAuthentication"
    status = 401

    def __init__(self, message: str, challenges: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.challenges = challenges

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The accepted authentication schemes."""
        return [(b"www-authenticate", challenge.encode()) for challenge in self.challenges]


class TokenRefused(NotAuthenticated):
    """An invalid WS-Security header."""

    status = 500

    def __init__(self, message: str, fault: SecurityFault = "FailedAuthentication") -> None:
        super().__init__(message)
        self.fault = fault


class Forbidden(AccessRefused):
    """The caller does not have the right. `fault` may be a declared fault of the operation."""

    def __init__(self, message: str, fault: str = "Client") -> None:
        super().__init__(message)
        self.fault = fault


class IdentitiesUnavailable(InfrastructureError):
    """The directory of users does not answer."""


class TooManyTopics(InfrastructureError):
    """Notifications have added too many topics. `retry_after` is the time until more are allowed."""
