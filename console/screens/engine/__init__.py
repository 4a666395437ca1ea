"""The screen *Engine*: the state and history of this engine, and of others by their metrics addresses.

feed    the samples of one engine: its last minutes, and its history as far as a chart shows it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.console.console import Console, Screen
from arborcast.console.live import Look, Seen
from arborcast.console.screens.engine.feed import RANGES, EngineFeed, feeds_of

# Names of charts by subject.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "Messages": ("accepted", "delivery", "attempts", "lag-seconds", "lag-records", "waiting", "due", "pushes"),
    "Processes": ("cpu", "memory", "threads", "files"),
    "Java": ("heap", "collecting", "classes"),
    "Inside": ("append", "stages"),
}


class EngineQuery(NamedTuple):
    """The parameters of a page."""

    engine: int
    span: str

    @property
    def query(self) -> str:
        return f"engine={self.engine}&range={self.span}"


def _routes(console: Console) -> list[Route]:
    feeds = feeds_of(console.settings)

    def asked(request: Request) -> tuple[EngineQuery, EngineFeed]:
        number, span = request.query_params.get("engine", "0"), request.query_params.get("range", "10m")
        if not (number.isascii() and number.isdecimal() and int(number) < len(feeds)) or span not in RANGES:
            raise HTTPException(404, "There is no such engine, or no such range.")
        return EngineQuery(int(number), span), feeds[int(number)]

    async def page(request: Request) -> Response:
        wanted, feed = asked(request)

        async def look(_age_s: float) -> Seen:
            now = await feed.shown(wanted.span)
            return Seen({"shown": console.render(request, "engine/shown.html", groups=GROUPS, shown=now)})

        return console.slow_page(
            request, "engine/page.html", look, asked=wanted, engines=[each.name for each in feeds], ranges=RANGES
        )

    async def live(request: Request) -> Response:
        wanted, feed = asked(request)
        return console.live_page(request, _look_at(console, request, feed, wanted))

    return [console.get("/engine", page), console.get("/engine/live", live)]


def _look_at(console: Console, request: Request, feed: EngineFeed, wanted: EngineQuery) -> Look:
    async def look(_age_s: float) -> Seen:
        shown = await feed.shown(wanted.span)
        return Seen(
            {
                "engine-now": console.render(request, "engine/now.html", shown=shown),
                "engine-processes": console.render(request, "engine/processes.html", shown=shown),
                "engine-slowest": console.render(request, "engine/slowest.html", shown=shown),
                **{f"chart-{name}": str(figure) for name, figure in shown.figures.items()},
            }
        )

    return look


SCREEN = Screen("engine", "Engine", "/engine", _routes, needs_log=False)
