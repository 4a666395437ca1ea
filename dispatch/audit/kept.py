"""Whether what waits is in the `parked` log, and what was given up in the `dead` log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from dispatch.audit.balance import Balance, Stretch
from dispatch.audit.deliveries import DEAD, EXPIRED, PENDING, Deliveries, delivery_key
from dispatch.audit.ledger import Ledger
from dispatch.audit.reading import LogReading
from dispatch.audit.report import Kind, Problem
from dispatch.redelivery import dead_letters, parked
from topic_model.settings import KafkaSettings

_LOOK_AGAIN_S = 0.5


class _Id(msgspec.Struct, frozen=True, gc=False):
    id: str


class _Content(msgspec.Struct, frozen=True, gc=False):
    notification: _Id


class _Parked(msgspec.Struct, frozen=True, gc=False):
    v: int
    record: _Content


class _Dead(msgspec.Struct, frozen=True, gc=False):
    v: int
    letter: _Content


_parked_decoder = msgspec.msgpack.Decoder(_Parked)
_dead_decoder = msgspec.msgpack.Decoder(_Dead)


def _parked_id(value: bytes) -> str:
    """The notification in a record, without making anything of the rest of it."""
    try:
        record = _parked_decoder.decode(value)
        if record.v <= parked.VERSION:
            return record.record.notification.id
    except msgspec.DecodeError:
        pass
    decoded = parked.decode(value)  # says what is wrong with it
    return decoded.notification.id if isinstance(decoded, parked.Parked) else ""


def _dead_id(value: bytes) -> str:
    try:
        record = _dead_decoder.decode(value)
        if record.v <= dead_letters.VERSION:
            return record.letter.notification.id
    except msgspec.DecodeError:
        pass
    return dead_letters.decode(value).notification.id


class _Keeper(NamedTuple):
    """A compacted log, and the states of the deliveries that must be in it."""

    log: Literal["parked", "dead"]
    kind: Kind
    states: tuple[int, ...]
    notification_of: Callable[[bytes], str]


_KEEPERS = (
    _Keeper("parked", "not-parked", (PENDING,), _parked_id),
    _Keeper("dead", "no-letter", (DEAD, EXPIRED), _dead_id),
)


def check_kept(
    kafka: KafkaSettings, ledger: Ledger, found: Balance, read_on: Callable[[], None], patience_s: float, limit: int
) -> None:
    """Add to the report the deliveries of the interval that are not kept where they must be.

    What is not found is looked for again for some seconds, its state, too: it may have come to something else.
    """
    notifications_inside = found.evaluations.notification
    for keeper in _KEEPERS:
        deadline = time.monotonic() + patience_s
        while True:
            deliveries = ledger.deliveries()
            inside = np.isin(deliveries.state, keeper.states) & np.isin(deliveries.notification, notifications_inside)
            lacking = _lacking(kafka, keeper, deliveries[inside])
            if not len(lacking) or time.monotonic() > deadline:
                break
            time.sleep(_LOOK_AGAIN_S)
            read_on()
        found.report.blame(_problems(keeper.kind, ledger, found, lacking, limit), len(lacking), limit)


def _lacking(kafka: KafkaSettings, keeper: _Keeper, deliveries: Deliveries) -> Deliveries:
    """Those of the deliveries that the log does not hold. Memory is that of these deliveries, not of the log."""
    if not len(deliveries):
        return deliveries
    wanted = set(deliveries.key.tolist())
    held: dict[bytes, int] = {}
    with LogReading(kafka, keeper.log) as log:
        ends = log.ends()
        for record in log.read({number: Stretch(first, ends[number]) for number, first in log.beginnings().items()}):
            subscription, _, place = record.key.partition(b"\t")
            if b"\t" in place:
                continue  # its tries
            if record.value is None:
                held.pop(record.key, None)
                continue
            key = delivery_key(keeper.notification_of(record.value), subscription.decode())
            if key in wanted:
                held[record.key] = key
    kept = np.fromiter(set(held.values()), np.int64)
    return deliveries[~np.isin(deliveries.key, kept)]


def _problems(kind: Kind, ledger: Ledger, found: Balance, lacking: Deliveries, limit: int) -> list[Problem]:
    subscriptions, topics = list(ledger.numbers), list(ledger.topics)
    evaluations = found.evaluations
    problems = []
    for row in range(min(limit, len(lacking))):
        at = int(np.flatnonzero(evaluations.notification == lacking.notification[row])[0])
        problems.append(
            Problem(
                kind,
                ledger.ids[int(evaluations.index[at])],
                subscriptions[lacking.subscription[row]],
                topic=topics[evaluations.topic[at]],
                accepted_ms=int(evaluations.accepted_ms[at]),
                partition=int(evaluations.partition[at]),
                offset=int(evaluations.offset[at]),
            )
        )
    return problems
