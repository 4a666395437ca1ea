"""Streams of events: sent, settled and returned messages, and resumed streams."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.dispatch.hot.sink_journal import stored_element
from arborcast.ingest.access.bearer import Bearer, WrongToken
from arborcast.ingest.access.gate import Authenticator, Gate
from arborcast.ingest.access.settings import AccessSettings
from arborcast.ingest.access.users import FailedLogins
from arborcast.ingest.access.users_file import User, write_users
from arborcast.ingest.events import stream
from arborcast.ingest.events.request import read_request
from arborcast.ingest.http.inflight import Reservation
from arborcast.ingest.settings import GatewaySettings
from arborcast.topic_model.grants import Identity
from arborcast.topic_model.records.control import SubscriptionEnded, SubscriptionRecord, ending
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.pull import Settled, StoredMessage
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.errors import InvalidRequest
from tests.support.gateway_parts import GatewayParts, Visit, changed_elsewhere_first, only_subscription
from tests.support.guarded_gateway import ANNA, quick_hash, users_in
from tests.support.served_app import served
from tests.support.waiting import wait_until

SHORT_CLAIMS = GatewaySettings(pull_claim_s=1)


class Stream(Visit):
    """A visit with a started answer."""

    def __init__(self, parts: GatewayParts, path: str = "/events/a//.", **headers: str) -> None:
        super().__init__(parts, path, headers)
        self._parts = parts

    async def __aenter__(self) -> Self:
        await self.until(lambda: len(self.sent) > 1)
        return self

    @property
    def head(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def made(self) -> Subscription:
        found = self._parts.table.get(self.head[b"arborcast-stream"].decode())
        assert found is not None
        return found

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line.removeprefix("data: ")) for line in self.body.splitlines() if '"specversion"' in line]

    @property
    def names(self) -> list[str]:
        return [each["id"] for each in self.events]

    @property
    def last_id(self) -> str:
        return str(re.findall(r"^id: (.*)$", self.body, re.MULTILINE)[-1])

    async def gets(self, *names: str) -> None:
        await self.until(lambda: len(self.names) >= len(names))
        assert self.names == list(names)


async def put(parts: GatewayParts, made: Subscription, *names: str, payload: bytes = b"<x/>", kind: str = "") -> None:
    """Stores messages like dispatch."""
    sent = [Notification(name, TopicPath("a/b"), payload, 1_700_000_000_000, type=kind) for name in names]
    await parts.pulls.put(
        made.id, [StoredMessage(stored_element(each, made), each.id, "", each.accepted_ms) for each in sent]
    )


def waiting(parts: GatewayParts, made: Subscription) -> list[str]:
    return [each.notification for each in parts.pull_log.store.head(made.id, 1_000, 10_000_000)]


async def test_a_stream_is_a_subscription_with_a_lease(parts: GatewayParts) -> None:
    async with Stream(parts, "/events/a//.?filter=number(x)%3E1") as visit:
        made = visit.made
        assert made.pull_point == made.id == visit.last_id
        assert [each.normal for each in made.topics] == ["a//."]
        assert [each.text for each in made.content] == ["number(x)>1"]
        assert made.terminates_ms == round(parts.now.timestamp() * 1000) + 600_000
        assert visit.head[b"content-type"] == b"text/event-stream; charset=utf-8"
        await put(parts, made, "n1", "n2")
        await visit.gets("n1", "n2")
        first, second = visit.events
        expected = {"specversion": "1.0", "id": "n1", "source": "http://127.0.0.1:8080", "type": "x", "subject": "a/b"}
        expected |= {"time": "2023-11-14T22:13:20.000Z", "datacontenttype": "application/xml", "data": "<x/>"}
        assert first == expected | {"cursor": first["cursor"]}
        assert second["cursor"] == visit.last_id
    assert parts.table.get(made.id) is not None, "the subscription ends with its lease"


async def test_json_lines(parts: GatewayParts) -> None:
    async with Stream(parts, accept="application/x-ndjson") as visit:
        assert visit.head[b"content-type"] == b"application/x-ndjson; charset=utf-8"
        payload = b'<ac:Content xmlns:ac="urn:arborcast:legacy">{\n"a":\n1}</ac:Content>'
        await put(parts, visit.made, "n1", payload=payload, kind="{urn:p}reading")
        await visit.gets("n1")
        (line,) = visit.body.splitlines()
        assert (json.loads(line)["data"], json.loads(line)["type"]) == ({"a": 1}, "{urn:p}reading")


async def test_a_resumed_stream_loses_and_repeats_nothing(parts: GatewayParts) -> None:
    async with Stream(parts) as first:
        made = first.made
        await put(parts, made, "n1", "n2", "n3")
        await first.gets("n1", "n2", "n3")
    await parts.pulls.close()
    assert waiting(parts, made) == ["n1", "n2", "n3"], "none is acknowledged"
    await put(parts, made, "n4")
    async with Stream(parts, last_event_id=first.events[1]["cursor"]) as second:
        await second.gets("n3", "n4")
    async with Stream(parts, f"/events/a//.?after={second.last_id}") as third:
        await put(parts, made, "n5")
        await third.gets("n5")
        async with Stream(parts, last_event_id=third.last_id) as fourth:
            await put(parts, made, "n6", "n7")
            await fourth.gets("n6", "n7")
            await third.ended()
            assert third.names == ["n5"], "ended by the new connection"
    assert only_subscription(parts).id == made.id


async def test_claims_of_a_killed_gateway_are_sent_at_once(parts: GatewayParts) -> None:
    """Before pull_claim_s is over."""
    async with Stream(parts) as first:
        made = first.made
    await put(parts, made, "n1", "n2", "n3")
    claimed = await parts.pulls.take(made.id, 3, 0)  # the claim of a killed gateway
    async with Stream(parts, last_event_id=f"{made.id}.{claimed.messages[0].offset}") as second:
        await second.gets("n2", "n3")


async def test_received_messages_are_settled_and_the_stream_ends() -> None:
    parts = GatewayParts(SHORT_CLAIMS)
    async with Stream(parts) as visit:
        made = visit.made
        await put(parts, made, "n1")
        await visit.until(lambda: any(isinstance(record, Settled) for _, record in parts.pull_log.records))
        assert (waiting(parts, made), visit.names) == ([], ["n1"])
        await parts.control.commit([SubscriptionEnded(made.id, "unsubscribed", 1)])
        parts.pulls.forget(made.id)
        await visit.ended()


async def test_a_stream_ends_after_the_removal_of_its_user(
    parts: GatewayParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_AUTHENTICATE_AGAIN_S", 0.01)
    users = users_in(tmp_path, User("anna", quick_hash("pa")), remember_s=0)
    parts.gateway.gate = Gate(None, Authenticator(AccessSettings(methods="basic"), users))
    async with Stream(parts, authorization=ANNA) as visit:
        made = visit.made
        await put(parts, made, "n1")
        await visit.gets("n1")
        write_users({}, tmp_path / "users.toml")
        await visit.ended()
    refused = await parts.hang_up_after_the_head("/events/a//.", {"authorization": ANNA, "last_event_id": made.id})
    assert (refused.status, parts.table.get(made.id) is not None) == (401, True)


async def test_wrong_tokens_of_the_address_do_not_prolong_an_expired_one(
    parts: GatewayParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_AUTHENTICATE_AGAIN_S", 0.01)
    valid = True

    def check(_: object, token: str) -> Identity:
        if not valid:
            raise WrongToken("the token has expired")
        return Identity("anna")

    monkeypatch.setattr(Bearer, "__init__", lambda *_: None)
    monkeypatch.setattr(Bearer, "check", check)
    users = users_in(tmp_path, failed_logins=FailedLogins(1, 1))
    access = AccessSettings(methods="bearer", jwks_file="jwks.json", jwt_issuer="i", jwt_audience="a")
    parts.gateway.gate = Gate(None, Authenticator(access, users, bearer=Bearer(access)))
    async with Stream(parts, authorization="Bearer t") as visit:
        valid = False
        for _ in range(2):
            users.failed_logins.add("")
        await visit.ended()


async def test_an_idle_stream_of_a_dead_client_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP itself would need a quarter of an hour."""
    monkeypatch.setattr(stream, "_HEARTBEAT_S", 0.01)
    parts = GatewayParts(SHORT_CLAIMS)
    async with Stream(parts) as visit:
        made = visit.made

    async def send(_message: Any) -> None: ...

    connected = asyncio.get_running_loop().create_future()
    idle = stream._Stream(parts.gateway, Reservation(parts.app.inflight), made, "text/event-stream", send, connected)
    idle.unacknowledged = lambda: idle._written
    async with asyncio.timeout(120):
        await idle.run()
    idle.close()


def test_a_connection_that_is_not_read_ends_without_loss() -> None:
    """Bytes in the kernel's buffers are not acknowledged by the client's system."""
    parts = GatewayParts(SHORT_CLAIMS)
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
            wait_until(lambda: parts.app.streams.open == 0, "the gateway ends the stream")
        wait_until(lambda: waiting(parts, made) == sent)
        with connect(made.id) as second:
            found = read(second, lambda found: found.count(b'"specversion"') == 60)
        assert re.findall(r'"id":"(n[0-9]+)"', found.decode()) == sent


async def test_a_client_that_does_not_read_has_one_claim(parts: GatewayParts) -> None:
    names = [f"n{number}" for number in range(30)]
    async with Stream(parts) as visit:
        visit.reading.clear()
        await put(parts, visit.made, *names, payload=b"<x>%s</x>" % (b"y" * 20_000))
        await asyncio.sleep(0.05)
        assert 26 <= len(waiting(parts, visit.made)) < 30, "one claim"
        assert 0 < parts.app.inflight.taken < 200_000
        visit.reading.set()
        await visit.gets(*names)
    assert parts.app.inflight.taken == 0


async def test_streams_that_are_not_read_leave_memory_to_publishers() -> None:
    budget = 16 * 1024 * 1024
    parts = GatewayParts(GatewaySettings(inflight_bytes=budget, max_body_bytes=1_000_000, max_elements=1_000))
    async with AsyncExitStack() as stack:
        visits = [await stack.enter_async_context(Stream(parts)) for _ in range(20)]
        large = b"<x>%s</x>" % (b"y" * 900_000)
        for visit in visits:
            visit.reading.clear()
            await put(parts, visit.made, "n1", payload=large)
        await asyncio.sleep(0.05)
        assert 0 < parts.app.inflight.taken <= budget / 2
        assert sum(bool(waiting(parts, visit.made)) for visit in visits) >= 10, "without memory they are not claimed"
        answer = await parts.request("POST", "/publish/a/b", large, {"content-type": "text/xml"})
        assert answer.status == 202, answer.body
        for visit in visits:
            visit.reading.set()
        for visit in visits:
            await visit.gets("n1")
    assert parts.app.inflight.taken == 0


async def test_idle_streams_have_comments_and_a_renewed_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal keeps a pause, and not a subscription that another gateway ends."""
    monkeypatch.setattr(stream, "_HEARTBEAT_S", 0.01)
    parts = GatewayParts(GatewaySettings(stream_lease_s=10))
    async with Stream(GatewayParts(), accept="application/x-ndjson") as lines:
        await lines.until(lambda: lines.body.count("\n") >= 3)
        assert lines.body.strip() == ""
    async with Stream(parts) as visit:
        made = visit.made
        parts.later(seconds=4)
        await visit.until(lambda: visit.body.count("\n:\n\n") >= 3)
        assert visit.made == made
        await parts.control.commit([SubscriptionRecord(msgspec.structs.replace(made, paused=True))])
        parts.later(seconds=2)
        await visit.until(lambda: visit.made.terminates_ms != made.terminates_ms)
        assert visit.made.paused
        assert (visit.made.terminates_ms or 0) == (made.terminates_ms or 0) + 6_000
        await put(parts, made, "n1")
        await visit.gets("n1")
        changed_elsewhere_first(monkeypatch, parts, lambda one: ending(one.id, "unsubscribed", 1))
        parts.later(seconds=6)
        await visit.ended()
        assert parts.table.get(made.id) is None


async def test_streams_that_cannot_be_resumed(parts: GatewayParts) -> None:
    async with Stream(parts) as visit:
        made = visit.made
    for path in ("/events/a/b", "/events/a//.?filter=x"):
        answer = await parts.request("GET", path, headers={"last_event_id": made.id})
        assert (answer.status, b"has another topic expression or other filters" in answer.body) == (400, True)
    assert (await parts.request("GET", "/events/a//.", headers={"last_event_id": "other.7"})).status == 410
    parts.later(seconds=601)
    answer = await parts.request("GET", "/events/a//.", headers={"last_event_id": made.id})
    assert answer.status == 410
    assert b"600 s without a connection end it (gateway.stream_lease_s)" in answer.body
    assert only_subscription(parts) == made


async def test_from_last_sends_the_current_messages(parts: GatewayParts) -> None:
    path = TopicPath("a/b")
    parts.have_topics(path, retain=True)
    parts.notifications.current[path] = Notification("n0", path, b"<x/>", 1)
    for start, accepted in (("now", 0), ("last", 1)):
        async with Stream(parts, f"/events/a//.?from={start}"):
            assert len(parts.notifications.accepted) == accepted


async def test_a_browser_reconnects_while_the_gateway_starts(parts: GatewayParts) -> None:
    """A browser reconnects only after status 200."""
    parts.started = False
    answer = await parts.request("GET", "/events/a", headers={"accept": "text/event-stream"})
    assert answer.status == 200
    assert answer.body.startswith(b"retry: 1000\n: the gateway is starting")
    assert (await parts.request("GET", "/events/a")).status == 503
    parts.started = True
    parts.control.error = InfrastructureError("Kafka is unavailable:\ndata: x", 2.0)
    answer = await parts.request("GET", "/events/a", headers={"accept": "text/event-stream"})
    assert answer.body == b"retry: 1000\n: Kafka is unavailable: data: x\n\n"
    assert (await parts.request("GET", "/events/a")).status == 503


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
        ("/events/a/\ufffd", {}, "not percent-encoded UTF-8"),  # decoded by the server
    ],
)
async def test_invalid_requests(parts: GatewayParts, path: str, headers: dict[str, str], words: str) -> None:
    answer = await parts.request("GET", path, headers=headers)
    assert (answer.status, parts.control.records) == (400, [])
    assert words in answer.body.decode()


def test_dialects_and_prefixes() -> None:
    def read(path: str, query: str) -> list[str]:
        scope = {"path": path, "query_string": query.encode(), "headers": []}
        return [each.normal for each in read_request(scope).filters.topics]

    assert read("/events/t:a/b", "xmlns:t=urn:t") == ["{urn:t}a/b"]
    assert read("/events/{urn:t}a//.", "") == ["{urn:t}a//."]
    assert read("/events/t:a|t:b", "dialect=full&xmlns:t=urn:t") == ["{urn:t}a|{urn:t}b"]
    assert read("/events", "") == read("/events///", "") == []
    assert read("/events/a//", "") == ["a//."], "curl and browsers remove the last dot"
    with pytest.raises(InvalidRequest):
        read("/events/a", "filter=%ff")
