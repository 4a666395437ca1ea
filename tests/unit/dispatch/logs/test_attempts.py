"""The log of attempts: its records; writers of logs while Kafka refuses, hangs or is unavailable."""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec
import pytest
from kafka.errors import KafkaTimeoutError

from arborcast.core.errors import InfrastructureError, RecordVersionError
from arborcast.core.eventlog import writers
from arborcast.core.eventlog.writers import DurableWriter
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import attempts, dead_letters
from arborcast.dispatch.logs.attempts import RECORD_BYTES, Attempt, AttemptsLog, Evaluation, Matched
from arborcast.dispatch.logs.dead_letters import letter_of
from arborcast.dispatch.logs.parked import DeadLetterLog, Delivery, Place
from arborcast.topic_model.topics import TopicPath
from tests.support.fake_producer import FakeProducer, connecting
from tests.support.make import Clock, notification
from tests.support.table_rows import attempt

NAMES = tuple(f"0190c2a4-7f7e-7b3c-9d2e-{number:012}" for number in range(20_000))


def dead(name: str = "n1") -> Attempt:
    failure: Any = {"error": "server-error", "detail": "HTTP 500", "status": 500, "response": b"\x00\xff"}
    return attempt(name, "s", "dead", number=6, **failure)


def test_damaged_records_are_skipped_and_newer_versions_refused() -> None:
    assert attempts.readable(b"\xc1").attempts == []
    assert attempts.evaluation_in(b"\xc1") is None
    assert [attempts.batch_of(key) for key in (b"-1", b"7", b"--7", b"\xff", b"", None)] == [-1, 7, *[None] * 4]
    with pytest.raises(RecordVersionError):
        attempts.readable(msgspec.msgpack.encode({"v": attempts.VERSION + 1, "attempts": []}))


def test_the_partition_of_a_subscription_never_changes() -> None:
    assert [attempts.partition_of_subscription(*each) for each in (("s", 1), ("s", 12), ("\xfc", 64))] == [0, 7, 21]


@pytest.mark.parametrize(("notifications", "passed"), [(100, 700), (1, len(NAMES))], ids=["many", "large"])
def test_records_of_an_evaluation_are_bounded_in_size(notifications: int, passed: int) -> None:
    """Passed subscriptions of one notification may need several records."""
    matched = [
        Matched(f"n{number}", TopicPath("a"), 1, number, passed, NAMES[:passed], 3, caused=True)
        for number in range(notifications)
    ]
    values = list(attempts.encode_evaluation(Evaluation(1, 7, 9, matched)))
    assert len(values) > 1
    assert all(len(value) < 2 * RECORD_BYTES for value in values)
    read = [each for value in values if (each := attempts.decode(value).evaluation)]
    assert {(each.partition, each.batch, each.control) for each in read} == {(1, 7, 9)}
    whole: dict[str, Matched] = {}
    for piece in (piece for each in read for piece in each.matched):
        before = whole[piece.notification].passed if piece.notification in whole else ()
        whole[piece.notification] = msgspec.structs.replace(piece, passed=before + piece.passed)
    assert list(whole.values()) == matched


def test_a_dead_letter_has_the_message_and_the_last_attempt() -> None:
    message, last = notification("n1", payload=b"<x>\xc3\xa4</x>", message_id="m"), dead()
    letter = letter_of(last, message)

    assert dead_letters.decode(dead_letters.encode(letter)) == letter
    assert letter.notification == message
    assert letter.at_ms == last.started_ms
    for name in ("subscription", "endpoint", "state", "number", "push", "error", "detail", "status", "response"):
        assert getattr(letter, name) == getattr(last, name)


class HangingProducer(FakeProducer):
    """Acknowledges nothing before it is aborted; then only the last record."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def flush(self, timeout: float | None = None) -> None:
        self.waits.append(timeout)
        raise KafkaTimeoutError("Timeout waiting for future")

    def abort(self) -> None:
        *others, last = self.open
        for each in others:
            each.fail(KafkaTimeoutError("aborted"))
        self.taken.append(last)
        last.acknowledge(None)
        super().abort()


@pytest.fixture(autouse=True)
def _no_retry_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "RETRY_S", 0.0)


def names(producer: FakeProducer) -> list[tuple[str, str]]:
    """Subscription and notification of each attempt in the log."""
    taken = (one for each in producer.taken for one in attempts.decode(each.value).attempts)
    return [(each.subscription, each.notification) for each in taken]


def log_over(producer: FakeProducer, *clock: Clock) -> AttemptsLog:
    return AttemptsLog(KafkaSettings(), connecting(producer), *clock)


def writer_over(*producers: FakeProducer | None, clock: Any = None) -> DurableWriter:
    return DurableWriter(KafkaSettings(), "parked", connecting(*producers), clock or Clock())


def delivered(subscription: str, number: int, batch: int = 0) -> Attempt:
    return attempt(f"n{number}", subscription, "delivered", batch=batch)


def test_a_dead_letter_is_removed_from_every_partition() -> None:
    """It may have been written before partitions were added."""
    producer = FakeProducer(partitions=3)
    log = DeadLetterLog(KafkaSettings(), connecting(producer))
    log.forget(Delivery("s", Place(1, 0, 7)))
    log.settle(10)
    assert [(each.partition, each.value is None) for each in producer.taken] == [(0, True), (1, True), (2, True)]


@pytest.mark.parametrize(("refusals", "response"), [(0, b""), (3, b""), (0, b"x" * 60_000)], ids=repr)
def test_each_attempt_is_written_once_in_order(refusals: int, response: bytes) -> None:
    """Attempts share records, refused records are repeated, records are split by size."""
    producer, number = FakeProducer(3, refusals), 400 if response else 1_200
    log = log_over(producer)
    for each in range(number):
        log.add(msgspec.structs.replace(delivered(f"s{each % 5}", each), response=response))

    log.settle(10)

    if not response:
        assert len(producer.taken) < 10
    assert all(len(each.value) < RECORD_BYTES + len(response) + 1_000 for each in producer.taken)
    assert {each.key for each in producer.taken} == {b"0"}
    assert sorted(names(producer)) == sorted((f"s{each % 5}", f"n{each}") for each in range(number))
    for subscription in range(0 if refusals else 5):
        written = [name for owner, name in names(producer) if owner == f"s{subscription}"]
        assert written == [f"n{each}" for each in range(subscription, number, 5)]


def test_a_writer_closes_its_connection_after_the_time_out() -> None:
    producer = FakeProducer(refusals=10**9)
    log = log_over(producer)
    log.add(delivered("s", 1))
    with pytest.raises(InfrastructureError, match="did not take 1 record"):
        log.settle(0.05)
    assert producer.aborted


def test_another_producer_sends_the_records_of_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "_HANGS_AFTER_S", 0.0)
    hanging, well = HangingProducer(), FakeProducer()
    log = AttemptsLog(KafkaSettings(request_timeout_s=1.0), connecting(hanging, None, well))
    for number in range(6):
        log.add(delivered("s", number))
        log.write()

    log.settle(100)

    assert hanging.aborted
    assert [name for _, name in names(well)] == [f"n{number}" for number in range(5)]
    assert [name for _, name in names(hanging)] == ["n5"], "an acknowledged record is not repeated"


def test_a_second_time_out_of_a_producer_is_not_awaited() -> None:
    """A worker settles its logs in sequence: during the first time-out the others end too."""
    clock = Clock()
    hanging, well = HangingProducer(), FakeProducer()
    writer = writer_over(hanging, well, clock=clock)
    for number in range(2):
        writer.send(0, b"%d" % number, b"k")
    clock.after(12.0)
    writer.settle(100)
    assert hanging.waits == [pytest.approx(3.0)]
    assert [each.value for each in well.taken] == [b"0"]

    hanging, well = HangingProducer(), FakeProducer()
    writer = writer_over(hanging, well, clock=clock)
    for number in range(2):
        writer.send(0, b"%d" % number, b"k")
    clock.after(60.0)
    hanging.open[0].fail(KafkaTimeoutError("no answer"))
    writer.send(0, b"later", b"k")
    writer.settle(100)
    assert hanging.waits == [0.0], "a later record does not extend the time-out"
    assert [each.value for each in well.taken] == [b"0", b"later"]


def test_a_topic_without_metadata_closes_the_connection() -> None:
    class Lost(FakeProducer):
        def partitions_for(self, topic: str) -> set[int]:
            raise KafkaTimeoutError("no metadata")

    made = [Lost() for _ in range(3)]
    log = AttemptsLog(KafkaSettings(), connecting(*made))
    for _ in made:
        with pytest.raises(InfrastructureError, match="attempts cannot be looked up"):
            log.connect()
    assert [producer.aborted for producer in made] == [True] * 3


def test_attempts_are_sent_in_time_and_delays_are_detected() -> None:
    producer, clock = FakeProducer(), Clock(128.0)
    log = log_over(producer, clock)
    sent: list[int] = []
    for number in range(10):
        log.add(delivered("s", number))
        log.write_due()
        sent.append(len(producer.open))
        clock.after(0.0625)
    assert sent == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    producer.flush()

    log.add(delivered("s", 10))
    clock.after(60)
    assert not log.is_behind(0.5), "nothing was sent"
    log.write_due()
    assert not log.is_behind(0.5), "just sent"
    clock.after(60)
    assert log.is_behind(0.5)
    producer.flush()
    assert not log.is_behind(0.5)


def test_a_record_has_the_attempts_of_one_batch() -> None:
    producer = FakeProducer()
    log = log_over(producer)
    for batch in (1, 1, 2, -1, 2):
        log.add(delivered("s", 0, batch))
    log.settle(1)

    assert [each.key for each in producer.taken] == [b"1", b"2", b"-1", b"2"]
    for record in producer.taken:
        assert {each.batch for each in attempts.decode(record.value).attempts} == {attempts.batch_of(record.key)}


def test_has_all_requires_all_earlier_records() -> None:
    producer = FakeProducer()
    writer = writer_over(producer)
    assert writer.has_all(writer.sent)
    numbers = [writer.send(0, b"x", b"k") for _ in range(3)]
    assert numbers[-1] == writer.sent
    for each in producer.open[1:]:
        each.acknowledge(None)
    assert [writer.has(number) for number in numbers] == [False, True, True]
    assert not any(map(writer.has_all, numbers)), "the first record is missing"
    producer.flush()
    assert writer.has_all(writer.sent)


def test_unacknowledged_bytes_are_bounded() -> None:
    producer = FakeProducer()
    writer = writer_over(producer)
    most, size = 0, 1024 * 1024
    for number in range(100):
        writer.send(0, b"x" * size, b"%d" % number)
        most = max(most, len(producer.open))
    assert most == writers._MAX_UNACKNOWLEDGED_BYTES // size
    assert len(producer.taken) > 80
    writer.settle(1.0)
    assert len(producer.taken) == 100


def test_one_connection_attempt_for_all_records_at_the_start() -> None:
    producer, connects = FakeProducer(), count(1)
    connect = connecting(None, None, producer)
    writer = DurableWriter(KafkaSettings(), "pullpoints", lambda kafka: (next(connects), connect(kafka))[1])
    numbers = [writer.send(0, b"%d" % number, b"k") for number in range(50)]
    assert next(connects) == 2, "one connection attempt"
    assert not any(map(writer.has, numbers))
    writer.settle(10.0)
    assert [each.value for each in producer.taken] == [b"%d" % number for number in range(50)]
