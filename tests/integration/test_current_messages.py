"""Retained topics over a real broker: what survives, what other workers see, and that compaction keeps the last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import requests

from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.settings import KafkaSettings
from arborcast.ingest.operations.current_message import RetainedMessages
from arborcast.ingest.settings import GatewaySettings
from arborcast.ingest.state.notification_log import NotificationLog
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.records.control import TopicPolicy, TopicRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from tests.support import oasis
from tests.support import soap_messages as soap
from tests.support.gateway_process import gateway_run

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
            while not log.connected:
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


def test_the_current_message_survives_kill_9_and_is_the_same_for_all_gateways(
    tmp_path: Path, kafka_settings: KafkaSettings
) -> None:
    ask = soap.envelope(f"<wsnt:GetCurrentMessage>{soap.topic('t:a')}</wsnt:GetCurrentMessage>")
    ensure_topics(kafka_settings)
    control = ControlLog(kafka_settings)
    control.append([TopicRecord(A, policy=TopicPolicy(retain=True))])
    control.close()

    def current(url: str) -> list[str | None]:
        answer = requests.post(url, ask, timeout=60)
        assert answer.status_code == 200, answer.text
        return [child.text for child in oasis.validate(answer.content)]

    with gateway_run(tmp_path / "1", kafka_settings) as one, gateway_run(tmp_path / "2", kafka_settings) as two:
        for number in range(10):
            body = soap.envelope(soap.notify(soap.message("t:a", f'<n xmlns="urn:n">{number}</n>')))
            assert requests.post(one.broker, body, timeout=60).status_code == 202
            assert current(two.broker) == [str(number)]
        one.kill()
        one.start()
        assert current(one.broker) == ["9"]
