"""The screen *Cluster*: the engines of the federation, and what this one sends to whom. What it shows is what
`arborcast federation` prints.

It is in the navigation of an engine by itself, too: there it says what a federation is for and how to begin, and people
find the same screens at every engine.
"""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jobs.console.commands import CommandFailed
from jobs.console.console import Console, Screen

# Members and links that are shown: a page stays small.
_SHOWN = 200


def _routes(console: Console) -> list[Route]:
    async def ask(word: str) -> tuple[dict[str, Any], str]:
        try:
            return await console.commands.ask("federation", word), ""
        except CommandFailed as error:
            return {}, str(error)

    async def page(request: Request) -> Response:
        federation = console.settings.federation
        if not federation.name:
            return console.page(request, "cluster/alone.html")
        (there, wrong), (carried, unread) = await asyncio.gather(ask("members"), ask("links"))
        members, links = there.get("members", []), carried.get("links", [])
        return console.page(
            request,
            "cluster/page.html",
            own=federation.engine,
            administrator=federation.administrator,
            groups=_groups(members[:_SHOWN]),
            members=len(members),
            # What has waited longest first: moments are written in one way.
            links=sorted(links, key=lambda each: (each["waiting_since"] or "~", each["link"])),
            problem=there.get("problem", ""),
            wrong=wrong,
            unread=unread,
            shown=_SHOWN,
        )

    return [console.get("/cluster", page)]


def _groups(members: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Members by group, in each the one that registered first in front: it represents the group, or did."""

    def group(member: dict[str, Any]) -> str:
        return str(member["engine"]).partition("/")[0]

    ordered = sorted(members, key=lambda each: (group(each), each["number"]))
    return [(name, list(some)) for name, some in groupby(ordered, group)]


SCREEN = Screen("cluster", "Cluster", "/cluster", _routes, needs_log=False)
