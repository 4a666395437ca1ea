"""The screen *Overview*: the state of the engine, its problems, and its main figures; and the search of the header."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.admin.subscriptions import SubscriptionFilter, listed
from arborcast.console.console import Console, Screen, go
from arborcast.console.health import EndpointsHealth
from arborcast.console.live import Look, Seen
from arborcast.engine.monitoring.attention import is_stale, tiles
from arborcast.topic_model.topics import TopicPath

_NOTIFICATION = re.compile(r"[0-9a-f]{32}")

# Endpoints that are listed; the screen Subscriptions has all.
_FAILING = 10

LINKS: Mapping[str, tuple[str, str]] = {
    "engine": ("/engine", "Open the engine"),
    "kafka": ("/engine", "Open the engine"),
    "lag": ("/engine", "Open the engine"),
    "latency": ("/subscriptions", "Show subscriptions"),
    "endpoints": ("/subscriptions?state=failing", "Show subscriptions"),
    "degraded": ("/subscriptions?state=degraded", "Show subscriptions"),
    "suspended": ("/subscriptions?state=suspended", "Show subscriptions"),
    "dead": ("/deliveries/dead?since=10m", "Show dead letters"),
    "waiting": ("/deliveries/waiting", "Show pending deliveries"),
    "queues": ("/queues", "Show queues"),
    "directory": ("/topics/problems", "Show problems"),
    "pull points": ("/subscriptions?state=pull+point", "Show pull points"),
}
"""Where a concern is looked into: address, and words of the link."""

_TILES: Mapping[str, str] = {
    "accepted": "/engine",
    "delivered": "/engine",
    "latency": "/engine",
    "waiting": "/deliveries/waiting",
    "dead": "/deliveries/dead",
    "lag": "/engine",
}


def _look(console: Console, request: Request) -> Look:
    async def look(_age_s: float) -> Seen:
        seen = await console.health.look()
        health = EndpointsHealth(seen)
        values = {
            "health": console.health.known(),
            "links": LINKS,
            "tiles": [(each, _TILES[each.name]) for each in tiles(seen.samples)],
            "stale": bool(seen.problem) or is_stale(seen),
            "at": datetime.fromtimestamp(seen.samples[-1].at).astimezone() if seen.samples else None,
            "known": health.known,
            "failing": [(each, health.word(each["endpoint"])) for each in (seen.failing or ())[:_FAILING]],
            "failing_count": seen.failing_count,
        }
        return Seen({"shown": console.render(request, "overview/shown.html", **values)})

    return look


def _routes(console: Console) -> list[Route]:
    async def page(request: Request) -> Response:
        return console.slow_page(request, "overview/page.html", _look(console, request))

    async def live(request: Request) -> Response:
        return console.live_page(request, _look(console, request))

    async def find(request: Request) -> Response:
        if not console.ready():
            return console.page(request, "reading.html", status=503)
        return go(_found(console, request.query_params.get("q", "").strip()))

    return [console.get("/", page), console.get("/overview/live", live), console.get("/find", find)]


def _found(console: Console, text: str) -> str:
    """The page of a notification, a subscription, a topic or its code; else the lists that have the text."""
    table = console.control.table
    if _NOTIFICATION.fullmatch(text):
        return f"/deliveries?{urlencode({'notification': text})}"
    if table.get(text) is not None:
        return f"/subscriptions/{quote(text, safe='')}"
    coded = table.topics.paths_with_code(text)
    topic = coded[0] if len(coded) == 1 else TopicPath(text)
    if text and table.topics.is_node(topic):
        return f"/topics?{urlencode({'at': topic})}"
    if text and listed(console.control, SubscriptionFilter(part=text), 1).subscriptions:
        return f"/subscriptions?{urlencode({'endpoint': text})}"
    return f"/topics?{urlencode({'q': text})}"


SCREEN = Screen("overview", "Overview", "/", _routes, needs_log=False)
