"""Dead letters: the `dead` log has given-up deliveries with their messages.

Compacted, keyed by delivery like the `parked` log, so that a letter can be redriven at its place: a null removes a
redriven or purged one.
"""

from __future__ import annotations

import msgspec

from arborcast.core.versions import RecordCodec
from arborcast.dispatch.logs.attempts import Attempt, ErrorClass, State
from arborcast.topic_model.records.notifications import Notification

VERSION = 1


class DeadLetter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A delivery that was given up or expired (`state`) after `number` attempts, with the error of the last one.
    `at_ms` is the time, in milliseconds since the epoch, `push` the last request, and `response` the beginning of its
    answer."""

    subscription: str
    endpoint: str
    notification: Notification
    state: State
    at_ms: int
    number: int
    error: ErrorClass = ""
    detail: str = ""
    status: int = 0
    push: str = ""
    response: bytes = b""


def letter_of(attempt: Attempt, notification: Notification) -> DeadLetter:
    return DeadLetter(
        subscription=attempt.subscription,
        endpoint=attempt.endpoint,
        notification=notification,
        state=attempt.state,
        at_ms=attempt.started_ms,
        number=attempt.number,
        error=attempt.error,
        detail=attempt.detail,
        status=attempt.status,
        push=attempt.push,
        response=attempt.response,
    )


_codec = RecordCodec[DeadLetter](DeadLetter, "a dead letter", VERSION, name="letter")

encode, decode = _codec.encode, _codec.decode
"""The Kafka value of a dead letter. `decode` raises RecordVersionError if a newer Arborcast wrote it."""
