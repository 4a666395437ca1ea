"""What the tasks of a batch report to the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.accumulators import AccumulatorParam

from arborcast.dispatch.delivery.health import Sign


@dataclass
class PartitionReport:
    """`reach` is how far each lane with something untried in it reaches into the `parked` log (partition, offset);
    `signs` what was seen of endpoints, where the driver does not take it for granted; `gone` the subscriptions whose
    receivers have ended them, `costly` those whose conditions cost more than they may. `repeated` says that a worker
    died before this one, and its report with it. `notifications` were matched, and came to so many `deliveries`,
    without those that were `thinned` for a minimum interval; `passed` is what counts for these next, by partition. By
    subscription and topic, where there is a deadline, `matched` is when the last one was accepted. `rest` says that
    there are more, for the next round: those behind the offsets `done`, by partition."""

    reach: dict[str, tuple[int, int]] = field(default_factory=dict)
    signs: list[tuple[str, Sign]] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    costly: set[str] = field(default_factory=set)
    repeated: bool = False
    notifications: int = 0
    deliveries: int = 0
    thinned: int = 0
    passed: dict[int, dict[tuple[str, str], int]] = field(default_factory=dict)
    matched: dict[tuple[str, str], int] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)
    rest: bool = False


class Reports(AccumulatorParam[list[PartitionReport]]):
    """An accumulator that collects. Reports of a task that failed do not arrive. It travels together with the task's
    end, so it costs a batch nothing of its own.
    """

    def zero(self, value: list[PartitionReport]) -> list[PartitionReport]:
        return []

    def addInPlace(self, value1: list[PartitionReport], value2: Sequence[PartitionReport]) -> list[PartitionReport]:
        value1.extend(value2)
        return value1
