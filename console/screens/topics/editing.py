"""Forms of the screen *Topics*: edits are gathered, looked at, and saved together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.console.console import Console, FormHandler, go, operator, text_of
from arborcast.console.guard import principal_of
from arborcast.console.screens.topics import browsing, fields
from arborcast.console.screens.topics.draft import (
    Draft,
    Edit,
    EditOutcome,
    ImportEdit,
    MoveEdit,
    PutEdit,
    RemoveEdit,
    Subtree,
    as_if,
    mark_of,
)
from arborcast.console.screens.topics.tree_pages import TreePages
from arborcast.core.errors import InfrastructureError, TopicError
from arborcast.topic_model.records.control import ControlRecord, TopicRecord, TopicRemoved
from arborcast.topic_model.topics import TopicPath, parent_of, parse_path

# Topics that are named of one edit.
_NAMED = 50


class Editing:
    def __init__(self, console: Console, pages: TreePages) -> None:
        self._console = console
        self._pages = pages
        # Of two concurrent saves, the second sees the changes of the first.
        self._saving = asyncio.Lock()

    def routes(self) -> list[Route]:
        staging, reviewed = (self.put, self.move, self.remove), (self.drop, self.keep, self.discard, self.save)
        actions = [self._console.post(f"/topics/{each.__name__}", self._kept(each)) for each in staging]
        actions += [self._console.post(f"/topics/{each.__name__}", self._kept(self._seen(each))) for each in reviewed]
        return [*actions, self._console.get("/topics/review", self.review)]

    def _kept(self, handler: FormHandler) -> FormHandler:
        """The same, with the draft stored across restarts."""

        async def keeping(request: Request, form: FormData) -> Response:
            try:
                return await handler(request, form)
            finally:
                await self._pages.keep_draft(principal_of(request.scope))

        return keeping

    def _seen(self, handler: FormHandler) -> FormHandler:
        """The same, if the draft is still the one that the form's page shows; another window may have changed it."""

        async def seeing(request: Request, form: FormData) -> Response:
            if text_of(form, "mark") == mark_of(self._draft(request).edits):
                return await handler(request, form)
            note = "Nothing was done: the staged changes are not those of that page any more."
            return self._console.redirect(request, "/topics/review", note)

        return seeing

    async def put(self, request: Request, form: FormData) -> Response:
        values, errors = fields.given(form), dict[str, str]()
        at, below = text_of(form, "at"), text_of(form, "below")
        adding = not at
        try:
            path = fields.path_of(below, values) if adding else parse_path(at)
            base = None if adding else fields.base_of(text_of(form, "base"))
        except TopicError as error:
            return self._again(request, below or at, adding, values, {"name": str(error)})
        record = fields.record_of(values, base or TopicRecord(path), errors)
        if adding and self._is_there(request, path):
            errors["name"] = f"the topic {path} exists already"
        if not errors:
            refusal = self._gather(request, PutEdit(record, base))
            if refusal:
                errors[fields.field_of(refusal) or "name"] = refusal
        if errors:
            return self._again(request, below or at, adding, values, errors)
        return go(_url(path))

    async def move(self, request: Request, form: FormData) -> Response:
        """Put a node elsewhere, or give it another name."""
        path, name, target = TopicPath(text_of(form, "at")), text_of(form, "name"), text_of(form, "target")
        do = "rename" if name else "move"
        try:
            wanted = parse_path((browsing.same_level(path, name) if name else target).strip())
            if name and parent_of(wanted) != parent_of(path):
                raise TopicError(f"{name[:200]!r} is a path and not a name: to put it elsewhere, move it")
        except TopicError as error:
            return self._refused(request, path, do, str(error), {"name": name, "target": target})
        refusal = self._gather(request, MoveEdit(path, wanted, self._base(form, path)))
        if refusal:
            return self._refused(request, path, do, refusal, {"name": name, "target": target})
        return go(_url(wanted))

    async def remove(self, request: Request, form: FormData) -> Response:
        path = TopicPath(text_of(form, "at"))
        refusal = self._gather(request, RemoveEdit(path, self._base(form, path)))
        if refusal:
            return self._refused(request, path, "remove", refusal, {})
        above = parent_of(path)
        return go(_url(above) if above else "/topics")

    async def drop(self, request: Request, form: FormData) -> Response:
        self._draft(request).drop(_number(form))
        return go("/topics/review")

    async def keep(self, request: Request, form: FormData) -> Response:
        self._draft(request).keep(_number(form), self._console.control.table.topics)
        return go("/topics/review")

    async def discard(self, request: Request, _form: FormData) -> Response:
        self._draft(request).edits.clear()
        return go("/topics")

    async def review(self, request: Request) -> Response:
        """The records of the collected changes, for review."""
        draft = self._draft(request)
        with as_if(self._console.control.table.topics, draft.edits) as outcomes:
            pass
        return self._preview(request, outcomes)

    async def save(self, request: Request, _form: FormData) -> Response:
        draft = self._draft(request)
        async with self._saving:
            gathered = list(draft.edits)
            away = ""
            try:
                await self._console.changes.catch_up()
            except InfrastructureError as error:
                away = str(error)
            with as_if(self._console.control.table.topics, gathered) as outcomes:
                pass
            if away:
                return self._preview(request, outcomes, status=503, away=away)
            if any(each.conflict for each in outcomes):
                return self._preview(request, outcomes, status=409)
            if any(each.refusal for each in outcomes):
                return self._preview(request, outcomes, status=422)
            records = [record for each in outcomes for record in each.records]
            try:
                if records:
                    await self._console.changes.commit(operator(request), "topics save", records)
            except InfrastructureError as error:
                return self._preview(request, outcomes, status=503, away=str(error))
            # Changes added during the save stay.
            draft.edits = [each for each in draft.edits if not any(each is saved for saved in gathered)]
        counts = {
            "added": sum(each.added for each in outcomes),
            "changed": sum(each.changed for each in outcomes),
            "removed": sum(each.removed for each in outcomes),
        }
        summary = ", ".join(f"{count:,} {word}" for word, count in counts.items() if count) or "no changes"
        where = "" if self._console.settings.directory.kind == "none" else " Syncing to the directory."
        last = next((each.edit.path for each in reversed(outcomes) if isinstance(each.edit, PutEdit)), None)
        return self._console.redirect(request, _url(last) if last else "/topics", f"Saved: {summary}.{where}")

    def _draft(self, request: Request) -> Draft:
        return self._pages.draft(principal_of(request.scope))

    def _gather(self, request: Request, edit: Edit) -> str:
        """Stage an edit; returns the reason if the tree does not permit it with the others."""
        draft = self._draft(request)
        before = list(draft.edits)
        try:
            draft.gather(edit)
        except TopicError as error:
            return str(error)
        with as_if(self._console.control.table.topics, draft.edits, large=False) as outcomes:
            refusal = next((each.refusal for each in outcomes if each.refusal and _same(each.edit, edit)), "")
        if refusal:
            draft.edits = before
        return refusal

    def _is_there(self, request: Request, path: TopicPath) -> bool:
        tree = self._console.control.table.topics
        with as_if(tree, self._draft(request).edits, large=False):
            return path in tree

    def _base(self, form: FormData, path: TopicPath) -> Subtree:
        """The base of the form; without one (a dragged node), the current state."""
        topics, _, total = text_of(form, "subtree").partition(":")
        if topics.isdecimal() and total.isdecimal():
            return Subtree(int(topics[:12]), int(total[:24]))
        return Subtree.of(self._console.control.table.topics, path)

    def _again(
        self, request: Request, at: str, adding: bool, values: dict[str, str], errors: dict[str, str]
    ) -> Response:
        return self._pages.show(request, at, "add" if adding else "", status=422, values=values, errors=errors)

    def _refused(self, request: Request, at: str, do: str, why: str, values: dict[str, str]) -> Response:
        return self._pages.show(request, at, do, status=422, values=values, errors={"do": why})

    def _preview(
        self, request: Request, outcomes: Sequence[EditOutcome], *, status: int = 200, away: str = ""
    ) -> Response:
        return self._console.page(
            request,
            "topics/review.html",
            status=status,
            changes=[_change(each) for each in outcomes],
            draft=self._draft(request),
            mark=mark_of(each.edit for each in outcomes),
            away=away,
            conflicts=sum(each.conflict is not None for each in outcomes),
            refusals=sum(bool(each.refusal) for each in outcomes),
        )


def _change(outcome: EditOutcome) -> dict[str, Any]:
    """One edit for people."""
    edit, conflict = outcome.edit, outcome.conflict
    values: dict[str, Any] = {"refusal": outcome.refusal, "conflict": None, "differences": [], "named": [], "at": ""}
    if isinstance(edit, PutEdit):
        values |= {"kind": "change" if edit.base else "add", "path": edit.path, "at": edit.path}
        values["differences"] = fields.differences(edit.base, edit.record)
        if conflict:
            values["conflict"] = {
                "now": conflict.now is not None,
                "theirs": fields.differences(conflict.before, conflict.now),
                "rows": _both(conflict.before, conflict.now, edit.record),
            }
        return values
    if isinstance(edit, ImportEdit):
        values |= {"kind": "replace" if edit.replace else "import", "path": edit.name}
        values |= {"added": outcome.added, "changed": outcome.changed, "removed": outcome.removed}
    elif isinstance(edit, MoveEdit):
        values |= {"kind": "move", "path": edit.path, "target": edit.target, "at": edit.path}
    else:
        values |= {"kind": "remove", "path": edit.path, "at": edit.path}
    if conflict:
        values["conflict"] = {"before": conflict.topics_before, "topics": conflict.topics_now}
    values["named"] = [_said(record) for record in outcome.records[:_NAMED] if _said(record)]
    # A topic that moves is removed in one place and added in another.
    values["count"] = max(outcome.added + outcome.changed, outcome.removed)
    return values


def _both(before: TopicRecord | None, now: TopicRecord | None, mine: TopicRecord) -> list[tuple[str, str, str, str]]:
    """(change, base, current, own) of all conflicts."""
    old, their, own = fields.shown(before), fields.shown(now), fields.shown(mine)
    values = ((title, old.get(title, ""), their.get(title, ""), value) for title, value in own.items())
    return [each for each in values if not each[1] == each[2] == each[3]]


def _said(record: ControlRecord) -> str:
    if isinstance(record, TopicRecord):
        return f"+ {record.path}"
    return f"- {record.path}" if isinstance(record, TopicRemoved) else ""


def _same(one: Edit, other: Edit) -> bool:
    if isinstance(one, PutEdit) and isinstance(other, PutEdit):
        return one.record == other.record
    return one is other


def _number(form: FormData) -> int:
    text = text_of(form, "number")
    return int(text) if text.isdecimal() and len(text) < 6 else -1


def _url(path: str) -> str:
    return f"/topics?at={quote(path, safe='')}"
