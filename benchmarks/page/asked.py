"""Looking up figures in results, and comparing them with what was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.page.results import Cell, Result

Find = Callable[[Result], float | None]


@dataclass(frozen=True)
class Target:
    """`most` for what should be small, `least` for what should be large; a figure without either is only reported."""

    area: str
    asked: str
    part: str
    unit: str
    find: Find
    least: float | None = None
    most: float | None = None

    def met(self, seen: float) -> bool | None:
        if self.least is not None:
            return seen >= self.least
        if self.most is not None:
            return seen <= self.most
        return None


@dataclass(frozen=True)
class Answer:
    """A target and what was seen; `seen` is None where nothing was measured yet."""

    target: Target
    seen: float | None
    met: bool | None
    quick: bool


def cell(title: str, column: str, **wanted: Cell) -> Find:
    """The figure in the first row of the table with these cells."""
    return lambda result: result.find(title, column, **wanted)


def best(title: str, column: str) -> Find:
    """The largest figure of a column."""
    return lambda result: max(column_of(result, title, column), default=None)


def worst(title: str, column: str) -> Find:
    """The largest of a column where small is good."""
    return best(title, column)


def total(title: str, *columns: str) -> Find:
    """The sum of these columns; None when the table is not there."""

    def find(result: Result) -> float | None:
        values = [value for column in columns for value in column_of(result, title, column)]
        return sum(values) if values else None

    return find


def ratio(title: str, column: str, above: tuple[str, str], below: tuple[str, str]) -> Find:
    """One row's figure divided by another's; rows are named by a column and how its text begins."""

    def find(result: Result) -> float | None:
        pair = [
            next((row.get(column) for row in result.rows(title) if str(row.get(key, "")).startswith(text)), None)
            for key, text in (above, below)
        ]
        upper, lower = pair
        if not isinstance(upper, int | float) or not isinstance(lower, int | float) or not lower:
            return None
        return upper / lower

    return find


def column_of(result: Result, title: str, column: str) -> list[float]:
    """The numbers in a column of the first table whose title begins so."""
    return [float(value) for row in result.rows(title) if isinstance(value := row.get(column), int | float)]
