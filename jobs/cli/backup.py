"""`arborcast backup` and `arborcast restore`: what an engine needs to go on with another Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.cli.common import ConfigOption, HomeOption, JsonOption, kafka_of, moment, settings_of
from jobs.terminal import console, print_json

if TYPE_CHECKING:
    from jobs.maintenance.archive import Manifest


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(backup)
    app.command()(restore)


def backup(
    folder: Annotated[Path, typer.Argument(help="Where to write it: empty, or not there.", metavar="FOLDER")],
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Write down what another Kafka has to be told: subscriptions, topics, what is owed to whom, dead letters.

    The engine may be running. Tables and the key file are files, to be copied as such.
    """
    from jobs.gateway.parts import pull_limits
    from jobs.maintenance.backup import take

    _tell(take(kafka_of(config, home), folder, pull_limits(settings_of(config, home))), folder, "backed up to", json)


def restore(
    folder: Annotated[Path, typer.Argument(help="Where the backup is.", metavar="FOLDER")],
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Make the logs in a Kafka that has none of this prefix, and fill them from a backup. Start nothing before."""
    from jobs.maintenance.restore import restore as fill

    _tell(fill(folder, kafka_of(config, home)), folder, "restored from", json)


def _tell(manifest: Manifest, folder: Path, done: str, json: bool) -> None:
    if json:
        print_json({"made_ms": manifest.made_ms, "records": {log: each.records for log, each in manifest.logs.items()}})
        return
    out = console()
    out.print(f"{done} {folder}, as of {moment(manifest.made_ms)}:", highlight=False, soft_wrap=True)
    for log, contents in manifest.logs.items():
        out.print(f"  {log:<14}{contents.records:>12,} records", highlight=False)
