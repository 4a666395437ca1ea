"""What the supervisor says about itself and its parts, in a file that others read at any time."""

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


# How often the state file is given a new time, by which others see that the supervisor itself comes round.
BEAT_S = 5.0


def addresses(path: Path) -> dict[str, str]:
    """Where the engine that runs in this data directory listens, by name; nothing when none does."""
    home = Home(path)
    known = read(home.state_file) if home.owner() is not None else None
    return known.addresses if known else {}


def has_own_broker(settings: Settings) -> bool:
    """Whether the engine of this data directory starts its own Kafka: when it is stopped, no address of another engine
    may stand for it."""
    from arborcast.core.settings import KafkaSettings

    embedded = settings.stack.broker == "embedded"
    return embedded and settings.kafka.bootstrap_servers == KafkaSettings().bootstrap_servers


def reachable_kafka(settings: Settings) -> KafkaSettings:
    """How to reach the brokers."""
    running = addresses(settings.home).get("kafka")
    return dataclasses.replace(settings.kafka, bootstrap_servers=running) if running else settings.kafka


class PartState(StrEnum):
    """How a part is."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"  # it died; the next start is being waited for
    STOPPED = "stopped"
    FAILED = "failed"  # it never got ready, and the engine was stopped for it


@dataclass(frozen=True)
class PartStatus:
    """One part at one moment. `since` is when it entered its state, in seconds of the epoch.

    `hangs` of its restarts were for not answering; `silent_since` is since when it does not answer now, 0 when it does.
    """

    state: PartState
    since: float
    process: ProcessId | None = None
    restarts: int = 0
    last_exit: str = ""
    hangs: int = 0
    silent_since: float = 0.0


@dataclass(frozen=True)
class EngineStatus:
    """The supervisor and its parts. `problem` says why the engine stopped without a request."""

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
    """Replaces the file in one step, so that a reader finds the old state or the new one, never half of it."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(status), indent=1) + b"\n", durable=False)


def touch(path: Path) -> None:
    """Says that its writer still runs."""
    with contextlib.suppress(OSError):
        os.utime(path)


def age_s(path: Path) -> float:
    """How long ago its writer last ran, by the wall clock; 0 when there is no such file."""
    try:
        return max(time.time() - path.stat().st_mtime, 0.0)
    except OSError:
        return 0.0


def read(path: Path) -> EngineStatus | None:
    """The state last written; None when there is none that can be understood."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=EngineStatus)
    except (OSError, ValueError):
        return None
