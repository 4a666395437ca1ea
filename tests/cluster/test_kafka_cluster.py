"""Three brokers, three replicas of everything: the loss of any one of them loses nothing that was acknowledged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.stack.kafka_safety import examine, unsafe
from tests.chaos.test_dispatch_kills import assert_all_arrived, under_load, wait_for_more
from tests.support.broker_cluster import BrokerCluster, running_brokers
from tests.support.dispatch_process import running_job
from tests.support.receiver import Receiver
from topic_model.kafka_topics import ensure_topics

pytestmark = [pytest.mark.cluster, pytest.mark.kafka]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with running_brokers(tmp_path_factory.mktemp("brokers")) as cluster:
        yield cluster


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_each_broker_may_die_under_load(tmp_path: Path, brokers: BrokerCluster) -> None:
    kafka = brokers.settings(prefix="loss.")
    with Receiver() as receiver, running_job(tmp_path, kafka) as job, under_load(kafka, receiver) as load:
        receiver.wait_for(20)
        brokers.wait_until_in_sync(kafka)
        for broker in brokers.brokers:
            broker.kill()
            time.sleep(5)  # load without it
            wait_for_more(receiver)
            broker.start(60)
            brokers.wait_until_in_sync(kafka)
        wait_for_more(receiver)
        assert job.processes()["driver"][0].is_running(), "the job itself lived through it"
        accepted = load.stop()
        assert len(accepted) > 100
        assert_all_arrived(receiver, accepted, duplicates_allowed=1000)


def test_doctor_sees_what_is_unsafe(brokers: BrokerCluster) -> None:
    safe, unsafe_ = brokers.settings(prefix="safe."), brokers.settings(prefix="unsafe.", replication=1)
    ensure_topics(safe)
    ensure_topics(unsafe_)
    brokers.wait_until_in_sync(safe)

    assert unsafe(examine(safe), safe, longest_wait_s=3600) == []
    found = unsafe(examine(unsafe_), unsafe_, longest_wait_s=3600)
    assert "unsafe.control has one replica on 3 brokers" in [finding.what for finding in found]
