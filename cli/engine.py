"""`arborcast up`, `down`, `status`, `doctor`, `fetch`: the embedded engine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from arborcast.cli.common import ENGINE, JsonOption, settings_of
from arborcast.core.printable import one_line
from arborcast.engine.terminal import ProgressShown, console, print_error, print_json, print_line

if TYPE_CHECKING:
    from arborcast.engine.settings.loading import Scalar

GatewayPortOption = Annotated[
    int | None, typer.Option("--gateway-port", help="Port of the gateway; 0 takes a free one.", metavar="P")
]
KafkaPortOption = Annotated[
    int | None, typer.Option("--kafka-port", help="Port of the embedded broker; 0 takes a free one.", metavar="Q")
]
MetricsPortOption = Annotated[
    int | None, typer.Option("--metrics-port", help="Port of the engine's metrics; 0 takes a free one.", metavar="M")
]
ConsolePortOption = Annotated[
    int | None, typer.Option("--console-port", help="Port of the web console; 0: without one.", metavar="C")
]

# A job renews its lease every other second.
_JOB_SIGN_S = 3.0

_STATE_STYLE = {"ready": "green", "starting": "yellow", "restarting": "yellow", "failed": "bold red"}
_LEVEL_STYLE = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def register(app: typer.Typer) -> None:
    for command in (up, down, status, doctor):
        app.command(rich_help_panel=ENGINE)(command)
    app.command(rich_help_panel=ENGINE, cls=TyperCommand)(fetch)


def up(
    gateway_port: GatewayPortOption = None,
    kafka_port: KafkaPortOption = None,
    metrics_port: MetricsPortOption = None,
    console_port: ConsolePortOption = None,
    no_job: Annotated[
        bool, typer.Option("--no-job", help="Leave out the streaming job, to run it yourself with spark-submit.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Return when the engine is ready to deliver.")] = False,
    demo: Annotated[bool, typer.Option("--demo", help="Show notifications arriving, once it is ready.")] = False,
    json: JsonOption = False,
) -> None:
    """Start Kafka, the gateway and the streaming job, and supervise them."""
    if detach and demo:
        raise typer.BadParameter("--demo needs the terminal, --detach leaves it: choose one")
    if json and not detach:
        raise typer.BadParameter("--json requires --detach: it prints the addresses of the started engine")
    overrides: dict[str, Scalar | None] = {
        "gateway.port": gateway_port,
        "stack.kafka_port": kafka_port,
        "metrics.port": metrics_port,
        "console.port": console_port,
        "stack.job": "external" if no_job else None,
    }
    settings = settings_of({name: value for name, value in overrides.items() if value is not None})
    from arborcast.engine.embedded.commands import UpOptions
    from arborcast.engine.embedded.commands import up as bring_up

    reached: dict[str, str] = {}
    # A process of its own, so that a failed demonstration cannot harm the engine.
    companion = [sys.executable, "-m", "arborcast.cli.demo", str(settings.home)] if demo else []
    bring_up(settings, UpOptions(detach=detach, companion=companion, on_ready=reached.update))
    if json:
        print_json({"home": str(settings.home), "addresses": reached})
    elif detach:
        for name, address in reached.items():
            console().print(f"{name.replace('_', ' ')}: [bold]{address}[/]", highlight=False, soft_wrap=True)


def down() -> None:
    """Stop the engine."""
    from arborcast.engine.embedded.commands import down as bring_down

    settings = settings_of()
    if not bring_down(settings.home):
        print_error(f"no engine runs in {settings.home}")


def status(json: JsonOption = False) -> None:
    """Show the engine's health. The exit status is 0 when it is ready, 3 when it is not, 4 when it is ready and no
    streaming job runs."""
    from arborcast.engine.embedded.status import NO_JOB, job_state
    from arborcast.engine.embedded.status import status as read_status

    path = settings_of().home
    document = {**read_status(path), "job": job_state(path, _JOB_SIGN_S)}
    if json:
        print_json(document)
    else:
        _print_status(document)
        if document["job"] == "none":
            print_line(NO_JOB)
    if document["ready"] and document["job"] == "none":
        raise typer.Exit(4)
    if not document["ready"]:
        # 3 is "not running" for init scripts; 1 and 2 mean that the command failed.
        raise typer.Exit(3)


def _print_status(document: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    out = console()
    if not document["running"]:
        print_line(f"no engine runs in {document['home']}")
        if document["problem"]:
            print_line(f"the last one ended with: {document['problem']}")
        return
    if "supervisor" not in document:
        print_line(f"an engine is starting in {document['home']}, or its state cannot be read")
        return
    out.print(f"[bold]{escape(document['home'])}[/] (pid {document['pid']})", highlight=False, soft_wrap=True)
    for name, address in document["addresses"].items():
        print_line(f"  {name.replace('_', ' ')}: {address}")
    table = Table("part", "state", "pid", "for", "restarts", "memory", "cpu", box=None, pad_edge=False)
    rows = {**document["parts"], "supervisor": {**document["supervisor"], "state": "ready", "since": document["since"]}}
    for name, part in rows.items():
        table.add_row(
            name,
            f"[{_STATE_STYLE.get(part['state'], 'dim')}]{part['state']}[/]"
            if not part["silent_s"]
            else f"[bold red]silent[/] {part['silent_s']:.0f} s",
            str(part.get("pid") or ""),
            _since(part["since"]),
            str(part.get("restarts", "")),
            f"{part['memory_bytes'] / 2**20:.0f} MiB",
            f"{part['cpu_seconds']:.1f} s",
        )
    table.add_row("all", "", "", "", "", f"{document['memory_bytes'] / 2**20:.0f} MiB", f"{document['cpu_seconds']} s")
    out.print(table)
    for name, part in rows.items():
        for words in _troubles(name, part, document["pid"]):
            print_line(words)
    if document["disk"]:
        out.print(f"[bold red]disk[/]: {escape(document['disk'])}", highlight=False, soft_wrap=True)


def _troubles(name: str, part: dict[str, Any], pid: int) -> Iterator[str]:
    """The troubles of a part, as sentences."""
    if part["silent_s"] and name == "supervisor":
        yield (
            f"the supervisor has made no progress for {part['silent_s']:.0f} s: nothing is restarted meanwhile. If it "
            f"was stopped: kill -CONT {pid}. Otherwise: arborcast down, arborcast up"
        )
    elif part["silent_s"]:
        yield f"{name} has not answered for {part['silent_s']:.0f} s; it is restarted if that continues"
    if part.get("restarts"):
        times = "once" if part["restarts"] == 1 else f"{part['restarts']} times"
        yield f"{name} was restarted {times}; last time it {part['last_exit']}"


def _since(text: str | None) -> str:
    if not text:
        return ""
    seconds = max(0, int((datetime.now(UTC) - datetime.fromisoformat(text)).total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def doctor(json: JsonOption = False) -> None:
    """Check Java, jars, ports, disk, memory, versions, broker, directory."""
    from dataclasses import asdict

    from arborcast.admin.doctor import doctor as examine

    checks = examine(settings_of())
    if json:
        print_json([asdict(check) for check in checks])
    else:
        from rich.markup import escape
        from rich.table import Table

        table = Table(box=None, pad_edge=False, show_header=False)
        for check in checks:
            advice = f"\n[bold]{escape(one_line(check.advice))}[/]" if check.advice else ""
            level = f"[{_LEVEL_STYLE[check.level]}]{check.level}[/]"
            table.add_row(level, escape(check.name), escape(one_line(check.finding)) + advice)
        console().print(table)
    if any(check.level == "fail" for check in checks):
        raise typer.Exit(1)


def fetch(
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Take the jars from this folder instead of the network.", metavar="DIR"),
    ] = None,
) -> None:
    """Fetch and verify the jars, and make archives of their classes."""
    from arborcast.engine.embedded.engine import find_tools
    from arborcast.engine.install import class_archive, jars
    from arborcast.engine.install.java import find_java

    with ProgressShown() as progress:
        jars.fetch(find_java, print_error, source=source, progress=progress)
        class_archive.make(find_tools(), jars.default_cache(), print_error, progress)
