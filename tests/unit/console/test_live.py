"""Live updates of pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.responses import Response, StreamingResponse

from arborcast.console import live
from arborcast.console.live import LiveParts, PageParts, Replacement, changes, merged
from arborcast.console.screens.topics.updates import DirectoryState
from arborcast.engine.monitoring.samples import Scrape


def _body(answer: Response) -> Any:
    assert isinstance(answer, StreamingResponse)
    return answer.body_iterator


async def silence(closed: list[str]) -> AsyncGenerator[Replacement]:
    """A source without parts."""
    try:
        await asyncio.Event().wait()
        yield Replacement("never", "")
    finally:
        closed.append("silence")


async def test_parts_are_events_and_streams_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def source() -> AsyncGenerator[Replacement]:
        yield Replacement("a", "<b>\n</b>")

    pieces = [piece async for piece in _body(LiveParts().response(source()))]
    assert pieces == [": listening\n\n", 'data: {"id": "a", "html": "<b>\\n</b>"}\n\n']
    monkeypatch.setattr(live, "_MOST", 0)
    assert LiveParts().response(source()).status_code == 503


async def test_a_stop_ends_streams_and_closes_their_sources() -> None:
    parts, closed = LiveParts(), list[str]()
    pieces = [_body(parts.response(silence(closed))) for _ in range(3)]
    for each in pieces:
        await anext(each)
    following = [asyncio.ensure_future(anext(each, None)) for each in pieces]
    await asyncio.sleep(0)
    assert parts._open == 3
    parts.stop()
    assert await asyncio.gather(*following) == [None] * 3
    assert (parts._open, closed) == (0, ["silence"] * 3)


async def test_a_closed_connection_frees_its_stream() -> None:
    parts = LiveParts()
    stays, leaves = (_body(parts.response(silence([]))) for _ in range(2))
    for each in (stays, leaves):
        await anext(each)
    assert parts._open == 2
    await leaves.aclose()
    assert parts._open == 1


async def test_merged_streams_do_not_wait_for_each_other() -> None:
    closed: list[str] = []

    async def quick() -> AsyncGenerator[Replacement]:
        for number in range(3):
            yield Replacement("quick", str(number))

    stream = merged(silence(closed), quick())
    assert [(await anext(stream)).html for _ in range(3)] == ["0", "1", "2"]
    await stream.aclose()
    assert closed == ["silence"]


async def test_only_changed_parts_are_sent() -> None:
    ages: list[float] = []

    async def look(age_s: float) -> PageParts:
        ages.append(age_s)
        return PageParts({"same": "a", "other": str(len(ages) // 2)}, rest_s=0.001)

    stream = changes(look, 0.0)
    found = [await anext(stream) for _ in range(4)]
    assert [(each.id, each.html) for each in found] == [("same", "a"), *(("other", number) for number in "012")]
    assert ages == [0.0, 0.001, 0.001, 0.001]


def test_the_state_of_the_directory() -> None:
    assert not DirectoryState.of(Scrape.of("arborcast_topics 3")).known
    text = "arborcast_directory_connected 1\narborcast_directory_behind 2\narborcast_directory_problems 1\n"
    assert DirectoryState.of(Scrape.of(text)) == DirectoryState(True, True, 2, 1)
