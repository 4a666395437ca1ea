"""What commands share that look into the logs themselves: which Kafka, which time, which notifications."""

from __future__ import annotations

import dataclasses
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.cli.common import settings_of
from topic_model.errors import ConfigError, InfrastructureError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from topic_model.settings import KafkaSettings
    from topic_model.topics import TopicPath

SubscriptionOption = Annotated[
    str | None, typer.Option("--subscription", help="Only deliveries to this subscription.", metavar="ID")
]
AcceptedSinceOption = Annotated[
    str,
    typer.Option("--since", help="What was accepted from then on: 30m, 2h, 7d, or 2026-01-31T12:00.", metavar="TIME"),
]
UntilOption = Annotated[
    str | None, typer.Option("--until", help="Only before this time; as --since.", metavar="TIME", show_default="now")
]
TopicsOption = Annotated[
    str | None,
    typer.Option("--topic", help="Only these topics: a/b, a:b, 'a//.' (a and all below).", metavar="TOPIC"),
]


def kafka_of(config: Path | None, home: Path | None) -> KafkaSettings:
    """How Kafka is reached: that of the engine that runs in this data directory, if one does, else what is set.

    Raises InfrastructureError when that would be a broker of ours that is not up: another engine may listen on its
    port, and its logs must not be taken for these.
    """
    from jobs.stack.commands import status
    from topic_model.settings import KafkaSettings

    settings = settings_of(config, home)
    running = status(settings.home)["addresses"].get("kafka")
    if running:
        return dataclasses.replace(settings.kafka, bootstrap_servers=running)
    if settings.stack.broker == "embedded" and settings.kafka.bootstrap_servers == KafkaSettings().bootstrap_servers:
        raise InfrastructureError(
            f"no engine runs in {settings.home}, so its logs cannot be read: start it, or name another with --home; "
            'where Kafka is not ours, stack.broker = "external" and kafka.bootstrap_servers say so'
        )
    return settings.kafka


def moment_ms(option: str, text: str) -> int:
    """Milliseconds since the epoch, for a span before now (1h) or an ISO time. Raises ConfigError."""
    from jobs.monitoring.since import beginning

    try:
        return int(beginning(text, time.time()) * 1000)
    except ConfigError as error:
        raise ConfigError(str(error).replace("--since", option, 1)) from error


def moment(ms: int) -> str:
    """The time as people read it."""
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().isoformat(sep=" ", timespec="milliseconds")


def topic_test(topic: str | None, namespaces: Mapping[str, str]) -> Callable[[TopicPath], bool]:
    """Whether a topic is meant by an expression; all are when there is none. Raises ExpressionError, ConfigError."""
    if topic is None:
        return lambda _path: True
    from topic_model.expressions import XPathPattern, compile_normal, parse_friendly

    pattern = compile_normal(parse_friendly(topic, namespaces).normal)
    if isinstance(pattern, XPathPattern):
        raise ConfigError(f"--topic {topic}: a path is needed, for instance a/b, or a//. for all below it")
    return pattern.matches
