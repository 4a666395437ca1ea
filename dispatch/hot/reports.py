"""What a partition of a batch tells the driver: all that the next batch has to know.

It travels through a Spark accumulator, together with the task's end, so it costs a batch nothing of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.accumulators import AccumulatorParam

from dispatch.health import Sign


@dataclass
class PartitionReport:
    """`reach` is how far each lane with something untried in it reaches into the `parked` log (partition, offset);
    `signs` what was seen of endpoints, where the driver does not take it for granted; `gone` the subscriptions whose
    receivers have ended them, `costly` those whose conditions cost more than they may. `repeated` says that a worker
    died before this one, and its report with it. `notifications` were matched, and came to so many `deliveries`. `rest`
    says that there are more, for the next round: those behind the offsets `done`, by partition."""

    reach: dict[str, tuple[int, int]] = field(default_factory=dict)
    signs: list[tuple[str, Sign]] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    costly: set[str] = field(default_factory=set)
    repeated: bool = False
    notifications: int = 0
    deliveries: int = 0
    done: dict[int, int] = field(default_factory=dict)
    rest: bool = False


class Reports(AccumulatorParam[list[PartitionReport]]):
    """An accumulator that collects. Reports of a task that failed do not arrive."""

    def zero(self, value: list[PartitionReport]) -> list[PartitionReport]:
        return []

    def addInPlace(self, value1: list[PartitionReport], value2: Sequence[PartitionReport]) -> list[PartitionReport]:
        value1.extend(value2)
        return value1
