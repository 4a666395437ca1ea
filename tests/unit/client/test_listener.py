"""The listener as an ASGI application, and verification of pushes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
import requests

from arborcast.client import http_server
from arborcast.client.listener import Busy, Listener, ListenerApp, ReceivedMessage
from tests.support import soap_messages as soap
from tests.support.waiting import wait_until

PUSH = soap.envelope(soap.notify(soap.message(payload="<a/>")))


def post(app: ListenerApp, body: bytes, method: str = "POST", headers: Mapping[str, str] | None = None) -> int:
    """The status of the answer."""
    receive, send = AsyncMock(return_value={"type": "http.request", "body": body, "more_body": False}), AsyncMock()
    encoded = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    asyncio.run(app({"type": "http", "method": method, "headers": encoded}, receive, send))
    return int(send.await_args_list[0].args[0]["status"])


def test_failures_have_their_status(caplog: pytest.LogCaptureFixture) -> None:
    refuse = Mock(side_effect=ValueError("not now"))
    assert post(ListenerApp(refuse), PUSH) == 500
    assert "the broker will try again" in caplog.text
    assert post(ListenerApp(refuse), b"hello") == 400
    assert post(ListenerApp(refuse), b"", method="GET") == 405
    assert post(ListenerApp(lambda _: None), PUSH, headers={"transfer-encoding": "gzip, chunked"}) == 400


@pytest.mark.parametrize("threaded", [False, True])
def test_a_push_without_room_is_answered_503(threaded: bool, caplog: pytest.LogCaptureFixture) -> None:
    refuse = Mock(side_effect=Busy)
    if threaded:
        with Listener(refuse) as listener:
            status = requests.post(listener.url, PUSH, timeout=60).status_code
    else:
        status = post(ListenerApp(refuse), PUSH)
    assert (status, caplog.text) == (503, "")


def test_lifespan_events_and_a_coroutine_as_callback() -> None:
    events = ["lifespan.startup", "lifespan.shutdown"]
    got: list[ReceivedMessage] = []

    async def received(message: ReceivedMessage) -> None:
        await asyncio.sleep(0)
        got.append(message)

    receive, send = AsyncMock(side_effect=[{"type": each} for each in events]), AsyncMock()
    asyncio.run(ListenerApp(received)({"type": "lifespan"}, receive, send))
    assert [each.args[0]["type"] for each in send.await_args_list] == [f"{each}.complete" for each in events]
    assert (post(ListenerApp(received), PUSH), len(got)) == (202, 1)


@pytest.mark.parametrize(("signature", "status"), [(str(len(PUSH)), 202), ("7", 401)])
def test_forged_pushes_are_not_passed_to_the_callback(signature: str, status: int) -> None:
    def verify(headers: Mapping[str, str], body: bytes) -> None:
        if headers.get("x-signature") != str(len(body)):
            raise ValueError("forged")

    got: list[ReceivedMessage] = []
    headers = {"X-Signature": signature}
    assert post(ListenerApp(got.append, verify), PUSH, headers=headers) == status
    with Listener(got.append, verify=verify) as listener:
        assert requests.post(listener.url, PUSH, headers=headers, timeout=60).status_code == status
    assert len(got) == (2 if status == 202 else 0)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener with a longer timeout than the tests: a missing answer is not a timeout."""
    monkeypatch.setattr(http_server, "_READ_TIMEOUT_S", 600)


POST = b"POST / HTTP/1.1\r\nHost: h\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
SIZED = b"Content-Length: %d\r\n" % len(PUSH)


@contextmanager
def connected(callback: Callable[[ReceivedMessage], None]) -> Iterator[tuple[Listener, socket.socket]]:
    with (
        Listener(callback) as listener,
        socket.create_connection(("127.0.0.1", listener.port), timeout=60) as connection,
    ):
        yield listener, connection


def raw(head: bytes, body: bytes) -> tuple[bytes, int]:
    """The first answer of a listener, and the number of its received messages."""
    got: list[ReceivedMessage] = []
    with connected(got.append) as (_, connection):
        connection.sendall(POST + head + b"\r\n" + body)
        return connection.recv(4096), len(got)


CHUNK = PUSH + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (CHUNKED + SIZED, b"%x\r\n" % len(PUSH) + CHUNK),
        (SIZED + CHUNKED, PUSH),
        (SIZED + b"Content-Length: 3\r\n", PUSH),
        (CHUNKED + CHUNKED, b"%x\r\n" % len(PUSH) + CHUNK),
        (b"Transfer-Encoding: gzip, chunked\r\n", PUSH),
        (b"Content-Length: +5\r\n", PUSH),
        (b"Content-Length: \xc2\xb2\r\n", PUSH),
        (b"Content-Length: 1_0\r\n", PUSH),
        (b"Content-Length: " + b"9" * 5_000 + b"\r\n", PUSH),
        (CHUNKED, b"0x%x\r\n" % len(PUSH) + CHUNK),
        (CHUNKED, b"-1\r\n" + PUSH),
        (CHUNKED, b"1_0\r\n" + PUSH),
        (CHUNKED, b"f" * 17 + b"\r\n" + PUSH),
        (CHUNKED, b"\r\n" + PUSH),
    ],
)
def test_a_push_with_an_ambiguous_end_is_refused(head: bytes, body: bytes) -> None:
    answer, messages = raw(head, body)
    assert (answer[:13], messages) == (b"HTTP/1.1 400 ", 0)


@pytest.mark.parametrize("extension", [b"a=b", b"a=" + b"x" * 300, b'a="' + b"1\t" * 20 + b'"'])
@pytest.mark.parametrize("trailers", [b"", b"X: y\r\n", b"X: y\r\n" * 50])
def test_chunks_are_read(extension: bytes, trailers: bytes) -> None:
    half = len(PUSH) // 2
    chunks = b"".join(b"%X;%s\r\n%s\r\n" % (len(part), extension, part) for part in (PUSH[:half], PUSH[half:]))
    answer, messages = raw(CHUNKED, chunks + b"0\r\n" + trailers + b"\r\n")
    assert (answer[:13], messages) == (b"HTTP/1.1 202 ", 1)


@pytest.mark.parametrize("endless", [b"X: y\r\n", b"x"])
def test_trailers_are_bounded(endless: bytes) -> None:
    with connected(lambda _: None) as (_, connection):
        connection.sendall(POST + CHUNKED + b"\r\n0\r\n" + endless)
        connection.settimeout(0.001)
        answer = b""
        for _ in range(1_000):
            with contextlib.suppress(TimeoutError):
                connection.sendall(endless * 1_000)
                answer = connection.recv(4096)
                break
    assert answer.startswith(b"HTTP/1.1 431 ")


def test_requests_may_follow_each_other_on_a_connection() -> None:
    got: list[ReceivedMessage] = []
    with connected(got.append) as (_, connection):
        connection.sendall((POST + SIZED + b"\r\n" + PUSH) * 2)
        connection.sendall(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        answers = b"".join(iter(lambda: connection.recv(4096), b""))
    assert [line[9:12] for line in answers.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")] == [b"202", b"202", b"405"]
    assert b"Allow: POST" in answers
    assert len(got) == 2


def test_expect_100_continue() -> None:
    assert raw(SIZED + b"Expect: 100-continue\r\n", b"") == (b"HTTP/1.1 100 Continue\r\n\r\n", 0)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Content-Length: 67108865\r\n", b"413"),
        (CHUNKED + b"\r\n4000001\r\n", b"413"),
        (b"X: " + b"y" * 70_000 + b"\r\n", b"431"),
        *((head, b"400") for head in (b"X y\r\n", b" folded\r\n", b"X : y\r\n", b"X: a\x00\r\n")),
        (b"X: a\nContent-Length: 3\r\n", b"400"),
    ],
)
def test_large_and_malformed_requests_are_refused(head: bytes, status: bytes) -> None:
    answer, _ = raw(head, b"")
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"Connection: close" in answer


def test_the_memory_of_bodies_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_INFLIGHT", len(PUSH) + 1)
    with connected(lambda _: None) as (listener, first):
        first.sendall(POST + SIZED + b"\r\n" + PUSH[:-1])
        # Before its first bytes another body is accepted.
        statuses = (requests.post(listener.url, PUSH, timeout=60).status_code for _ in range(100))
        assert 503 in statuses, "two bodies at once"
        first.sendall(PUSH[-1:])
        assert first.recv(4096).startswith(b"HTTP/1.1 202 ")
        assert requests.post(listener.url, PUSH, timeout=60).status_code == 202


def test_callbacks_may_wait_for_each_other() -> None:
    together = threading.Barrier(3, timeout=120)

    def wait(_: ReceivedMessage) -> None:
        together.wait()

    with Listener(wait) as listener, ThreadPoolExecutor(3) as threads:
        assert [each.status_code for each in threads.map(requests.post, [listener.url] * 3, [PUSH] * 3)] == [202] * 3


def test_an_endless_callback_does_not_prevent_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_STOP_S", 0.01)
    begun, over = threading.Event(), threading.Event()

    def wait(_: ReceivedMessage) -> None:
        begun.set()
        over.wait(120)

    with connected(wait) as (listener, connection):
        connection.sendall(POST + SIZED + b"\r\n" + PUSH)
        assert begun.wait(120)
        listener.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", listener.port), timeout=1)
    over.set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # Python ignores a SystemExit
def test_a_callback_that_ends_its_thread_is_answered_500() -> None:
    threads: list[threading.Thread] = []

    def leave(_: ReceivedMessage) -> None:
        threads.append(threading.current_thread())
        raise SystemExit

    with Listener(leave) as listener:
        assert requests.post(listener.url, PUSH, timeout=60).status_code == 500
    (thread,) = threads
    thread.join(60)  # the warning about its end belongs to this test
    assert not thread.is_alive()


def test_a_connection_is_closed_after_a_defect() -> None:
    fail = AsyncMock(side_effect=RuntimeError("can't start new thread"))
    with (
        http_server.Server(fail, 0, "127.0.0.1", "failing") as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection,
    ):
        connection.sendall(POST + SIZED + b"\r\n" + PUSH)
        assert connection.recv(4096) == b""


def test_a_port_in_use_is_named() -> None:
    with Listener(lambda _: None) as listener, pytest.raises(OSError, match="in use"):
        Listener(lambda _: None, port=listener.port)


@pytest.mark.parametrize(("name", "value"), [("Origin", "https://evil.example"), ("Sec-Fetch-Site", "cross-site")])
def test_a_web_page_pushes_nothing(name: str, value: str) -> None:
    got: list[ReceivedMessage] = []
    answer, messages = raw(f"{name}: {value}\r\n".encode() + SIZED, PUSH)
    assert (answer[:13], messages) == (b"HTTP/1.1 403 ", 0)
    assert (post(ListenerApp(got.append), PUSH, headers={name: value}), got) == (403, [])


class _ExhaustedSocket(socket.socket):
    def accept(self) -> tuple[socket.socket, Any]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_failures_to_accept_fill_no_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def exhausted(address: tuple[str, int], *, family: int, backlog: int) -> socket.socket:
        made = _ExhaustedSocket(family)
        made.bind(address)
        return made

    monkeypatch.setattr(socket, "create_server", exhausted)
    with Listener(lambda _: None) as listener, socket.create_connection(("127.0.0.1", listener.port)):
        wait_until(lambda: "out of system resource" in caplog.text)
    assert len(caplog.records) < 20
