"""Logs whose beginning moves, over a real broker: following them, looking records up, deleting what nobody needs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

from core.errors import InfrastructureError
from core.eventlog.client import Admin
from core.eventlog.follower import LogFollower
from core.eventlog.scan import LogReader
from core.eventlog.topics import PULL_LOG, ensure_topics
from core.eventlog.writers import LogWriter
from core.settings import KafkaSettings
from ingest.state.pull_queues import PullLog, PullQueues, PullView
from topic_model.projections.pull_store import PullLimits
from topic_model.records.pull import StoredMessage, decode

pytestmark = pytest.mark.kafka


@pytest.fixture
def writer(kafka_settings: KafkaSettings) -> Iterator[LogWriter]:
    ensure_topics(kafka_settings)
    opened = LogWriter(kafka_settings, PULL_LOG)
    try:
        yield opened
    finally:
        opened.close()


def follower(kafka: KafkaSettings, seen: list[tuple[int, str]], *, forgetful: bool) -> LogFollower[str]:
    def read(_: bytes, value: bytes | None) -> str:
        return (value or b"").decode()

    return LogFollower(kafka, PULL_LOG, read, lambda text, offset: seen.append((offset, text)), forgetful=forgetful)


def delete_before(kafka: KafkaSettings, offset: int) -> None:
    with closing(Admin(kafka)) as admin:
        admin.delete_before(kafka.topic(PULL_LOG), 0, offset)


def append(writer: LogWriter, *texts: str) -> int:
    return writer.append_encoded([(b"p", text.encode()) for text in texts])


def test_a_follower_begins_where_the_log_begins(kafka_settings: KafkaSettings, writer: LogWriter) -> None:
    append(writer, "a", "b", "c")
    delete_before(kafka_settings, 2)
    seen: list[tuple[int, str]] = []
    with closing(follower(kafka_settings, seen, forgetful=False)) as opened:
        assert opened.read_to_end(120) == 3
    assert seen == [(2, "c")]


def test_a_follower_that_was_overtaken_goes_on_only_if_it_may(kafka_settings: KafkaSettings, writer: LogWriter) -> None:
    append(writer, "a")
    seen: list[tuple[int, str]] = []
    strict_seen: list[tuple[int, str]] = []
    with (
        closing(follower(kafka_settings, seen, forgetful=True)) as opened,
        closing(follower(kafka_settings, strict_seen, forgetful=False)) as strict,
    ):
        opened.read_to_end(120)
        strict.read_to_end(120)
        # While neither looks, the log moves on and its beginning follows.
        opened.close()
        strict.close()
        append(writer, "b", "c", "d")
        delete_before(kafka_settings, 3)
        opened.read_to_end(120)
        assert seen == [(0, "a"), (3, "d")]
        with pytest.raises(InfrastructureError, match="truncated or created anew"):
            strict.read_to_end(120)


def test_records_are_looked_up_by_their_offsets(kafka_settings: KafkaSettings, writer: LogWriter) -> None:
    append(writer, *(str(number) for number in range(50)))
    delete_before(kafka_settings, 10)
    with closing(LogReader(kafka_settings, PULL_LOG)) as reader:
        assert reader.read([]) == {}
        assert reader.read([45, 12, 5, 12]) == {12: b"12", 45: b"45"}
        assert reader.read([3]) == {}


def test_what_was_settled_is_deleted_from_the_log(kafka_settings: KafkaSettings, writer: LogWriter) -> None:
    async def work() -> None:
        failures: list[Exception] = []
        view = PullView(kafka_settings, PullLimits(10, 10_000, 10_000), failures.append, lambda _: None)
        log = PullLog(kafka_settings, view)
        queues = PullQueues(view.store, log, lambda _: True, claim_s=30, max_bytes=10_000)
        view.start()
        await view.until_caught_up()
        await queues.put("p", [StoredMessage(b"<a/>"), StoredMessage(b"<b/>"), StoredMessage(b"<c/>")])
        handout = await queues.take("p", 2, 0)
        assert handout.elements == (b"<a/>", b"<b/>")
        handout.finish(True)
        await queues.close()
        await log.cut()
        await view.stop()
        log.close()
        assert failures == []

    asyncio.run(work())
    seen: list[bytes] = []
    follow = LogFollower(
        kafka_settings,
        PULL_LOG,
        decode,
        lambda keyed, _: seen.append(keyed[1].element) if isinstance(keyed[1], StoredMessage) else None,
    )
    with closing(follow):
        follow.read_to_end(120)
    assert seen == [b"<c/>"]
