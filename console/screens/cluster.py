"""The screen *Cluster*: the engines of the federation, and what this one sends to whom. What it shows is what
`arborcast federation` prints.

It is in the navigation of an engine by itself, too: there it says what a federation is for and how to begin, and people
find the same screens at every engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from itertools import groupby
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.console.commands import CommandAnswer
from arborcast.console.console import Console, Screen
from arborcast.console.live import Look, Seen

# Members and links that are shown: a page stays small.
_SHOWN = 200


def _routes(console: Console) -> list[Route]:
    federation = console.settings.federation

    def ask(word: str, age_s: float) -> Awaitable[CommandAnswer]:
        return console.commands.lately("federation", word, age_s=age_s)

    def look_for(request: Request) -> Look:
        async def look(age_s: float) -> Seen:
            there, carried = await asyncio.gather(ask("members", age_s), ask("links", age_s))
            members = there.value["members"] if there.value else []
            links = carried.value["links"] if carried.value else []
            return console.seen(
                request,
                _both(there, carried),
                "cluster/shown.html",
                own=federation.engine,
                administrator=federation.administrator,
                groups=_groups(members[:_SHOWN]),
                members=len(members),
                # What has waited longest first: moments are written in one way.
                links=sorted(links, key=lambda each: (each["waiting_since"] or "~", each["link"])),
                problem=there.value["problem"] if there.value else "",
                unknown=there.wrong,
                unread=carried.wrong,
                shown=_SHOWN,
            )

        return look

    async def page(request: Request) -> Response:
        if not federation.name:
            return console.page(request, "cluster/alone.html")
        return console.slow_page(request, "cluster/page.html", look_for(request))

    async def live(request: Request) -> Response:
        return console.live_page(request, look_for(request))

    return [console.get("/cluster", page), console.get("/cluster/live", live)]


def _both(one: CommandAnswer, other: CommandAnswer) -> CommandAnswer:
    """Two that were asked at the same time: where one has failed the page shows the other."""
    wrong = one.wrong if other.wrong else ""
    return CommandAnswer(None, wrong, min(one.at, other.at), max(one.took_s, other.took_s))


def _groups(members: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Members by group, in each the one that registered first in front: it represents the group, or did."""

    def group(member: dict[str, Any]) -> str:
        return str(member["engine"]).partition("/")[0]

    ordered = sorted(members, key=lambda each: (group(each), each["number"]))
    return [(name, list(some)) for name, some in groupby(ordered, group)]


SCREEN = Screen("cluster", "Cluster", "/cluster", _routes, needs_log=False)
