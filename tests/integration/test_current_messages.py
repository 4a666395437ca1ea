"""Retained topics over a real broker; with gateways: test_several_gateways.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.settings import KafkaSettings
from arborcast.ingest.operations.current_message import RetainedMessages
from arborcast.ingest.settings import GatewaySettings
from arborcast.ingest.state.notification_log import NotificationLog
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath

pytestmark = pytest.mark.kafka

A, B = TopicPath("{urn:t}a"), TopicPath("{urn:t}b")


def notification(topic: TopicPath, number: int) -> Notification:
    return Notification(f"id-{number}", topic, f"<n>{number}</n>".encode(), accepted_ms=number)


def over_logs(
    settings: KafkaSettings, work: Callable[[NotificationLog, RetainedMessages], Coroutine[Any, Any, None]]
) -> None:
    async def run() -> None:
        log, retained = NotificationLog(settings, GatewaySettings()), RetainedMessages(settings)
        log.start()
        try:
            while log.obstacle:
                await asyncio.sleep(0.01)
            await work(log, retained)
        finally:
            retained.close()
            await log.stop()

    ensure_topics(settings)
    asyncio.run(asyncio.wait_for(run(), 300))


def test_an_acknowledged_current_message_is_found_at_once(kafka_settings: KafkaSettings) -> None:
    async def work(log: NotificationLog, retained: RetainedMessages) -> None:
        assert await retained.latest([A]) == []
        for number in range(20):
            sent = [notification(A, number), notification(B, number)]
            await log.append(sent, sent[:1])
            assert await retained.latest([A, B]) == sent[:1]
        await log.append([notification(B, 99)], [notification(B, 99)])
        assert await retained.latest([B, A]) == [notification(A, 19), notification(B, 99)]
        assert sorted(await retained.topics(lambda path: True)) == [A, B]
        assert await retained.topics(B.__eq__) == [B]

    over_logs(kafka_settings, work)


def test_a_removed_message_does_not_return_and_a_later_one_stays(kafka_settings: KafkaSettings) -> None:
    async def work(log: NotificationLog, retained: RetainedMessages) -> None:
        first = [notification(A, 1), notification(B, 1)]
        await log.append(first, first)
        end = await retained.end()
        later = [notification(B, 2)]
        await log.append(later, later)
        await retained.remove([A, B], end)
        assert await retained.latest([A, B]) == later

    over_logs(kafka_settings, work)
