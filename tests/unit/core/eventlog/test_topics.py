from __future__ import annotations

from unittest.mock import MagicMock, create_autospec, patch

import pytest

from arborcast.core.errors import ConfigError
from arborcast.core.eventlog.client import Admin, PartitionState
from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.settings import KafkaSettings

KAFKA = KafkaSettings(request_timeout_s=60.0)


def admin(policies: list[dict[str, str]], partitions: list[list[PartitionState] | None]) -> MagicMock:
    found: MagicMock = create_autospec(Admin, instance=True)
    found.create_topic.return_value = False  # it is there
    found.configs.side_effect = policies
    found.partitions.side_effect = partitions
    return found


def test_a_topic_that_another_process_is_just_creating_is_waited_for() -> None:
    one = [PartitionState(1, 1, 1)]
    asked = admin([{}, {"cleanup.policy": "compact"}, {"cleanup.policy": "compact"}], [None, None, one])
    with patch("arborcast.core.eventlog.topics.Admin", return_value=asked):
        ensure_topics(KAFKA, only=["control"])
    assert asked.configs.call_count == 3


def test_a_topic_of_another_kind_is_an_error_at_once() -> None:
    asked = admin([{"cleanup.policy": "delete"}], [[PartitionState(1, 1, 1)]])
    with (
        patch("arborcast.core.eventlog.topics.Admin", return_value=asked),
        pytest.raises(ConfigError, match="=delete, compact is needed"),
    ):
        ensure_topics(KAFKA, only=["control"])
