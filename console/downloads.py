"""Lists as files, CSV or JSON: read and sent in parts, so that memory does not grow with the list."""

from __future__ import annotations

import asyncio
import csv
import io
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from arborcast.admin.documents import document
from arborcast.core.printable import as_json, printable
from arborcast.core.security.uris import without_password

P = TypeVar("P")
R = TypeVar("R", bound=msgspec.Struct)

AT_ONCE = 500
"""Rows of a part: some hundred kilobytes, and some ten milliseconds of the event loop."""

Parts = AsyncGenerator[Sequence[msgspec.Struct]]

MEDIA_TYPES = {"csv": "text/csv; charset=utf-8", "json": "application/json"}
"""By the name of the format."""

# Without it Excel reads a file in the code page of its machine.
_MARK = "\ufeff"

# Where a spreadsheet would begin a formula: at the beginning of a cell, also of one that a program with other
# separators sees. Also with the wide forms of the signs.
_FORMULA = re.compile(r"^(?=[\t\n])|(?:^|(?<=[;\t\n]))(?= *[=+\-@\uff0b\uff0d\uff1d\uff20])")


class Download(NamedTuple):
    """The file of a list: the beginning of its name, the type of its rows, and the rows that a request selects. Without
    the parameter `needs` the page has no list."""

    name: str
    row: type[msgspec.Struct]
    parts: Callable[[Request], Parts]
    needs: str = ""

    async def response(self, request: Request, form: str) -> Response:
        """The file. Raises the errors of the first part; a later one breaks the transfer, so that a browser does not
        take the file for a whole one."""
        if form not in MEDIA_TYPES:
            raise HTTPException(404, f"There are files as {' and '.join(MEDIA_TYPES)}.")
        parts = self.parts(request)
        first: Sequence[msgspec.Struct] = await anext(parts, [])  # a tuple fails in Python 3.11
        name = f"arborcast-{self.name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.{form}"
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        written = (_csv if form == "csv" else _json)(self.row, _joined(first, parts))
        return StreamingResponse(written, media_type=MEDIA_TYPES[form], headers=headers)


async def in_parts(rows: Awaitable[Iterable[R]]) -> AsyncGenerator[Sequence[R]]:
    """Rows that come from memory as parts."""
    remaining = iter(await rows)
    while part := tuple(islice(remaining, AT_ONCE)):
        yield part


async def followed(read: Callable[[P | None], Awaitable[tuple[Sequence[R], P | None]]]) -> AsyncGenerator[Sequence[R]]:
    """The parts of a list that is read behind a place: the first behind None, until there is no further place."""
    place: P | None = None
    while True:
        rows, place = await read(place)
        yield rows
        if place is None:
            return


async def _joined(first: Sequence[msgspec.Struct], others: Parts) -> AsyncIterator[list[dict[str, Any]]]:
    async with aclosing(others):
        yield [_facts(each) for each in first]
        async for part in others:
            yield [_facts(each) for each in part]
            await asyncio.sleep(0)  # other pages are served


def _facts(row: msgspec.Struct) -> dict[str, Any]:
    """As on the page, without passwords in addresses."""
    facts: dict[str, Any] = document(row)
    return {name: without_password(value) if isinstance(value, str) else value for name, value in facts.items()}


async def _csv(row: type[msgspec.Struct], parts: AsyncIterator[list[dict[str, Any]]]) -> AsyncIterator[str]:
    yield _MARK + _lines([[name.removesuffix("_ms") for name in row.__struct_fields__]])
    async for part in parts:
        yield _lines([_cell(each) for each in facts.values()] for facts in part)


def _lines(rows: Iterable[Sequence[object]]) -> str:
    written = io.StringIO()
    csv.writer(written).writerows(rows)
    return written.getvalue()


def _cell(value: object) -> object:
    return _FORMULA.sub("'", printable(value)) if isinstance(value, str) else value


async def _json(_row: type[msgspec.Struct], parts: AsyncIterator[list[dict[str, Any]]]) -> AsyncIterator[str]:
    separator = "[\n"
    async for part in parts:
        if part:
            yield separator + ",\n".join(as_json(each, ensure_ascii=False) for each in part)
            separator = ",\n"
    yield "\n]\n" if separator != "[\n" else "[]\n"
