"""Records of the `attempts` log, as batches and the redelivery write them."""

from __future__ import annotations

from collections.abc import Sequence

from arborcast.dispatch.logs import attempts
from arborcast.dispatch.logs.attempts import Attempt, ErrorClass, Evaluation, Matched, State
from arborcast.topic_model.topics import TopicPath
from tests.support.table_rows import attempt

T0 = 1_700_000_000_000
"""When the notifications were accepted, in milliseconds."""
TOPIC = TopicPath("a/b")


def row(
    notification: str,
    subscription: str,
    state: State = "delivered",
    batch: int = 0,
    *,
    accepted_ms: int = T0,
    error: ErrorClass = "",
) -> Attempt:
    """A row of one delivery."""
    times = {"accepted_ms": accepted_ms, "started_ms": accepted_ms + 5}
    return attempt(notification, subscription, state, push="p", error=error, batch=batch, **times)


def rows(*given: Attempt) -> bytes:
    """One record of rows."""
    return attempts.encode(*given)


def evaluation(
    counts: dict[str, int],
    *,
    batch: int = 0,
    control: int = 10,
    partition: int = 0,
    first: int = 0,
    offsets: Sequence[int] = (),
    accepted_ms: int = T0,
    topic: str = TOPIC,
    caused: bool = False,
    priority: int = 0,
) -> bytes:
    """One record: successive notifications from offset `first`, each for this many subscriptions."""
    places = offsets or range(first, first + len(counts))
    matched = [
        Matched(notification, TopicPath(topic), accepted_ms, offset, count, caused=caused, priority=priority)
        for (notification, count), offset in zip(counts.items(), places, strict=True)
    ]
    (value,) = attempts.encode_evaluation(Evaluation(partition, batch, control, matched))
    return value
