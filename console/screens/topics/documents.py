"""Whole trees brought in from documents, and written out: what `arborcast topics import` and `export` do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arborcast.admin.topic_documents import Format, format_of, read_document, write_document
from arborcast.console.console import Console, go, text_of
from arborcast.console.guard import principal_of
from arborcast.console.screens.topics.draft import ImportEdit, Subtree
from arborcast.console.screens.topics.tree_pages import TreePages
from arborcast.core.errors import ArborcastError

_TYPES: Final[dict[Format, tuple[str, str]]] = {
    "ldif": ("topics.ldif", "text/plain; charset=utf-8"),
    "topicset": ("topics.xml", "application/xml"),
    "json": ("topics.json", "application/json"),
}

EXPORTED = tuple(kind for _, kind in _TYPES.values())
"""The media types of exported documents."""

# Maximum number of skipped entries in a message.
_NAMED = 5


class Documents:
    def __init__(self, console: Console, pages: TreePages) -> None:
        self._console = console
        self._pages = pages
        self._base_dn = console.settings.directory.base_dn

    def routes(self) -> list[Route]:
        return [
            self._console.get("/topics/export", self.export),
            self._console.post("/topics/import", self.import_document),
        ]

    async def export(self, request: Request) -> Response:
        form = next((each for each in _TYPES if each == request.query_params.get("form")), None)
        if form is None:
            raise HTTPException(404, "There are documents as ldif, topicset and json.")
        records = list(self._console.control.table.topics.records())
        # As LDIF a million topics take a minute and 2 GB: few documents are made at a time.
        data = await self._console.questions.ask(write_document, records, form, self._base_dn)
        name, kind = _TYPES[form]
        return Response(data, headers={"content-type": kind, "content-disposition": f'attachment; filename="{name}"'})

    async def import_document(self, request: Request, form: FormData) -> Response:
        """Collect the topics of a document, for review before they are saved."""
        principal = principal_of(request.scope)
        file = form.get("file")
        if not isinstance(file, UploadFile) or not file.filename:
            return self._refused(request, "choose a file first: LDIF, TopicSet, TopicNamespace or JSON")
        data = await file.read()
        name = file.filename[:200]
        base = text_of(form, "base_dn").strip() or self._base_dn
        try:
            kind = format_of(Path(name), None, data)
            topics, skipped = await asyncio.to_thread(read_document, data, kind, base)
        except ArborcastError as error:
            return self._refused(request, str(error))
        if not topics:
            return self._refused(request, f"there is no topic in {name}")
        replace = bool(text_of(form, "replace"))
        replaced = Subtree.of(self._console.control.table.topics, ImportEdit.path) if replace else None
        self._pages.draft(principal).gather(ImportEdit(name, topics, replace, replaced))
        await self._pages.keep_draft(principal)
        if skipped:
            more = f"; and {len(skipped) - _NAMED:,} more" if len(skipped) > _NAMED else ""
            self._console.note(request, f"Skipped: {'; '.join(skipped[:_NAMED])}{more}")
        return go("/topics/review")

    def _refused(self, request: Request, why: str) -> Response:
        return self._pages.show(request, "", status=422, errors={"file": why})
