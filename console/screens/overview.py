"""The screen *Overview*: the state of the engine, its problems, and its main figures; and the search of the header."""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import islice
from typing import NamedTuple
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.admin.subscriptions import SubscriptionFilter, listed, one
from arborcast.console.console import Console, Screen, go
from arborcast.console.guard import principal_of
from arborcast.console.health import EndpointsHealth
from arborcast.console.live import PageParts
from arborcast.console.screens.topics import browsing
from arborcast.core.errors import ExpressionError
from arborcast.engine.monitoring.attention import is_stale, tiles
from arborcast.topic_model.topics import TopicPath

_NOTIFICATION = re.compile(r"[0-9a-f]{32}")

# Of a kind, in the list of the search.
_MATCHES = 8

# Endpoints and suspended subscriptions that are listed; the screen Subscriptions has all.
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
    "objective": ("/deliveries/slo", "Show the objective"),
    "erasures": ("/deliveries/erasures", "Show erasures"),
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


async def _read_parts(console: Console, request: Request, _age_s: float) -> PageParts:
    seen = await console.health.look()
    health = EndpointsHealth(seen)
    suspensions = console.control.suspensions if console.ready() else ()
    newest = heapq.nlargest(_FAILING, suspensions, key=lambda each: each.at_ms)
    values = {
        "suspended": [each for each in (one(console.control, each.id) for each in newest) if each and each.suspended],
        "suspended_count": len(suspensions),
        "health": console.health.known(),
        "links": LINKS,
        "tiles": [(each, _TILES[each.name]) for each in tiles(seen.samples)],
        "stale": bool(seen.problem) or is_stale(seen),
        "at": datetime.fromtimestamp(seen.samples[-1].at).astimezone() if seen.samples else None,
        "known": health.known,
        "failing": [(each, health.word(each["endpoint"])) for each in (seen.failing or ())[:_FAILING]],
        "failing_count": seen.failing_count,
    }
    return PageParts({"shown": console.render(request, "overview/shown.html", **values)})


def _routes(console: Console) -> list[Route]:
    async def page(request: Request) -> Response:
        return console.slow_page(request, "overview/page.html", partial(_read_parts, console))

    async def find(request: Request) -> Response:
        """The page that matches the typed text, or a choice of pages; a fragment for `lists.js` is always a choice."""
        if not console.ready():
            return console.page(request, "reading.html", status=503)
        text = request.query_params.get("q", "").strip()
        exact, views = _exact(console, text), _views(console, principal_of(request.scope).name, text)
        if request.headers.get("x-fragment"):
            found = [*views, *(exact or _matches(console, text))]
            return console.fragment(request, "overview/matches.html", matches=found)
        if exact or (len(views) == 1 and views[0].text == text):
            return go([*exact, *views][0].url)
        found = [*views, *_matches(console, text)]
        if views or len({each.kind for each in found}) > 1:
            return console.page(request, "overview/find.html", matches=found, text=text)
        endpoints = found and found[0].kind == "Endpoint"
        return go(
            f"/subscriptions?{urlencode({'endpoint': text})}" if endpoints else f"/topics?{urlencode({'q': text})}"
        )

    return [
        console.get("/", page),
        console.live_page("/overview/live", partial(_read_parts, console)),
        console.get("/find", find),
    ]


class Match(NamedTuple):
    """A page that is found: the kind of its object, the object, and the address."""

    kind: str
    text: str
    url: str


def _exact(console: Console, text: str) -> list[Match]:
    """The one object of this id, path or code."""
    table = console.control.table
    if _NOTIFICATION.fullmatch(text):
        return [Match("Notification", text, f"/deliveries?{urlencode({'notification': text})}")]
    if table.get(text) is not None:
        return [Match("Subscription", text, f"/subscriptions/{quote(text, safe='')}")]
    coded = table.topics.paths_with_code(text)
    topic = coded[0] if len(coded) == 1 else TopicPath(text)
    if text and table.topics.is_node(topic):
        return [_topic(topic)]
    return []


def _views(console: Console, person: str, text: str) -> list[Match]:
    """The saved views of a visitor that have the text in their names."""
    found = (each for each in console.lists.views.of(person) if text and text.casefold() in each.name.casefold())
    return [Match("View", each.name, each.url) for each in islice(found, _MATCHES)]


def _matches(console: Console, text: str) -> list[Match]:
    """Objects that have the text: subscriptions by their endpoint, and topics; at most `_MATCHES` of each."""
    if not text:
        return []
    found = listed(console.control, SubscriptionFilter(part=text), _MATCHES).subscriptions
    endpoints = [
        Match("Endpoint", each.endpoint, f"/subscriptions/{quote(each.subscription, safe='')}") for each in found
    ]
    with suppress(ExpressionError):
        level = browsing.found(console.control.table.topics, text)
        return [*endpoints, *(_topic(node.path) for node in level.nodes[:_MATCHES])]
    return endpoints


def _topic(path: TopicPath) -> Match:
    return Match("Topic", path, f"/topics?{urlencode({'at': path})}")


SCREEN = Screen("overview", "Overview", "/", _routes, needs_log=False)
