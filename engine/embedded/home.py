"""The data directory: what lies where, whether it can be used, and who uses it now."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from arborcast.core.reasons import reason_of
from arborcast.core.security.keyring import add_key
from arborcast.engine.processes.errors import HomeError, HomeInUse

DEFAULT_NAME = "secrets.keys"


def ensure_keys(key_file: str, home: Path) -> None:
    """Make the key file in the data directory when it is the one that is used and there is none yet.

    One that the settings name is never made by itself: several machines would make several. Raises SecretError.
    """
    path = home / DEFAULT_NAME
    if Path(key_file) == path and not path.exists():
        add_key(path, "k1")


_MIB = 2**20


def free_mb(folder: Path) -> int:
    """How much room there is, in MiB. Raises OSError."""
    return shutil.disk_usage(folder).free // _MIB


def shortage(folder: Path, free: int, wanted: int) -> str:
    """What is wrong with so few MiB, and what to do; empty when they are enough."""
    if free >= wanted:
        return ""
    return (
        f"only {free} MiB are free on the disk of {folder} (stack.min_free_disk_mb asks for {wanted}): make room "
        "there. On a full disk Kafka ends and publishers are told to come back later; nothing that was accepted is "
        "lost, and with room all goes on by itself"
    )


class DiskWatch:
    """Looks at a disk, and reports when it becomes too full and when it has room again, each once."""

    def __init__(
        self, folder: Path, wanted_mb: int, report: Callable[[str], None], free: Callable[[Path], int] = free_mb
    ) -> None:
        self._folder = folder
        self._wanted_mb = wanted_mb
        self._report = report
        self._free = free
        self._short = False

    def look(self) -> None:
        """To be called now and then."""
        try:
            free = self._free(self._folder)
        except OSError:
            return
        problem = shortage(self._folder, free, self._wanted_mb)
        if problem and not self._short:
            self._report(problem)
        # A disk that is filled and emptied around the mark is one story, not a hundred.
        elif self._short and free >= 1.1 * self._wanted_mb:
            self._report(f"{free} MiB are free again on the disk of {self._folder}")
        else:
            return
        self._short = bool(problem)


_PID_DIGITS = 10

Access = Literal["owner", "group"]

"""Whose a data directory is: see stack.home_access."""

_MODE: dict[Access, int] = {"owner": 0o700, "group": 0o2770}

_OTHERS: dict[Access, int] = {"owner": 0o077, "group": 0o007}

# What makes a directory an engine's own, whose mode may be changed. `--home /srv` is not.
_MARKS = ("run/lock", "secrets.keys", "users.toml")


def make_home(path: Path, access: Access) -> str:
    """Makes the data directory, if it is not there, readable for its owner only: payloads are in it,
    and subscribers' addresses. One that is there is narrowed.

    Returns what was changed, or could not be, in words for the log; mostly nothing. Raises OSError.
    """
    if not path.exists():
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(_MODE[access])
        return ""
    mode = stat.S_IMODE(path.stat().st_mode)
    wanted = mode & ~_OTHERS[access] | _MODE[access]
    if mode == wanted:
        return ""
    if path.name != ".arborcast" and any(path.iterdir()) and not any((path / mark).is_file() for mark in _MARKS):
        return (
            f"the data directory {path} has other things in it, so its mode stays {mode:03o}; what the engine writes "
            f"is for its {access} alone"
        )
    try:
        path.chmod(wanted)
    except OSError as error:
        return (
            f"the data directory {path} has the mode {mode:03o}, and it cannot be made {wanted:03o}: {error.strerror}"
        )
    shared = '; stack.home_access = "group" shares it with its group' if access == "owner" else ""
    return f"the data directory {path} had the mode {mode:03o}, now it has {wanted:03o}{shared}"


def keep_private(access: Access) -> None:
    """What this process, and every process that it starts, writes from now on is for the same users only."""
    os.umask(_OTHERS[access])


@dataclass(frozen=True)
class Home:
    """The folders and files of one engine."""

    path: Path

    @property
    def run(self) -> Path:
        """What only means something while the engine runs."""
        return self.path / "run"

    @property
    def logs(self) -> Path:
        return self.path / "log"

    @property
    def metrics(self) -> Path:
        """The history of metrics."""
        return self.path / "metrics"

    @property
    def kafka(self) -> Path:
        return self.path / "kafka"

    @property
    def spark(self) -> Path:
        """Spark's working folder and temporary files."""
        return self.run / "spark"

    @property
    def state_file(self) -> Path:
        return self.run / "state.json"

    @property
    def lock_file(self) -> Path:
        return self.run / "lock"

    @property
    def settings_file(self) -> Path:
        """The effective settings, as the parts read them."""
        return self.run / "arborcast.toml"

    @property
    def ready_file(self) -> Path:
        """Made by the dispatch job when it is ready to deliver."""
        return self.run / "dispatch.ready"

    def log(self, part: str) -> Path:
        return self.logs / f"{part}.log"

    def create(self, min_free_mb: int = 0, access: Access = "owner") -> str:
        """Makes the folders; returns what `make_home` has to say. Raises HomeError when they cannot be written or the
        disk is nearly full.
        """
        try:
            note = make_home(self.path, access)
            for folder in (self.run, self.logs):
                folder.mkdir(exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error
        self.check_writable()
        self.check_room(self.path, min_free_mb)
        return note

    def check_writable(self) -> None:
        """Raises HomeError when files cannot be made here. Trying is the only honest check: access() knows nothing of
        read-only and network file systems.
        """
        try:
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise self._unusable(error) from error

    def check_room(self, folder: Path, min_free_mb: int) -> None:
        """Raises HomeError when the disk that `folder` is on has less room than asked for."""
        free_mb = shutil.disk_usage(folder).free // 2**20
        if free_mb < min_free_mb:
            raise HomeError(
                f"only {free_mb} MiB are free in the data directory {self.path}, and at least {min_free_mb} MiB are "
                "asked for (stack.min_free_disk_mb); make room, or choose another with --home DIR"
            )

    def _unusable(self, error: OSError) -> HomeError:
        return HomeError(
            f"the data directory {self.path} cannot be written: {reason_of(error)}; choose another with --home DIR"
        )

    def owner(self) -> int | None:
        """Process id of the supervisor that runs here; None when none does, 0 when it has not said yet.

        Raises HomeError when this user may not ask."""
        try:
            with self.lock_file.open("r+") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return _read_pid(lock)
        except PermissionError as error:
            raise HomeError(
                f"this user may not ask whether an engine runs in {self.path}: be its owner, or have it shared with "
                'stack.home_access = "group"'
            ) from error
        except OSError:
            pass
        return None

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Keeps every other engine out of this directory. Raises HomeInUse. Gives the lock's file descriptor.

        The lock is the kernel's and goes with the process, so a killed supervisor leaves none behind.
        """
        # Not for appending: such a file cannot be written anywhere but at its end.
        with os.fdopen(os.open(self.lock_file, os.O_RDWR | os.O_CREAT, 0o666), "r+") as lock:
            if not _lock(lock):
                pid = _read_pid(lock)
                raise HomeInUse(
                    f"an engine already runs in {self.path} (pid {pid or 'not known yet'}); "
                    f"stop it with: arborcast down --home {self.path}",
                )
            self.sign_lock(lock.fileno())
            yield lock.fileno()

    @staticmethod
    def sign_lock(lock: int) -> None:
        """Writes our process id into the lock that we hold."""
        # Over the last one and at its length: `down` signs, too, and must not need any room on a full disk.
        signature = f"{os.getpid():<{_PID_DIGITS}}\n".encode()
        os.pwrite(lock, signature, 0)
        os.ftruncate(lock, len(signature))


def _lock(lock: IO[str]) -> bool:
    for _ in range(10):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.02)  # it may be somebody who only asked (`owner`)
    return False


def _read_pid(lock: IO[str]) -> int:
    lock.seek(0)
    text = lock.read().strip()
    return int(text) if text.isdecimal() else 0
