"""Priority and validity with the real job over real Kafka and real HTTP."""

from __future__ import annotations

import time

import pytest

from arborcast.dispatch.logs.attempts import FINAL
from arborcast.dispatch.operations.audit.examine import audit
from arborcast.topic_model.subscriptions import DeliveryPolicy
from tests.support.dispatch_job import IN_BOTH_MODES, Own, RunningJob
from tests.support.receiver import NOTIFICATION_ID, Receiver
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, IN_BOTH_MODES]


def test_no_push_after_the_validity_to_a_hanging_receiver(job: RunningJob, own: Own, receiver: Receiver) -> None:
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
        # Up to 400 ms in transit: the push began before.
        assert request.at * 1000 < until_ms.get(request.headers[NOTIFICATION_ID], since_ms * 2) + 400
    assert over.id not in receiver.names("/takes")
    receiver.behave("/hangs", "")
    own.attempts(24)  # the one without an end of validity arrives
    report = audit(job.settings.kafka, since_ms, deep=True)
    assert report.balanced, report


MANY, FEW = 80, 5


def test_urgent_messages_overtake_the_backlog_of_a_slow_receiver(own: Own, receiver: Receiver) -> None:
    since_ms = int(time.time() * 1000)
    own.subscribe("slow", receiver.url("/slowly"), "a", form="raw")
    own.subscribe("strict", receiver.url("/strictly"), "a", form="raw", policy=DeliveryPolicy(order="strict"))
    receiver.behave("/slowly", "slow/0.1")
    ordinary = [own.accept("a", f"ordinary-{number:03}").id for number in range(MANY)]
    receiver.wait_for(3, "/slowly")
    urgent = [own.accept("a", f"urgent-{number}", priority=5).id for number in range(FEW)]

    receiver.wait_for(MANY + FEW, "/slowly")
    slowly = receiver.names("/slowly")
    assert sorted(slowly) == sorted([*ordinary, *urgent]), "each once"
    assert [each for each in slowly if each in ordinary] == ordinary
    assert [each for each in slowly if each in urgent] == urgent
    assert slowly.index(urgent[-1]) < MANY * 3 // 4, "before many that were accepted earlier"

    receiver.wait_for(MANY + FEW, "/strictly")
    assert receiver.names("/strictly") == [*ordinary, *urgent]
    own.attempts(2 * (MANY + FEW))
    report = audit(own.job.settings.kafka, since_ms, deep=True)
    assert report.balanced, report
