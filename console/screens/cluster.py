"""The screen *Cluster*: the engines of the federation, and the links of this one.

An engine without a federation has it, too, with an explanation of the set-up, so that the navigation is the same
everywhere.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.admin import federation as admin
from arborcast.console.console import Console, Screen
from arborcast.console.live import PageParts
from arborcast.console.questions import Answer

# Members and links that are shown: a page stays small.
_SHOWN = 200


def _routes(console: Console) -> list[Route]:
    federation = console.settings.federation

    async def links(age_s: float) -> Answer[tuple[admin.LinkStatus, ...]]:
        if not console.ready():
            return Answer(None, "The control log is being read.", time.time(), 0.0)
        questions, links = console.questions, admin.links(console.control)
        return await questions.recent_log(admin.with_waiting, links, questions.views, age_s=age_s)

    async def read_parts(request: Request, age_s: float) -> PageParts:
        there, carried = await asyncio.gather(
            console.questions.recent(admin.members, console.settings, age_s=age_s), links(age_s)
        )
        members = there.value.members if there.value else ()
        return console.main_part(
            request,
            _both(there, carried),
            "cluster/shown.html",
            own=federation.engine,
            administrator=federation.administrator,
            groups=_groups(members[:_SHOWN]),
            members=len(members),
            # The oldest first.
            links=sorted(carried.value or (), key=lambda each: (each.waiting_since_ms or math.inf, each.link)),
            problem=there.value.problem if there.value else "",
            unknown=there.wrong,
            unread=carried.wrong,
            shown=_SHOWN,
        )

    async def page(request: Request) -> Response:
        if not federation.name:
            return console.page(request, "cluster/alone.html")
        return console.slow_page(request, "live-page.html", read_parts, title="Federation")

    return [console.get("/cluster", page), console.live_page("/cluster/live", read_parts)]


def _both(one: Answer[Any], other: Answer[Any]) -> Answer[None]:
    """Two parallel calls: if one has failed, the page shows the other."""
    wrong = one.wrong if other.wrong else ""
    return Answer(None, wrong, min(one.at, other.at), max(one.took_s, other.took_s))


def _groups(members: Iterable[admin.MemberStatus]) -> list[tuple[str, list[admin.MemberStatus]]]:
    """Members by group, in each the one that registered first in front: it represents the group, or did."""

    def group(member: admin.MemberStatus) -> str:
        return member.engine.partition("/")[0]

    ordered = sorted(members, key=lambda each: (group(each), each.number))
    return [(name, list(some)) for name, some in groupby(ordered, group)]


SCREEN = Screen(
    "cluster",
    "Federation",
    "/cluster",
    _routes,
    needs_log=False,
    listed=lambda settings: bool(settings.federation.name),
)
