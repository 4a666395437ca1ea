"""How long an audit takes: deliveries written straight into the logs of a real broker.

    python -m benchmarks.operation.audit [--quick] [--count N] [--json FILE]

Each notification is for ten subscriptions of 10,000; one in a hundred deliveries was parked and delivered later. The
time is that of the whole command but the start of Python: finding the place in the log, reading, comparing. `--deep`
is measured beside it: it folds the control log, matches everything anew and reads what is parked.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from arborcast.core.eventlog.writers import DurableWriter
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.attempts import Attempt, AttemptsLog, Matched
from arborcast.dispatch.operations.audit import audit
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.expressions import parse_friendly
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath
from benchmarks.harness import Report, resident, run
from tests.support.broker import new_broker, settings_for

_FAN_OUT = 10
_TOPICS = 1_000
_BATCH = 2_000
_TIMEOUT_S = 600.0


def measure(report: Report, asked_for: int | None = None) -> None:
    count = asked_for or (50_000 if report.quick else 1_000_000)
    count -= count % _FAN_OUT
    with tempfile.TemporaryDirectory() as folder:
        broker = new_broker(Path(folder))
        broker.start()
        try:
            kafka = settings_for(broker)
            since_ms = int(time.time() * 1000)
            _write(kafka, count)
            before = resident()
            shallow = audit(kafka, since_ms)
            grown = resident() - before
            deep = audit(kafka, since_ms, deep=True)
        finally:
            broker.kill()
    assert shallow.balanced, shallow.problems[:3]
    assert deep.balanced, deep.problems[:3]
    assert shallow.totals.delivered == count
    with report.table(f"Audit of {count:,} deliveries", "what", "figure") as table:
        table.add("notifications", shallow.notifications)
        table.add("rows read", shallow.rows)
        table.add("audit, seconds", shallow.seconds)
        table.add("audit, deliveries/s", count / shallow.seconds)
        table.add("resident memory grown by, MiB", grown / 2**20)
        table.add("audit --deep, seconds", deep.seconds)


def _asked_for() -> int | None:
    """The argument of --count, taken away: the others are those of every measurement."""
    if "--count" not in sys.argv:
        return None
    at = sys.argv.index("--count")
    count = int(sys.argv[at + 1])
    del sys.argv[at : at + 2]
    return count


def _write(kafka: KafkaSettings, count: int) -> None:
    with closing(ControlLog(kafka)) as control:
        control.ensure_created()
        subscriptions = [
            Subscription(
                id=f"subscription-{number:08}",
                consumer=EndpointReference(f"http://receiver{number}.example/"),
                topics=(parse_friendly(f"plant:line{number // _FAN_OUT}"),),
            )
            for number in range(_TOPICS * _FAN_OUT)
        ]
        known = control.append([SubscriptionRecord(each) for each in subscriptions]) + 1
    log, attempts = DurableWriter(kafka, "notifications"), AttemptsLog(kafka)
    attempts.connect()
    offsets: dict[int, int] = {}
    made = _notifications(count // _FAN_OUT)
    number = 0
    while batch := [each for _, each in zip(range(_BATCH), made, strict=False)]:
        matched: dict[int, list[Matched]] = {}
        for notification in batch:
            partition = int(notification.topic[10:]) % log.partitions
            log.send(partition, notifications.encode(notification)[1], notification.topic.encode())
            offset = offsets[partition] = offsets.get(partition, -1) + 1
            row = Matched(notification.id, notification.topic, notification.accepted_ms, offset, _FAN_OUT)
            matched.setdefault(partition, []).append(row)
        for partition, counts in matched.items():
            attempts.add_matched(partition, number, known, counts)
        for place, notification in enumerate(batch):
            for each in range(_FAN_OUT):
                subscription = subscriptions[int(notification.topic[10:]) * _FAN_OUT + each]
                if place % 10 == 0 and each == 0:
                    attempts.add(_row(notification, subscription, number, parked=True))
                attempts.add(_row(notification, subscription, number))
        log.settle(_TIMEOUT_S)
        attempts.settle(_TIMEOUT_S)
        number += 1
    attempts.close()
    log.close()


def _notifications(count: int) -> Iterator[Notification]:
    for number in range(count):
        yield Notification(
            f"{number:032x}", TopicPath(f"plant/line{number % _TOPICS}"), b"<m>x</m>" * 40, int(time.time() * 1000)
        )


def _row(notification: Notification, subscription: Subscription, batch: int, parked: bool = False) -> Attempt:
    return Attempt(
        notification=notification.id,
        subscription=subscription.id,
        topic=notification.topic,
        endpoint=subscription.consumer.address,
        number=1,
        push=f"0123456789abcdef-{batch}",
        state="parked" if parked else "delivered",
        accepted_ms=notification.accepted_ms,
        started_ms=notification.accepted_ms + 40,
        duration_ms=3.25,
        status=202,
        request_bytes=1_500,
        reused=True,
        batch=batch,
    )


if __name__ == "__main__":
    run(partial(measure, asked_for=_asked_for()))
