"""The screen *Queues*: what waits in work queues, and who does it. What it shows is what `arborcast queues` prints."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from core.security.ip_addresses import host_to_reach
from jobs.console.commands import CommandFailed
from jobs.console.console import Console, Screen
from jobs.stack.state import addresses

_AT_ONCE = "100"

# Queues of the list, and servers of a queue: a page stays small.
_SHOWN = 200


class Queues:
    """What the screen answers."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def routes(self) -> list[Route]:
        return [self._console.get("/queues", self.page)]

    async def page(self, request: Request) -> Response:
        """All queues; or one, with its servers and its requests."""
        wanted = request.query_params.get("queue", "").strip()
        if wanted:
            answer, wrong = await self._answer("show", given=(wanted,), limit=_AT_ONCE)
            return self._console.page(request, "queues/one.html", name=wanted, one=answer, wrong=wrong, shown=_SHOWN)
        answer, wrong = await self._answer("list")
        # What has waited longest first: it is why somebody looks.
        answer = sorted(answer or [], key=lambda each: (-(each["oldest_s"] or 0), each["queue"]))
        return self._console.page(request, "queues/page.html", queues=answer, wrong=wrong, shown=_SHOWN)

    async def _answer(self, word: str, given: tuple[str, ...] = (), **options: str) -> tuple[Any, str]:
        try:
            asked = {**options, "url": self._job()}
            return await self._console.commands.ask("queues", word, given=given, options=asked), ""
        except CommandFailed as error:
            return None, str(error)

    def _job(self) -> str:
        """Where a job is asked that is none of an embedded engine's; empty for one that is."""
        metrics = self._console.settings.metrics
        if not metrics.job_port or "metrics" in addresses(self._console.settings.home):
            return ""
        return f"http://{host_to_reach(metrics.host)}:{metrics.job_port}"


SCREEN = Screen("queues", "Queues", "/queues", lambda console: Queues(console).routes())
