"""The context of screens: settings, the state of the log, pages and forms."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from markupsafe import Markup
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from arborcast.admin import queues
from arborcast.admin.connection import kafka_of
from arborcast.console.downloads import Download
from arborcast.console.guard import Sessions, principal_of
from arborcast.console.health import EngineHealth
from arborcast.console.lists import Lists
from arborcast.console.live import LiveParts, PageParts, PartsReader, Replacement, changes, merged
from arborcast.console.pages import Templates
from arborcast.console.questions import Answer, Questions
from arborcast.core.errors import ArborcastError, InfrastructureError
from arborcast.core.recent import BoundedDict
from arborcast.core.wall_clock import time_ms
from arborcast.engine.monitoring.attention import Concern
from arborcast.engine.monitoring.figures import many
from arborcast.engine.settings.loading import Settings
from arborcast.ingest.state.changes import CommitsChanges
from arborcast.topic_model.control_log import OperationsLog
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.projections.registrations import Registrations
from arborcast.topic_model.records.control import ControlRecord, TopicRecord, TopicRemoved
from arborcast.topic_model.records.operations import (
    OperationBegun,
    OperationEnded,
    Operator,
    begun,
    control_changes,
    ended,
    failed,
)
from arborcast.topic_model.topics import TopicPath

Handler = Callable[[Request], Awaitable[Response]]

FormHandler = Callable[[Request, FormData], Awaitable[Response]]

THEMES = ("light", "dark")
"""In addition to the browser's preference."""

_FIELDS = 2_000

# Notes for the next page, of this number of visitors.
_NOTES = 1_000

# Records per append.
_AT_ONCE = 2_000

# The place in a page where it continues once a part is ready: values are escaped and cannot contain it.
_LATER = Markup("<!--later-->")

# Maximum age of the first contents of a page: other visitors may have requested them.
_FRESH_S = 1.0

# Interval of cheap updates.
_CHECK_S = 5.0

# As in the alert rule ArborcastErasureOpen.
_ERASED_AFTER_MS = 6 * 3_600_000

# How often the header of an open page is looked at again.
_HEADER_S = 2.0


@dataclass(frozen=True)
class Screen:
    """One screen: its name, its label in the navigation, its first page, its routes. One that does not need the log is
    available without it. `listed`: whether the navigation has it."""

    name: str
    title: str
    path: str
    routes: Callable[[Console], list[Route]]
    needs_log: bool = True
    listed: Callable[[Settings], bool] = lambda _: True


class Console:
    """`control` is the state of the control log, `changes` appends to it. `trouble` is the reason for outdated
    contents, empty without one. Until `ready`, another thread reads the log for the first time, and `control` must not
    be used. `state` is one of the projections of `control`. `record` stores operations of visitors, by default in
    Kafka."""

    def __init__(
        self,
        settings: Settings,
        control: ControlView,
        changes: CommitsChanges,
        sessions: Sessions,
        *,
        trouble: Callable[[], str],
        ready: Callable[[], bool],
        state: PageState,
        record: Callable[[OperationBegun | OperationEnded], None] | None = None,
    ) -> None:
        self.settings = settings
        self.control = control
        self.changes = VisitorChanges(changes, control, record or partial(_append_to_log, settings))
        self.sessions = sessions
        self.trouble = trouble
        self.ready = ready
        self.state = state
        self.questions = Questions(lambda: kafka_of(settings))
        self.health = EngineHealth(settings, self._concerns)
        self.live = LiveParts()
        self.templates = Templates()
        self.lists = Lists(settings.home / "console-views")
        self.screens: tuple[Screen, ...] = ()
        self.forgets: list[Callable[[str], object]] = []
        """Called with a session that its visitor ends."""
        self._notes: BoundedDict[str, str] = BoundedDict(_NOTES)

    def get(self, path: str, handler: Handler) -> Route:
        """A page. It changes nothing."""
        return Route(path, handler, methods=["GET"])

    def listing(self, path: str, handler: Handler, download: Download | None = None) -> Route:
        """A page with a filter: its address with `format` is the file of what the filter selects. Its filters can be
        saved as views."""
        self.lists.add(path, download)

        async def page_or_file(request: Request) -> Response:
            form = request.query_params.get("format")
            return await (download.response(request, form) if download and form else handler(request))

        return self.get(path, page_or_file)

    def post(self, path: str, handler: FormHandler, *, edits: bool = True) -> Route:
        """A form's action. The handler gets its fields once the form's token is verified; with `edits` (the usual
        case), for visitors with the right to change."""

        async def checked(request: Request) -> Response:
            principal = principal_of(request.scope)
            async with request.form(max_files=1, max_fields=_FIELDS) as form:
                if not self.sessions.fits(principal.session, text_of(form, "token")):
                    raise HTTPException(403, "Session changed. Go back, reload the page and submit again.")
                if edits and not principal.may_edit:
                    raise HTTPException(
                        403,
                        f"{principal.name} has read-only access: a rule of access.policy_file has to allow "
                        'do = ["manage"] for topics = ["//."].',
                    )
                return await handler(request, form)

        return Route(path, checked, methods=["POST"])

    def page(self, request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
        """A whole page, of a template that extends base.html."""
        return HTMLResponse(self._document(request, template, **values), status)

    def slow_page(
        self, request: Request, template: str, read_parts: PartsReader, *, status: int = 200, **values: Any
    ) -> Response:
        """A page with a slow part in place of `later`: the rest is shown meanwhile, with and without script.
        `read_parts` returns the part as "shown"."""
        before, _, after = self._document(request, template, later=_LATER, **values).partition(_LATER)

        async def pieces() -> AsyncIterator[str]:
            yield before
            try:
                yield (await read_parts(request, _FRESH_S)).parts["shown"]
            except ArborcastError as error:
                # It is too late for another status.
                yield self.refusal(request, str(error)).parts["shown"]
            yield after

        return StreamingResponse(pieces(), status, media_type="text/html")

    def live_page(
        self, path: str, read_parts: PartsReader, check: Callable[[Request], object] = lambda _request: None
    ) -> Route:
        """The stream that keeps such a page, and its header, as things are. `check` raises HTTPException before it
        begins."""

        async def live(request: Request) -> Response:
            check(request)

            async def everything(age_s: float) -> PageParts:
                page = await read_parts(request, age_s)
                # The former contents stay, with the reason.
                parts = {"wrong": page.parts["shown"]} if page.failed else {"wrong": "", **page.parts}
                return PageParts(parts, page.rest_s)

            return self.live.response(merged(self.header(request), changes(everything, _CHECK_S)))

        return self.get(path, live)

    def header(self, request: Request) -> AsyncGenerator[Replacement]:
        """The parts that each page has: a banner while Kafka is away, and the health of the engine."""

        async def read_parts(_age_s: float) -> PageParts:
            health = await self.health.assessment()
            shown = self.render(request, "health.html", health=health)
            return PageParts({"trouble": self.trouble_part(request), "health": shown})

        return changes(read_parts, _HEADER_S)

    def main_part(self, request: Request, answered: Answer[Any], template: str, **values: Any) -> PageParts:
        """An answer, or the reason why there is none, as the main part of such a page."""
        if answered.wrong:
            return self.refusal(request, answered.wrong, answered.rest_s)
        at = datetime.fromtimestamp(answered.at).astimezone().strftime("%H:%M:%S")
        return PageParts({"shown": self.render(request, template, **values), "seen": f"Updated {at}"}, answered.rest_s)

    def refusal(self, request: Request, wrong: str, rest_s: float = 0.0) -> PageParts:
        """A reason in place of the main part of a page."""
        return PageParts({"shown": self.render(request, "refusal.html", wrong=wrong)}, rest_s, failed=True)

    def _document(self, request: Request, template: str, **values: Any) -> str:
        theme = request.cookies.get("theme", "")
        return self.render(
            request,
            template,
            theme=theme if theme in THEMES else "",
            screens=[each for each in self.screens if each.listed(self.settings)],
            here=request.url.path,
            back=_again(request),
            trouble=self.trouble(),
            health=self.health.known(),
            engine_name=self.settings.federation.name,
            note=self.take_note(request),
            tools=self.lists.tools(request),
            **values,
        )

    def fragment(self, request: Request, template: str, **values: Any) -> Response:
        """A part of a page, for our own module."""
        return HTMLResponse(self.render(request, template, **values))

    def render(self, request: Request, template: str, **values: Any) -> str:
        principal = principal_of(request.scope)
        return self.templates.render(template, {"principal": principal, "token": principal.token, **values})

    def trouble_part(self, request: Request) -> str:
        """The banner of a page that is open."""
        return self.render(request, "trouble.html", trouble=self.trouble())

    def _concerns(self) -> Iterator[Concern]:
        if self.trouble():
            yield Concern("bad", "kafka", "Kafka does not respond")
        if not self.ready():
            return
        idle = [each.queue for each in queues.queues(self.control, None) if not each.served]
        if idle:
            more = f" and {len(idle) - 1} more" if len(idle) > 1 else ""
            yield Concern("warn", "queues", f"The work queue {idle[0]}{more} has no active worker")
        late = sum(time_ms() - each.at_ms > _ERASED_AFTER_MS for each in self.control.erasures.open)
        if late:
            yield Concern("warn", "erasures", f"{many(late, 'erasure')} not done after six hours")

    def note(self, request: Request, text: str) -> None:
        """A note for the visitor's next page."""
        self._notes[principal_of(request.scope).session] = text

    def redirect(self, request: Request, url: str, note: str) -> Response:
        """On to another page, which has this note."""
        self.note(request, note)
        return go(url)

    def take_note(self, request: Request) -> str:
        """The note for this page, empty for none; later pages do not have it."""
        return self._notes.pop(principal_of(request.scope).session, "")


def _again(request: Request) -> str:
    """The address of the same page; after a form, of its screen."""
    if request.method != "GET":
        return "/" + request.url.path.split("/")[1]
    return request.url.path + ("?" + request.url.query if request.url.query else "")


class PageState:
    """Projections of the control log for pages: the number of records about topics, and registered publishers."""

    def __init__(self) -> None:
        self.topic_changes = 0
        self.registrations = Registrations()

    def apply(self, record: ControlRecord) -> None:
        """Fold one record; those of other kinds change nothing."""
        self.topic_changes += isinstance(record, TopicRecord | TopicRemoved)
        self.registrations.apply(record)


class VisitorChanges:
    """Changes of the control log by visitors: each is recorded before, and with its result afterwards. `record` may
    take long, and is called in a thread."""

    def __init__(
        self, log: CommitsChanges, control: ControlView, record: Callable[[OperationBegun | OperationEnded], None]
    ) -> None:
        self._log = log
        self._table = control.table
        self._record = record

    async def catch_up(self) -> None:
        """Return when the state of the log is current. Raises InfrastructureError."""
        await self._log.catch_up()

    async def commit(self, by: Operator, what: str, records: Sequence[ControlRecord]) -> None:
        """Append the records of an operation. Raises InfrastructureError."""
        table = self._table
        made, more = control_changes(records, lambda name: table.topics.get(TopicPath(name)) or table.get(name))
        operation = begun(by, what, made, more)
        await asyncio.to_thread(self._record, operation)
        try:
            for start in range(0, len(records), _AT_ONCE):
                await self._log.commit(records[start : start + _AT_ONCE])
        except BaseException as error:
            with suppress(InfrastructureError):
                await asyncio.to_thread(self._record, failed(operation, error))
            raise
        with suppress(InfrastructureError):
            await asyncio.to_thread(self._record, ended(operation, "done"))


def _append_to_log(settings: Settings, record: OperationBegun | OperationEnded) -> None:
    with closing(OperationsLog(kafka_of(settings))) as log:
        log.append(record)


def operator(request: Request) -> Operator:
    """The visitor of a page, as it is recorded."""
    principal, client = principal_of(request.scope), request.client
    return Operator("console", principal.name or f"without a name, from {client.host if client else 'this machine'}")


def text_of(form: FormData, name: str) -> str:
    """A field of a form as text with \\n at line ends, where browsers send \\r\\n; empty where it is not there, or a
    file."""
    value = form.get(name)
    return value.replace("\r\n", "\n").replace("\r", "\n") if isinstance(value, str) else ""


def go(url: str) -> Response:
    """On to another page, after a form was dealt with."""
    return RedirectResponse(url, 303)


def own_path(url: str) -> str:
    """The address, if it is one of the console's pages; else the first page. Requests must not redirect elsewhere."""
    return url if url.startswith("/") and not url.startswith(("//", "/\\")) and url.isprintable() else "/"
