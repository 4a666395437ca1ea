"""The folder of a backup: a file of records for each log, and `manifest.json` with their checksums, written last.

A file is gzip over frames: the length of the rest in four bytes, then key and value as a MessagePack array. Folder and
files are readable for their owner only: they contain messages.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import msgspec

from arborcast.core.errors import ArborcastError
from arborcast.core.files import write_atomically
from arborcast.core.reasons import reason_of

VERSION = 1
MANIFEST = "manifest.json"

_LENGTH = struct.Struct(">I")


class BackupError(ArborcastError):
    """A backup that cannot be written, read, or restored, with the reason."""


class BackupRecord(NamedTuple):
    """A record to be appended to a log."""

    key: bytes
    value: bytes | None


class Contents(msgspec.Struct, frozen=True):
    """Expected size and checksum of a log's file."""

    records: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """The manifest of a backup: its time, and its contents by log."""

    made_ms: int
    logs: dict[str, Contents]
    v: int = VERSION


_record = msgspec.msgpack.Decoder(BackupRecord)


def write_log(folder: Path, log: str, records: Iterable[BackupRecord]) -> Contents:
    """Write a log's file; complete on disk when it returns. Raises BackupError."""
    count = 0
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = _file(folder, log)
        with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600), "w+b") as raw:
            with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=1, mtime=0) as packed:
                for record in records:
                    frame = msgspec.msgpack.encode(record)
                    packed.write(_LENGTH.pack(len(frame)) + frame)
                    count += 1
            raw.flush()
            os.fsync(raw.fileno())
            raw.seek(0)
            return Contents(count, hashlib.file_digest(raw, "sha256").hexdigest())
    except FileExistsError as error:
        raise BackupError(f"{folder} has a backup already: choose an empty folder") from error
    except OSError as error:
        raise BackupError(f"the backup cannot be written to {folder}: {reason_of(error)}") from error


def seal(folder: Path, manifest: Manifest) -> None:
    """Write the manifest: the backup is complete. Raises BackupError."""
    try:
        write_atomically(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
    except OSError as error:
        raise BackupError(f"the backup cannot be written to {folder}: {reason_of(error)}") from error


def verify(folder: Path) -> Manifest:
    """The manifest of a backup that is complete and unchanged. Raises BackupError."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except FileNotFoundError as error:
        raise BackupError(f"there is no complete backup in {folder}: {MANIFEST} is missing") from error
    except (OSError, msgspec.DecodeError) as error:
        raise BackupError(f"{folder / MANIFEST} cannot be read: {reason_of(error)}") from error
    if manifest.v > VERSION:
        raise BackupError(f"the backup in {folder} was made by a newer Arborcast: upgrade it first")
    for log, contents in manifest.logs.items():
        try:
            with _file(folder, log).open("rb") as file:
                actual = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise BackupError(f"the backup in {folder} cannot be read: {reason_of(error)}") from error
        if actual != contents.sha256:
            raise BackupError(f"{_file(folder, log)} is damaged: use another backup")
    return manifest


def read_log(folder: Path, log: str) -> Iterator[BackupRecord]:
    """The records of a log, in their order. Raises BackupError."""
    try:
        with gzip.open(_file(folder, log)) as opened:
            packed = cast(BinaryIO, opened)
            while head := packed.read(_LENGTH.size):
                yield _record.decode(packed.read(_LENGTH.unpack(head)[0]))
    except (OSError, EOFError, zlib.error, struct.error, msgspec.DecodeError) as error:
        raise BackupError(f"{_file(folder, log)} cannot be read: {reason_of(error)}") from error


def _file(folder: Path, log: str) -> Path:
    return folder / f"{log}.records.gz"
