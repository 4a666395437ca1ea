"""The data directory: its layout, its use by one engine, and its checks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Literal

from arborcast.core.reasons import reason_of
from arborcast.core.security.keyring import add_key, new_id
from arborcast.engine.processes.errors import HomeError, HomeInUse

KEY_FILE = "secrets.keys"
"""The default of secrets.key_file, in the data directory."""


def ensure_keys(key_file: str, home: Path) -> str:
    """Create the key file in the data directory if it is the configured one and missing; returns a text for the log if
    the engine had one before. A file named by the settings is never created, since several machines would create
    different ones. Raises SecretError."""
    path = home / KEY_FILE
    if Path(key_file) != path or path.exists():
        return ""
    existed = Home(home).kafka.exists() or (home / "parked").exists()
    add_key(path, key_id := new_id())
    if not existed:
        return ""
    return (
        f"the key file {path} was lost, and now has a new key {key_id}: secrets sealed before cannot be opened, and "
        "pushes that need them wait. Append the lines of the former file to it"
    )


_MIB = 2**20


def free_mb(folder: Path) -> int:
    """Free space in MiB. Raises OSError."""
    return shutil.disk_usage(folder).free // _MIB


def shortage(folder: Path, free: int, required: int) -> str:
    """The problem and the action for this free space; empty if it is enough."""
    if free >= required:
        return ""
    return (
        f"only {free} MiB are free on the disk of {folder} (stack.min_free_disk_mb requires {required}): make room "
        "there. On a full disk Kafka ends and the gateway refuses requests; no accepted notification is lost, and with "
        "free space the engine continues"
    )


class DiskWatch:
    """Reports once when a disk becomes too full, and once when it has space again."""

    def __init__(
        self, folder: Path, required_mb: int, report: Callable[[str], None], free: Callable[[Path], int] = free_mb
    ) -> None:
        self._folder = folder
        self._required_mb = required_mb
        self._report = report
        self._free = free
        self._short = False

    def check(self) -> None:
        """Check; must be called regularly."""
        try:
            free = self._free(self._folder)
        except OSError:
            return
        problem = shortage(self._folder, free, self._required_mb)
        if problem and not self._short:
            self._report(problem)
        # A hysteresis, against repeated reports around the limit.
        elif self._short and free >= 1.1 * self._required_mb:
            self._report(f"{free} MiB are free again on the disk of {self._folder}")
        else:
            return
        self._short = bool(problem)


_PID_DIGITS = 10

Access = Literal["owner", "group"]

"""Access to the data directory: see stack.home_access."""

_MODE: dict[Access, int] = {"owner": 0o700, "group": 0o2770}

_OTHERS: dict[Access, int] = {"owner": 0o077, "group": 0o007}

# Marks of an engine's directory, whose mode may be changed. `--home /srv` has none.
_MARKS = ("run/lock", KEY_FILE, "users.toml")


def make_home(path: Path, access: Access) -> str:
    """Create the data directory, readable by its owner only: it contains payloads and addresses. An existing one is
    narrowed. Returns a text about changes for the log, usually empty. Raises OSError."""
    if not path.exists():
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(_MODE[access])
        return ""
    mode = stat.S_IMODE(path.stat().st_mode)
    required = mode & ~_OTHERS[access] | _MODE[access]
    if mode == required:
        return ""
    if path.name != ".arborcast" and any(path.iterdir()) and not any((path / mark).is_file() for mark in _MARKS):
        return (
            f"the data directory {path} has other things in it, so its mode stays {mode:03o}; files of the "
            f"engine are accessible to its {access} only"
        )
    try:
        if access == "group":
            _share(path)
        path.chmod(required)
    except OSError as error:
        return (
            f"the data directory {path} has the mode {mode:03o}, which cannot be changed to {required:03o}: "
            f"{error.strerror}"
        )
    shared = '; stack.home_access = "group" shares it with its group' if access == "owner" else ""
    return f"the data directory {path} had the mode {mode:03o}, now it has {required:03o}{shared}"


# Files that may have passwords or keys, by the ends of their names.
_OF_OWNER = frozenset({".key", ".keys", ".pem", ".properties", ".toml"})


def _share(path: Path) -> None:
    """Give the group access to existing files except those with passwords and keys; its folders give their group to
    later files. Raises OSError."""
    for folder, _, names in os.walk(path, topdown=False):
        for file in (Path(folder, name) for name in names):
            if not file.is_symlink():
                file.chmod(0o600 if file.suffix in _OF_OWNER else 0o660)
        os.chmod(folder, _MODE["group"])


def keep_private(access: Access) -> None:
    """Restrict files of this process and its children to these users from now on."""
    os.umask(_OTHERS[access])


class Home:
    """The folders and files of one engine. `run` has the state of a running one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = path / "run"
        self.logs = path / "log"
        self.metrics = path / "metrics"
        self.kafka = path / "kafka"
        self.spark = self.run / "spark"  # Spark's working folder and temporary files
        self.state_file = self.run / "state.json"
        self.lock_file = self.run / "lock"
        self.settings_file = self.run / "arborcast.toml"  # the effective settings of the parts
        self.ready_file = self.run / "dispatch.ready"  # written by the dispatch job when it is ready to deliver
        self.restoring = path / "restoring"  # a mark that is there until a restore is complete

    def log(self, part: str) -> Path:
        return self.logs / f"{part}.log"

    def create(self, min_free_mb: int = 0, access: Access = "owner") -> str:
        """Create the folders; returns the text of `make_home`. Raises HomeError if they cannot be written or the disk
        is nearly full."""
        try:
            if self.restoring.exists():
                raise HomeError(
                    f"the restore into {self.path} did not end, so files are missing: empty this directory, and "
                    "restore the backup again"
                )
            note = make_home(self.path, access)
            for folder in (self.run, self.logs):
                folder.mkdir(exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error
        self.check_writable()
        self.check_room(self.path, min_free_mb)
        return note

    def check_writable(self) -> None:
        """Raises HomeError if files cannot be created here. access() does not detect read-only and network file
        systems."""
        try:
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise self._unusable(error) from error

    def check_room(self, folder: Path, min_free_mb: int) -> None:
        """Raises HomeError if the disk of `folder` has less space than required."""
        free = free_mb(folder)
        if free < min_free_mb:
            raise HomeError(
                f"only {free} MiB are free in the data directory {self.path}, and at least {min_free_mb} MiB are "
                "required (stack.min_free_disk_mb); free some space, or choose another with --home DIR"
            )

    def _unusable(self, error: OSError) -> HomeError:
        return HomeError(
            f"the data directory {self.path} cannot be written: {reason_of(error)}; choose another with --home DIR"
        )

    def owner(self) -> int | None:
        """Process id of the running supervisor; None without one, 0 if it has not written it yet. Raises HomeError
        without permission."""
        try:
            with self.lock_file.open("r+") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return _read_pid(lock)
        except PermissionError as error:
            raise HomeError(
                f"this user may not see whether an engine runs in {self.path}: be its owner, or have it shared with "
                'stack.home_access = "group"'
            ) from error
        except OSError:
            pass
        return None

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Exclude other engines from this directory. Raises HomeInUse. Yields the lock's file descriptor.

        The kernel releases the lock when its process ends, so a killed supervisor leaves none.
        """
        # Not in append mode, in which a file can only be written at its end.
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
        """Write the own process id into the held lock."""
        # Same length as the last one: `down` can write it on a full disk, too.
        signature = f"{os.getpid():<{_PID_DIGITS}}\n".encode()
        os.pwrite(lock, signature, 0)
        os.ftruncate(lock, len(signature))


def _lock(lock: IO[str]) -> bool:
    for _ in range(10):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.02)  # possibly a process that only checks (`owner`)
    return False


def _read_pid(lock: IO[str]) -> int:
    lock.seek(0)
    text = lock.read().strip()
    return int(text) if text.isdecimal() else 0
