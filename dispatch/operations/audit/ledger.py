"""The fold over the `attempts` log: evaluations on one side, deliveries on the other. Pure."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dispatch.logs.attempts import Evaluation
from dispatch.operations.audit.deliveries import (
    Deliveries,
    Numbers,
    SubscriptionNumbers,
    columns,
    notification_key,
    settled,
)
from dispatch.operations.audit.slim import SlimRow, decode

# Rows are made into columns so many at a time, and columns are drawn together so many at a time: memory is that of the
# deliveries, whatever number of tries they have had.
_ROWS_AT_ONCE = 20_000

_DRAW_TOGETHER = 4_000_000


@dataclass
class Evaluations:
    """What was said of each place in the `notifications` log, one entry for each.

    `least` and `most` are how many deliveries there may be. A batch that is repeated after a crash evaluates again, by
    the subscriptions that there are then, and delivers to all of these for whom it has no row yet: the last evaluation
    is the least that there must be. Rows of the earlier one remain, for subscriptions that ended in between: when the
    evaluations differ there may be as many as all of them together.
    """

    notification: Numbers
    partition: npt.NDArray[np.int32]
    offset: Numbers
    accepted_ms: Numbers
    control: Numbers
    batch: Numbers
    written_ms: Numbers
    topic: npt.NDArray[np.int32]
    least: Numbers
    most: Numbers
    index: Numbers
    """Where its id is among `Ledger.ids`."""

    def __len__(self) -> int:
        return len(self.notification)


class Ledger:
    """Everything that was read of the log."""

    def __init__(self) -> None:
        self.numbers = SubscriptionNumbers()
        self.topics = SubscriptionNumbers()
        self.ids: list[str] = []
        self.rows = 0
        self.newest_batch = -1
        self._open: list[SlimRow] = []
        self._parts: list[Deliveries] = []
        self._undrawn = 0
        self._columns: dict[str, array[int]] = {
            name: array("q")
            for name in (
                "notification",
                "partition",
                "offset",
                "accepted_ms",
                "count",
                "control",
                "batch",
                "written_ms",
                "topic",
            )
        }

    def add(self, value: bytes | None, written_ms: int = 0) -> None:
        """Fold one record in, in the order of its partition; raises RecordVersionError and InfrastructureError."""
        record = decode(value)
        if record.attempts:
            self.rows += len(record.attempts)
            self._open += record.attempts
            if len(self._open) >= _ROWS_AT_ONCE:
                self._close_rows()
        if record.evaluation is not None:
            self._evaluate(record.evaluation, written_ms)

    def deliveries(self) -> Deliveries:
        """One entry per delivery."""
        self._close_rows()
        if not self._parts:
            self._parts = [columns([], self.numbers)]
        self._draw_together()
        return self._parts[0]

    def evaluations(self) -> Evaluations:
        """One entry per place."""
        columns = {name: np.array(values, np.int64) for name, values in self._columns.items()}
        order = np.lexsort((columns["offset"], columns["partition"]))  # stable: the last one written stays the last
        c = {name: values[order] for name, values in columns.items()}
        if not len(order):
            return _evaluations(c, order, c["count"], c["count"])
        begins = np.concatenate(
            ([True], (c["offset"][1:] != c["offset"][:-1]) | (c["partition"][1:] != c["partition"][:-1]))
        )
        starts = np.flatnonzero(begins)
        last = np.append(starts[1:], len(order)) - 1
        least = c["count"][last]
        greatest = np.maximum.reduceat(c["count"], starts)
        same = (np.minimum.reduceat(c["count"], starts) == greatest) & (
            np.minimum.reduceat(c["control"], starts) == np.maximum.reduceat(c["control"], starts)
        )
        most = np.where(same, greatest, np.add.reduceat(c["count"], starts))
        return _evaluations({name: values[last] for name, values in c.items()}, order[last], least, most)

    def _evaluate(self, evaluation: Evaluation, written_ms: int) -> None:
        matched = evaluation.matched
        size = len(matched)
        self.newest_batch = max(self.newest_batch, evaluation.batch)
        self.ids += [each.notification for each in matched]
        c = self._columns
        c["notification"].extend([notification_key(each.notification) for each in matched])
        c["partition"].extend([evaluation.partition] * size)
        c["offset"].extend([each.offset for each in matched])
        c["accepted_ms"].extend([each.accepted_ms for each in matched])
        c["count"].extend([each.subscriptions for each in matched])
        c["control"].extend([evaluation.control] * size)
        c["batch"].extend([evaluation.batch] * size)
        c["written_ms"].extend([written_ms] * size)
        c["topic"].extend([self.topics[each.topic] for each in matched])

    def _close_rows(self) -> None:
        if self._open:
            self._parts.append(columns(self._open, self.numbers))
            self._undrawn += len(self._open)
            self._open = []
            if self._undrawn >= _DRAW_TOGETHER:
                self._draw_together()

    def _draw_together(self) -> None:
        self._parts = [settled(Deliveries.joined(self._parts))]
        self._undrawn = 0


def _evaluations(c: dict[str, Numbers], index: Numbers, least: Numbers, most: Numbers) -> Evaluations:
    return Evaluations(
        notification=c["notification"],
        partition=c["partition"].astype(np.int32),
        offset=c["offset"],
        accepted_ms=c["accepted_ms"],
        control=c["control"],
        batch=c["batch"],
        written_ms=c["written_ms"],
        topic=c["topic"].astype(np.int32),
        least=least,
        most=most,
        index=index,
    )
