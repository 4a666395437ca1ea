"""The topic tree, folded: the busiest branches of thousands of topics, on a readable number of rows."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from arborcast.analysis.picture import BLUE, GREY, NothingToShow, Picture, canvas, label, plain_topics, put_ticks
from arborcast.engine.monitoring.ticks import linear
from arborcast.topic_model.topics import TopicPath, ancestors, last_step, parent_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Rows of a page.
_ROWS = 32

# A large family must not displace all others.
_FAMILY = 12

# In characters: the width of the page, and the bounds of a column.
_CHARACTERS, _NARROWEST, _WIDEST = 92, 8, 30

# More columns than these are too narrow for names.
_LEVELS = 6


@dataclass
class Branch:
    """A path with its subtree; `topics`, `notifications` and `subscriptions` are totals of the subtree."""

    path: TopicPath
    label: str
    topics: int = 0
    notifications: int = 0
    subscriptions: set[str] = field(default_factory=set)
    is_topic: bool = False
    below: list[Branch] = field(default_factory=list)

    @property
    def weight(self) -> tuple[int, int, str]:
        """The sort key: the busiest first."""
        return -self.notifications, -self.topics, self.path


@dataclass(frozen=True)
class Cell:
    """A branch on the page: its column, its first row and its number of rows. `hidden`: the number of branches that
    this cell sums up, with their sums in `branch`. `is_leaf`: no part of its subtree is shown."""

    branch: Branch
    column: int
    row: int
    rows: int
    is_leaf: bool
    hidden: int = 0

    @property
    def text(self) -> str:
        """Its name, and its number of topics if it has several."""
        many = self.branch.topics > max(1, self.hidden)
        if self.hidden:
            return f"… {self.hidden:,} more" + (f", {self.branch.topics:,} topics" if many else "")
        return self.branch.label + (f"  ({self.branch.topics:,})" if many else "")


def branches(
    notifications: Mapping[TopicPath, int], subscriptions_of: Mapping[TopicPath, Iterable[str]], root: str = ""
) -> list[Branch]:
    """The trees of these topics (the keys of `subscriptions_of`), or of those at and below `root`. A path above a topic
    need not be a topic; one with a single branch is merged with it."""
    every: dict[TopicPath, Branch] = {}
    top: list[Branch] = []
    for topic in sorted(subscriptions_of):
        if root and topic != root and not topic.startswith(f"{root}/"):
            continue
        line = [topic, *(path for path in ancestors(topic) if not root or path == root or path.startswith(f"{root}/"))]
        for path in reversed(line):
            if path not in every:
                every[path] = Branch(path, path if path == root else last_step(path))
                above = parent_of(path)
                (every[above].below if above in every else top).append(every[path])
            every[path].topics += 1
            every[path].notifications += notifications.get(topic, 0)
            every[path].subscriptions.update(subscriptions_of[topic])
        every[topic].is_topic = True
    return _named([_shortened(branch) for branch in top])


def _shortened(branch: Branch) -> Branch:
    while not branch.is_topic and len(branch.below) == 1:
        only = branch.below[0]
        only.label = f"{branch.label}/{only.label}"
        branch = only
    branch.below = [_shortened(each) for each in branch.below]
    return branch


def _named(family: list[Branch]) -> list[Branch]:
    """Without namespaces, if siblings differ without them."""
    plain = plain_topics(branch.label for branch in family)
    for branch in family:
        branch.label = plain[branch.label]
        _named(branch.below)
    return family


def fold(top: Sequence[Branch], rows: int = _ROWS) -> list[Cell]:
    """Cells on up to `rows` rows: the busiest branches first, then the largest; each branch that is shown in part has a
    last row for the others."""
    shown = _chosen(top, rows)
    cells: list[Cell] = []

    def place(family: Sequence[Branch], column: int, row: int) -> int:
        """Returns the number of rows of the family."""
        first = row
        visible = sorted((each for each in family if each.path in shown), key=lambda each: each.weight)
        for branch in visible:
            taken = place(branch.below, column + 1, row) if any(each.path in shown for each in branch.below) else 0
            cells.append(Cell(branch, column, row, max(1, taken), is_leaf=not taken))
            row += max(1, taken)
        rest = [each for each in family if each.path not in shown]
        if rest:
            summed = Branch(
                TopicPath(""),
                "",
                sum(each.topics for each in rest),
                sum(each.notifications for each in rest),
                {name for each in rest for name in each.subscriptions},
            )
            cells.append(Cell(summed, column, row, 1, is_leaf=True, hidden=len(rest)))
            row += 1
        return row - first

    place(top, 0, 0)
    return sorted(cells, key=lambda cell: (cell.row, cell.column))


def _chosen(top: Sequence[Branch], rows: int) -> set[str]:
    """The paths of the branches with a row."""
    shown: set[str] = set()
    # The families on the page: the number of shown branches of each, and the number of all.
    counts: dict[str, int] = {}
    later: list[tuple[tuple[int, int, str], str, int, Branch, int]] = []
    waiting = [(branch.weight, "", len(top), branch, 0) for branch in top]
    heapq.heapify(waiting)
    used, is_second = 0, False
    while waiting or later:
        if not waiting:
            waiting, later, is_second = later, [], True
            heapq.heapify(waiting)
        entry = heapq.heappop(waiting)
        _, family, size, branch, column = entry
        count = counts.get(family, 0)
        if count >= _FAMILY and not is_second:
            later.append(entry)
            continue
        # The first one uses the row of its parent; the last one uses that of the others.
        more = (1 if count or not family else 0) + (size > 1 and count == 0) - (0 < count == size - 1)
        if used + more > rows:
            continue
        used += more
        counts[family] = count + 1
        shown.add(branch.path)
        if column + 1 < _LEVELS:
            for each in branch.below:
                heapq.heappush(waiting, (each.weight, branch.path, len(branch.below), each, column + 1))
    return shown


def tree(
    notifications: Mapping[TopicPath, int],
    subscriptions_of: Mapping[TopicPath, Iterable[str]],
    root: str = "",
    rows: int = _ROWS,
) -> Picture:
    """The icicle: branches from left to right, darker with more notifications; beside it the numbers of each row.
    Raises NothingToShow."""
    if not subscriptions_of:
        raise NothingToShow(
            "there are no topics yet: publish something (arborcast publish, or arborcast up --demo), or load a tree "
            "with arborcast topics import"
        )
    top = branches(notifications, subscriptions_of, root)
    if not top:
        roots = sorted({path.split("/")[0] for path in subscriptions_of})
        raise NothingToShow(f"there is no topic at or below {root}; the first roots are {', '.join(roots[:8])}")
    cells = fold(top, rows)
    height = max(cell.row + cell.rows for cell in cells)
    total = sum(branch.topics for branch in top)
    title = f"{total:,} topics" + (f" below {label(root)}" if root else "") + ", the busiest branches first"
    with canvas(title, 1.1 + 0.235 * height, panels=(6, 1.6, 1.0)) as (figure, (left, busy, wide)):
        busiest = max(1, *(branch.notifications for branch in top))
        edges = edges_of(cells)
        for cell in cells:
            _draw(left, cell, edges, busiest)
        left.set(xlim=(0, edges[-1]), ylim=(height, 0))
        left.axis("off")
        leaves = [cell for cell in cells if cell.is_leaf]
        _bars(busy, leaves, [cell.branch.notifications for cell in leaves], height, "notifications")
        _bars(wide, leaves, [len(cell.branch.subscriptions) for cell in leaves], height, "subscriptions")
    return Picture(title, _table(cells), figure)


def edges_of(cells: Sequence[Cell]) -> list[float]:
    """The edges of the columns, in characters: each is as wide as its names need."""
    needs = [_NARROWEST] * (1 + max(cell.column for cell in cells))
    for cell in cells:
        needs[cell.column] = max(needs[cell.column], min(_WIDEST, len(cell.text) + 2))
    # Wide names are shortened before the page grows; the remaining width is for the last column.
    shrink = min(1.0, _CHARACTERS / sum(needs))
    edges = [shrink * sum(needs[:number]) for number in range(len(needs))]
    return [*edges, float(_CHARACTERS)]


def _draw(axes: Axes, cell: Cell, edges: Sequence[float], busiest: int) -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    begin, end = edges[cell.column], edges[-1] if cell.is_leaf else edges[cell.column + 1]
    share = (cell.branch.notifications / busiest) ** 0.5 if busiest else 0.0
    pale, dark = (0.94, 0.95, 0.97), to_rgb(BLUE)
    colour = tuple(one + (other - one) * share * 0.9 for one, other in zip(pale, dark, strict=True))
    if cell.hidden:
        colour = (1.0, 1.0, 1.0)
    box = Rectangle(
        (begin, cell.row), end - begin, cell.rows, facecolor=colour, edgecolor="white" if not cell.hidden else "#DDDDDD"
    )
    axes.add_patch(box)
    axes.text(
        begin + 0.8,
        cell.row + cell.rows / 2,
        label(cell.text, max(4, int(end - begin) - 1)),
        va="center",
        fontsize=7.5,
        color="#666666" if cell.hidden else "white" if share > 0.55 else "black",
        style="italic" if cell.hidden else "normal",
        clip_on=True,
    )


def _bars(axes: Axes, leaves: Sequence[Cell], values: Sequence[int], height: int, title: str) -> None:
    counted = [value for value, cell in zip(values, leaves, strict=True) if not cell.hidden]
    most = max([1, *counted])
    for cell, value in zip(leaves, values, strict=True):
        if cell.hidden:
            # The bar of a sum would make all others look small.
            text = f"{value:,}" if value else ""
        else:
            axes.barh(cell.row + 0.5, value, height=0.7, color=BLUE if value else GREY, linewidth=0)
            text = f"{value:,}"
        axes.text(
            most * 0.02 + (0 if cell.hidden else value),
            cell.row + 0.5,
            text,
            va="center",
            fontsize=7,
            color="#666666",
            style="italic" if cell.hidden else "normal",
        )
    axes.set(ylim=(height, 0), yticks=[])
    axes.set_title(title, fontsize=8, fontweight="normal", loc="left")
    put_ticks(axes, linear(most, "count", 2))
    axes.set_xlim(0, most * 1.3)
    axes.spines["left"].set_visible(False)


def _table(cells: Sequence[Cell]) -> pd.DataFrame:
    rows = [
        (
            str(cell.branch.path) or f"… {cell.hidden} more",
            cell.column + 1,
            cell.branch.topics,
            cell.branch.notifications,
            len(cell.branch.subscriptions),
        )
        for cell in cells
    ]
    return pd.DataFrame(rows, columns=["topic", "level", "topics", "notifications", "subscriptions"])
