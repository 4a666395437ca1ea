"""The broker keeps acknowledged records after a kill and a stop."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from arborcast.engine.embedded import kafka_broker
from arborcast.engine.embedded.kafka_broker import KafkaBroker
from arborcast.engine.processes.errors import PartFailed
from tests.support.broker import new_broker

pytestmark = pytest.mark.kafka


def create_topic(bootstrap_servers: str, name: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1}})
    finally:
        admin.close()


def send(bootstrap_servers: str, name: str, values: list[bytes], max_request_size: int = 1_048_576) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap_servers, acks="all", max_request_size=max_request_size)
    try:
        for future in [producer.send(name, value=value) for value in values]:
            future.get(timeout=60)
    finally:
        producer.close()


def read(bootstrap_servers: str, name: str) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers, enable_auto_commit=False)
    try:
        partition = TopicPartition(name, 0)
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        consumer.seek_to_beginning(partition)
        values: list[bytes] = []
        while consumer.position(partition) < end:
            for records in consumer.poll(timeout_ms=1_000).values():
                values += [record.value for record in records]
        return values
    finally:
        consumer.close()


def test_a_folder_may_have_any_name_in_any_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under cron, or in a container, where LC_ALL=C, in a home folder with an accent in its name."""
    monkeypatch.setenv("LC_ALL", "C")
    home = tmp_path / "Zoë's back\\slash = #1: \u2603 \U0001f332"
    home.mkdir()
    broker = new_broker(home)
    broker.prepare()
    assert (broker.layout.data / "meta.properties").exists()
    assert list(tmp_path.iterdir()) == [home], "nothing is written beside it"


def test_a_name_that_kafka_would_take_for_two_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PartFailed, match=r"a comma .* --home"):
        new_broker(tmp_path / "a,b").prepare()
    assert not (tmp_path / "a").exists()


def test_acknowledged_records_survive_kill_and_stop(own_broker: KafkaBroker) -> None:
    servers = own_broker.bootstrap_servers
    create_topic(servers, "kept")
    send(servers, "kept", [b"before the kill"])

    own_broker.kill()
    assert not kafka_broker.answers(own_broker.layout.port)
    own_broker.start()
    send(servers, "kept", [b"before the stop"])

    own_broker.stop()
    own_broker.start()
    assert read(servers, "kept") == [b"before the kill", b"before the stop"]
