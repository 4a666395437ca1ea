"""The reports of tasks to the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.accumulators import AccumulatorParam

from arborcast.dispatch.delivery.health import Sign
from arborcast.dispatch.redelivery.events import NO_LETTERS, NewLetters


@dataclass
class PartitionReport:
    """The report of a task, or of a round of one."""

    # By lane with an untried delivery: partition and offset of the last one in the `parked` log.
    reach: dict[str, tuple[int, int]] = field(default_factory=dict)
    # By endpoint; without quick answers of healthy endpoints.
    signs: list[tuple[str, Sign]] = field(default_factory=list)
    # Subscriptions ended by their receivers (410), and those whose conditions exceed their budget.
    gone: set[str] = field(default_factory=set)
    costly: set[str] = field(default_factory=set)
    # Without those of system notices.
    new_letters: NewLetters = NO_LETTERS
    # An earlier worker of this task died, and its report was lost.
    repeated: bool = False
    # Matched notifications and their deliveries, without those thinned by a minimum interval.
    notifications: int = 0
    deliveries: int = 0
    thinned: int = 0
    # By partition: the minimum intervals, encoded.
    passed: dict[int, bytes] = field(default_factory=dict)
    # By subscription and topic with a deadline: when the last match was accepted.
    matched: dict[tuple[str, str], int] = field(default_factory=dict)
    # By partition: the offsets of this round; `rest`: there are more behind them.
    done: dict[int, int] = field(default_factory=dict)
    rest: bool = False
    # Pushes behind `done` were started.
    left: bool = False
    # Rows of the batch that were read, and their bytes; `unread`: there are more.
    read: int = 0
    size: int = 0
    unread: bool = False


class Reports(AccumulatorParam[list[PartitionReport]]):
    """An accumulator that collects reports, without those of failed tasks. It is sent with the end of a task, at no
    cost for a batch."""

    def zero(self, value: list[PartitionReport]) -> list[PartitionReport]:
        return []

    def addInPlace(self, value1: list[PartitionReport], value2: Sequence[PartitionReport]) -> list[PartitionReport]:
        value1.extend(value2)
        return value1
