"""Where the parts of an engine are now: an embedded one may have taken other ports than the settings say."""

from __future__ import annotations

import dataclasses
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobs.settings import Settings
    from topic_model.settings import KafkaSettings

_CONNECT_S = 1.0


def reachable_kafka(settings: Settings) -> KafkaSettings:
    """How to reach the brokers."""
    from jobs.stack.commands import status

    running = status(settings.home)["addresses"].get("kafka")
    return dataclasses.replace(settings.kafka, bootstrap_servers=running) if running else settings.kafka


def answers(kafka: KafkaSettings) -> bool:
    """Whether somebody listens where a broker should. The Kafka client would take half a minute to find out."""
    for server in kafka.bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        except (OSError, ValueError):
            continue
        return True
    return False


def dispatch_checkpoint(settings: Settings, query: str) -> str:
    """Where the dispatch job keeps a query's progress."""
    root = settings.dispatch.checkpoint.rstrip("/") or str((settings.home / "checkpoints").absolute())
    return f"{root}/{query}"
