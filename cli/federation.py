"""`arborcast federation`: the secret that engines share, who is there, and what links carry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arborcast.admin.moments import moment
from arborcast.cli.common import (
    OPERATING,
    ConfigOption,
    HomeOption,
    JsonOption,
    kafka_of,
    settings_of,
)
from arborcast.core.errors import ConfigError, DeliveryError
from arborcast.core.printable import one_line
from arborcast.engine.terminal import complain, print_json, print_table, say

if TYPE_CHECKING:
    from arborcast.ingest.federation.topology import Topology

federation_app = typer.Typer(help="Other engines that this one exchanges messages with.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(federation_app, name="federation", rich_help_panel=OPERATING)


@federation_app.command()
def key(
    file: Annotated[Path, typer.Argument(help="The key file; a new secret is put before those that are there.")],
) -> None:
    """Make a secret for a federation. All its engines and the administrator need the same file (federation.key_file).

    To change it: put the new line behind the old one everywhere, then before it, then take the old one out."""
    from arborcast.core.files import write_atomically
    from arborcast.core.security.signatures import new_secret

    try:
        before = file.read_text(encoding="utf-8") if file.exists() else ""
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is no key file: it is not text; name another") from error
    write_atomically(file, f"{new_secret()}\n{before}", mode=0o600)
    say(f"a new secret is in {file}, which only you may read")


@federation_app.command()
def members(config: ConfigOption = None, home: HomeOption = None, json: JsonOption = False) -> None:
    """List the engines there are, and who represents which group."""
    topology, problem = _topology(config, home)
    facts: list[dict[str, Any]] = [
        {
            "engine": each.engine,
            "state": each.state,
            "represents": topology.representative(each.group) == each,
            "url": each.url,
            "number": each.number,
            "version": each.version,
            "silent_s": each.silent_ms / 1000,
        }
        for each in topology.members
    ]
    if json:
        print_json({"members": facts, "problem": problem})
        return
    if not facts:
        complain("no engine has registered")
        return
    rows = (
        (each["engine"], each["state"], "representative" if each["represents"] else "", each["url"], each["version"])
        for each in facts
    )
    print_table(("engine", "state", "", "url", "version"), rows)


@federation_app.command()
def topology(config: ConfigOption = None, home: HomeOption = None, json: JsonOption = False) -> None:
    """Show groups, and who speaks for them."""
    found, problem = _topology(config, home)
    groups: dict[str, dict[str, Any]] = {
        group: {
            "representative": speaker.name if (speaker := found.representative(group)) is not None else None,
            "members": [each.name for each in found.members if each.group == group],
        }
        for group in found.groups()
    }
    if json:
        print_json({"version": found.version, "groups": groups, "problem": problem})
        return
    for group, facts in groups.items():
        say(one_line(f"{group}: {facts['representative'] or 'nobody there'} of {', '.join(facts['members'])}"))


@federation_app.command()
def links(config: ConfigOption = None, home: HomeOption = None, json: JsonOption = False) -> None:
    """List this engine's links to others, what they carry, and how much waits. What that is: `arborcast waiting`."""
    from arborcast.admin.control_log import read_control
    from arborcast.dispatch.operations.waiting import Waiting

    kafka = kafka_of(config, home)
    control = read_control(kafka)
    table, suspensions = control.table, control.suspensions
    there = sorted((each for each in table.subscriptions() if each.peer is not None), key=lambda each: each.id)
    waiting = Waiting(kafka).tally({each.id for each in there}) if there else {}
    facts: list[dict[str, Any]] = [
        {
            "link": each.id,
            "to": each.peer.to,
            "url": each.consumer.address,
            "state": "closing" if each.terminates_ms is not None else suspensions.state_of(each),
            "topics": [part for topic in each.topics for part in topic.text.split("|")],
            "since": moment(each.created_ms),
            "waiting": waiting[each.id][0] if each.id in waiting else 0,
            "waiting_since": moment(waiting[each.id][1]) if each.id in waiting else "",
        }
        for each in there
        if each.peer is not None
    ]
    if json:
        print_json({"links": facts})
        return
    if not facts:
        complain("there is no link: nobody else wants anything, or nobody else is there")
    for each in facts:
        topics = each["topics"]
        more = f" and {len(topics) - 5} more" if len(topics) > 5 else ""
        waits = f"  {each['waiting']} waiting, since {each['waiting_since']}" if each["waiting"] else ""
        say(one_line(f"{each['link']}  {each['state']}  {each['url']}{waits}"))
        say(one_line(f"  carries {' '.join(topics[:5])}{more}"))


def _topology(config: Path | None, home: Path | None) -> tuple[Topology, str]:
    """The administrator's; while that does not answer, the one that the engine keeps, and why. Raises ConfigError."""
    from arborcast.engine.gateway.federation import TOPOLOGY_FILE
    from arborcast.ingest.federation.calls import Administrator
    from arborcast.ingest.federation.keys import SharedKeys
    from arborcast.ingest.federation.member import read_file

    settings = settings_of(config, home)
    if not settings.federation.name:
        raise ConfigError("this engine is in no federation: federation.name is not set")
    try:
        return Administrator(settings.federation.administrator, SharedKeys(settings.federation.key_file)).topology(), ""
    except DeliveryError as error:
        kept = read_file(settings.home / TOPOLOGY_FILE)
        complain(f"{error}; this is what the engine knew last")
        return kept, str(error)
