"""Real Kafka brokers for tests: one shared by the whole run, and one for tests that kill it."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient

from arborcast.core.eventlog.client import ConsumerRecord, make_producer
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.settings import KafkaSettings
from arborcast.engine.embedded.engine import find_tools
from arborcast.engine.embedded.kafka_broker import BrokerLayout, KafkaBroker, answers, controller_port
from arborcast.engine.install.java import java_environ
from arborcast.engine.processes import processes
from arborcast.topic_model.records.notifications import Notification, notification_in
from tests.support.held_port import HeldPort
from tests.support.once_per_run import State, once_per_run
from tests.support.process import LoggedProcess, killed
from tests.support.waiting import wait_until

_tools = cache(find_tools)


class BrokerProcess(KafkaBroker):
    """The embedded engine's broker, run without a supervisor; its log is kafka.log in its folder."""

    _process: LoggedProcess | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"{processes.LOOPBACK}:{self.layout.port}"

    @property
    def pid(self) -> int | None:
        """Process id of the broker while it runs."""
        return self._process.pid if self._process and self._process.ended is None else None

    def start(self, timeout: float = 120.0) -> None:
        """Start the broker and wait for its answer. Raises PartFailed; fails with its log if it ends."""
        self.launch()
        self.wait_until_it_answers(timeout)

    def launch(self) -> None:
        """Start the broker after formatting. Raises PartFailed."""
        self.prepare()
        self._process = LoggedProcess(self.command(), self.layout.home / "kafka.log", env=java_environ())
        self._process.start()

    def wait_until_it_answers(self, timeout: float) -> None:
        """Wait for the answer of a started broker."""
        assert self._process is not None, "launch() comes first"
        self._process.wait_for(lambda: answers(self.layout.port), "Kafka answers", timeout)

    def stop(self) -> None:
        """Ask the broker to stop, wait, and kill it if it does not."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.stop()
            self.kill()

    def kill(self) -> None:
        """kill -9, and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process = None


def broker_of(layout: BrokerLayout) -> BrokerProcess:
    """A broker, not started, with the class archive of this machine."""
    tools = _tools()
    return BrokerProcess(layout, tools.broker_jars, tools.java.executable, tools.classes.get("kafka"))


def new_broker(home: Path) -> BrokerProcess:
    """A broker in `home`, on free ports, not started."""
    held = HeldPort()
    broker = broker_of(BrokerLayout(home, held.number, controller_port(home)))
    held.for_life_of(broker)
    return broker


def settings_for(broker: BrokerProcess) -> KafkaSettings:
    """Settings for the broker, with a unique topic prefix."""
    return _unshared(broker.bootstrap_servers)


def _unshared(bootstrap_servers: str) -> KafkaSettings:
    # Few partitions, so that tests create topics quickly.
    return KafkaSettings(bootstrap_servers=bootstrap_servers, partitions=2, prefix=f"t{uuid.uuid4().hex[:8]}.")


def records_in(kafka: KafkaSettings, log: str) -> list[ConsumerRecord]:
    """All records of a log, in order within each partition."""
    with LogScan(kafka, log) as opened:
        return list(opened.read_all())


def notifications_in(kafka: KafkaSettings, log: str = "notifications") -> list[Notification]:
    """The notifications of a log."""
    return [found for record in records_in(kafka, log) if (found := notification_in(record)) is not None]


def add_partitions(kafka: KafkaSettings, log: str, partitions: int) -> None:
    """Add partitions to a log, up to this number; returns when producers know them."""
    topic = kafka.topic(log)

    def known() -> bool:
        with closing(make_producer(kafka)) as producer:
            return len(producer.partitions_for(topic)) == partitions

    with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)) as admin:
        admin.create_partitions({topic: partitions})
    wait_until(known, "the added partitions")


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaSettings]:
    """A real broker, shared by all tests of the run. Use `kafka_settings` unless topic names do not matter."""

    def start(home: Path) -> tuple[State, Callable[[], None]]:
        broker = new_broker(home)
        try:
            broker.start()
        except BaseException:
            broker.kill()
            raise
        return {"bootstrap_servers": broker.bootstrap_servers}, broker.kill  # nothing in it is kept

    with once_per_run(tmp_path_factory, "kafka", start) as state:
        yield _unshared(state["bootstrap_servers"])


@pytest.fixture
def kafka_settings(kafka: KafkaSettings) -> KafkaSettings:
    """The shared broker, with a unique topic prefix."""
    return _unshared(kafka.bootstrap_servers)


@pytest.fixture(scope="session")
def _mortal_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with killed(new_broker(tmp_path_factory.mktemp("mortal-kafka"))) as broker:
        yield broker


@pytest.fixture
def own_broker(_mortal_broker: BrokerProcess) -> BrokerProcess:
    """A started broker that the test may stop, kill and start, while no other test uses it; `settings_for` has
    settings for it. Records of earlier tests have other names."""
    if _mortal_broker.pid is None:
        _mortal_broker.start()
    return _mortal_broker
