"""Records of operations while no broker answers: a file in the data directory, which the next gateway appends. Its lock
keeps a record that another process stores at that time."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from arborcast.core.errors import InfrastructureError, RecordVersionError
from arborcast.topic_model.control_log import OperationsLog
from arborcast.topic_model.records import operations
from arborcast.topic_model.records.operations import OperationBegun, OperationEnded

logger = logging.getLogger(__name__)

PENDING = "operations.jsonl"


def store_pending(home: Path, records: Iterable[OperationBegun | OperationEnded]) -> None:
    """Store records of operations until a broker answers. Raises OSError."""
    with os.fdopen(os.open(home / PENDING, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # Each begins a line: the last one may be cut off, by a full disk.
        file.write(b"".join(b"\n" + operations.encode(each)[1] for each in records))


def append_pending(home: Path, log: OperationsLog) -> None:
    """Append these records to the log, and empty the file. Raises InfrastructureError; then the file stays. Repeated
    records have no effect."""
    file = home / PENDING
    try:
        opened = file.open("r+b")
    except FileNotFoundError:
        return
    except OSError as error:
        logger.error("%s cannot be read, and its operations are not recorded: %s", file, error)
        return
    with opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        for line in filter(None, opened.read().splitlines()):
            try:
                record = operations.decode(line)
            except (InfrastructureError, RecordVersionError) as error:
                logger.error("a line of %s is left out: %s", file, error)
            else:
                log.append(record)
        opened.truncate(0)
