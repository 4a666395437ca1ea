"""The screen *Queues*: work queues with their requests and servers."""

from __future__ import annotations

import asyncio
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.admin import queues as admin
from arborcast.admin.topics import topic_named
from arborcast.console.console import Console, Screen
from arborcast.console.live import PageParts
from arborcast.console.questions import Answer
from arborcast.core.errors import ArborcastError
from arborcast.engine.embedded.state import addresses

_AT_ONCE = 100

# Queues of the list, and servers of a queue: a page stays small.
_SHOWN = 200


def _routes(console: Console) -> list[Route]:
    async def read_parts(request: Request, age_s: float) -> PageParts:
        if wanted := _wanted(request):
            return await read_one(request, wanted, age_s)
        figures = await _figures(console, age_s)
        found = admin.queues(console.control, figures.value.scrape if figures.value else None)
        # The longest waiting first.
        found.sort(key=lambda each: (-(each.oldest_s or 0), each.queue))
        return console.main_part(request, figures, "queues/shown.html", queues=found, shown=_SHOWN)

    async def read_one(request: Request, wanted: str, age_s: float) -> PageParts:
        try:
            path = topic_named(wanted, console.control.table.topics)
            figures, waits = await asyncio.gather(
                _figures(console, age_s),
                console.questions.recent_log(admin.requests, path, _AT_ONCE, console.questions.views, age_s=age_s),
            )
            one = admin.queue(console.control, figures.value.scrape if figures.value else None, path)
        except ArborcastError as error:
            return console.refusal(request, str(error))
        return console.main_part(request, waits, "queues/one-shown.html", one=one, waits=waits.value, shown=_SHOWN)

    async def page(request: Request) -> Response:
        """All queues; or one, with its servers and its requests."""
        wanted = _wanted(request)
        if not wanted:
            return console.slow_page(request, "live-page.html", read_parts, title="Queues")
        filters = f"?{urlencode({'queue': wanted})}"
        return console.slow_page(
            request, "queues/one.html", read_parts, title=f"Queue {wanted}", name=wanted, filters=filters
        )

    return [console.get("/queues", page), console.live_page("/queues/live", read_parts)]


async def _figures(console: Console, age_s: float) -> Answer[admin.JobFigures]:
    settings = console.settings
    embedded = "metrics" in addresses(settings.home)
    url = "" if embedded else settings.job_metrics_url
    return await console.questions.recent(admin.job_figures, settings.home, url, age_s=age_s)


def _wanted(request: Request) -> str:
    return request.query_params.get("queue", "").strip()


SCREEN = Screen("queues", "Queues", "/queues", _routes)
