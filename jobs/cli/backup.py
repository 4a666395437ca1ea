"""`arborcast backup` and `arborcast restore`: of the logs, for any Kafka, or of an embedded engine's data directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from core.errors import ConfigError
from jobs.cli.common import ConfigOption, HomeOption, JsonOption, kafka_of, moment, moment_ms, settings_of
from jobs.terminal import console, print_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jobs.maintenance.archive import Manifest


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(backup)
    app.command()(restore)


def backup(
    folder: Annotated[Path, typer.Argument(help="Where to write it: empty, or not there.", metavar="FOLDER")],
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
        str, typer.Option("--since", help="With --drill: what was accepted from then on is compared.", metavar="TIME")
    ] = "7d",
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Write what an engine needs to go on with another Kafka: subscriptions, topics, what is undelivered, dead letters.

    The engine may be running. Tables and the key file are files, to be copied as such.
    """
    settings = settings_of(config, home)
    if drill:
        from jobs.maintenance.data_directory import drill as prove

        stock = prove(settings, lambda: kafka_of(config, home), folder, moment_ms("--since", since))
        if json:
            print_json(stock._asdict())
        else:
            console().print("nothing is lost")
        return
    if data_directory:
        from jobs.maintenance.data_directory import back_up

        _tell_files(back_up(settings, folder), json)
        return
    from jobs.gateway.parts import pull_limits
    from jobs.maintenance.backup import backup as back_up_logs

    _tell(back_up_logs(kafka_of(config, home), folder, pull_limits(settings)), folder, "backed up to", json)


def restore(
    folder: Annotated[Path, typer.Argument(help="Where the backup is.", metavar="FOLDER")],
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Make the logs in a Kafka that has none of this prefix, and fill them from a backup. Start nothing before.

    A copy of a data directory is restored to a data directory that is empty or not there.
    """
    from jobs.maintenance.archive import MANIFEST
    from jobs.maintenance.data_directory import ARCHIVE, restore_copy

    if (folder / ARCHIVE).exists():
        if (folder / MANIFEST).exists():
            raise ConfigError(f"{folder} holds both {ARCHIVE} and {MANIFEST}: move the one that is not meant away")
        target = settings_of(config, home).home
        restore_copy(folder, target)
        _tell_files([target], json)
        return
    from jobs.maintenance.backup import restore as fill

    _tell(fill(folder, kafka_of(config, home)), folder, "restored from", json)


def _tell_files(files: Iterable[Path], json: bool) -> None:
    if json:
        print_json({"files": [str(file) for file in files]})
        return
    for file in files:
        console().print(f"wrote {file}", highlight=False, markup=False, soft_wrap=True)


def _tell(manifest: Manifest, folder: Path, done: str, json: bool) -> None:
    if json:
        print_json({"made_ms": manifest.made_ms, "records": {log: each.records for log, each in manifest.logs.items()}})
        return
    out = console()
    out.print(f"{done} {folder}, as of {moment(manifest.made_ms)}:", highlight=False, soft_wrap=True)
    for log, contents in manifest.logs.items():
        out.print(f"  {log:<14}{contents.records:>12,} records", highlight=False)
