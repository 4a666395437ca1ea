"""The disaster recovery drill of an embedded engine, and its two halves for the day it is no drill:

    python -m jobs.maintenance.drill backup  --home DIR --to FOLDER    stop the engine, copy it, start it again
    python -m jobs.maintenance.drill restore --home DIR --from FOLDER  into a data directory that is not there
    python -m jobs.maintenance.drill run     --home DIR --to FOLDER    both, on a running engine, and the proof

`run` moves the data directory away after the backup, restores, starts the engine from what was restored, and has
the audit say, before and after, what was accepted and what became of it. The moved directory is deleted only when the
proof has succeeded; otherwise it is moved back.

A backup is two files: `engine.tar`, and `secrets.keys`, which opens what is sealed in the other and should be carried
to another place.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import ArborcastError, InfrastructureError
from jobs.cli.common import kafka_of, moment_ms, settings_of
from jobs.engine.commands import UpOptions, down, to_stderr, up
from jobs.processes.errors import HomeError
from jobs.stack.home import Home
from jobs.terminal import complain

if TYPE_CHECKING:
    from dispatch.operations.audit import Report

ARCHIVE = "engine.tar"
KEYS = "secrets.keys"

# What only means something while the engine runs, and what it has said.
_LEFT_OUT = frozenset({"run", "log", KEYS})


@dataclass(frozen=True)
class Stock:
    """What there was in a time, as far as a restored engine must know of it."""

    accepted: int
    matches: int
    settled: int

    def missing_from(self, other: Stock) -> list[str]:
        """What another lacks of this, in words."""
        pairs = (
            ("accepted notifications", self.accepted, other.accepted),
            ("matches", self.matches, other.matches),
            ("deliveries that had ended", self.settled, other.settled),
        )
        return [f"{had - has:,} of {had:,} {what}" for what, had, has in pairs if has < had]


def stock_of(report: Report) -> Stock:
    """What an audit has counted."""
    totals = report.totals
    settled = totals.delivered + totals.dead + totals.expired + totals.cancelled
    return Stock(report.notifications + report.waiting, report.matches, settled)


def back_up(home: Path, folder: Path) -> list[Path]:
    """Copy a stopped engine's data directory into `folder`; the files made, complete on disk.

    Raises HomeInUse while an engine runs there, HomeError when there is none or the copy cannot be made.
    """
    kept = Home(home)
    if not kept.run.is_dir():
        raise HomeError(f"there is no engine's data directory at {home}")
    made = []
    with kept.locked(), _explained(f"the backup cannot be written to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        with _draft(folder / ARCHIVE) as draft, tarfile.open(draft, "w") as archive:
            for entry in sorted(home.iterdir()):
                if entry.name not in _LEFT_OUT:
                    archive.add(entry, entry.name)
        made.append(folder / ARCHIVE)
        if (home / KEYS).exists():
            with _draft(folder / KEYS) as draft:
                draft.write_bytes((home / KEYS).read_bytes())
            made.append(folder / KEYS)
    return made


def restore(folder: Path, home: Path) -> None:
    """Make a data directory from a backup. What is there is never written over: raises HomeError."""
    if home.exists() and any(home.iterdir()):
        raise HomeError(f"{home} is not empty: a backup is only restored where nothing is")
    with _explained(f"the backup in {folder} cannot be restored to {home}"):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tarfile.open(folder / ARCHIVE) as archive:
            archive.extractall(home, filter="data")
        if (folder / KEYS).exists():
            with _draft(home / KEYS) as draft:
                draft.write_bytes((folder / KEYS).read_bytes())


def run(home: Path, folder: Path, since: str, config: Path | None = None) -> Stock:
    """The whole drill; what was proved to be there afterwards.

    Raises InfrastructureError when the restored engine lacks something, or its books do not balance.
    """
    since_ms, until_ms = moment_ms("--since", since), int(time.time() * 1000)
    before = _audited(config, home, since_ms, until_ms)
    to_stderr(f"before: {before}")
    if not down(home):
        raise HomeError(f"no engine runs in {home}: the drill begins with one that does")
    for file in back_up(home, folder):
        to_stderr(f"backed up: {file}, {file.stat().st_size:,} bytes")
    aside = home.with_name(f"{home.name}.lost-{os.getpid()}")
    home.rename(aside)
    to_stderr(f"the data directory is gone (to {aside})")
    try:
        restore(folder, home)
        _start(config, home)
        after = _audited(config, home, since_ms, until_ms)
        if missing := before.missing_from(after):
            raise InfrastructureError(f"the restored engine lacks {'; '.join(missing)}")
    except BaseException:
        down(home)
        shutil.rmtree(home, ignore_errors=True)
        aside.rename(home)
        to_stderr(f"the data directory is back as it was, its engine is stopped: {home}")
        raise
    shutil.rmtree(aside)
    to_stderr(f"after: {after}")
    return after


def _audited(config: Path | None, home: Path, since_ms: int, until_ms: int) -> Stock:
    from dispatch.operations.audit import audit

    report = audit(kafka_of(config, home), since_ms, until_ms, deep=True, patience_s=30)
    if not report.balanced:
        raise InfrastructureError(
            f"{len(report.problems)} notifications do not balance: `arborcast audit --deep` names them"
        )
    return stock_of(report)


def _start(config: Path | None, home: Path) -> None:
    # On the ports of the settings: where publishers and subscribers look for it.
    up(settings_of(config, home), UpOptions(detach=True))


@contextlib.contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """A file for this user alone that is there when it is complete."""
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.touch(mode=0o600)
        yield draft
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, tarfile.TarError) as error:
        raise HomeError(f"{what}: {error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when it has succeeded, 1 otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m jobs.maintenance.drill", description="Backup, restore, and the drill of both."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("backup", "restore", "run"):
        command = commands.add_parser(name)
        command.add_argument("--home", type=Path, help="data directory")
        command.add_argument("--config", type=Path, help="settings file (TOML)")
        option = "--from" if name == "restore" else "--to"
        command.add_argument(option, dest="folder", type=Path, required=True, help="folder of the backup")
        if name == "run":
            command.add_argument("--since", default="7d", help="what was accepted from then on is compared")
    options = parser.parse_args(arguments)
    try:
        home = settings_of(options.config, options.home).home
        if options.command == "run":
            run(home, options.folder, options.since, options.config)
            to_stderr("nothing is lost")
        elif options.command == "restore":
            restore(options.folder, home)
        else:
            was_up = down(home)
            back_up(home, options.folder)
            if was_up:
                _start(options.config, home)
    except ArborcastError as error:
        complain(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
