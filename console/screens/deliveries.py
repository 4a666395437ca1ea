"""The screen *Deliveries*: the history of notifications, waiting deliveries, dead letters, the audit, and erasures."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

import msgspec
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.admin import dead_letters, erasures, messages, slo, trace, waiting
from arborcast.admin.dead_letters import Letter, LetterFilter
from arborcast.admin.erasures import ErasureRequest
from arborcast.admin.filters import TopicTest
from arborcast.admin.messages import MessageSearch
from arborcast.admin.times import beginning, iso, moment_ms, period_ms
from arborcast.admin.waiting import WaitingEntry, WaitingFilter, WaitingList
from arborcast.console.console import Console, Screen, operator, own_path, text_of
from arborcast.console.downloads import AT_ONCE, Download, Parts, followed, in_parts
from arborcast.console.live import PageParts, PartsReader
from arborcast.console.questions import Answer, answer_within
from arborcast.core.errors import ArborcastError, ConfigError, NotFound
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import time_ms
from arborcast.dispatch.operations.views import ViewPlace
from arborcast.engine.monitoring.figures import WORDS, many

# Filters of dead letters and waiting deliveries.
_BY = ("subscription", "endpoint", "topic", "notification")
_LETTERS_BY = (*_BY, "since", "reason")
_ERASED_BY = ("subject", "topic", "notification", "before")

_AT_ONCE = 100

# Pages of a list: all entries up to the end of the page are in memory.
_PAGES = 100

_TYPED = "delete all"

# An audit repeats unbalanced ones; a visitor waits for this one.
_PATIENCE_S = 5.0

_SHOWN = 200

# The search for last attempts, and how long a list waits for it.
_SEARCHED_S = 10.0
_SHOWN_WITHOUT_S = 0.3

# The table changes once a minute.
_OBJECTIVE_S = 10.0


if TYPE_CHECKING:
    from arborcast.dispatch.operations.audit import Report
    from arborcast.dispatch.operations.trace.evidence import Explanation, Step

T = TypeVar("T")


class TraceRow(msgspec.Struct, frozen=True):
    """A step of a notification, or of its delivery to a subscription, which ends with a row of its outcome."""

    at_ms: int
    subscription: str
    endpoint: str
    step: str
    where: str
    detail: str
    expression: str = ""


class AuditRow(msgspec.Struct, frozen=True):
    """The deliveries to a subscription, by state."""

    subscription: str
    matches: int
    delivered: int
    dead: int
    expired: int
    cancelled: int
    dropped: int
    pending: int


class ObjectiveRow(msgspec.Struct, frozen=True):
    """The objective of a subscription; see `dispatch.operations.slo.Objective`."""

    subscription: str
    owner: str
    in_time: int
    late: int
    lost: int
    receiver: int
    share: float | None
    budget_left: float | None
    burn_1h: float
    burn_6h: float


class DeliveriesScreen:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._questions = console.questions
        self._views = console.questions.views

    def routes(self) -> list[Route]:
        console = self._console
        get, post, listing, live = console.get, console.post, console.listing, console.live_page
        traced = Download("trace", TraceRow, lambda request: in_parts(self._trace_rows(request)), "notification")
        audited = Download("audit", AuditRow, lambda request: in_parts(self._audit_rows(request)), "since")
        measured = Download("objective", ObjectiveRow, lambda request: in_parts(self._slo_rows(request)))
        return [
            listing("/deliveries", self.trace, traced),
            listing("/deliveries/messages", self.messages),
            listing("/deliveries/waiting", self.waiting, Download("pending", WaitingEntry, self._waiting_parts)),
            live("/deliveries/waiting/live", self._read_waiting),
            post("/deliveries/waiting/act", self.retry),
            listing("/deliveries/dead", self.dead, Download("dead-letters", Letter, self._dead_parts)),
            live("/deliveries/dead/live", self._read_dead),
            get("/deliveries/dead/{notification}", self.letter),
            post("/deliveries/dead/act", self.act),
            listing("/deliveries/audit", self.audit, audited),
            listing("/deliveries/slo", self.slo, measured),
            get("/deliveries/erasures", self.erasures),
            post("/deliveries/erasures", self.erase),
        ]

    async def trace(self, request: Request) -> Response:
        """The explanation of one notification; with a subscription, why that has it or not."""
        asked = _asked(request, ("notification", "subscription"))
        explanation, wrong = None, ""
        if asked["notification"]:
            settings = self._console.settings
            explanation, wrong = await _answer(
                self._questions.ask(trace.trace, settings, asked["notification"], asked["subscription"])
            )
        # Failures first: they are the reason to look.
        deliveries = sorted(explanation.deliveries, key=lambda each: each.outcome == "delivered") if explanation else []
        values: dict[str, Any] = {"explanation": explanation, "deliveries": deliveries, "wrong": wrong, "shown": _SHOWN}
        if asked["notification"]:
            return self._page(request, "trace", asked=asked, **values)
        values |= _values("trace", asked)
        return self._console.slow_page(request, "deliveries/trace.html", self._read_recent, **values)

    async def _read_recent(self, request: Request, age_s: float) -> PageParts:
        newest = await self._questions.recent_log(messages.recent, age_s=age_s)
        return self._console.main_part(request, newest, "deliveries/recent.html", newest=newest.value)

    async def messages(self, request: Request) -> Response:
        """A search of payloads, on request."""
        asked = _asked(request, ("text", "topic", "since", "until", "after"))
        found, wrong = None, ""
        if asked["since"]:
            times = asked["since"], asked["until"], asked["after"]
            wanted = MessageSearch(asked["text"], TopicTest(asked["topic"]), *times)
            found, wrong = await _answer(self._questions.ask_log(messages.search, wanted, self._console.control))
        return self._page(request, "messages", asked=asked, found=found, wrong=wrong)

    async def waiting(self, request: Request) -> Response:
        return self._slow(request, "waiting", _BY, self._read_waiting)

    async def retry(self, request: Request, form: FormData) -> Response:
        """Request attempts of selected deliveries, of all that the filter selects, or of one for an endpoint: a
        probe."""
        asked = {name: text_of(form, name).strip() for name in _BY}
        chosen = _chosen(form, "delivery")
        onward = own_path(text_of(form, "back")) if text_of(form, "back") else "/deliveries/waiting" + _query(asked)
        by, control = operator(request), self._console.control
        action = text_of(form, "action")
        if action == "probe":
            # Pages do not show passwords in addresses: the page of a subscription names that instead.
            subscription = control.table.get(asked["subscription"])
            endpoint = subscription.consumer.address if subscription is not None else asked["endpoint"]
            try:
                await self._questions.ask_log(waiting.probe, endpoint, control, by, self._views)
                note = "Probe requested."
            except NotFound:
                note = "No delivery waits for this endpoint: a probe is the push of one."
        elif action in ("retry", "retry-all"):
            if action == "retry" and not chosen:
                return self._console.redirect(request, onward, "Select at least one delivery.")
            wanted = _waiting_filter(asked)._replace(chosen=chosen if action == "retry" else frozenset())
            requested = await self._questions.ask_log(waiting.retry, wanted, None, control, by, self._views)
            note = f"Attempts of {many(requested, 'delivery', 'deliveries')} requested."
        else:
            raise HTTPException(400, "Choose an action: retry or probe.")
        self._questions.forget()
        return self._console.redirect(request, onward, note)

    async def dead(self, request: Request) -> Response:
        return self._slow(request, "dead", _LETTERS_BY, self._read_dead)

    async def letter(self, request: Request) -> Response:
        notification = request.path_params["notification"]
        subscription = request.query_params.get("subscription", "")
        whole = await self._questions.ask_log(dead_letters.first_whole, notification, subscription)
        asked = {"notification": notification, "subscription": whole.letter.subscription}
        return self._page(request, "letter", asked=asked, whole=whole)

    async def act(self, request: Request, form: FormData) -> Response:
        """Redrive or delete all selected dead letters, after a confirmation."""
        action, _, everything = text_of(form, "action").partition("-")
        if action not in ("redrive", "purge"):
            raise HTTPException(400, "Choose an action: retry or delete.")
        asked = {name: text_of(form, name).strip() for name in _LETTERS_BY}
        # A filter by notification has nothing left to show.
        onward = "/deliveries/dead" + _query({} if asked["notification"] else asked)
        chosen = frozenset() if everything else _chosen(form, "letter")
        if not chosen and not everything and not asked["notification"]:
            return self._console.redirect(request, onward, "Select at least one dead letter.")
        # The letters of the question and no later ones.
        until = text_of(form, "until") or datetime.now(UTC).isoformat()
        wanted, control = _letters(asked)._replace(until=until, chosen=chosen), self._console.control
        if wanted.since:  # a span before the time of the list, and not before each later step
            since_s = beginning(wanted.since, beginning(until, time.time(), "until"))
            wanted = wanted._replace(since=iso(int(since_s * 1000)))
        # The loss of all messages is not one click away.
        typed = action == "purge" and not chosen and not any(asked.values())
        if not text_of(form, "sure") or (typed and text_of(form, "typed").strip() != _TYPED):
            count, wrong = await _answer(self._questions.ask_log(dead_letters.count, wanted, None, control))
            named = sorted(" ".join(each) for each in chosen)
            values = {"action": action, "everything": everything, "chosen": named, "typed": _TYPED if typed else ""}
            return self._page(request, "sure", asked=asked, until=until, count=count or 0, wrong=wrong, **values)
        by = operator(request)
        try:
            if action == "redrive":
                done = await self._questions.ask_log(dead_letters.redrive, wanted, None, control, by)
                note = [f"{many(done.redriven, 'delivery', 'deliveries')} re-queued"]
                note += [f"{done.over:,} skipped (subscription ended)"] * bool(done.over)
                note += [f"{done.too_new:,} skipped (failed seconds ago)"] * bool(done.too_new)
            else:
                purged = await self._questions.ask_log(dead_letters.purge, wanted, None, control, by)
                note = [f"{many(purged, 'dead letter')} deleted"]
        finally:
            # Also after an error: some may be done.
            self._questions.forget()
        return self._console.redirect(request, onward, "; ".join(note) + ".")

    async def audit(self, request: Request) -> Response:
        """The audit, on request only, since it is expensive."""
        from arborcast.dispatch.operations.audit.report import PROBLEMS  # it loads numpy

        asked = _asked(request, ("since", "subscription", "order"))
        answer, wrong = None, ""
        if asked["since"]:
            question = self._questions.ask_log(_audit, asked["since"], asked["subscription"], bool(asked["order"]))
            answer, wrong = await _answer(question)
        return self._page(request, "audit", asked=asked, report=answer, wrong=wrong, problems=PROBLEMS, shown=_SHOWN)

    async def slo(self, request: Request) -> Response:
        """The service level objective, from a table of some thousand rows."""
        asked = _asked(request, ("subscription", "owner"))
        answer = await self._questions.recent(
            slo.measured,
            self._console.settings,
            _SHOWN,
            asked["subscription"],
            asked["owner"] or None,
            age_s=_OBJECTIVE_S,
        )
        values = {"found": answer.value, "wrong": answer.wrong, "slo": self._console.settings.slo}
        return self._page(request, "slo", asked=asked, **values)

    async def erasures(self, request: Request) -> Response:
        return await self._erasures(request, dict.fromkeys(_ERASED_BY, ""))

    async def erase(self, request: Request, form: FormData) -> Response:
        """Request an erasure, after a confirmation."""
        asked = {name: text_of(form, name).strip() for name in _ERASED_BY}
        try:
            erasures.check_id(asked["notification"])
        except ConfigError as error:
            return await self._erasures(request, asked, wrong=str(error))
        if not text_of(form, "sure"):
            return await self._erasures(request, asked, sure=True)
        topic = TopicTest(asked["topic"])
        wanted = ErasureRequest(asked["subject"], topic, asked["notification"], asked["before"])
        question = self._questions.ask_log(erasures.erase, wanted, operator(request), self._console.control)
        requested, wrong = await _answer(question)
        if requested is None:
            return await self._erasures(request, asked, wrong=wrong)
        note = f"Erasure {requested.erasure.scope.id} was requested."
        return self._console.redirect(request, "/deliveries/erasures", note)

    async def _erasures(self, request: Request, asked: dict[str, str], wrong: str = "", sure: bool = False) -> Response:
        found = await self._questions.ask_log(erasures.listed, self._console.control)
        shown = [(each, erasures.described(each.erasure)) for each in found[:_SHOWN]]
        return self._page(request, "erasures", asked=asked, wrong=wrong, sure=sure, found=shown)

    async def _trace_rows(self, request: Request) -> Iterable[TraceRow]:
        asked = _asked(request, ("notification", "subscription"))
        return _traced(
            await self._questions.ask(trace.trace, self._console.settings, asked["notification"], asked["subscription"])
        )

    def _waiting_parts(self, request: Request) -> Parts:
        asked = _asked(request, (*_BY, "order"))
        newest, begun_ms = asked["order"] == "newest", time_ms()
        # For the whole file: the last attempts of a long list are all over their log.
        searched_until = time.monotonic() + _SEARCHED_S

        async def read(after: ViewPlace | None) -> tuple[Sequence[WaitingEntry], ViewPlace | None]:
            found, place = await self._questions.ask_log(
                waiting.following,
                _waiting_filter(asked),
                AT_ONCE,
                after,
                self._console.control,
                newest,
                self._views,
                max(0.0, searched_until - time.monotonic()),
            )
            # Deliveries may be added faster than a browser reads.
            return found, place if newest or (found and found[-1].since_ms <= begun_ms) else None

        return followed(read)

    def _dead_parts(self, request: Request) -> Parts:
        asked = _asked(request, _LETTERS_BY)
        # The same time for all parts.
        asked["since"] = asked["since"] and iso(moment_ms("since", asked["since"]))

        async def read(after: ViewPlace | None) -> tuple[Sequence[Letter], ViewPlace | None]:
            return await self._questions.ask_log(
                dead_letters.following, _letters(asked), AT_ONCE, after, self._console.control, self._views
            )

        return followed(read)

    async def _audit_rows(self, request: Request) -> Iterable[AuditRow]:
        asked = _asked(request, ("since", "subscription", "order"))
        report = await self._questions.ask_log(_audit, asked["since"], asked["subscription"], bool(asked["order"]))
        return (AuditRow(name, **tally.as_json()) for name, tally in sorted(report.subscriptions.items()))

    async def _slo_rows(self, request: Request) -> Iterable[ObjectiveRow]:
        asked = _asked(request, ("subscription", "owner"))
        found = await self._questions.ask(
            slo.measured, self._console.settings, sys.maxsize, asked["subscription"], asked["owner"] or None
        )
        return (
            ObjectiveRow(each.subscription, each.owner, **msgspec.structs.asdict(each.objective))
            for each in found.worst
        )

    def _slow(self, request: Request, name: str, by: tuple[str, ...], read_parts: PartsReader) -> Response:
        values = _values(name, _asked(request, (*by, "page", "order")))
        return self._console.slow_page(request, "deliveries/listed.html", read_parts, **values)

    async def _read_waiting(self, request: Request, age_s: float) -> PageParts:
        asked = _asked(request, (*_BY, "page", "order"))
        wanted, newest = _waiting_filter(asked), asked["order"] == "newest"
        skipped, control = _skipped(asked), self._console.control

        def question(within_s: float) -> Awaitable[Answer[WaitingList]]:
            views = self._views
            return self._questions.recent_log(
                waiting.oldest, wanted, _AT_ONCE, control, skipped, newest, views, within_s, age_s=age_s
            )

        answer = await question(0.0)
        if answer.value is not None and not answer.value.complete:
            # The search continues while the list is shown: the next update has its results.
            answer = await answer_within(question(_SEARCHED_S), _SHOWN_WITHOUT_S) or answer
        return self._main_part(request, answer, "waiting", asked)

    async def _read_dead(self, request: Request, age_s: float) -> PageParts:
        asked = _asked(request, (*_LETTERS_BY, "page", "order"))
        control = self._console.control
        answer = await self._questions.recent_log(
            dead_letters.listed, _letters(asked), _AT_ONCE, control, _skipped(asked), self._views, age_s=age_s
        )
        return self._main_part(request, answer, "dead", asked)

    def _main_part(self, request: Request, answer: Answer[Any], name: str, asked: dict[str, str]) -> PageParts:
        template = f"deliveries/{name}-shown.html"
        # Later letters were not shown, so buttons of the page exclude them.
        until = datetime.fromtimestamp(answer.at - answer.took_s, UTC).isoformat()
        return self._console.main_part(
            request, answer, template, answer=answer.value, until=until, **_values(name, asked)
        )

    def _page(self, request: Request, name: str, *, asked: dict[str, str], **values: Any) -> Response:
        return self._console.page(request, f"deliveries/{name}.html", **_values(name, asked), **values)


def _audit(kafka: KafkaSettings, since: str, subscription: str, order: bool) -> Report:
    from arborcast.admin.audit import audit

    return audit(kafka, *period_ms(since, ""), subscription, order=order, patience_s=_PATIENCE_S)


async def _answer(question: Awaitable[T]) -> tuple[T | None, str]:
    """The answer, or the text of the error."""
    try:
        return await question, ""
    except ArborcastError as error:
        return None, str(error)


def _traced(explanation: Explanation) -> Iterator[TraceRow]:
    """The rows of an explanation: its steps, then each delivery."""

    def row(step: Step, subscription: str = "", endpoint: str = "") -> TraceRow:
        at_ms = int(step.at.timestamp() * 1000) if step.at else 0
        return TraceRow(at_ms, subscription, endpoint, step.what, step.where, step.detail)

    yield from map(row, explanation.steps)
    for one in explanation.deliveries:
        yield from (row(step, one.subscription, one.endpoint) for step in one.steps)
        outcome = WORDS.get(one.outcome, one.outcome)
        yield TraceRow(0, one.subscription, one.endpoint, outcome, "", one.why, one.expression)


def _chosen(form: FormData, name: str) -> frozenset[tuple[str, str]]:
    """The selected pairs of notification and subscription."""
    pairs = (each.partition(" ") for each in form.getlist(name) if isinstance(each, str))
    return frozenset((notification, subscription) for notification, _, subscription in pairs)


def _waiting_filter(asked: dict[str, str]) -> WaitingFilter:
    return WaitingFilter(asked["subscription"], asked["endpoint"], TopicTest(asked["topic"]), asked["notification"])


def _letters(asked: dict[str, str]) -> LetterFilter:
    return LetterFilter(
        subscription=asked["subscription"],
        endpoint=asked["endpoint"],
        notification=asked["notification"],
        topic=TopicTest(asked["topic"]),
        since=asked["since"],
        reason=asked["reason"],
    )


def _values(name: str, asked: dict[str, str]) -> dict[str, Any]:
    """Values common to the pages."""
    page = _skipped(asked) // _AT_ONCE

    def link(**changed: object) -> str:
        return _query({**asked, "page": "", **{key: str(value) for key, value in changed.items()}}) or "?"

    filters = {key: value for key, value in asked.items() if key not in ("page", "order")}
    return {
        "tab": name,
        "asked": asked,
        "filters": _query(filters),
        "live": _query(asked),
        "page": page,
        "last_page": _PAGES,
        "skipped": page * _AT_ONCE,
        "link": link,
    }


def _skipped(asked: dict[str, str]) -> int:
    """The number of rows on earlier pages."""
    page = asked.get("page", "")
    return min(int(page), _PAGES) * _AT_ONCE if page.isascii() and page.isdecimal() and len(page) < 5 else 0


def _query(asked: dict[str, str]) -> str:
    """As the end of an address; empty without a filter."""
    filters = urlencode({key: value for key, value in asked.items() if value})
    return f"?{filters}" if filters else ""


def _asked(request: Request, names: tuple[str, ...]) -> dict[str, str]:
    return {name: request.query_params.get(name, "").strip() for name in names}


SCREEN = Screen("deliveries", "Deliveries", "/deliveries", lambda console: DeliveriesScreen(console).routes())
