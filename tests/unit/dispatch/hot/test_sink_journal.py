"""The journal of a worker: a row is written after its record."""

from __future__ import annotations

import pytest
from lxml import etree

from arborcast.client.received import read_push
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.delivery import journal
from arborcast.dispatch.hot import sink_journal
from arborcast.dispatch.hot.sink_journal import SinkJournal, stored_element
from arborcast.dispatch.logs.attempts import BEHIND_S, Attempt
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.parked import Delivery, Place, Tries
from arborcast.topic_model.namespaces import SOAP11
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.results import Promise, Result
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.fake_producer import FakeProducer, connecting
from tests.support.hot import received
from tests.support.make import Clock
from tests.support.oasis import validate_element
from tests.support.table_rows import attempt


class FakeLog:
    """A log whose records are acknowledged by the test."""

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

    def write_due(self) -> None: ...

    def is_behind(self, seconds: float) -> bool:
        return self.late

    def write(self) -> int:
        return len(self.rows)

    def has_all(self, number: int) -> bool:
        return number <= self.acknowledged

    def close(self) -> None: ...


class Opened:
    """A journal over fake logs."""

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

    def park(self, name: str, to: str = "s", offset: int = 0, only: str = "") -> None:
        made = received(name, offset, only=only)
        self.journal.park(made.delivery(to), made.notification, Tries(), attempt(name, to, "parked"))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    return Opened(monkeypatch)


WSNT = "{http://docs.oasis-open.org/wsn/b-2}"
WSA = "{http://www.w3.org/2005/08/addressing}"

SUBSCRIPTION = Subscription(
    "s", EndpointReference("http://h/wsn/pullpoints/p"), "http://h/wsn/subscriptions/s?a&b", pull_point="p"
)


def test_the_place_of_a_copy_for_one_subscription(opened: Opened) -> None:
    opened.park("n", "old", 5)
    opened.park("n", "new", 6, only="new")
    assert opened.parked.sent == [Delivery("old", Place(7, 0, 5)), Delivery("new", Place(7, 0, 6))]


def test_each_row_follows_its_record(opened: Opened) -> None:
    opened.park("parked")
    dead = received("dead")
    opened.journal.write_dead_letter(dead.delivery("s"), dead.notification, attempt("dead", "s", "dead"))
    opened.journal.store(SUBSCRIPTION, received("pulled").notification)
    assert opened.rows() == []

    for log, rows in ((opened.parked, 1), (opened.dead, 2), (opened.pulls, 3)):
        log.acknowledged = 1
        assert opened.rows() == ["parked", "dead", "pulled"][:rows]

    opened.park("abandoned")
    opened.journal.close()
    opened.parked.acknowledged = 2
    assert "abandoned" not in opened.rows(), "its batch is repeated"


def test_a_worker_waits_while_a_log_is_late(opened: Opened) -> None:
    journal = opened.journal
    opened.park("n")
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
    assert not journal.write_due(), "the log of pull points"


def test_a_worker_waits_while_the_result_of_a_push_is_late() -> None:
    """The row is written by the redelivery."""
    clock = Clock()
    made = SinkJournal(KafkaSettings(), 1.0, connecting(FakeProducer()), clock)
    made.answered(Result(Promise("s", ">p", 1, 2), "delivered", 2))
    assert made.write_due()
    clock.after(BEHIND_S + 0.1)
    assert not made.write_due()


def test_waiting_rows_are_bounded(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_MOST_DEFERRED", 20)
    for number in range(30):
        opened.park(f"n{number}")
    assert len(opened.attempts.rows) == 20


def test_a_mark_is_passed_when_earlier_records_are_acknowledged(opened: Opened) -> None:
    journal = opened.journal
    opened.park("parked")
    journal.record(attempt("pushed", "s", "delivered"))
    journal.mark()
    opened.attempts.acknowledged = 1
    assert not journal.passed(), "the parked delivery is not in its log"
    opened.parked.acknowledged = 1
    assert not journal.passed(), "its row is not in the log of attempts"
    assert opened.attempts.rows == ["pushed", "parked"]
    journal.record(attempt("later", "s", "delivered"))
    opened.attempts.acknowledged = 2
    assert journal.passed(), "rows behind the mark do not count"

    journal.store(SUBSCRIPTION, received("pulled").notification)
    journal.mark()
    opened.attempts.acknowledged = 9
    assert not journal.passed()
    opened.pulls.acknowledged = 1
    assert journal.passed()


def test_a_message_of_a_pull_point_is_self_contained() -> None:
    producer_reference = b'<n:ProducerReference xmlns:n="http://docs.oasis-open.org/wsn/b-2"><a:Address \
xmlns:a="http://www.w3.org/2005/08/addressing">http://p/</a:Address></n:ProducerReference>'
    given = Notification("n", TopicPath("{urn:t}a/b"), b'<o:x xmlns:o="urn:o"> 1 </o:x>', 5, producer_reference)
    stored = stored_element(given, SUBSCRIPTION)
    assert given.payload in stored, "unchanged"
    assert b"Package" not in stored
    message = etree.fromstring(stored)
    assert message.tag == f"{WSNT}NotificationMessage"
    assert message.findtext(f"{WSNT}SubscriptionReference/{WSA}Address") == SUBSCRIPTION.address
    assert message.findtext(f"{WSNT}ProducerReference/{WSA}Address") == "http://p/"
    topic = message.find(f"{WSNT}Topic")
    assert topic is not None
    prefix, _, path = (topic.text or "").partition(":")
    assert (topic.nsmap[prefix], path) == ("urn:t", "a/b")
    notify = f'<w:Notify xmlns:w="{WSNT[1:-1]}">{stored.decode()}</w:Notify>'
    validate_element(etree.fromstring(notify))
    body = f'<e:Envelope xmlns:e="{SOAP11}"><e:Body>{notify}</e:Body></e:Envelope>'.encode()
    (received,) = read_push(body, b"text/xml; charset=utf-8")
    assert received.notification_id == "n"
    assert read_push(body, b"text/xml; charset=utf-8", ids="of the header")[0].notification_id == "of the header"
