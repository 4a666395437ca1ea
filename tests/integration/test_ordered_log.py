"""Logs whose beginning moves, over a real broker: following, looking records up, deleting settled records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import Admin, make_producer
from arborcast.core.eventlog.consumer import LogConsumer
from arborcast.core.eventlog.follower import LogFollower
from arborcast.core.eventlog.topics import PULL_LOG, ensure_topics
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings
from arborcast.ingest.state.pull_queues import PullLog, PullQueues, PullView
from arborcast.topic_model.projections.pull_store import PullLimits
from arborcast.topic_model.records.pull import StoredMessage, decode
from tests.support.broker import records_in
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka


@pytest.fixture
def writer(kafka_settings: KafkaSettings) -> Iterator[LogWriter]:
    ensure_topics(kafka_settings)
    with closing(LogWriter(kafka_settings, PULL_LOG)) as opened:
        yield opened


def follower(kafka: KafkaSettings, seen: list[tuple[int, str]], *, forgetful: bool) -> LogFollower[str]:
    def read(_: bytes, value: bytes | None) -> str:
        return (value or b"").decode()

    return LogFollower(kafka, PULL_LOG, read, lambda text, offset: seen.append((offset, text)), forgetful=forgetful)


def append(writer: LogWriter, *texts: str) -> int:
    return writer.append_encoded([(b"p", text.encode()) for text in texts])


def test_an_overtaken_follower_continues_only_if_allowed(kafka_settings: KafkaSettings, writer: LogWriter) -> None:
    append(writer, "a")
    seen: list[tuple[int, str]] = []
    strict_seen: list[tuple[int, str]] = []
    with (
        closing(follower(kafka_settings, seen, forgetful=True)) as opened,
        closing(follower(kafka_settings, strict_seen, forgetful=False)) as strict,
    ):
        opened.read_to_end(120)
        strict.read_to_end(120)
        # While neither reads, the log and its beginning move on.
        opened.close()
        strict.close()
        append(writer, "b", "c", "d")
        with closing(Admin(kafka_settings)) as admin:
            admin.delete_before(kafka_settings.topic(PULL_LOG), 0, 3)
        opened.read_to_end(120)
        assert seen == [(0, "a"), (3, "d")]
        with pytest.raises(InfrastructureError, match="truncated or created again"):
            strict.read_to_end(120)
    # A new follower begins where the log begins.
    strict_seen.clear()
    with closing(follower(kafka_settings, strict_seen, forgetful=False)) as later:
        assert later.read_to_end(120) == 4
    assert strict_seen == [(3, "d")]


def test_a_fetch_of_idle_partitions_delays_no_other_partition(kafka_settings: KafkaSettings) -> None:
    """The broker holds a fetch of partitions without new records: here for four minutes."""
    kafka = dataclasses.replace(kafka_settings, request_timeout_s=300.0)
    ensure_topics(kafka)
    assert kafka.partitions > 1
    producer = make_producer(kafka)

    def put(number: int) -> None:
        producer.send(kafka.topic("notifications"), key=b"k", value=b"%d" % number, partition=1)
        producer.flush(timeout=60)

    for number in range(10):
        put(number)
    seen: list[bytes] = []
    with closing(LogConsumer(kafka, "notifications", wait_ms=240_000, max_records=4)) as log:
        log.seek(dict.fromkeys(range(kafka.partitions), 0))

        def all_there() -> bool:
            seen.extend(record.value or b"" for records in log.poll(1.0).values() for record in records)
            if len(seen) == 10:
                put(10)
            return len(seen) >= 11

        wait_until(all_there, lambda: seen, timeout_s=180)
    producer.close(timeout=10)
    assert seen == [b"%d" % number for number in range(11)]


async def test_settled_records_are_deleted_from_the_log(kafka_settings: KafkaSettings, writer: LogWriter) -> None:
    failures: list[Exception] = []
    view = PullView(kafka_settings, PullLimits(10, 10_000, 10_000), failures.append, lambda _: None)
    log = PullLog(kafka_settings, view, kept_s=0)
    queues = PullQueues(view.store, log, lambda _: True, claim_s=30, max_bytes=10_000, max_nodes=10_000)
    view.start()
    await view.until_caught_up()
    await queues.put("p", [StoredMessage(b"<a/>"), StoredMessage(b"<b/>"), StoredMessage(b"<c/>")])
    claimed = await queues.take("p", 2, 0)
    assert [each.element for each in claimed.messages] == [b"<a/>", b"<b/>"]
    claimed.finish(True)
    await queues.close()
    await log.cut()
    await view.stop()
    log.close()
    assert failures == []
    left = [decode(b"", record.value)[1] for record in records_in(kafka_settings, PULL_LOG)]
    assert [each.element for each in left if isinstance(each, StoredMessage)] == [b"<c/>"]
