"""The branch of the exception tree for requests: what a request can do wrong, each with the fault that answers it.

PeerError
├── UnreadableRequest              (an EnvelopeError) knows in which SOAP version to answer
│   ├── MalformedMessage               not XML, a DTD, no body, two operations (HTTP 400)
│   ├── TooLarge                       more bytes than we take (HTTP 413)
│   ├── Compressed                     a body that would have to be unpacked first (HTTP 415)
│   ├── WrongMedia                     a media type that is not published without SOAP (HTTP 415)
│   ├── Packaged                       a MIME package with an envelope somewhere in it (HTTP 415)
│   ├── VersionMismatch                an envelope of neither SOAP 1.1 nor 1.2
│   └── NotUnderstood                  a mandatory header of an unknown kind
├── UnknownOperation               (an EnvelopeError) not an operation, or not one of this address
├── InvalidRequest                 an operation with a missing or impossible part
├── UnknownFilters                 (a FilterError) filter elements that we do not know
├── UnacceptableTermination        a termination time that cannot be granted
├── UnrecognizedPolicy             a subscription policy element that we do not know
├── UnsupportedPolicy              a subscription policy element that cannot be honoured here
├── ConsumerRefused                an address that we will not push to
├── NotRegistered                  a Notify by somebody who is not registered, where that is required
├── ResultRefused                  what a receiver says of a push that it may not, or not any more (HTTP 403, 409, 410)
├── PeerRefused                    another engine that has come to the wrong one (HTTP 409)
├── OperationRefused               an operation that we know and do not perform; names its declared fault
└── AccessRefused                  because of who asks; knows the HTTP status and the headers that go with it
    ├── PageRefused                    (403) a request of a web page that is none of ours
    ├── TooManyRequests                (429) over the rate; when to come again
    ├── NotAuthenticated               (401) who it is, is not known; one of WS-Security's faults
    │   └── TokenRefused                   (500, as SOAP has it) a WS-Security header that does not do
    └── Forbidden                      (403, or a declared fault of the operation) it is known, and may not do that

InfrastructureError
├── IdentitiesAway                 who it is cannot be found out now
└── TooManyTopics                  new topics, for which there is room again later

DeliveryError
├── PublisherUnreachable           a publisher that we subscribe at gave no answer, or "later"
└── PublisherRefused               it said no, or nothing that can be understood

A name of an element is written `{namespace}name` throughout.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Literal

from arborcast.core.errors import DeliveryError, EnvelopeError, FilterError, InfrastructureError, PeerError
from arborcast.topic_model.subscriptions import SoapVersion


class UnreadableRequest(EnvelopeError):
    """No operation can be found in what arrived. `soap` is the version to answer in, as far as it is known."""

    soap: SoapVersion = "1.1"


class MalformedMessage(UnreadableRequest):
    """The body is not a SOAP message at all."""


class TooLarge(UnreadableRequest):
    """The body has more bytes than the gateway takes."""


class Compressed(UnreadableRequest):
    """The body is compressed. A few bytes may unpack to gigabytes, so nothing is unpacked for a stranger."""


class WrongMedia(UnreadableRequest):
    """A body without SOAP whose Content-Type is none that can be published."""


class Packaged(UnreadableRequest):
    """A MIME package: attachments, or what MTOM makes of a message."""


class VersionMismatch(UnreadableRequest):
    """The root is an Envelope of another SOAP."""

    fault = "VersionMismatch"


class NotUnderstood(UnreadableRequest):
    """A header that must be understood is not. Carries the header's name."""

    fault = "MustUnderstand"

    def __init__(self, message: str, header: str) -> None:
        super().__init__(message)
        self.header = header


class PeerRefused(PeerError):
    """Another engine has come to the wrong place. It is to try again: who represents whom may just be changing."""


class UnknownOperation(EnvelopeError):
    """The body's child is no operation, or none that is offered at this address."""

    fault = "ActionNotSupported"


class InvalidRequest(PeerError):
    """An operation whose content breaks its schema."""

    fault = "Client"


class UnknownFilters(FilterError):
    """The Filter holds elements that we do not know. Carries their names."""

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names


class UnacceptableTermination(PeerError):
    """A termination time that is no time, or not in the future. Carries the earliest that would do."""

    fault = "UnacceptableTerminationTimeFault"

    def __init__(self, message: str, minimum: datetime, *, initial: bool) -> None:
        super().__init__(message)
        self.minimum = minimum
        if initial:
            self.fault = "UnacceptableInitialTerminationTimeFault"


class UnrecognizedPolicy(PeerError):
    """The SubscriptionPolicy holds elements that we do not know. Carries their names."""

    fault = "UnrecognizedPolicyRequestFault"

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names


class UnsupportedPolicy(PeerError):
    """The SubscriptionPolicy holds elements that we know and cannot honour here. Carries their names."""

    fault = "UnsupportedPolicyRequestFault"

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names


class ConsumerRefused(PeerError):
    """The ConsumerReference leads nowhere that we would push to. Carries the rule of the policy, if it was that."""

    fault = "SubscribeCreationFailedFault"

    def __init__(self, message: str, rule: str = "") -> None:
        super().__init__(message)
        self.rule = rule


class NotRegistered(PeerError):
    """The sender of a Notify is not registered for its topic, and the settings require that."""

    fault = "Client"


class PublisherUnreachable(DeliveryError):
    """No answer from a publisher; trying later makes sense."""


class PublisherRefused(DeliveryError):
    """A publisher answered with a fault, or with something that cannot be understood."""


class ResultRefused(PeerError):
    """The result of a push is not taken, for a reason that has this HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class OperationRefused(PeerError):
    """We know the operation and answer with the fault that its WSDL declares."""

    def __init__(self, message: str, fault: str) -> None:
        super().__init__(message)
        self.fault = fault


SecurityFault = Literal[
    "FailedAuthentication", "InvalidSecurity", "InvalidSecurityToken", "UnsupportedSecurityToken", "MessageExpired"
]
"""Faults of WS-Security (SOAP Message Security 1.1, section 12), by their local names."""


class AccessRefused(PeerError):
    """A request that is not carried out because of who asks. Nothing has changed."""

    fault = "Client"
    status = 403

    def headers(self) -> list[tuple[bytes, bytes]]:
        """HTTP headers of the answer."""
        return []


class PageRefused(AccessRefused):
    """A request of a web page of another origin, or for a host name that is not that of this gateway."""


class TooManyRequests(AccessRefused):
    """The client is over its rate. `retry_after_s` is when it will be below."""

    status = 429

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = max(1, math.ceil(retry_after_s))

    def headers(self) -> list[tuple[bytes, bytes]]:
        """When to come again."""
        return [(b"retry-after", str(self.retry_after_s).encode())]


class NotAuthenticated(AccessRefused):
    """No credentials, or none that prove anything. The message never says which part was wrong."""

    fault: str = "FailedAuthentication"
    status = 401

    def __init__(self, message: str, challenges: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.challenges = challenges

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What would be taken."""
        return [(b"www-authenticate", challenge.encode()) for challenge in self.challenges]


class TokenRefused(NotAuthenticated):
    """A WS-Security header that proves no identity."""

    status = 500

    def __init__(self, message: str, fault: SecurityFault = "FailedAuthentication") -> None:
        super().__init__(message)
        self.fault = fault


class Forbidden(AccessRefused):
    """The caller may not do that. `fault` may be one that the operation declares."""

    def __init__(self, message: str, fault: str = "Client") -> None:
        super().__init__(message)
        self.fault = fault


class IdentitiesAway(InfrastructureError):
    """The directory of users does not answer."""


class TooManyTopics(InfrastructureError):
    """Notifications have added as many topics as they may for now. `retry_after` is when there is room again."""
