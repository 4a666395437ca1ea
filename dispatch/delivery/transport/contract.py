"""What every transport promises.

- Before each new connection the policy checks the resolved address. A refused one is not connected to; the failure is
  "address" with the rule in `detail`. Through a proxy the address is unknown: only the URL's text is checked, and the
  proxy is responsible for the rest.
- An IRI is converted to a URI.
- Only http, https and, for datagrams to other engines, udp (`datagrams`); any other scheme, and a URL that cannot be
  read, is a failed result, never an exception.
- Redirects are not followed, proxies and credentials of the environment are not used, only the proxy of the settings.
- Over https the receiver's certificate and name are verified, with TLS 1.2 or newer; there is no way to switch it off.
- `total_timeout_s` bounds the whole push, `connect_timeout_s` the part until the connection is
  established, even if the receiver hangs or sends single bytes.
- No more than `max_response_bytes` of an answer are read; the first `keep_response_bytes` are kept. Compressed ones are
  neither requested nor decompressed. A head of more than 300 KiB is a failure.
- Connections are kept alive and reused. When a kept connection turns out to have been closed by the receiver before a
  byte of the answer came, the push is sent once more on a new connection: that is no failure of the receiver's.
- Data on a kept connection before a push is sent on it is no answer to that push: the connection is closed, and its
  receiver gets a new connection for each push from then on (`Excess`). Data that arrives between this check and the
  answer is taken for the answer: an answer of HTTP/1.1 does not name its request. If pushes follow without a pause,
  each then gets the answer to the push before it, until the connection is `KEPT_AT_MOST_S` old.
- The callback runs exactly once per push, on the thread that calls `drive`. No behaviour of a receiver raises.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import mktime_tz, parsedate_tz
from typing import Literal, Protocol

from arborcast.core.recent import Recent
from arborcast.core.security.outbound import AddressPolicy, Refusal

logger = logging.getLogger(__name__)

# Of TLS 1.3: an alert has 19 bytes, a key update 22, padding aside. An answer of HTTP/1.1 has more.
_SHORT_RECORD = 30

# Bytes of origins and URLs, twice.
_REMEMBERED = 4 * 1024 * 1024

# A URL whose refusal depends on its origin only: no user name, and characters that a URL can hold.
_ORDINARY = re.compile(r"(https?://[A-Za-z0-9.:\[\]-]+)(?:[/?#][!#-;=?-\[\]_a-z~]*)?", re.ASCII)


class UrlPolicyCache:
    """A cache of the policy's decisions on URLs, of one transport: usually one for an origin, whatever the path."""

    def __init__(self, policy: AddressPolicy) -> None:
        self._policy = policy
        self._known: Recent[str, tuple[Refusal | None]] = Recent(_REMEMBERED)

    def refusal(self, url: str) -> Refusal | None:
        """The reason to refuse this URL; None if its text is permitted."""
        ordinary = _ORDINARY.fullmatch(url)
        checked = url if ordinary is None else ordinary[1]
        known = self._known.get(checked)
        if known is None:
            known = (self._policy.check_url(checked),)
            self._known.put(checked, known, len(checked))
        return known[0]


class Excess:
    """Receivers (host and port) that sent unexpected data on a kept connection, such as a second answer. Of one
    transport, thread-safe. A receiver is forgotten after an hour or two without a push."""

    def __init__(self) -> None:
        self._known: Recent[tuple[str, int], bool] = Recent(1024 * 1024, 3_600.0)
        self._lock = threading.Lock()
        self.empty = True

    def __contains__(self, receiver: tuple[str, int]) -> bool:
        if self.empty:
            return False
        with self._lock:
            return self._known.get(receiver) is not None

    def check(self, receiver: tuple[str, int], kept: socket.socket) -> None:
        """Check a kept connection that is readable although no push is in flight on it."""
        try:
            head = socket.socket.recv(kept, 64, socket.MSG_PEEK | socket.MSG_DONTWAIT)  # of TLS the record as it is
        except OSError:
            return
        if receiver in self or not is_excess(head):
            return
        logger.warning(
            "The receiver at %s:%d sends more than one answer to a push: each push to it gets a new connection",
            *receiver,
        )
        with self._lock:
            self._known.put(receiver, True, len(receiver[0]))
            self.empty = False


def is_excess(head: bytes) -> bool:
    """Whether the first unread bytes of a kept connection are unexpected: not its end, a 408 (the time-out of a server)
    or a short record of TLS (an alert, a key update)."""
    if head[:1] in (b"\x15", b"\x17"):
        return head[:1] == b"\x17" and int.from_bytes(head[3:5], "big") > _SHORT_RECORD
    return head != b"" and head[8:13] != b" 408 "


USER_AGENT = "arborcast/0.1"

KEPT_AT_MOST_S = 300
"""The age at which a connection is not used again, however busy. 512 TLS handshakes in this time, one for each
connection that a worker keeps by default, are 0.4 % of a core."""

LATE_S = 1.0
"""A deadline noticed later than this has passed during a suspension of the process, or a wait for Kafka: the answers of
overdue pushes are read first."""

Failure = Literal["", "address", "dns", "connect", "tls", "timeout", "disconnected", "protocol", "internal"]
"""Why there is no complete answer; "" if there is one."""


@dataclass(frozen=True, slots=True)
class PushRequest:
    """One POST. Header values were validated when the envelope was prepared, so they contain no line breaks.
    `client_certificate` is a PEM file with certificate and key, in place of the configured one. The headers may contain
    credentials, so they are not in the repr. `result_by_ms` is the deadline of a later result, 0 for none
    (`dispatch.delivery.envelope.callback_of`)."""

    url: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes
    client_certificate: str = ""
    result_by_ms: int = 0


@dataclass(frozen=True, slots=True)
class PushResult:
    """The result of a push. `status` is 0 without the head of an answer. `failure` may be set beside a status: then the
    rest of the answer is missing. `response_bytes` counts the bytes of the body, `response` is its beginning. `later`:
    the head announces a later result. `sent`: it was sent, without an acknowledgement."""

    status: int
    failure: Failure = ""
    detail: str = ""
    duration_s: float = 0.0
    response: bytes = b""
    response_bytes: int = 0
    reused: bool = False
    retry_after_s: float = 0.0
    later: bool = False
    sent: bool = False


NO_REQUEST = PushRequest("", (), b"")

NO_RESULT = PushResult(0)

RESULT_HEADER = "Arborcast-Result"


def announces_later(value: str) -> bool:
    return value.strip().lower() == "later"


Callback = Callable[[PushResult], None]


class Ended(deque[tuple[Callback, PushResult]]):
    """Pushes with a result whose callbacks run in `drive`."""

    def run(self) -> int:
        """Run the callbacks of those so far; returns their number."""
        count = len(self)
        for _ in range(count):
            callback, result = self.popleft()
            callback(result)
        return count


LONGEST_RETRY_AFTER_S = 604_800.0
"""The maximum of a Retry-After: that of `retry.longest_retry_after_s`."""


def retry_after_s(value: str) -> float:
    """The wait of a Retry-After header, in seconds or until a date; 0.0 for an invalid one. Any number of digits is
    accepted."""
    if value.isascii() and value.isdigit():
        return min(float(value), LONGEST_RETRY_AFTER_S)
    date = parsedate_tz(value)
    if date is None:
        return 0.0
    try:
        return min(max(mktime_tz(date) - time.time(), 0.0), LONGEST_RETRY_AFTER_S)
    except (ValueError, OverflowError):
        return 0.0


class Transport(Protocol):
    """Sends pushes without blocking the caller. Used by one thread only."""

    @property
    def in_flight(self) -> int:
        """Pushes submitted whose callback has not run yet."""

    def submit(self, request: PushRequest, callback: Callback) -> None:
        """Begin a push, once this job has the lease on its logs (`core.fence`). May be called from a callback."""

    def drive(self, timeout_s: float) -> None:
        """Run the callbacks that are due; if there are none, wait up to `timeout_s` for the first, or for `wake`."""

    def wake(self) -> None:
        """In any thread: end the wait of the current `drive`, or of the next one."""

    def close(self) -> None:
        """Drop all connections. Pushes in flight are abandoned and their callbacks do not run."""
