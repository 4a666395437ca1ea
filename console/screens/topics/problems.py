"""Differences between the directory and the trees, as written by the gateway."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.admin import directory
from arborcast.console.console import Console
from arborcast.console.live import PageParts

# A page stays small.
_SHOWN = 200


def routes(console: Console) -> list[Route]:
    """A page with all of them, kept as things are."""
    settings = console.settings

    async def read_parts(request: Request, _age_s: float) -> PageParts:
        found = await asyncio.to_thread(directory.problems, settings.home)
        without = settings.directory.kind == "none"
        template = "topics/problems-shown.html"
        return PageParts({"shown": console.render(request, template, found=found, shown=_SHOWN, without=without)})

    async def page(request: Request) -> Response:
        return console.slow_page(request, "topics/problems.html", read_parts)

    return [console.get("/topics/problems", page), console.live_page("/topics/problems/live", read_parts)]
