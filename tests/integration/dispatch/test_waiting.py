"""`arborcast waiting` on logs in a real Kafka."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from arborcast.admin import operations
from arborcast.admin.operations import OperationFilter
from arborcast.core.errors import NotFound
from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.attempts import NO_BATCH, Attempt, AttemptsLog, ErrorClass
from arborcast.dispatch.logs.parked import Delivery, ParkingLog, Place, Tries
from arborcast.dispatch.operations.views import ViewFilter
from arborcast.dispatch.operations.waiting import Waiting
from arborcast.dispatch.redelivery.parked_store import ParkedStore
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from tests.support.broker import records_in
from tests.support.command import Shell
from tests.support.dispatch_job import logs, subscription
from tests.support.table_rows import attempt

pytestmark = pytest.mark.kafka

NOW_MS = int(time.time() * 1000)
HOUR_MS = 3_600_000
EVERYTHING = ViewFilter()


def notification(name: str, topic: str = "a/b", priority: int = 0) -> Notification:
    return Notification(name, TopicPath(topic), b"<x/>" * 1_000, NOW_MS - 5, priority=priority)


def row(name: str, to: str, number: int, error: ErrorClass, **facts: Any) -> Attempt:
    made: dict[str, Any] = {"endpoint": f"http://r/{to}", "accepted_ms": NOW_MS, "started_ms": NOW_MS, "batch": 1}
    return attempt(name, to, "parked", number=number, error=error, **(made | facts))


@pytest.fixture
def parking(kafka_settings: KafkaSettings) -> Iterator[ParkingLog]:
    ensure_topics(kafka_settings)
    with closing(ParkingLog(kafka_settings)) as log:
        yield log


@pytest.fixture
def tried(kafka_settings: KafkaSettings) -> Iterator[AttemptsLog]:
    with closing(AttemptsLog(kafka_settings)) as log:
        yield log


@pytest.fixture
def run(kafka_settings: KafkaSettings, tmp_path: Path) -> Shell:
    return Shell(tmp_path / "arborcast.toml", kafka_settings, "waiting", "list")


def test_waiting_deliveries_are_found_with_their_last_result(
    kafka_settings: KafkaSettings, parking: ParkingLog, tried: AttemptsLog, run: Shell
) -> None:
    with logs(kafka_settings) as log:
        log.subscribe(subscription("s1", "http://r/s1", "//."), subscription("s2", "http://bücher.example/s2", "//."))
    twice, once = Delivery("s1", Place(1, 0, 1)), Delivery("s1", Place(1, 0, 2))
    parking.park(twice, notification("twice"), Tries(1, 1, NOW_MS + 1, NOW_MS))
    parking.settle(20)
    parking.park(once, notification("once", "c", 5), Tries(1, 1, NOW_MS + HOUR_MS, NOW_MS))
    parking.park(Delivery("s2", Place(1, 0, 1)), notification("twice"), Tries())
    parking.tried(twice, Tries(2, 2, NOW_MS + 2 * HOUR_MS, NOW_MS))
    parking.settle(20)
    for each in (
        row("twice", "s1", 2, "timeout", detail="no answer", batch=NO_BATCH),
        row("twice", "s1", 1, "server-error", detail="HTTP 500", status=500),
        row("once", "s1", 1, "server-error", detail="HTTP 503", status=503),
        row("twice", "s2", 0, "waiting", detail="its lane is served by the redelivery"),
    ):
        tried.add(each)
    tried.settle(20)

    found = json.loads(run("--json"))
    by_delivery = {(each["notification"], each["subscription"]): each for each in found["waiting"]}
    assert next(iter(by_delivery)) == ("twice", "s1"), "the longest wait first"
    assert {*by_delivery} == {("twice", "s1"), ("once", "s1"), ("twice", "s2")}
    last = by_delivery["twice", "s1"]
    assert (last["attempts"], last["error"], last["detail"]) == (2, "timeout", "no answer"), "not the row of the batch"
    assert (last["topic"], last["endpoint"], last["state"]) == ("a/b", "http://r/s1", "active")
    assert last["next"] > last["since"] >= last["accepted"]
    assert (by_delivery["once", "s1"]["status"], by_delivery["once", "s1"]["priority"]) == (503, 5)
    waits = by_delivery["twice", "s2"]
    assert (waits["attempts"], waits["next"], waits["error"]) == (0, "", "waiting")

    counts = Waiting(kafka_settings).tally({"s1", "s2", "unknown"})
    assert {name: count for name, (count, _) in counts.items()} == {"s1": 2, "s2": 1}
    assert counts["s1"][1] < counts["s2"][1], "since the oldest delivery was parked"

    def listed(*arguments: str) -> list[tuple[str, str]]:
        shown = json.loads(run("--json", *arguments))["waiting"]
        return sorted((each["notification"], each["subscription"]) for each in shown)

    assert listed("--subscription", "http://broker.example/wsn/subscriptions/s1", "--topic", "c") == [("once", "s1")]
    assert listed("--endpoint", "http://bücher.example/s2") == [("twice", "s2")]
    assert json.loads(run("--json", "--limit", "2"))["more"] == 1
    lines = run.run("waiting", "list", "--limit", "2").output
    assert "twice  a/b  for s1 at http://r/s1, 2 tries, next " in lines
    assert "and 1 more: --limit shows them" in lines
    assert "no pending deliveries" in run.run("waiting", "list", "--subscription", "nobody").output

    parking.park(Delivery("s2", Place(1, 0, 9)), notification("taken"), Tries(1, 0, NOW_MS + HOUR_MS, NOW_MS, "p-7"))
    parking.settle(20)
    assert "1 try, awaits a result by " in run("--notification", "taken")


def test_the_attempts_log_is_read_at_the_times_of_tries(
    kafka_settings: KafkaSettings, parking: ParkingLog, tried: AttemptsLog
) -> None:
    """An old row of the delivery does not belong to its last try, and the search of a long log has a time limit."""
    parking.park(Delivery("s1", Place(1, 0, 1)), notification("n"), Tries(1, 1, NOW_MS, NOW_MS - HOUR_MS))
    parking.settle(20)
    waiting = Waiting(kafka_settings)
    (wait,), _, _ = waiting.oldest(EVERYTHING, 10)
    assert waiting.with_last([wait]) == ([wait], True), "the log no longer has it"
    tried.add(row("n", "s1", 1, "timeout"))
    tried.settle(20)
    (named,), complete = waiting.with_last([wait])
    assert complete
    assert named.last is not None
    assert named.last.error == "timeout"
    assert waiting.with_last([wait], within_s=-1.0)[1] is False
    assert waiting.with_last([]) == ([], True)


def test_attempts_are_requested_in_the_parked_log(
    kafka_settings: KafkaSettings, parking: ParkingLog, tmp_path: Path
) -> None:
    with logs(kafka_settings) as log:
        log.subscribe(subscription("s1", "http://r/s1", "//."), subscription("s2", "http://r/s2", "//."))
    later = Tries(1, 1, NOW_MS + HOUR_MS, NOW_MS)
    for offset, name in enumerate(("n1", "n2")):
        parking.park(Delivery("s1", Place(1, 0, offset)), notification(name), later)
    parking.park(Delivery("s2", Place(1, 0, 3)), notification("n1"), later)
    parking.park(Delivery("s2", Place(1, 0, 4)), notification("n2"), Tries())
    parking.park(Delivery("s2", Place(1, 0, 5)), notification("taken"), Tries(1, 0, NOW_MS + HOUR_MS, NOW_MS, "p"))
    parking.settle(20)
    run = Shell(tmp_path / "arborcast.toml", kafka_settings, "waiting")

    def due_now() -> list[tuple[str, str]]:
        shown = run.json("list")["waiting"]
        return sorted(
            (each["notification"], each["subscription"]) for each in shown if each["attempts"] and not each["next"]
        )

    assert due_now() == []
    assert run.json("retry", "--subscription", "s1", "--limit", "1") == {"requested": 1}
    assert due_now() == [("n1", "s1")]
    assert run("probe", "http://r/s2") == "probe of http://r/s2 requested\n"
    assert due_now() == [("n1", "s1"), ("n1", "s2")]
    assert run.json("retry", "--yes") == {"requested": 4}, "not the one whose result is awaited"
    assert due_now() == [("n1", "s1"), ("n1", "s2"), ("n2", "s1")]
    with pytest.raises(NotFound, match="no delivery waits for http://nobody/"):
        run("probe", "http://nobody/")

    with closing(ParkedStore(None)) as store:
        for record in records_in(kafka_settings, "parked"):
            store.apply(record.key, record.value, record.offset)
        assert store.requested == {"s1", "s2"}
    made = operations.listed(kafka_settings, OperationFilter(), 9)[0]
    assert [(each.action, each.subject, each.result[:17]) for each in reversed(made)] == [
        ("waiting retry", "--subscription s1", "1 requested"),
        ("waiting probe", "http://r/s2", "1 requested"),
        ("waiting retry", "all", "4 requested"),
        ("waiting probe", "http://nobody/", "failed: no delive"),
    ]
