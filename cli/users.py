"""`arborcast users`, `arborcast access`: who may come in, and whether owners may still have their subscriptions."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arborcast.cli.common import OPERATING, ConfigOption, HomeOption, JsonOption, kafka_of, settings_of
from arborcast.core.errors import ConfigError
from arborcast.core.printable import one_line
from arborcast.engine.terminal import print_json, print_table, say

if TYPE_CHECKING:
    from arborcast.engine.settings.loading import Settings
    from arborcast.ingest.access.policy import ReviewFinding
    from arborcast.ingest.access.users_file import User

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]
StdinOption = Annotated[bool, typer.Option("--stdin", help="Read the password from the first line of standard input.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="The gateway's local users.", no_args_is_help=True)
    group.command("add")(add)
    group.command("remove")(remove)
    group.command("list")(list_users)
    group.command("check")(check)
    app.add_typer(group, name="users", rich_help_panel=OPERATING)
    access_group = typer.Typer(help="Find subscriptions whose owners lost the right to them.", no_args_is_help=True)
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
    config: ConfigOption = None,
    home: HomeOption = None,
) -> None:
    """Add a user, or give one a new password and groups. The password is asked for, never an argument."""
    from arborcast.ingest.access.users_file import check_name, made, write_users

    path = _path(config, home)
    users = dict(_read(path))
    check_name(name, name)
    users[name] = made(name, _password(stdin, confirm=True), frozenset(group or ()), keep_clear=digest)
    write_users(users, path)
    say(f"{name} is in {path}; a running gateway sees it within a second")


def remove(name: NameArgument, config: ConfigOption = None, home: HomeOption = None) -> None:
    """Remove a user. A password that was right a moment ago is remembered for access.cache_s."""
    from arborcast.ingest.access.users_file import write_users

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
    rows = ((user.name, ", ".join(sorted(user.groups)), "yes" if user.clear else "") for user in users)
    print_table(("user", "groups", "digest"), rows)


def check(
    name: NameArgument,
    stdin: StdinOption = False,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Check a user's password; the exit status is 1 when it is wrong."""
    from arborcast.ingest.access.users import FileUsers

    identity = FileUsers(_path(config, home)).check(name, _password(stdin, confirm=False))
    if json:
        print_json({"name": name, "right": identity is not None, "groups": sorted(identity.groups) if identity else []})
        raise typer.Exit(0 if identity else 1)
    if identity is None:
        say(f"no: there is no user {name} with this password")
        raise typer.Exit(1)
    groups = ", ".join(sorted(identity.groups)) or "no groups"
    say(f"yes: {name}, {groups}")


def _path(config: Path | None, home: Path | None) -> Path:
    return Path(settings_of(config, home).access.users_file)


def _read(path: Path) -> Mapping[str, User]:
    from arborcast.ingest.access.users_file import load_users

    try:
        return load_users(path)
    except FileNotFoundError:
        return {}


def _password(stdin: bool, *, confirm: bool) -> str:
    if stdin:
        return sys.stdin.readline().rstrip("\r\n")
    password: str = typer.prompt("Password", hide_input=True, confirmation_prompt=confirm)
    return password


def check_access(
    end: Annotated[bool, typer.Option("--end", help="End those for which it is certain.")] = False,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """List subscriptions whose owners could not make them today. The exit status is 1 when any are left.

    Rights are checked when a subscription is made; what is taken away later is found here.
    """
    from arborcast.admin.control_log import read_table
    from arborcast.ingest.access.policy import review

    settings = settings_of(config, home)
    find, policy, others = _rights(settings)
    kafka = kafka_of(config, home)
    table = read_table(kafka)
    found = list(review(table.subscriptions(), find, policy, others_know_users=others))
    ended = [finding for finding in found if finding.certain] if end else []
    if ended:
        from contextlib import closing

        from arborcast.topic_model.records.control import ending, ending_trigger
        from arborcast.topic_model.records.control_log import ControlLog

        at_ms = int(time.time() * 1000)
        records = [
            record
            for each in ended
            for end in [ending if each.subscription.trigger is None else ending_trigger]
            for record in end(each.subscription.id, "removed", at_ms)
        ]
        with closing(ControlLog(kafka)) as log:
            log.append(records)
    if json:
        print_json([_finding_facts(finding, ended=finding in ended) for finding in found])
    else:
        _show_findings(found, ended)
    if len(found) > len(ended):
        raise typer.Exit(1)


def _rights(settings: Settings) -> tuple[Any, Any, bool]:
    from arborcast.core.files import WatchedFile
    from arborcast.ingest.access.policy import DEFAULT, read_policy
    from arborcast.ingest.access.users import user_source

    access = settings.access
    methods = access.chosen()
    if not methods:
        raise ConfigError("access.methods is not set: there is no authentication, and every client may do everything")
    policy = WatchedFile(Path(access.policy_file), read_policy).value if access.policy_file else DEFAULT
    others = "bearer" in methods or ("certificate" in methods and access.certificate_users == "any")
    if set(methods) == {"bearer"}:
        # All users are the issuer's; there is no file of ours to look into.
        return (lambda _name: None), policy, others
    return user_source(settings.access, settings.directory).find, policy, others


def _finding_facts(finding: ReviewFinding, *, ended: bool) -> dict[str, Any]:
    subscription = finding.subscription
    return {
        "id": subscription.id,
        "owner": subscription.owner,
        "topics": [each.text for each in subscription.topics],
        "endpoint": subscription.consumer.address,
        "reason": finding.reason,
        "certain": finding.certain,
        "ended": ended,
    }


def _show_findings(found: list[ReviewFinding], ended: list[ReviewFinding]) -> None:
    if not found:
        say("the owner of every subscription could make it today")
        return
    for finding in found:
        subscription = finding.subscription
        topics = " and ".join(each.text for each in subscription.topics) or "everything"
        state = "ended" if finding in ended else "there" if finding.certain else "there, not certain"
        line = f"{subscription.id}  {subscription.owner or 'nobody'}  {topics}  {finding.reason}  ({state})"
        say(one_line(line))
    if not ended and any(finding.certain for finding in found):
        say("end those for which it is certain with --end")
