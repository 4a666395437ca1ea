"""The screen *Activity*: changes by visitors of the console; and the search of the header."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.admin.subscriptions import SubscriptionFilter, listed
from arborcast.console.console import Console, Screen, go
from arborcast.topic_model.topics import TopicPath

_SHOWN = 200

_NOTIFICATION = re.compile(r"[0-9a-f]{32}")


def _routes(console: Console) -> list[Route]:
    async def page(request: Request) -> Response:
        newest = await asyncio.to_thread(console.activity.newest, _SHOWN)
        return console.page(request, "activity.html", newest=newest)

    async def find(request: Request) -> Response:
        return go(_found(console, request.query_params.get("q", "").strip()))

    return [console.get("/activity", page), console.get("/find", find)]


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


SCREEN = Screen("activity", "Activity", "/activity", _routes)
