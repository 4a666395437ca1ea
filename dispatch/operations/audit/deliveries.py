"""What became of deliveries, as columns of numbers: some forty bytes for each of millions. Pure.

Ids are represented by 64-bit hashes. Among a million of them two are equal once in thirty million audits; that audit
would name one notification too many, and a look at it would show that nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from dispatch.logs.attempts import State
from dispatch.operations.audit.slim import SlimRow

Numbers = npt.NDArray[np.int64]

DELIVERED, DEAD, EXPIRED, CANCELLED, PENDING, PURGED = range(6)
"""What a delivery came to. A purged one is dead, and nothing of it is kept."""

_CODES: dict[State, int] = {
    "delivered": DELIVERED,
    "dead": DEAD,
    "expired": EXPIRED,
    "cancelled": CANCELLED,
    "parked": PENDING,
    # What failed before there were retries was given up without a dead letter.
    "failed": PURGED,
}

REDRIVEN = "redriven"
"""The `error` of the row that says that a dead letter is tried again: the one way from a final state to another."""
PURGED_ERROR = "purged"
"""The `error` of the row that says that a dead letter was thrown away."""

_SPREAD = np.int64(-7046029254386353131)  # 2**64 / golden ratio, odd
_BITS = (1 << 64) - 1


def notification_key(notification: str) -> int:
    """What a notification is called in the columns."""
    return hash(notification)


def delivery_key(notification: str, subscription: str) -> int:
    """What a delivery is called in the columns."""
    mixed = (hash(notification) * int(_SPREAD) + hash(subscription)) & _BITS
    return mixed - (1 << 64) if mixed >> 63 else mixed


@dataclass
class Deliveries:
    """Rows, or what they come to: as many entries in each column as there are of them."""

    key: Numbers
    notification: Numbers
    subscription: npt.NDArray[np.int32]
    state: npt.NDArray[np.int8]
    redriven: npt.NDArray[np.bool_]
    accepted_ms: Numbers
    delivered: npt.NDArray[np.int32]
    """How often a receiver has taken it."""
    by_batches: npt.NDArray[np.int32]
    """How many rows of batches it has; one, unless a batch was repeated or the notification stands twice in its log."""

    def __len__(self) -> int:
        return len(self.key)

    def __getitem__(self, rows: npt.NDArray[np.bool_] | Numbers) -> Deliveries:
        return Deliveries(*(getattr(self, each.name)[rows] for each in fields(self)))

    @staticmethod
    def joined(parts: Sequence[Deliveries]) -> Deliveries:
        """One behind the other."""
        return Deliveries(
            *(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(Deliveries))
        )


class SubscriptionNumbers(dict[str, int]):
    """Numbers for subscriptions, given when they are first asked for."""

    def __missing__(self, subscription: str) -> int:
        self[subscription] = number = len(self)
        return number


def columns(rows: Sequence[SlimRow], numbers: SubscriptionNumbers) -> Deliveries:
    """The rows as columns."""
    notification = np.array([hash(row.notification) for row in rows], np.int64)
    subscription = np.array([hash(row.subscription) for row in rows], np.int64)
    state = np.array([_CODES[row.state] for row in rows], np.int8)
    errors = [row.error for row in rows]
    if PURGED_ERROR in errors:
        state[[error == PURGED_ERROR for error in errors]] = PURGED
    redriven = np.zeros(len(rows), np.bool_)
    if REDRIVEN in errors:
        redriven[:] = [error == REDRIVEN for error in errors]
    with np.errstate(over="ignore"):
        key = notification * _SPREAD + subscription
    return Deliveries(
        key=key,
        notification=notification,
        subscription=np.array([numbers[row.subscription] for row in rows], np.int32),
        state=state,
        redriven=redriven,
        accepted_ms=np.array([row.accepted_ms for row in rows], np.int64),
        delivered=(state == DELIVERED).astype(np.int32),
        by_batches=np.array([row.batch >= 0 for row in rows], np.int32),
    )


def settled(rows: Deliveries) -> Deliveries:
    """One entry per delivery: what its rows, in the order written, come to.

    A final row counts, whatever comes after it: a batch writes what it has parked before it says so in a row, and the
    redelivery may be quicker. Only a row that says that a dead letter was redriven begins anew. May be applied to its
    own result, followed by more rows.
    """
    if not len(rows):
        return rows
    order = np.argsort(rows.key, kind="stable")
    rows = rows[order]
    begins = np.concatenate(([True], rows.key[1:] != rows.key[:-1]))
    starts = np.flatnonzero(begins)
    lengths = np.diff(np.append(starts, len(rows)))
    lives = np.cumsum(rows.redriven)
    last_life = np.repeat(lives[starts + lengths - 1], lengths)
    place = np.arange(len(rows), dtype=np.int64)
    rank = np.where(rows.state != PENDING, place + len(rows), place)
    rank[lives != last_life] = -1
    chosen = np.maximum.reduceat(rank, starts) % len(rows)
    result = rows[chosen]
    result.redriven = np.maximum.reduceat(rows.redriven, starts)
    result.delivered = np.add.reduceat(rows.delivered, starts)
    result.by_batches = np.add.reduceat(rows.by_batches, starts)
    # Redriven ones are accepted anew; the delivery is that of the notification, and as old.
    result.accepted_ms = np.minimum.reduceat(rows.accepted_ms, starts)
    return result
