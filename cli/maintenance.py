"""`arborcast backup`, `arborcast restore`, `arborcast keys`: maintenance tasks."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arborcast.admin.times import moment, moment_ms
from arborcast.cli.common import OPERATING, CommandGroup, JsonOption, as_interrupts, kafka_of, settings_of
from arborcast.core.errors import ConfigError
from arborcast.engine.terminal import ProgressShown, print_error, print_json, print_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from arborcast.admin.archive import Manifest
    from arborcast.admin.resealing import ResealingReport


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=OPERATING)(backup)
    app.command(rich_help_panel=OPERATING)(restore)
    keys_group = CommandGroup(help="The keys that subscribers' secrets are sealed with.", no_args_is_help=True)
    keys_group.command("new")(new)
    keys_group.command("list")(list_keys)
    keys_group.command("reseal")(reseal)
    keys_group.command("remove")(remove)
    app.add_typer(keys_group, name="keys", rich_help_panel=OPERATING)


def backup(
    folder: Annotated[
        Path, typer.Argument(help="The folder of the backup: empty or new.", metavar="FOLDER", file_okay=False)
    ],
    data_directory: Annotated[
        bool,
        typer.Option(
            "--data-directory",
            help="Copy the whole data directory of an embedded engine instead, which is stopped meanwhile.",
        ),
    ] = False,
    drill: Annotated[
        bool,
        typer.Option(
            "--drill",
            help="As --data-directory; then restore the copy in the directory's place, start the engine, and have the "
            "audit prove that nothing is missing.",
        ),
    ] = False,
    since: Annotated[
        str, typer.Option("--since", help="With --drill: compare notifications accepted since.", metavar="TIME")
    ] = "7d",
    json: JsonOption = False,
) -> None:
    """Write the state that an engine needs to continue with another Kafka: subscriptions, topics, undelivered
    notifications, dead letters. The engine may be running. Tables and the key file are files, to be copied as such."""
    settings = settings_of()
    if drill:
        from arborcast.admin.data_directory import drill as prove

        with ProgressShown() as progress, as_interrupts(signal.SIGTERM, signal.SIGHUP):
            stock = prove(settings, kafka_of, folder, moment_ms("since", since), print_error, progress)
        if json:
            print_json(stock._asdict())
        else:
            print_line("nothing is lost")
        return
    if data_directory:
        from arborcast.admin.data_directory import back_up

        with ProgressShown() as progress, as_interrupts(signal.SIGTERM, signal.SIGHUP):
            files = back_up(settings, folder, progress)
        _print_files(files, json)
        return
    from arborcast.admin.backup import backup as back_up_logs
    from arborcast.engine.gateway.parts import pull_limits

    with ProgressShown() as progress:
        manifest = back_up_logs(kafka_of(), folder, pull_limits(settings), progress)
    print_backup(manifest, folder, "backed up to", json)


def restore(
    folder: Annotated[Path, typer.Argument(help="Where the backup is.", metavar="FOLDER", file_okay=False)],
    json: JsonOption = False,
) -> None:
    """Create the logs in an empty Kafka from a backup, before the first start.

    A copy of a data directory is restored to one that is empty or does not exist.
    """
    from arborcast.admin.archive import MANIFEST
    from arborcast.admin.data_directory import ARCHIVE, restore_copy

    if (folder / ARCHIVE).exists():
        if (folder / MANIFEST).exists():
            raise ConfigError(f"{folder} holds both {ARCHIVE} and {MANIFEST}: move the one that is not meant away")
        target = settings_of().home
        with ProgressShown() as progress:
            restore_copy(folder, target, progress)
        _print_files([target], json)
        return
    from arborcast.admin.backup import restore as fill

    with ProgressShown() as progress:
        manifest = fill(folder, kafka_of(), progress)
    print_backup(manifest, folder, "restored from", json)


def _print_files(files: Iterable[Path], json: bool) -> None:
    if json:
        print_json({"files": [str(file) for file in files]})
        return
    for file in files:
        print_line(f"wrote {file}")


def print_backup(manifest: Manifest, folder: Path, done: str, json: bool) -> None:
    if json:
        print_json({"made_ms": manifest.made_ms, "records": {log: each.records for log, each in manifest.logs.items()}})
        return
    print_line(f"{done} {folder}, as of {moment(manifest.made_ms)}:")
    for log, contents in manifest.logs.items():
        noun = "record " if contents.records == 1 else "records"
        line = f"  {log:<14}{contents.records:>12,} {noun}  {_HELD.get(log, '')}"
        print_line(line.rstrip())


# Of most logs a backup holds a part, so a number alone would look like a loss.
_HELD = {
    "notifications": "not delivered yet, or a moment ago",
    "dead": "dead letters",
    "pullpoints": "not fetched yet",
    "retained": "current messages",
    "control": "topics, subscriptions, pull points, registrations",
}


def new(
    key_id: Annotated[str, typer.Option("--id", help="The key's id (default: k and the time).", metavar="ID")] = "",
) -> None:
    """Put a new key first in the key file, which is created if missing.

    Every gateway and every host that pushes needs the same file: copy it to the hosts that push first.
    """
    from arborcast.admin import keys
    from arborcast.admin.operations import recorded_file
    from arborcast.topic_model.records.operations import change

    settings = settings_of()
    path = Path(settings.secrets.key_file)
    with recorded_file(settings, "keys new", change(str(path))):
        made = keys.new(path, key_id)
    print_line(f"{path}: secrets are sealed with {made} from now on")


def list_keys(json: JsonOption = False) -> None:
    """Print the ids of the keys; the first one seals."""
    from arborcast.admin import keys

    found = list(keys.read(Path(settings_of().secrets.key_file)))
    if json:
        print_json([{"id": key_id, "seals": key_id == found[0]} for key_id in found])
        return
    for key_id in found:
        print_line(key_id)


def reseal(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")] = False,
    json: JsonOption = False,
) -> None:
    """Seal all secrets with the first key, so that older keys are no longer needed.

    May be interrupted and run again. The exit status is 1 when a secret could not be opened, or is still sealed with an
    older key.
    """
    from arborcast.admin.keys import read
    from arborcast.admin.resealing import reseal as reseal_all
    from arborcast.core.security.keyring import KeyRing

    keys = KeyRing(read(Path(settings_of().secrets.key_file)))
    report = reseal_all(kafka_of(), keys, dry_run=dry_run)
    if json:
        facts = {"key": keys.current, "subscriptions": report.subscriptions, "secrets": report.secrets}
        print_json({**facts, "dry_run": dry_run, "sealed": dict(report.sealed), "stuck": report.stuck})
    else:
        _show(report, keys.current, dry_run)
    if report.stuck or (not dry_run and set(report.sealed) - {keys.current}):
        raise typer.Exit(1)


def remove(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id.")],
) -> None:
    """Remove a key from the key file, unless a secret is still sealed with it."""
    from arborcast.admin.resealing import remove_key

    path = Path(settings_of().secrets.key_file)
    remove_key(kafka_of(), path, key_id)
    print_line(f"{path}: {key_id} is no longer there")


def _show(report: ResealingReport, key_id: str, dry_run: bool) -> None:
    done = "would be sealed again" if dry_run else "were sealed again"
    print_line(f"{report.secrets} secrets of {report.subscriptions} subscriptions {done} with {key_id}")
    for each, count in sorted(report.sealed.items()):
        print_line(f"sealed with {each}: {count}")
    for subscription, reason in sorted(report.stuck.items()):
        print_line(f"{subscription}: {reason}")
