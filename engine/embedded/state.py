"""The state of the supervisor and its parts, in a file that other processes read."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from arborcast.core.files import write_atomically
from arborcast.engine.embedded.home import Home
from arborcast.engine.processes.processes import ProcessId

if TYPE_CHECKING:
    from arborcast.core.settings import KafkaSettings
    from arborcast.engine.settings.loading import Settings


# Interval at which the state file's time is updated, to prove that the supervisor runs.
BEAT_S = 5.0


def addresses(path: Path) -> dict[str, str]:
    """The addresses of the engine running in this data directory, by name; empty without one."""
    home = Home(path)
    known = read(home.state_file) if home.owner() is not None else None
    return known.addresses if known else {}


def has_own_broker(settings: Settings) -> bool:
    """Whether the engine of this data directory starts its own Kafka: when it is stopped, another engine's address must
    not be used."""
    from arborcast.core.settings import KafkaSettings

    embedded = settings.stack.broker == "embedded"
    return embedded and settings.kafka.bootstrap_servers == KafkaSettings().bootstrap_servers


def reachable_kafka(settings: Settings) -> KafkaSettings:
    """The addresses of the brokers."""
    running = addresses(settings.home).get("kafka")
    return dataclasses.replace(settings.kafka, bootstrap_servers=running) if running else settings.kafka


class PartState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"  # it died; waits for its next start
    STOPPED = "stopped"
    FAILED = "failed"  # it was never ready, and the engine was stopped


@dataclass(frozen=True)
class PartStatus:
    """A part at one moment. `since` is the time of its state, in seconds of the epoch. `hangs` is the number of
    restarts after a hang; `silent_since` the time of its last answer if it does not answer, else 0."""

    state: PartState
    since: float
    process: ProcessId | None = None
    restarts: int = 0
    last_exit: str = ""
    hangs: int = 0
    silent_since: float = 0.0


@dataclass(frozen=True)
class EngineStatus:
    """The supervisor and its parts. `problem` is the reason of a stop without a request."""

    supervisor: ProcessId
    since: float
    addresses: dict[str, str]
    parts: dict[str, PartStatus] = field(default_factory=dict)
    problem: str = ""

    @property
    def ready(self) -> bool:
        """Whether the engine delivers."""
        return bool(self.parts) and all(
            part.state is PartState.READY and not part.silent_since for part in self.parts.values()
        )


def write(path: Path, status: EngineStatus) -> None:
    write_atomically(path, msgspec.json.format(msgspec.json.encode(status), indent=1) + b"\n", durable=False)


def touch(path: Path) -> None:
    """Record that the writer runs."""
    with contextlib.suppress(OSError):
        os.utime(path)


def age_s(path: Path) -> float:
    """Seconds since the writer last ran, by the wall clock; 0 without a file."""
    try:
        return max(time.time() - path.stat().st_mtime, 0.0)
    except OSError:
        return 0.0


def read(path: Path) -> EngineStatus | None:
    """The last state; None without a readable one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=EngineStatus)
    except (OSError, ValueError):
        return None
