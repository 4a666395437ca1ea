"""The screen *Cameras*: ONVIF devices whose events the engine fetches."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.admin import cameras as admin
from arborcast.admin.queues import JobFigures
from arborcast.console.console import Console, Screen
from arborcast.console.live import PageParts

# A page stays small.
_SHOWN = 200


def _routes(console: Console) -> list[Route]:
    async def read_parts(request: Request, age_s: float) -> PageParts:
        figures = await console.questions.recent(admin.figures, console.settings, age_s=age_s)
        found = admin.listed(console.control, figures.value or JobFigures())
        # Those with trouble first.
        found.sort(key=lambda each: (each.state in ("connected", "paused"), each.camera))
        return console.main_part(request, figures, "cameras/shown.html", cameras=found, shown=_SHOWN)

    async def page(request: Request) -> Response:
        return console.slow_page(request, "live-page.html", read_parts, title="Cameras")

    return [console.get("/cameras", page), console.live_page("/cameras/live", read_parts)]


SCREEN = Screen("cameras", "Cameras", "/cameras", _routes)
