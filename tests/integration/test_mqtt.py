"""The MQTT bridge as users run it: a gateway and a job beside an MQTT broker with its own clients."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from pyspark.sql import SparkSession

from arborcast.core.mqtt.settings import MqttSettings
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.operations.audit import audit
from tests.support.dispatch_job import RunningJob, attempt_rows, job_settings, kill_workers, running
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.mosquitto import Mosquitto
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

RULES = """
[in.plant]
mqtt = "plant/+/temp"
topic = "plant/{1}/temp"

[out.plant]
topic = "plant//."
mqtt = "out/{topic}"
order = "strict"
"""


@contextmanager
def bridged(folder: Path, kafka: KafkaSettings, broker: Mosquitto) -> Iterator[GatewayRun]:
    """A gateway with a connected bridge."""
    (folder / "rules.toml").write_text(RULES)
    more = f'[mqtt]\nurl = "{broker.url}"\nrules_file = "{folder / "rules.toml"}"\n'
    with gateway_run(folder / "gateway", kafka, more=more) as gateway:
        wait_for_bridge(gateway)
        yield gateway


def wait_for_bridge(gateway: GatewayRun) -> None:
    gateway.wait_for(lambda: gateway.metric("arborcast_mqtt_connected") == 1, "the bridge is connected")


@pytest.fixture
def job(
    spark: SparkSession, tmp_path: Path, kafka_settings: KafkaSettings, mosquitto: Mosquitto
) -> Iterator[RunningJob]:
    settings = job_settings(tmp_path / "job", kafka_settings)
    with running(spark, dataclasses.replace(settings, mqtt=MqttSettings(url=mosquitto.url))) as job:
        yield job


def test_messages_go_from_the_broker_through_the_engine_to_the_broker(
    job: RunningJob, tmp_path: Path, kafka_settings: KafkaSettings, mosquitto: Mosquitto
) -> None:
    with bridged(tmp_path, kafka_settings, mosquitto) as gateway, mosquitto.subscriber("out/#", "kept") as subscriber:
        gateway.wait_for(lambda: "[out.plant] sends" in gateway.text(), "the rule is in force")
        sent = [f"<n>{number}</n>" for number in range(100)]
        mosquitto.publish("plant/kiln 1/temp", *sent)
        mosquitto.publish("plant/b/temp", '{"t": "<ü>"}')
        received = subscriber.wait_for_number(101)
        assert [each.payload for each in received if each.topic == "out/plant/kiln 1/temp"] == sent
        assert [each.payload for each in received if each.topic == "out/plant/b/temp"] == ['{"t": "<ü>"}']
        assert len({each.properties["Arborcast-Notification-Id"] for each in received}) == 101
        assert {each.properties["Arborcast-Topic"] for each in received} == {"plant/kiln_x0020_1/temp", "plant/b/temp"}
        # During an outage of the broker, accepted messages wait as for other receivers.
        mosquitto.save()
        mosquitto.kill()
        for number in range(5):
            url = f"{gateway.base}/publish/plant/c"
            answer = requests.post(url, f"<c>{number}</c>", headers={"Content-Type": "text/xml"}, timeout=60)
            assert answer.status_code == 202, answer.text
        gateway.wait_for(
            lambda: any(row["state"] == "parked" for row in attempt_rows(job.settings, 102)), "a failed push"
        )
        mosquitto.start()

        def later() -> list[str]:
            # The broker repeats messages whose acknowledgement was not saved.
            return [each.payload for each in subscriber.received if each.topic == "out/plant/c"]

        wait_until(lambda: len(later()) >= 5, later)
        assert later() == [f"<c>{number}</c>" for number in range(5)]
    report = audit(kafka_settings, 0, deep=True, order=True, patience_s=60)
    assert report.balanced, report.problems[:5]
    assert (report.published, report.totals.dead) == (106, 0)


@pytest.mark.long
@pytest.mark.chaos
def test_kills_of_broker_gateway_and_workers_lose_nothing(
    job: RunningJob, tmp_path: Path, kafka_settings: KafkaSettings, mosquitto: Mosquitto
) -> None:
    """Repetitions are of messages in flight at a kill: counted by the audit, or marked by the broker."""
    sent: list[str] = []

    def publish(number: int = 30) -> None:
        payloads = [f"<n>{len(sent) + each}</n>" for each in range(number)]
        mosquitto.publish("plant/a/temp", *payloads)
        sent.extend(payloads)

    with bridged(tmp_path, kafka_settings, mosquitto) as gateway, mosquitto.subscriber("out/#", "kept") as subscriber:
        for _ in range(3):
            publish()
            gateway.kill()
            publish()  # queued in the session
            mosquitto.save()
            mosquitto.kill()
            mosquitto.start()
            gateway.start()
            publish()
            kill_workers()
            publish()
            mosquitto.save()
            mosquitto.kill()
            mosquitto.start()
            wait_for_bridge(gateway)
            publish()
        wait_until(
            lambda: {each.payload for each in subscriber.received} >= set(sent),
            lambda: f"{len(set(sent) - {each.payload for each in subscriber.received})} of {len(sent)} are missing",
        )
        arrived = subscriber.received
    report = audit(kafka_settings, 0, deep=True, order=True, patience_s=60)
    assert report.balanced, report.problems[:5]
    assert report.totals.dead == report.totals.expired == 0
    assert {each.payload for each in arrived} == set(sent)
    stored_twice = report.notifications - len(sent)
    assert 0 <= stored_twice <= 6 * MqttSettings().receive_maximum
    identified = Counter(each.properties["Arborcast-Notification-Id"] for each in arrived)
    assert len(identified) == report.notifications, "each notification has arrived"
