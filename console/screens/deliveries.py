"""The screen *Deliveries*: what became of notifications, what waits, what was given up, and whether all is accounted
for. What it shows is what the commands of these names print."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.console.commands import CommandFailed
from arborcast.console.console import Console, Screen, go, text_of
from arborcast.console.guard import visitor_of
from arborcast.console.live import Look, Seen
from arborcast.engine.monitoring.figures import WORDS

# By what dead letters, and what waits, can be found.
_BY = ("subscription", "endpoint", "topic", "notification")
_LETTERS_BY = (*_BY, "since", "reason")

# By which command a page knows what it shows.
_COMMANDS = {"waiting": "waiting", "dead": "dead-letters"}

_AT_ONCE = "100"

# An audit looks again at what does not balance; somebody waits for this one.
_PATIENCE = "5"

_SHOWN = 200


class DeliveriesScreen:
    """What the screen answers."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._commands = console.commands

    def routes(self) -> list[Route]:
        get, post = self._console.get, self._console.post
        return [
            get("/deliveries", self.trace),
            get("/deliveries/waiting", self.waiting),
            get("/deliveries/waiting/live", self.waiting_live),
            get("/deliveries/dead", self.dead),
            get("/deliveries/dead/live", self.dead_live),
            get("/deliveries/dead/{notification}", self.letter),
            post("/deliveries/dead/act", self.act),
            get("/deliveries/audit", self.audit),
        ]

    async def trace(self, request: Request) -> Response:
        """What became of one notification; with a subscription, why that has it or not."""
        asked = _asked(request, ("notification", "subscription"))
        answer: Any = None
        wrong = ""
        if asked["notification"]:
            try:
                if asked["subscription"]:
                    answer = await self._commands.ask("why", options=asked)
                else:
                    answer = await self._commands.ask("trace", given=(asked["notification"],))
            except CommandFailed as error:
                wrong = str(error)
        if answer:
            # Those that are not well first: they are why somebody asks.
            answer["deliveries"].sort(key=lambda each: each["outcome"] == "delivered")
        return self._page(request, "trace", asked=asked, story=answer, wrong=wrong, shown=_SHOWN)

    async def waiting(self, request: Request) -> Response:
        return self._slow(request, "waiting", _BY)

    async def waiting_live(self, request: Request) -> Response:
        return self._console.live_page(request, self._look(request, "waiting", _BY))

    async def dead(self, request: Request) -> Response:
        return self._slow(request, "dead", _LETTERS_BY)

    async def dead_live(self, request: Request) -> Response:
        return self._console.live_page(request, self._look(request, "dead", _LETTERS_BY))

    async def letter(self, request: Request) -> Response:
        """One dead letter, with its message."""
        notification = request.path_params["notification"]
        subscription = request.query_params.get("subscription", "")
        letter = await self._commands.ask(
            "dead-letters", "show", given=(notification,), options={"subscription": subscription}
        )
        asked = {"notification": notification, "subscription": letter["subscription"]}
        return self._page(request, "letter", asked=asked, letter=letter)

    async def act(self, request: Request, form: FormData) -> Response:
        """Try dead letters again, or delete them: all that are asked for, and after a question."""
        action = text_of(form, "action")
        if action not in ("redrive", "purge"):
            raise HTTPException(400, "Choose what to do: try again, or delete.")
        asked = {name: text_of(form, name).strip() for name in _LETTERS_BY}
        if not text_of(form, "sure"):
            answer, wrong = await self._answer("dead-letters", "list", limit="1", **asked)
            count = len(answer["letters"]) + answer["more"] if answer else 0
            return self._page(request, "sure", asked=asked, action=action, count=count, wrong=wrong)
        done = await self._commands.ask("dead-letters", action, options={"yes": True, **asked})
        self._commands.forget()
        if action == "redrive":
            said = [f"{done['redriven']:,} deliveries are tried again"]
            said += [f"{done['over']:,} are not: their subscription is over"] * bool(done["over"])
            said += [f"{done['too_new']:,} are not: they were given up only now"] * bool(done["too_new"])
        else:
            said = [f"{done['purged']:,} dead letters were deleted"]
        self._console.note(visitor_of(request.scope), "; ".join(said) + ".")
        return go("/deliveries/dead")

    async def audit(self, request: Request) -> Response:
        """Whether everything that was accepted is accounted for. It costs something: only when it is asked."""
        from arborcast.dispatch.operations.audit.report import PROBLEMS  # it loads numpy

        asked = _asked(request, ("since", "subscription"))
        answer, wrong = None, ""
        if asked["since"]:
            answer, wrong = await self._answer("audit", patience=_PATIENCE, **asked)
        return self._page(request, "audit", asked=asked, report=answer, wrong=wrong, problems=PROBLEMS, shown=_SHOWN)

    async def _answer(self, *words: str, **options: str) -> tuple[Any, str]:
        try:
            return await self._commands.ask(*words, options=options), ""
        except CommandFailed as error:
            return None, str(error)

    def _slow(self, request: Request, name: str, by: tuple[str, ...]) -> Response:
        """What waits, or the dead letters."""
        asked = _asked(request, by)
        look = self._look(request, name, by)
        return self._console.slow_page(request, f"deliveries/{name}.html", look, **_values(name, asked))

    def _look(self, request: Request, name: str, by: tuple[str, ...]) -> Look:
        asked = _asked(request, by)

        async def look(age_s: float) -> Seen:
            said = await self._commands.lately(
                _COMMANDS[name], "list", options={"limit": _AT_ONCE, **asked}, age_s=age_s
            )
            return self._console.seen(
                request, said, f"deliveries/{name}-shown.html", answer=said.value, **_values(name, asked)
            )

        return look

    def _page(self, request: Request, name: str, *, asked: dict[str, str], **values: Any) -> Response:
        return self._console.page(request, f"deliveries/{name}.html", **_values(name, asked), **values)


def _values(name: str, asked: dict[str, str]) -> dict[str, Any]:
    """What the pages have in common."""
    filters = urlencode({key: value for key, value in asked.items() if value})
    return {"tab": name, "asked": asked, "filters": filters, "words": WORDS}


def _asked(request: Request, names: tuple[str, ...]) -> dict[str, str]:
    return {name: request.query_params.get(name, "").strip() for name in names}


SCREEN = Screen("deliveries", "Deliveries", "/deliveries", lambda console: DeliveriesScreen(console).routes())
