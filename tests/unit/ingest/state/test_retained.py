from __future__ import annotations

import asyncio

from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.engine.processes import processes
from arborcast.ingest.operations.current_message import RetainedMessages
from arborcast.topic_model.topics import TopicPath


def test_while_kafka_is_away_nobody_waits_for_those_before() -> None:
    settings = KafkaSettings(bootstrap_servers=f"127.0.0.1:{processes.free_port()}", request_timeout_s=0.5)

    async def ask() -> list[object]:
        retained = RetainedMessages(settings)
        try:
            asked = [
                retained.latest([TopicPath("a")]) for _ in range(2_000)
            ]  # in turn they would take longer than a test may
            return list(await asyncio.gather(*asked, return_exceptions=True))
        finally:
            retained.close()

    outcomes = asyncio.run(ask())
    for outcome in outcomes:
        assert isinstance(outcome, InfrastructureError)
        assert outcome.retry_after is not None
