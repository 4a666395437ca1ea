"""`arborcast top` and `arborcast report`: the state of the engine, live and over time."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arborcast.admin.times import beginning
from arborcast.cli.common import OPERATING, JsonOption, settings_of
from arborcast.core.errors import ConfigError
from arborcast.engine.terminal import print_error, print_json

if TYPE_CHECKING:
    from arborcast.engine.monitoring.watching import EngineWatch

UrlOption = Annotated[
    list[str] | None,
    typer.Option(
        "--url",
        help="Metrics address of a remote engine; or, several times, of its gateways and its job.",
        metavar="URL",
    ),
]


def register(app: typer.Typer) -> None:
    for command in (top, report):
        app.command(rich_help_panel=OPERATING)(command)


def top(
    url: UrlOption = None,
    interval: Annotated[float, typer.Option(help="Seconds between two frames.", min=0.5, max=60)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end; also without a terminal.")] = False,
    json: JsonOption = False,
) -> None:
    """Show throughput, latency, lag, waiting deliveries and usage of every process, live. With
    --json the figures are printed once."""
    watch, where = _watch(url)
    if json:
        from arborcast.engine.monitoring.summary import document, first_view

        seen = first_view(watch)
        print_json(document(seen, where))
        if not seen.samples:
            raise typer.Exit(1)
        return
    from arborcast.cli import top_frame as terminal

    if once or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        if not terminal.once(watch, where, sys.stdout):
            raise typer.Exit(1)
    else:
        terminal.forever(watch, where, sys.stdout, interval)


def report(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="HTML file to write.", metavar="FILE", dir_okay=False)
    ] = Path("report.html"),
    since: Annotated[
        str, typer.Option(help="How far back: 30m, 2h, 7d, or a time such as 2026-01-31T12:00.", metavar="TIME")
    ] = "1h",
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Write the figures of `top`, over a longer time, as one HTML page."""
    from arborcast.engine.monitoring.report import history_for, write_report

    now = time.time()
    start = beginning(since, now)
    if start > now:
        raise ConfigError(f"--since {since} is yet to come")
    if url and len(url) > 1:
        raise ConfigError("a report needs the one address of an embedded engine: others keep no history")
    seen, where = history_for(url[0] if url else None, settings_of().home, start)
    write_report(output, seen, where, start, now)
    if json:
        print_json({"file": output, "samples": len(seen.samples), "problem": seen.problem or None})
        return
    of_what = f"{len(seen.samples)} samples" if not seen.problem else f"nothing in this time; {seen.problem}"
    print_error(f"wrote {output}: {of_what}")


def _watch(urls: list[str] | None) -> tuple[EngineWatch, str]:
    from arborcast.engine.monitoring.watching import EngineWatch, metrics_address

    if urls:
        return EngineWatch(urls), ", ".join(urls)
    path = settings_of().home
    metrics_address(path)  # raises when no engine runs there; one that stops meanwhile is waited for
    return EngineWatch(find=lambda: metrics_address(path)), str(path)
