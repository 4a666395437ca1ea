"""Which notifications were not yet dispatched for certain, told from what batches have written. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

# Records are time-stamped by other machines than notifications.
_CLOCKS_MS = 60_000


class Evaluated(NamedTuple):
    """A record about what a batch has made of notifications of one partition: from which offset to which, and when it
    was written."""

    written_ms: int
    batch: int
    partition: int
    first: int
    last: int


class Progress(NamedTuple):
    """How far batches have come for certain.

    What lies at or behind `begins` of its partition may be under way. In other partitions what was accepted after
    `before_ms` may be; None means that nothing is known of them.
    """

    begins: Mapping[int, int]
    behind: Mapping[int, int]
    before_ms: int | None

    def first_owed(self, partition: int, at_before: int) -> int:
        """The first offset of a partition that is not settled or parked for certain. `at_before` is the first that was
        written at `before_ms` or later."""
        if partition in self.begins:
            return self.begins[partition]
        return max(at_before, self.behind.get(partition, 0))


def progress(seen: Iterable[Evaluated]) -> Progress:
    """What the newest records say. A batch begins when the one before it has come to its end, all outcomes written: so
    everything before the newest batch is done, and the newest may be cut off anywhere.

    Before there were `dispatch.batch_numbers` they began anew with a new checkpoint, and clocks differ: older is what
    has a lower number, or is older by more than clocks differ.
    """
    known = list(seen)
    if not known:
        return Progress({}, {}, None)
    newest = max(known)
    begins: dict[int, int] = {}
    behind: dict[int, int] = {}
    before_ms = None
    for each in known:
        if each.batch < newest.batch or each.written_ms < newest.written_ms - _CLOCKS_MS:
            behind[each.partition] = max(behind.get(each.partition, 0), each.last + 1)
            before_ms = max(before_ms or 0, each.written_ms - _CLOCKS_MS)
        else:
            begins[each.partition] = min(begins.get(each.partition, each.first), each.first)
    return Progress(begins, behind, before_ms)
