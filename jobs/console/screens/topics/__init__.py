"""The screen *Topics*: look at the trees and change them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jobs.console.console import Console, Screen


def routes(console: Console) -> list[Route]:
    """What the screen answers."""

    async def page(request: Request) -> Response:
        return console.page(request, "topics/page.html", topics=len(console.control.table.topics))

    return [console.get("/topics", page)]


SCREEN = Screen("topics", "Topics", "/topics", routes)
