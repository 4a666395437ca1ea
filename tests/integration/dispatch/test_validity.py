"""Validity and types with the real job over real Kafka and real HTTP."""

from __future__ import annotations

import time

import pytest

from arborcast.dispatch.logs.attempts import FINAL
from arborcast.dispatch.operations.audit.examine import audit
from tests.support.dispatch_job import IN_BOTH_GEARS, Own, RunningJob
from tests.support.receiver import Receiver

pytestmark = [pytest.mark.kafka, pytest.mark.spark, IN_BOTH_GEARS]


def test_nothing_is_pushed_after_its_validity_to_a_receiver_that_hangs(
    job: RunningJob, own: Own, receiver: Receiver
) -> None:
    since_ms = int(time.time() * 1000)
    own.subscribe("hangs", receiver.url("/hangs"), "a", form="raw")
    own.subscribe("takes", receiver.url("/takes"), "a", form="raw")
    receiver.behave("/hangs", "hang")

    short = [own.accept("a", valid_ms=1_500) for _ in range(10)]
    over = own.accept("a", valid_ms=-1_000)
    for_ever = own.accept("a")

    finals: dict[tuple[str, str], str] = {}
    deadline = time.monotonic() + 120
    while len(finals) < 23 and time.monotonic() < deadline:
        rows = own.attempts(23)
        finals = {(row["subscription"], row["notification"]): row["state"] for row in rows if row["state"] in FINAL}
        time.sleep(0.2)
    assert all(finals["hangs", each.id] == "expired" for each in [*short, over])
    assert finals["takes", over.id] == "expired"
    assert finals["takes", for_ever.id] == "delivered"
    ends = {each.id: each.valid_until_ms for each in [*short, over]}
    for request in receiver.received("/hangs") + receiver.received("/takes"):
        (name,) = request.headers["arborcast-notification-id"].split(",")
        # A little time to arrive: it began before.
        assert request.at * 1000 < ends.get(name, since_ms * 2) + 400, "it was valid no more"
    assert over.id not in {each.headers["arborcast-notification-id"] for each in receiver.received("/takes")}
    receiver.behave("/hangs", "")
    own.attempts(24)  # the one that is valid for ever gets there in the end
    report = audit(job.settings.kafka, since_ms, deep=True)
    assert report.balanced, report


def test_types_are_a_filter(own: Own, receiver: Receiver) -> None:
    own.subscribe("alarms", receiver.url("/alarms"), "b", types=("{urn:plant}alarm",))
    own.subscribe("all", receiver.url("/all"), "b")
    reading, alarm = (own.accept("b", kind=f"{{urn:plant}}{kind}") for kind in ("reading", "alarm"))
    receiver.wait_for(1, "/alarms")

    rows = own.attempts(3)
    assert sorted((row["subscription"], row["notification"]) for row in rows) == sorted(
        [("alarms", alarm.id), ("all", reading.id), ("all", alarm.id)]
    )
