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


class DirectoryProblems:
    """A page with all of them, kept as things are."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def routes(self) -> list[Route]:
        return [
            self._console.get("/topics/problems", self.page),
            self._console.live_page("/topics/problems/live", self._parts_of),
        ]

    async def page(self, request: Request) -> Response:
        return self._console.slow_page(request, "topics/problems.html", self._parts_of(request))

    def _parts_of(self, request: Request) -> PartsReader:
        settings = self._console.settings

        async def read_parts(_age_s: float) -> PageParts:
            found = await asyncio.to_thread(directory.problems, settings.home)
            text = self._console.render(
                request,
                "topics/problems-shown.html",
                found=found,
                shown=_SHOWN,
                without=settings.directory.kind == "none",
            )
            return PageParts({"shown": text})

        return read_parts
