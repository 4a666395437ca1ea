"""The samples of one engine: its last minutes, and its history as far as a chart shows it.

For any number of visitors an engine is queried once in a few seconds, and each range is drawn once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby

from markupsafe import Markup

from arborcast.core.reasons import reason_of
from arborcast.engine.embedded.home import Home
from arborcast.engine.monitoring import figures
from arborcast.engine.monitoring.attention import is_stale
from arborcast.engine.monitoring.charts import POINTS, draw_all
from arborcast.engine.monitoring.history import RECENT_S, read_downsampled
from arborcast.engine.monitoring.samples import MetricsSample, downsampled, with_peaks
from arborcast.engine.monitoring.stack_monitor import get
from arborcast.engine.monitoring.summary import ProcessSummary, Summary
from arborcast.engine.monitoring.watching import EngineView, EngineWatch, base_url, decoded, metrics_address
from arborcast.engine.settings.loading import Settings

RANGES: Mapping[str, tuple[str, float]] = {
    "10m": ("10 minutes", RECENT_S),
    "1h": ("1 hour", 3_600.0),
    "6h": ("6 hours", 6 * 3_600.0),
    "24h": ("24 hours", 24 * 3_600.0),
    "all": ("All", 0.0),
}
"""By their names in addresses: words, and seconds."""

# A sample of this age is reused.
_FRESH_S = 4.0

_FORGOTTEN_S = 15.0

_STRETCH_S = 10.0

_PATIENCE_S = 30.0

Past = Callable[[float, float], Sequence[MetricsSample]]
"""The stored samples between two times, as many as a chart has points. Raises OSError, ValueError."""


@dataclass(frozen=True)
class PageContents:
    """The contents of a page for one range."""

    problem: str = ""
    at: str = ""
    age: str = ""
    """How old the figures are; empty for current ones."""
    known: bool = False
    """Whether the dispatch job reports endpoints."""
    parts: Mapping[str, bool] = field(default_factory=dict)
    tiles: Sequence[tuple[str, str]] = ()
    figures: Mapping[str, Markup] = field(default_factory=dict)
    processes: Sequence[tuple[str, ...]] = ()
    slowest: Sequence[tuple[str, ...]] = ()


class EngineFeed:
    """One engine. Used by one event loop; slow work is done in threads."""

    def __init__(
        self, name: str, watch: EngineWatch, past: Past, longest_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        """`longest_s` is how much history may be there."""
        self.name = name
        self._watch = watch
        self._past = past
        self._longest_s = longest_s
        self._clock = clock
        self._lock = asyncio.Lock()
        self._looked = float("-inf")
        self._seen = EngineView()
        self._kept: dict[str, tuple[float, list[MetricsSample]]] = {}
        self._drawn: dict[str, tuple[int, Mapping[str, Markup]]] = {}

    async def shown(self, span: str) -> PageContents:
        """The state of the engine and its history in this range. Never raises: failures are shown."""
        async with self._lock:
            now = await self._look()
            # A range has some MiB; an unused one is read again on demand.
            self._kept = {name: one for name, one in self._kept.items() if 0 <= now - one[0] < _FORGOTTEN_S}
            seconds = RANGES[span][1] or self._longest_s
            problem, samples = self._seen.problem, list(self._seen.samples)
            if seconds > RECENT_S:
                try:
                    samples = await asyncio.to_thread(self._over, span, seconds, now)
                except (OSError, ValueError) as error:
                    problem = problem or f"History unavailable: {reason_of(error)}"
            samples = [sample for sample in samples if now - seconds <= sample.at <= now + _FRESH_S]
            begin = samples[0].at if span == "all" and samples else now - seconds
            drawn = await asyncio.to_thread(self._figures, span, samples, (begin, now))
            return _shown(self._seen, problem, drawn, now)

    async def window(self, begin: float, end: float) -> PageContents:
        """The state of the engine, and its history between two times. Never raises."""
        async with self._lock:
            now = await self._look()
            problem, samples = self._seen.problem, [each for each in self._seen.samples if begin <= each.at <= end]
            try:
                past = await asyncio.to_thread(self._past, begin, end)
                samples = [*past, *(each for each in samples if not past or each.at > past[-1].at)]
            except (OSError, ValueError) as error:
                problem = problem or f"History unavailable: {reason_of(error)}"
            return _shown(self._seen, problem, await asyncio.to_thread(_drawn, samples, (begin, end)), now)

    async def _look(self) -> float:
        """Look at the engine unless that was done a moment ago; the time."""
        now = self._clock()
        if not 0 <= now - self._looked < _FRESH_S:
            self._seen = await asyncio.to_thread(self._watch.look)
            self._looked = now
        return now

    def _over(self, span: str, seconds: float, now: float) -> list[MetricsSample]:
        """The stored and later samples: the last one of each stretch of a point's width."""
        stretch = seconds / POINTS
        kept = self._kept[span][1] if span in self._kept else None
        recent = self._seen.samples
        if kept is None:
            kept = list(self._past(now - seconds, now))
        for sample in recent:
            if kept and sample.at <= kept[-1].at:
                continue
            if kept and int(sample.at / stretch) == int(kept[-1].at / stretch):
                kept[-1] = with_peaks([kept[-1], sample])
            else:
                kept.append(sample)
        kept = [sample for sample in kept if sample.at >= now - seconds]
        self._kept[span] = now, kept
        return kept

    def _figures(
        self, span: str, samples: Sequence[MetricsSample], between: tuple[float, float]
    ) -> Mapping[str, Markup]:
        stretch = max(_STRETCH_S, (between[1] - between[0]) / POINTS)
        by_stretch = groupby(samples, lambda sample: int(sample.at / stretch))
        points = [with_peaks(list(some)) for _, some in by_stretch]
        # A new point of a day's chart appears every four minutes.
        last = int(points[-1].at / stretch) if points else 0
        known = self._drawn.get(span)
        if known is None or known[0] != last:
            known = self._drawn[span] = last, _drawn(points, between)
        return known[1]


def _drawn(points: Sequence[MetricsSample], between: tuple[float, float]) -> Mapping[str, Markup]:
    drawn = draw_all(points, between, lambda at: time.localtime(at).tm_gmtoff)
    return {name: Markup(figure) for name, figure in drawn}  # noqa: S704  # `line_plot` escapes all texts


def _shown(seen: EngineView, problem: str, drawn: Mapping[str, Markup], now: float) -> PageContents:
    known = seen.failing is not None and not seen.problem
    if not seen.samples:
        return PageContents(problem=problem, figures=drawn, known=known)
    current = Summary.current(seen.samples)
    last = current.last
    tiles = [
        ("Accepted per second", figures.count(current.accepted)),
        ("Delivered per second", figures.count(current.delivered)),
        ("Latency p50", figures.seconds(current.delivery_median)),
        ("Latency p99", figures.seconds(current.delivery_99)),
        ("Dispatch lag", figures.seconds(last.lag_seconds)),
        ("Pending retries", figures.count(current.waiting)),
        ("Subscriptions", figures.count(last.subscriptions)),
        ("Suspended", figures.count(last.suspended)),
        ("Mode", {"realtime": "real time", "batch": "batches"}.get(last.mode, "-")),
    ]
    return PageContents(
        problem=problem,
        at=datetime.fromtimestamp(last.at).astimezone().strftime("%H:%M:%S"),
        age=figures.seconds(max(0.0, now - last.at)) if seen.problem or is_stale(seen, now) else "",
        known=known,
        parts=dict(sorted(last.parts.items())),
        tiles=tiles,
        figures=drawn,
        processes=[_process(name, each) for name, each in current.processes.items()],
        slowest=[figures.endpoint_row(one) for one in seen.endpoints],
    )


def _process(name: str, each: ProcessSummary) -> tuple[str, ...]:
    """A row of the table of processes."""
    used = figures.count(each.processes), figures.percent(each.cpu_cores), figures.size(each.memory_bytes)
    return name, *used, figures.count(each.threads), figures.count(each.files)


def feeds_of(settings: Settings) -> list[EngineFeed]:
    """This engine, and those that the settings name. Raises ConfigError for an address that is none."""
    # Two files, each of which holds as much.
    longest_s = 2 * settings.metrics.history_hours * 3_600
    home = settings.home
    own = EngineFeed(
        "This engine",
        EngineWatch(find=lambda: metrics_address(home)),
        lambda since, until: read_downsampled(Home(home).metrics, since, until, POINTS),
        longest_s,
    )
    others = [
        EngineFeed(" + ".join(urls), EngineWatch(urls), _remote_past(urls), longest_s)
        for urls in settings.console.chosen()
    ]
    return [own, *others]


def _remote_past(urls: Sequence[str]) -> Past:
    bases = [base_url(url) for url in urls]

    def past(since: float, until: float) -> Sequence[MetricsSample]:
        if len(bases) > 1:
            return []  # gateways and jobs keep none
        try:
            return downsampled(
                decoded(get(f"{bases[0]}/history.json?since={since:.3f}&points={POINTS}", _PATIENCE_S)), POINTS
            )
        except FileNotFoundError:
            return []

    return past
