"""Rows for a page: a pandas frame with a readable table, and a text if it is empty."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pandas as pd

from arborcast.core.printable import as_html
from arborcast.engine.monitoring.figures import shortened

# Maximum number of rows on a page; all are in the frame.
_MOST = 25

_WIDEST = 160


class Rows(pd.DataFrame):  # type: ignore[misc]  # pandas has no types
    """A frame; derived frames are plain ones. `nothing` is the text without rows."""

    _metadata = ["nothing"]  # noqa: RUF012  # the name and type are those of pandas
    nothing = ""

    @classmethod
    def of(cls, frame: pd.DataFrame, nothing: str) -> Rows:
        """The frame, with its text for no rows."""
        rows = cls(frame)
        rows.nothing = nothing
        return rows

    @property
    def _constructor(self) -> Callable[..., pd.DataFrame]:
        return lambda *given, **named: pd.DataFrame(*given, **named)

    def _repr_html_(self) -> str:
        if self.empty:
            return f"<p>{as_html(self.nothing)}</p>"
        shown = self.head(_MOST)
        # An index of plain numbers is not shown.
        frame = shown if isinstance(self.index, pd.RangeIndex) else shown.reset_index()
        left = [not pd.api.types.is_numeric_dtype(frame[column]) for column in frame]
        heads = "".join(_cell("th", name, at_left) for name, at_left in zip(frame.columns, left, strict=True))
        body = "".join(
            "<tr>" + "".join(_cell("td", value, at_left) for value, at_left in zip(row, left, strict=True)) + "</tr>"
            for row in frame.itertuples(index=False)
        )
        more = f"<p>and {len(self) - _MOST:,} more</p>" if len(self) > _MOST else ""
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(tag: str, value: Any, at_left: bool) -> str:
    side = "left" if at_left else "right"
    return f'<{tag} style="text-align: {side}; vertical-align: top">{as_html(written(value))}</{tag}>'


def written(value: Any) -> str:
    """A value for people; times are UTC."""
    if value is None or value is pd.NaT or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}.{value.microsecond // 1000:03d}"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return shortened(str(value), _WIDEST)
