"""`arborcast audit`: whether everything that was accepted is accounted for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from arborcast.admin.times import moment, period_ms
from arborcast.cli.common import (
    FATES,
    MOST,
    AcceptedSinceOption,
    JsonOption,
    SubscriptionOption,
    UntilOption,
    kafka_of,
)
from arborcast.core.errors import ArborcastError
from arborcast.core.printable import one_line
from arborcast.core.reasons import reason_of
from arborcast.engine.monitoring.figures import WORDS, many
from arborcast.engine.terminal import ProgressShown, console, print_error, print_json, print_line

if TYPE_CHECKING:
    from arborcast.dispatch.operations.audit import Report

EXIT_UNBALANCED = 1
EXIT_UNKNOWN = 2

_NAMED_SUBSCRIPTIONS = 20

SYSTEM_NOTICES = (
    "system notices are the engine's own notifications, below the topic {urn:arborcast}system: breakers opened and "
    "closed, subscriptions failing, recovered, suspended or gone, dead letters growing"
)


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=FATES)(audit)


def audit(
    since: AcceptedSinceOption = "1h",
    until: UntilOption = "",
    subscription: SubscriptionOption = "",
    deep: Annotated[
        bool, typer.Option("--deep", help="Match everything again, and look up each pending and failed delivery.")
    ] = False,
    order: Annotated[
        bool, typer.Option("--order", help="Check that pushes were made in the order of acceptance.")
    ] = False,
    limit: Annotated[int, typer.Option(help="Maximum number of named discrepancies.", min=1, max=MOST)] = 100,
    patience: Annotated[float, typer.Option(help="Seconds in which discrepancies are checked again.", min=0)] = 15.0,
    json: JsonOption = False,
) -> None:
    """Check that deliveries = delivered + failed + expired + cancelled + dropped + pending.
    The exit status is 0 without violations, 1 with violations, 2 when the check could not be completed."""
    since_ms, until_ms = period_ms(since, until)
    from arborcast.admin.audit import audit as examine

    try:
        kafka = kafka_of()
        with ProgressShown() as progress:
            report = examine(
                kafka,
                since_ms,
                until_ms,
                subscription,
                deep=deep,
                order=order,
                patience_s=patience,
                limit=limit,
                progress=progress,
            )
    except (ArborcastError, OSError) as error:  # OSError: no space for its temporary files
        why = reason_of(error) if isinstance(error, OSError) else error
        print_error(f"the audit failed: {why}")
        sys.exit(EXIT_UNKNOWN)
    if json:
        print_json(report.as_json())
    else:
        _print(report)
    if not report.balanced:
        raise typer.Exit(EXIT_UNBALANCED)


def _print(report: Report) -> None:
    from rich.table import Table

    from arborcast.dispatch.operations.audit.report import PROBLEMS

    out = console()
    kinds = [f"{report.published:,} notifications"]
    kinds += [f"{report.triggered:,} of triggers"] * bool(report.triggered)
    kinds += [f"{report.replays:,} replayed ones"] * bool(report.replays)
    kinds += [f"{report.system_notices:,} system notices"] * bool(report.system_notices)
    *first, last = kinds
    accepted = f"{', '.join(first)} and {last}" if first else last
    print_line(
        f"{accepted} accepted between {moment(report.since_ms)} and {moment(report.until_ms)} were for "
        f"{report.matches:,} deliveries; {report.waiting:,} not evaluated yet"
    )
    if report.system_notices:
        out.print(SYSTEM_NOTICES, style="dim", highlight=False, soft_wrap=True)
    states = ("delivered", "dead", "expired", "cancelled", "dropped", "pending")
    heads = (WORDS.get(state, state) for state in states)
    table = Table("subscription", "deliveries", *heads, box=None, pad_edge=False, collapse_padding=True)
    for column in table.columns[1:]:
        column.justify = "right"
    # Those with the most trouble first.
    names = sorted(
        report.subscriptions, key=lambda name: report.subscriptions[name].delivered - report.subscriptions[name].matches
    )
    rows = [(name, report.subscriptions[name]) for name in names[:_NAMED_SUBSCRIPTIONS]]
    if len(names) > len(rows):
        table.caption = f"and {len(names) - len(rows):,} subscriptions more: --json has them all"
    for name, tally in (*rows, ("all", report.totals)):
        table.add_row(name, f"{tally.matches:,}", *(f"{getattr(tally, state):,}" for state in states))
    out.print(table)
    if report.duplicates:
        were = "delivery was" if report.duplicates == 1 else "deliveries were"
        print_line(f"{report.duplicates:,} {were} accepted more than once")
    for note in report.notes:
        print_line(one_line(f"note: {note}"))
    for problem in report.problems:
        where = f" (partition {problem.partition}, offset {problem.offset})" if problem.partition >= 0 else ""
        what = f" for {problem.subscription}" if problem.subscription else f": {problem.found} of {problem.matched}"
        print_line(
            one_line(f"  {problem.notification or 'unknown'}{what} {problem.topic}{where}: {PROBLEMS[problem.kind]}")
        )
    if report.order:
        found = f"{report.disordered:,} out of order" if report.disordered else "none out of order"
        print_line(f"order of {report.first_attempts:,} first attempts: {found}")
    for what in report.not_examined:
        print_line(f"not checked: {what}")
    verdict = "[bold green]all accounted for[/]"
    if not report.balanced:
        verdict = f"[bold red]{many(report.unbalanced, 'discrepancy', 'discrepancies')}[/]"
    out.print(f"{verdict} ({report.seconds:.1f} s)", highlight=False)
