"""Differences between the directory and the trees, as written by the gateway."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.admin import directory
from arborcast.console.console import Console
from arborcast.console.live import PageParts, PartsReader

# A page stays small.
_SHOWN = 200


def routes(console: Console) -> list[Route]:
    """A page with all of them, kept as things are."""
    settings = console.settings

    def reader_of(request: Request) -> PartsReader:
        async def read_parts(_age_s: float) -> PageParts:
            found = await asyncio.to_thread(directory.problems, settings.home)
            without = settings.directory.kind == "none"
            template = "topics/problems-shown.html"
            return PageParts({"shown": console.render(request, template, found=found, shown=_SHOWN, without=without)})

        return read_parts

    async def page(request: Request) -> Response:
        return console.slow_page(request, "topics/problems.html", reader_of(request))

    return [console.get("/topics/problems", page), console.live_page("/topics/problems/live", reader_of)]
