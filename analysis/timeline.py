"""The history of a notification per subscription, as lanes of time."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import pandas as pd

from arborcast.analysis.picture import (
    ASIDE,
    BLACK,
    GREY,
    PALE,
    STATES,
    Picture,
    canvas,
    label,
    plain_topics,
    put_rows,
    put_ticks,
)
from arborcast.analysis.rows import Rows
from arborcast.core.printable import one_line
from arborcast.dispatch.operations.trace.evidence import DeliveryExplanation, Explanation, Row
from arborcast.engine.monitoring import ticks
from arborcast.engine.monitoring.figures import WORDS, seconds, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Maximum number of lanes; the others share one.
_MOST_LANES = 24

# Waits grow with each attempt: beyond this ratio the axis is logarithmic.
_LOGARITHMIC_FROM = 40

_MANY_DECADES = 5

# Maximum length of a line.
_LABEL_CHARACTERS = 38

# Length of a line below the lanes.
_NOTE = 85

_MARKS = {"delivered": "o", "parked": "X", "dead": "s", "expired": "D", "cancelled": "D", "dropped": "v"}

_RANK = {"delivered": 1, "skipped": 2, "no match": 3}


@dataclass(frozen=True)
class Mark:
    """An attempt, or a decision without a push (`number` 0), at a time after acceptance."""

    from_ms: float
    to_ms: float
    state: str
    number: int
    pushed: bool


@dataclass(frozen=True)
class TimelineLane:
    """One subscription, or the sum of several. `open_until_ms`: it still waits, known until this time."""

    name: str
    endpoint: str
    outcome: str
    label: str
    marks: Sequence[Mark]
    open_until_ms: float | None = None
    several: int = 1

    @property
    def end_ms(self) -> float:
        return max((mark.to_ms for mark in self.marks), default=0.0)

    @property
    def waits(self) -> Sequence[tuple[float, float, bool]]:
        """The waiting times, and whether each was before a retry or before its turn."""
        if self.several > 1:
            return ()
        spans = [(0.0, self.marks[0].from_ms, False)] if self.marks else []
        spans += [(earlier.to_ms, later.from_ms, True) for earlier, later in pairwise(self.marks)]
        if self.open_until_ms is not None:
            spans.append((self.end_ms, self.open_until_ms, bool(self.marks)))
        return [span for span in spans if span[1] > span[0]]


def lanes(
    accepted_at: datetime,
    deliveries: Iterable[DeliveryExplanation],
    attempts: Iterable[Row],
    due: Mapping[str, datetime | None],
) -> list[TimelineLane]:
    """A lane per subscription; failing ones first, then the slowest."""
    marks: dict[str, list[Mark]] = {}
    later = dict(due)
    for row in attempts:
        name = str(row["subscription"])
        marks.setdefault(name, []).append(_mark(row, accepted_at))
        if row.get("next_at") is not None:
            later.setdefault(name, cast(datetime, row["next_at"]))
    for each in marks.values():
        each.sort(key=lambda mark: (mark.from_ms, mark.number))
    ends = [_ms(at, accepted_at) for at in later.values() if at is not None]
    horizon = 1.15 * max([1.0, *ends, *(mark.to_ms for each in marks.values() for mark in each)])
    found = []
    for explanation in deliveries:
        open_ = explanation.outcome in {"waiting", "pending"}
        known = marks.get(explanation.subscription, [])
        label = _label_of(explanation, known, later.get(explanation.subscription) if open_ else None)
        found.append(
            TimelineLane(
                explanation.subscription,
                explanation.endpoint,
                explanation.outcome,
                label,
                known,
                horizon if open_ else None,
            )
        )
    return sorted(found, key=lambda lane: (_RANK.get(lane.outcome, 0), -lane.end_ms, lane.endpoint, lane.name))


def _mark(row: Row, accepted_at: datetime) -> Mark:
    begin = _ms(cast(datetime, row["started_at"]), accepted_at)
    took = float(cast(float, row["duration_ms"])) if row["push"] else 0.0
    # Clocks of two hosts: a push cannot precede the acceptance.
    begin = max(begin, 0.0)
    return Mark(begin, begin + took, str(row["state"]), int(cast(int, row["number"])), bool(row["push"]))


def _ms(at: datetime, accepted_at: datetime) -> float:
    return (at - accepted_at).total_seconds() * 1000


def _label_of(explanation: DeliveryExplanation, marks: Sequence[Mark], next_at: datetime | None) -> str:
    tries = sum(mark.pushed for mark in marks)
    attempts = f"{tries} attempt" + "s" * (tries != 1)
    if explanation.outcome == "waiting":
        due = f", next {next_at:%H:%M:%S}" if next_at else ""
        return f"waits, {attempts}{due}"
    if not marks:
        return explanation.outcome
    after = seconds(max(mark.to_ms for mark in marks) / 1000)
    return f"{explanation.outcome} after {after}" + (f", {attempts}" if tries != 1 else "")


def folded(found: Sequence[TimelineLane], most: int = _MOST_LANES) -> list[TimelineLane]:
    """Up to `most` lanes; the last one sums up the others."""
    if len(found) <= most:
        return list(found)
    shown, others = found[: most - 1], found[most - 1 :]
    counts = Counter(lane.outcome for lane in others)
    label = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.most_common())
    marks = [mark for lane in others for mark in lane.marks]
    return [*shown, TimelineLane("", "", "", label, marks, several=len(others))]


def scale(found: Iterable[TimelineLane]) -> tuple[bool, ticks.Ticks]:
    """Whether the axis is logarithmic, and its ticks in milliseconds."""
    shown = list(found)
    times = [time for lane in shown for mark in lane.marks for time in (mark.from_ms, mark.to_ms) if time > 0]
    ends = [lane.open_until_ms for lane in shown if lane.open_until_ms is not None]
    longest, shortest = max([1.0, *times, *ends]), max(0.1, min(times, default=1.0))
    if longest / shortest > _LOGARITHMIC_FROM:
        (first, text), *others = ticks.logarithmic(shortest, longest)
        # Otherwise the first decade would overlap with 0.
        return True, [(0.0, "0"), (first, text if len(others) < _MANY_DECADES else ""), *others]
    return False, [(at * 1000, text) for at, text in ticks.linear(longest / 1000, "seconds", 8)]


def names_of(found: Sequence[TimelineLane]) -> list[str]:
    """The endpoint of each lane; with the end of the subscription's id if several are equal."""
    names = [lane.endpoint or lane.name for lane in found]
    return [
        f"{lane.several:,} others"
        if lane.several > 1
        else name + (f" · {lane.name[-6:]}" if names.count(name) > 1 else "")
        for lane, name in zip(found, names, strict=True)
    ]


@dataclass(frozen=True, eq=False, repr=False)
class Timeline(Picture):
    """The chart; `explanation` as in `arborcast trace`, `table` with every step, `outcomes` by subscription."""

    explanation: Explanation | None = None
    outcomes: pd.DataFrame | None = None

    @property
    def payload(self) -> str:
        """The message."""
        return self.explanation.payload if self.explanation else ""


def table_of(explanation: Explanation) -> pd.DataFrame:
    """Every step with a time, in order; an empty subscription means all."""
    steps = [(step.at, "", "", step.what, step.detail) for step in explanation.steps]
    for delivery in explanation.deliveries:
        steps += [
            (step.at, delivery.subscription, delivery.endpoint, step.what, step.detail) for step in delivery.steps
        ]
    # Steps for all come first: clocks of two hosts must not put an attempt before its cause.
    known = sorted((step for step in steps if step[0] is not None), key=lambda step: (step[1] != "", step[0]))
    frame = pd.DataFrame(known, columns=["at", "subscription", "endpoint", "what", "detail"])
    frame["at"] = pd.to_datetime(frame["at"], utc=True)
    frame.insert(1, "after_s", (frame["at"] - frame["at"].min()).dt.total_seconds().round(3))
    return Rows.of(frame, "no records")


def outcomes_of(explanation: Explanation, found: Iterable[TimelineLane]) -> pd.DataFrame:
    """A row per subscription: its state, attempts, and reason."""
    tries = {lane.name: sum(mark.pushed for mark in lane.marks) for lane in found}
    rows = [
        (each.subscription, each.endpoint, each.outcome, tries.get(each.subscription, 0), each.why, each.expression)
        for each in explanation.deliveries
    ]
    columns = ["subscription", "endpoint", "outcome", "attempts", "why", "matched by"]
    return Rows.of(pd.DataFrame(rows, columns=columns).set_index("subscription"), "no subscription matches this topic")


def timeline(explanation: Explanation, attempts: Sequence[Row], due: Mapping[str, datetime | None]) -> Timeline:
    """A lane per subscription, attempts as marks, waiting times shaded."""
    begin = next((step.at for step in explanation.steps if step.at), None)
    if begin is None:
        begin = min(cast(datetime, row["accepted_at"]) for row in attempts)
    every = lanes(begin, explanation.deliveries, attempts, due)
    shown = folded(every)
    title = label(plain_topics([explanation.topic])[explanation.topic], 70)
    with canvas(title, 1.9 + 0.3 * max(1, len(shown))) as (figure, (axes,)):
        axes.set_title(_before(explanation, begin), pad=18, **ASIDE)
        is_log, marks = scale(shown)
        if is_log:
            axes.set_xscale("symlog", linthresh=marks[1][0], linscale=0.4)
        put_ticks(axes, marks)
        axes.set_xlim(0, marks[-1][0])
        notes = [textwrap.fill(f"note: {shortened(one_line(note), 2 * _NOTE)}", _NOTE) for note in explanation.notes]
        axes.set_xlabel("\n".join(["since acceptance", *notes]), **ASIDE)
        put_rows(axes, names_of(shown), quiet=[lane.several > 1 for lane in shown])
        for row, lane in enumerate(shown):
            _draw(axes, row, lane)
        if not shown:
            axes.axis("off")
            axes.text(0.5, 0.5, "no subscription matches this topic", transform=axes.transAxes, ha="center")
        _key(axes, shown)
    return Timeline(
        f"History of {explanation.notification}",
        table_of(explanation),
        figure,
        "; ".join(explanation.notes),
        explanation,
        outcomes_of(explanation, every),
    )


def _before(explanation: Explanation, begin: datetime) -> str:
    """The steps before the first push."""
    at = f"accepted {begin:%Y-%m-%d %H:%M:%S}.{begin.microsecond // 1000:03d} UTC"
    text = []
    for step in explanation.steps[1:]:
        after = f" after {(step.at - begin).total_seconds() * 1000:,.0f} ms" if step.at else ""
        text.append(step.what + after)
    return f"{one_line(explanation.notification)}, {at}\n{', '.join(text)}"


def _draw(axes: Axes, row: int, lane: TimelineLane) -> None:
    for begin, end, again in lane.waits:
        colour = "#F7DFAE" if again else PALE
        axes.barh(row, end - begin, left=begin, height=0.56, color=colour, linewidth=0, zorder=1)
    for mark in lane.marks:
        colour = STATES.get(mark.state, GREY)
        if mark.to_ms > mark.from_ms:
            axes.plot(
                [mark.from_ms, mark.to_ms], [row, row], color=colour, linewidth=4, solid_capstyle="butt", zorder=2
            )
        axes.plot(
            mark.from_ms,
            row,
            marker=_MARKS.get(mark.state, "o"),
            color=colour,
            alpha=0.25 if lane.several > 1 else 1,
            markersize=7 if mark.pushed else 5,
            markeredgecolor="white",
            markeredgewidth=0.6,
            zorder=3,
            clip_on=False,
        )
    bad = lane.outcome not in _RANK and lane.several == 1
    axes.text(
        1.02,
        row,
        textwrap.fill(lane.label, _LABEL_CHARACTERS),
        transform=axes.get_yaxis_transform(),
        va="center",
        fontsize=8,
        color="#B04A00" if bad else BLACK,
    )


def _key(axes: Axes, shown: Sequence[TimelineLane]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    seen = {mark.state for lane in shown for mark in lane.marks}
    handles: list[Line2D | Patch] = [
        Line2D(
            [], [], linestyle="", marker=_MARKS[state], color=STATES[state], markersize=7, label=WORDS.get(state, state)
        )
        for state in STATES
        if state in seen
    ]
    kinds = {again for lane in shown for _, _, again in lane.waits}
    if False in kinds:
        handles.append(Patch(color=PALE, label="waits for its first push"))
    if True in kinds:
        handles.append(Patch(color="#F7DFAE", label="waits for a retry"))
    if handles:
        axes.figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
