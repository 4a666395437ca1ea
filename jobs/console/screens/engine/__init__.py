"""The screen Engine: how this engine is, and others whose metrics addresses the settings name; live, and as it was.

feed    what is known of one engine: its last minutes, and as much of its history as a chart shows
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jobs.console.console import Console, Screen
from jobs.console.live import Replacement
from jobs.console.screens.engine.feed import RANGES, EngineFeed, Shown, feeds_of
from jobs.monitoring.charts import CHARTS

# Names of charts, by what they are about.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "Messages": ("accepted", "delivery", "attempts", "lag-seconds", "lag-records", "waiting", "due", "pushes"),
    "Processes": ("cpu", "memory", "threads", "files"),
    "Java": ("heap", "collecting", "classes"),
    "Inside": ("append", "stages"),
}

# As often as an engine looks at itself, unless it is told otherwise.
_LOOK_S = 5.0


class Asked(NamedTuple):
    """What a page is to show."""

    engine: int
    span: str

    @property
    def query(self) -> str:
        return f"engine={self.engine}&range={self.span}"


def _routes(console: Console) -> list[Route]:
    feeds = feeds_of(console.settings)

    def asked(request: Request) -> tuple[Asked, EngineFeed]:
        number, span = request.query_params.get("engine", "0"), request.query_params.get("range", "10m")
        if not (number.isascii() and number.isdecimal() and int(number) < len(feeds)) or span not in RANGES:
            raise HTTPException(404, "There is no such engine, or no such range.")
        return Asked(int(number), span), feeds[int(number)]

    async def page(request: Request) -> Response:
        wanted, feed = asked(request)
        return console.page(
            request,
            "engine/page.html",
            asked=wanted,
            engines=[each.name for each in feeds],
            ranges=RANGES,
            groups=GROUPS,
            titles={chart.name: chart.title for chart in CHARTS},
            shown=await feed.shown(wanted.span),
        )

    async def live(request: Request) -> Response:
        wanted, feed = asked(request)
        return console.live.response(_changes(console, request, feed, wanted))

    return [console.get("/engine", page), console.get("/engine/live", live)]


async def _changes(console: Console, request: Request, feed: EngineFeed, wanted: Asked) -> AsyncGenerator[Replacement]:
    """The parts of the page that have changed, every few seconds."""
    sent: dict[str, str] = {}
    while True:
        shown = await feed.shown(wanted.span)
        for part, text in _parts(console, request, shown).items():
            if sent.get(part) != text:
                sent[part] = text
                yield Replacement(part, text)
        await asyncio.sleep(_LOOK_S)


def _parts(console: Console, request: Request, shown: Shown) -> dict[str, str]:
    def render(template: str, **values: Any) -> str:
        return console.render(request, template, **values)

    return {
        "trouble": render("trouble.html", trouble=console.trouble()),
        "engine-now": render("engine/now.html", shown=shown),
        "engine-processes": render("engine/processes.html", shown=shown),
        "engine-slowest": render("engine/slowest.html", shown=shown),
        **{f"chart-{name}": str(figure) for name, figure in shown.figures.items()},
    }


SCREEN = Screen("engine", "Engine", "/engine", _routes, needs_log=False)
