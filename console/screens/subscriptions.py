"""The screen *Subscriptions*: subscriptions, their health, and pause, resume and end."""

from __future__ import annotations

import asyncio
import heapq
import sys
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Literal
from urllib.parse import quote, urlencode

import msgspec
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.admin import messages, receiver_page, replay, slo, triggers, waiting
from arborcast.admin import subscriptions as admin
from arborcast.admin.filters import TopicTest
from arborcast.admin.subscriptions import ListedSubscription, conditions_of, expression_of
from arborcast.admin.times import iso, moment_ms
from arborcast.admin.topics import topic_named
from arborcast.admin.triggers import ListedTrigger
from arborcast.admin.waiting import WaitingFilter
from arborcast.console.console import Console, Screen, go, operator, own_path, text_of
from arborcast.console.downloads import AT_ONCE, Download, Parts, in_parts
from arborcast.console.health import EndpointsHealth
from arborcast.console.live import PageParts
from arborcast.console.questions import Answer, answer_within
from arborcast.console.screens.receiver import rotated
from arborcast.core.errors import ExpressionError, TopicError
from arborcast.engine.monitoring.figures import many
from arborcast.ingest.elements.protection import Protector
from arborcast.topic_model.projections.suspensions import State
from arborcast.topic_model.publishers import Registration
from arborcast.topic_model.subscriptions import Subscription, is_cloud_events, queue_topic

_AT_ONCE = 100

# A page is shown without the answers that take longer; an update has them.
_SOON_S = 0.5

# The attempts by hour are counted once a minute.
_COUNTED_S = 60.0

# Notifications of one replay; the command line has no limit.
_REPLAYED = 10_000

_STATES: tuple[State, ...] = ("active", "paused", "suspended", "expired")

# Filters by the health of the endpoint, beside those by state.
_HEALTH: tuple[Literal["failing", "degraded"], ...] = ("failing", "degraded")

# A filter by the kind of consumer.
_PULL_POINT = "pull point"

_DONE: Mapping[admin.Change, str] = {"pause": "paused", "resume": "resumed", "end": "deleted"}


async def _nothing() -> None:
    """In place of a question."""


class SubscriptionRow(msgspec.Struct, frozen=True):
    """A subscription, with the pushes of the last minutes if they are published."""

    subscription: str
    endpoint: str
    expression: str
    conditions: str
    state: str
    health: str
    suspended_ms: int
    suspended_for: str
    pushes: int | None
    failed: int | None
    p99_s: float | None
    pending: int
    dead_letters: int
    reliability: str
    owner: str
    address: str
    created_ms: int
    terminates_ms: int | None


class PublisherRow(msgspec.Struct, frozen=True):
    """A registered publisher; without topics it may publish all."""

    registration: str
    publisher: str
    topics: str
    demand: bool
    subscribed: bool
    owner: str
    created_ms: int
    terminates_ms: int | None


class SubscriptionsScreen:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._protector = Protector(console.settings.secrets)

    def routes(self) -> list[Route]:
        console = self._console
        registered_triggers = Download("triggers", ListedTrigger, lambda _: in_parts(self._trigger_rows()))
        registered_publishers = Download("publishers", PublisherRow, lambda _: in_parts(self._publisher_rows()))
        return [
            console.listing("/subscriptions", self.page, Download("subscriptions", SubscriptionRow, self._parts)),
            console.live_page("/subscriptions/live", self._read_list),
            console.listing("/triggers", self.triggers, registered_triggers),
            console.listing("/publishers", self.publishers, registered_publishers),
            console.post("/subscriptions/act", self.act),
            console.post("/subscriptions/replay", self.replay),
            console.live_page(
                "/subscriptions/{id}/live",
                lambda request, age_s: self._read_health(request.path_params["id"], request, age_s),
            ),
            console.get("/subscriptions/{id:path}", self.one),  # the id of a queue has slashes
        ]

    async def page(self, request: Request) -> Response:
        asked = _asked(request)
        return self._console.slow_page(
            request,
            "subscriptions/page.html",
            self._read_list,
            title="Subscriptions",
            asked=asked,
            asks=any(asked.values()),
            states=(*_STATES, *_HEALTH, _PULL_POINT),
            total=self._console.control.table.statistics().subscriptions,
            filters=f"?{request.url.query}" if request.url.query else "",
        )

    async def _read_list(self, request: Request, age_s: float) -> PageParts:
        """The list, with the health of the endpoints."""
        asked, after = _asked(request), request.query_params.get("after", "")
        back = "/subscriptions" + (f"?{request.url.query}" if request.url.query else "")
        wrong, begun = "", time.monotonic()
        if after and self._console.control.table.get(after) is None:
            wrong = "The subscription before this page has ended: this is the first page again."
        seen = await self._console.health.look()
        health = EndpointsHealth(seen)
        try:
            shown, more = self._list(asked, after, health)
        except (ExpressionError, TopicError) as error:
            shown, more, wrong = {}, "", str(error)
        # Of many subscriptions a list takes a while: it is repeated less often.
        done = Answer(None, "", time.time(), time.monotonic() - begun)
        names = tuple(each.subscription for each in shown)
        values = {
            "counts": await self._counts(names, age_s),
            "slowest": seen.endpoints,
            "health_of": health.word,
            "figures_of": health.figures,
            "health_known": health.known,
            "subscriptions": shown,
            "asks": any(asked.values()),
            "wrong": wrong,
            "back": back,
            "more": f"/subscriptions?{urlencode({**asked, 'after': more})}" if more else "",
        }
        return self._console.main_part(request, done, "subscriptions/shown.html", **values)

    async def _counts(self, names: tuple[str, ...], age_s: float) -> Mapping[str, waiting.DeliveryCounts]:
        """The pending deliveries and dead letters of these subscriptions; empty while they are not known."""
        if not names:
            return {}
        questions = self._console.questions
        counted = await answer_within(
            questions.recent_log(waiting.counts, names, questions.views, age_s=age_s), _SOON_S
        )
        return (counted.value if counted else None) or {}

    async def triggers(self, request: Request) -> Response:
        found, more = triggers.listed(self._console.control, _AT_ONCE)
        return self._console.page(request, "subscriptions/triggers.html", triggers=found, more=more)

    async def publishers(self, request: Request) -> Response:
        """The registered ones, by their addresses."""
        known = self._console.state.registrations
        found = heapq.nsmallest(_AT_ONCE, known, key=_by_address)
        return self._console.page(
            request, "subscriptions/publishers.html", publishers=found, more=len(known) - len(found)
        )

    async def _parts(self, request: Request) -> Parts:
        """The list, with the health of the endpoints and the numbers of deliveries."""
        control, questions = self._console.control, self._console.questions
        seen = await self._console.health.look()
        health = EndpointsHealth(seen)
        names = admin.ordered(control, self._filter(_asked(request), health), health.of("failing"))
        for start in range(0, len(names), AT_ONCE):
            part = names[start : start + AT_ONCE]
            counts = await questions.ask_log(waiting.counts, part, questions.views)
            # One that has ended meanwhile is left out.
            found = ((admin.one(control, each), control.table.get(each)) for each in part)
            yield [
                _row(one, subscription, health, counts[one.subscription])
                for one, subscription in found
                if one is not None and subscription is not None
            ]

    async def _trigger_rows(self) -> Iterable[ListedTrigger]:
        return triggers.listed(self._console.control, sys.maxsize).triggers

    async def _publisher_rows(self) -> Iterable[PublisherRow]:
        return map(_publisher_row, sorted(self._console.state.registrations, key=_by_address))

    async def one(self, request: Request) -> Response:
        return self._one(request, request.path_params["id"])

    def _one(self, request: Request, name: str, secret: str = "") -> Response:
        control = self._console.control
        one, subscription = admin.one(control, name), control.table.get(name)
        if topic := queue_topic(name):
            return go(f"/queues?{urlencode({'queue': topic})}")
        if subscription is not None and subscription.trigger is not None:
            return self._console.page(
                request,
                "subscriptions/trigger.html",
                one=subscription,
                expression=expression_of(subscription),
                conditions=conditions_of(subscription),
            )
        if one is None or subscription is None:
            raise HTTPException(404, "Subscription not found, or ended.")
        return self._console.slow_page(
            request,
            "subscriptions/one.html",
            partial(self._read_health, name),
            one=one,
            secret=secret,
            signed=bool(subscription.protection and subscription.protection.secrets),
            overlap_s=self._protector.overlap_ms / 1000,
            conditions=conditions_of(subscription),
            details=_details(subscription),
        )

    async def _read_health(self, name: str, request: Request, age_s: float) -> PageParts:
        """The health of its endpoint: speed, pending deliveries, the last response, and the last attempts."""
        subscription = self._console.control.table.get(name)
        if subscription is None:
            return self._console.refusal(request, "This subscription has ended.")
        wanted = WaitingFilter(subscription=name)
        questions = self._console.questions
        settings, point = self._console.settings, subscription.pull_point
        answer, pushed, counted, stored, seen = await asyncio.gather(
            questions.recent_log(
                waiting.oldest, wanted, 1, self._console.control, 0, False, questions.views, age_s=age_s
            ),
            questions.recent_log(messages.last_attempts, name, age_s=age_s),
            answer_within(questions.recent(slo.attempts, settings, name, age_s=max(age_s, _COUNTED_S)), _SOON_S),
            questions.recent(admin.pull_point, settings, point, age_s=age_s) if point else _nothing(),
            self._console.health.look(),
        )
        health, address = EndpointsHealth(seen), subscription.consumer.address
        oldest, more = (answer.value.waiting, answer.value.more) if answer.value else ((), 0)
        return self._console.main_part(
            request,
            answer,
            "subscriptions/health.html",
            figures=health.figures(address),
            health=health.word(address),
            stored=stored,
            hours=counted,
            state=self._console.control.suspensions.state_of(subscription),
            oldest=oldest[0] if oldest else None,
            count=len(oldest) + more,
            attempts=pushed.value or (),
            unread=pushed.wrong,
        )

    async def replay(self, request: Request, form: FormData) -> Response:
        """Deliver past notifications again, after a confirmation with their number."""
        name, since, until = (text_of(form, field).strip() for field in ("id", "since", "until"))
        onward = f"/subscriptions/{quote(name, safe='')}"
        since_ms = moment_ms("since", since)
        if text_of(form, "sure"):
            sent = await self._console.questions.ask_log(
                replay.run, name, since_ms, moment_ms("until", until), _REPLAYED, operator(request)
            )
            self._console.questions.forget()
            return self._console.redirect(request, onward, f"{many(sent, 'notification')} replayed.")
        planned = await self._console.questions.ask_log(replay.plan, name, since_ms, None, TopicTest(), _REPLAYED)
        return self._console.page(
            request,
            "subscriptions/replay.html",
            subscription=name,
            count=len(planned.places),
            since_ms=since_ms,
            since=iso(since_ms),
            until=iso(planned.until_ms),
            onward=onward,
        )

    async def act(self, request: Request, form: FormData) -> Response:
        """Pause, resume or end the selected ones, send one a test, or rotate its secret. The end and the rotation need
        a confirmation."""
        action = next((each for each in _DONE if each == text_of(form, "action")), None)
        chosen = list(dict.fromkeys(each for each in form.getlist("id") if isinstance(each, str)))
        back = text_of(form, "back")
        listed = own_path(back) if back.partition("?")[0] in ("/", "/subscriptions") else ""
        one = f"/subscriptions/{quote(chosen[0], safe='')}" if len(chosen) == 1 else ""
        onward = listed or one or "/subscriptions"
        if text_of(form, "action") == "test" and one:
            return await self._test(request, chosen[0], one)
        if text_of(form, "action") == "rotate" and one:
            return await self._rotate(request, form, chosen[0], one)
        if action is None:
            raise HTTPException(400, "Choose an action: pause, resume or delete.")
        if not chosen:
            return self._console.redirect(request, onward, "Select at least one subscription.")
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
        note = f"{count:,} {'subscription' if count == 1 else 'subscriptions'} {_DONE[action]}"
        more = f"; {rest:,} unchanged" if rest else ""
        onward = (listed or "/subscriptions") if action == "end" else onward
        return self._console.redirect(request, onward, f"{note}{more}.")

    async def _rotate(self, request: Request, form: FormData, name: str, onward: str) -> Response:
        await self._console.changes.catch_up()
        subscription = self._client(name)
        if not text_of(form, "sure"):
            return self._console.redirect(request, onward, "Confirm that you will pass the new secret on.")
        _, secret = await rotated(self._console, self._protector, subscription, operator(request))
        # Shown once, in this answer: no later page has it.
        return self._one(request, name, secret)

    def _client(self, name: str) -> Subscription:
        """The subscription of a client. Raises HTTPException for others."""
        subscription = self._console.control.table.get(name)
        if subscription is None or subscription.trigger is not None or subscription.peer is not None:
            raise HTTPException(404, "Subscription not found, or ended.")
        return subscription

    async def _test(self, request: Request, name: str, onward: str) -> Response:
        subscription = self._client(name)
        sent = await self._console.questions.ask_log(receiver_page.send_test, subscription, operator(request))
        return self._console.redirect(request, onward, f"Test {sent} sent.")

    def _list(
        self, asked: dict[str, str], after: str, health: EndpointsHealth
    ) -> tuple[dict[ListedSubscription, str], str]:
        """Subscriptions with their conditions; and the id after which the next part begins. Raises ExpressionError or
        TopicError for a topic that is none."""
        control = self._console.control
        wanted = self._filter(asked, health)
        found, more = admin.listed(control, wanted, _AT_ONCE, after, health.of("failing"))
        known = ((each, control.table.get(each.subscription)) for each in found)
        shown = {each: conditions_of(subscription) for each, subscription in known if subscription is not None}
        return shown, found[-1].subscription if more else ""

    def _filter(self, asked: dict[str, str], health: EndpointsHealth) -> admin.SubscriptionFilter:
        """Raises ExpressionError or TopicError for a topic that is none."""
        path = topic_named(asked["topic"], self._console.control.table.topics) if asked["topic"] else None
        wanted = admin.SubscriptionFilter(asked["state"], part=asked["endpoint"], topic=path)
        if asked["state"] == _PULL_POINT:
            wanted = wanted._replace(state="", pull_points=True)
        for word in _HEALTH:
            if asked["state"] == word:
                wanted = wanted._replace(state="active", endpoints=health.of(word))
        return wanted


def _asked(request: Request) -> dict[str, str]:
    return {name: request.query_params.get(name, "").strip() for name in ("topic", "endpoint", "state")}


def _row(
    one: ListedSubscription, subscription: Subscription, health: EndpointsHealth, count: waiting.DeliveryCounts
) -> SubscriptionRow:
    figures = health.figures(one.endpoint) or {}
    return SubscriptionRow(
        subscription=one.subscription,
        endpoint=one.endpoint,
        expression=one.expression,
        conditions=conditions_of(subscription),
        state=one.state,
        health=health.word(one.endpoint),
        suspended_ms=one.suspended.at_ms if one.suspended else 0,
        suspended_for=one.suspended.reason if one.suspended else "",
        pushes=figures.get("pushes"),
        failed=figures.get("failed"),
        p99_s=figures.get("p99_s"),
        pending=count.pending,
        dead_letters=count.dead,
        reliability=one.reliability,
        owner=one.owner,
        address=one.address,
        created_ms=one.created_ms,
        terminates_ms=one.terminates_ms,
    )


def _publisher_row(each: Registration) -> PublisherRow:
    return PublisherRow(
        registration=each.id,
        publisher=each.publisher.address if each.publisher else "",
        topics=" | ".join(topic.text for topic in each.topics),
        demand=each.demand,
        subscribed=bool(each.upstream),
        owner=each.owner,
        created_ms=each.created_ms,
        terminates_ms=each.terminates_ms,
    )


def _by_address(each: Registration) -> tuple[str, str]:
    return each.publisher.address if each.publisher else "", each.id


def _details(each: Subscription) -> list[tuple[str, str]]:
    """Properties other than the defaults."""
    policy, soap = each.policy, "" if is_cloud_events(each.form) else f", SOAP {each.soap}"
    rows = [
        ("Subscription URL", each.address),
        ("Format", "Pull point" if each.pull_point else each.form + soap),
        ("Reliability", policy.reliability),
        ("Order", policy.order if policy.order != "acceptance" else ""),
        ("Priority", str(policy.priority or "")),
        ("Max attempts", str(policy.maximum_attempts) if policy.maximum_attempts else ""),
        ("Lifespan", f"{policy.lifespan_ms / 1000:g} s" if policy.lifespan_ms else ""),
        ("Deadline", f"{policy.deadline_ms / 1000:g} s per {policy.deadline_per}" if policy.deadline_ms else ""),
        ("Signed", "yes" if each.protection and each.protection.secrets else ""),
        ("Owner", each.owner),
    ]
    return [(name, value) for name, value in rows if value]


SCREEN = Screen(
    "subscriptions", "Subscriptions", "/subscriptions", lambda console: SubscriptionsScreen(console).routes()
)
