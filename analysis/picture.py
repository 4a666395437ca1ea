"""A chart with its numbers, or the text of an empty one."""

from __future__ import annotations

import base64
import functools
import io
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import pandas as pd

from arborcast.analysis.reader import NoSuchTable
from arborcast.core.errors import ArborcastError
from arborcast.core.printable import as_html, one_line
from arborcast.engine.monitoring.figures import shortened
from arborcast.engine.monitoring.ticks import Ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The palette of Okabe and Ito, for colour-blind readers.
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, BLACK = "#CC79A7", "#56B4E9", "#F0E442", "#333333"
GREY, PALE = "#8A8A8A", "#E4E4E4"

STATES = {
    "delivered": BLUE,
    "parked": ORANGE,
    "dead": VERMILION,
    "expired": PURPLE,
    "cancelled": GREY,
    "dropped": YELLOW,
}

CLASSES = (VERMILION, ORANGE, SKY, PURPLE, GREEN, BLUE, YELLOW)

_WIDTH = 9.0

# Pixels per inch, on a page and in the file.
_DPI, _FILE_DPI = 100, 180

_LABEL = 42

# The braces at the beginning of a step.
_NAMESPACE = re.compile(r"(?:^|(?<=/))\{[^{}]*\}")

_HOST = re.compile(r"[a-z][a-z0-9+.-]*://[^/]+")

# The text beside a chart.
ASIDE: dict[str, Any] = {"fontsize": 8, "color": "#666666"}

_STYLE: dict[Any, Any] = {
    # Names come from outside: a $ does not begin a formula.
    "text.parse_math": False,
    "font.size": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}

_Parameters = ParamSpec("_Parameters")


class NothingToShow(ArborcastError):
    """The chart has no rows; the message names the action."""


@dataclass(frozen=True, eq=False, repr=False)
class Picture:
    """`table` has the numbers of the chart. `figure` None: no chart; `text` is the reason."""

    title: str
    table: pd.DataFrame
    figure: Figure | None = None
    text: str = ""

    def __repr__(self) -> str:
        return f"{self.title}: {self.text}" if self.text else self.title

    def png(self) -> bytes:
        """The chart as PNG. Raises NothingToShow."""
        if self.figure is None:
            raise NothingToShow(self.text)
        stream = io.BytesIO()
        with styled():
            self.figure.savefig(stream, format="png", dpi=_FILE_DPI)
        return stream.getvalue()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as PNG. Raises NothingToShow."""
        Path(path).write_bytes(self.png())

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, Any]]:
        """Jupyter's representation."""
        if self.figure is None:
            return {"text/html": f"<p>{as_html(repr(self))}</p>", "text/plain": repr(self)}, {}
        width, height = (round(inches * _DPI) for inches in self.figure.get_size_inches())
        image = base64.b64encode(self.png()).decode("ascii")
        metadata = {"width": width, "height": height, "alt": self.title}
        return {"image/png": image, "text/plain": repr(self)}, {"image/png": metadata}


def text_if_empty(title: str) -> Callable[[Callable[_Parameters, Picture]], Callable[_Parameters, Picture]]:
    """Decorates a function that makes a chart: without rows, the result is a picture with the text of the error."""

    def around(make: Callable[_Parameters, Picture]) -> Callable[_Parameters, Picture]:
        @functools.wraps(make)
        def made(*args: _Parameters.args, **named: _Parameters.kwargs) -> Picture:
            try:
                return make(*args, **named)
            except (NothingToShow, NoSuchTable) as error:
                return Picture(title, pd.DataFrame(), text=str(error))

        return made

    return around


@contextmanager
def styled() -> Iterator[None]:
    """The style of charts while one is drawn; other charts of a notebook are not affected."""
    import matplotlib

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # Topics may be in every script, and no font has all of them.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        yield


@contextmanager
def canvas(title: str, height: float, *, panels: Sequence[float] = (1,)) -> Iterator[tuple[Figure, list[Axes]]]:
    """An empty figure, with panels of these widths side by side. Raises NothingToShow without matplotlib."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise NothingToShow("pictures need matplotlib: pip install 'arborcast[notebook]'") from error
    with styled():
        # Text at the edge would look cut off.
        layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
        figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, layout=layout)
        axes = figure.subplots(1, len(panels), squeeze=False, width_ratios=panels)
        found = list(axes[0])
        figure.suptitle(title, x=0.014, ha="left", fontsize=11, fontweight="bold")
        yield figure, found
        # Tick labels are created when they are first drawn; they need the style.
        figure.draw_without_rendering()


def label(text: str, width: int = _LABEL) -> str:
    """A name shortened for an axis."""
    return shortened(one_line(text), width)


def plain_topics(paths: Iterable[str]) -> dict[str, str]:
    """Topics without their namespaces, except where two would look the same."""
    short = {path: path if _HOST.match(path) else _NAMESPACE.sub("", path) for path in paths}
    counts = Counter(short.values())
    return {path: name if counts[name] == 1 else path for path, name in short.items()}


def at_one_host(addresses: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The common host of these addresses with their different parts; empty for several hosts."""
    hosts = {found[0] if (found := _HOST.match(each)) else "" for each in addresses}
    if len(addresses) < 2 or len(hosts) != 1 or hosts == {""}:
        return "", {}
    host = hosts.pop()
    return host, {each: each.removeprefix(host) or "/" for each in addresses}


def put_ticks(axes: Axes, ticks: Ticks, axis: str = "x") -> None:
    """Ticks, and the axis from the first to the last of them."""
    side = axes.xaxis if axis == "x" else axes.yaxis
    side.set_ticks([at for at, _ in ticks], [text for _, text in ticks], minor=False)
    side.set_ticks([], minor=True)
    side.grid(visible=True)


def put_rows(axes: Axes, labels: Sequence[str], *, quiet: Sequence[bool] = ()) -> None:
    """One row for each label, the first on top; grey ones are sums of groups without a row."""
    plain = plain_topics(dict.fromkeys(labels))
    host, paths = at_one_host([each for number, each in enumerate(labels) if not any(quiet[number : number + 1])])
    plain |= paths
    if host:
        axes.text(-0.01, 1.01, f"at {label(host)}", transform=axes.transAxes, ha="right", va="bottom", **ASIDE)
    axes.set_yticks(range(len(labels)), [label(plain[each]) for each in labels], fontsize=8)
    for text, is_quiet in zip(axes.get_yticklabels(), quiet, strict=False):
        if is_quiet:
            text.set_fontstyle("italic")
            text.set_color("#666666")
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(max(1, len(labels)) - 0.5, -0.5)
    axes.spines["left"].set_visible(False)


def put_columns(axes: Axes, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Numbers as columns of text at the right of the rows."""
    transform = axes.get_yaxis_transform()
    for column, head in enumerate(heads):
        x = 1.13 + 0.12 * column
        axes.text(x, 1.01, head, transform=axes.transAxes, ha="right", va="bottom", **ASIDE)
        for row, cells in enumerate(rows):
            axes.text(x, row, cells[column], transform=transform, ha="right", va="center", fontsize=8)


def put_legend(axes: Axes, colours: Sequence[tuple[str, str]]) -> None:
    if not colours:
        return
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=name) for name, colour in colours]
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=min(6, len(handles)))
