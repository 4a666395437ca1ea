"""All screens as one application."""

from __future__ import annotations

import asyncio

from starlette.applications import Starlette
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from arborcast.console.console import THEMES, Console, Screen, go, own_path, text_of
from arborcast.console.downloads import MEDIA_TYPES
from arborcast.console.guard import PageGuard, principal_of
from arborcast.console.saved_views import ViewRefused
from arborcast.console.screens import (
    cameras,
    cluster,
    deliveries,
    engine,
    operations,
    overview,
    queues,
    subscriptions,
    topics,
    trying,
)
from arborcast.console.screens.receiver import UNAVAILABLE, ReceiverPage
from arborcast.console.screens.topics.documents import EXPORTED
from arborcast.console.signing import SigningIn
from arborcast.core.errors import ArborcastError, InfrastructureError, NotFound
from arborcast.core.security.web_pages import PageRule

SCREENS: tuple[Screen, ...] = (
    overview.SCREEN,
    topics.SCREEN,
    subscriptions.SCREEN,
    deliveries.SCREEN,
    queues.SCREEN,
    cameras.SCREEN,
    engine.SCREEN,
    cluster.SCREEN,
    operations.SCREEN,
    trying.SCREEN,
)
"""In the order of the navigation."""

_YEAR_S = 365 * 24 * 3600

# Pages and static files from this size on: a packet holds a smaller one.
_COMPRESSED_BYTES = 1024
_LEVEL = 4  # of zlib; the default takes twice the time for some percent

# Streams, whose events must leave at once, and files: of a million topics or rows they have hundreds of megabytes.
_NOT_COMPRESSED = ("text/event-stream", *EXPORTED, *MEDIA_TYPES.values())


def make_app(console: Console, signing: SigningIn | None) -> PageGuard:
    """The application. Without `signing` there is no authentication, and only this machine is served."""
    console.screens = SCREENS

    async def alive(_request: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def theme(_request: Request, form: FormData) -> Response:
        chosen = text_of(form, "theme")
        answer = go(own_path(text_of(form, "back")))
        if chosen in THEMES:
            answer.set_cookie("theme", chosen, max_age=_YEAR_S, samesite="strict", httponly=True)
        else:
            answer.delete_cookie("theme", samesite="strict", httponly=True)
        return answer

    async def views(request: Request, form: FormData) -> Response:
        """Save the view of a list, or delete one; a visitor without the right to change has views of its own, too."""
        principal, url = principal_of(request.scope), own_path(text_of(form, "url"))
        path, name = url.partition("?")[0], text_of(form, "name")
        if path not in console.lists:
            raise HTTPException(400, "This page has no list.")
        try:
            if text_of(form, "action") == "delete":
                await asyncio.to_thread(console.lists.views.remove, principal.name, name, path)
                note = "View deleted."
            else:
                saved = await asyncio.to_thread(console.lists.views.save, principal.name, name, url)
                note, url = f"View {saved.name} saved.", saved.url
        except ViewRefused as error:
            note = str(error)
        return console.redirect(request, url, note)

    async def session(request: Request) -> Response:
        """For forms of pages that are open: their session may have expired."""
        principal = principal_of(request.scope)
        return JSONResponse({"user": principal.name, "token": principal.token})

    async def live(request: Request) -> Response:
        return console.live.response(console.header(request))

    page_of_receiver = ReceiverPage(console, signing.callers if signing else None)
    routes = [
        Route("/health/live", alive),
        Route("/static/{version}/{name}", console.templates.static.serve),
        console.get("/session", session),
        console.get("/live", live),
        console.post("/theme", theme, edits=False),
        console.post("/views", views, edits=False),
        *(signing.routes(console) if signing else ()),
        *(
            _when_ready(console, route) if screen.needs_log else route
            for screen in SCREENS
            for route in screen.routes(console)
        ),
        *(_when_ready(console, route) for route in page_of_receiver.routes()),
    ]

    async def refused(request: Request, error: Exception) -> Response:
        status, text = _words(error)
        if request.url.path.startswith("/receiver/"):
            text = UNAVAILABLE if status >= 500 else text
            return HTMLResponse(console.render(request, "receiver-refused.html", text=text), status)
        if request.headers.get("x-fragment"):
            return PlainTextResponse(text, status)
        return console.page(request, "error.html", status=status, status_code=status, text=text)

    app = Starlette(
        routes=routes,
        middleware=[Middleware(GZipMiddleware, _COMPRESSED_BYTES, _LEVEL, exclude_content_types=_NOT_COMPRESSED)],
        # A request that is broken off gets its answer here, too: as an unexpected error it would be logged.
        exception_handlers=dict.fromkeys((HTTPException, ArborcastError, ClientDisconnect, Exception), refused),
    )
    served = console.settings.console
    pages = PageRule(served.host, served.public_url, public_url_setting="console.public_url")
    return PageGuard(app, console.sessions, signing.callers if signing else None, pages)


def _when_ready(console: Console, route: Route) -> Route:
    """The same, but a page that reloads itself while the log is read for the first time."""
    answer = route.endpoint

    async def wait_or_answer(request: Request) -> Response:
        if console.ready():
            reached: Response = await answer(request)
            return reached
        return console.page(request, "reading.html", status=503)

    return Route(route.path, wait_or_answer, methods=sorted(route.methods or ()))


def _words(error: Exception) -> tuple[int, str]:
    if isinstance(error, HTTPException):
        return error.status_code, error.detail
    if isinstance(error, InfrastructureError):
        return 503, str(error)
    if isinstance(error, NotFound):
        return 404, str(error)
    if isinstance(error, ArborcastError):
        return 400, str(error)
    return 500, "Unexpected error. See the console's log."
