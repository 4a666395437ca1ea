"""Pushes through requests-futures: a thread per push in flight, for hosts without libcurl.

The session is lean: cookies, netrc, proxies and certificates of the environment, and redirects are left out, which is
safer and doubles the throughput. requests has timeouts per read only, so `drive` enforces the total one: it shuts down
the socket of an overdue push.
"""

from __future__ import annotations

import contextlib
import heapq
import http.client
import queue
import socket
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast

import requests
import urllib3
from requests.structures import CaseInsensitiveDict
from requests_futures.sessions import FuturesSession

from arborcast.core import fence
from arborcast.core.security.checked_connections import (
    CheckedAdapter,
    CheckedConnection,
    CheckedTlsConnection,
    body_of,
    refusal_in,
)
from arborcast.core.security.outbound import AddressPolicy, place_of
from arborcast.core.security.uris import to_uri
from arborcast.dispatch.delivery.transport import contract
from arborcast.dispatch.delivery.transport.contract import (
    RESULT_HEADER,
    USER_AGENT,
    Callback,
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

# One for each push in flight with the default settings, also for those without a waiting lane: with fewer, hanging
# receivers take the threads of other pushes. They are started on demand.
_MAX_THREADS = 1_024

# libcurl's limit: each retry may use another kept connection that is closed.
_MAX_STALE = 5


@dataclass
class _Push:
    """A push in flight; shared by the thread that sends it and the one that calls `drive`."""

    request: PushRequest
    callback: Callback
    lock: threading.Lock = field(default_factory=threading.Lock)
    submitted: float = field(default_factory=time.monotonic)
    started: float = 0.0
    status: int = 0
    opened: bool = False
    overdue: bool = False
    connection: Any = None

    @property
    def host(self) -> str:
        """The receiver's host; empty for a URL that cannot be read."""
        try:
            return place_of(to_uri(self.request.url))[0]
        except ValueError:
            return ""

    @property
    def over_kept(self) -> bool:
        """Whether it is sent over a connection of an earlier push."""
        return not self.opened and getattr(self.connection, "sock", None) is not None

    def check(self) -> None:
        """Raises TimeoutError if it has been aborted."""
        if self.overdue:
            raise TimeoutError("the time of the push was over before it could be sent")

    def abort(self) -> None:
        """Break off the connection."""
        with self.lock:
            self.overdue = True
            sock = getattr(self.connection, "sock", None)
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)


class _Current(threading.local):
    push: _Push | None = None


_current = _Current()


class _Watched(CheckedConnection):
    """Reports the connection of the current push, and whether it is new."""

    excess: Excess
    opened_at = 0.0

    @property
    def is_connected(self) -> bool:
        """Whether a kept connection may be used again: it is open, not too old, and has nothing to read."""
        receiver = (self.host.lower(), self.port)
        if self.sock is None or receiver in self.excess:
            return False
        if time.monotonic() - self.opened_at > contract.KEPT_AT_MOST_S:
            return False
        if super().is_connected:
            return True
        self.excess.check(receiver, self.sock)
        return False

    def connect(self) -> None:
        super().connect()
        self.opened_at = time.monotonic()
        push = _current.push
        if push is not None:
            push.opened = True
            push.check()

    def putrequest(self, *args: Any, **kwargs: Any) -> None:
        push = _current.push
        if push is not None:
            with push.lock:
                push.connection = self
                push.check()
        super().putrequest(*args, **kwargs)


class _WatchedTls(_Watched, CheckedTlsConnection):
    pass


class _LeanSession(requests.Session):
    """A session whose `request` sends one POST and returns its PushResult; it never raises."""

    def __init__(self, settings: PushSettings, policy: AddressPolicy) -> None:
        super().__init__()
        self._settings = settings
        self._verify: bool | str = settings.tls_ca_file or True
        certificate = settings.tls_client_certificate
        self._certificate = (certificate, settings.tls_client_key or certificate) if certificate else None
        self._proxies = dict.fromkeys(("http", "https"), settings.proxy) if settings.proxy else {}
        self.adapters.clear()
        # urllib3 accepts only classes of connections.
        excess = {"excess": Excess()}
        plain, tls = type("_Plain", (_Watched,), excess), type("_Tls", (_WatchedTls,), excess)
        for scheme in ("http://", "https://"):
            idle = settings.max_idle_connections or 1
            kept = min(settings.max_in_flight_per_host, _MAX_THREADS)  # for a host and port
            self.mount(scheme, CheckedAdapter(policy, idle, kept, plain=plain, tls=tls))

    def drop(self, url: str) -> None:
        """A kept connection to this receiver carries nothing any more, perhaps since the network between was cut: shut
        the others down. Each would cost the whole time of a push."""
        pools = cast(CheckedAdapter, self.get_adapter(url)).poolmanager.pools
        for key in pools.keys():  # noqa: SIM118  # it refuses iteration, which would not be safe in threads
            pool = pools.get(key) if (key.key_host.strip("[]"), key.key_port) == place_of(url) else None
            if pool is not None and pool.pool is not None:
                with pool.pool.mutex:
                    for kept in pool.pool.queue:
                        if kept is not None and kept.sock is not None:
                            with contextlib.suppress(OSError):
                                kept.sock.shutdown(socket.SHUT_RDWR)

    def request(self, method: str | bytes, url: str | bytes, *args: Any, **kwargs: Any) -> Any:
        push: _Push = kwargs["push"]
        push.started = time.monotonic()
        _current.push = push
        try:
            for _ in range(_MAX_STALE):
                push.opened = False
                try:
                    return self._send(push)
                except requests.ConnectionError as error:
                    stale = not push.opened and _failure(error) == "disconnected" and not push.overdue
                    if not stale:
                        return self._failed(push, error)
            return self._failed(push, requests.ConnectionError("every kept connection was closed by the receiver"))
        except Exception as error:
            return self._failed(push, error)
        finally:
            _current.push = None

    def _send(self, push: _Push) -> PushResult:
        settings = self._settings
        prepared = requests.PreparedRequest()
        prepared.prepare_method("POST")
        prepared.prepare_url(to_uri(push.request.url), None)
        prepared.headers = CaseInsensitiveDict(push.request.headers)
        prepared.headers["User-Agent"] = USER_AGENT
        prepared.headers["Content-Length"] = str(len(push.request.body))
        prepared.body = push.request.body
        adapter = self.get_adapter(prepared.url or "")
        timeout = (settings.connect_timeout_s, settings.total_timeout_s)
        own = push.request.client_certificate
        certificate = (own, own) if own else self._certificate
        response = adapter.send(
            prepared, stream=True, timeout=timeout, verify=self._verify, cert=certificate, proxies=self._proxies
        )
        push.status = response.status_code
        failure: Failure = ""
        detail = ""
        body = b""
        try:
            body = body_of(response, settings.max_response_bytes + 1)
        except urllib3.exceptions.HTTPError as error:
            failure, detail = "disconnected", str(error)
        finally:
            with push.lock:
                push.connection = None
            # Gives the connection back when the answer was read to its end, and closes it otherwise.
            response.close()
        return PushResult(
            status=response.status_code,
            failure="timeout" if push.overdue else failure,
            detail=detail,
            duration_s=time.monotonic() - push.started,
            response=body[: settings.keep_response_bytes],
            response_bytes=min(len(body), settings.max_response_bytes),
            reused=not push.opened,
            retry_after_s=retry_after_s(response.headers.get("Retry-After", "")),
            later=response.status_code == 202 and announces_later(response.headers.get(RESULT_HEADER, "")),
        )

    def _failed(self, push: _Push, error: Exception) -> PushResult:
        with push.lock:
            push.connection = None
        failure, detail = "timeout" if push.overdue else _failure(error), str(refusal_in(error) or error)
        return PushResult(0, failure, detail, duration_s=time.monotonic() - push.started, reused=not push.opened)


class FuturesTransport:
    """The contract over a FuturesSession."""

    def __init__(self, settings: PushSettings, policy: AddressPolicy) -> None:
        self._settings = settings
        self._urls = UrlPolicyCache(policy)
        self._lean = _LeanSession(settings, policy)
        self._session = FuturesSession(max_workers=_MAX_THREADS, session=self._lean)
        self._finished: queue.SimpleQueue[tuple[_Push, PushResult] | None] = queue.SimpleQueue()
        self._waiting: dict[int, _Push] = {}
        self._deadlines: list[tuple[float, int]] = []
        # A name server that does not answer would occupy the threads.
        self._lookups: Lookups[int] = Lookups(settings.connect_timeout_s, self.wake)

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    def submit(self, request: PushRequest, callback: Callback) -> None:
        fence.wait()
        push = _Push(request, callback)
        self._waiting[id(push)] = push
        refusal = self._urls.refusal(request.url)
        if refusal is not None:
            self._finished.put((push, PushResult(0, "address", str(refusal))))
        elif self._settings.proxy or not push.host or self._lookups.resolves(push.host):
            self._begin(push)
        else:
            self._lookups.add(push.host, id(push))

    def _begin(self, push: _Push) -> None:
        future: Future[PushResult] = self._session.post(push.request.url, push=push)
        future.add_done_callback(lambda done: self._finished.put((push, done.result())))
        heapq.heappush(self._deadlines, (push.submitted + self._settings.total_timeout_s, id(push)))

    def drive(self, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while True:
            self._end_lookups()
            ended = not self._finished.empty()
            while not self._finished.empty():
                self._settle(self._finished.get())
            if self._stop_overdue() or ended or time.monotonic() > end:
                return
            due_at = min(end, self._lookups.due_at, *(due for due, _ in self._deadlines[:1]))
            try:
                finished = self._finished.get(timeout=max(due_at - time.monotonic(), 0))
            except queue.Empty:
                continue
            self._settle(finished)
            end = 0.0

    def wake(self) -> None:
        self._finished.put(None)

    def close(self) -> None:
        for push in self._waiting.values():
            push.abort()
        self._waiting.clear()
        self._session.close()
        self._lean.close()

    def _settle(self, finished: tuple[_Push, PushResult] | None) -> None:
        """`wake` queues None."""
        if finished is not None and self._waiting.get(id(finished[0])) is finished[0]:
            push, result = finished
            del self._waiting[id(push)]
            if result.failure == "dns" and push.started:
                self._lookups.failed(push.host)
            push.callback(result)

    def _end_lookups(self) -> None:
        for key, failure, took_s in self._lookups.take():
            push = self._waiting[key]
            if failure:
                self._finished.put((push, PushResult(0, "dns", failure, took_s)))
            else:
                self._begin(push)

    def _stop_overdue(self) -> int:
        """End the pushes whose time is over; returns their number."""
        now, stopped = time.monotonic(), 0
        while self._deadlines and self._deadlines[0][0] <= now:
            due, key = heapq.heappop(self._deadlines)
            push = self._waiting.get(key)
            if push is None:
                continue
            ends = push.submitted + self._settings.total_timeout_s
            if ends > now:
                continue  # a later push has the key of an ended one, and a deadline of its own
            if ends == due < now - contract.LATE_S:
                heapq.heappush(self._deadlines, (now + contract.LATE_S, key))  # its thread was suspended, too
                continue
            over_kept = push.over_kept
            push.abort()
            if over_kept and not self._settings.proxy:
                self._lean.drop(push.request.url)
            # The thread ends by itself; the deadline does not wait for it (it may be resolving a name).
            took_s, late = now - push.submitted, "no complete answer in time"
            result = PushResult(push.status, "timeout", late, took_s, reused=over_kept)
            if not push.started:
                result = PushResult(0, "internal", f"none of {_MAX_THREADS} threads was free in time", took_s)
            self._settle((push, result))
            stopped += 1
        return stopped


def _failure(error: Exception) -> Failure:
    """Our class of an exception of requests, urllib3 or http.client."""
    match error:
        case requests.exceptions.SSLError():
            return "tls"
        case requests.exceptions.ProxyError():
            return "connect"
        case requests.exceptions.ConnectTimeout():
            return "connect"
        case requests.exceptions.Timeout():
            return "timeout"
        case (
            requests.exceptions.InvalidURL()
            | requests.exceptions.InvalidSchema()
            | requests.exceptions.MissingSchema()
            | urllib3.exceptions.LocationValueError()
            | UnicodeError()
        ):
            return "address"
        case requests.exceptions.ConnectionError():
            return _connection_failure(error)
        case _:
            return "internal"


def _connection_failure(error: requests.exceptions.ConnectionError) -> Failure:
    if refusal_in(error) is not None:
        return "address"
    cause = error.args[0] if error.args else None
    if isinstance(cause, urllib3.exceptions.MaxRetryError):
        cause = cause.reason
    if isinstance(cause, urllib3.exceptions.NameResolutionError):
        return "dns"
    if isinstance(cause, urllib3.exceptions.NewConnectionError):
        return "connect"
    inner = cause.args[-1] if isinstance(cause, urllib3.exceptions.ProtocolError) and cause.args else cause
    if isinstance(inner, http.client.HTTPException) and not isinstance(inner, http.client.RemoteDisconnected):
        return "protocol"
    return "disconnected"
