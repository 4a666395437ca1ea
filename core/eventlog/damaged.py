"""Damaged records: their bytes are no record of Arborcast. Readers skip them: an error would stop a reader for ever."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from arborcast.core.errors import InfrastructureError, RecordVersionError
from arborcast.core.log_limit import LogLimit

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

# A log is read again and again, with the same damaged records: one of each log is logged in an hour.
_log_limit = LogLimit(1, 3_600.0)
_skipped: Counter[str] = Counter()


def unless_damaged(log: str, place: object, decode: Callable[..., _T], *values: object) -> _T | None:
    """The decoded record; None for a damaged one, which is counted and logged. `place` is its offset, or partition and
    offset. Raises RecordVersionError."""
    try:
        return decode(*values)
    except RecordVersionError:
        raise
    except (InfrastructureError, UnicodeDecodeError) as error:
        _skipped[log] += 1
        if _log_limit.passes(log):
            logger.error(
                "a damaged record of the %s log (%s) is skipped: %s. The next is logged in an hour; skipped so far: %d",
                log,
                place,
                error,
                _skipped[log],
            )
        return None
