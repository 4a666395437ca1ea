"""What subscriptions cost that do not match, and what changes of subscriptions cost, at 500 notifications a second.

python -m benchmarks.dispatch.churn [--quick] [--json FILE]
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from arborcast.topic_model.records.control import ControlRecord, SubscriptionEnded, SubscriptionRecord, TopicRecord
from arborcast.topic_model.subscriptions import EndpointReference, Subscription, TopicFilter
from arborcast.topic_model.topics import TopicPath
from benchmarks.harness import Report, run
from benchmarks.through_gateway import OUTCOME, Rig, rig

_RATE = 500


def measure(report: Report) -> None:
    seconds = 5 if report.quick else 30
    many = 5_000 if report.quick else 100_000
    with rig() as running:
        running.bench.subscribe(["one"], topic="{urn:t}bench//.")
        running.run(["/one"], 8, 6, 200)
        with report.table(f"{_RATE}/s to one subscriber", "beside it", *OUTCOME) as table:
            table.add("nothing", *_run(running, seconds))
            with _changes(running, 100):
                table.add("100 changes of subscriptions a second", *_run(running, seconds))
            running.bench.control([_topic(number) for number in range(many)])
            running.bench.control([_subscription(number) for number in range(many)])
            running.run(["/one"], 8, 3, 50)  # reads them
            table.add(f"{many:,} topics and subscriptions", *_run(running, seconds))
            with _changes(running, 100):
                table.add(f"{many:,} and 100 changes a second", *_run(running, seconds))


def _run(running: Rig, seconds: int) -> tuple[int | float | None, ...]:
    return running.run(["/one"], 8, seconds, _RATE).cells()


def _topic(number: int) -> TopicRecord:
    return TopicRecord(TopicPath(f"{{urn:other}}tree/branch{number % 300}/leaf{number}"))


def _subscription(number: int, name: str = "other") -> SubscriptionRecord:
    topic = _topic(number).path
    return SubscriptionRecord(
        Subscription(
            f"{name}{number}",
            EndpointReference(f"http://127.0.0.1:9/{name}{number}"),
            f"http://b/{name}{number}",
            (TopicFilter("", topic, topic),),
        )
    )


@contextmanager
def _changes(running: Rig, per_second: int) -> Iterator[None]:
    """Subscriptions come, and go after a while, at this rate in all."""
    stop = threading.Event()

    def change() -> None:
        started = time.monotonic()
        for number in itertools.count():
            records: list[ControlRecord] = [_subscription(number, "passing")]
            if number > 50 * per_second:
                records.append(SubscriptionEnded(f"passing{number - 50 * per_second}", "unsubscribed", 1))
            running.bench.control(records)
            if stop.wait(max(started + (number + 1) / per_second - time.monotonic(), 0)):
                return

    thread = threading.Thread(target=change, name="changes")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    run(measure)
