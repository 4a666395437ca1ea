"""The screen *Subscriptions*: subscriptions, their health, and pause, resume and end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal
from urllib.parse import quote, urlencode

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.admin import subscriptions as admin
from arborcast.admin import waiting
from arborcast.admin.subscriptions import ListedSubscription, conditions_of
from arborcast.admin.topics import topic_named
from arborcast.admin.waiting import WaitingFilter
from arborcast.console.console import Console, Screen, go, operator, own_path, text_of
from arborcast.console.guard import visitor_of
from arborcast.console.health import EndpointsHealth
from arborcast.console.live import Look, Seen
from arborcast.core.errors import ExpressionError, TopicError
from arborcast.topic_model.projections.suspensions import State
from arborcast.topic_model.subscriptions import Subscription, queue_topic

_AT_ONCE = 100

_STATES: tuple[State, ...] = ("active", "paused", "suspended", "expired")

# Filters by the health of the endpoint, beside those by state.
_HEALTH: tuple[Literal["failing", "degraded"], ...] = ("failing", "degraded")

_DONE: Mapping[admin.Change, str] = {"pause": "paused", "resume": "resumed", "end": "ended"}


class SubscriptionsScreen:
    """The routes of the screen."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def routes(self) -> list[Route]:
        console = self._console
        return [
            console.get("/subscriptions", self.page),
            console.post("/subscriptions/act", self.act),
            console.get("/subscriptions/{id}/live", self.live),
            console.get("/subscriptions/{id:path}", self.one),  # the id of a queue has slashes
        ]

    async def page(self, request: Request) -> Response:
        query = request.query_params
        asked = {name: query.get(name, "").strip() for name in ("topic", "endpoint", "state")}
        wrong = ""
        seen = await self._console.health.look()
        health = EndpointsHealth(seen)
        try:
            shown, more = self._list(asked, query.get("after", ""), health)
        except (ExpressionError, TopicError) as error:
            shown, more, wrong = {}, "", str(error)

        return self._console.page(
            request,
            "subscriptions/page.html",
            slowest=seen.endpoints,
            health_of=health.word,
            health_known=health.known,
            subscriptions=shown,
            asked=asked,
            asks=any(asked.values()),
            states=(*_STATES, *_HEALTH),
            wrong=wrong,
            total=self._console.control.table.statistics().subscriptions,
            more=f"/subscriptions?{urlencode({**asked, 'after': more})}" if more else "",
        )

    async def one(self, request: Request) -> Response:
        control, name = self._console.control, request.path_params["id"]
        one, subscription = admin.one(control, name), control.table.get(name)
        if topic := queue_topic(name):
            return go(f"/queues?{urlencode({'queue': topic})}")
        if subscription is not None and subscription.trigger is not None:
            return self._console.page(
                request,
                "subscriptions/trigger.html",
                one=subscription,
                expression=" and ".join(each.normal if each.namespaces else each.text for each in subscription.topics),
                conditions=conditions_of(subscription),
            )
        if one is None or subscription is None:
            raise HTTPException(404, "There is no subscription of this id (any more).")
        return self._console.slow_page(
            request,
            "subscriptions/one.html",
            self._health(request),
            one=one,
            conditions=conditions_of(subscription),
            details=_details(subscription),
        )

    async def live(self, request: Request) -> Response:
        return self._console.live_page(request, self._health(request))

    def _health(self, request: Request) -> Look:
        """The health of its endpoint: speed, waiting deliveries, and the last answer."""
        name = request.path_params["id"]

        async def look(age_s: float) -> Seen:
            subscription = self._console.control.table.get(name)
            if subscription is None:
                ended = self._console.render(request, "refusal.html", wrong="This subscription has ended.")
                return Seen({"shown": ended}, failed=True)
            wanted = WaitingFilter(subscription=name)
            answer, seen = await asyncio.gather(
                self._console.questions.recent_log(waiting.oldest, wanted, 1, self._console.control, age_s=age_s),
                self._console.health.look(),
            )
            health, address = EndpointsHealth(seen), subscription.consumer.address
            oldest, more = (answer.value.waiting, answer.value.more) if answer.value else ((), 0)
            return self._console.seen(
                request,
                answer,
                "subscriptions/health.html",
                figures=health.figures(address),
                health=health.word(address),
                pull_point=bool(subscription.pull_point),
                state=self._console.control.suspensions.state_of(subscription),
                oldest=oldest[0] if oldest else None,
                count=len(oldest) + more,
            )

        return look

    async def act(self, request: Request, form: FormData) -> Response:
        """Pause, resume or end the selected ones. The end needs a confirmation."""
        action = next((each for each in _DONE if each == text_of(form, "action")), None)
        chosen = list(dict.fromkeys(each for each in form.getlist("id") if isinstance(each, str)))
        listed = own_path(text_of(form, "back"))
        listed = listed if listed.partition("?")[0] == "/subscriptions" else ""
        one = f"/subscriptions/{quote(chosen[0], safe='')}" if len(chosen) == 1 else ""
        onward = listed or one or "/subscriptions"
        if action is None:
            raise HTTPException(400, "Choose what to do: pause, resume or end.")
        if not chosen:
            self._console.note(
                visitor_of(request.scope), "Choose subscriptions first: each has a box at its beginning."
            )
            return go(onward)
        # Clients change their subscriptions, too: the current state is used.
        await self._console.changes.catch_up()
        control = self._console.control
        known = (each for each in map(control.table.get, chosen) if each is not None)
        found = [each for each in known if each.trigger is None and each.peer is None]
        if action == "end" and not text_of(form, "sure"):
            shown = [admin.one(control, each.id) for each in found]
            return self._console.page(request, "subscriptions/end.html", subscriptions=shown, onward=onward)
        changed = [(each, admin.changes(control, action, each)) for each in found]
        records = [record for _, some in changed for record in some]
        if records:
            await self._console.changes.commit(operator(request), f"subscriptions {action}", records)
        count = sum(bool(some) for _, some in changed)
        rest = len(chosen) - count
        said = f"{count:,} {'subscription' if count == 1 else 'subscriptions'} {_DONE[action]}"
        more = f"; {rest:,} {'is' if rest == 1 else 'are'} so already, or not there any more" if rest else ""
        self._console.note(visitor_of(request.scope), f"{said}{more}.")
        return go((listed or "/subscriptions") if action == "end" else onward)

    def _list(
        self, asked: dict[str, str], after: str, health: EndpointsHealth
    ) -> tuple[dict[ListedSubscription, str], str]:
        """Subscriptions with their conditions; and the id after which the next part begins. Raises ExpressionError or
        TopicError for a topic that is none."""
        control = self._console.control
        path = topic_named(asked["topic"], control.table.topics) if asked["topic"] else None
        wanted = admin.SubscriptionFilter(asked["state"], part=asked["endpoint"], topic=path)
        for word in _HEALTH:
            if asked["state"] == word:
                wanted = wanted._replace(state="active", endpoints=health.of(word))
        found, more = admin.listed(control, wanted, _AT_ONCE, after, health.of("failing"))
        known = ((each, control.table.get(each.subscription)) for each in found)
        shown = {each: conditions_of(subscription) for each, subscription in known if subscription is not None}
        return shown, found[-1].subscription if more else ""


def _details(each: Subscription) -> list[tuple[str, str]]:
    """Properties other than the defaults."""
    policy = each.policy
    rows = [
        ("Address", each.address),
        ("Form", f"{each.form}, SOAP {each.soap}" if not each.pull_point else "waits in a pull point"),
        ("Reliability", policy.reliability),
        ("Order", policy.order if policy.order != "acceptance" else ""),
        ("Priority", str(policy.priority or "")),
        ("At most", f"{policy.maximum_attempts} attempts" if policy.maximum_attempts else ""),
        ("Lifespan", f"{policy.lifespan_ms / 1000:g} s" if policy.lifespan_ms else ""),
        ("Deadline", f"{policy.deadline_ms / 1000:g} s of each {policy.deadline_per}" if policy.deadline_ms else ""),
        ("Signed", "yes" if each.protection and each.protection.secrets else ""),
        ("Owner", each.owner),
    ]
    return [(name, value) for name, value in rows if value]


SCREEN = Screen(
    "subscriptions", "Subscriptions", "/subscriptions", lambda console: SubscriptionsScreen(console).routes()
)
