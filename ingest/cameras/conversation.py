"""The conversation with one camera: the next request, and the consequence of its outcome. Pure.

Requests are made one by one: many cameras mix up parallel ones. A camera with pull points is pulled; others push to the
gateway, and their clock is read every few seconds, which shows that they answer.

A lease is renewed after half of its time, and is given up only on a Fault. A camera that refuses a renewal gets a new
subscription beside the old one, which is pulled once more. No subscription is ended by Unsubscribe, since some cameras
then end those of all clients: it expires soon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from arborcast.core.backoff import Backoff
from arborcast.topic_model.records.control import CameraCondition
from arborcast.topic_model.subscriptions import EndpointReference

LEASE_S = 120
"""The requested time: a subscription that was lost takes a place in the camera for so long."""

PATIENCE_S = 29.0
"""Time for an answer: slow cameras take 20 s more than a pull waits. A camera without an answer for so long is away."""

PULL_S = 8
_HEARTBEAT_S = 6.0
_CLOCK_S = 3_600.0

# The patience with a camera that is not connected: its next attempt must begin soon.
_SHORT_S = 24.0
_SHORTEST_S = 6.0

# Trouble of a connected camera that ends earlier is not reported.
_TROUBLE_S = 20.0

PAUSES = Backoff(1.0, 5.0)

# After refused credentials: cameras lock users out.
_DENIED_S = 300.0
_CLOCKS_EQUAL_S = 2.0

# Two readings of the clock of a camera whose answers take a varying time always differ.
_MOST_CLOCKS = 2

# Some cameras do not wait in PullMessages.
_IDLE_S = 1.0

# The time between renewals is bounded: cameras were seen to read minutes as seconds, and to grant years.
_RENEW_AFTER_S = (5.0, 300.0)

# Unreadable answers in a row, and subscriptions in a row without a good pull, after which another way is tried.
_BROKEN, _BARREN = 3, 2

_USUAL_PATHS = ("/onvif/event_service", "/onvif/Events")


class CameraOperation(Enum):
    """The requests."""

    CLOCK = "GetSystemDateAndTime"
    SERVICES = "GetCapabilities"
    CREATE = "CreatePullPointSubscription"
    SUBSCRIBE = "Subscribe"
    PULL = "PullMessages"
    RENEW = "Renew"
    SYNCHRONIZE = "SetSynchronizationPoint"


@dataclass(frozen=True)
class Request:
    """A request to the address `url`. `to` is the subscription as the camera named it; `wait_s` is the time that a pull
    waits; `absolute`: the end of a lease is written as a time, not as a duration."""

    operation: CameraOperation
    url: str
    patience_s: float
    to: EndpointReference | None = None
    wait_s: int = 0
    absolute: bool = False


class Silent(NamedTuple):
    """No answer."""

    text: str


class Broken(NamedTuple):
    """An answer that cannot be read."""

    text: str


class Fault(NamedTuple):
    """A SOAP Fault, or a refusal of HTTP. denied: of the credentials; unsupported: of the operation."""

    text: str
    denied: bool = False
    unsupported: bool = False


class Clock(NamedTuple):
    """The camera's clock, compared with the gateway's."""

    offset_s: float


class Services(NamedTuple):
    """The address of the event service; empty if the answer has none."""

    address: str


class Granted(NamedTuple):
    """A new or (without `reference`) a renewed subscription, for this time."""

    lasts_s: float
    reference: EndpointReference | None = None


class Done(NamedTuple):
    """The answer to a pull, with a number of events, or to SetSynchronizationPoint."""

    events: int = 0


Outcome = Silent | Broken | Fault | Clock | Services | Granted | Done


@dataclass
class _Subscription:
    """A subscription at a camera. `urls` are its possible addresses, the most likely first; once one has worked, only
    that. `replace`: a new subscription is needed. `broken` counts the last pulls with unreadable answers."""

    reference: EndpointReference
    urls: list[str]
    renew_at: float = float("-inf")
    ends_at: float = float("-inf")
    proven: bool = False
    pulled: bool = False
    absolute: bool = False
    replace: bool = False
    synchronize: bool = False
    broken: int = 0

    def is_elsewhere(self) -> bool:
        """Whether to try the next address."""
        if not self.proven and len(self.urls) > 1:
            del self.urls[0]
            return True
        return False

    def is_at(self, url: str) -> None:
        """It answered here."""
        self.proven, self.urls = True, [url]

    def lasts(self, granted_s: float, now: float) -> None:
        least, most = _RENEW_AFTER_S
        self.ends_at = now + granted_s
        self.renew_at = now + max(least, min(most, granted_s / 2))
        if granted_s < LEASE_S / 2 and not self.absolute:
            # Some cameras read durations wrong.
            self.absolute, self.renew_at = True, now

    def is_kept(self) -> None:
        """Its successor does not exist yet: it lasts as long as the camera grants."""
        self.replace, self.renew_at = False, float("inf")


class CameraStatus(NamedTuple):
    """The state of a camera, None before the end of the first attempt, and the reason for it."""

    state: CameraCondition | None = None
    error: str = ""


class Conversation:
    """Times are seconds of one monotonic clock. `known` is the subscription of an earlier process."""

    def __init__(
        self,
        url: str,
        known: EndpointReference | None = None,
        *,
        pushes: bool = False,
        pause: Callable[[int], float] = PAUSES.jittered,
    ) -> None:
        self._url = url
        self._pause = pause
        self._subscription: _Subscription | None = None
        if known is not None:
            self._subscription = _Subscription(known, addresses(url, known.address), synchronize=True)
        self._old: _Subscription | None = None
        self._services: list[str] = []
        self._failures = self._barren = 0
        self._denied_at: list[float] = []  # the offsets of the clock with which credentials were refused
        self._clock_due = self._wait_until = float("-inf")
        self._trouble_since: float | None = None
        self.by_push = pushes and known is not None
        """Whether the camera pushes its events, or a subscription for that is requested."""
        self.status = CameraStatus()
        self.offset_s = 0.0
        self.renewals = 0

    @property
    def subscription(self) -> EndpointReference | None:
        """The current subscription, as the camera named it."""
        return None if self._subscription is None else self._subscription.reference

    @property
    def fails(self) -> bool:
        """Whether no events flowed since the last failure."""
        return self._failures > 0

    def next(self, now: float, *, hold: bool = False) -> Request | float:
        """The next request, or the time for the next call. `hold`: no events can be stored now, so they have to stay in
        the camera."""
        if now < self._wait_until:
            return self._wait_until
        if self._trouble_since is None:
            self._trouble_since = now
        if self._clock_due <= now:
            return self._request(now, CameraOperation.CLOCK, self._url)
        current = self._subscription
        if current is None or current.replace:
            if not self._services:
                return self._request(now, CameraOperation.SERVICES, self._url)
            return self._request(
                now, CameraOperation.SUBSCRIBE if self.by_push else CameraOperation.CREATE, self._services[0]
            )
        if self._old is not None and not hold:
            return self._request(now, CameraOperation.PULL, self._old.urls[0], self._old.reference, 1)
        if current.renew_at <= now:
            return self._request(now, CameraOperation.RENEW, current.urls[0], current.reference)
        if current.synchronize:
            return self._request(now, CameraOperation.SYNCHRONIZE, current.urls[0], current.reference)
        if self.by_push or hold:
            self._trouble_since = self._trouble_since if self.by_push else None
            return min(self._clock_due, current.renew_at)
        # A short one shows soon that events can arrive.
        long = current.pulled and self.status.state == "connected"
        wait_s = int(min(PULL_S, current.renew_at - now)) if long else 1
        return self._request(now, CameraOperation.PULL, current.urls[0], current.reference, max(1, wait_s))

    def take(self, request: Request, outcome: Outcome, now: float) -> None:
        match outcome:
            case Silent(text):
                self._silent(request, text, now)
            case Fault(text, denied=True) if request.operation is not CameraOperation.CLOCK:
                self._denied(text, now)
            case Fault() | Broken():
                self._refused(request, outcome, now)
            case _:
                self._good(request, outcome, now)

    def _request(
        self, now: float, operation: CameraOperation, url: str, to: EndpointReference | None = None, wait_s: int = 0
    ) -> Request:
        patience_s = _SHORT_S
        if self.status.state == "connected" and self._trouble_since is not None:
            patience_s = max(_SHORTEST_S, PATIENCE_S - (now - self._trouble_since))
        absolute = self._subscription is not None and self._subscription.absolute
        return Request(operation, url, patience_s, to, wait_s, absolute)

    def _good(self, request: Request, outcome: Clock | Services | Granted | Done, now: float) -> None:
        current = self._subscription
        if request.operation is not CameraOperation.CLOCK:
            self._denied_at.clear()
        match outcome:
            case Clock(offset_s):
                self.offset_s = offset_s
                self._clock_read(now)
            case Services(address):
                found = addresses(self._url, address) if address else []
                self._services = list(dict.fromkeys([*found, *self._usual_services()]))
            case Granted(granted_s, None) if current is not None:
                self.renewals += 1
                current.is_at(request.url)
                current.lasts(granted_s, now)
                self._flows(now)
            case Granted(granted_s, reference) if reference is not None:
                self._old = None if self.by_push else current
                self._subscription = _Subscription(reference, addresses(self._url, reference.address))
                self._subscription.lasts(granted_s, now)
                self._services = [request.url]
                if self.by_push:
                    self._clock_due = now + _HEARTBEAT_S
                    self._flows(now)
            case Done() if self._old is not None and request.to is self._old.reference:
                self._old = None
            case Done(events) if current is not None:
                current.is_at(request.url)
                if request.operation is CameraOperation.SYNCHRONIZE:
                    current.synchronize = False
                    return
                self._barren, current.broken, current.pulled = 0, 0, True
                if not events and self._trouble_since is not None:
                    self._wait_until = self._trouble_since + _IDLE_S  # the beginning of this pull, or earlier
                self._flows(now)

    def _clock_read(self, now: float) -> None:
        if self.by_push and self._subscription is not None:
            self._clock_due = now + _HEARTBEAT_S
            self._flows(now)
        else:
            self._clock_due = now + _CLOCK_S
            if not self._failures:
                self._trouble_since = None

    def _flows(self, now: float) -> None:
        """Events can arrive."""
        self._failures = 0
        self._trouble_since = now if self.by_push else None
        self.status = CameraStatus("connected")

    def _silent(self, request: Request, text: str, now: float) -> None:
        if self._goes_on_without(request):
            return
        current = self._subscription
        if current is not None:
            match request.operation:
                case CameraOperation.CLOCK if not self.by_push:
                    self._clock_due = now + _HEARTBEAT_S  # the next pull decides
                case CameraOperation.PULL:
                    current.synchronize = True  # its answer may be lost
                case CameraOperation.SYNCHRONIZE:
                    current.synchronize = False
                case CameraOperation.RENEW:
                    current.renew_at = now + _RENEW_AFTER_S[0]
                case _ if current.replace:
                    current.is_kept()
            if now >= current.ends_at:
                # The address may have changed.
                self._subscription, self._services, self._clock_due, self.by_push = None, [], now, False
        self._failed("away", text, now)

    def _denied(self, text: str, now: float) -> None:
        before = self._denied_at
        if len(before) < _MOST_CLOCKS and not (before and abs(self.offset_s - before[-1]) <= _CLOCKS_EQUAL_S):
            before.append(self.offset_s)
            self._clock_due = now
            return
        before.clear()
        self._wait_until = now + _DENIED_S
        self.status = CameraStatus("refused", f"the user or the password is refused: {text}")

    def _refused(self, request: Request, outcome: Fault | Broken, now: float) -> None:
        """A Fault, or an unreadable answer."""
        current = self._subscription
        match request.operation:
            case CameraOperation.CLOCK:
                self._clock_read(now)
            case CameraOperation.SERVICES:
                self._services = self._usual_services()
            case CameraOperation.SYNCHRONIZE if current is not None:
                current.synchronize = False
            case CameraOperation.RENEW if current is not None and isinstance(outcome, Broken):
                current.renew_at = now + _RENEW_AFTER_S[0]
            case CameraOperation.CREATE if current is not None:
                current.is_kept()
            case CameraOperation.CREATE if isinstance(outcome, Fault) and outcome.unsupported:
                self.by_push = True
            case _ if not self._goes_on_without(request):
                self._ended(request, outcome, now)

    def _ended(self, request: Request, outcome: Fault | Broken, now: float) -> None:
        """A subscription is refused, or has ended."""
        current = self._subscription
        if current is not None and request.operation is CameraOperation.RENEW:
            current.absolute, current.replace = not current.absolute, current.absolute
            if current.replace and self.by_push:
                self._subscription = None  # it has no messages
            return
        if current is not None and isinstance(outcome, Broken):
            current.broken, current.synchronize = current.broken + 1, True
        if current is None or isinstance(outcome, Fault) or current.broken >= _BROKEN:
            self._subscription, self._clock_due = None, now
        if current is not None and request.operation is CameraOperation.PULL and isinstance(outcome, Fault):
            if current.pulled:
                return  # another one at once
            self._barren += 1
            self.by_push = self._barren >= _BARREN
        self._failed("refused", outcome.text, now)

    def _goes_on_without(self, request: Request) -> bool:
        """Whether another address can be tried, or the request was the last to an old subscription."""
        current = self._subscription
        if request.operation in (CameraOperation.CREATE, CameraOperation.SUBSCRIBE):
            self.by_push = False
            del self._services[:1]
            return bool(self._services)
        if self._old is not None and request.to is self._old.reference:
            self._old = None
            return True
        return request.to is not None and current is not None and current.is_elsewhere()

    def _failed(self, state: CameraCondition, text: str, now: float) -> None:
        self._failures += 1
        self._wait_until = now + self._pause(self._failures)
        if self.status.state == "connected" and self._trouble_since is not None:
            until = self._trouble_since + _TROUBLE_S
            if now < until:
                self._wait_until = min(self._wait_until, until)
                return
        self.status = CameraStatus(state, text)

    def _usual_services(self) -> list[str]:
        parts = urlsplit(self._url)
        return [self._url, *(parts._replace(path=path, query="").geturl() for path in _USUAL_PATHS)]


def addresses(configured: str, given: str) -> list[str]:
    """The possible meanings of an address from a camera, the most likely first: always on the configured host. Cameras
    send 0.0.0.0, addresses behind their router, and addresses without a port."""
    try:
        own, other = urlsplit(configured), urlsplit(given)
        port = other.port
    except ValueError:
        return [configured]
    return list(dict.fromkeys(_variants(own, other, port)))


def _variants(own: SplitResult, other: SplitResult, port: int | None) -> Iterator[str]:
    host = own.netloc.rpartition(":")[0] if own.port else own.netloc
    behind = other._replace(scheme=own.scheme, netloc=own.netloc, fragment="").geturl()
    if port and other.scheme in ("http", "https"):
        there = other._replace(netloc=f"{host}:{port}", fragment="").geturl()
        yield from (there, behind) if other.hostname == own.hostname else (behind, there)
    else:
        yield behind
        if other.scheme in ("http", "https"):
            yield other._replace(netloc=host, fragment="").geturl()
