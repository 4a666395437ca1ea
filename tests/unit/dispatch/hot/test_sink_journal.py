"""The journal of a worker: a row is written after its record."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from lxml import etree

from arborcast.client.received import read_push
from arborcast.core.eventlog.topics import PULL_LOG, RESULTS_LOG
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.delivery import journal
from arborcast.dispatch.hot.sink_journal import SinkJournal, stored_element
from arborcast.dispatch.logs import attempts, parked
from arborcast.dispatch.logs.attempts import BEHIND_S, WRITE_S
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

KAFKA = KafkaSettings()
ACKNOWLEDGED = SimpleNamespace(partition=0, offset=0)


class Opened:
    """A journal whose records are acknowledged by the test."""

    def __init__(self) -> None:
        self.kafka, self.clock = FakeProducer(), Clock()
        self.journal = SinkJournal(KAFKA, 1.0, connecting(self.kafka), self.clock)
        self.journal.begin(7)

    def acknowledge(self, log: str) -> None:
        """Acknowledge the records of a log."""
        for each in [each for each in self.kafka.open if each.topic == KAFKA.topic(log)]:
            self.kafka.open.remove(each)
            self.kafka.taken.append(each)
            each.acknowledge(ACKNOWLEDGED)

    def rows(self) -> list[str]:
        """The rows sent so far."""
        self.journal.write_due()
        self.clock.after(2 * WRITE_S)
        self.journal.write_due()
        sent = [each.value for each in (*self.kafka.taken, *self.kafka.open) if each.topic == KAFKA.topic("attempts")]
        return [row.notification for value in sent for row in attempts.decode(value).attempts]

    def park(self, name: str, to: str = "s", offset: int = 0, only: str = "") -> None:
        made = received(name, offset, only=only)
        self.journal.park(made.delivery(to), made.notification, Tries(), attempt(name, to, "parked"))

    def bury(self, name: str) -> None:
        dead = received(name)
        self.journal.write_dead_letter(dead.delivery("s"), dead.notification, attempt(name, "s", "dead"))

    def store(self, name: str) -> None:
        self.journal.store(SUBSCRIPTION, received(name).notification)


@pytest.fixture
def opened() -> Opened:
    return Opened()


WSNT = "{http://docs.oasis-open.org/wsn/b-2}"
WSA = "{http://www.w3.org/2005/08/addressing}"

SUBSCRIPTION = Subscription(
    "s", EndpointReference("http://h/wsn/pullpoints/p"), "http://h/wsn/subscriptions/s?a&b", pull_point="p"
)


def test_the_place_of_a_copy_for_one_subscription(opened: Opened) -> None:
    opened.park("n", "old", 5)
    opened.park("n", "new", 6, only="new")
    sent = [parked.decode_key(each.key)[0] for each in opened.kafka.open]
    assert sent == [Delivery("old", Place(7, 0, 5)), Delivery("new", Place(7, 0, 6))]


def test_each_row_follows_its_record(opened: Opened) -> None:
    opened.park("parked")
    opened.bury("dead")
    opened.store("pulled")
    assert opened.rows() == []

    for log, rows in (("parked", 1), ("dead", 2), (PULL_LOG, 3)):
        opened.acknowledge(log)
        assert opened.rows() == ["parked", "dead", "pulled"][:rows]

    opened.park("abandoned")
    abandoned = opened.kafka.open[-1]
    opened.journal.close()
    abandoned.acknowledge(ACKNOWLEDGED)
    assert "abandoned" not in opened.rows(), "its batch is repeated"


def test_a_worker_waits_while_a_log_is_late(opened: Opened) -> None:
    """The row of a result is written by the redelivery."""
    result = Result(Promise("s", ">p", 1, 2), "delivered", 2)
    logs: list[tuple[Callable[[], object], str]] = [
        (lambda: opened.park("n"), "parked"),
        (lambda: opened.bury("n"), "dead"),
        (lambda: opened.store("n"), PULL_LOG),
        (lambda: opened.journal.record(attempt("n", "s", "delivered")), "attempts"),
        (lambda: opened.journal.answered(result), RESULTS_LOG),
    ]
    for send, log in logs:
        send()
        opened.rows()
        assert opened.journal.write_due()
        opened.clock.after(BEHIND_S + 0.1)
        assert not opened.journal.write_due(), log
        opened.acknowledge(log)
        opened.rows()
        assert opened.journal.write_due()
        opened.kafka.take()


def test_waiting_rows_are_bounded(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_MOST_DEFERRED", 20)
    for number in range(30):
        opened.park(f"n{number}")
    assert len(opened.rows()) == 20


def test_a_mark_is_passed_when_earlier_records_are_acknowledged(opened: Opened) -> None:
    journal = opened.journal
    opened.park("parked")
    journal.record(attempt("pushed", "s", "delivered"))
    journal.mark()
    assert opened.rows() == ["pushed"]
    opened.acknowledge("attempts")
    assert not journal.passed(), "the parked delivery is not in its log"
    opened.acknowledge("parked")
    assert not journal.passed(), "its row is not in the log of attempts"
    journal.record(attempt("later", "s", "delivered"))
    assert opened.rows() == ["pushed", "parked", "later"]
    opened.kafka.take(1)
    assert journal.passed(), "rows behind the mark do not count"

    opened.store("pulled")
    journal.mark()
    opened.acknowledge("attempts")
    assert not journal.passed()
    opened.acknowledge(PULL_LOG)
    assert not journal.passed()
    opened.acknowledge("attempts")
    assert journal.passed()


def test_a_message_of_a_pull_point_is_self_contained() -> None:
    producer_reference = b'<n:ProducerReference xmlns:n="http://docs.oasis-open.org/wsn/b-2"><a:Address \
xmlns:a="http://www.w3.org/2005/08/addressing">http://p/</a:Address></n:ProducerReference>'
    payload = b'<o:x xmlns:o="urn:o"> 1 </o:x>'
    given = Notification("n", TopicPath("{urn:t}a/b"), payload, 5, producer_reference, type="{urn:o}x")
    stored = stored_element(given, SUBSCRIPTION)
    assert given.payload in stored, "unchanged"
    assert b"Package" not in stored
    assert b"Type" not in stored, "that of the payload"
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
