"""Changes by others while a page is open: topics, and the directory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.console.console import Console
from arborcast.console.live import PageParts, changes
from arborcast.core.single_flight import SingleFlight
from arborcast.engine.monitoring.samples import Scrape
from arborcast.engine.monitoring.stack_monitor import gateway_page

_CHECK_S = 1.0


@dataclass(frozen=True)
class DirectoryState:
    """The state of the directory, as reported by the gateway that synchronises it. `known` is False without a
    report."""

    known: bool = False
    connected: bool = False
    behind: int = 0
    problems: int = 0

    @classmethod
    def of(cls, scrape: Scrape) -> DirectoryState:
        if "arborcast_directory_connected" not in scrape.names:
            return cls()
        return cls(
            True,
            scrape.most("arborcast_directory_connected") > 0,
            int(scrape.sum("arborcast_directory_behind")),
            int(scrape.sum("arborcast_directory_problems")),
        )


class TopicUpdates:
    """Sends them to open pages. The gateway is queried once for all."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._state = DirectoryState()
        self._asking: SingleFlight[str, None] = SingleFlight()

    def routes(self) -> list[Route]:
        return [self._console.get("/topics/live", self.live)]

    async def live(self, request: Request) -> Response:
        text = request.query_params.get("seen", "")
        seen = int(text) if text.isdecimal() and len(text) < 16 else self._console.state.topic_changes

        async def read_parts(_age_s: float) -> PageParts:
            if self._console.settings.directory.kind != "none":
                await self._asking.run("state", self._ask)
            render, updates = self._console.render, self._console.state.topic_changes - seen
            return PageParts(
                {
                    "trouble": self._console.trouble_part(request),
                    "updates": render(request, "topics/updates.html", changes=updates),
                    "directory": render(request, "topics/directory.html", state=self._state),
                }
            )

        return self._console.live.response(changes(read_parts, _CHECK_S))

    async def _ask(self) -> None:
        try:
            page = await asyncio.to_thread(gateway_page, self._console.settings, "/metrics")
        except OSError:
            self._state = DirectoryState()
        else:
            self._state = DirectoryState.of(Scrape.of(page.decode(errors="replace")))
