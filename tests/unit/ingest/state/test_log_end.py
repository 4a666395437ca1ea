from __future__ import annotations

import asyncio
import threading

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog import consumer as consumer_module
from arborcast.core.eventlog.client import TopicPartition
from arborcast.core.settings import KafkaSettings
from arborcast.ingest.state.changes import LogEnd


class SlowConsumer:
    """Answers when it is let; `end` is what the log's end is at that moment."""

    def __init__(self) -> None:
        self.questions = 0
        self.end = 0
        self.let = threading.Event()
        self.asked = threading.Event()
        self.broken = False

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0}

    def end_offsets(self, partitions: list[TopicPartition], timeout_ms: int | None = None) -> dict[TopicPartition, int]:
        self.questions += 1
        answer = self.end
        self.asked.set()
        assert self.let.wait(120)
        if self.broken:
            raise OSError("gone")
        return dict.fromkeys(partitions, answer)

    def close(self, autocommit: bool = True, timeout_ms: int | None = None) -> None:
        pass


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> SlowConsumer:
    made = SlowConsumer()
    monkeypatch.setattr(consumer_module, "make_consumer", lambda *_, **__: made)
    return made


def test_error_reaches_everybody_and_the_next_question_tries_anew(consumer: SlowConsumer) -> None:
    async def run() -> int:
        end = LogEnd(KafkaSettings(), "control")
        consumer.let.set()
        consumer.broken = True
        answers = await asyncio.gather(end.end_offset(), end.end_offset(), return_exceptions=True)
        assert all(isinstance(answer, InfrastructureError) for answer in answers)
        consumer.broken, consumer.end = False, 7
        try:
            return await end.end_offset()
        finally:
            end.close()

    assert asyncio.run(run()) == 7
