from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec
import pytest
from kafka.errors import KafkaTimeoutError

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog import writers
from arborcast.core.eventlog.client import Producer
from arborcast.core.eventlog.writers import DurableWriter
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.logs.attempts import Attempt, AttemptsLog
from arborcast.dispatch.logs.parked import DeadLetterLog, Delivery, Place
from arborcast.topic_model.topics import TopicPath
from tests.support.make import Clock


class PlayedFuture:
    def __init__(self) -> None:
        self.acknowledge: Callable[[object], object] = lambda _: None
        self.fail: Callable[[BaseException], object] = lambda _: None

    def add_callback(self, call: Callable[[object], object]) -> None:
        self.acknowledge = call

    def add_errback(self, call: Callable[[BaseException], object]) -> None:
        self.fail = call


class PlayedProducer:
    """Takes records at flush; refuses the first `refusals` of them."""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.taken: list[tuple[int, bytes]] = []
        self.keys: list[bytes] = []
        self.aborted = False
        self._open: list[tuple[int, bytes, PlayedFuture]] = []

    def partitions_for(self, topic: str) -> set[int]:
        return {0, 1, 2}

    def send(self, topic: str, value: bytes, key: bytes, *, partition: int) -> PlayedFuture:
        future = PlayedFuture()
        self.keys.append(key)
        self._open.append((partition, value, future))
        return future

    def flush(self, timeout: float | None = None) -> None:
        for partition, value, future in self._open:
            if self.refusals:
                self.refusals -= 1
                future.fail(KafkaTimeoutError("away"))
            else:
                self.taken.append((partition, value))
                future.acknowledge(None)
        self._open.clear()

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "RETRY_S", 0.0)


def attempt(subscription: str, number: int, batch: int = 0) -> Attempt:
    return Attempt(f"n{number}", subscription, TopicPath("a"), "http://e/", 1, "p", "delivered", 1, 2, 0.5, batch=batch)


def test_a_dead_letter_is_forgotten_wherever_it_was_before_partitions_were_added() -> None:
    producer = PlayedProducer()
    log = DeadLetterLog(KafkaSettings(), lambda _: cast(Producer, producer))
    log.forget(Delivery("s", Place(1, 0, 7)))
    log.settle(10)
    assert [(partition, value is None) for partition, value in producer.taken] == [(0, True), (1, True), (2, True)]


def opened(producer: PlayedProducer) -> AttemptsLog:
    return AttemptsLog(KafkaSettings(), lambda _: producer)  # type: ignore[arg-type, return-value]


def read(producer: PlayedProducer) -> list[tuple[str, str]]:
    return [(each.subscription, each.notification) for _, value in producer.taken for each in attempts.decode(value)]


def test_everything_is_written_once_and_in_order_per_subscription() -> None:
    producer = PlayedProducer()
    log = opened(producer)
    for number in range(1200):
        log.add(attempt(f"s{number % 5}", number))

    log.settle(1)

    assert len(producer.taken) < 10, "many outcomes share a record"
    assert set(producer.keys) == {b"0"}
    for subscription in range(5):
        written = [name for owner, name in read(producer) if owner == f"s{subscription}"]
        assert written == [f"n{number}" for number in range(subscription, 1200, 5)]


def test_refused_records_are_sent_again() -> None:
    producer = PlayedProducer(refusals=3)
    log = opened(producer)
    for number in range(20):
        log.add(attempt(f"s{number}", number))

    log.settle(10)

    assert sorted(read(producer)) == sorted((f"s{number}", f"n{number}") for number in range(20))


def test_gives_up_after_its_time_and_drops_the_connection() -> None:
    producer = PlayedProducer(refusals=10**9)
    log = opened(producer)
    log.add(attempt("s", 1))

    with pytest.raises(InfrastructureError, match="did not take 1 record"):
        log.settle(0.05)

    assert producer.aborted


class HangingProducer(PlayedProducer):
    """Settles nothing, whatever happens; when it is given up it says so of each record, or says that it was taken."""

    def flush(self, timeout: float | None = None) -> None:
        raise KafkaTimeoutError("Timeout waiting for future")

    def abort(self) -> None:
        super().abort()
        *others, (partition, value, last) = self._open
        for _, _, future in others:
            future.fail(KafkaTimeoutError("given up"))
        self.taken.append((partition, value))
        last.acknowledge(None)


def test_a_producer_that_hangs_is_given_up_and_another_sends_all_of_it_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writers, "_HANGS_AFTER_S", 0.0)
    hanging, well = HangingProducer(), PlayedProducer()
    producers: list[PlayedProducer | None] = [hanging, None, well]

    def connect(_: KafkaSettings) -> PlayedProducer:
        producer = producers.pop(0)
        if producer is None:
            raise InfrastructureError("the Kafka broker does not answer", 1.0)
        return producer

    log = AttemptsLog(KafkaSettings(request_timeout_s=1.0), connect)  # type: ignore[arg-type]
    for number in range(6):
        log.add(attempt("s", number))
        log._write()

    log.settle(100)

    assert hanging.aborted
    assert not producers, "and it waits for a broker that is away"
    assert [name for _, name in read(well)] == [f"n{number}" for number in range(5)]
    assert [name for _, name in read(hanging)] == ["n5"], "what it has settled after all is not sent again"


def test_a_producer_without_an_answer_in_time_is_not_waited_for_again() -> None:
    """A worker settles its logs one after the other: behind the first the time of the others is over, too."""
    waits: list[float | None] = []

    class Unanswered(HangingProducer):
        def flush(self, timeout: float | None = None) -> None:
            waits.append(timeout)
            super().flush(timeout)

    clock, well = Clock(), PlayedProducer()
    producers = [Unanswered(), well]
    writer = DurableWriter(KafkaSettings(), "attempts", lambda _: producers.pop(0), clock)  # type: ignore[arg-type, return-value]
    for number in range(2):
        writer.send(0, b"%d" % number, b"k")
    clock.now += 12.0
    writer.settle(100)
    assert waits == [pytest.approx(3.0)]
    assert [value for _, value in well.taken] == [b"0"]

    producers = [Unanswered(), well]
    writer = DurableWriter(KafkaSettings(), "attempts", lambda _: producers.pop(0), clock)  # type: ignore[arg-type, return-value]
    for number in range(2):
        writer.send(0, b"%d" % number, b"k")
    (_, _, refused), _ = cast(Unanswered, writer._producer)._open
    clock.now += 60.0
    refused.fail(KafkaTimeoutError("no answer"))
    writer.send(0, b"later", b"k")
    writer.settle(100)
    assert waits[1:] == [0.0], "nor does a later record begin its time again"
    assert [value for _, value in well.taken][1:] == [b"0", b"later"]


def test_a_topic_that_cannot_be_had_leaves_no_connection() -> None:
    class Lost(PlayedProducer):
        def partitions_for(self, topic: str) -> set[int]:
            raise KafkaTimeoutError("no metadata")

    made: list[Lost] = []

    def connect(_: KafkaSettings) -> Producer:
        made.append(Lost())
        return cast(Producer, made[-1])

    log = AttemptsLog(KafkaSettings(), connect)
    for _ in range(3):
        with pytest.raises(InfrastructureError, match="attempts cannot be looked up"):
            log.connect()

    assert [producer.aborted for producer in made] == [True] * 3


def test_outcomes_are_sent_on_the_way_a_tenth_of_a_second_after_the_last() -> None:
    producer, clock = PlayedProducer(), Clock(128.0)
    log = AttemptsLog(KafkaSettings(), lambda _: producer, clock)  # type: ignore[arg-type, return-value]
    sent: list[int] = []
    for number in range(10):
        log.add(attempt("s", number))
        log.write_due()
        sent.append(len(producer._open))
        clock.now += 0.0625

    assert sent == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4], "nobody has waited for them"


def test_a_record_has_the_outcomes_of_one_batch() -> None:
    producer = PlayedProducer()
    log = opened(producer)
    for batch in (1, 1, 2, -1, 2):
        log.add(attempt("s", 0, batch))
    log.settle(1)

    assert producer.keys == [b"1", b"2", b"-1", b"2"]
    held = [{each.batch for each in attempts.decode(value)} for _, value in producer.taken]
    assert held == [{attempts.batch_of(key)} for key in producer.keys]


def test_a_kafka_that_is_slow_is_noticed() -> None:
    producer, clock = PlayedProducer(), Clock(128.0)
    log = AttemptsLog(KafkaSettings(), lambda _: producer, clock)  # type: ignore[arg-type, return-value]
    log.add(attempt("s", 1))
    clock.now += 60
    assert not log.is_behind(0.5), "nothing was sent"
    log.write_due()
    assert not log.is_behind(0.5), "it was sent just now"
    clock.now += 60
    assert log.is_behind(0.5)
    producer.flush()
    assert not log.is_behind(0.5)


def test_all_records_up_to_a_number_are_in_the_log_or_not() -> None:
    producer = PlayedProducer()
    writer = DurableWriter(KafkaSettings(), "parked", lambda _: producer)  # type: ignore[arg-type, return-value]
    assert writer.has_all(writer.sent)
    numbers = [writer.send(0, b"x", b"k") for _ in range(3)]
    assert numbers[-1] == writer.sent
    producer._open[1][2].acknowledge(None)
    producer._open[2][2].acknowledge(None)
    assert [writer.has(number) for number in numbers] == [False, True, True]
    assert not any(map(writer.has_all, numbers)), "the first one is missing"
    producer.flush()
    assert writer.has_all(writer.sent)


def test_room_for_a_record_of_attempts_is_made_though_others_are_collected() -> None:
    producer = PlayedProducer()
    log = opened(producer)
    for number in range(400):
        log.add(msgspec.structs.replace(attempt(f"s{number % 9}", number), response=b"x" * 60_000))
    log.settle(1)
    assert sorted(name for _, name in read(producer)) == sorted(f"n{number}" for number in range(400))


def test_what_kafka_has_not_taken_is_bounded_in_bytes() -> None:
    """It is waited for beyond that; before, nothing is."""
    producer = PlayedProducer()
    writer = DurableWriter(KafkaSettings(), "parked", lambda _: producer)  # type: ignore[arg-type, return-value]
    most, size = 0, 1024 * 1024
    for number in range(100):
        writer.send(0, b"x" * size, b"%d" % number)
        most = max(most, len(producer._open))
    assert most == writers._MAX_UNACKNOWLEDGED_BYTES // size
    assert len(producer.taken) > 80
    writer.settle(1.0)
    assert len(producer.taken) == 100


def test_kafka_away_when_a_writer_is_first_used_is_noted_and_nothing_waits_for_each_record() -> None:
    producer, connects = PlayedProducer(), 0

    def connect(_: KafkaSettings) -> Producer:
        nonlocal connects
        connects += 1
        if connects < 3:
            raise InfrastructureError("no broker", 1.0)
        return cast(Producer, producer)

    writer = DurableWriter(KafkaSettings(), "pullpoints", connect)
    numbers = [writer.send(0, b"%d" % number, b"k") for number in range(50)]
    assert connects == 1
    assert not any(map(writer.has, numbers))
    writer.settle(10.0)
    assert connects == 3
    assert [value for _, value in producer.taken] == [b"%d" % number for number in range(50)]
