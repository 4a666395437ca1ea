"""`arborcast report`: one HTML page about a stretch of time, that needs no script and loads nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from core.files import write_atomically
from core.printable import as_html
from jobs.monitoring import figures
from jobs.monitoring.figures import Points, line_plot
from jobs.monitoring.history import decode_samples, read_history
from jobs.monitoring.samples import (
    MetricsSample,
    cpu_shares,
    grown,
    grown_buckets,
    grown_by,
    quantile,
    quantiles,
    rates,
    thinned,
)
from jobs.monitoring.stack_monitor import get
from jobs.monitoring.watching import EngineView, EngineWatch, base_url, metrics_address
from jobs.processes.errors import StackError
from jobs.stack.home import Home

# As many points as a plot has pixels for.
_POINTS = 360

# Two looks make a rate.
_FEWEST = 2

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif; }
body { max-width: 1480px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } .about { opacity: .7; margin: .2rem 0 1.2rem; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin-bottom: 1.2rem; }
.tiles div { border: 1px solid #8886; border-radius: .5rem; padding: .5rem .9rem; min-width: 7.5rem; }
.tiles b { display: block; font-size: 1.35rem; } .tiles span { opacity: .7; font-size: .85rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 560px), 1fr)); gap: 1rem; }
figure { margin: 0; border: 1px solid #8886; border-radius: .5rem; padding: .6rem; }
figcaption { font-weight: 600; margin-bottom: .3rem; }
.key { font-weight: 400; font-size: .85rem; margin-left: .8rem; }
.key::before { content: ""; display: inline-block; width: .8em; height: .2em; margin-right: .35em;
  vertical-align: middle; background: var(--c); }
svg { width: 100%; height: auto; } svg text { fill: currentColor; font-size: 11px; opacity: .75; }
.grid { stroke: currentColor; opacity: .15; } polyline { fill: none; stroke: var(--c); stroke-width: 1.6;
  stroke-linejoin: round; stroke-linecap: round; }
.s0,.k0{--c:#3b82c4}.s1,.k1{--c:#d9822b}.s2,.k2{--c:#2f9e6e}.s3,.k3{--c:#c94f7c}
.s4,.k4{--c:#8464c4}.s5,.k5{--c:#a08020}.s6,.k6{--c:#20a0a8}.s7,.k7{--c:#8a8a8a}
table { border-collapse: collapse; margin: .4rem 0 1.4rem; } th, td { text-align: left; padding: .2rem 1rem .2rem 0; }
td + td, th + th { text-align: right; } th { border-bottom: 1px solid #8886; font-weight: 600; }
h2 { font-size: 1.1rem; margin: 1.6rem 0 .2rem; }
"""


def history_for(url: str | None, path: Path, start: float) -> tuple[EngineView, str]:
    """The history of an engine: a remote one's by its address, else that in a data directory, running or not.

    Raises StackError when there is none.
    """
    if url is not None:
        base = base_url(url)
        try:
            stored = decode_samples(get(f"{base}/history.json", 30.0))
        except (OSError, ValueError) as error:
            raise StackError(f"no history can be had from {base}: {error}") from error
        return _since(start, stored, EngineWatch([base]).look().endpoints), base
    try:
        endpoints = EngineWatch([metrics_address(path)]).look().endpoints
    except StackError:
        endpoints = ()  # it does not run now; what it was like is in its files
    folder = Home(path).metrics
    if not folder.is_dir():
        raise StackError(f"there is no history in {path}: an engine that was started with arborcast up writes one")
    return _since(start, read_history(folder), endpoints), str(path)


def _since(start: float, stored: Sequence[MetricsSample], endpoints: Sequence[dict[str, Any]]) -> EngineView:
    """The samples of that time; without any, of which time there are some."""
    samples = [sample for sample in stored if sample.at >= start]
    if len(samples) >= _FEWEST:
        return EngineView(samples, endpoints)
    there = (
        f"what is kept goes from {_date(stored[0].at)} to {_date(stored[-1].at)}"
        if stored
        else "nothing is kept at all"
    )
    return EngineView(samples, endpoints, there)


def write_report(output: Path, seen: EngineView, where: str, start: float, now: float) -> None:
    """Write the page in one step. Raises StackError when the file cannot be written."""
    try:
        write_atomically(output, page(seen, where, start, now))
    except OSError as error:
        raise StackError(f"the report cannot be written to {output}: {error.strerror}") from error


def page(seen: EngineView, where: str, start: float, now: float) -> str:
    """The whole page."""
    samples = seen.samples
    about = f"{_date(start)} to {_date(now)}, {len(samples)} samples"
    body = [f"<h1>Arborcast at {as_html(where)}</h1>", f'<p class="about">{about}</p>']
    if len(samples) < _FEWEST:
        body.append(f"<p>Nothing was recorded in this time{as_html('; ' * bool(seen.problem) + seen.problem)}.</p>")
    else:
        growth = Growth(samples)
        body += [_tiles(samples, growth), '<div class="plots">', *_plots(samples), "</div>"]
        body += [_reasons(growth), _slowest(seen.endpoints)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Arborcast report</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


class Growth:
    """By how much counters grew over all samples; restarts in between do not make anything smaller."""

    def __init__(self, samples: Sequence[MetricsSample]) -> None:
        self.accepted = self.pushes = self.reused = 0.0
        self.attempts: dict[str, float] = {}
        self.errors: dict[str, float] = {}
        self.refused: dict[str, float] = {}
        sums: dict[float, float] = {}
        for earlier, later in itertools.pairwise(samples):
            self.accepted += grown(earlier.accepted, later.accepted)
            self.pushes += grown(earlier.pushes, later.pushes)
            self.reused += grown(earlier.reused, later.reused)
            _add(self.attempts, grown_by(earlier.attempts, later.attempts))
            _add(self.errors, grown_by(earlier.errors, later.errors))
            _add(self.refused, grown_by(earlier.refused, later.refused))
            for bound, count in grown_buckets(earlier.delivery, later.delivery):
                sums[bound] = sums.get(bound, 0.0) + count
        self.delivery = tuple(sorted(sums.items()))


def _add(sums: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0.0) + value


def _tiles(samples: Sequence[MetricsSample], growth: Growth) -> str:
    last = samples[-1]
    tiles = [
        ("notifications accepted", figures.count(growth.accepted)),
        ("delivered", figures.count(growth.attempts.get("delivered", 0))),
        ("dead", figures.count(growth.attempts.get("dead", 0))),
        ("delivery, median", figures.seconds(quantile(growth.delivery, 0.5))),
        ("delivery, 99 %", figures.seconds(quantile(growth.delivery, 0.99))),
        ("longest lag", figures.seconds(max(sample.lag_seconds for sample in samples))),
        ("parked at the end", figures.count(last.waiting.get("parked", 0))),
        ("connections reused", figures.percent(growth.reused / growth.pushes if growth.pushes else None)),
        ("subscriptions", figures.count(last.subscriptions)),
    ]
    inner = "".join(f"<div><b>{as_html(value)}</b><span>{as_html(label)}</span></div>" for label, value in tiles)
    return f'<div class="tiles">{inner}</div>'


def _plots(samples: Sequence[MetricsSample]) -> Iterable[str]:
    points = thinned(samples, _POINTS)
    spacing = sorted(later.at - earlier.at for earlier, later in itertools.pairwise(points))
    gap = 4 * spacing[len(spacing) // 2] + 1
    at = [point.at for point in points]

    def over_time(values: Iterable[float | None]) -> Points:
        return list(zip(at, values, strict=True))

    def plot(title: str, series: Mapping[str, Iterable[float | None]], write: Callable[[float | None], str]) -> str:
        return line_plot(title, {name: over_time(values) for name, values in series.items()}, write, gap)

    stages = sorted({stage for point in points for stage in point.stages})
    processes = sorted({name for point in points for name in point.processes})
    states = sorted({state for point in points for state in point.attempts} - {"delivered"})
    yield plot(
        "Notifications a second",
        {
            "accepted": rates(points, "accepted"),
            "delivered": rates(points, "attempts", "delivered"),
            **{state: rates(points, "attempts", state) for state in states},
        },
        figures.count,
    )
    yield plot(
        "From acceptance to delivery",
        {"median": quantiles(points, "delivery", 0.5), "99 %": quantiles(points, "delivery", 0.99)},
        figures.seconds,
    )
    yield plot(
        "From a request to Kafka's acknowledgement",
        {"median": quantiles(points, "append", 0.5), "99 %": quantiles(points, "append", 0.99)},
        figures.seconds,
    )
    yield plot("Lag", {"time": [point.lag_seconds for point in points]}, figures.seconds)
    yield plot("Lag", {"records": [point.lag_records for point in points]}, figures.count)
    yield plot(
        "Waiting",
        {kind: [point.waiting.get(kind, 0.0) for point in points] for kind in ("parked", "due")},
        figures.count,
    )
    yield plot(
        "Pushes under way",
        {
            "of batches": [point.in_flight.get("batch") for point in points],
            "again": [point.in_flight.get("redelivery") for point in points],
        },
        figures.count,
    )
    yield plot(
        "Where batches spend their time (share of it)",
        {stage: rates(points, "stages", stage) for stage in stages},
        figures.percent,
    )
    yield plot("CPU (of one core)", {name: cpu_shares(points, name) for name in processes}, figures.percent)
    for title, attribute, write in (
        ("Memory", "memory_bytes", figures.size),
        ("Threads", "threads", figures.count),
        ("Open files and connections", "descriptors", figures.count),
    ):
        yield plot(title, {name: [_of(point, name, attribute) for point in points] for name in processes}, write)


def _of(sample: MetricsSample, process: str, attribute: str) -> float | None:
    known = sample.processes.get(process)
    return None if known is None else float(getattr(known, attribute))


def _reasons(growth: Growth) -> str:
    return (
        _table("Attempts by outcome", ("outcome", "notifications"), _counted(growth.attempts))
        + _table("Attempts that failed, by class of error", ("error", "notifications"), _counted(growth.errors))
        + _table("Requests refused, by reason", ("reason", "requests"), _counted(growth.refused))
    )


def _slowest(endpoints: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            str(one["endpoint"]),
            figures.count(one["pushes"]),
            figures.count(one["failed"]),
            figures.seconds(one["mean_s"]),
            figures.seconds(one["longest"]),
        )
        for one in endpoints
    ]
    return _table("Slowest endpoints, last minutes", ("endpoint", "pushes", "failed", "mean", "longest"), rows)


def _counted(counts: Mapping[str, float]) -> list[tuple[str, str]]:
    return [(name, figures.count(count)) for name, count in sorted(counts.items(), key=lambda one: -one[1]) if count]


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{as_html(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{as_html(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<h2>{as_html(title)}</h2><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
