"""What the client takes and returns, how it retries and batches, and what can go wrong:

ClientError
├── FaultReceived           the broker said no, and why
├── UnreadableAnswer        something answered that is no broker
├── BrokerUnreachable       nobody answered
├── BrokerUnavailable       the broker asks to come back later
├── ResultNotTaken          what was said later of a push: too late, or not for the first time
└── ClientClosed            the client was closed before this could be sent
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, get_args

from arborcast.core.errors import ArborcastError, ConfigError
from arborcast.topic_model.subscriptions import Reliability


class ClientError(ArborcastError):
    """A call of the client failed."""


class FaultReceived(ClientError):
    """A SOAP fault. `fault` is the local name of its detail element, empty when it had none; `status` that of the HTTP
    answer: with 401 the broker asks who is there."""

    def __init__(self, reason: str, fault: str, status: int = 500) -> None:
        super().__init__(f"{fault}: {reason}" if fault else reason)
        self.reason = reason
        self.fault = fault
        self.status = status


class UnreadableAnswer(ClientError):
    """The answer is not what WS-Notification asks for."""


class BrokerUnreachable(ClientError):
    """No connection, or no answer in time. `reason` is why, alone. Where `sent` is true the request may or may not have
    been carried out; else it certainly was not."""

    def __init__(self, message: str, reason: str = "", *, sent: bool = True) -> None:
        super().__init__(message)
        self.reason = reason
        self.sent = sent


class BrokerUnavailable(ClientError):
    """The broker cannot store anything now. `retry_after` is in seconds, None when it did not say."""

    def __init__(self, message: str, retry_after: float | None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ResultNotTaken(ClientError):
    """The broker does not take the result of a push. `status` is that of its answer: 410 when it came too late."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ClientClosed(ClientError):
    """The client was closed first. `sent` says whether the request had been sent at least once by then."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(frozen=True)
class Remote:
    """Something at a broker. `address` is where requests about it go.

    `parameters` are reference parameters (XML fragments) that brokers other than ours may ask to have repeated as
    headers of those requests.
    """

    address: str
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True)
class RemoteSubscription(Remote):
    """A subscription; `terminates` None means that it has no end.

    `secret` is what its pushes are signed with when the broker made it: it is shown this once.
    """

    terminates: datetime | None = None
    secret: str = field(default="", repr=False)


@dataclass(frozen=True)
class Credentials:
    """User and password, or a token: what an Arborcast broker's pushes are to carry, or a client's own requests. For
    pushes also the name of a client certificate that the broker's operator has put there."""

    user: str = ""
    password: str = field(default="", repr=False)
    bearer: str = field(default="", repr=False)
    certificate: str = ""


InformationKind = Literal["signal", "command", "state", "event", "request"]


@dataclass(frozen=True)
class Delivery:
    """How an Arborcast broker delivers to a subscription; None means as the broker is set. `strict`: nothing is pushed
    before what came earlier is settled. What the `reliability` "strict" gets is moreover tried until it is delivered;
    "timely" gets what can be pushed at once, and nothing later. `priority`, -100 to 100, ranks it among other
    subscriptions, larger first.

    When nothing has come for as long as the `deadline`, the subscriber is sent a message on
    {urn:arborcast}system/subscription/deadline-missed, and another one on …/deadline-met when something comes again;
    with `deadline_per_topic` for each topic of which something has come. Messages that were accepted within the
    `minimum_interval` after one that came are left out: of its topic, or, without `interval_per_topic`, of all."""

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
        """What suits a kind of information: a `signal` is worth nothing a second later; a `command` and an `event` are
        to arrive, each one and in order; of a `state` the last one counts, and one a second is enough (subscribe with
        `current`, to know it at once); a `request` is to be answered, and silence is to be noticed. Raises ConfigError
        for any other word."""
        match kind:
            case "signal":
                return Delivery(reliability="timely", lifespan=timedelta(seconds=1))
            case "command" | "event":
                return Delivery(reliability="strict")
            case "state":
                return Delivery(minimum_interval=timedelta(seconds=1))
            case "request":
                return Delivery(reliability="strict", deadline=timedelta(seconds=5))
        raise ConfigError(f"there are the kinds {', '.join(get_args(InformationKind))}, no {kind!r}")


@dataclass(frozen=True)
class RemotePullPoint(Remote):
    """A pull point. Give its `address` as the consumer of a subscription."""


@dataclass(frozen=True)
class RemoteRegistration(Remote):
    """A publisher's registration; `consumer` is where its notifications are to be sent, None for the broker itself."""

    consumer: str | None = None


@dataclass(frozen=True)
class Retries:
    """How often a request is repeated, and the pauses in between, in seconds.

    The first pause is `first_s`, each further one twice as long, none longer than `longest_s`; a broker's Retry-After
    counts if it asks for more, and one that asks for more than `longest_s` is for the caller to decide about: then
    nothing is repeated. Nor is it with `attempts` = 1. Without `unanswered` only what a broker puts off is repeated:
    somebody who waits would rather hear at once that nobody answers.
    """

    attempts: int = 12  # half a minute: a gateway that is started again is back
    first_s: float = 0.1
    longest_s: float = 5.0
    unanswered: bool = True

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first_s < 0 or self.longest_s < self.first_s:
            raise ConfigError(f"{self}: attempts must be 1 or more, and 0 <= first_s <= longest_s")

    def pause_after(self, attempt: int, asked_s: float | None = None) -> float | None:
        """Seconds to wait after attempt number `attempt` (from 1) failed; None for no further attempt."""
        asked = asked_s or 0.0
        if attempt >= self.attempts or asked > self.longest_s:
            return None
        pause: float = min(self.first_s * 2 ** min(attempt - 1, 60), self.longest_s)
        return max(pause, asked)


@dataclass(frozen=True)
class Batching:
    """Notifications that travel together in one request: when it is full, or when the first has waited `linger_s`."""

    messages: int = 100
    bytes: int = 256 * 1024
    linger_s: float = 0.005

    def __post_init__(self) -> None:
        if self.messages < 1 or self.bytes < 1 or self.linger_s < 0:
            raise ConfigError(f"{self}: messages and bytes must be 1 or more, linger_s 0 or more")
