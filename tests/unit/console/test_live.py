"""Live updates of pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response, StreamingResponse

from arborcast.console import live
from arborcast.console.live import LiveParts, PageParts, Replacement, changes, merged
from arborcast.console.screens.topics.news import DirectoryState
from arborcast.engine.monitoring.samples import Scrape


def _body(answer: Response) -> Any:
    assert isinstance(answer, StreamingResponse)
    return answer.body_iterator


def test_parts_are_events_and_streams_are_bounded(monkeypatch: Any) -> None:
    async def source() -> AsyncGenerator[Replacement]:
        yield Replacement("a", "<b>\n</b>")

    async def run() -> list[str]:
        return [piece async for piece in _body(LiveParts().response(source()))]

    assert asyncio.run(run()) == [": listening\n\n", 'data: {"id": "a", "html": "<b>\\n</b>"}\n\n']
    monkeypatch.setattr(live, "_MOST", 0)
    assert LiveParts().response(source()).status_code == 503


def test_a_stop_ends_streams_and_closes_their_sources() -> None:
    closed: list[bool] = []

    async def source() -> AsyncGenerator[Replacement]:
        try:
            await asyncio.Event().wait()
            yield Replacement("never", "")
        finally:
            closed.append(True)

    async def run() -> None:
        parts = LiveParts()
        pieces = [_body(parts.response(source())) for _ in range(3)]
        for each in pieces:
            await anext(each)
        following = [asyncio.ensure_future(anext(each, None)) for each in pieces]
        await asyncio.sleep(0)
        assert parts._open == 3
        parts.stop()
        assert await asyncio.gather(*following) == [None] * 3
        assert parts._open == 0

    asyncio.run(run())
    assert closed == [True] * 3


def test_a_closed_connection_frees_its_stream() -> None:
    async def source() -> AsyncGenerator[Replacement]:
        while True:
            yield Replacement("a", "")

    async def run() -> None:
        parts = LiveParts()
        stays, leaves = (_body(parts.response(source())) for _ in range(2))
        for each in (stays, leaves):
            await anext(each)
        assert parts._open == 2
        await leaves.aclose()
        assert parts._open == 1

    asyncio.run(run())


def test_merged_streams_do_not_wait_for_each_other() -> None:
    closed = []

    async def slow() -> AsyncGenerator[Replacement]:
        try:
            await asyncio.Event().wait()
            yield Replacement("never", "")
        finally:
            closed.append("slow")

    async def quick() -> AsyncGenerator[Replacement]:
        for number in range(3):
            yield Replacement("quick", str(number))

    async def run() -> list[str]:
        stream = merged(slow(), quick())
        found = [(await anext(stream)).html for _ in range(3)]
        await stream.aclose()
        return found

    assert asyncio.run(run()) == ["0", "1", "2"]
    assert closed == ["slow"]


def test_only_changed_parts_are_sent() -> None:
    ages: list[float] = []

    async def look(age_s: float) -> PageParts:
        ages.append(age_s)
        return PageParts({"same": "a", "other": str(len(ages) // 2)}, rest_s=0.001)

    async def run() -> list[tuple[str, str]]:
        stream = changes(look, 0.0)
        found = [await anext(stream) for _ in range(4)]
        return [(each.id, each.html) for each in found]

    assert asyncio.run(run()) == [("same", "a"), ("other", "0"), ("other", "1"), ("other", "2")]
    assert ages == [0.0, 0.001, 0.001, 0.001]


def test_the_state_of_the_directory() -> None:
    assert not DirectoryState.of(Scrape.of("arborcast_topics 3")).known
    text = "arborcast_directory_connected 1\narborcast_directory_behind 2\narborcast_directory_problems 1\n"
    assert DirectoryState.of(Scrape.of(text)) == DirectoryState(True, True, 2, 1)
