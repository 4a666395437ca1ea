"""The screen *Queues*: what waits in work queues, and who does it. What it shows is what `arborcast queues` prints."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.console.commands import CommandAnswer
from arborcast.console.console import Console, Screen
from arborcast.console.live import Look, Seen
from arborcast.core.security.ip_addresses import host_to_reach
from arborcast.engine.embedded.state import addresses

_AT_ONCE = "100"

# Queues of the list, and servers of a queue: a page stays small.
_SHOWN = 200


class QueuesScreen:
    """What the screen answers."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def routes(self) -> list[Route]:
        return [self._console.get("/queues", self.page), self._console.get("/queues/live", self.live)]

    async def page(self, request: Request) -> Response:
        """All queues; or one, with its servers and its requests."""
        wanted = _wanted(request)
        template = "queues/one.html" if wanted else "queues/page.html"
        return self._console.slow_page(request, template, self._look(request), name=wanted)

    async def live(self, request: Request) -> Response:
        return self._console.live_page(request, self._look(request))

    def _look(self, request: Request) -> Look:
        wanted = _wanted(request)

        async def one(age_s: float) -> Seen:
            said = await self._ask("show", age_s, (wanted,), limit=_AT_ONCE)
            return self._console.seen(request, said, "queues/one-shown.html", one=said.value, shown=_SHOWN)

        async def everything(age_s: float) -> Seen:
            said = await self._ask("list", age_s)
            # What has waited longest first: it is why somebody looks.
            queues = sorted(said.value or [], key=lambda each: (-(each["oldest_s"] or 0), each["queue"]))
            return self._console.seen(request, said, "queues/shown.html", queues=queues, shown=_SHOWN)

        return one if wanted else everything

    async def _ask(self, word: str, age_s: float, given: tuple[str, ...] = (), **options: str) -> CommandAnswer:
        asked = {**options, "url": self._job()}
        return await self._console.commands.lately("queues", word, given=given, options=asked, age_s=age_s)

    def _job(self) -> str:
        """Where a job is asked that is none of an embedded engine's; empty for one that is."""
        metrics = self._console.settings.metrics
        if not metrics.job_port or "metrics" in addresses(self._console.settings.home):
            return ""
        return f"http://{host_to_reach(metrics.host)}:{metrics.job_port}"


def _wanted(request: Request) -> str:
    return request.query_params.get("queue", "").strip()


SCREEN = Screen("queues", "Queues", "/queues", lambda console: QueuesScreen(console).routes())
