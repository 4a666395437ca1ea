"""Real Kafka brokers for tests: one shared by the whole run, and one of its own for a test that kills it."""

from __future__ import annotations

import fcntl
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from subprocess import SubprocessError

import pytest

from arborcast.core.eventlog.client import ConsumerRecord
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.settings import KafkaSettings
from arborcast.engine.embedded.engine import Tools, class_archive, class_archive_name
from arborcast.engine.embedded.kafka_broker import BrokerLayout, KafkaBroker, controller_port
from arborcast.engine.install import jars, java
from arborcast.engine.processes.errors import PartFailed
from arborcast.topic_model.records.notifications import Notification, notification_in
from tests.support.held_port import HeldPort
from tests.support.once_per_run import State, once_per_run
from tests.support.waiting import TIMEOUT_S

# Java ignores an archive that does not fit or is damaged, without a message.
_QUIET = ("-XX:+VerifySharedSpaces", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")


class _Broker(KafkaBroker):
    """One whose JVM reads an archive of the classes that it loads, or writes it at its end."""

    sharing: tuple[str, ...] = ()

    def _java_command(self, main: str, *arguments: str) -> list[str]:
        executable, *options = super()._java_command(main, *arguments)
        return [executable, *self.sharing, *options]

    def write_archive(self, file: Path) -> None:
        """Start and stop it. Raises PartFailed, OSError or SubprocessError unless the archive is whole."""
        self.prepare()
        self.sharing = (f"-XX:ArchiveClassesAtExit={file}", *_QUIET)
        try:
            self.start()
            assert self._process is not None
            self._process.terminate()
            if self._process.wait(TIMEOUT_S) != 128 + signal.SIGTERM:
                raise PartFailed("the broker failed at its end", "kafka")
        finally:
            self.kill()


def new_broker(home: Path) -> KafkaBroker:
    """A broker in `home`, on free ports, not started."""
    held = HeldPort()
    broker = broker_of(BrokerLayout(home, held.number, controller_port(home)))
    held.for_life_of(broker)
    return broker


def broker_of(layout: BrokerLayout) -> KafkaBroker:
    """A broker of this layout, not started."""
    broker = _broker_of(layout)
    if (archive := _class_archive()) is not None:
        broker.sharing = (f"-XX:SharedArchiveFile={archive}", *_QUIET)
    return broker


def _broker_of(layout: BrokerLayout) -> _Broker:
    return _Broker(layout, jars.jar_paths("broker"), java.find_java().executable)


@cache
def _class_archive() -> Path | None:
    """The archive of the classes of a broker, half of the cost of its start: beside that of the job, with a name of the
    same form, and made on first use. None if it cannot be made."""
    found, brokers, folder = java.find_java(), jars.jar_paths("broker"), jars.default_cache()
    tools = Tools(found, found.home, spark_jars=brokers, broker_jars=brokers)
    place = folder / "java"
    try:
        place.mkdir(parents=True, exist_ok=True)
        with (
            (place / ".kafka.lock").open("w") as lock,
            # On the cache's own file system, so that a finished archive can be moved.
            tempfile.TemporaryDirectory(prefix=".kafka-", dir=place) as draft_folder,
        ):
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (made := class_archive(tools, folder)) is None:
                draft = Path(draft_folder) / "classes.jsa"
                home, held = Path(draft_folder) / "home", HeldPort()
                _broker_of(BrokerLayout(home, held.number, controller_port(home))).write_archive(draft)
                made = draft.replace(class_archive_name(tools, folder, draft.stat().st_size))
            return made
    except (PartFailed, OSError, SubprocessError):
        return None


def settings_for(broker: KafkaBroker) -> KafkaSettings:
    """Settings that reach the broker, under a topic prefix of their own."""
    return _unshared(broker.bootstrap_servers)


def _unshared(bootstrap_servers: str) -> KafkaSettings:
    # Few partitions, so that tests create topics quickly.
    return KafkaSettings(bootstrap_servers=bootstrap_servers, partitions=2, prefix=f"t{uuid.uuid4().hex[:8]}.")


def records_in(kafka: KafkaSettings, log: str) -> list[ConsumerRecord]:
    """All that a log holds, in order within each partition."""
    with LogScan(kafka, log) as opened:
        return list(opened.read_all())


def notifications_in(kafka: KafkaSettings, log: str = "notifications") -> list[Notification]:
    """Those that a log holds."""
    return [found for record in records_in(kafka, log) if (found := notification_in(record)) is not None]


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
    """The shared broker under a topic prefix that no other test has."""
    return _unshared(kafka.bootstrap_servers)


@pytest.fixture(scope="session")
def _mortal_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    broker = new_broker(tmp_path_factory.mktemp("mortal-kafka"))
    try:
        yield broker
    finally:
        broker.kill()


@pytest.fixture
def own_broker(_mortal_broker: KafkaBroker) -> KafkaBroker:
    """A started broker that the test may stop, kill and start, while no other test uses it; `settings_for` reaches
    it. What earlier tests have left in it has other names."""
    if _mortal_broker.pid is None:
        _mortal_broker.start()
    return _mortal_broker
