"""`arborcast users`: the local file of users that the gateway asks when access.methods is set."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from core.errors import ConfigError
from jobs.cli.common import ConfigOption, HomeOption, JsonOption, settings_of
from jobs.terminal import console, print_json

if TYPE_CHECKING:
    from ingest.access.users_file import User

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]
StdinOption = Annotated[bool, typer.Option("--stdin", help="Read the password from the first line of standard input.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    group = typer.Typer(help="Keep the gateway's local users.", no_args_is_help=True)
    group.command("add")(add)
    group.command("remove")(remove)
    group.command("list")(list_users)
    group.command("check")(check)
    app.add_typer(group, name="users")


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
    config: ConfigOption = None,
    home: HomeOption = None,
) -> None:
    """Add a user, or give one a new password and groups. The password is asked for, never an argument."""
    from ingest.access.users_file import check_name, made, write_users

    path = _path(config, home)
    users = dict(_read(path))
    check_name(name, name)
    users[name] = made(name, _password(stdin, confirm=True), frozenset(group or ()), keep_clear=digest)
    write_users(users, path)
    console().print(f"{name} is in {path}; a running gateway sees it within a second", highlight=False)


def remove(name: NameArgument, config: ConfigOption = None, home: HomeOption = None) -> None:
    """Remove a user. A password that was right a moment ago is remembered for access.cache_s."""
    from ingest.access.users_file import write_users

    path = _path(config, home)
    users = dict(_read(path))
    if name not in users:
        raise ConfigError(f"there is no user {name} in {path}")
    del users[name]
    write_users(users, path)


def list_users(config: ConfigOption = None, home: HomeOption = None, json: JsonOption = False) -> None:
    """List the users, their groups, and whether a password is kept in clear text."""
    users = sorted(_read(_path(config, home)).values(), key=lambda user: user.name)
    if json:
        print_json([{"name": u.name, "groups": sorted(u.groups), "clear": bool(u.clear)} for u in users])
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table("user", "groups", "digest", box=None, pad_edge=False)
    for user in users:
        table.add_row(escape(user.name), escape(", ".join(sorted(user.groups))), "yes" if user.clear else "")
    console().print(table)


def check(name: NameArgument, stdin: StdinOption = False, config: ConfigOption = None, home: HomeOption = None) -> None:
    """Check a user's password; the exit status is 1 when it is wrong."""
    from ingest.access.users import FileUsers

    identity = FileUsers(_path(config, home)).check(name, _password(stdin, confirm=False))
    if identity is None:
        console().print(f"no: there is no user {name} with this password", highlight=False)
        raise typer.Exit(1)
    groups = ", ".join(sorted(identity.groups)) or "no groups"
    console().print(f"yes: {name}, {groups}", highlight=False)


def _path(config: Path | None, home: Path | None) -> Path:
    return Path(settings_of(config, home).access.users_file)


def _read(path: Path) -> Mapping[str, User]:
    from ingest.access.users_file import read_users

    try:
        return read_users(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the users file {path} cannot be read: {error}") from error


def _password(stdin: bool, *, confirm: bool) -> str:
    if stdin:
        return sys.stdin.readline().rstrip("\r\n")
    password: str = typer.prompt("Password", hide_input=True, confirmation_prompt=confirm)
    return password
