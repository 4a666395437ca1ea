"""Streams of events: what is sent, what is settled, what waits again, and what a client gets that comes back."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.dispatch.hot.sink_journal import stored_element
from arborcast.ingest.events import stream
from arborcast.ingest.events.request import read_request
from arborcast.ingest.http.inflight import Reservation
from arborcast.ingest.settings import GatewaySettings
from arborcast.topic_model.records.control import SubscriptionEnded, TopicPolicy, TopicRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.pull import Settled, StoredMessage
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.errors import InvalidRequest
from tests.support.gateway_parts import GatewayParts, Visit, only_subscription
from tests.support.served_app import served
from tests.support.waiting import wait_until

LINES = {"accept": "application/x-ndjson"}


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 300))


async def put(parts: GatewayParts, subscription: Subscription, *names: str, payload: bytes = b"<x/>") -> None:
    """As dispatch does."""
    made = [Notification(name, TopicPath("a/b"), payload, 1_700_000_000_000) for name in names]
    await parts.pulls.put(
        subscription.id,
        [StoredMessage(stored_element(each, subscription), each.id, "", each.accepted_ms) for each in made],
    )


def events(visit: Visit) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in visit.body.splitlines() if '"specversion"' in line]


def names(visit: Visit) -> list[str]:
    return [each["id"] for each in events(visit)]


def last_id(visit: Visit) -> str:
    return str(re.findall(r"^id: (.*)$", visit.body, re.MULTILINE)[-1])


def waiting(parts: GatewayParts, subscription: Subscription) -> list[str]:
    """Notifications that wait again."""
    return [each.notification for each in parts.pull_log.store.head(subscription.id, 1_000, 10_000_000)]


def test_a_stream_is_a_subscription_that_is_its_own_pull_point() -> None:
    async def test() -> None:
        parts = GatewayParts()
        async with Visit(parts, "/events/a//.?filter=number(x)%3E1") as visit:
            await visit.until(lambda: "id: " in visit.body)
            made = only_subscription(parts)
            assert made.pull_point == made.id == last_id(visit)
            assert [each.normal for each in made.topics] == ["a//."]
            assert [each.text for each in made.content] == ["number(x)>1"]
            assert made.terminates_ms == round(parts.now.timestamp() * 1000) + 600_000
            head = dict(visit.sent[0]["headers"])
            assert head[b"content-type"] == b"text/event-stream; charset=utf-8"
            await put(parts, made, "n1", "n2")
            await visit.until(lambda: len(names(visit)) == 2)
            assert events(visit)[0] | {"cursor": ""} == {
                "specversion": "1.0",
                "id": "n1",
                "source": "http://127.0.0.1:8080",
                "type": "x",
                "subject": "a/b",
                "time": "2023-11-14T22:13:20.000Z",
                "cursor": "",
                "datacontenttype": "application/xml",
                "data": "<x/>",
            }
            assert events(visit)[1]["cursor"] == last_id(visit)
        assert parts.table.get(made.id) is not None, "it lasts until its lease ends"

    run(test())


def test_json_lines() -> None:
    async def test() -> None:
        parts = GatewayParts()
        async with Visit(parts, "/events/a//.", LINES) as visit:
            await visit.until(lambda: len(visit.sent) > 1)
            head = dict(visit.sent[0]["headers"])
            made = only_subscription(parts)
            assert head[b"content-type"] == b"application/x-ndjson; charset=utf-8"
            assert head[b"arborcast-stream"] == made.id.encode()
            payload = b'<ac:Content xmlns:ac="urn:arborcast:legacy">{\n"a":\n1}</ac:Content>'
            await put(parts, made, "n1", payload=payload)
            await visit.until(lambda: len(names(visit)) == 1)
            (line,) = visit.body.splitlines()
            assert json.loads(line)["data"] == {"a": 1}

    run(test())


def test_after_a_cut_nothing_is_lost_and_nothing_comes_twice() -> None:
    async def test() -> None:
        parts = GatewayParts()
        async with Visit(parts, "/events/a//.") as first:
            await first.until(lambda: "id: " in first.body)
            made = only_subscription(parts)
            await put(parts, made, "n1", "n2", "n3")
            await first.until(lambda: len(names(first)) == 3)
        await parts.pulls.close()
        assert waiting(parts, made) == ["n1", "n2", "n3"], "it is not known which the client has"
        await put(parts, made, "n4")
        has = events(first)[1]["cursor"]
        async with Visit(parts, "/events/a//.", {"last_event_id": has}) as second:
            await second.until(lambda: len(names(second)) == 2)
            assert names(second) == ["n3", "n4"]
        async with Visit(parts, f"/events/a//.?after={last_id(second)}") as third:
            await third.until(lambda: "id: " in third.body)
            await put(parts, made, "n5")
            await third.until(lambda: len(names(third)) == 1)
            assert names(third) == ["n5"]
        assert only_subscription(parts).id == made.id

    run(test())


def test_the_claims_of_a_gateway_that_died_wait_for_the_client_at_once() -> None:
    """Not only after pull_claim_s."""

    async def test() -> None:
        parts = GatewayParts()
        async with Visit(parts, "/events/a//.") as first:
            await first.until(lambda: "id: " in first.body)
            made = only_subscription(parts)
        await put(parts, made, "n1", "n2", "n3")
        claimed = await parts.pulls.take(made.id, 3, 0)  # by a gateway that was killed
        at = claimed.messages[0].offset
        async with Visit(parts, "/events/a//.", {"last_event_id": f"{made.id}.{at}"}) as second:
            await second.until(lambda: len(names(second)) == 2)
            assert names(second) == ["n2", "n3"]

    run(test())


def test_an_earlier_stream_ends_when_the_client_comes_back() -> None:
    async def test() -> None:
        parts = GatewayParts()
        async with Visit(parts, "/events/a//.") as first:
            await first.until(lambda: "id: " in first.body)
            made = only_subscription(parts)
            async with Visit(parts, "/events/a//.", {"last_event_id": made.id}) as second:
                await second.until(lambda: "id: " in second.body)
                await put(parts, made, "n1", "n2")
                await second.until(lambda: len(names(second)) == 2)
                await first.ended()
                assert names(first) == []

    run(test())


def test_what_the_client_has_had_for_a_while_is_settled_and_an_ended_subscription_ends_its_stream() -> None:
    async def test() -> None:
        parts = GatewayParts(GatewaySettings(pull_claim_s=1))
        async with Visit(parts, "/events/a//.") as visit:
            await visit.until(lambda: "id: " in visit.body)
            made = only_subscription(parts)
            await put(parts, made, "n1")
            await visit.until(lambda: any(isinstance(record, Settled) for _, record in parts.pull_log.records))
            assert (waiting(parts, made), names(visit)) == ([], ["n1"])
            await parts.control.commit([SubscriptionEnded(made.id, "unsubscribed", 1)])
            parts.pulls.forget(made.id)
            await visit.ended()

    run(test())


def test_what_the_system_of_the_client_has_not_acknowledged_is_not_settled() -> None:
    async def test() -> None:
        parts = GatewayParts(GatewaySettings(pull_claim_s=1))
        inflight, gone = parts.app.inflight, asyncio.get_running_loop().create_future()
        async with Visit(parts, "/events/a//.") as visit:
            await visit.until(lambda: "id: " in visit.body)
            made = only_subscription(parts)
        await put(parts, made, "n1")
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        stuck = stream._Stream(parts.gateway, Reservation(inflight), made, "text/event-stream", send, gone)
        stuck.unacknowledged = lambda: 10_000_000
        await stuck.run()  # it ends by itself
        stuck.close()
        await parts.pulls.close()
        assert b"n1" in b"".join(each.get("body", b"") for each in sent)
        assert waiting(parts, made) == ["n1"]

    run(test())


def test_a_real_connection_that_is_not_read_ends_and_loses_nothing() -> None:
    """What the kernel took is in its buffers: the client's system has not acknowledged it."""
    parts = GatewayParts(GatewaySettings(pull_claim_s=1))
    with served(parts) as port:

        def connect(last: str = "") -> socket.socket:
            opened = socket.socket()
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            opened.settimeout(120)
            opened.connect(("127.0.0.1", port))
            opened.sendall(f"GET /events/a?after={last} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            return opened

        def read(connection: socket.socket, enough: Callable[[bytes], bool]) -> bytes:
            found = b""
            while not enough(found) and (data := connection.recv(65_536)):
                found += data
            return found

        with connect() as first:
            read(first, lambda found: b"\n\n" in found.partition(b"\nid: ")[2])
        made = only_subscription(parts)
        wait_until(lambda: parts.app.streams.open == 0)
        sent = [f"n{number}" for number in range(60)]
        asyncio.run(put(parts, made, *sent, payload=b"<x>%s</x>" % (b"y" * 5_000)))
        with connect(made.id):
            wait_until(lambda: parts.app.streams.open == 1)
            wait_until(lambda: parts.app.streams.open == 0, "the stream has ended by itself")
        wait_until(lambda: waiting(parts, made) == sent)
        with connect(made.id) as second:
            found = read(second, lambda found: found.count(b'"specversion"') == 60)
        assert re.findall(r'"id":"(n[0-9]+)"', found.decode()) == sent


def test_a_client_that_does_not_read_claims_no_more() -> None:
    async def test() -> None:
        parts = GatewayParts()
        async with Visit(parts, "/events/a//.") as visit:
            await visit.until(lambda: "id: " in visit.body)
            made = only_subscription(parts)
            visit.reading.clear()
            large = b"<x>%s</x>" % (b"y" * 20_000)
            await put(parts, made, *(f"n{number}" for number in range(30)), payload=large)
            await asyncio.sleep(0.05)
            left = waiting(parts, made)
            assert 26 <= len(left) < 30, "as much as is claimed at a time"
            taken = parts.app.inflight.taken
            assert 0 < taken < 200_000
            visit.reading.set()
            await visit.until(lambda: len(names(visit)) == 30)
            assert names(visit) == [f"n{number}" for number in range(30)]
        assert parts.app.inflight.taken == 0

    run(test())


def test_streams_of_large_messages_that_are_not_read_leave_memory_to_publishers() -> None:
    async def test() -> None:
        budget, number = 16 * 1024 * 1024, 20
        parts = GatewayParts(GatewaySettings(inflight_bytes=budget, max_body_bytes=1_000_000, max_elements=1_000))
        async with AsyncExitStack() as stack:
            visits = [await stack.enter_async_context(Visit(parts, "/events/a//.")) for _ in range(number)]
            for visit in visits:
                await visit.until(lambda visit=visit: "id: " in visit.body)  # type: ignore[misc]
                visit.reading.clear()
            large = b"<x>%s</x>" % (b"y" * 900_000)
            for made in parts.table.subscriptions():
                await put(parts, made, "n1", payload=large)
            await asyncio.sleep(0.05)
            assert 0 < parts.app.inflight.taken <= budget / 2
            answer = await parts.request("POST", "/publish/a/b", large, {"content-type": "text/xml"})
            assert answer.status == 202, answer.body
            for visit in visits:
                visit.reading.set()
            for visit in visits:
                await visit.until(lambda visit=visit: names(visit) == ["n1"])  # type: ignore[misc]
        assert parts.app.inflight.taken == 0

    run(test())


def test_without_memory_messages_wait_in_the_pull_point() -> None:
    async def test() -> None:
        parts = GatewayParts()
        async with Visit(parts, "/events/a//.") as visit:
            await visit.until(lambda: "id: " in visit.body)
            made = only_subscription(parts)
            other = Reservation(parts.app.inflight)
            parts.app.inflight.count(other, 1 << 40)
            await put(parts, made, "n1")
            await asyncio.sleep(0.05)
            assert (names(visit), waiting(parts, made)) == ([], ["n1"])
            other.release()
            await visit.until(lambda: len(names(visit)) == 1)

    run(test())


def test_an_idle_stream_has_a_comment_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_HEARTBEAT_S", 0.01)

    async def test() -> None:
        parts = GatewayParts()
        async with Visit(parts, "/events/a//.") as visit:
            await visit.until(lambda: visit.body.count("\n:\n\n") >= 3)
        async with Visit(parts, "/events/a//.", LINES) as visit:
            await visit.until(lambda: visit.body.count("\n") >= 3)
            assert visit.body.strip() == ""

    run(test())


def test_the_lease_is_renewed_while_the_client_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_HEARTBEAT_S", 0.01)

    async def test() -> None:
        parts = GatewayParts(GatewaySettings(stream_lease_s=10))
        async with Visit(parts, "/events/a//.") as visit:
            await visit.until(lambda: "id: " in visit.body)
            made = only_subscription(parts)
            parts.later(seconds=4)
            await visit.until(lambda: visit.body.count("\n:\n\n") >= 3)
            assert only_subscription(parts) == made
            parts.later(seconds=2)
            await visit.until(lambda: only_subscription(parts) != made)
            assert (only_subscription(parts).terminates_ms or 0) == (made.terminates_ms or 0) + 6_000
            await put(parts, made, "n1")
            await visit.until(lambda: len(names(visit)) == 1)
            assert names(visit) == ["n1"]

    run(test())


def test_a_stream_that_has_ended_is_gone() -> None:
    async def test() -> None:
        parts = GatewayParts()
        async with Visit(parts, "/events/a//.") as visit:
            await visit.until(lambda: "id: " in visit.body)
            made = only_subscription(parts)
        parts.later(seconds=601)
        answer = await parts.request("GET", "/events/a//.", headers={"last_event_id": made.id})
        assert answer.status == 410
        assert b"600 s without a connection end it (gateway.stream_lease_s)" in answer.body
        assert only_subscription(parts) == made
        answer = await parts.request("GET", "/events/a//.", headers={"last_event_id": "other.7"})
        assert answer.status == 410

    run(test())


@pytest.mark.parametrize("path", ["/events/a/b", "/events/a//.?filter=x"])
def test_a_stream_keeps_its_topics_and_filters(path: str) -> None:
    async def test() -> None:
        parts = GatewayParts()
        async with Visit(parts, "/events/a//.") as visit:
            await visit.until(lambda: "id: " in visit.body)
        made = only_subscription(parts)
        answer = await parts.request("GET", path, headers={"last_event_id": made.id})
        assert answer.status == 400
        assert b"has another topic expression or other filters" in answer.body
        assert only_subscription(parts) == made

    run(test())


def test_from_last_sends_the_current_messages() -> None:
    async def test() -> None:
        parts = GatewayParts()
        for fold in parts.control.folds:
            fold.apply(TopicRecord(TopicPath("a/b"), policy=TopicPolicy(retain=True)))
        current = Notification("n0", TopicPath("a/b"), b"<x/>", 1)
        parts.notifications.current[current.topic] = current
        for start, accepted in (("now", 0), ("last", 1)):
            async with Visit(parts, f"/events/a//.?from={start}") as visit:
                await visit.until(lambda visit=visit: "id: " in visit.body)  # type: ignore[misc]
            assert len(parts.notifications.accepted) == accepted

    run(test())


def test_a_browser_comes_again_while_the_gateway_starts() -> None:
    """After another status than 200 it never would."""

    async def test() -> None:
        parts = GatewayParts()
        parts.started = False
        answer = await parts.request("GET", "/events/a", headers={"accept": "text/event-stream"})
        assert answer.status == 200
        assert answer.body.startswith(b"retry: 1000\n: the gateway is starting")
        answer = await parts.request("GET", "/events/a")
        assert answer.status == 503
        parts.started = True
        parts.control.error = InfrastructureError("Kafka is away", 2.0)
        assert (await parts.request("GET", "/events/a")).status == 503

    run(test())


@pytest.mark.parametrize(
    ("path", "headers", "words"),
    [
        ("/events/a?form=now", {}, "the query has dialect, filter, from, after and xmlns:PREFIX, no form"),
        ("/events/a?from=first", {}, "from is now or last, not first"),
        ("/events/a", {"last_event_id": "s.x"}, "Last-Event-ID is 's.x'"),
        ("/events/a?dialect=urn:no", {}, "urn:no"),
        ("/events/a[", {}, "a["),
        ("/events/a?filter=x[", {}, "x["),
        ("/events/a?" + "filter=x&" * 17, {}, "may have 16 filters, not 17"),
        ("/events/a?" + "a=1&" * 70, {}, "the query cannot be read"),
    ],
)
def test_a_mistake_in_a_request_is_named(path: str, headers: dict[str, str], words: str) -> None:
    parts = GatewayParts()
    answer = asyncio.run(parts.request("GET", path, headers=headers))
    assert answer.status == 400
    assert words in answer.body.decode()
    assert parts.control.records == []


def test_dialects_and_prefixes() -> None:
    def read(path: str, query: str) -> list[str]:
        scope = {"path": path, "query_string": query.encode(), "headers": []}
        return [each.normal for each in read_request(scope).filters.topics]

    assert read("/events/t:a/b", "xmlns:t=urn:t") == ["{urn:t}a/b"]
    assert read("/events/{urn:t}a//.", "") == ["{urn:t}a//."]
    assert read("/events/t:a|t:b", "dialect=full&xmlns:t=urn:t") == ["{urn:t}a|{urn:t}b"]
    assert read("/events", "") == read("/events///", "") == []
    assert read("/events/a//", "") == ["a//."], "as curl and browsers send a//."
    with pytest.raises(InvalidRequest):
        read("/events/a", "filter=%ff")
