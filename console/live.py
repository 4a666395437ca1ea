"""Parts of pages that update themselves, by server-sent events.

An element with `data-live="/address"` makes the browser listen there while the page is visible. Events have the new
contents of elements, by their ids, as rendered and escaped HTML.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

# Each is a connection that stays open; a browser has one for each page that is seen.
_MOST = 64

# Then the browser reconnects, and its right is checked again.
_LONGEST_S = 300.0

# Proxies and browsers close a silent connection.
_SILENCE_S = 15.0


@dataclass(frozen=True)
class Replacement:
    """The new content of the element with this id."""

    id: str
    html: str


class PageParts(NamedTuple):
    """Parts of a page by the ids of their elements, and the minimum time until the next update. With `failed` the parts
    have the reason of a failure."""

    parts: Mapping[str, str]
    rest_s: float = 0.0
    failed: bool = False


PartsReader = Callable[[Request, float], Awaitable[PageParts]]
"""The function for a page's contents, for a request; results up to this age are accepted."""


async def changes(read_parts: Callable[[float], Awaitable[PageParts]], every_s: float) -> AsyncGenerator[Replacement]:
    """The parts that are not any more as they were sent last."""
    sent: dict[str, str] = {}
    age_s = every_s
    while True:
        page = await read_parts(age_s)
        for part, html in page.parts.items():
            if sent.get(part) != html:
                sent[part] = html
                yield Replacement(part, html)
        age_s = max(every_s, page.rest_s)
        await asyncio.sleep(age_s)


async def merged(*streams: AsyncGenerator[Replacement]) -> AsyncGenerator[Replacement]:
    """The parts of several streams, as they arrive."""
    coming = {asyncio.ensure_future(anext(stream)): stream for stream in streams}
    try:
        while coming:
            done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                stream = coming.pop(each)
                try:
                    part = each.result()
                except StopAsyncIteration:
                    continue
                coming[asyncio.ensure_future(anext(stream))] = stream
                yield part
    finally:
        for each in coming:
            each.cancel()
        if coming:
            await asyncio.wait(coming)
        for stream in streams:
            await stream.aclose()


class LiveParts:
    def __init__(self) -> None:
        self._open = 0
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End all streams, without waiting for browsers."""
        self._stopping.set()

    def response(self, parts: AsyncGenerator[Replacement]) -> Response:
        """The answer to a browser that listens. `parts` is closed when it leaves, or when the console stops."""
        if self._open >= _MOST:
            return PlainTextResponse("too many pages are open", 503, {"retry-after": "30"})
        return StreamingResponse(
            self._events(parts), media_type="text/event-stream", headers={"x-accel-buffering": "no"}
        )

    async def _events(self, parts: AsyncGenerator[Replacement]) -> AsyncIterator[str]:
        self._open += 1
        until = time.monotonic() + _LONGEST_S
        stopping = asyncio.ensure_future(self._stopping.wait())
        coming: asyncio.Future[Replacement] | None = None
        try:
            # At once, so that the browser is connected.
            yield ": listening\n\n"
            while time.monotonic() < until:
                coming = coming or asyncio.ensure_future(anext(parts))
                both: set[asyncio.Future[Any]] = {coming, stopping}
                await asyncio.wait(both, timeout=_SILENCE_S, return_when=asyncio.FIRST_COMPLETED)
                if stopping.done():
                    return
                if not coming.done():
                    yield ": still here\n\n"
                    continue
                try:
                    part = coming.result()
                except StopAsyncIteration:
                    return
                coming = None
                yield f"data: {json.dumps({'id': part.id, 'html': part.html})}\n\n"
        finally:
            self._open -= 1
            stopping.cancel()
            if coming is not None:
                coming.cancel()
                await asyncio.wait({coming})
            await parts.aclose()
