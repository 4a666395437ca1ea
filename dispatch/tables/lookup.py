"""A few rows of a table, by the value of one column, as plain Python values.

For questions that somebody waits for at a terminal: delta-rs answers them itself, and neither pyarrow nor pandas has to
be loaded, which takes several times as long as the question.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from dispatch.logs.attempts import Attempt
from dispatch.tables import ATTEMPTS

Row = dict[str, Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_QUERY = 'SELECT * FROM wanted WHERE "{column}" IN ({texts})'


def rows_with(table: DeltaTable, column: str, values: Sequence[str]) -> list[Row]:
    """The rows that have one of these texts there. Files that can have no such row are not opened. Raises DeltaError
    when one cannot be read."""
    if not values:
        return []
    query = _QUERY.format(column=column, texts=", ".join(map(quoted, values)))
    try:
        found = QueryBuilder().register("wanted", table).execute(query).read_all()
    except Exception as error:
        # Reading has no exceptions of its own: whatever is wrong with a file is an Exception and nothing more.
        raise DeltaError("a file of it is damaged, or was removed meanwhile") from error
    columns = [found.column(name).to_pylist() for name in found.column_names]
    return [dict(zip(found.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def quoted(text: str) -> str:
    """The text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def newest(table: DeltaTable, column: str) -> datetime | None:
    """The latest time of a column, from its files' statistics; None when there are none."""
    files = table.get_add_actions(flatten=True)
    name = f"max.{column}"
    if name not in files.column_names:
        return None
    times: list[datetime] = [each for each in files.column(name).to_pylist() if each is not None]
    return max(times, default=None)


def attempt_rows(attempts: Iterable[Attempt]) -> Iterator[Row]:
    """Rows as the table of attempts would have them."""
    for each in attempts:
        yield {column.name: getattr(each, column.name, None) for column in ATTEMPTS.columns} | {
            "day": _at(each.started_ms).date(),
            "accepted_at": _at(each.accepted_ms),
            "started_at": _at(each.started_ms),
            "next_at": _at(each.next_ms) if each.next_ms else None,
        }


def _at(ms: int) -> datetime:
    # As a float it would be off by a microsecond here and there, and rows of the table and of the log are compared.
    return _EPOCH + timedelta(milliseconds=ms)
