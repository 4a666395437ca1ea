"""Bodies that fill the memory, sent to the gateway's application behind its real HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any

import pytest

from arborcast.ingest.addresses import Target
from arborcast.ingest.http import app as application
from arborcast.ingest.http import inflight, serving
from arborcast.ingest.http.inflight import SMALL, Reservation
from arborcast.ingest.operations import notification_broker, pull_points
from arborcast.ingest.operations.legacy import messages as legacy_messages
from arborcast.ingest.settings import FragmentSettings, GatewaySettings
from arborcast.topic_model.projections.pull_store import PullLimits
from arborcast.topic_model.records.pull import StoredMessage
from arborcast.topic_model.topics import TopicPath
from arborcast.wire import envelope, fragments
from arborcast.wire.endpoints import Kind
from arborcast.wire.envelope import parse
from arborcast.wire.xml_reading import memory_to_read
from tests.support import served_app
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts
from tests.support.legacy_messages import notify, wsn_process
from tests.support.pulling import create, get
from tests.support.served_app import START, connected, exchange, served
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

MB = 1024 * 1024
# The smallest budget: two bodies, with four copies and the elements of each.
SETTINGS = GatewaySettings(inflight_bytes=16 * MB, max_elements=1_000)
LIMIT = 2 * (20 * MB + 400 * 1_000)


def post(size: int) -> bytes:
    """A Notify of approximately this size."""
    body = soap.envelope(soap.notify(soap.message(payload=f"<n>{'x' * size}</n>")))
    return START + b"Content-Length: %d\r\n\r\n" % len(body) + body


def test_elements_are_counted_before_they_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = GatewayParts(SETTINGS)
    monkeypatch.setattr(application, "parse", lambda *_: pytest.fail("parsed"))
    answer = parts.post(soap.envelope(soap.notify(soap.message(payload=f"<n>{'<a b=/>' * 1_000}</n>"))))
    assert answer.status == 400
    assert "elements and attributes, 1000 are allowed" in answer.reason


def test_elements_of_an_escaped_text_are_counted_and_parsed_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def noted(text: str, default: TopicPath | None) -> legacy_messages.Action:
        threads.append(threading.current_thread())
        return read(text, default)

    read, parts = legacy_messages.read, GatewayParts(SETTINGS)
    monkeypatch.setattr(legacy_messages, "read", noted)
    answer = parts.post(wsn_process(notify("a", f"<n>{'<a/>' * 1_000}</n>")), "/WSN/Broker")
    assert "elements and attributes, 1000 are allowed" in answer.reason
    for size in (100, 2 * SMALL):
        assert parts.post(wsn_process(notify("a", "x" * size)), "/WSN/Broker").status == 200
    small, large = threads
    assert small == threading.current_thread() != large


@pytest.mark.parametrize("text", ["a=b " * 5_000, '"a", ' * 5_000, "&lt;a/&gt;" * 5_000])
def test_text_that_looks_like_elements(text: str) -> None:
    assert GatewayParts(SETTINGS).post(soap.envelope(soap.notify(soap.message(payload=f"<n>{text}</n>")))).status == 202


@pytest.mark.parametrize("unit", ["<b/>", "<b></b>", "<b>x</b>", "<b/>x", "<b a='1'/>", '<b a=""/>x'])
def test_the_memory_of_a_parse_is_not_underestimated(unit: str) -> None:
    document = soap.envelope(soap.notify(soap.message(payload=f"<n>{unit * 20_000}</n>")))
    nodes = sum(1 + len(each.attrib) for each in parse(document).root.iter())
    assert memory_to_read(document, 200_000) >= 4 * len(document) + 400 * nodes


def test_incomplete_bodies_are_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflight, "_STALLED_S", 0.1)
    monkeypatch.setattr(inflight, "_INTERVAL_S", 0.02)
    parts = GatewayParts(SETTINGS)
    whole, large = post(4 * MB - 10_000), post(3 * MB)
    with contextlib.ExitStack() as stack, served(parts) as port:
        for _ in range(20):
            one = stack.enter_context(connected(port))
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                # Fills the socket buffers; the gateway does not read the rest.
                one.send(whole[:-1])
        wait_until(lambda: parts.app.inflight.taken >= LIMIT / 2)
        # A small body is answered at once, a large one after a stalled one was refused.
        assert exchange(port, post(100)).startswith(b"HTTP/1.1 202 ")
        assert parts.app.inflight.taken <= LIMIT
        wait_until(lambda: exchange(port, large[:1_000], large[1_000:]).startswith(b"HTTP/1.1 202 "))
        assert parts.app.inflight.taken <= LIMIT
    assert parts.app.inflight.refused
    assert parts.app.inflight.taken == 0


def test_no_request_leaves_memory_reserved() -> None:
    parts = GatewayParts(SETTINGS)
    chunked = START + b"Transfer-Encoding: chunked\r\n\r\n" + b"10000\r\n" + b"x" * 65_536
    with served(parts) as port:
        for sent in (
            post(100),
            post(100_000),
            post(100).replace(b"/wsn/NotificationBroker", b"/elsewhere"),
            post(100_000).replace(b"POST", b"PUT"),
            START + b"Content-Length: 3\r\n\r\n<a>",
            START + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
            chunked + b"\r\n0\r\n\r\n",
            chunked + b"zz",
            post(100) * 3 + b"no HTTP\r\n\r\n",
        ):
            assert exchange(port, sent).startswith(b"HTTP/1.1 ")
        with connected(port) as one:
            one.sendall(post(100_000)[:-1])
        wait_until(lambda: not parts.app.inflight.taken)


def test_answers_that_are_not_read_take_their_share_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that read nothing got answers of megabytes each, as many as there could be connections."""

    def listening(settings: GatewaySettings) -> socket.socket:
        listener = serving.listen(settings)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)  # otherwise the kernel has whole answers
        return listener

    monkeypatch.setattr(served_app, "listen", listening)
    parts = GatewayParts(SETTINGS)
    parts.pull_log.store._limits = PullLimits(100, 100 * MB, 100 * MB)
    path = create(parts)
    large = soap.envelope(soap.notify(soap.message(payload=f"<n>{'x' * 3 * MB}</n>")))
    assert [parts.post(large, path).status for _ in range(10)] == [202] * 10
    body = get("1")
    head = START.replace(b"/wsn/NotificationBroker", path.encode()) + b"Content-Length: %d\r\n\r\n" % len(body)
    with served(parts) as port:
        with contextlib.ExitStack() as clients:
            for _ in range(10):
                client = clients.enter_context(socket.socket())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                client.connect(("127.0.0.1", port))
                client.sendall(head + body)
            wait_until(lambda: parts.app.inflight.refused == 7)
            assert 3 * 6 * MB <= parts.app.inflight.taken <= 0.5 * LIMIT
        wait_until(lambda: not parts.app.inflight.taken)
    assert parts.pull_log.store.waiting(path.rpartition("/")[2]) == 10  # none of them was read


def test_the_largest_message_of_joined_parts_can_be_fetched() -> None:
    """fragments.max_bytes may be far above gateway.max_body_bytes."""
    parts = GatewayParts(SETTINGS, fragments=FragmentSettings(max_bytes=16 * MB))
    path = create(parts)
    message = f"<wsnt:Message><n>{'x' * 16 * MB}</n></wsnt:Message>"
    element = f'<wsnt:NotificationMessage xmlns:wsnt="{soap.WSNT}">{message}</wsnt:NotificationMessage>'
    asyncio.run(parts.pulls.put(path.rpartition("/")[2], [StoredMessage(element.encode())]))
    assert parts.post(get("1"), path).status == 200


def test_without_memory_the_answer_is_503() -> None:
    parts = GatewayParts(SETTINGS)
    parts.app.inflight.count(Reservation(parts.app.inflight), LIMIT)
    answer = parts.post(soap.envelope(soap.notify()))
    assert (answer.status, answer.headers[b"retry-after"]) == (503, b"1")
    assert "use all the memory" in answer.reason
    assert parts.notifications.accepted == []


@pytest.mark.parametrize("kind", [Kind.BROKER, Kind.PULL_POINT])
def test_many_messages_do_not_block_the_event_loop(kind: Kind) -> None:
    count = 3_000
    parts = GatewayParts()
    request = parse(soap.envelope(soap.notify(*[soap.message("t:a", "<a/>")] * count)))
    point = create(parts).rpartition("/")[2]

    async def turns_while_reading() -> int:
        operation = notification_broker.notify if kind is Kind.BROKER else pull_points.put
        reading = asyncio.ensure_future(operation(parts.gateway, request, Target(kind, point)))
        turns = 0
        while not reading.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(turns_while_reading()) > count / notification_broker.AT_A_TIME
    store = parts.pull_log.store
    assert len(parts.notifications.accepted) + store.waiting(point) + store.dropped == count


def test_large_bodies_are_parsed_and_their_messages_located_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def parsed(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return parse(*arguments)

    class Noted(fragments.Source):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            threads.append(threading.current_thread())
            super().__init__(*arguments, **more)

    monkeypatch.setattr(application, "parse", parsed)
    monkeypatch.setattr(envelope, "Source", Noted)
    for count in (1, 1_000):
        assert GatewayParts().post(soap.envelope(soap.notify(*[soap.message()] * count))).status == 202
    *small, large, located = threads
    assert set(small) == {threading.current_thread()}
    assert threading.current_thread() not in (large, located)
    # The faults are in the client's SOAP version.
    answer = GatewayParts().post(soap.envelope(f"<wsnt:Notify>{'<b/>' * 30_000}</wsnt:Notify>", "1.2"))
    assert answer.status == 413
    assert soap.NAMESPACES["1.2"].encode() in answer.body
