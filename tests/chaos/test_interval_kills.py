"""kill -9 of driver and JVM under load does not change which messages pass a minimum interval."""

from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.operations.audit import audit
from arborcast.topic_model.subscriptions import DeliveryPolicy
from tests.support.dispatch_job import logs, subscription
from tests.support.dispatch_process import running_job
from tests.support.receiver import Receiver
from tests.support.steady_load import TopicsLoad
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.chaos, pytest.mark.kafka, pytest.mark.spark]

INTERVAL_MS = 150


@pytest.mark.parametrize("mode", ["realtime", "batch"])
def test_killed_drivers_do_not_change_which_messages_pass(
    tmp_path: Path, kafka_settings: KafkaSettings, receiver: Receiver, mode: str
) -> None:
    with logs(kafka_settings) as log, running_job(tmp_path, kafka_settings, {"dispatch.mode": mode}) as job:
        policy = DeliveryPolicy(interval_ms=INTERVAL_MS)
        log.subscribe(
            subscription("all", receiver.url("/all"), "a//.", form="raw"),
            subscription("each", receiver.url("/each"), "a//.", form="raw", policy=policy),
        )
        load = TopicsLoad(log)
        with load.running():
            for role in ("driver", "jvm", "driver"):
                receiver.wait_for(len(receiver.received("/each")) + 30, "/each", timeout=240)
                job.kill_part(role)
                job.start()
            receiver.wait_for(len(receiver.received("/each")) + 30, "/each", timeout=240)
        passing = load.passing(INTERVAL_MS)
        wait_until(lambda: passing <= set(receiver.names("/each")), lambda: passing - set(receiver.names("/each")))
        report = audit(kafka_settings, 0, deep=True, order=True, patience_s=60)
    assert set(receiver.names("/each")) == passing
    assert report.balanced, report.problems
    assert report.subscriptions["each"].matches == len(passing)
