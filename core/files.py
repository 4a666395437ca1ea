"""Atomically replaced files, shared memory, and files that are read again after a change."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from mmap import mmap
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from arborcast.core.errors import ConfigError
from arborcast.core.reasons import reason_of

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_CHECK_INTERVAL_S = 1.0


class Stamp(NamedTuple):
    """Identifies one version of a file."""

    modified_ns: int
    size: int
    inode: int


def stamp_of(status: os.stat_result) -> Stamp:
    return Stamp(status.st_mtime_ns, status.st_size, status.st_ino)


def access_stamp(status: os.stat_result) -> tuple[Stamp, int]:
    """The stamp with the time of the last chmod or chown: a file that could not be read may be readable after it."""
    return stamp_of(status), status.st_ctime_ns


def readable_by_others(status: os.stat_result) -> bool:
    """Whether other users can read a file of secrets with this status. A file of root is private if its group may only
    read it, as a mounted Secret of Kubernetes: root gives it to the group of the reading process."""
    of_root = status.st_uid == 0 and os.geteuid() != 0
    return status.st_mode & 0o077 not in ((0, stat.S_IRGRP) if of_root else (0,))


def write_atomically(
    path: Path,
    content: bytes | mmap | str,
    *,
    mode: int | None = None,
    durable: bool = True,
    check: Callable[[], object] = lambda: None,
) -> Stamp:
    """Replace a file atomically; readers get the old or the new one. `mode` is the permission bits, by default those of
    new files. As root the owner stays: a service must be able to read its key file after `sudo arborcast keys new`.
    `durable`: the new file survives a crash of the machine; otherwise the old one may return. The stamp is
    taken before the replacement, so a change by another process right afterwards is detected. `check` is called just
    before the replacement; its exception leaves the old file. Raises OSError."""
    # Native thread ids are unique in a container, so concurrent drafts of one file have different names.
    draft = path.with_name(f".{path.name}.{os.uname().nodename}.{threading.get_native_id()}")
    try:
        draft.unlink(missing_ok=True)  # left by a killed thread
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666 if mode is None else 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            if mode is not None:
                os.fchmod(descriptor, mode)
            if os.geteuid() == 0:
                with contextlib.suppress(OSError):  # a new file, or a container without this capability
                    status = path.stat()
                    os.fchown(descriptor, status.st_uid, status.st_gid)
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            if durable:
                os.fsync(descriptor)
            stamp = stamp_of(os.fstat(descriptor))
        check()
        os.replace(draft, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        if isinstance(error, OSError):
            error.filename = str(path)  # not the draft
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return stamp


def write_output(path: Path, content: bytes | str) -> None:
    """Write a file that an operator names: the whole one, or the old one stays. A device or a pipe is written to, not
    replaced. Raises OSError."""
    if path.exists() and not path.is_file():
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    else:
        write_atomically(path.resolve(), content)


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """A context for reading and replacing a file: concurrent ones, also of other processes, come one after the other.
    It makes the folder of the file. Raises OSError if it cannot."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        # The replacement reports a folder that cannot be written. Some network file systems have no such locks.
        with contextlib.suppress(OSError):
            folder = os.open(path.parent, os.O_RDONLY)  # the file itself is replaced
            stack.callback(os.close, folder)
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield


def shared_memory(path: Path) -> memoryview:
    """A file as memory shared by all processes that map it. Raises OSError, ValueError."""
    with path.open("r+b") as opened:
        return memoryview(mmap(opened.fileno(), 0))


def new_shared_memory(path: Path, size: int) -> memoryview:
    """A zero-filled new file as shared memory. Processes that have mapped an older file of this name do not share
    it. Raises OSError without the space: a later write to a hole of the file would kill the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(bytes(size))
    return shared_memory(path)


class WatchedFile(Generic[_T]):
    """A value that `read` returns for a file's text and name. A changed file is read again; while it cannot be read,
    the last value stays. The constructor raises ConfigError, later reads only log."""

    _value: _T

    def __init__(self, path: Path, read: Callable[[str, str], _T], clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._read = read
        self._clock = clock
        self._next_check = clock() + _CHECK_INTERVAL_S
        self._logged = ""  # the last problem
        self._stamp: tuple[Stamp, int] | None = None
        self._check()

    @property
    def value(self) -> _T:
        """The current value. Checks the file for changes at most once a second."""
        now = self._clock()
        if now >= self._next_check:
            self._next_check = now + _CHECK_INTERVAL_S
            problem = ""
            try:
                self._check()
            except ConfigError as error:
                problem = str(error)
                if problem != self._logged:  # a missing file is logged once
                    logger.error("%s; its previous content stays in force", error)
            self._logged = problem
        return self._value

    def _check(self) -> None:
        try:
            stamp = access_stamp(self._path.stat())
            if stamp == self._stamp:
                return
            # A failed read is repeated, as with too many open files; invalid text is parsed once for each change.
            text = self._path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be read: {reason_of(error)}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self._path} is not UTF-8") from error
        again, self._stamp = self._stamp is not None, stamp
        self._value = self._read(text, str(self._path))
        if again:
            logger.info("%s was read again", self._path)
