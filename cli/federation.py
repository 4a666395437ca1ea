"""`arborcast federation`: the shared secret of engines, members, and traffic of links."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand

from arborcast.admin.documents import document
from arborcast.admin.times import moment
from arborcast.cli.common import OPERATING, CommandGroup, JsonOption, kafka_of, settings_of
from arborcast.core.printable import one_line
from arborcast.engine.terminal import print_error, print_json, print_line, print_table

federation_app = CommandGroup(help="Links to other engines.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(federation_app, name="federation", rich_help_panel=OPERATING)


@federation_app.command(cls=TyperCommand)
def key(file: Annotated[Path, typer.Argument(help="The key file; a new secret becomes the first.")]) -> None:
    """Make a secret for a federation. All its engines and the administrator need the same file (federation.key_file).

    To change it: put the new line behind the old one everywhere, then before it, then take the old one out."""
    from arborcast.admin.keys import new_federation_secret

    new_federation_secret(file)
    print_line(f"a new secret is in {file}, which only you may read")


@federation_app.command()
def members(json: JsonOption = False) -> None:
    """List the engines, and the representative of each group."""
    from arborcast.admin import federation as admin

    found = admin.members(settings_of())
    _note_problem(found.problem)
    if json:
        print_json(document(found))
        return
    if not found.members:
        print_error("no engine has registered")
        return
    rows = (
        (each.engine, each.state, "representative" if each.represents else "", each.url, each.version)
        for each in found.members
    )
    print_table(("engine", "state", "", "url", "version"), rows)


@federation_app.command()
def topology(json: JsonOption = False) -> None:
    """Show groups and their representatives."""
    from arborcast.admin import federation as admin

    found = admin.groups(settings_of())
    _note_problem(found.problem)
    if json:
        print_json(document(found))
        return
    if not found.groups:
        print_error("no engine has registered")
    for name, group in found.groups.items():
        print_line(one_line(f"{name}: {group.representative or 'no representative'} of {', '.join(group.members)}"))


@federation_app.command()
def links(json: JsonOption = False) -> None:
    """List this engine's links to others, their traffic, and the number of waiting deliveries (details: `arborcast
    waiting`)."""
    from arborcast.admin import control_log
    from arborcast.admin import federation as admin

    kafka = kafka_of()
    found = admin.with_waiting(kafka, admin.links(control_log.read_control(kafka)))
    if json:
        print_json({"links": document(found)})
        return
    if not found:
        print_error("there are no links: no other engine is registered, or none has an interest")
    for each in found:
        more = f" and {len(each.topics) - 5} more" if len(each.topics) > 5 else ""
        waits = f"  {each.waiting} waiting, since {moment(each.waiting_since_ms)}" if each.waiting else ""
        print_line(one_line(f"{each.link}  {each.state}  {each.url}{waits}"))
        print_line(one_line(f"  carries {' '.join(each.topics[:5])}{more}"))


def _note_problem(problem: str) -> None:
    if problem:
        print_error(f"{problem}; the last known state follows")
