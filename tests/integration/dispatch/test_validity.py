"""Validity and types with the real job over real Kafka and real HTTP."""

from __future__ import annotations

import time

import pytest

from arborcast.dispatch.logs.attempts import FINAL
from arborcast.dispatch.operations.audit.examine import audit
from tests.support.dispatch_job import IN_BOTH_GEARS, Own, RunningJob
from tests.support.receiver import NOTIFICATION_ID, Receiver
from tests.support.waiting import wait_until

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

    def ends() -> dict[tuple[str, str], str]:
        rows = [row for row in own.attempts(23) if row["state"] in FINAL]
        return {(row["subscription"], row["notification"]): row["state"] for row in rows}

    finals = wait_until(lambda: len(found := ends()) >= 23 and found, ends)
    assert all(finals["hangs", each.id] == "expired" for each in [*short, over])
    assert finals["takes", over.id] == "expired"
    assert finals["takes", for_ever.id] == "delivered"
    until_ms = {each.id: each.valid_until_ms for each in [*short, over]}
    for request in receiver.received("/hangs") + receiver.received("/takes"):
        # A little time to arrive: it began before.
        assert request.at * 1000 < until_ms.get(request.headers[NOTIFICATION_ID], since_ms * 2) + 400
    assert over.id not in receiver.names("/takes")
    receiver.behave("/hangs", "")
    own.attempts(24)  # the one that is valid for ever gets there in the end
    report = audit(job.settings.kafka, since_ms, deep=True)
    assert report.balanced, report
