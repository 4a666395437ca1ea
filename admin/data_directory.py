"""A copy of an embedded engine's data directory, and the drill that proves its restore.

In contrast to a backup of the logs it has history and tables, and the engine must be stopped. It consists of
`engine.tar` and `secrets.keys`, which should be stored separately.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from arborcast.admin.times import moment
from arborcast.core.errors import InfrastructureError
from arborcast.core.files import write_atomically
from arborcast.core.progress import Progress, no_progress
from arborcast.core.reasons import reason_of
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import time_ms
from arborcast.engine.embedded.commands import UpOptions, down, up
from arborcast.engine.embedded.home import Home
from arborcast.engine.embedded.status import job_state
from arborcast.engine.processes.errors import HomeError
from arborcast.engine.settings.loading import Settings, load_settings

ARCHIVE = "engine.tar"
KEYS = "secrets.keys"

# Files that are used only while the engine runs, and its log files.
_EXCLUDED = frozenset({"run", "log", KEYS})

# The share of the retention that a drill compares: what Kafka deletes between its two audits would seem to be lost.
_COMPARED = 0.9


class AuditCounts(NamedTuple):
    """The counts of an audit that a restored engine must reach."""

    accepted: int
    matches: int
    settled: int

    def missing_from(self, other: AuditCounts) -> list[str]:
        """The counts that are lower in another audit, as text."""
        labels = ("accepted notifications", "matches", "deliveries that had ended")
        pairs = zip(labels, self, other, strict=True)
        return [f"{had - has:,} of {had:,} {what}" for what, had, has in pairs if has < had]


def back_up(settings: Settings, folder: Path, progress: Progress = no_progress) -> list[Path]:
    """Stop the engine if it runs, copy its data directory, start it again; returns the files.

    Raises HomeError if there is no data directory or the copy cannot be made; the engine is started in any case.
    """
    _check_folder(folder, settings.home)
    settings = _as_started(settings)
    was_up = Home(settings.home).owner() is not None
    try:
        progress("stopping the engine")
        was_up = down(settings.home)
        return copy(settings.home, folder, progress)
    finally:
        if was_up:
            progress("starting the engine")
            _start(settings)


def _start(settings: Settings) -> None:
    """Start the engine, also after an interrupted stop."""
    down(settings.home)
    up(settings, UpOptions(detach=True))


def _as_started(settings: Settings) -> Settings:
    """The settings with the ports of the running engine, which its clients use, and with a streaming job only if it has
    one: `up` may have had options. Raises HomeError if a job that it does not supervise runs."""
    home = Home(settings.home)
    if home.owner() is None or not home.settings_file.exists():
        return settings
    if job_state(settings.home) == "running":
        raise HomeError(
            f"a streaming job that the engine in {settings.home} does not supervise writes to its data directory: stop "
            "that job (SIGTERM) before the backup, and submit it again afterwards"
        )
    running = load_settings(home.settings_file, environ={})
    return replace(
        settings,
        stack=replace(settings.stack, job=running.stack.job, kafka_port=running.stack.kafka_port),
        gateway=replace(settings.gateway, port=running.gateway.port),
        metrics=replace(settings.metrics, port=running.metrics.port),
        console=replace(settings.console, port=running.console.port),
    )


def _check_folder(folder: Path, home: Path, *, restored: bool = False) -> None:
    """Before the engine is stopped. Raises HomeError for a folder in the data directory, since backups would contain
    each other, and for a disk without room for the copy; with `restored` also for the restored one beside `home`."""
    if folder.resolve().is_relative_to(home.resolve()):
        raise HomeError(f"{folder} is in the data directory {home}: choose a folder outside of it for the backup")
    if not home.is_dir():
        return
    size = 0
    for entry in _entries(home):
        for file in (entry, *(Path(each, name) for each, _, names in os.walk(entry) for name in names)):
            with contextlib.suppress(FileNotFoundError):  # deleted by the engine, which runs
                size += 512 * file.lstat().st_blocks  # not st_size: Kafka's indexes are sparse files
    places = [next(each for each in (folder.resolve(), *folder.resolve().parents) if each.is_dir())]
    places += [home.resolve().parent] * restored
    for place in places:
        needed = size * sum(each.stat().st_dev == place.stat().st_dev for each in places)
        if (free := shutil.disk_usage(place).free) < needed:
            raise HomeError(
                f"{place} has {free // 2**20:,} MiB free, and {needed // 2**20:,} MiB are needed: make room, or choose "
                "a folder on another disk"
            )


def _entries(home: Path) -> list[Path]:
    """The parts of a data directory that are copied into the archive."""
    return [entry for entry in sorted(home.iterdir()) if entry.name not in _EXCLUDED]


def copy(home: Path, folder: Path, progress: Progress = no_progress) -> list[Path]:
    """Copy a stopped engine's data directory into `folder`; returns the files, complete on disk.

    Raises HomeInUse while an engine runs there, HomeError without a data directory or if the copy cannot be made.
    """
    data = Home(home)
    if not data.run.is_dir():
        raise HomeError(f"there is no engine's data directory at {home}")
    keys = home / KEYS
    with data.locked(), _explained(f"the backup cannot be written to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        entries = _entries(home)
        total = sum(file.lstat().st_size for entry in entries for file in (entry, *entry.rglob("*")))
        if keys.exists():
            # First: a folder with the archive has a complete copy.
            write_atomically(folder / KEYS, keys.read_bytes(), mode=0o600)
        # Parts of the directory may be links to other disks: their contents belong to it.
        with _draft(folder / ARCHIVE) as draft, tarfile.open(draft, "w", dereference=True) as archive:

            def report_progress(member: tarfile.TarInfo) -> tarfile.TarInfo:
                progress("copying bytes", archive.offset, total)
                return member

            for entry in entries:
                archive.add(entry, entry.name, filter=report_progress)
    return [folder / ARCHIVE, *([folder / KEYS] if keys.exists() else [])]


def restore_copy(folder: Path, home: Path, progress: Progress = no_progress) -> None:
    """Make a data directory from a copy. Existing files are never overwritten: raises HomeError."""
    if home.exists() and any(home.iterdir()):
        raise HomeError(f"{home} is not empty: a backup is only restored into an empty directory")
    with _explained(f"the backup in {folder} cannot be restored to {home}"):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        total = (folder / ARCHIVE).stat().st_size
        mark = Home(home).restoring
        mark.touch()

        def report_progress(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
            progress("copying bytes", member.offset, total)
            return tarfile.data_filter(member, path)

        with tarfile.open(folder / ARCHIVE) as archive:
            archive.extractall(home, filter=report_progress)  # noqa: S202  # `report_progress` applies the data filter
        if (folder / KEYS).exists():
            write_atomically(home / KEYS, (folder / KEYS).read_bytes(), mode=0o600)
        os.sync()  # also after a power failure nothing is missing without the mark
        mark.unlink()


def drill(
    settings: Settings,
    kafka: Callable[[], KafkaSettings],
    folder: Path,
    since_ms: int,
    report: Callable[[str], None],
    progress: Progress = no_progress,
) -> AuditCounts:
    """Back up a running engine, move its data directory away, restore and start it, and compare two audits; returns the
    verified counts. Only then the moved directory is deleted; otherwise it is moved back. `kafka` is called twice,
    since the restarted engine may use other ports; `report` gets a line for each step. Raises InfrastructureError if
    the restored engine lacks records, or its audit does not balance."""
    home, until_ms = settings.home, time_ms()
    _check_folder(folder, home, restored=True)
    settings = _as_started(settings)
    kept_ms = until_ms - int(_COMPARED * settings.kafka.retention_hours * 3_600_000)
    if since_ms < kept_ms:
        since_ms = kept_ms
        report(
            f"notifications accepted since {moment(since_ms)} are compared: Kafka may delete earlier ones during the "
            f"drill (kafka.retention_hours = {settings.kafka.retention_hours})"
        )
    before = _audited(kafka(), since_ms, until_ms, progress)
    report(f"before: {before}")
    place = home.resolve()  # not a link to the directory: the copy must be on the same disk
    aside = place.with_name(f"{place.name}.lost-{os.getpid()}")
    was_up = Home(home).owner() is not None
    try:
        was_up = down(home)
        if not was_up:
            raise HomeError(f"no engine runs in {home}: the drill begins with one that does")
        files = copy(home, folder, progress)
        with _explained(f"the drill cannot rename the data directory (instead, restore {folder} to another one)"):
            place.rename(aside)
        for file in files:
            report(f"backed up: {file}, {file.stat().st_size:,} bytes")
        report(f"the data directory was moved to {aside}")
        restore_copy(folder, place, progress)
        progress("starting the engine")
        up(settings, UpOptions(detach=True))
        after = _audited(kafka(), since_ms, until_ms, progress)
        if missing := before.missing_from(after):
            raise InfrastructureError(f"the restored engine lacks {'; '.join(missing)}")
    except BaseException:
        if aside.exists():
            down(home)
            shutil.rmtree(place, ignore_errors=True)
            aside.rename(place)
            report(f"the data directory was moved back, its engine is stopped: {home}")
        elif was_up:
            _start(settings)
        raise
    shutil.rmtree(aside)
    report(f"after: {after}")
    return after


def _audited(kafka: KafkaSettings, since_ms: int, until_ms: int, progress: Progress) -> AuditCounts:
    from arborcast.dispatch.operations.audit import audit

    report = audit(kafka, since_ms, until_ms, deep=True, patience_s=30, progress=progress)
    if not report.balanced:
        raise InfrastructureError(
            f"{len(report.problems)} notifications do not balance: `arborcast audit --deep` names them"
        )
    totals = report.totals
    settled = totals.delivered + totals.dead + totals.expired + totals.cancelled + totals.dropped
    return AuditCounts(report.notifications + report.waiting, report.matches, settled)


@contextlib.contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """A file for this user only, which gets its name when it is complete."""
    draft = target.with_name(f".{target.name}")
    draft.unlink(missing_ok=True)  # left by a killed backup
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
        where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        raise HomeError(f"{what}: {where}{reason_of(error)}") from error
