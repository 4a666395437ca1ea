"""The screen *Queues*: work queues with their requests and servers."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.admin import queues as admin
from arborcast.admin.topics import topic_named
from arborcast.console.console import Console, Screen
from arborcast.console.live import PageParts, PartsReader
from arborcast.console.questions import Answer
from arborcast.core.errors import ArborcastError
from arborcast.core.security.ip_addresses import host_to_reach, in_url
from arborcast.engine.embedded.state import addresses

_AT_ONCE = 100

# Queues of the list, and servers of a queue: a page stays small.
_SHOWN = 200


class QueuesScreen:
    """The routes of the screen."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def routes(self) -> list[Route]:
        return [self._console.get("/queues", self.page), self._console.live_page("/queues/live", self._parts_of)]

    async def page(self, request: Request) -> Response:
        """All queues; or one, with its servers and its requests."""
        wanted = _wanted(request)
        template = "queues/one.html" if wanted else "queues/page.html"
        return self._console.slow_page(request, template, self._parts_of(request), name=wanted)

    def _parts_of(self, request: Request) -> PartsReader:
        wanted = _wanted(request)

        async def one(age_s: float) -> PageParts:
            try:
                path = topic_named(wanted, self._console.control.table.topics)
                figures, waits = await asyncio.gather(
                    self._figures(age_s),
                    self._console.questions.recent_log(
                        admin.requests, path, _AT_ONCE, self._console.questions.views, age_s=age_s
                    ),
                )
                scrape = figures.value.scrape if figures.value else None
                one = admin.queue(self._console.control, scrape, path)
            except ArborcastError as error:
                refused = Answer(None, str(error), time.time(), 0.0)
                return self._console.main_part(request, refused, "queues/one-shown.html")
            return self._console.main_part(
                request, waits, "queues/one-shown.html", one=one, waits=waits.value, shown=_SHOWN
            )

        async def everything(age_s: float) -> PageParts:
            figures = await self._figures(age_s)
            found = admin.queues(self._console.control, figures.value.scrape if figures.value else None)
            # The longest waiting first.
            found.sort(key=lambda each: (-(each.oldest_s or 0), each.queue))
            return self._console.main_part(request, figures, "queues/shown.html", queues=found, shown=_SHOWN)

        return one if wanted else everything

    async def _figures(self, age_s: float) -> Answer[admin.JobFigures]:
        home = self._console.settings.home
        return await self._console.questions.recent(admin.job_figures, home, self._job(), age_s=age_s)

    def _job(self) -> str:
        """The address of an external job; empty for an embedded one."""
        metrics = self._console.settings.metrics
        if not metrics.job_port or "metrics" in addresses(self._console.settings.home):
            return ""
        return f"http://{in_url(host_to_reach(metrics.host))}:{metrics.job_port}"


def _wanted(request: Request) -> str:
    return request.query_params.get("queue", "").strip()


SCREEN = Screen("queues", "Queues", "/queues", lambda console: QueuesScreen(console).routes())
