"""`arborcast report`: one HTML page about a period, without scripts and external resources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from arborcast.core.files import write_output
from arborcast.core.printable import as_html
from arborcast.core.reasons import reason_of
from arborcast.engine.embedded.home import Home
from arborcast.engine.monitoring import charts, figures
from arborcast.engine.monitoring.figures import WORDS
from arborcast.engine.monitoring.history import read_history
from arborcast.engine.monitoring.samples import MetricsSample, downsampled
from arborcast.engine.monitoring.stack_monitor import get
from arborcast.engine.monitoring.summary import Summary
from arborcast.engine.monitoring.watching import EngineView, EngineWatch, base_url, decoded, metrics_address
from arborcast.engine.processes.errors import StackError

# A rate needs two samples.
_FEWEST = 2

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif; }
body { max-width: 1480px; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0; } .about { opacity: .7; margin: .2rem 0 1.2rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.3rem, 1fr)); gap: .8rem;
  margin-bottom: 1.2rem; }
.tiles div { border: 1px solid #8886; border-radius: .5rem; padding: .5rem .9rem; }
.tiles b { display: block; font-size: 1.35rem; } .tiles span { opacity: .7; font-size: .85rem; }
table { border-collapse: collapse; margin: .4rem 0 1.4rem; } th, td { text-align: left; padding: .2rem .8rem .2rem 0; }
td + td, th + th { text-align: right; white-space: nowrap; }
th { border-bottom: 1px solid #8886; font-weight: 600; vertical-align: bottom; }
h2 { font-size: 1.1rem; margin: 1.6rem 0 .2rem; } h2 + p { margin: 0; opacity: .7; font-size: .9rem; }
@media (max-width: 600px) { table { font-size: .8rem; } th, td { padding-right: .4rem; } }
"""


def history_for(url: str | None, path: Path, start: float) -> tuple[EngineView, str]:
    """The history of an engine: of a remote one by its address, else of the data directory, running or not.

    Raises StackError without a history.
    """
    if url is not None:
        base = base_url(url)
        # Small and urgent pages first.
        seen = EngineWatch([base]).look()
        if not seen.samples:
            raise StackError(f"no history is available from {seen.problem}")

        def stored(since: float) -> Sequence[MetricsSample]:
            try:
                return decoded(get(f"{base}/history.json?since={since:.3f}", 30.0))
            except (OSError, ValueError) as error:
                raise StackError(f"no history is available from {base}: {reason_of(error)}") from error

        return _since(start, stored, seen.endpoints), base
    try:
        endpoints = EngineWatch([metrics_address(path)]).look().endpoints
    except StackError:
        endpoints = ()  # the engine is down; its history is in its files
    folder = Home(path).metrics
    if not folder.is_dir():
        raise StackError(f"there is no history in {path}: an engine that was started with arborcast up writes one")
    return _since(start, lambda since: read_history(folder, since), endpoints), str(path)


def _since(
    start: float, read: Callable[[float], Sequence[MetricsSample]], endpoints: Sequence[dict[str, Any]]
) -> EngineView:
    """The samples of that time; without any, the period of the existing ones."""
    samples = read(start)
    if len(samples) >= _FEWEST:
        return EngineView(samples, endpoints)
    stored = read(0.0)
    available = f"samples from {_date(stored[0].at)} to {_date(stored[-1].at)}" if stored else "the history is empty"
    return EngineView(samples, endpoints, available)


def write_report(output: Path, seen: EngineView, where: str, start: float, now: float) -> None:
    """Write the page in one step. Raises OSError."""
    write_output(output, page(seen, where, start, now))


def page(seen: EngineView, where: str, start: float, now: float) -> str:
    samples = seen.samples
    about = f"{_date(start)} to {_date(now)}, {len(samples)} samples"
    if samples and samples[0].at - start > (now - start) / 10:
        about += f", the first at {_date(samples[0].at)}"
    body = [f"<h1>Arborcast at {as_html(where)}</h1>", f'<p class="about">{about}</p>']
    if len(samples) < _FEWEST:
        body.append(f"<p>Nothing was recorded in this time{as_html('; ' * bool(seen.problem) + seen.problem)}.</p>")
    else:
        summary = Summary(samples)
        drawn = charts.draw_all(downsampled(samples, charts.POINTS))
        body += [_tiles(summary), '<div class="plots">', *(figure for _, figure in drawn), "</div>"]
        body += [_reasons(summary), _slowest(seen.endpoints)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Arborcast report</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}{charts.STYLE.read_text(encoding='utf-8')}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _tiles(summary: Summary) -> str:
    tiles = [
        ("notifications accepted", figures.count(summary.total("accepted"))),
        ("system notices, the engine's own, beside these", figures.count(summary.total("notices"))),
        ("deliveries made", figures.count(summary.total("attempts", "delivered"))),
        ("deliveries given up", figures.count(summary.total("attempts", "dead"))),
        ("delivery, median", figures.seconds(summary.delivery_median)),
        ("delivery, 99 %", figures.seconds(summary.delivery_99)),
        ("longest lag", figures.seconds(summary.longest_lag_s)),
        ("deliveries waiting for retry", figures.count(summary.waiting)),
        ("connections reused", figures.percent(summary.reused)),
        ("subscriptions", figures.count(summary.last.subscriptions)),
    ]
    inner = "".join(f"<div><b>{as_html(value)}</b><span>{as_html(label)}</span></div>" for label, value in tiles)
    return f'<div class="tiles">{inner}</div>'


def _reasons(summary: Summary) -> str:
    outcomes = {WORDS.get(state, state): count for state, count in summary.totals("attempts").items()}
    one = "An attempt is one notification tried with one subscription."
    return (
        _table("Attempts by outcome", ("outcome", "attempts"), _counted(outcomes), one)
        + _table("Attempts that failed, by class of error", ("error", "attempts"), _counted(summary.totals("errors")))
        + _table("Requests refused, by reason", ("reason", "requests"), _counted(summary.totals("refused")))
    )


def _slowest(endpoints: Sequence[Mapping[str, Any]]) -> str:
    rows = [figures.endpoint_row(one) for one in endpoints]
    return _table("Slowest endpoints, last minutes", ("endpoint", "pushes", "failed", "mean", "longest"), rows)


def _counted(counts: Mapping[str, float]) -> list[tuple[str, str]]:
    return [(name, figures.count(count)) for name, count in sorted(counts.items(), key=lambda one: -one[1]) if count]


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{as_html(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{as_html(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    about = f"<p>{as_html(note)}</p>" if note else ""
    return f"<h2>{as_html(title)}</h2>{about}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
