"""Priorities with the real job over real Kafka and real HTTP."""

from __future__ import annotations

import time

import pytest

from arborcast.dispatch.operations.audit.examine import audit
from arborcast.topic_model.subscriptions import DeliveryPolicy
from tests.support.dispatch_job import IN_BOTH_GEARS, Own
from tests.support.receiver import Receiver

pytestmark = [pytest.mark.kafka, pytest.mark.spark, IN_BOTH_GEARS]

MANY, FEW = 80, 5


def test_what_is_urgent_overtakes_what_waits_behind_a_slow_receiver(own: Own, receiver: Receiver) -> None:
    since_ms = int(time.time() * 1000)
    own.subscribe("slow", receiver.url("/slowly"), "a", form="raw")
    own.subscribe("strict", receiver.url("/strictly"), "a", form="raw", policy=DeliveryPolicy(order="strict"))
    receiver.behave("/slowly", "slow/0.1")
    ordinary = [own.accept("a", f"ordinary-{number:03}").id for number in range(MANY)]
    receiver.wait_for(3, "/slowly")
    urgent = [own.accept("a", f"urgent-{number}", priority=5).id for number in range(FEW)]

    receiver.wait_for(MANY + FEW, "/slowly")
    slowly = receiver.names("/slowly")
    assert sorted(slowly) == sorted([*ordinary, *urgent]), "each of them once"
    assert [each for each in slowly if each in ordinary] == ordinary
    assert [each for each in slowly if each in urgent] == urgent
    assert slowly.index(urgent[-1]) < MANY * 3 // 4, "long before the last of those that were accepted earlier"

    receiver.wait_for(MANY + FEW, "/strictly")
    assert receiver.names("/strictly") == [*ordinary, *urgent]
    own.attempts(2 * (MANY + FEW))
    report = audit(own.job.settings.kafka, since_ms, deep=True)
    assert report.balanced, report
