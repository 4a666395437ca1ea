"""State that a starting job reads from the logs of an earlier run."""

from __future__ import annotations

import time
from contextlib import closing

import msgspec
import pytest

from arborcast.core.eventlog.client import partition_of_key
from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.eventlog.writers import DurableWriter
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.hot import intervals
from arborcast.dispatch.hot.intervals import decoded, read_passed
from arborcast.dispatch.hot.recovered import (
    OutcomeEnds,
    OutcomeLogs,
    SettledRows,
    appended_ms,
    newest_batch,
    parked_in_batch,
    remove_letters_without_rows,
    settled_in_batch,
    settled_since,
)
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.logs.attempts import NO_BATCH, Attempt, AttemptsLog, Evaluation, Matched
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.parked import DeadLetterLog, Delivery, ParkingLog, Place, Tries
from arborcast.dispatch.operations.dead_letters import letters
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import DeliveryPolicy
from arborcast.topic_model.topics import TopicPath
from tests.support.broker import records_in
from tests.support.table_rows import attempt

NO_ROWS = SettledRows(frozenset(), {}, frozenset())


def row(subscription: str, notification: str, batch: int, topic: str = "a") -> Attempt:
    return attempt(notification, subscription, "delivered", batch=batch, topic=TopicPath(topic))


def test_the_newest_batch_with_its_settled_and_parked_deliveries(kafka_settings: KafkaSettings) -> None:
    ensure_topics(kafka_settings)
    logs = OutcomeLogs(kafka_settings)
    before = logs.ends()
    assert settled_in_batch(kafka_settings, 5, before, 20) == NO_ROWS
    assert newest_batch(kafka_settings) == NO_BATCH

    of_the_redelivery = ("s", "of the redelivery")
    with closing(AttemptsLog(kafka_settings)) as log, closing(DurableWriter(kafka_settings, "attempts")) as raw:
        log.add(row(*of_the_redelivery, NO_BATCH))
        log.settle(120)
        assert newest_batch(kafka_settings) == NO_BATCH
        written = {(f"s{number}", f"n{number}") for number in range(1_500)}
        for subscription, notification in sorted(written):
            log.add(row(subscription, notification, 5))
        # A 410 that the driver may have missed before a crash, and one after the end of its subscription.
        log.add(msgspec.structs.replace(row("s1", "n1", 5), state="cancelled", status=410))
        log.add(msgspec.structs.replace(row("s2", "n2", 5), state="cancelled"))
        log.settle(120)
        assert raw.partitions
        raw.send(0, b"this cannot be read", attempts.key_of(4))
        raw.settle(120)
        assert newest_batch(kafka_settings) == 5

        assert logs.ends() == before, "no request before each batch"
        found = settled_in_batch(kafka_settings, 5, before, 20)
        deliveries = {*written, of_the_redelivery}
        assert found == SettledRows(frozenset(deliveries), {}, frozenset({"s1"})), (
            "the latter was parked, perhaps by the batch"
        )
        assert settled_in_batch(kafka_settings, 6, before, 20).deliveries == {of_the_redelivery}
        assert settled_in_batch(kafka_settings, 5, OutcomeLogs(kafka_settings).ends(), 20) == NO_ROWS
        log.add_matched(0, 7, 0, [Matched("for nobody", TopicPath("a"), 1, 0, 0)])
        log.settle(120)
        assert newest_batch(kafka_settings) == 7

    places = {name: Place(batch, 0, offset) for offset, (name, batch) in enumerate((("a", 5), ("b", 5), ("c", 4)))}
    with closing(ParkingLog(kafka_settings)) as parking:
        for name, place in places.items():
            message = Notification(f"n-{name}", TopicPath("t"), b"<m/>", int(time.time() * 1000))
            parking.park(Delivery(name, place), message, Tries())
        parking.finished(Delivery("b", places["b"]), tried=False)
        parking.settle(60)
    assert parked_in_batch(kafka_settings, 5, OutcomeEnds(), 20) == [("a", "n-a", places["a"])]
    assert parked_in_batch(kafka_settings, 6, OutcomeEnds(), 20) == []


def test_rows_behind_the_positions_of_a_run_are_recalled(kafka_settings: KafkaSettings) -> None:
    ensure_topics(kafka_settings)
    count = kafka_settings.partitions
    busy = partition_of_key(b"a", count)
    quiet, other = next(
        (partition, f"t{number}")
        for number in range(1_000)
        if (partition := partition_of_key(f"t{number}".encode(), count)) != busy
    )
    now_ms = int(time.time() * 1000)
    with closing(AttemptsLog(kafka_settings)) as log:
        log.add(row("s", "of an earlier run", 4))
        log.add(row("s", "of the run", 5))
        log.add(row("s", "of the redelivery", NO_BATCH))
        log.add(row("s", "of another partition", 5, other))
        log.add_matched(busy, 5, 0, [Matched("of the run", TopicPath("a"), 1, 17, 1)])
        log.settle(120)

    def recalled(first: int, behind_ms: dict[int, int]) -> set[str]:
        return {notification for _, notification in settled_since(kafka_settings, first, behind_ms, count).deliveries}

    assert recalled(5, {busy: now_ms}) == {"of the run", "of the redelivery"}
    assert recalled(6, {busy: now_ms}) == {"of the redelivery"}, "deliveries parked by an earlier run were tried"
    assert settled_since(kafka_settings, 5, {busy: now_ms}, count).newest == {("s", TopicPath("a")): (busy, 17)}
    assert recalled(5, {quiet: now_ms}) == {"of another partition"}
    later_ms = now_ms + 3_600_000
    assert recalled(5, {busy: later_ms, quiet: now_ms}) == {"of another partition"}, "each partition since its time"
    assert recalled(5, {busy: later_ms}) == set()


def test_letters_without_rows_are_removed(kafka_settings: KafkaSettings) -> None:
    """Those of deliveries that the next run repeats; otherwise a redrive would push these again."""
    ensure_topics(kafka_settings)
    now_ms = int(time.time() * 1000)
    places = {
        "repeated": Place(5, 0, 10),
        "settled": Place(5, 0, 11),
        "before the position": Place(5, 0, 9),
        "of another partition": Place(5, 1, 10),
        "of an earlier run": Place(4, 0, 10),
        "redriven": Place(5, 0, 12, redrive=now_ms),
    }
    with closing(DeadLetterLog(kafka_settings)) as log:
        for name, place in places.items():
            message = Notification(name, TopicPath("t"), b"<m/>", now_ms)
            letter = DeadLetter("s", "http://r/", message, "dead", now_ms, 1, "client-error", "HTTP 400", 400)
            log.write_dead_letter(Delivery("s", place), letter)
        log.settle(120)
        for first, since_ms in ((6, now_ms), (5, now_ms + 3_600_000)):
            remove_letters_without_rows(kafka_settings, first, {0: 10}, since_ms, frozenset({("s", "settled")}))
        assert sum(1 for _ in letters(kafka_settings, lambda _: True)) == len(places)

        remove_letters_without_rows(kafka_settings, 5, {0: 10}, now_ms, frozenset({("s", "settled")}))
        left = {each.notification.id for _, each in letters(kafka_settings, lambda _: True)}
        assert left == places.keys() - {"repeated"}
        nulls = [each for each in records_in(kafka_settings, "dead") if each.value is None]
        assert len(nulls) == 1, "not in partitions whose records may be read behind the letter of the repeated delivery"


def test_when_the_first_record_behind_a_position_was_appended(kafka_settings: KafkaSettings) -> None:
    ensure_topics(kafka_settings)
    before_ms = int(time.time() * 1000)
    with closing(DurableWriter(kafka_settings, "notifications")) as log:
        for _ in range(2):
            assert log.partitions
            log.send(0, b"a record")
            log.settle(120)
            time.sleep(0.01)

    first, second = (appended_ms(kafka_settings, {0: position, 1: 0}) for position in (0, 1))
    assert before_ms <= first[0] < second[0]
    assert first.keys() == {0}, "nothing is in the other partition"
    assert appended_ms(kafka_settings, {0: 2}) == {}


def test_passed_notifications_are_read_back_up_to_a_run(
    kafka_settings: KafkaSettings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_topics(kafka_settings)
    now_ms, topic = int(time.time() * 1000), TopicPath("a")
    policies = {
        "short": DeliveryPolicy(interval_ms=500),
        "long": DeliveryPolicy(interval_ms=86_400_000, interval_per="subscription"),
    }
    ages_ms = [80_000_000, 900_000, 300, 200, 100]
    with closing(DurableWriter(kafka_settings, "attempts")) as log:
        for offset, age_ms in enumerate(ages_ms):
            names = ("long", "short", "ended") if offset in (1, 3) else ("short",)
            made = Matched("n", topic, now_ms - age_ms, offset, 3, names)
            for value in attempts.encode_evaluation(Evaluation(0, 7, 0, [made])):
                log.send(0, value, attempts.key_of(7))
        log.send(0, attempts.join([attempts.pack(row("short", "a row", 7))]), attempts.key_of(7))
        log.settle(120)

    def recalled(position: int) -> dict[tuple[str, str], int]:
        return decoded(read_passed(kafka_settings, policies, {0: position}), 0)

    assert recalled(0) == {}
    assert recalled(2) == {("short", "a"): now_ms - 900_000 + 500, ("long", ""): now_ms - 900_000 + 86_400_000}
    assert recalled(3)["short", "a"] == now_ms - 300 + 500
    assert recalled(9) == {("short", "a"): now_ms - 100 + 500, ("long", ""): now_ms - 200 + 86_400_000}
    assert read_passed(kafka_settings, {}, {0: 9}) == {}, "no subscription has an interval"

    # As if it were more than ten minutes ago: it is read back for the long interval, if there is time.
    monkeypatch.setattr(intervals, "_accepted_ms", lambda *_: int(time.time() * 1000) + 661_000)
    assert ("long", "") in recalled(9)
    assert "start again" not in caplog.text
    monkeypatch.setattr(intervals, "_OLDER_S", 0.0)
    assert recalled(9) == {}
    assert "minimum intervals of more than 600 s start again" in caplog.text
