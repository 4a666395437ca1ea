"""What a record of the notifications log is to those who read it again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from arborcast.core.errors import RecordVersionError
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.notifications import Notification, notification_in
from arborcast.topic_model.topics import TopicPath


def record(value: bytes | None) -> Any:
    return SimpleNamespace(value=value)


def test_a_notification() -> None:
    notification = Notification("n", TopicPath("a"), b"<x/>", 1_000)
    assert notification_in(record(notifications.encode(notification)[1])) == notification


@pytest.mark.parametrize(
    "value", [None, b"", b"\xc1", notifications.encode(Notification("n", TopicPath("a"), b"", 1))[1][:-1]]
)
def test_a_damaged_record_is_none(value: bytes | None) -> None:
    assert notification_in(record(value)) is None


def test_a_record_of_a_newer_version_is_not_skipped() -> None:
    with pytest.raises(RecordVersionError, match="version 99"):
        notification_in(record(msgspec.msgpack.encode({"v": 99, "notification": "in another form"})))
