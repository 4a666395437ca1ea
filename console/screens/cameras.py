"""The screen *Cameras*: ONVIF devices whose events the engine fetches."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.admin import cameras as admin
from arborcast.admin.queues import JobFigures
from arborcast.console.console import Console, Screen
from arborcast.console.live import Look, Seen

# A page stays small.
_SHOWN = 200


def _routes(console: Console) -> list[Route]:
    def look_for(request: Request) -> Look:
        async def look(age_s: float) -> Seen:
            figures = await console.questions.recent(admin.figures, console.settings, age_s=age_s)
            found = admin.listed(console.control, figures.value or JobFigures())
            # Those with trouble first.
            found.sort(key=lambda each: (each.state in ("connected", "paused"), each.camera))
            return console.seen(request, figures, "cameras/shown.html", cameras=found, shown=_SHOWN)

        return look

    async def page(request: Request) -> Response:
        return console.slow_page(request, "cameras/page.html", look_for(request))

    async def live(request: Request) -> Response:
        return console.live_page(request, look_for(request))

    return [console.get("/cameras", page), console.get("/cameras/live", live)]


SCREEN = Screen("cameras", "Cameras", "/cameras", _routes)
