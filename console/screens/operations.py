"""The screen *Changes*: changes by operators, by command, here and in the directory."""

from __future__ import annotations

from functools import partial
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.admin.operations import OperationFilter, Recorded, earlier, listed
from arborcast.admin.times import moment_ms
from arborcast.console.console import Console, Screen
from arborcast.console.downloads import Download, Parts, followed
from arborcast.console.live import PageParts
from arborcast.core.errors import ArborcastError

_AT_ONCE = 100

# Records of a part of a file. A change has up to 8 KB.
_IN_A_FILE = 1_000

_BY = ("since", "actor", "action", "subject")


def _routes(console: Console) -> list[Route]:
    async def read_parts(request: Request, age_s: float) -> PageParts:
        asked = _asked(request)
        try:
            since_ms = moment_ms("since", asked["since"])
        except ArborcastError as error:
            return console.refusal(request, str(error))
        # Whole minutes, so that equal pages share an answer.
        wanted = OperationFilter(since_ms // 60_000 * 60_000, asked["actor"], asked["action"], asked["subject"])
        answer = await console.questions.recent_log(listed, wanted, _AT_ONCE, age_s=age_s)
        found, more = answer.value or ([], 0)
        return console.main_part(request, answer, "operations/shown.html", operations=found, more=more)

    async def page(request: Request) -> Response:
        asked = _asked(request)
        filters = f"?{urlencode(asked)}"
        return console.slow_page(
            request, "operations/page.html", read_parts, title="Changes", asked=asked, filters=filters
        )

    def parts(request: Request) -> Parts:
        asked = _asked(request)
        wanted = OperationFilter(moment_ms("since", asked["since"]), asked["actor"], asked["action"], asked["subject"])
        return followed(partial(console.questions.ask_log, earlier, wanted, _IN_A_FILE))

    return [
        console.listing("/operations", page, Download("changes", Recorded, parts)),
        console.live_page("/operations/live", read_parts),
    ]


def _asked(request: Request) -> dict[str, str]:
    asked = {name: request.query_params.get(name, "").strip() for name in _BY}
    return asked | {"since": asked["since"] or "7d"}


SCREEN = Screen("operations", "Changes", "/operations", _routes)
