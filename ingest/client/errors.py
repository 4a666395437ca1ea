"""What can go wrong for a client of a broker.

ClientError
├── FaultReceived           the broker said no, and why
├── UnreadableAnswer        something answered that is no broker
├── BrokerUnreachable       nobody answered
├── BrokerUnavailable       the broker asks to come back later
└── ClientClosed            the client was closed before this could be sent
"""

from __future__ import annotations

from topic_model.errors import ArborcastError


class ClientError(ArborcastError):
    """A call of the client failed."""


class FaultReceived(ClientError):
    """A SOAP fault. `fault` is the local name of its detail element, empty when it had none."""

    def __init__(self, reason: str, fault: str) -> None:
        super().__init__(f"{fault}: {reason}" if fault else reason)
        self.reason = reason
        self.fault = fault


class UnreadableAnswer(ClientError):
    """The answer is not what WS-Notification asks for."""


class BrokerUnreachable(ClientError):
    """No connection, or no answer in time. The request may or may not have been carried out."""


class BrokerUnavailable(ClientError):
    """The broker cannot store anything now. `retry_after` is in seconds, None when it did not say."""

    def __init__(self, message: str, retry_after: float | None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ClientClosed(ClientError):
    """The client was closed first. `sent` says whether the request had been sent at least once by then."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent
