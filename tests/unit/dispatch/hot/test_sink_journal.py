from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from arborcast.core.eventlog.client import Producer
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.delivery import journal
from arborcast.dispatch.hot import sink_journal
from arborcast.dispatch.hot.sink_journal import SinkJournal
from arborcast.dispatch.logs.attempts import BEHIND_S, Attempt
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.parked import Delivery, Place, Tries
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.results import Promise, Result
from tests.support.hot import received
from tests.support.make import Clock, subscription
from tests.support.table_rows import attempt


class FakeLog:
    """A log that has what it was sent when the test says so."""

    def __init__(self) -> None:
        self.sent: list[Delivery | bytes] = []
        self.times = dict.fromkeys(range(10), 0.0)
        self.acknowledged = 0
        self.rows: list[str] = []
        self.late = False

    def connect(self) -> FakeLog:
        return self

    def partitions_for(self, topic: str) -> set[int]:
        return {0}

    def send(self, partition: int, value: bytes, key: bytes) -> int:
        self.sent.append(value)
        return len(self.sent)

    def park(self, delivery: Delivery, notification: Notification, tries: Tries, in_turn: bool = False) -> int:
        self.sent.append(delivery)
        return len(self.sent)

    def write_dead_letter(self, delivery: Delivery, letter: DeadLetter) -> int:
        return self.park(delivery, letter.notification, Tries())

    def has(self, number: int) -> bool:
        return number <= self.acknowledged

    def settle(self, timeout_s: float) -> None:
        self.acknowledged = len(self.sent)

    def add(self, row: Attempt) -> None:
        self.rows.append(row.notification)

    def write_due(self) -> None:
        pass

    def is_behind(self, seconds: float) -> bool:
        return self.late

    def write(self) -> int:
        return len(self.rows)

    def has_all(self, number: int) -> bool:
        return number <= self.acknowledged

    def close(self) -> None: ...


class Opened:
    """A journal over such logs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.attempts, self.parked, self.dead, self.pulls = (FakeLog() for _ in range(4))
        for name, log in (
            ("AttemptsLog", self.attempts),
            ("ParkingLog", self.parked),
            ("DeadLetterLog", self.dead),
            ("_TimedWriter", self.pulls),
        ):
            monkeypatch.setattr(sink_journal, name, lambda *_, log=log: log)
        self.journal = SinkJournal(KafkaSettings(), 1.0)
        self.journal.begin(7)

    def rows(self) -> list[str]:
        self.journal.write_due()
        return self.attempts.rows


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    return Opened(monkeypatch)


SUBSCRIPTION = subscription()


def park(journal: SinkJournal, name: str, to: str = "s", offset: int = 0, only: str = "") -> None:
    made = received(name, offset, only=only)
    journal.park(made.delivery(to), made.notification, Tries(), attempt(name, to, "parked"))


def test_a_copy_for_one_subscription_does_not_take_the_place_of_the_original(opened: Opened) -> None:
    park(opened.journal, "n", "old", 5)
    park(opened.journal, "n", "new", 6, only="new")
    assert opened.parked.sent == [Delivery("old", Place(7, 0, 5)), Delivery("new", Place(7, 0, 6))]


def test_that_something_is_kept_is_written_when_it_is_and_not_only_at_the_end(opened: Opened) -> None:
    park(opened.journal, "parked")
    dead = received("dead")
    opened.journal.write_dead_letter(dead.delivery("s"), dead.notification, attempt("dead", "s", "dead"))
    opened.journal.store(SUBSCRIPTION, received("pulled").notification)
    assert opened.rows() == []

    opened.parked.acknowledged = 1
    assert opened.rows() == ["parked"]
    opened.dead.acknowledged = 1
    assert opened.rows() == ["parked", "dead"]
    opened.pulls.acknowledged = 1
    assert opened.rows() == ["parked", "dead", "pulled"]


def test_no_more_should_follow_while_a_log_is_late(opened: Opened) -> None:
    journal = opened.journal
    park(journal, "n")
    assert journal.write_due()
    opened.parked.late = True
    assert not journal.write_due()
    opened.parked.acknowledged, opened.parked.late = 1, False
    assert journal.write_due()
    opened.attempts.late = True
    assert not journal.write_due()
    opened.attempts.late = False
    journal.store(SUBSCRIPTION, received("n").notification)
    assert journal.write_due()
    opened.pulls.late = True
    assert not journal.write_due(), "pull points or triggers"


class SilentProducer:
    """Its logs acknowledge nothing."""

    def partitions_for(self, topic: str) -> set[int]:
        return {0}

    def send(self, topic: str, **record: object) -> SimpleNamespace:
        return SimpleNamespace(add_callback=lambda call: None, add_errback=lambda call: None)


def test_no_more_should_follow_while_the_answer_to_a_push_is_late() -> None:
    """Nothing else writes it again: its row is that of the redelivery."""
    clock = Clock()
    made = SinkJournal(KafkaSettings(), 1.0, lambda _: cast(Producer, SilentProducer()), clock)
    made.answered(Result(Promise("s", ">p", 1, 2), "delivered", 2))
    assert made.write_due()
    clock.after(BEHIND_S + 0.1)
    assert not made.write_due()


def test_rows_that_wait_are_not_more_than_fit(opened: Opened) -> None:
    for number in range(journal._MOST_DEFERRED + 10):
        park(opened.journal, f"n{number}")

    assert len(opened.attempts.rows) == journal._MOST_DEFERRED


def test_what_was_given_up_is_forgotten_for_its_batch_is_repeated(opened: Opened) -> None:
    park(opened.journal, "n")
    opened.journal.close()
    opened.parked.acknowledged = 1
    assert opened.rows() == []


def test_a_mark_is_passed_when_all_before_it_is_written_also_what_waits_for_another_log(opened: Opened) -> None:
    journal = opened.journal
    park(journal, "parked")
    journal.record(attempt("pushed", "s", "delivered"))
    journal.mark()
    opened.attempts.acknowledged = 1
    assert not journal.passed(), "what was parked is not in its log"
    opened.parked.acknowledged = 1
    assert not journal.passed(), "and then its row is not in the log of attempts"
    assert opened.attempts.rows == ["pushed", "parked"]
    journal.record(attempt("later", "s", "delivered"))
    opened.attempts.acknowledged = 2
    assert journal.passed(), "what came behind the mark does not count"


def test_a_mark_waits_for_what_is_stored_in_pull_points(opened: Opened) -> None:
    opened.journal.store(SUBSCRIPTION, received("n").notification)
    opened.journal.mark()
    opened.attempts.acknowledged = 1
    assert not opened.journal.passed()
    opened.pulls.acknowledged = 1
    assert opened.journal.passed()
