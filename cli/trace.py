"""`arborcast trace` and `arborcast why`: the history of a notification, and the reason for a delivery or its
absence."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arborcast.cli.common import FATES, JsonOption, kafka_of, note_no_job, settings_of
from arborcast.core.printable import one_line
from arborcast.engine.monitoring.figures import WORDS
from arborcast.engine.terminal import console, error_console, print_json

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from arborcast.dispatch.operations.trace.evidence import DeliveryExplanation, Explanation, Step


# How many subscriptions people are shown one by one.
_SHOWN = 50

_STYLES = {
    "delivered": "green",
    "waiting": "yellow",
    "pending": "yellow",
    "dead": "bold red",
    "expired": "red",
    "cancelled": "dim",
    "dropped": "dim",
    "skipped": "dim",
    "no match": "dim",
}


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=FATES)(trace)
    app.command(rich_help_panel=FATES)(why)


def trace(
    notification: Annotated[str, typer.Argument(help="Its id: what pushes carry as arborcast-notification-id.")],
    json: JsonOption = False,
) -> None:
    """Show every step of a notification, from acceptance to the outcome.
    Reads the tables and the newer records of the logs, so it covers the last second too."""
    _print(_explanation(notification, ""), json)
    note_no_job()


def why(
    subscription: Annotated[str, typer.Option("--subscription", "-s", help="Its id, or its address.")],
    notification: Annotated[str, typer.Option("--notification", "-m", help="The notification's id.")],
    json: JsonOption = False,
) -> None:
    """Explain why a subscription got a notification, or did not."""
    _print(_explanation(notification, subscription), json)


def _print(explanation: Explanation, json: bool) -> None:
    if json:
        print_json(_plain(dataclasses.asdict(explanation)))
    else:
        from rich.text import Text

        for each in format_explanation(explanation):
            console().print(each, soft_wrap=isinstance(each, Text))


def _explanation(notification: str, subscription: str) -> Explanation:
    from arborcast.admin import trace

    try:
        return trace.trace(settings_of(), notification, subscription, lambda _: kafka_of())
    except trace.UnknownNotification as error:
        for note in error.notes:
            error_console().print(f"note: {note}", style="dim", soft_wrap=True, markup=False)
        raise


def _plain(value: Any) -> Any:
    """An explanation for scripts. Times are ISO 8601 in UTC."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value.isoformat() if isinstance(value, datetime) else value


def format_explanation(explanation: Explanation) -> Iterable[RenderableType]:
    """The explanation for people: its lines, with one table of all steps. Times are UTC."""
    from rich.table import Column, Table
    from rich.text import Text

    from arborcast.core.telemetry.tracing import trace_of

    yield Text.assemble(("Notification ", "bold"), explanation.notification)
    if explanation.topic:
        yield Text.assemble(("  topic    ", "dim"), one_line(explanation.topic))
    if explanation.payload:
        first, *rest = explanation.payload.strip().splitlines() or [""]
        yield Text.assemble(("  payload  ", "dim"), first[:200], " …" if rest or len(first) > 200 else "")
    if explanation.cause:
        yield Text.assemble(("  cause    ", "dim"), one_line(explanation.cause))
    if explanation.traceparent:
        yield Text.assemble(
            ("  trace    ", "dim"), trace_of(explanation.traceparent), ("  " + explanation.traceparent, "dim")
        )
    if not explanation.deliveries:
        yield Text("  No subscribers of this topic.", style="yellow")
    if len(explanation.deliveries) > 1:
        counts = Counter(delivery.outcome for delivery in explanation.deliveries)
        outcomes = ", ".join(f"{count} {WORDS.get(outcome, outcome)}" for outcome, count in sorted(counts.items()))
        yield Text("  " + outcomes, style="bold")
    first_at = next((step.at for step in explanation.steps if step.at), None)
    times = Column("time", no_wrap=True), Column("after", justify="right", no_wrap=True)
    table = Table(*times, "step", "where", "detail", box=None, pad_edge=False, header_style="dim")
    for step in explanation.steps:
        table.add_row(*_cells(step, first_at))
    # Failing ones first.
    order = sorted(explanation.deliveries, key=lambda each: each.outcome == "delivered")
    for delivery in order[:_SHOWN]:
        for step in delivery.steps:
            table.add_row(*_cells(step, first_at))
        table.add_row("", "", *_outcome(delivery))
    yield table
    if len(order) > _SHOWN:
        yield Text(f"  and {len(order) - _SHOWN} more: --json lists all", style="dim")
    for note in explanation.notes:
        yield Text(one_line(f"note: {note}"), style="dim")


def _cells(step: Step, first_at: datetime | None) -> Iterable[Text]:
    from rich.text import Text

    at = f"{step.at:%Y-%m-%d %H:%M:%S}.{step.at.microsecond // 1000:03d}" if step.at else ""
    since = f"{(step.at - first_at).total_seconds() * 1000:+.0f} ms" if step.at and first_at else ""
    yield from (Text(at, style="dim"), Text(since, style="dim"))
    yield from map(Text, map(one_line, (step.what, step.where, step.detail)))


def _outcome(delivery: DeliveryExplanation) -> Iterable[Text]:
    """The last cells of the row with the outcome, which has no time."""
    from rich.text import Text

    verb = "filter" if delivery.outcome == "no match" else "matched by"
    reason = f"{delivery.why}; {verb} {delivery.expression}" if delivery.expression else delivery.why
    at = f", at {delivery.endpoint}" if delivery.endpoint and not delivery.steps else ""
    yield Text(WORDS.get(delivery.outcome, delivery.outcome), style=_STYLES[delivery.outcome])
    yield from (Text(delivery.subscription), Text(one_line(reason + at)))
