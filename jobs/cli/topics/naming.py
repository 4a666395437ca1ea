"""Topics as people name them: by path, or by code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jobs.cli.common import namespaces_of, resolved

if TYPE_CHECKING:
    from topic_model.topics import TopicPath


def one_topic(text: str, namespace: list[str] | None, config: Path | None, home: Path | None) -> TopicPath:
    """The one topic that is named. Raises TopicError, ExpressionError, InfrastructureError."""
    from jobs.cli import topics_work

    namespaces = namespaces_of(namespace)
    return topics_work.one_topic(resolved(text, namespaces, config, home), namespaces)
