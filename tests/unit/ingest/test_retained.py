from __future__ import annotations

import asyncio
import time

from ingest.retained import RetainedMessages
from jobs.stack import ports
from topic_model.errors import InfrastructureError
from topic_model.settings import KafkaSettings
from topic_model.topics import TopicPath


def test_while_kafka_is_away_nobody_waits_for_those_before() -> None:
    settings = KafkaSettings(bootstrap_servers=f"127.0.0.1:{ports.free_port()}", request_timeout_s=0.5)

    async def ask() -> list[object]:
        retained = RetainedMessages(settings)
        try:
            asked = [retained.latest([TopicPath("a")]) for _ in range(20)]
            return list(await asyncio.gather(*asked, return_exceptions=True))
        finally:
            retained.close()

    began = time.monotonic()
    outcomes = asyncio.run(ask())
    assert time.monotonic() - began < 5, "20 times half a second, had they waited in turn"
    for outcome in outcomes:
        assert isinstance(outcome, InfrastructureError)
        assert outcome.retry_after is not None
