"""POST /results/…: later results of receivers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.security.keyring import KeyFile, KeyRing
from arborcast.core.settings import KafkaSettings
from arborcast.ingest.access.gate import Gate
from arborcast.ingest.access.rates import Rates
from arborcast.ingest.access.settings import LimitSettings
from arborcast.ingest.operations.push_results import PushResults
from arborcast.ingest.state.log_view import LoggedState
from arborcast.topic_model.records import results
from arborcast.topic_model.records.results import PATH, Promise, Result, write_promise
from arborcast.wire.errors import ResultRefused
from tests.support.gateway_parts import RESULT_KEYS, START, GatewayParts, HttpAnswer, ResultList

NOW_MS = int(START.timestamp() * 1000)
PROMISE = Promise("s", "p-7", NOW_MS - 1_000, NOW_MS + 60_000, 2)
ADDRESS = PATH + write_promise(PROMISE, RESULT_KEYS)


def post(parts: GatewayParts, path: str = ADDRESS, **fields: object) -> HttpAnswer:
    return parts.post(json.dumps(fields).encode(), path)


def test_the_first_result_is_logged_before_the_answer(parts: GatewayParts) -> None:
    parts.results.error = InfrastructureError("the results log cannot be written", 2.0)
    answer = post(parts, push="p-7", state="failed")
    assert (answer.status, answer.headers[b"retry-after"]) == (503, b"2")
    parts.results.error = None
    answer = post(parts, push="p-7", state="failed", text="no paper" + "x" * 600)
    assert (answer.status, answer.body) == (204, b"")
    assert parts.results.taken == [Result(PROMISE, "failed", NOW_MS, "no paper" + "x" * 492)]
    assert 'arborcast_gateway_requests_total{operation="PushResult",status="204"} 1' in parts.metrics.text()
    assert [post(parts, state="failed").status for _ in range(2)] == [204, 204]
    refused = post(parts, state="delivered")
    assert (refused.status, b"reported as failed before" in refused.body) == (409, True)
    assert len(parts.results.taken) == 1


async def test_concurrent_equal_results_are_stored_once() -> None:
    class Log(ResultList):
        released = threading.Event()

        def begin(self, encoded: Sequence[tuple[bytes, bytes | None]]) -> Callable[[], int]:
            assert self.released.wait(60)
            return super().begin(encoded)

    log = Log()
    taking = PushResults(LoggedState(KafkaSettings(), log, results.encode), RESULT_KEYS, lambda: NOW_MS / 1000)
    same = [asyncio.create_task(taking.take(ADDRESS, b'{"state": "failed"}')) for _ in range(5)]
    other = asyncio.create_task(taking.take(ADDRESS, b'{"state": "delivered"}'))
    await asyncio.sleep(0.01)
    log.released.set()
    await asyncio.gather(*same)
    with pytest.raises(ResultRefused, match="the first report counts"):
        await other
    assert len(log.taken) == 1
    taking.close()


async def test_a_key_file_that_cannot_be_read_refuses_no_result(tmp_path: Path) -> None:
    log = ResultList()
    taking = PushResults(LoggedState(KafkaSettings(), log, results.encode), KeyFile(tmp_path / "absent"))
    with pytest.raises(InfrastructureError, match=r"this gateway cannot be read$"):
        await taking.take(ADDRESS, b'{"state": "delivered"}')
    taking.close()


def test_results_after_their_time(parts: GatewayParts) -> None:
    parts.later(seconds=60)
    assert post(parts, state="delivered").status == 204
    parts.later(seconds=5)
    late = post(parts, state="delivered")
    assert (late.status, late.headers[b"content-type"]) == (410, b"text/plain; charset=utf-8")
    assert b"5 s ago (push.callback_s)" in late.body


GOOD = b'{"state": "delivered"}'
FORGED = write_promise(PROMISE, KeyRing({"k": b"x" * 32}))
OTHER = write_promise(PROMISE._replace(push="p-8"), RESULT_KEYS)
MIXED = f"{OTHER.partition('.')[0]}.{ADDRESS.partition('.')[2]}"
NEXT_KEY = write_promise(PROMISE, KeyRing({"next": b"n" * 32}))


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        (ADDRESS, b"", 400, "state"),
        (ADDRESS, b"<r/>", 400, "a result is JSON such as"),
        (ADDRESS, b'{"push": "p-7"}', 400, "missing required field `state`"),
        (ADDRESS, b'{"state": "done"}', 400, "its state delivered, failed or refused"),
        (ADDRESS, b'{"state": 7}', 400, "its state delivered"),
        (ADDRESS, b'{"state": "failed", "text": ["x"]}', 400, "$.text"),
        (ADDRESS, b'{"state": "failed", "text": "\xff"}', 400, "JSON"),
        (ADDRESS, b"[" * 10_000, 400, "JSON"),
        (ADDRESS, b'{"state": "failed", "push": "p-8"}', 403, "the address of the push p-7"),
        (ADDRESS, b'{"state": "failed", "text": "' + b"x" * 20_000 + b'"}', 413, "more than 16384"),
        *((PATH + end, GOOD, 403, "Arborcast-Callback") for end in ("", "x", FORGED, MIXED, "../publish/a")),
        # The key may be added soon.
        (PATH + NEXT_KEY, GOOD, 503, "the key 'next', which is not in the key file of this gateway"),
    ],
)
def test_refused_results(parts: GatewayParts, path: str, body: bytes, status: int, words: str) -> None:
    answer = parts.post(body, path)
    assert (answer.status, parts.results.taken) == (status, [])
    assert words in answer.body.decode()
    assert answer.headers.get(b"retry-after") == (b"5" if status == 503 else None)


def test_the_rate_of_results_is_limited(parts: GatewayParts) -> None:
    parts.gateway.gate = Gate(Rates(LimitSettings(requests_per_s=0.001, request_burst=1)))
    assert [post(parts, state="delivered").status for _ in range(2)] == [204, 429]
