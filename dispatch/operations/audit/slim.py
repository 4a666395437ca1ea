"""What the audit reads of the `attempts` log: the records of `dispatch.logs.attempts`, decoded as far as needed.

A million rows are decoded in about a second so; with all their columns, and what Python makes of them, in five.
"""

from __future__ import annotations

import msgspec

from core.eventlog.versions import Versioned, VersionedCodec
from dispatch.logs.attempts import VERSION, Evaluation, State


class SlimRow(msgspec.Struct, frozen=True, gc=False):
    """The fields of an Attempt that say what became of which delivery."""

    notification: str
    subscription: str
    state: State
    accepted_ms: int
    error: str = ""
    batch: int = 0


class SlimRecord(Versioned, frozen=True, gc=False):
    """One record."""

    attempts: list[SlimRow]
    evaluation: Evaluation | None = None


decode = VersionedCodec(SlimRecord, "an attempts record", VERSION).decode
