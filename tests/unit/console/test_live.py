"""Parts of pages that change by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import StreamingResponse

from arborcast.console import live
from arborcast.console.live import LiveParts, Replacement, Seen, changes
from arborcast.console.screens.topics.news import DirectoryState
from arborcast.engine.monitoring.samples import Scrape


async def _pieces(parts: LiveParts, source: AsyncGenerator[Replacement]) -> AsyncGenerator[str]:
    answer = parts.response(source)
    assert isinstance(answer, StreamingResponse)
    iterator: Any = answer.body_iterator
    async for piece in iterator:
        yield piece


def test_parts_come_as_events_until_the_source_ends_and_there_are_only_so_many(monkeypatch: Any) -> None:
    async def source() -> AsyncGenerator[Replacement]:
        yield Replacement("a", "<b>\n</b>")

    async def run() -> list[str]:
        return [piece async for piece in _pieces(LiveParts(), source())]

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
        pieces = [_pieces(parts, source()) for _ in range(3)]
        for each in pieces:
            await anext(each)
        following = [asyncio.ensure_future(anext(each, None)) for each in pieces]
        await asyncio.sleep(0)
        assert parts.open == 3
        parts.stop()
        assert await asyncio.gather(*following) == [None] * 3
        assert parts.open == 0

    asyncio.run(run())
    assert closed == [True] * 3


def test_a_visitor_that_leaves_frees_its_stream() -> None:
    async def source() -> AsyncGenerator[Replacement]:
        while True:
            yield Replacement("a", "")

    async def run() -> None:
        parts = LiveParts()
        pieces = _pieces(parts, source())
        await anext(pieces)
        await anext(pieces)
        assert parts.open == 1
        answer = parts.response(source())
        assert isinstance(answer, StreamingResponse)
        iterator: Any = answer.body_iterator
        await anext(iterator)
        await iterator.aclose()
        assert parts.open == 1

    asyncio.run(run())


def test_what_is_as_before_is_not_sent_again() -> None:
    ages: list[float] = []

    async def look(age_s: float) -> Seen:
        ages.append(age_s)
        return Seen({"same": "a", "other": str(len(ages) // 2)}, rest_s=0.001)

    async def run() -> list[Replacement]:
        stream = changes(look, 0.0)
        return [await anext(stream) for _ in range(4)]

    assert [(each.id, each.html) for each in asyncio.run(run())] == [
        ("same", "a"),
        ("other", "0"),
        ("other", "1"),
        ("other", "2"),
    ]
    assert ages == [0.0, 0.001, 0.001, 0.001]


def test_how_the_directory_is() -> None:
    assert not DirectoryState.of(Scrape.of("arborcast_topics 3")).known
    text = "arborcast_directory_connected 1\narborcast_directory_behind 2\narborcast_directory_problems 1\n"
    assert DirectoryState.of(Scrape.of(text)) == DirectoryState(True, True, 2, 1)
