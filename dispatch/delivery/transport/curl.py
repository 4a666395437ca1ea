"""Pushes through libcurl's multi interface: one thread, thousands of pushes in flight, about 10 us of CPU each.

Sockets are watched by a selector (`socket_action`) rather than by libcurl's `select`, which cannot handle descriptors
above 1023 and scans all of them on every call. libcurl repeats a push on a new connection if a reused one turns out to
be closed before a byte of the answer. It does not always check a reused connection for unexpected data, so the selector
watches kept connections, too, and pushes begin after a check.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import certifi
import pycurl

from arborcast.core import fence
from arborcast.core.security.outbound import AddressPolicy, GuardedSockets, place_of
from arborcast.core.security.uris import to_uri
from arborcast.dispatch.delivery.capacity import scopes_of
from arborcast.dispatch.delivery.transport import contract
from arborcast.dispatch.delivery.transport.contract import (
    RESULT_HEADER,
    USER_AGENT,
    Callback,
    Ended,
    Excess,
    Failure,
    PushRequest,
    PushResult,
    UrlPolicyCache,
    announces_later,
    retry_after_s,
)
from arborcast.dispatch.delivery.transport.lookups import Lookups
from arborcast.dispatch.settings import PushSettings

_RESULT = RESULT_HEADER.lower().encode()

# An attempt has the address and the duration in fields of their own.
_WHERE = re.compile(r"^Failed to connect to .{1,300} after [0-9]+ ms: ")

_EVENTS = {
    pycurl.POLL_IN: selectors.EVENT_READ,
    pycurl.POLL_OUT: selectors.EVENT_WRITE,
    pycurl.POLL_INOUT: selectors.EVENT_READ | selectors.EVENT_WRITE,
}


_FAILURES: dict[int, Failure] = {
    pycurl.E_URL_MALFORMAT: "address",
    pycurl.E_COULDNT_RESOLVE_HOST: "dns",
    pycurl.E_COULDNT_CONNECT: "connect",
    pycurl.E_COULDNT_RESOLVE_PROXY: "connect",
    97: "connect",  # CURLE_PROXY: the proxy refused
    pycurl.E_OPERATION_TIMEDOUT: "timeout",
    pycurl.E_GOT_NOTHING: "disconnected",
    pycurl.E_SEND_ERROR: "disconnected",
    pycurl.E_RECV_ERROR: "disconnected",
    pycurl.E_PARTIAL_FILE: "disconnected",
    # Also libcurl's code for an answer that is not HTTP; other schemes are refused before.
    pycurl.E_UNSUPPORTED_PROTOCOL: "protocol",
    8: "protocol",  # CURLE_WEIRD_SERVER_REPLY, to which pycurl gives an older name
    pycurl.E_HTTP2: "protocol",
    92: "protocol",  # CURLE_HTTP2_STREAM
    pycurl.E_SSL_CONNECT_ERROR: "tls",
    pycurl.E_SSL_CERTPROBLEM: "tls",
    pycurl.E_SSL_CIPHER: "tls",
    pycurl.E_PEER_FAILED_VERIFICATION: "tls",
    pycurl.E_SSL_CACERT_BADFILE: "tls",
    pycurl.E_SSL_ISSUER_ERROR: "tls",
    100: "protocol",  # CURLE_TOO_LARGE: headers without end
}


class CurlTransport:
    """The contract over one CurlMulti. It has twenty threads for lookups (pycurl has no option for more), a host takes
    two, and a name server that does not answer occupies them for ten seconds and more. So libcurl gets only hosts whose
    last lookup succeeded; `Lookups` looks up the others before."""

    def __init__(self, settings: PushSettings, policy: AddressPolicy) -> None:
        self._settings = settings
        self._policy = policy
        self._urls = UrlPolicyCache(policy)
        self._sockets = _Sockets(settings.total_timeout_s)
        self._multi = _Multi(self._sockets, max(settings.max_idle_connections, 1))
        self._lookups: Lookups[_Handle] = Lookups(settings.connect_timeout_s, self._sockets.wake)
        self._waiting: deque[_Handle] = deque()
        self._free: dict[str, list[_Handle]] = {}
        self._active: dict[Any, _Handle] = {}
        self._unsent = Ended()

    @property
    def in_flight(self) -> int:
        return len(self._active) + len(self._unsent)

    def submit(self, request: PushRequest, callback: Callback) -> None:
        fence.wait()
        refusal = self._urls.refusal(request.url)
        if refusal is not None:
            self._unsent.append((callback, PushResult(0, "address", str(refusal))))
            return
        # By certificate: a handle cannot remove its certificate. libcurl separates their connections.
        free = self._free.get(request.client_certificate)
        if free:
            handle = free.pop()
        else:
            handle = _Handle(self._settings, self._policy, request.client_certificate, self._sockets.connected)
        try:
            handle.prepare(request, callback)
        except (pycurl.error, UnicodeError, ValueError) as error:
            self._unsent.append((self._release(handle), PushResult(0, "address", str(error))))
            return
        self._active[handle.curl] = handle
        self._waiting.append(handle)

    def drive(self, timeout_s: float) -> None:
        if self._unsent.run():
            timeout_s = 0.0
        woken = self._turn(0.0)
        if not (self._finish() or woken):
            self._turn(timeout_s)
            self._finish()

    def wake(self) -> None:
        self._sockets.wake()

    def close(self) -> None:
        while self._waiting:
            del self._active[self._waiting.pop().curl]
        for curl, handle in self._active.items():
            if handle.added:
                self._multi.curl.remove_handle(curl)
        self._active.clear()
        self._unsent.clear()
        self._free.clear()
        self._multi.curl.close()
        self._sockets.close()

    def _turn(self, timeout_s: float) -> bool:
        """Serve the ready sockets; wait up to `timeout_s` for one, for libcurl's timer, for a lookup or for `wake`.
        Returns whether it was called."""
        due_at = min(self._multi.due_at, self._lookups.due_at)
        ready, woken = self._sockets.select(min(timeout_s, max(due_at - time.monotonic(), 0.0)))
        if time.monotonic() - self._multi.due_at > contract.LATE_S:
            self._read_late_answers()
        while self._waiting:
            handle = self._waiting.popleft()
            if self._settings.proxy or self._lookups.resolves(handle.host):
                self._add(handle)
            else:
                self._lookups.add(handle.host, handle)
        for handle, failure, waited_s in self._lookups.take():
            handle.waited(waited_s)
            if failure:
                self._unsent.append((self._release(handle), PushResult(0, "dns", failure, waited_s)))
            else:
                self._add(handle)
        for descriptor, mask in ready:
            # Our selector's and libcurl's names for readable and writable happen to be the same bits.
            self._multi.curl.socket_action(descriptor, mask)
        self._multi.run_due()
        return woken

    def _read_late_answers(self) -> None:
        """libcurl ends overdue pushes before it reads their answers."""
        for handle in self._active.values():
            handle.curl.setopt(pycurl.TIMEOUT_MS, 0)
        self._multi.curl.perform()
        for handle in self._active.values():
            handle.waited(handle.waited_s)
        self._multi.curl.perform()  # the timers of those without an answer are over

    def _add(self, handle: _Handle) -> None:
        """Begin the push. libcurl requests its first turn through the timer function."""
        handle.keep_alive(self._sockets.may_keep(handle.url))
        handle.added = True
        self._multi.curl.add_handle(handle.curl)

    def _finish(self) -> int:
        """Run the callbacks of the finished pushes; returns their number."""
        finished = self._unsent.run()
        for curl, code, message in self._multi.done():
            handle = self._active[curl]
            self._sockets.ended(curl.getinfo(pycurl.ACTIVESOCKET), handle)
            result = handle.result(code, message)
            if result.failure == "timeout" and result.reused:
                self._sockets.drop(handle.url)
            if result.failure == "dns":
                self._lookups.failed(handle.host)
            self._multi.curl.remove_handle(curl)
            self._release(handle)(result)
            finished += 1
        return finished

    def _release(self, handle: _Handle) -> Callback:
        """The handle is free for another push; returns the callback of its last one."""
        self._active.pop(handle.curl, None)
        callback = handle.callback
        handle.clear()
        self._free.setdefault(handle.certificate, []).append(handle)
        return callback


class _Multi:
    """A CurlMulti with its timer."""

    def __init__(self, sockets: _Sockets, most_idle: int) -> None:
        self.curl = pycurl.CurlMulti()
        self.curl.setopt(pycurl.M_SOCKETFUNCTION, sockets.watch)
        self.curl.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self.curl.setopt(pycurl.M_MAXCONNECTS, most_idle)
        self.due_at = math.inf

    def run_due(self) -> None:
        if self.due_at <= time.monotonic():
            self.due_at = math.inf
            self.curl.socket_action(pycurl.SOCKET_TIMEOUT, 0)

    def done(self) -> Iterator[tuple[Any, int, str]]:
        """The finished pushes, each with libcurl's code and message."""
        remaining = 1
        while remaining:
            remaining, succeeded, failed = self.curl.info_read()
            yield from [(curl, 0, "") for curl in succeeded]
            yield from failed

    def _set_timer(self, timeout_ms: int) -> None:
        self.due_at = math.inf if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000


class _Sockets:
    """The sockets of libcurl in a selector, and the kept connections."""

    def __init__(self, push_s: float) -> None:
        self._push_ms = int(push_s * 1000)
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, int] = {}  # events by descriptor: the selector's own table is much slower
        # Connections that libcurl does not watch, by descriptor: whether data on them is unexpected. The selector has
        # them, too. A descriptor stays when libcurl closes its connection.
        self._kept: dict[int, bool] = {}
        self._receivers: dict[int, tuple[str, int]] = {}  # by descriptor
        self._excess = Excess()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def select(self, timeout_s: float) -> tuple[list[tuple[int, int]], bool]:
        """The ready descriptors with their events, and whether `wake` was called. Kept connections with data are closed
        here, before libcurl runs: it may close one and use its descriptor for another."""
        ready = [(key.fd, mask) for key, mask in self._selector.select(timeout_s)]
        for descriptor, _ in ready:
            if descriptor in self._kept:
                self._check_kept(descriptor)
        own = self._woken.fileno()
        woken = any(descriptor == own for descriptor, _ in ready)
        if woken:
            self._woken.recv(4096)
            ready = [each for each in ready if each[0] != own]
        return ready, woken

    def wake(self) -> None:
        """End the current `select`, or the next one. In any thread."""
        # With a full buffer it is woken anyway; after `close` no `select` follows.
        with contextlib.suppress(OSError):
            self._wake.send(b"!")

    def may_keep(self, url: str) -> bool:
        """Whether a push to this URL may use a kept connection, and leave its own for another."""
        return self._excess.empty or place_of(url) not in self._excess

    def ended(self, descriptor: int, handle: _Handle) -> None:
        """A push over this connection has its result."""
        if descriptor in self._kept:
            self._kept[descriptor] = not handle.multiplexed

    def drop(self, url: str) -> None:
        """Close the kept connections to a receiver after one timed out, perhaps because the network is cut: each would
        cost the whole time of a push."""
        receiver = place_of(url)
        for descriptor in [each for each, over in self._kept.items() if over and self._receivers[each] == receiver]:
            del self._kept[descriptor]
            with contextlib.suppress(OSError):
                # An error if libcurl has closed the connection: another file may have its descriptor.
                self._selector.modify(descriptor, selectors.EVENT_READ | selectors.EVENT_WRITE)
                self._selector.unregister(descriptor)
                del self._receivers[descriptor]
                with socket.socket(fileno=os.dup(descriptor)) as kept:
                    kept.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._selector.close()
        self._woken.close()
        self._wake.close()

    def watch(self, event: int, descriptor: int, multi: object, data: object) -> None:
        """libcurl's socket function."""
        before = self._watched.get(descriptor)
        if event == pycurl.POLL_REMOVE:
            if before is None:
                return
            del self._watched[descriptor]
            if descriptor not in self._receivers:
                self._selector.unregister(descriptor)
                return
            with contextlib.suppress(OSError):  # the selector does not have a closed descriptor
                if before != pycurl.POLL_IN:
                    self._selector.modify(descriptor, selectors.EVENT_READ)
                self._kept[descriptor] = False
            return
        self._watched[descriptor] = event
        if before is not None:
            self._selector.modify(descriptor, _EVENTS[event])
            return
        if descriptor in self._kept:
            # The descriptor may be that of another connection: libcurl closed the first. `modify` would have no effect.
            del self._kept[descriptor]
            self._selector.unregister(descriptor)
        self._selector.register(descriptor, _EVENTS[event])

    def connected(self, descriptor: int, url: str) -> None:
        """A connection was opened for a push to this URL."""
        self._receivers[descriptor] = place_of(url)
        # The system closes it without an acknowledgement for the time of a push. A connection of HTTP/2 outlives the
        # time-out of a push, and all later ones would use it.
        with socket.socket(fileno=os.dup(descriptor)) as opened:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._push_ms)

    def _check_kept(self, descriptor: int) -> None:
        """A kept connection is readable: it is closed, or its receiver has sent unexpected data. libcurl reads those of
        HTTP/2."""
        over = self._kept.pop(descriptor)
        self._selector.unregister(descriptor)
        if not over:
            return
        receiver = self._receivers.pop(descriptor)
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as kept:
            if kept.family in (socket.AF_INET, socket.AF_INET6):
                self._excess.check(receiver, kept)
                # libcurl then finds a closed connection when it uses this one again, not a wrong answer.
                kept.recv(65_536, socket.MSG_DONTWAIT)
                kept.shutdown(socket.SHUT_RDWR)


class _Handle:
    """An easy handle with the state of its push; reused."""

    def __init__(
        self,
        settings: PushSettings,
        policy: AddressPolicy,
        certificate: str,
        connected: Callable[[int, str], None],
    ) -> None:
        self._connected = connected
        self._settings = settings
        self._may_multiplex = False
        self._keeps_alive = True
        self.certificate = certificate
        self._kept = b""
        self._received = 0
        self._overflow = False
        self.url = ""
        self.added = False
        """Whether the CurlMulti has it."""
        self.waited_s = 0.0
        """The time for a lookup of the host before."""
        self.callback: Callback = _no_callback
        self.curl = curl = pycurl.Curl()
        curl.setopt(pycurl.POST, 1)
        curl.setopt(pycurl.NOSIGNAL, 1)
        curl.setopt(pycurl.FOLLOWLOCATION, 0)
        curl.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        # http_proxy, no_proxy and .netrc of the job's environment are ignored.
        curl.setopt(pycurl.PROXY, settings.proxy)
        curl.setopt(pycurl.NOPROXY, "")
        curl.setopt(pycurl.NETRC, pycurl.NETRC_IGNORED)
        curl.setopt(pycurl.USERAGENT, USER_AGENT)
        # HTTP/2 where ALPN offers it; HTTP/1.1 otherwise, and without TLS.
        version = pycurl.CURL_HTTP_VERSION_2TLS if settings.http2 else pycurl.CURL_HTTP_VERSION_1_1
        curl.setopt(pycurl.HTTP_VERSION, version)
        _secure(curl, settings, certificate)
        self._sockets = GuardedSockets(policy)
        curl.setopt(pycurl.SOCKOPTFUNCTION, self._opened)
        if not settings.proxy:
            curl.setopt(pycurl.OPENSOCKETFUNCTION, self._open)
        self._limit_time(0.0)
        curl.setopt(pycurl.MAXAGE_CONN, int(settings.keep_alive_s))
        curl.setopt(pycurl.MAXLIFETIME_CONN, contract.KEPT_AT_MOST_S)
        curl.setopt(pycurl.WRITEFUNCTION, self._take)
        # libcurl's own reading of Retry-After ignores numbers of more than 18 digits and cuts others to six hours.
        self._head: list[bytes] = []
        curl.setopt(pycurl.HEADERFUNCTION, self._head.append)

    def prepare(self, request: PushRequest, callback: Callback) -> None:
        self._sockets.begin()
        self._kept, self._received, self._overflow = b"", 0, False
        self.callback = callback
        if request.url != self.url:
            self.url = ""
            self.curl.setopt(pycurl.URL, to_uri(request.url))
            self.url = request.url
            self._may_multiplex = self._settings.http2 and request.url[:6].lower() == "https:"
        # Without the empty Expect a larger body waits for "100 Continue", which many receivers never send.
        lines = [f"{name}: {value}" for name, value in request.headers]
        lines.append("Expect:")
        self.curl.setopt(pycurl.HTTPHEADER, lines)
        self.curl.setopt(pycurl.POSTFIELDS, request.body)

    @property
    def host(self) -> str:
        return scopes_of(to_uri(self.url))[1][1]

    def waited(self, waited_s: float) -> None:
        """The lookup of the host took this time of the push."""
        self.waited_s = waited_s
        self._limit_time(waited_s)

    def _limit_time(self, waited_s: float) -> None:
        for option, limit_s in (
            (pycurl.CONNECTTIMEOUT_MS, self._settings.connect_timeout_s),
            (pycurl.TIMEOUT_MS, self._settings.total_timeout_s),
        ):
            self.curl.setopt(option, max(1, int((limit_s - waited_s) * 1000)))

    def keep_alive(self, enabled: bool) -> None:
        """Whether the push may use a kept connection, and keep its own for another."""
        if enabled != self._keeps_alive:
            self._keeps_alive = enabled
            self.curl.setopt(pycurl.FRESH_CONNECT, not enabled)
            self.curl.setopt(pycurl.FORBID_REUSE, not enabled)

    @property
    def multiplexed(self) -> bool:
        """Whether the answer came over HTTP/2, where each names its request, and frames may arrive at any time."""
        return self._may_multiplex and self.curl.getinfo(pycurl.INFO_HTTP_VERSION) == pycurl.CURL_HTTP_VERSION_2_0

    def clear(self) -> None:
        """Drop the push: an idle handle must not keep the largest message of its past."""
        self._kept = b""
        self._head.clear()
        self.callback = _no_callback
        self.curl.setopt(pycurl.POSTFIELDS, b"")
        self.added = False
        if self.waited_s:
            self.waited(0.0)

    def result(self, code: int, message: str) -> PushResult:
        curl = self.curl
        status = curl.getinfo(pycurl.RESPONSE_CODE)
        failure = "" if code == 0 or self._overflow else self._failure(code, message)
        refusal = self._sockets.refusal
        if refusal is not None and failure == "connect":
            failure, message = "address", str(refusal)
        return PushResult(
            status=status if status >= 200 else 0,  # an interim answer does not count
            failure=failure,
            detail=_WHERE.sub("", message) if failure else "",
            duration_s=self.waited_s + curl.getinfo(pycurl.TOTAL_TIME),
            response=self._kept,
            response_bytes=self._received,
            reused=curl.getinfo(pycurl.NUM_CONNECTS) == 0,
            retry_after_s=retry_after_s(self._header(b"retry-after")) if status >= 300 else 0.0,
            later=status == 202 and announces_later(self._header(_RESULT)),
        )

    def _header(self, key: bytes) -> str:
        for line in reversed(self._head):
            if line.startswith(b"HTTP/"):
                break  # earlier lines belong to an interim answer
            name, _, value = line.partition(b":")
            if name.lower() == key:
                return value.strip().decode("latin-1")
        return ""

    def _failure(self, code: int, message: str) -> Failure:
        if code == pycurl.E_OPERATION_TIMEDOUT:
            # The times of its phases do not show it: after a failure libcurl sets those of later phases, too.
            phase = message.partition(" ")[0]
            return "dns" if phase == "Resolving" else "connect" if phase == "Connection" else "timeout"
        if "Too large response headers" in message:
            return "protocol"  # libcurl reports it as E_RECV_ERROR, too
        if "alert" in message and "tls" in message.lower():
            return "tls"  # TLS 1.3 reports a refused or missing client certificate only when reading
        return _FAILURES.get(code, "internal")

    def _open(self, purpose: int, address: Any) -> Any:
        """The socket of a new connection: libcurl passes the resolved address that it will use."""
        opened = self._sockets.open(address.family, address.socktype, address.protocol, address.addr)
        return pycurl.SOCKET_BAD if opened is None else opened

    def _opened(self, descriptor: int, purpose: int) -> int:
        # pycurl works on a duplicate of the socket that it is given, and the duplicate would be inherited.
        os.set_inheritable(descriptor, False)
        self._connected(descriptor, self.url)
        return int(pycurl.SOCKOPT_OK)

    def _take(self, data: bytes) -> int:
        self._received += len(data)
        keep = self._settings.keep_response_bytes
        if len(self._kept) < keep:
            self._kept += data[: keep - len(self._kept)]
        if self._received > self._settings.max_response_bytes:
            self._overflow = True
            return 0  # taking less than offered ends the transfer
        return len(data)


def _secure(curl: Any, settings: PushSettings, own_certificate: str) -> None:
    curl.setopt(pycurl.SSLVERSION, pycurl.SSLVERSION_TLSv1_2)  # or newer
    curl.setopt(pycurl.SSL_VERIFYPEER, 1)
    curl.setopt(pycurl.SSL_VERIFYHOST, 2)
    # As bytes: pycurl takes text in ASCII only, and the package may be installed anywhere.
    curl.setopt(pycurl.CAINFO, os.fsencode(settings.tls_ca_file or certifi.where()))
    certificate = own_certificate or settings.tls_client_certificate
    if certificate:
        key = certificate if own_certificate else settings.tls_client_key or certificate
        curl.setopt(pycurl.SSLCERT, os.fsencode(certificate))
        curl.setopt(pycurl.SSLKEY, os.fsencode(key))


def _no_callback(result: PushResult) -> None:
    raise AssertionError("a handle without a push has no result")
