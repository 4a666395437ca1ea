"""The sizes that the capacity formula in docs/operations.md reckons with are those of the records."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

from dispatch import attempts
from dispatch.attempts import Attempt, Evaluation, Matched
from topic_model import notifications
from topic_model.notifications import Notification
from topic_model.topics import TopicPath

NOW_MS = 1_800_000_000_000
TOPIC = TopicPath("{urn:plant}plant/hall/machine7")
MANY = 500


def stated() -> tuple[int, int]:
    """Bytes beside a payload, bytes of an outcome."""
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    found = re.search(r"`n \* \(b \+ (\d+) bytes\) .*`n \* f \* (\d+) bytes", page)
    assert found, "the formula is gone"
    return int(found[1]), int(found[2])


def test_a_notification_and_what_it_matched() -> None:
    payload = b"x" * 800
    notification = Notification(
        id=uuid.uuid4().hex,
        topic=TOPIC,
        payload=payload,
        accepted_ms=NOW_MS,
        message_id=f"urn:uuid:{uuid.uuid4()}",
        publisher="somebody",
    )
    beside: float = sum(map(len, notifications.encode(notification))) - len(payload)
    matched = [Matched(uuid.uuid4().hex, TOPIC, NOW_MS, 10**6 + each, 1) for each in range(MANY)]
    beside += sum(map(len, attempts.encode_evaluation(Evaluation(0, 1, 1000, matched)))) / MANY

    assert abs(beside - stated()[0]) < 0.15 * beside


def test_an_outcome() -> None:
    outcomes = [
        Attempt(
            notification=uuid.uuid4().hex,
            subscription=uuid.uuid4().hex,
            topic=TOPIC,
            endpoint="https://orders.example:8443/in/7",
            number=1,
            push=uuid.uuid4().hex,
            state="delivered",
            accepted_ms=NOW_MS + each,
            started_ms=NOW_MS + each + 30,
            duration_ms=2.345678,
            status=202,
            request_bytes=1500,
            batch=123_456,
        )
        for each in range(MANY)
    ]
    size = sum(map(len, attempts.encode(outcomes))) / MANY

    assert abs(size - stated()[1]) < 0.15 * size
