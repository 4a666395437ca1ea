"""POST /results/…, as a receiver does it that has taken a push for later."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.topics import RESULTS_LOG
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.security.keyring import KeyRing
from arborcast.core.settings import KafkaSettings
from arborcast.ingest.access.gate import Gate
from arborcast.ingest.access.rates import Rates
from arborcast.ingest.access.settings import LimitSettings
from arborcast.ingest.operations.push_results import PushResults
from arborcast.ingest.state.log_view import LoggedState
from arborcast.topic_model.records import results
from arborcast.topic_model.records.results import PATH, Promise, Result, write_promise
from arborcast.wire.errors import ResultRefused
from tests.support.gateway_parts import RESULT_KEYS, START, GatewayParts, HttpAnswer

NOW_MS = int(START.timestamp() * 1000)
PROMISE = Promise("s", "p-7", NOW_MS - 1_000, NOW_MS + 60_000, 2)
ADDRESS = PATH + write_promise(PROMISE, RESULT_KEYS)


def post(parts: GatewayParts, path: str = ADDRESS, **said: object) -> HttpAnswer:
    return parts.post(json.dumps(said).encode(), path)


def test_a_result_is_in_the_log_before_it_is_answered() -> None:
    parts = GatewayParts()
    answer = post(parts, push="p-7", state="failed", text="no paper" + "x" * 600)
    assert (answer.status, answer.body) == (204, b"")
    assert parts.results.taken == [Result(PROMISE, "failed", NOW_MS, "no paper" + "x" * 492)]
    assert 'arborcast_gateway_requests_total{operation="PushResult",status="204"} 1' in parts.metrics.text()


def test_said_again_it_is_the_same_and_said_otherwise_it_is_refused() -> None:
    parts = GatewayParts()
    assert [post(parts, state="delivered").status for _ in range(3)] == [204, 204, 204]
    refused = post(parts, state="failed")
    assert (refused.status, len(parts.results.taken)) == (409, 1)
    assert b"reported as delivered before" in refused.body


async def test_equal_results_at_the_same_moment_are_stored_once() -> None:
    class Log(LogWriter):
        def __init__(self) -> None:
            super().__init__(KafkaSettings(), RESULTS_LOG)
            self.appended: list[bytes] = []
            self.go_on = threading.Event()

        def append_encoded(self, encoded: Sequence[tuple[bytes, bytes | None]]) -> int:
            assert self.go_on.wait(60)
            self.appended += [key for key, _ in encoded]
            return 0

    log = Log()
    taking = PushResults(LoggedState(KafkaSettings(), log, results.encode), RESULT_KEYS, lambda: NOW_MS / 1000)
    same = [asyncio.create_task(taking.take(ADDRESS, b'{"state": "failed"}')) for _ in range(5)]
    other = asyncio.create_task(taking.take(ADDRESS, b'{"state": "delivered"}'))
    await asyncio.sleep(0.01)
    log.go_on.set()
    await asyncio.gather(*same)
    with pytest.raises(ResultRefused, match="the first report counts"):
        await other
    assert len(log.appended) == 1
    taking.close()


def test_until_its_time_is_over() -> None:
    parts = GatewayParts()
    parts.later(seconds=60)
    assert post(parts, state="delivered").status == 204
    parts.later(seconds=5)
    late = post(parts, state="delivered")
    assert (late.status, late.headers[b"content-type"]) == (410, b"text/plain; charset=utf-8")
    assert b"5 s ago (push.callback_s)" in late.body


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "state"),
        (b"<r/>", 400, "a result is JSON such as"),
        (b'{"push": "p-7"}', 400, "missing required field `state`"),
        (b'{"state": "done"}', 400, "its state delivered, failed or refused"),
        (b'{"state": 7}', 400, "its state delivered"),
        (b'{"state": "failed", "text": ["x"]}', 400, "$.text"),
        (b'{"state": "failed", "text": "\xff"}', 400, "JSON"),
        (b"[" * 10_000, 400, "JSON"),
        (b'{"state": "failed", "push": "p-8"}', 403, "the address of the push p-7"),
        (b'{"state": "failed", "text": "' + b"x" * 20_000 + b'"}', 413, "more than 16384"),
    ],
)
def test_what_is_no_result_is_refused_with_a_sentence(body: bytes, status: int, says: str) -> None:
    parts = GatewayParts()
    answer = parts.post(body, ADDRESS)
    assert (answer.status, parts.results.taken) == (status, [])
    assert says in answer.body.decode()


def test_only_who_got_the_push_may_say_how_it_ended() -> None:
    parts = GatewayParts()
    forged = write_promise(PROMISE, KeyRing({"k": b"x" * 32}))
    other = write_promise(PROMISE._replace(push="p-8"), RESULT_KEYS)
    mixed = f"{other.partition('.')[0]}.{ADDRESS.partition('.')[2]}"
    for end in ("", "x", forged, mixed, "../publish/a"):
        answer = post(parts, PATH + end, state="delivered")
        assert answer.status == 403
        assert b"Arborcast-Callback" in answer.body
    assert parts.results.taken == []


def test_a_key_that_the_gateway_does_not_have_yet_is_waited_for() -> None:
    parts = GatewayParts()
    answer = post(parts, PATH + write_promise(PROMISE, KeyRing({"next": b"n" * 32})), state="delivered")
    assert (answer.status, answer.headers[b"retry-after"], parts.results.taken) == (503, b"5", [])
    assert b"the key 'next', which is not in the key file of this gateway" in answer.body


def test_while_the_log_takes_nothing_it_is_to_be_said_again() -> None:
    parts = GatewayParts()
    parts.results.error = InfrastructureError("the results log cannot be written", 2.0)
    answer = post(parts, state="delivered")
    assert (answer.status, answer.headers[b"retry-after"]) == (503, b"2")
    parts.results.error = None
    assert post(parts, state="delivered").status == 204
    assert len(parts.results.taken) == 1


def test_it_counts_for_the_rate_of_its_address() -> None:
    parts = GatewayParts()
    parts.gateway.gate = Gate(Rates(LimitSettings(requests_per_s=0.001, request_burst=1)))
    assert post(parts, state="delivered").status == 204
    assert post(parts, state="delivered").status == 429
