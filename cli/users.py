"""`arborcast users`, `arborcast access`: users, their rights, and rights that owners of subscriptions have lost."""

from __future__ import annotations

import getpass
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arborcast.admin.documents import document
from arborcast.cli.common import OPERATING, CommandGroup, JsonOption, existing, kafka_of, settings_of
from arborcast.core.errors import ConfigError
from arborcast.core.printable import one_line
from arborcast.engine.terminal import print_error, print_json, print_line, print_table

if TYPE_CHECKING:
    from arborcast.admin.users import Finding

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]
StdinOption = Annotated[bool, typer.Option("--stdin", help="Read the password from the first line of standard input.")]


def register(app: typer.Typer) -> None:
    group = CommandGroup(help="The gateway's local users.", no_args_is_help=True)
    group.command("add")(add)
    group.command("remove")(remove)
    group.command("list")(list_users)
    group.command("check")(check)
    app.add_typer(group, name="users", rich_help_panel=OPERATING)
    access_group = CommandGroup(help="Find subscriptions whose owners lost the right to them.", no_args_is_help=True)
    # A group of one command would be that command.
    access_group.callback()(lambda: None)
    access_group.command("check")(check_access)
    app.add_typer(access_group, name="access", rich_help_panel=OPERATING)


def add(
    name: NameArgument,
    group: Annotated[
        list[str] | None, typer.Option("--group", "-g", help="A group of the user; may be repeated.", metavar="GROUP")
    ] = None,
    digest: Annotated[
        bool,
        typer.Option(
            "--digest", help="Keep the password in clear text as well: WS-Security's PasswordDigest needs it."
        ),
    ] = False,
    stdin: StdinOption = False,
) -> None:
    """Add a user, or replace the password and groups of an existing one. The password is prompted for, never an
    argument."""
    from arborcast.admin import users
    from arborcast.admin.operations import recorded_file
    from arborcast.topic_model.records.operations import change

    settings = settings_of()
    path = Path(settings.access.users_file)
    after = {"name": name, "groups": sorted(group or ()), "clear": digest}
    with recorded_file(settings, "users add", change(name, users.one(path, name), after)):
        users.add(path, name, lambda: read_password(stdin, confirm=True), group or (), keep_clear=digest)
    print_line(f"{name} is in {path}; a running gateway sees it within a second")


def remove(name: NameArgument) -> None:
    """Remove a user. A password that was right a moment ago is remembered for access.cache_s."""
    from arborcast.admin import users
    from arborcast.admin.operations import recorded_file
    from arborcast.topic_model.records.operations import change

    settings = settings_of()
    path = Path(settings.access.users_file)
    with recorded_file(settings, "users remove", change(name, users.one(path, name))):
        users.remove(path, name)


def list_users(json: JsonOption = False) -> None:
    """List the users and their groups."""
    from arborcast.admin import users

    found = users.listed(Path(existing(settings_of()).access.users_file))
    if json:
        print_json(document(found))
        return
    if not found:
        print_error("no users")
        return
    rows = ((each.name, ", ".join(each.groups), "yes" if each.clear else "") for each in found)
    print_table(("user", "groups", "digest"), rows)


def check(
    name: NameArgument,
    stdin: StdinOption = False,
    json: JsonOption = False,
) -> None:
    """Check a user's password; the exit status is 1 when it is wrong."""
    from arborcast.admin import users

    path = Path(settings_of().access.users_file)
    found = users.check_password(path, name, read_password(stdin, confirm=False))
    if json:
        print_json(document(found))
    elif found.right:
        print_line(f"yes: {name}, {', '.join(found.groups) or 'no groups'}")
    else:
        print_line(f"no: there is no user {name} with this password")
    if not found.right:
        raise typer.Exit(1)


def read_password(stdin: bool, *, confirm: bool, prompt: str = "Password") -> str:
    """The password of the first line of standard input, or of the terminal. Raises ConfigError without a terminal."""
    if stdin:
        return sys.stdin.readline().rstrip("\r\n")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)
            password: str = typer.prompt(prompt, hide_input=True, confirmation_prompt=confirm, err=True)
    except getpass.GetPassWarning as error:
        print_error("")  # ends the line of the prompt
        raise ConfigError("there is no terminal to ask for the password: give it with --stdin") from error
    return password


def check_access(
    end: Annotated[bool, typer.Option("--end", help="End those for which it is certain.")] = False,
    json: JsonOption = False,
) -> None:
    """List subscriptions that their owners would not be allowed to create today. The exit status is 1 when there are
    any. Rights are checked when a subscription is created; rights revoked later are found here."""
    from arborcast.admin import control_log, users

    rights = users.rights_of(settings_of())
    kafka = kafka_of()
    table = control_log.read_table(kafka)
    found = users.lost_rights(rights, table)
    if end:
        found = users.end(kafka, table, found)
    if json:
        print_json(document(found))
    else:
        _show_findings(found)
    if not all(each.ended for each in found):
        raise typer.Exit(1)


def _show_findings(found: list[Finding]) -> None:
    if not found:
        print_line("every subscription is permitted to its owner by the current rules")
        return
    for each in found:
        topics = " and ".join(each.topics) or "everything"
        state = "ended" if each.ended else "there" if each.certain else "there, not certain"
        print_line(one_line(f"{each.id}  {each.owner or '(no owner)'}  {topics}  {each.reason}  ({state})"))
    if any(each.certain and not each.ended for each in found):
        print_line("end those for which it is certain with --end")
