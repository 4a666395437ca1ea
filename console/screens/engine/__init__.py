"""The screen *Engine*: the state and history of this engine, and of others by their metrics addresses.

feed    the samples of one engine: its last minutes, and its history as far as a chart shows it
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from datetime import datetime
from typing import NamedTuple
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.console.console import Console, Screen
from arborcast.console.live import PageParts
from arborcast.console.screens.engine.feed import RANGES, EngineFeed, PageContents, feeds_of

# Names of charts by subject.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "Messages": (
        *("accepted", "attempts", "delivery", "push", "lag-seconds", "lag-records", "waiting", "due", "pushes"),
    ),
    "Processes": ("cpu", "memory", "threads", "files"),
    "Java": ("heap", "collecting", "classes"),
    "Internals": ("append", "stages"),
}


LINKS: Mapping[str, tuple[str, str]] = {
    "accepted": ("/deliveries", "Recent notifications"),
    "attempts": ("/deliveries/dead", "Dead letters"),
    "delivery": ("/deliveries", "Recent notifications"),
    "push": ("/subscriptions", "Subscriptions"),
    "waiting": ("/deliveries/waiting", "Pending deliveries"),
    "due": ("/deliveries/waiting", "Pending deliveries"),
}
"""Where the objects of a chart are listed: address, and words of the link."""


class EngineQuery(NamedTuple):
    """The parameters of a page: a range up to now, or a time between `begin` and `end`."""

    engine: int
    span: str
    begin: str = ""
    end: str = ""

    @property
    def query(self) -> str:
        between = {"from": self.begin, "to": self.end} if self.begin else {}
        return urlencode({"engine": self.engine, "range": self.span, **between})

    def window(self) -> tuple[float, float] | None:
        """The chosen time; None without one. Raises ValueError for one that is none."""
        if not self.begin:
            return None
        # Without a zone a time is one of this machine, as on all pages.
        begin, end = (datetime.fromisoformat(each).astimezone().timestamp() for each in (self.begin, self.end))
        if not begin < end:
            raise ValueError("the end is not behind the beginning")
        return begin, end

    async def shown(self, feed: EngineFeed) -> PageContents:
        between = self.window()
        return await feed.shown(self.span) if between is None else await feed.window(*between)


def _routes(console: Console) -> list[Route]:
    feeds = feeds_of(console.settings)

    def asked(request: Request) -> tuple[EngineFeed, EngineQuery]:
        number, span = request.query_params.get("engine", "0"), request.query_params.get("range", "10m")
        if not (number.isascii() and number.isdecimal() and int(number) < len(feeds)) or span not in RANGES:
            raise HTTPException(404, "There is no such engine, or no such range.")
        wanted = EngineQuery(int(number), span, *(request.query_params.get(each, "") for each in ("from", "to")))
        try:
            wanted.window()
        except (ValueError, OverflowError) as error:
            raise HTTPException(400, f"No time range: {error}") from error
        return feeds[int(number)], wanted

    async def page(request: Request) -> Response:
        _, wanted = asked(request)
        return console.slow_page(
            request, "engine/page.html", read_page, asked=wanted, engines=[each.name for each in feeds], ranges=RANGES
        )

    async def read_page(request: Request, _age_s: float) -> PageParts:
        feed, wanted = asked(request)
        values = {"groups": GROUPS, "links": LINKS, "shown": await wanted.shown(feed)}
        return PageParts({"shown": console.render(request, "engine/shown.html", **values)})

    def read_parts(request: Request, _age_s: float) -> Awaitable[PageParts]:
        return _live_parts(console, request, *asked(request))

    return [console.get("/engine", page), console.live_page("/engine/live", read_parts, check=asked)]


async def _live_parts(console: Console, request: Request, feed: EngineFeed, wanted: EngineQuery) -> PageParts:
    shown = await wanted.shown(feed)
    return PageParts(
        {
            "engine-now": console.render(request, "engine/now.html", shown=shown),
            "engine-processes": console.render(request, "engine/processes.html", shown=shown),
            "engine-slowest": console.render(request, "engine/slowest.html", shown=shown),
            **{f"chart-{name}": str(figure) for name, figure in shown.figures.items()},
        }
    )


SCREEN = Screen("engine", "Engine", "/engine", _routes, needs_log=False)
