"""The screen *Try*: publish a message, and watch a part of the tree; the busiest topics.

broker     the engine through its ordinary interfaces
busiest    the topics of the newest notifications
watching   arriving messages, as parts of the page
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.admin.connection import gateway_url
from arborcast.admin.messages import Busiest, busiest
from arborcast.admin.topics import topic_named
from arborcast.console.console import Console, Screen, go, text_of
from arborcast.console.guard import principal_of
from arborcast.console.live import PageParts
from arborcast.core.errors import ArborcastError
from arborcast.core.recent import BoundedDict
from arborcast.engine.embedded.state import reachable_kafka
from arborcast.topic_model.expressions import parse_friendly, with_codes
from arborcast.topic_model.subscriptions import TopicFilter

if TYPE_CHECKING:
    from arborcast.client import Credentials

# Lists of topics are for choosing from.
_OFFERED = 200
_BUSIEST = 10

# A recent count is reused.
_FRESH_S = 10.0

# Sessions with credentials for the gateway.
_SESSIONS = 1_000

_EXAMPLE = "<reading><celsius>21.5</celsius></reading>"


@dataclass(frozen=True)
class PublishAnswer:
    """The result of a publication, or the reason of a refusal."""

    id: str = ""
    refused: str = ""


def _routes(console: Console) -> list[Route]:
    # Credentials for the gateway by session: in memory, and on no page.
    credentials: BoundedDict[str, Credentials] = BoundedDict(_SESSIONS)
    console.forgets.append(lambda session: credentials.pop(session, None))

    def signed_in(request: Request) -> Credentials | None:
        return credentials.get(principal_of(request.scope).session)

    def gateway() -> str:
        """The address of the gateway. Raises ArborcastError."""
        return gateway_url(console.settings).rstrip("/")

    def expression(text: str) -> TopicFilter:
        """Raises ArborcastError."""
        return parse_friendly(with_codes(text, {}, console.control.table.topics.paths_with_code))

    async def page(request: Request, answer: PublishAnswer | None = None, **entered: str) -> Response:
        wanted, problem = request.query_params.get("watch", "").strip(), ""
        if wanted:
            try:
                expression(wanted)
            except ArborcastError as error:
                problem = str(error)
        user = signed_in(request)
        values = {
            "topic": entered.get("topic", request.query_params.get("topic", "")),
            "payload": entered.get("payload", _EXAMPLE),
            "watch": wanted,
            "watch_problem": problem,
            "answer": answer,
            "asks_user": bool(console.settings.access.chosen()),
            "user": user.user if user else "",
            "offered": sorted(islice(console.control.table.topics.paths(), _OFFERED)),
        }
        status = 400 if answer and answer.refused else 200
        return console.slow_page(request, "trying/page.html", read_busiest, status=status, **values)

    async def read_busiest(request: Request, _age_s: float) -> PageParts:
        kafka = reachable_kafka(console.settings)
        counted = await console.questions.recent(busiest, kafka, _BUSIEST, age_s=_FRESH_S)
        found = counted.value or Busiest([])
        return PageParts(
            {"shown": console.render(request, "trying/busiest.html", busiest=found, problem=counted.wrong)}
        )

    async def published(request: Request, topic: str, payload: str) -> PublishAnswer:
        from arborcast.console.screens.trying import broker
        from arborcast.console.screens.trying.watching import in_thread

        try:
            path = topic_named(topic, console.control.table.topics)
            publication = partial(broker.publish, gateway(), signed_in(request), path, payload)
            return PublishAnswer(id=await in_thread(publication))
        except ArborcastError as error:
            return PublishAnswer(refused=str(error))

    async def publish(request: Request, form: FormData) -> Response:
        topic, payload = text_of(form, "topic"), text_of(form, "payload")
        answer = await published(request, topic, payload)
        if request.headers.get("x-fragment"):
            return console.fragment(request, "trying/answer.html", answer=answer)
        return await page(request, answer, topic=topic, payload=payload)

    async def set_credentials(request: Request, form: FormData) -> Response:
        from arborcast.client import Credentials

        session, name = principal_of(request.scope).session, text_of(form, "name")
        credentials.pop(session, None)
        if name:
            credentials[session] = Credentials(user=name, password=text_of(form, "password"))
        return go("/try")

    async def live(request: Request) -> Response:
        from arborcast.console.screens.trying.watching import arrivals

        try:
            wanted, url = expression(request.query_params.get("watch", "")), gateway()
        except ArborcastError as error:
            raise HTTPException(400, str(error)) from error
        return console.live.response(arrivals(console, request, url, signed_in(request), wanted))

    return [
        console.get("/try", page),
        console.post("/try", publish, edits=False),
        console.post("/try/credentials", set_credentials, edits=False),
        console.get("/try/live", live),
    ]


SCREEN = Screen("try", "Playground", "/try", _routes)
