"""The three reliabilities with the real job over real Kafka and real HTTP: a receiver that is away for a while."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from arborcast.dispatch.logs.attempts import FINAL
from arborcast.dispatch.operations.audit.examine import audit
from arborcast.dispatch.settings import JobSettings
from arborcast.topic_model.subscriptions import DeliveryPolicy, Reliability
from tests.support.dispatch_job import IN_BOTH_MODES, Own, RunningJob, running
from tests.support.held_port import HeldPort
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, IN_BOTH_MODES]

RELIABILITIES: tuple[Reliability, ...] = ("strict", "adaptive", "timely")
LIMIT = 10


@pytest.fixture(scope="module")
def job(spark: SparkSession, module_settings: JobSettings) -> Iterator[RunningJob]:
    """Its pushes use requests-futures; those of all other jobs use libcurl."""
    # The age of timely messages is limited: a busy machine must not exceed the limit.
    retry = dataclasses.replace(module_settings.retry, parked_messages=LIMIT, batch_wait_s=20.0)
    push = dataclasses.replace(module_settings.push, transport="futures")
    with running(spark, dataclasses.replace(module_settings, retry=retry, push=push)) as started:
        yield started


def test_a_receiver_that_is_away_for_a_while(job: RunningJob, own: Own, receiver: Receiver) -> None:
    since_ms = int(time.time() * 1000)
    port = HeldPort()
    there = Receiver(port=port.number)
    port.for_life_of(there)
    names: list[str] = []
    reliable: set[str] = set()

    def publish(count: int, sure: bool = False) -> list[str]:
        for _ in range(count):
            made = own.accept("a", reliable=sure)
            names.append(made.id)
            reliable.update([made.id] if sure else [])
        return names[-count:]

    def arrived(name: str) -> list[str]:
        return list(dict.fromkeys(there.names(f"/{name}")))

    own.subscribe("well", receiver.url("/well"), "a", form="raw")
    with there:
        for name in RELIABILITIES:
            policy = DeliveryPolicy(reliability=name)
            own.subscribe(name, there.url(f"/{name}"), "a", form="raw", policy=policy)
        before = publish(10)
        for name in RELIABILITIES:
            there.wait_for(10, f"/{name}")
    assert all(arrived(name) == before for name in RELIABILITIES)

    away = publish(15) + publish(1, sure=True) + publish(14)
    receiver.wait_for(40, "/well")

    def is_full() -> bool:
        rows = own.attempts(len(names))
        return sum((row["subscription"], row["state"]) == ("adaptive", "dropped") for row in rows) >= 30 - LIMIT

    wait_until(is_full, "a full queue of the adaptive subscription")
    with there:

        def is_back() -> bool:
            publish(1)
            time.sleep(0.2)
            return bool({*arrived("timely")} - {*before, *reliable})

        wait_until(is_back, "timely messages")
        rows: list[dict[str, object]] = []

        def ended() -> bool:
            rows[:] = [row for row in own.attempts(4 * len(names)) if row["state"] in FINAL]
            return len(rows) >= 4 * len(names)

        def is_well() -> bool:
            # The first of them may arrive before the end of the receiver's exclusion reaches the workers.
            after = publish(10)
            wait_until(ended, "final states of all deliveries")
            return arrived("timely")[-10:] == after

        wait_until(is_well, "each timely message")

    assert arrived("strict") == names, "all, in order"
    well = receiver.wait_for(len(names), "/well")
    assert {each.headers.get("accept-encoding") for each in well} == {"identity"}, "libcurl sends no such header"
    assert len({each.connection for each in well}) < len(names), "connections are kept"
    timely = [name for name in arrived("timely") if name not in reliable]
    assert not set(timely) & set(away)
    assert timely == [name for name in names if name in set(timely)], "never an older one after a newer"
    assert reliable <= set(arrived("timely"))
    ends = {(str(row["subscription"]), str(row["notification"])): row for row in rows}
    assert {ends["timely", name]["error"] for name in away if name not in reliable} == {"timely"}
    dropped = [name for name in names if ends["adaptive", name]["state"] == "dropped"]
    assert {ends["adaptive", name]["error"] for name in dropped} == {"resources"}
    assert len(dropped) >= 30 - LIMIT
    assert set(arrived("adaptive")) == set(names) - set(dropped)
    report = audit(job.settings.kafka, since_ms, deep=True)
    assert report.balanced, report
    assert report.totals.dropped == sum(row["state"] == "dropped" for row in rows)
    assert (report.totals.pending, report.totals.dead) == (0, 0)
