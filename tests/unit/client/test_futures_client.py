"""The asynchronous client, its transport, and the repetitions of both clients."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from lxml import etree

from arborcast.client import (
    Batching,
    BrokerUnreachable,
    Client,
    ClientClosed,
    ClientError,
    Credentials,
    FaultReceived,
    FuturesClient,
    HttpAnswer,
    RequestsTransport,
    Retries,
    futures,
)
from arborcast.client.calls import Call
from arborcast.client.testing import MemoryTransport
from arborcast.core.errors import ExpressionError
from arborcast.core.threads import start_thread
from arborcast.wire import faults
from arborcast.wire.errors import AccessRefused, Forbidden, NotAuthenticated, TooManyRequests
from tests.support.gateway_parts import START, GatewayParts
from tests.support.gateway_process import ROOT
from tests.support.scripted_server import ScriptedServer, request_on
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

URL = "http://broker:8080"
SOON = Retries(attempts=3, first_s=0.0, longest_s=0.0)
BUSY, AWAY, TAKEN = (
    HttpAnswer(503, {"Retry-After": "0"}),
    BrokerUnreachable("away"),
    HttpAnswer(202, {"arborcast-notification-ID": "n1"}),
)


class Held(MemoryTransport):
    """A transport that answers on request."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.arrived = threading.Semaphore(0)
        self.threads: list[str] = []

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        self.threads.append(threading.current_thread().name)
        self.arrived.release()
        assert self.go.wait(120)
        return super().post(url, headers, body)


def test_futures_callbacks_and_refusals(parts: GatewayParts, url: str) -> None:
    called: list[Future[None]] = []
    with FuturesClient(url) as client:
        subscription = client.subscribe("a//.", to="http://h/").result(120)
        published = client.notify("a/b", "<n/>")
        published.add_done_callback(called.append)
        assert published.result(120) is None
        client.pause(subscription).result(120)
        client.unsubscribe(subscription).result(120)
        with pytest.raises(FaultReceived):
            client.unsubscribe(subscription).result(120)
        with pytest.raises(ExpressionError):  # at once
            client.notify("a//.", "<n/>")
    assert called == [published]
    assert [one.topic for one in parts.notifications.accepted] == ["a/b"]


def test_one_worker_keeps_the_order_with_batches(parts: GatewayParts, url: str) -> None:
    payloads = ["<broken>" if number == 50 else f"<n>{number}</n>" for number in range(100)]
    with FuturesClient(url, workers=1, batching=Batching(messages=7)) as client:
        futures = [client.notify("a", each) for each in payloads]
    assert isinstance(futures.pop(50).exception(0), FaultReceived), "and only its own future"
    assert all(future.done() and future.exception() is None for future in futures)
    assert [one.payload.decode() for one in parts.notifications.accepted] == [*payloads[:50], *payloads[51:]]
    assert 100 / 7 <= len({one.message_id for one in parts.notifications.accepted}) < 50


@pytest.mark.parametrize(
    ("refusal", "requests"), [(NotAuthenticated("who?"), 1), (TooManyRequests("slowly", 5), 1), (Forbidden("no"), 3)]
)
def test_a_batch_is_repeated_by_message_where_one_may_be_the_reason(refusal: AccessRefused, requests: int) -> None:
    answer = faults.of_peer(refusal, "1.1", None, START)
    refused = HttpAnswer(answer.status, {"Content-Type": answer.content_type.decode()}, answer.body)
    transport = MemoryTransport(*[refused] * 3)
    with FuturesClient(URL, transport=transport, batching=Batching(2, linger_s=60)) as client:
        published = [client.notify("a", "<n/>") for _ in range(2)]
        assert all(isinstance(each.exception(60), FaultReceived) for each in published)
    assert len(transport.sent) == requests


def test_each_message_of_a_batch_has_its_own_properties(parts: GatewayParts, url: str) -> None:
    with FuturesClient(url, workers=1, batching=Batching(messages=4, linger_s=9)) as client:
        client.notify("a", "<n/>", lifespan=timedelta(seconds=2), type="{urn:x}alarm", priority=5)
        client.notify("a", "<broken>", lifespan=timedelta(seconds=2)).add_done_callback(lambda each: each.exception())
        client.notify("a", "<n/>", reliable=True)
        client.notify("a", "<n/>", valid_until=START + timedelta(seconds=9))
    start_ms = int(START.timestamp() * 1000)
    accepted = parts.notifications.accepted
    assert [each.valid_until_ms for each in accepted] == [start_ms + 2_000, 0, start_ms + 9_000]
    assert [each.type for each in accepted] == ["{urn:x}alarm", "n", "n"]
    assert [each.priority for each in accepted] == [5, 0, 0]
    assert [each.reliable for each in accepted] == [False, True, False]


@pytest.mark.parametrize("answers", [(BUSY, BUSY, TAKEN), (AWAY, TAKEN), (AWAY, BUSY, TAKEN)])
def test_repetitions_carry_the_same_message_id(answers: tuple[HttpAnswer | Exception, ...]) -> None:
    transport = MemoryTransport(*answers)
    with FuturesClient(URL, transport=transport, retries=SOON) as client:
        client.notify("a", "<n/>").result(120)
        client.notify("a", "<n/>").result(120)
    *first, second = (etree.fromstring(each.body).findtext(".//{*}MessageID") for each in transport.sent)
    assert len(first) == len(answers)
    assert len({*first}) == 1
    assert second != first[0]


@pytest.mark.parametrize(
    ("answer", "attempts"),
    [(AWAY, 1), (BrokerUnreachable("away", sent=False), 3), (BUSY, 3)],
    ids=["lost", "unsent", "busy"],
)
def test_operations_with_unknown_outcome_are_not_repeated(answer: HttpAnswer | Exception, attempts: int) -> None:
    transport = MemoryTransport(*[answer] * 3)
    with Client(URL, transport=transport, retries=SOON) as client, pytest.raises(ClientError):
        client.create_pull_point()
    assert len(transport.sent) == attempts


def test_refused_connections_and_ones_without_an_answer() -> None:
    with (
        ScriptedServer(lambda connection: connection.recv(10)) as server,
        Client(server.url, retries=Retries(attempts=1)) as client,
        pytest.raises(BrokerUnreachable) as lost,
    ):
        client.notify("a", "<x/>")
    assert lost.value.sent
    # The long pauses are for brokers that answer.
    patient = Retries(first_s=60, longest_s=60, unanswered=False)
    with Client("http://127.0.0.1:9", retries=patient) as client, pytest.raises(BrokerUnreachable) as away:
        client.notify("a", "<x/>")
    assert (away.value.reason, away.value.sent) == ("no process listens there", False)


def test_an_unreadable_answer_keeps_no_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 50000\r\n\r\n"

    def answer(connection: socket.socket) -> None:
        request_on(connection)
        connection.sendall(head + b"x" * 50_000)

    transport = RequestsTransport(connections=1)
    with ScriptedServer(answer) as server, ThreadPoolExecutor(1) as thread:
        for _ in range(2):
            assert isinstance(thread.submit(transport.post, server.url, {}, b"<x/>").exception(60), ClientError)
    transport.close()


@pytest.mark.parametrize("batching", [None, Batching(linger_s=0)])
def test_a_payload_that_utf8_cannot_express_is_refused_alone(batching: Batching | None) -> None:
    with FuturesClient(URL, transport=MemoryTransport(), batching=batching, max_waiting=1) as client:
        for _ in range(2):
            with pytest.raises(ClientError, match="half of a surrogate pair"):
                client.notify("a", "<n>\ud800</n>")
        client.notify("a", "<n>\U0001f41f</n>").result(60)


def test_close_sends_queued_messages() -> None:
    client = FuturesClient(URL, transport=MemoryTransport(), batching=Batching(messages=1000, linger_s=60))
    futures = [client.notify("a", f"<n>{number}</n>") for number in range(10)]
    assert client.close() == 0
    assert [future.result(0) for future in futures] == [None] * 10
    with pytest.raises(ClientClosed):
        client.notify("a", "<n/>")


def test_a_call_that_a_close_overtakes_fails() -> None:
    client = FuturesClient(URL, transport=MemoryTransport(), batching=Batching(messages=1000, linger_s=60))
    with ThreadPoolExecutor(1) as threads:
        with client._gathered:
            publishing = threads.submit(client.notify, "a", "<n/>")
            wait_until(lambda: len(client._waiting) == 1)
            assert client.close(timeout_s=0) == 1
        assert isinstance(publishing.result(60).exception(60), ClientClosed)


def test_calls_abandoned_at_close_fail_and_are_counted() -> None:
    transport = Held()
    client = FuturesClient(URL, transport=transport, workers=1)
    futures = [client.notify("a", "<n/>") for _ in range(3)]
    assert transport.arrived.acquire(timeout=60)
    assert client.close(timeout_s=0.05) == 3
    for future in futures[1:]:
        error = future.exception(120)
        assert isinstance(error, ClientClosed)
        assert not error.sent
    transport.go.set()
    assert futures[0].exception(120) is None  # in flight, and answered


@pytest.mark.parametrize(("max_waiting", "waiting_bytes", "waiting"), [(2, 1 << 20, 2), (100, 1, 1)])
def test_calls_block_at_the_limit_of_queued_calls(
    monkeypatch: pytest.MonkeyPatch, max_waiting: int, waiting_bytes: int, waiting: int
) -> None:
    monkeypatch.setattr(futures, "_WAITING_BYTES", waiting_bytes)
    transport = Held()
    with FuturesClient(URL, transport=transport, workers=2, max_waiting=max_waiting) as client:
        for _ in range(waiting):
            client.notify("a", "<n/>")
        third: list[Future[None]] = []
        thread = threading.Thread(target=lambda: third.append(client.notify("a", "<n/>")))
        thread.start()
        thread.join(0.2)
        assert not third
        transport.go.set()
        thread.join(120)
        assert third[0].result(120) is None


def test_a_synchronous_call_uses_the_transport_in_one_thread() -> None:
    transport = Held()
    transport.go.set()
    with Client(URL, transport=transport, credentials=Credentials("u", "p")) as client:
        client.notify("a", "<x/>")
        client.notify("b", "<x/>")
    sent = transport.sent[0]
    assert (sent.url, transport.published) == (f"{URL}/wsn/NotificationBroker", [("a", b"<x/>"), ("b", b"<x/>")])
    assert (sent.headers["Content-Type"], sent.headers["Authorization"]) == ("text/xml; charset=utf-8", "Basic dTpw")
    assert transport.threads == ["wsn-client_0"] * 2
    with pytest.raises(ClientClosed) as refused:
        client.notify("a", "<x/>")
    assert not refused.value.sent
    with Client(URL, transport=MemoryTransport(TAKEN)) as client:
        assert client.notify("a", "<x/>") == "n1", "names of headers are case-insensitive"


def test_a_callback_that_publishes_several_never_waits() -> None:
    """Also when the first of them is answered at once, in the thread of the callback."""

    class AtOnce(FuturesClient):
        later: Future[HttpAnswer] | None = None

        def _send(self, call: Call[Any]) -> Future[HttpAnswer]:
            sent: Future[HttpAnswer] = Future()
            if self.later is None:
                self.later = sent
            else:
                sent.set_result(TAKEN)
            return sent

    client = AtOnce(URL, max_waiting=1)
    done = threading.Event()

    def publish(_: Future[None]) -> None:
        client.notify("a", "<x/>")
        client.notify("a", "<x/>")
        done.set()

    client.notify("a", "<x/>").add_done_callback(publish)
    assert client.later is not None
    start_thread("answer", client.later.set_result, TAKEN)
    assert done.wait(60)
    client.close()


@pytest.mark.parametrize("kind", ["Client", "FuturesClient"])
def test_a_client_works_in_a_forked_process(kind: str) -> None:
    """It has threads and connections of its own there, and not the notifications that the parent gathers."""
    code = f"""
import os, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from arborcast.client import Batching, {kind}
from arborcast.client.received import read_push

class Broker(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        taken.append((self.client_address, [each.payload for each in read_push(body, b"")]))
        self.send_response(202)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass

taken = []
server = ThreadingHTTPServer(("127.0.0.1", 0), Broker)
threading.Thread(target=server.serve_forever, daemon=True).start()
options = dict(batching=Batching(linger_s=60)) if "{kind}" == "FuturesClient" else dict()
client = {kind}(f"http://127.0.0.1:{{server.server_port}}", **options)
client.notify("a", "<parent/>")
child = os.fork()
if not child:
    client.notify("a", "<child/>")
    client.close()
    os._exit(7)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
client.close()
print(status, len(set(address for address, _ in taken)), sorted(found for _, found in taken))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.stdout == "7 2 [[b'<child/>'], [b'<parent/>']]\n", done.stderr
