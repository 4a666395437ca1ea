"""The page of one subscription for its subscriber, opened by a signed link, without sign-in.

It offers what the subscription's address offers over SOAP, and nothing about others.
"""

from __future__ import annotations

import time

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from arborcast.admin import dead_letters, messages, subscriptions
from arborcast.admin import receiver_page as admin
from arborcast.admin.dead_letters import LetterFilter
from arborcast.console.console import Console, text_of
from arborcast.console.guard import Callers
from arborcast.core.errors import NotFound
from arborcast.core.wall_clock import time_ms
from arborcast.dispatch.hot.triggers import OwnerRates
from arborcast.engine.monitoring.figures import many
from arborcast.ingest.access.grants import may_manage
from arborcast.ingest.elements.protection import Protector
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.records.operations import Operator
from arborcast.topic_model.subscriptions import Subscription

UNAVAILABLE = "Temporarily unavailable: try again in some minutes."
"""In place of the reason, which has addresses and folders of the engine."""

_MOST = 20

# Of one subscription.
_ACTIONS_PER_MINUTE = 10


async def rotated(
    console: Console, protector: Protector, subscription: Subscription, by: Operator
) -> tuple[Subscription, str]:
    """Give a subscription another signing secret, and return both; the former one signs, too, for the overlap. Raises
    UnsupportedPolicy, InfrastructureError."""
    changed, secret, _ = protector.with_secret(subscription, b"", time_ms(), protector.overlap_ms)
    await console.changes.commit(by, "subscriptions rotate-secret", [SubscriptionRecord(changed)])
    return changed, secret


class ReceiverPage:
    """Its routes. `callers` are the gateway's users, None without authentication."""

    def __init__(self, console: Console, callers: Callers | None) -> None:
        self._console = console
        self._callers = callers
        self._protector = Protector(console.settings.secrets)
        self._actions = OwnerRates()

    def routes(self) -> list[Route]:
        path = "/receiver/{subscription}/{link}"
        return [self._console.get(path, self.show), self._console.post(path, self.act, edits=False)]

    async def show(self, request: Request) -> Response:
        return await self._page(request, await self._linked(request))

    async def act(self, request: Request, form: FormData) -> Response:
        """Send a test, redrive dead letters, pause, resume, or rotate the secret."""
        await self._console.changes.catch_up()
        subscription = await self._linked(request)
        if not self._actions.may_publish(subscription.id, _ACTIONS_PER_MINUTE, time.monotonic()):
            raise HTTPException(429, f"At most {_ACTIONS_PER_MINUTE} actions a minute: wait some seconds.")
        questions, control = self._console.questions, self._console.control
        by = admin.receiver_of(subscription.id)
        match text_of(form, "action"):
            case "test":
                note = f"Test {await questions.ask_log(admin.send_test, subscription)} is sent."
            case "redrive":
                wanted = LetterFilter(subscription=subscription.id)
                done = await questions.ask_log(dead_letters.redrive, wanted, None, control, by)
                note = f"{many(done.redriven, 'delivery is', 'deliveries are')} tried again."
            case "pause" | "resume" as change:
                records = subscriptions.changes(control, "pause" if change == "pause" else "resume", subscription)
                if records:
                    await self._console.changes.commit(by, f"subscriptions {change}", records)
                note = "It is paused." if change == "pause" else "It is active."
            case "rotate":
                changed, secret = await rotated(self._console, self._protector, subscription, by)
                # Shown once, in this answer: no later page has it.
                return await self._page(request, changed, secret=secret)
            case _:
                raise HTTPException(400, "Choose what to do.")
        questions.forget()
        return self._console.redirect(request, request.url.path, note)

    async def _linked(self, request: Request) -> Subscription:
        """The subscription of the link. Raises NotFound; also where its owner has lost the right to it."""
        name, text = request.path_params["subscription"], request.path_params["link"]
        keys, control = self._protector.mac_keys, self._console.control
        subscription = admin.linked(keys, control, name, text, time.time())
        if self._callers is not None and subscription.owner:
            caller = await self._callers.find(subscription.owner)
            if caller is None or not may_manage(caller, subscription.owner, subscription.topics):
                raise NotFound("this link opens nothing: its subscriber is no user any more")
        return subscription

    async def _page(self, request: Request, subscription: Subscription, secret: str = "") -> Response:
        questions, control = self._console.questions, self._console.control
        each = subscriptions.one(control, subscription.id)
        wanted = LetterFilter(subscription=subscription.id)
        letters = await questions.recent_log(dead_letters.listed, wanted, _MOST, control, 0, questions.views, age_s=1.0)
        rows = await questions.recent_log(messages.last_attempts, subscription.id, _MOST, age_s=1.0)
        page = self._console.render(
            request,
            "receiver.html",
            each=each,
            signed=bool(subscription.protection and subscription.protection.secrets),
            filtered=bool(subscription.content or subscription.producer or subscription.types),
            letters=letters.value,
            attempts=rows.value or (),
            wrong=UNAVAILABLE if letters.wrong or rows.wrong else "",
            secret=secret,
            note=self._console.take_note(request),
        )
        return HTMLResponse(page)
