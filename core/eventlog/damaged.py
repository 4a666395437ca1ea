"""Damaged records: their bytes are no record of Arborcast. Readers skip them: an error would stop a reader for ever."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from arborcast.core.errors import InfrastructureError, RecordVersionError
from arborcast.core.log_limit import LogLimit

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

# A log is read again and again, with the same damaged records.
_LOG_AGAIN_S = 3_600.0


class DamagedRecords:
    """Counts the skipped records of each log, and logs one of each log in an hour."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._log_limit = LogLimit(1, _LOG_AGAIN_S, clock)
        self._skipped: Counter[str] = Counter()

    def skip(self, log: str, place: object, error: Exception) -> None:
        """A record was skipped. `place` is its offset, or partition and offset."""
        self._skipped[log] += 1
        if self._log_limit.passes(log):
            logger.error(
                "a damaged record of the %s log (%s) is skipped: %s. The next is logged in an hour; skipped so far: %d",
                log,
                place,
                error,
                self._skipped[log],
            )


_of_process = DamagedRecords()


def unless_damaged(log: str, place: object, decode: Callable[..., _T], *values: object) -> _T | None:
    """The decoded record; None for a damaged one, which is counted and logged. Raises RecordVersionError."""
    try:
        return decode(*values)
    except RecordVersionError:
        raise
    except (InfrastructureError, UnicodeDecodeError) as error:
        _of_process.skip(log, place, error)
        return None
