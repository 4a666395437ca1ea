"""`arborcast operations`: changes by operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from arborcast.admin.documents import document
from arborcast.admin.times import moment, moment_ms
from arborcast.cli.common import OPERATING, JsonOption, ListedOption, kafka_of, note_omitted
from arborcast.core.printable import one_line
from arborcast.engine.terminal import console, print_error, print_json

if TYPE_CHECKING:
    from rich.text import Text

    from arborcast.admin.operations import Recorded


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=OPERATING)(operations)


def operations(
    since: Annotated[
        str, typer.Option("--since", help="Only since: 30m, 2h, 7d, or an ISO time.", metavar="TIME")
    ] = "7d",
    actor: Annotated[str, typer.Option("--actor", help="Only of users with this in their name.")] = "",
    action: Annotated[str, typer.Option("--action", help="Only operations with this in their name: topics, end.")] = "",
    subject: Annotated[str, typer.Option("--subject", help="Only of topics, ids or users with this in them.")] = "",
    limit: ListedOption = 100,
    json: JsonOption = False,
) -> None:
    """List changes by operators, the newest first: actor, action, before and after."""
    from arborcast.admin.operations import OperationFilter, listed

    wanted = OperationFilter(moment_ms("since", since), actor, action, subject)
    found, more = listed(kafka_of(), wanted, limit)
    if json:
        print_json({"operations": document(found), "more": more})
        return
    for each in found:
        console().print(_line(each), soft_wrap=True)
    if not found:
        print_error("no such change is recorded")
    note_omitted(more)


def _line(each: Recorded) -> Text:
    from rich.text import Text

    line = Text.assemble(
        (moment(each.at_ms), "dim"),
        f"  {one_line(each.actor)} ({each.interface})  ",
        (each.action, "bold"),
        (f"  {one_line(each.subject)}" if each.subject else "", "cyan"),
    )
    if each.before or each.after:
        line.append(one_line(f": {each.before or 'nothing'} -> {each.after or 'nothing'}"))
    if each.more:
        line.append(f"; and {each.more:,} more")
    return line.append(one_line(f"  [{each.result or 'without a result'}]"))
