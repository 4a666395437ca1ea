"""Real Kafka brokers for tests: one shared by the whole run, and one of its own for a test that kills it."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.stack import jars, java, ports
from jobs.stack.kafka_broker import BrokerLayout, KafkaBroker, controller_port
from topic_model.settings import KafkaSettings


def new_broker(home: Path) -> KafkaBroker:
    """A broker in `home`, on free ports, not started."""
    layout = BrokerLayout(home, ports.free_port(), controller_port(home))
    return KafkaBroker(layout, jars.jar_paths("broker"), java.find_java().executable)


def settings_for(broker: KafkaBroker) -> KafkaSettings:
    """Settings that reach the broker, with few partitions so that tests create topics quickly."""
    return KafkaSettings(bootstrap_servers=broker.bootstrap_servers, partitions=2)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaSettings]:
    """A real broker, shared by all tests of the run. Use `kafka_settings` unless topic names do not matter."""
    broker = new_broker(tmp_path_factory.mktemp("kafka"))
    try:
        broker.start()
        yield settings_for(broker)
    finally:
        broker.kill()  # nothing in it is kept


@pytest.fixture
def kafka_settings(kafka: KafkaSettings) -> KafkaSettings:
    """The shared broker under a topic prefix that no other test has."""
    return dataclasses.replace(kafka, prefix=f"t{uuid.uuid4().hex[:8]}.")


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    """A started broker for this test alone, which may stop, kill and start it; `settings_for` reaches it."""
    broker = new_broker(tmp_path / "kafka")
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()
