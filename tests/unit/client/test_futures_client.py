"""The asynchronous client against the gateway's application, and against brokers that misbehave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from lxml import etree

from arborcast.client import (
    Batching,
    BrokerUnreachable,
    Client,
    ClientClosed,
    FaultReceived,
    FuturesClient,
    Retries,
)
from arborcast.core.errors import ExpressionError
from tests.support.gateway_parts import START, GatewayParts

pytestmark = pytest.mark.slow

SHORT = Retries(attempts=3, first_s=0.01, longest_s=1)


@dataclass
class Script:
    """A broker that answers what it is told, in turn; None hangs up without an answer. The last one stays."""

    answers: list[int | None]
    message_ids: list[str] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    port: int = 0


@contextmanager
def scripted(*answers: int | None, held: bool = False) -> Iterator[Script]:
    script = Script(list(answers))
    if not held:
        script.release.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            root = etree.fromstring(self.rfile.read(int(self.headers["Content-Length"])))
            script.message_ids.append(root.findtext(".//{*}MessageID") or "")
            script.arrived.release()
            script.release.wait(120)
            status = script.answers.pop(0) if len(script.answers) > 1 else script.answers[0]
            if status is None:
                self.close_connection = True
                return
            self.send_response(status)
            if status == 503:
                self.send_header("Retry-After", "0")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    script.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield script
    finally:
        script.release.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_futures_and_callbacks(parts: GatewayParts, url: str) -> None:
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
    assert called == [published]
    assert [one.topic for one in parts.notifications.accepted] == ["a/b"]


def test_what_cannot_be_written_is_refused_at_once(url: str) -> None:
    with FuturesClient(url) as client, pytest.raises(ExpressionError):
        client.notify("a//.", "<n/>")


def test_one_worker_keeps_the_order_with_batches(parts: GatewayParts, url: str) -> None:
    with FuturesClient(url, workers=1, batching=Batching(messages=7)) as client:
        futures = [client.notify("a", f"<n>{number}</n>") for number in range(100)]
    assert all(future.done() and future.exception() is None for future in futures)
    assert [one.payload for one in parts.notifications.accepted] == [b"<n>%d</n>" % n for n in range(100)]
    requests = {one.message_id for one in parts.notifications.accepted}
    assert 100 / 7 <= len(requests) < 50


def test_a_bad_message_spoils_no_other_of_its_batch(parts: GatewayParts, url: str) -> None:
    with FuturesClient(url, workers=1, batching=Batching(messages=4, linger_s=9)) as client:
        futures = [client.notify("a", payload) for payload in ("<n>1</n>", "<broken>", "<n>2</n>", "<n>3</n>")]
        assert isinstance(futures[1].exception(120), FaultReceived)
        assert [futures[i].result(120) for i in (0, 2, 3)] == [None] * 3
    assert [one.payload for one in parts.notifications.accepted] == [b"<n>1</n>", b"<n>2</n>", b"<n>3</n>"]


@pytest.mark.parametrize("answers", [(503, 503, 202), (None, 202), (None, 503, 202)])
def test_repetitions_carry_the_same_message_id(answers: tuple[int | None, ...]) -> None:
    with scripted(*answers) as script, FuturesClient(f"http://127.0.0.1:{script.port}", retries=SHORT) as client:
        client.notify("a", "<n/>").result(120)
        client.notify("a", "<n/>").result(120)
    *first, second = script.message_ids
    assert len(first) == len(answers)
    assert len(set(first)) == 1
    assert second != first[0]


def test_what_must_not_happen_twice_is_not_repeated_after_it_may_have_arrived() -> None:
    with scripted(None, 202) as script, Client(f"http://127.0.0.1:{script.port}", retries=SHORT) as client:
        with pytest.raises(BrokerUnreachable):
            client.get_messages(f"http://127.0.0.1:{script.port}/p")
        assert len(script.message_ids) == 1
    with scripted(503, 202) as script, Client(f"http://127.0.0.1:{script.port}", retries=SHORT) as client:
        client.unsubscribe(f"http://127.0.0.1:{script.port}/s")
        assert len(script.message_ids) == 2


def test_close_sends_what_has_gathered(parts: GatewayParts, url: str) -> None:
    client = FuturesClient(url, batching=Batching(messages=1000, linger_s=60))
    futures = [client.notify("a", f"<n>{number}</n>") for number in range(10)]
    assert client.close() == 0
    assert [future.result(0) for future in futures] == [None] * 10
    with pytest.raises(ClientClosed):
        client.notify("a", "<n/>")


def test_what_close_gives_up_fails_and_is_counted() -> None:
    with scripted(202, held=True) as script:
        client = FuturesClient(f"http://127.0.0.1:{script.port}", workers=1)
        futures = [client.notify("a", "<n/>") for _ in range(3)]
        assert script.arrived.acquire(timeout=60)
        assert client.close(timeout_s=0.05) == 3
        for future in futures[1:]:
            error = future.exception(120)
            assert isinstance(error, ClientClosed)
            assert not error.sent
        script.release.set()
        assert futures[0].exception(120) is None  # it was under way, and its answer came


def test_too_many_wait_makes_the_next_wait_too() -> None:
    with scripted(202, held=True) as script:
        client = FuturesClient(f"http://127.0.0.1:{script.port}", workers=2, max_waiting=2)
        for _ in range(2):
            client.notify("a", "<n/>")
        third: list[Future[None]] = []
        thread = threading.Thread(target=lambda: third.append(client.notify("a", "<n/>")))
        thread.start()
        thread.join(0.2)
        assert not third
        script.release.set()
        thread.join(120)
        assert third[0].result(120) is None
        client.close()


def test_callbacks_may_publish(parts: GatewayParts, url: str) -> None:
    done = threading.Event()
    with FuturesClient(url, workers=1, max_waiting=1, batching=Batching(messages=1)) as client:

        def again(left: int) -> Callable[[Future[None]], None]:
            def publish(_: Future[None]) -> None:
                if left:
                    client.notify("a", f"<n>{left}</n>").add_done_callback(again(left - 1))
                else:
                    done.set()

            return publish

        client.notify("a", "<n/>").add_done_callback(again(3))
        assert done.wait(120)
    assert len(parts.notifications.accepted) == 4


def test_each_message_of_a_batch_has_what_was_said_of_it(parts: GatewayParts, url: str) -> None:
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
