"""Parameters and results of the client, its retries and batches, and its exceptions:

ClientError
├── FaultReceived           a SOAP fault of the broker
├── UnreadableAnswer        an answer that is not from a broker
├── BrokerUnreachable       no answer
├── BrokerUnavailable       the broker is temporarily unavailable
├── ResultNotTaken          the broker refused the deferred result of a push: late, or repeated
└── ClientClosed            the client was closed before the request was done
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, get_args

from arborcast.core.backoff import Backoff
from arborcast.core.errors import ArborcastError, ConfigError
from arborcast.topic_model.subscriptions import Reliability


class ClientError(ArborcastError):
    """A call of the client failed."""


class FaultReceived(ClientError):
    """A SOAP fault. `fault` is the local name of its detail element, empty without one; `status` is the HTTP status:
    with 401 the broker requires credentials."""

    def __init__(self, reason: str, fault: str, status: int = 500) -> None:
        super().__init__(f"{fault}: {reason}" if fault else reason)
        self.reason = reason
        self.fault = fault
        self.status = status


class UnreadableAnswer(ClientError):
    """The answer is not valid in WS-Notification."""


class BrokerUnreachable(ClientError):
    """No connection, or no answer in time. `reason` is the reason without the address. If `sent`, the request may or
    may not have been executed; otherwise it certainly was not."""

    def __init__(self, message: str, reason: str = "", *, sent: bool = True) -> None:
        super().__init__(message)
        self.reason = reason
        self.sent = sent


class BrokerUnavailable(ClientError):
    """The broker cannot store messages now. `retry_after` is in seconds; None without a value from the broker."""

    def __init__(self, message: str, retry_after: float | None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ResultNotTaken(ClientError):
    """The broker refused the deferred result of a push. `status` is the HTTP status: 410 for a late result."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ClientClosed(ClientError):
    """The client was closed before the request was done. `sent`: the request was sent at least once."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(frozen=True)
class Remote:
    """A resource at a broker. `address` is the address of requests to it.

    `parameters` are reference parameters (XML fragments), which some brokers require as headers of those requests.
    """

    address: str
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True)
class RemoteSubscription(Remote):
    """A subscription; `terminates` None means no end.

    `secret` is the signing secret, if the broker generated it; it is returned only once.
    """

    terminates: datetime | None = None
    secret: str = field(default="", repr=False)


@dataclass(frozen=True)
class Credentials:
    """User and password, or a token, for the requests of a client or the pushes of an Arborcast broker. For pushes also
    the name of a client certificate that the broker's operator has installed."""

    user: str = ""
    password: str = field(default="", repr=False)
    bearer: str = field(default="", repr=False)
    certificate: str = ""


InformationKind = Literal["signal", "command", "state", "event", "request"]


@dataclass(frozen=True)
class Delivery:
    """The delivery policy of a subscription at an Arborcast broker; None means the broker's setting. `strict`: a
    message is pushed only after all earlier ones are settled. With the `reliability` "strict" messages are also retried
    until they are delivered; "timely" messages are pushed at once or dropped. `priority`, -100 to 100, ranks it among
    other subscriptions, larger first.

    After the time `deadline` without a message, the subscriber gets a message on
    {urn:arborcast}system/subscription/deadline-missed, and another one on …/deadline-met after the next message; with
    `deadline_per_topic`, for each topic with messages so far. Messages accepted within the `minimum_interval` after a
    delivered one are dropped: of its topic, or, without `interval_per_topic`, of all topics."""

    strict: bool = False
    maximum_attempts: int | None = None
    lifespan: timedelta | None = None
    deadline: timedelta | None = None
    deadline_per_topic: bool = False
    priority: int = 0
    minimum_interval: timedelta | None = None
    interval_per_topic: bool = True
    reliability: Reliability = "adaptive"

    @staticmethod
    def of(kind: InformationKind) -> Delivery:
        """The policy for a kind of information: a `signal` is useless after a second; each `command` and `event` must
        arrive, in order; of a `state` only the last value counts, and one per second is enough (subscribe with
        `current` to get it at once); a `request` must be answered, and its absence is reported. Raises ConfigError for
        any other value."""
        match kind:
            case "signal":
                return Delivery(reliability="timely", lifespan=timedelta(seconds=1))
            case "command" | "event":
                return Delivery(reliability="strict")
            case "state":
                return Delivery(minimum_interval=timedelta(seconds=1))
            case "request":
                return Delivery(reliability="strict", deadline=timedelta(seconds=5))
        raise ConfigError(f"{kind!r} is not a kind of information; use one of {', '.join(get_args(InformationKind))}")


@dataclass(frozen=True)
class RemotePullPoint(Remote):
    """A pull point, for the parameter `to` of `subscribe`."""


@dataclass(frozen=True)
class RemoteRegistration(Remote):
    """A publisher's registration; `consumer` is the address for its notifications, None for the broker itself."""

    consumer: str | None = None


@dataclass(frozen=True)
class Retries:
    """The number of attempts of a request, and the pauses between them, in seconds.

    The first pause is `first_s`; each further one is twice as long, up to `longest_s`. A broker's Retry-After is
    respected if it is longer; above `longest_s` the request is not repeated, and the caller decides. With `attempts` =
    1 nothing is repeated. Without `unanswered` only requests that a broker answered with a temporary failure are
    repeated, for interactive programs, which should report a missing answer at once.
    """

    attempts: int = 12  # half a minute, enough for the restart of a gateway
    first_s: float = 0.1
    longest_s: float = 5.0
    unanswered: bool = True

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first_s < 0 or self.longest_s < self.first_s:
            raise ConfigError(f"{self}: attempts must be 1 or more, and 0 <= first_s <= longest_s")

    def pause_after(self, attempt: int, asked_s: float | None = None) -> float | None:
        """Seconds to wait after the failure of attempt number `attempt` (from 1); None for no further attempt."""
        required = asked_s or 0.0
        if attempt >= self.attempts or required > self.longest_s:
            return None
        return max(Backoff(self.first_s, self.longest_s).after(attempt), required)


@dataclass(frozen=True)
class Batching:
    """Limits of a batch of notifications; it is sent when it is full, or `linger_s` after its first notification."""

    messages: int = 100
    bytes: int = 256 * 1024
    linger_s: float = 0.005

    def __post_init__(self) -> None:
        if self.messages < 1 or self.bytes < 1 or self.linger_s < 0:
            raise ConfigError(f"{self}: messages and bytes must be 1 or more, linger_s 0 or more")
