"""Three brokers, three replicas of everything: the loss of any one of them loses nothing that was acknowledged."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.settings import KafkaSettings
from tests.support.broker_cluster import BrokerCluster, running_brokers
from tests.support.command import Engine
from tests.support.dispatch_process import running_job
from tests.support.receiver import Receiver
from tests.support.steady_load import assert_all_arrived, under_load, wait_for_more

pytestmark = [pytest.mark.long, pytest.mark.kafka]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with running_brokers(tmp_path_factory.mktemp("brokers")) as cluster:
        yield cluster


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_each_broker_may_die_under_load(tmp_path: Path, brokers: BrokerCluster) -> None:
    kafka = brokers.settings(prefix="loss.")
    with Receiver() as receiver, running_job(tmp_path, kafka) as job, under_load(kafka, receiver) as load:
        receiver.wait_for(20)
        brokers.wait_until_in_sync(kafka)
        for broker in brokers.brokers:
            broker.kill()
            time.sleep(5)  # load without it
            wait_for_more(receiver)
            broker.start(300)
            brokers.wait_until_in_sync(kafka)
        wait_for_more(receiver)
        assert job.processes()["driver"][0].is_running(), "the job itself lived through it"
        accepted = load.stop()
        assert len(accepted) > 100
        assert_all_arrived(receiver, accepted, duplicates_allowed=1000)


def test_doctor_reports_unsafe_settings_of_the_brokers(tmp_path: Path, brokers: BrokerCluster) -> None:
    safe, unsafe = brokers.settings(prefix="safe."), brokers.settings(prefix="unsafe.", replication=1)
    for kafka in (safe, unsafe):
        ensure_topics(kafka)
    brokers.wait_until_in_sync(safe)

    status, found = doctor(tmp_path, safe)
    assert [check for check in found if check["level"] != "ok"] == []
    assert status == 0

    status, found = doctor(tmp_path, unsafe)
    (one,) = [check for check in found if check["finding"] == "unsafe.control has one replica on 3 brokers"]
    assert (one["level"], one["advice"]) == ("fail", "Add replicas with kafka-reassign-partitions.")
    assert status == 1


def doctor(home: Path, kafka: KafkaSettings) -> tuple[int, list[dict[str, str]]]:
    """The exit status of `arborcast doctor`, and its findings about Kafka."""
    variables = {
        "ARBORCAST_STACK_BROKER": "external",
        "ARBORCAST_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "ARBORCAST_KAFKA_PREFIX": kafka.prefix,
        "ARBORCAST_KAFKA_PARTITIONS": str(kafka.partitions),
        "ARBORCAST_KAFKA_REPLICATION": str(kafka.replication),
        "ARBORCAST_GATEWAY_PORT": "0",
    }
    done = Engine(home).run("doctor", "--json", env=variables, check=False)
    return done.returncode, [check for check in json.loads(done.stdout) if check["name"] in ("broker", "kafka logs")]
