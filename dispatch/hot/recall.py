"""What an earlier run of a batch came to, as far as it had been written down when it was cut off.

After a crash Spark repeats the batch. Whatever the `attempts` log tells of it is not pushed again, so that only what
was under way in that moment, or just before, arrives twice. No other batch has its number.

The log is read since the batch was planned, which may be long ago when it was repeated often. What others have written
meanwhile, the redelivery above all, is passed over unread; what is left is not more than the batch's own deliveries.
"""

from __future__ import annotations

import logging
import time

from core.eventlog.client import ConsumerRecord
from core.eventlog.scan import LogScan
from core.eventlog.settings import KafkaSettings
from dispatch.logs import attempts

Settled = frozenset[tuple[str, str]]
"""Subscriptions and notifications of which something is known already."""

logger = logging.getLogger(__name__)

# What was written for the batch has a time stamp behind the batch's own, by clocks of several machines.
_CLOCKS_MS = 60_000

# How far back the newest batch is looked for, in seconds, before all of the log is read.
_LOOKS_BACK_S = (60, 3_600, 86_400)


def recall(kafka: KafkaSettings, batch: int, planned_ms: int, timeout_s: float) -> Settled:
    """The deliveries of a batch, planned at that time, that have a row in the `attempts` log.

    Raises InfrastructureError when the log cannot be read to its end in time.
    """
    found: set[tuple[str, str]] = set()
    with LogScan(kafka, "attempts", timeout_s) as log:
        for record in log.read_from(log.at(planned_ms - _CLOCKS_MS)):
            if record.value is not None and attempts.batch_of(record.key) in (batch, None):
                found.update(_of_batch(record.value, batch))
    if found:
        logger.info("%d deliveries of batch %d were settled before it was cut off", len(found), batch)
    return frozenset(found)


def newest_batch(kafka: KafkaSettings, timeout_s: float) -> int:
    """The highest number of a batch that the `attempts` log tells of, NO_BATCH when there is none.

    Raises InfrastructureError when the log cannot be read to its end in time.
    """
    now_ms = int(time.time() * 1000)
    with LogScan(kafka, "attempts", timeout_s) as log:
        for since_ms in (*(now_ms - back_s * 1000 for back_s in _LOOKS_BACK_S), 0):
            newest = max(map(_newest, log.read_from(log.at(since_ms))), default=attempts.NO_BATCH)
            if newest != attempts.NO_BATCH:
                break
    return newest


def _newest(record: ConsumerRecord) -> int:
    named = attempts.batch_of(record.key)
    if named is not None or record.value is None:
        return attempts.NO_BATCH if named is None else named
    rows, evaluation = attempts.decode_all(record.value)
    evaluated = evaluation.batch if evaluation is not None else attempts.NO_BATCH
    return max((each.batch for each in rows), default=evaluated)


def _of_batch(value: bytes, batch: int) -> set[tuple[str, str]]:
    return {(each.subscription, each.notification) for each in attempts.decode(value) if each.batch == batch}
