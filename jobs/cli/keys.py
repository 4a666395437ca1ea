"""`arborcast keys`: the key file that subscribers' secrets are sealed with."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.cli.common import ConfigOption, HomeOption, JsonOption, kafka_of, settings_of
from jobs.terminal import console, print_json, say

if TYPE_CHECKING:
    from jobs.maintenance.resealing import ResealingReport


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    group = typer.Typer(help="The keys that subscribers' secrets are sealed with.", no_args_is_help=True)
    group.command("new")(new)
    group.command("list")(list_keys)
    group.command("reseal")(reseal)
    group.command("remove")(remove)
    app.add_typer(group, name="keys")


def new(
    key_id: Annotated[
        str, typer.Option("--id", help="What to call the key (default: k and the time).", metavar="ID")
    ] = "",
    config: ConfigOption = None,
    home: HomeOption = None,
) -> None:
    """Put a new key first in the key file, which is made if there is none; older keys stay and still open secrets.

    The same file has to be at every gateway and on every host that pushes: bring it to those that push first.
    """
    from core.security.keyring import add_key

    path = Path(settings_of(config, home).secrets.key_file)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key_id = key_id or time.strftime("k%Y%m%dT%H%M%S", time.gmtime())
    add_key(path, key_id)
    say(f"{path}: secrets are sealed with {key_id} from now on")


def list_keys(config: ConfigOption = None, home: HomeOption = None) -> None:
    """Print the ids of the keys; the first one seals."""
    for key_id in _keys(Path(settings_of(config, home).secrets.key_file)):
        say(key_id)


def reseal(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what there is to do.")] = False,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Seal all secrets with the first key, so that older keys are no longer needed; the engine may run meanwhile.

    May be cut off and run again. The exit status is 1 when a secret could not be opened, or is still sealed with an
    older key.
    """
    from core.security.keyring import KeyRing
    from jobs.maintenance.resealing import reseal as reseal_all

    keys = KeyRing(_keys(Path(settings_of(config, home).secrets.key_file)))
    report = reseal_all(kafka_of(config, home), keys, dry_run=dry_run)
    if json:
        facts = {"key": keys.current, "subscriptions": report.subscriptions, "secrets": report.secrets}
        print_json({**facts, "dry_run": dry_run, "sealed": dict(report.sealed), "stuck": report.stuck})
    else:
        _show(report, keys.current, dry_run)
    if report.stuck or (not dry_run and set(report.sealed) - {keys.current}):
        raise typer.Exit(1)


def remove(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="What the key is called.")],
    config: ConfigOption = None,
    home: HomeOption = None,
) -> None:
    """Take a key out of the key file, unless a secret in the control log is still sealed with it."""
    from core.errors import SecretError
    from core.security.keyring import KeyRing, remove_key
    from jobs.maintenance.resealing import reseal as reseal_all

    path = Path(settings_of(config, home).secrets.key_file)
    used = reseal_all(kafka_of(config, home), KeyRing(_keys(path)), dry_run=True).sealed[key_id]
    if used:
        raise SecretError(f"{used} secrets are still sealed with {key_id}: run arborcast keys reseal first")
    remove_key(path, key_id)
    say(f"{path}: {key_id} is no longer there")


def _keys(path: Path) -> dict[str, bytes]:
    from core.errors import SecretError
    from core.security.keyring import parse_keys

    try:
        return parse_keys(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SecretError(f"the key file {path} cannot be read: {error}") from error


def _show(report: ResealingReport, key_id: str, dry_run: bool) -> None:
    out = console()
    done = "would be sealed again" if dry_run else "were sealed again"
    out.print(f"{report.secrets} secrets of {report.subscriptions} subscriptions {done} with {key_id}", highlight=False)
    for each, count in sorted(report.sealed.items()):
        out.print(f"sealed with {each}: {count}", highlight=False, markup=False)
    for subscription, reason in sorted(report.stuck.items()):
        out.print(f"{subscription}: {reason}", highlight=False, markup=False, soft_wrap=True)
