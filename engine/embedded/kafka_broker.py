"""A Kafka broker from its published jars: one node as broker and controller (KRaft), on loopback.

A record acknowledged with acks=all survives kill -9 of every process, because Kafka passes it to the operating system
before it answers. It does not survive a power cut before the page cache is written: with one replica that needs
`fsync=True` (a flush per write); a production cluster uses replicas.
"""

from __future__ import annotations

import base64
import shutil
import socket
import struct
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from arborcast.core.class_sharing import sharing
from arborcast.engine.install.java import java_environ
from arborcast.engine.processes import processes
from arborcast.engine.processes.errors import PartFailed

# The gateway accepts bodies up to a few MiB (gateway.max_body_bytes); Kafka's default of 1 MiB would refuse them after
# they are parsed.
MAX_MESSAGE_BYTES = 10 * 1024 * 1024

# Kafka's default for the longest request is 100 MiB (socket.request.max.bytes); the rest is for a parked record's own.
LONGEST_RECORD = (100 * 1024 - 64) * 1024

_METADATA = struct.pack(">hhih4si", 3, 1, 1, 4, b"arbo", 0)  # api key, version, correlation id, client, no topics


@dataclass(frozen=True)
class BrokerLayout:
    home: Path
    port: int
    controller_port: int
    heap_mb: int = 256
    fsync: bool = False
    cluster_id: str = ""
    """For one broker of several: the same for all. Empty: a new one."""

    @property
    def properties_file(self) -> Path:
        return self.home / "server.properties"

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def temporary(self) -> Path:
        return self.home / "tmp"

    def properties(self) -> dict[str, str]:
        """The broker's configuration. Other properties have Kafka's defaults."""
        host = processes.LOOPBACK
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{host}:{self.controller_port}",
            "listeners": f"BROKER://{host}:{self.port},CONTROLLER://{host}:{self.controller_port}",
            "advertised.listeners": f"BROKER://{host}:{self.port}",
            "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "BROKER",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.data),
            # One node: one replica of everything.
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            # A misspelt topic is an error, not a new topic with one partition and a week's retention.
            "auto.create.topics.enable": "false",
            "message.max.bytes": str(MAX_MESSAGE_BYTES),
            "group.initial.rebalance.delay.ms": "0",
            # A killed broker registers again after its former session has timed out: with the default of 9 s a restart
            # takes 11 s, with this 3 s. Heartbeats stay in the process, so they are not late.
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "500",
            # Small footprint: the cleaner's default buffer alone is 128 MB of heap.
            "log.cleaner.dedupe.buffer.size": "1048577",
            # An idle broker writes its metadata log twice a second: a third of its idle CPU (0.5 % of a core).
            "metadata.max.idle.interval.ms": "5000",
            "num.network.threads": "2",
            "num.io.threads": "2",
            "background.threads": "2",
        }
        if self.fsync:
            properties["log.flush.interval.messages"] = "1"
        return properties


def java_options(heap_mb: int) -> list[str]:
    """Options of the broker's JVM: small, quick to start, one log line per event on stderr."""
    return [
        f"-Xmx{heap_mb}m",
        # A small heap that returns memory: 145 MB resident when idle instead of 215.
        "-Xms32m",
        "-XX:MinHeapFreeRatio=10",
        "-XX:MaxHeapFreeRatio=30",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",  # starts sooner and takes less memory; one loopback broker never needs C2
        "-XX:+ExitOnOutOfMemoryError",  # the supervisor can restart a dead broker, not a failing one
        "-Djava.awt.headless=true",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
        "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.utils.AppInfoParser=error",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
        "-Dorg.slf4j.simpleLogger.showThreadName=false",
    ]


def answers(port: int, host: str = processes.LOOPBACK, timeout: float = 1.0) -> bool:
    """Whether the broker answers a metadata request and lists itself as usable. `timeout` in seconds.

    An open port is not enough: the broker listens before it has caught up with its controller.
    """
    try:
        return listed(port, host, timeout) >= 1
    except OSError:
        return False


def listed(port: int, host: str, timeout: float) -> int:
    """The number of usable brokers in its answer. Raises OSError without an answer, or for another service."""
    with socket.create_connection((host, port), timeout=timeout) as connection:
        connection.sendall(struct.pack(">i", len(_METADATA)) + _METADATA)
        with connection.makefile("rb") as answer:
            head = answer.read(12)  # length, correlation id, number of brokers
    _, correlation_id, brokers = struct.unpack(">iii", head) if len(head) == 12 else (0, 0, 0)
    if correlation_id != 1:
        raise ConnectionError("the server is not a Kafka broker, or requires another kafka.security_protocol")
    return int(brokers)


class KafkaBroker:
    """Prepares the broker's directory and its command line.

    `jars` are the jar files of the broker, `java` the executable, `classes` an archive of the loaded classes;
    `archive_to` is the path of a new one, written at the broker's exit.
    """

    def __init__(
        self,
        layout: BrokerLayout,
        jars: Sequence[Path],
        java: Path,
        classes: Path | None = None,
        archive_to: Path | None = None,
    ) -> None:
        self.layout = layout
        self._java = java
        self._classes = classes
        self._archive_to = archive_to
        self._class_path = ":".join(str(jar) for jar in jars)

    def command(self) -> list[str]:
        """The command line, after `prepare`."""
        options = sharing(self._classes, self._archive_to)
        return self._java_command(options, "kafka.Kafka", str(self.layout.properties_file))

    def prepare(self, timeout: float = 60.0) -> None:
        """Write the configuration and format new storage. Raises PartFailed."""
        layout = self.layout
        if "," in str(layout.data):
            raise PartFailed(
                f"Kafka cannot keep its logs in {layout.data}: for Kafka a comma ends the name of a folder. "
                "Choose another data directory with --home",
                "kafka",
            )
        layout.data.mkdir(parents=True, exist_ok=True)
        # A killed broker leaves its temporary files: the native libraries of compression.
        shutil.rmtree(layout.temporary, ignore_errors=True)
        layout.temporary.mkdir()
        _write_properties(layout.properties_file, layout.properties())
        if (layout.data / "meta.properties").exists():
            return
        cluster_id = layout.cluster_id or new_cluster_id()
        command = self._java_command(
            sharing(self._classes),
            *("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(layout.properties_file)),
        )
        try:
            # In its own session: Ctrl-C must not interrupt the formatting.
            done = subprocess.run(
                command,
                env=java_environ(),
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as error:
            raise PartFailed(f"Kafka did not format {layout.data} within {timeout:g} s", "kafka") from error
        if done.returncode != 0:
            output = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
            raise PartFailed(f"Kafka could not format {layout.data}: {output}", "kafka")

    def _java_command(self, sharing_options: Sequence[str], main: str, *arguments: str) -> list[str]:
        temporary = f"-Djava.io.tmpdir={self.layout.temporary}"
        options = (*sharing_options, *java_options(self.layout.heap_mb), temporary)
        return [str(self._java), *options, "-cp", self._class_path, main, *arguments]


def new_cluster_id() -> str:
    """A cluster id as from the storage tool's `random-uuid`, without a JVM: 16 bytes in URL-safe base64."""
    made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return "A" + made[1:] if made.startswith("-") else made  # a leading "-" would be an option of the tool


_CONTROLLER_PORT = "controller.port"


def remembered_controller_port(home: Path) -> int:
    """The controller's port of the broker in `home` at its last start; 0 without one."""
    try:
        return int((home / _CONTROLLER_PORT).read_text())
    except (OSError, ValueError):
        return 0


def controller_port(home: Path) -> int:
    """The controller's port of the broker in `home`: that of the last start if it is free, else a new one. Only the
    broker uses it."""
    remembered = remembered_controller_port(home)
    if remembered and processes.is_free(remembered):
        return remembered
    chosen = processes.free_port()
    home.mkdir(parents=True, exist_ok=True)
    (home / _CONTROLLER_PORT).write_text(f"{chosen}\n")
    return chosen


def _write_properties(path: Path, properties: Mapping[str, str]) -> None:
    # No key needs an escape.
    lines = [f"{key}={_escaped(value)}\n" for key, value in properties.items()]
    path.write_text("# Written at every start; changes here are lost.\n" + "".join(lines), encoding="ascii")


def _escaped(value: str) -> str:
    """The value in the format of Java's properties, which Kafka reads as Latin-1: UTF-8 would change a folder with an
    accent."""
    value = value.replace("\\", "\\\\")
    units = value.encode("utf-16-be", "surrogatepass")
    numbers = (int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2))
    return "".join(chr(number) if number < 0x7F else f"\\u{number:04x}" for number in numbers)
