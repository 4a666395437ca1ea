"""The contract of all transports, against a real server."""

from __future__ import annotations

import contextlib
import email.utils
import fcntl
import os
import select
import socket
import ssl
import sys
import termios
import threading
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from urllib.parse import quote

import pycurl
import pytest

from arborcast.core.security.checked_connections import CheckedConnection
from arborcast.dispatch.delivery.transport import contract, futures
from arborcast.dispatch.delivery.transport.contract import (
    LONGEST_RETRY_AFTER_S,
    PushRequest,
    PushResult,
    Transport,
    is_excess,
)
from arborcast.dispatch.delivery.transport.curl import CurlTransport
from arborcast.dispatch.delivery.transport.futures import FuturesTransport
from arborcast.dispatch.delivery.verdict import policy_of, wait_ms
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.subscriptions import DEFAULT_POLICY
from tests.support.certificates import Certificates
from tests.support.outbound import THIS_MACHINE, unresponsive_port
from tests.support.receiver import Receiver, refusing_url
from tests.support.scripted_server import ScriptedServer, request_on
from tests.support.transports import finish, push, push_many
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

each_way_to_wait = pytest.mark.parametrize("make", ["curl", "futures", "mqtt"], indirect=True)


@pytest.fixture
def transport(make: Callable[..., Transport]) -> Transport:
    return make(max_response_bytes=1_000, keep_response_bytes=20)


@pytest.fixture
def short_time_outs(make: Callable[..., Transport]) -> Transport:
    """Short time-outs, long enough for a receiver on a busy machine."""
    return make(total_timeout_s=3.0)


def test_body_and_headers_arrive_unchanged(transport: Transport, receiver: Receiver) -> None:
    body = bytes(range(256)) * 40

    result = push(transport, receiver.url("/unchanged?a=b"), body)

    (request,) = receiver.received("/unchanged?a=b")
    assert (result.status, result.failure) == (202, "")
    assert request.body == body
    assert request.headers["content-type"] == "text/xml"
    assert request.headers["x-test"] == "1"
    assert request.headers["user-agent"].startswith("arborcast/")
    assert request.headers["content-length"] == str(len(body))
    assert "expect" not in request.headers


def test_the_body_of_an_ended_push_is_released(transport: Transport, receiver: Receiver) -> None:
    body = bytes(range(256)) * 40
    held = sys.getrefcount(body)

    for url in (receiver.url("/held"), receiver.url("/status/500"), "http://host\r\n/"):
        push(transport, url, body)
        wait_until(lambda: sys.getrefcount(body) <= held, f"the body of a push to {url!r} is released")


@pytest.mark.parametrize("status", [200, 204, 400, 404, 410, 500, 503])
def test_any_status_is_an_answer_not_a_failure(transport: Transport, receiver: Receiver, status: int) -> None:
    result = push(transport, receiver.url(f"/status/{status}"))
    assert (result.status, result.failure) == (status, "")


def test_facts_of_an_answer(transport: Transport, receiver: Receiver) -> None:
    huge, plain = push(transport, receiver.url("/huge/500")), push(transport, receiver.url("/none"))
    assert (huge.response, huge.response_bytes) == (b"x" * 20, 500), "truncated"
    assert (plain.retry_after_s, plain.later) == (0, False)
    assert push(transport, receiver.url("/retry-after/30")).retry_after_s == 30
    assert push(transport, receiver.url("/later")).later
    date = email.utils.formatdate(time.time() + 86_400, usegmt=True)
    # The lower bound allows for a slow machine between writing the date and reading it.
    assert 80_000 < push(transport, receiver.url(f"/retry-after/{quote(date)}")).retry_after_s <= 86_400


@pytest.mark.parametrize("digits", ["86400", "9" * 19, "9" * 23, "9" * 400])
def test_large_values_of_retry_after(transport: Transport, receiver: Receiver, digits: str) -> None:
    result = push(transport, receiver.url(f"/retry-after/{digits}"))
    assert result.retry_after_s == min(int(digits), LONGEST_RETRY_AFTER_S)
    settings = RetrySettings()
    waited_ms = wait_ms(policy_of(DEFAULT_POLICY, settings), 1, 0.0, result.retry_after_s)
    assert waited_ms == settings.longest_retry_after_s * 1000


def test_iris_are_sent_as_uris(transport: Transport, receiver: Receiver) -> None:
    for _ in range(2):
        assert push(transport, receiver.url("/é?ü=%20")).status == 202
    assert len(receiver.received("/%C3%A9?%C3%BC=%20")) == 2
    assert push(transport, "http://bücher.invalid/").failure in ("dns", "timeout"), "the name is looked up"


def test_refused_connection(transport: Transport) -> None:
    with refusing_url() as url:
        result = push(transport, url)
    assert (result.status, result.failure) == (0, "connect")
    assert result.detail
    assert not result.detail.startswith("Failed to connect to"), "the attempt has the address"


def test_a_connection_that_is_not_established_in_time(make: Callable[..., Transport]) -> None:
    with unresponsive_port() as port:
        result = push(make(connect_timeout_s=1.0), f"http://127.0.0.1:{port}/")
    assert (result.status, result.failure) == (0, "connect")


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "file:///etc/passwd", "no url", "", "http://", "http://[::1/"])
def test_other_schemes_and_broken_urls_are_refused(transport: Transport, url: str) -> None:
    result = push(transport, url)
    assert (result.status, result.failure) == (0, "address")


@pytest.mark.parametrize(
    ("path", "failure"), [("/drop", "disconnected"), ("/reset", "disconnected"), ("/garbage", "protocol")]
)
def test_invalid_http_responses(transport: Transport, receiver: Receiver, path: str, failure: str) -> None:
    result = push(transport, receiver.url(path))
    assert (result.status, result.failure) == (0, failure)


def test_connection_is_reused(transport: Transport, receiver: Receiver) -> None:
    results = [push(transport, receiver.url("/reuse")) for _ in range(5)]
    assert len({request.connection for request in receiver.received("/reuse")}) == 1
    assert [result.reused for result in results] == [False, True, True, True, True]


def test_idle_connections_are_not_reused_after_one_hangs(short_time_outs: Transport, receiver: Receiver) -> None:
    """The network may have lost all of them, and each would cost the time-out of a push."""
    with Receiver() as other:
        push_many(short_time_outs, [receiver.url("/slow/0.5")] * 4 + [other.url("/slow/0.5")] * 2)
        kept = {request.connection for request in receiver.received("/slow/0.5")}
        assert len(kept) == 4

        lost = push(short_time_outs, receiver.url("/hang"))
        assert (lost.failure, lost.reused) == ("timeout", True)
        assert not push(short_time_outs, receiver.url("/in")).reused
        assert not {request.connection for request in receiver.received("/in")} & kept
        assert push(short_time_outs, receiver.url("/in")).reused
        assert push(short_time_outs, other.url("/in")).reused


def test_tcp_user_timeout_is_the_time_out_of_a_push(receiver: Receiver) -> None:
    """A time-out does not end a connection of HTTP/2, and its pushes would fail one after the other."""
    with contextlib.closing(CurlTransport(PushSettings(total_timeout_s=60.0), THIS_MACHINE)) as transport:
        push(transport, receiver.url("/in"))
        (descriptor,) = transport._sockets._receivers
        with socket.socket(fileno=os.dup(descriptor)) as kept:
            assert kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000


class SendsMore(ScriptedServer):
    """Refuses each request with 500. After `send_more` it also sends `more` behind the first answer; b"" closes the
    connection there, TLS with an alert."""

    def __init__(self, tls: ssl.SSLContext | None, more: bytes) -> None:
        super().__init__(self._act, tls=tls)
        self._more = more
        self._released, self._sent = threading.Event(), threading.Event()

    def send_more(self) -> None:
        """Returns after the client has acknowledged all bytes."""
        self._released.set()
        assert self._sent.wait(60)

    def _act(self, connection: socket.socket) -> None:
        while request_on(connection):
            connection.sendall(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
            if self._released.wait() and not self._sent.is_set():
                self._send(connection)

    def _send(self, connection: socket.socket) -> None:
        if self._more:
            connection.sendall(self._more)
        elif isinstance(connection, ssl.SSLSocket):
            connection.settimeout(0)  # does not wait for the peer's alert
            with contextlib.suppress(ssl.SSLWantReadError):
                connection.unwrap()
            connection.settimeout(None)
        else:
            connection.shutdown(socket.SHUT_WR)
        while int.from_bytes(fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder):
            time.sleep(0.01)  # not acknowledged yet
        self._sent.set()


SECOND = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize("tls", [False, True])
def test_a_surplus_answer_ends_the_reuse_of_connections(
    make: Callable[..., Transport], certificates: Certificates, tls: bool
) -> None:
    transport = make(tls_ca_file=certificates.authority)
    with SendsMore(certificates.server() if tls else None, SECOND) as receiver:
        assert push(transport, receiver.url).status == 500
        receiver.send_more()
        for number in (2, 3, 4):
            assert push(transport, receiver.url).status == 500
            assert receiver.connections == number


class AnswersLate(ScriptedServer):
    """Answers with the body of each request. On the first connection a surplus answer shifts all answers by one, so
    a client without a pause finds nothing to read between two pushes."""

    def __init__(self) -> None:
        super().__init__(self._act)

    def _act(self, connection: socket.socket) -> None:
        owed = [b"surplus"] if self.connections == 1 else []
        while request := request_on(connection, b"#"):
            owed.append(request.partition(b"\r\n\r\n")[2])
            answer = owed.pop(0)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))


def test_shifted_answers_end_with_their_connection(
    make: Callable[..., Transport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "KEPT_AT_MOST_S", 1)
    transport, number = make(), 0
    with AnswersLate() as receiver:
        assert push(transport, receiver.url, b"first#").response == b"surplus"
        while receiver.connections == 1:
            number += 1
            assert number < 1_000, "the connection is never closed"
            answer = push(transport, receiver.url, b"%d#" % number).response
            time.sleep(0.05)
        assert number > 1
        assert answer == b"%d#" % number
        assert push(transport, receiver.url, b"last#").response == b"last#"


@pytest.mark.parametrize(("tls", "more"), [(False, b""), (True, b""), (False, SECOND.replace(b"200 OK", b"408 Late"))])
def test_the_end_of_an_idle_connection_is_no_surplus_answer(
    make: Callable[..., Transport], certificates: Certificates, tls: bool, more: bytes
) -> None:
    transport = make(tls_ca_file=certificates.authority)
    with SendsMore(certificates.server() if tls else None, more) as receiver:
        assert push(transport, receiver.url).status == 500
        receiver.send_more()
        for _ in range(3):
            assert push(transport, receiver.url).status == 500
        assert receiver.connections == 2


def test_unread_bytes_of_surplus_answers_and_of_ends() -> None:
    for answer in (SECOND, b"x", b"\x17\x03\x03\x00\x40"):
        assert is_excess(answer)
    for end in (b"", b"HTTP/1.0 408 Request Time-out\r\n", b"\x15\x03\x03\x00\x40", b"\x17\x03\x03\x00\x13"):
        assert not is_excess(end)


def test_a_stale_connection_is_replaced(transport: Transport) -> None:
    receiver = Receiver()
    for _ in range(2):  # the same port; the kept connection is dead
        with receiver:
            assert push(transport, receiver.url("/")).status == 202


def test_a_push_is_repeated_once_if_a_kept_connection_dies(transport: Transport, receiver: Receiver) -> None:
    assert push(transport, receiver.url("/before")).status == 202
    # The first try uses the kept connection, the second a new one; then the push fails.
    assert push(transport, receiver.url("/drop")).failure == "disconnected"
    assert len(receiver.received("/drop")) >= 2


@each_way_to_wait
def test_pushes_side_by_side_end_at_their_deadline(short_time_outs: Transport, receiver: Receiver) -> None:
    """Also one whose answer drips: no single read times out."""
    order: list[str] = []
    ends: dict[int, PushResult] = {}

    def end(number: int, result: PushResult) -> None:
        ends[number] = result
        order.append(result.failure)

    paths = ["/hang"] * 20 + ["/drip/0.05", "/drip-headers/0.05"]
    for number, path in enumerate(paths):
        short_time_outs.submit(PushRequest(receiver.url(path), (), str(number).encode()), partial(end, number))
    for _ in range(5):
        short_time_outs.submit(PushRequest(receiver.url("/quick"), (), b""), lambda _: order.append("quick"))
    assert short_time_outs.in_flight == 27
    finish(short_time_outs)
    assert order == ["quick"] * 5 + ["timeout"] * 22
    arrived = {int(request.body) for path in set(paths) for request in receiver.received(path)}
    assert arrived == set(range(22)), "the pushes have the same deadline"
    assert (ends[0].status, ends[20].status) == (0, 200)
    assert ends[21].status in (0, 200)


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Threads wait for it before they connect, as for a name server."""
    answered, connect = threading.Event(), CheckedConnection.connect

    def connect_later(self: CheckedConnection) -> None:
        answered.wait()
        connect(self)

    monkeypatch.setattr(CheckedConnection, "connect", connect_later)
    return answered


def test_a_push_is_not_sent_after_its_timeout(receiver: Receiver, answered: threading.Event) -> None:
    """It might arrive behind its repetition. A thread may wait for a name server longer than its push."""
    transport = FuturesTransport(PushSettings(connect_timeout_s=0.5, total_timeout_s=0.5), THIS_MACHINE)
    assert push(transport, receiver.url("/late")).failure == "timeout"
    answered.set()
    transport.close()  # waits for its threads
    assert not receiver.received("/late")


@pytest.mark.parametrize("path", ["/in", "/slow/0.5"])
def test_the_answer_to_a_push_is_read_after_a_suspension(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """It may be in the queue of answers, or its thread was suspended, too."""
    ahead_s = 0.0
    monkeypatch.setattr(futures, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s))
    monkeypatch.setattr(contract, "LATE_S", 60.0)
    with contextlib.closing(FuturesTransport(PushSettings(), THIS_MACHINE)) as transport:
        results: list[PushResult] = []
        transport.submit(PushRequest(receiver.url(path), (), b""), results.append)
        wait_until(lambda: receiver.received(path), "the push has arrived")
        if path == "/in":
            wait_until(lambda: not transport._finished.empty(), "the answer has arrived")
        ahead_s = 3_600.0
        finish(transport)
        assert [(each.status, each.failure) for each in results] == [(202, "")]


def test_libcurl_reads_the_answers_to_overdue_pushes_after_a_suspension(receiver: Receiver) -> None:
    with contextlib.closing(CurlTransport(PushSettings(), THIS_MACHINE)) as transport:
        answered, hanging = list[PushResult](), list[PushResult]()
        transport.submit(PushRequest(receiver.url("/slow/0.5"), (), b""), answered.append)
        transport.submit(PushRequest(receiver.url("/hang"), (), b""), hanging.append)
        while len(receiver.requests) < 2:
            transport.drive(0.01)
        assert select.select([*transport._sockets._receivers], [], [], 120)[0]
        for handle in transport._active.values():
            handle.curl.setopt(pycurl.TIMEOUT_MS, 1)
            handle._settings = PushSettings(connect_timeout_s=0.001, total_timeout_s=0.001)
        transport._multi.due_at = 0.0
        finish(transport)
        assert [(each.status, each.failure) for each in (*answered, *hanging)] == [(202, ""), (0, "timeout")]


def test_a_push_waits_no_longer_than_its_time_for_a_thread(
    receiver: Receiver, answered: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The redelivery repeats it then."""
    monkeypatch.setattr(futures, "_MAX_THREADS", 1)
    transport = FuturesTransport(PushSettings(connect_timeout_s=0.5, total_timeout_s=0.5), THIS_MACHINE)
    failures: list[str] = []
    for path in ("/first", "/second"):
        transport.submit(PushRequest(receiver.url(path), (), b""), lambda result: failures.append(result.failure))
    finish(transport)
    assert failures[1] == "internal", "the receiver is not to blame"
    answered.set()
    transport.close()  # waits for its threads
    assert not receiver.received("/first") + receiver.received("/second")


@each_way_to_wait
def test_callback_may_submit_the_next_push(transport: Transport, receiver: Receiver) -> None:
    seen: list[int] = []

    def again(result: PushResult) -> None:
        seen.append(result.status)
        if len(seen) < 4:
            transport.submit(PushRequest(receiver.url("/chain"), (), b""), again)

    transport.submit(PushRequest(receiver.url("/chain"), (), b""), again)
    finish(transport)

    assert seen == [202] * 4


def test_proxies_of_the_environment_are_not_used(
    make: Callable[..., Transport], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refusing_url() as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("ALL_PROXY", proxy)
        assert push(make(), receiver.url("/direct")).status == 202


@each_way_to_wait
def test_close_abandons_pushes_in_flight(transport: Transport, receiver: Receiver) -> None:
    results: list[PushResult] = []
    transport.submit(PushRequest(receiver.url("/hang"), (), b""), results.append)
    transport.drive(0.05)
    transport.close()
    transport.wake()  # by a thread that has not read of the end
    assert results == []


@each_way_to_wait
def test_a_wait_without_pushes_lasts_until_wake(transport: Transport) -> None:
    began = time.monotonic()
    threading.Timer(0.2, transport.wake).start()
    transport.drive(60.0)
    assert 0.1 < time.monotonic() - began < 50, "drive ends with wake"
    transport.wake()
    transport.drive(60.0)  # wake before drive
    transport.drive(0.0)


@each_way_to_wait
def test_wake_before_a_wait_during_a_push(transport: Transport, receiver: Receiver) -> None:
    """Otherwise a row that arrives just before waits until an answer arrives, or up to a second."""
    transport.submit(PushRequest(receiver.url("/hang"), (), b""), lambda _: None)
    transport.drive(0.5)
    transport.wake()
    began = time.monotonic()
    transport.drive(60.0)
    assert time.monotonic() - began < 50


@each_way_to_wait
def test_wake_does_not_disturb_a_push_in_flight(transport: Transport, receiver: Receiver) -> None:
    results: list[PushResult] = []
    transport.submit(PushRequest(receiver.url("/slow/1.0"), (), b"<x/>"), results.append)
    transport.wake()
    transport.drive(60.0)
    while not results:
        transport.drive(1.0)
    assert results[0].status == 202
