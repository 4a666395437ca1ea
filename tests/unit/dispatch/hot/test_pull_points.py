"""Delivery into pull points, over a producer that is played."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError
from lxml import etree

from arborcast.client.received import read_push
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog import writers
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.hot.sink_journal import SinkJournal, stored_element
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.topic_model.namespaces import SOAP11
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.pull import StoredMessage, decode
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.oasis import validate_element

WSNT = "{http://docs.oasis-open.org/wsn/b-2}"
WSA = "{http://www.w3.org/2005/08/addressing}"


class PlayedFuture:
    acknowledge: Callable[[object], object]
    fail: Callable[[BaseException], object]

    def add_callback(self, call: Callable[[object], object]) -> None:
        self.acknowledge = call

    def add_errback(self, call: Callable[[BaseException], object]) -> None:
        self.fail = call


@dataclass
class PlayedAcknowledgement:
    offset: int = 7
    partition: int = 0


class PlayedProducer:
    """Takes records at flush; refuses the first `refusals` of them."""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.taken: list[tuple[str, StoredMessage]] = []
        self._open: list[tuple[bytes, bytes, PlayedFuture]] = []

    def partitions_for(self, topic: str) -> set[int]:
        return {0}

    def send(self, topic: str, value: bytes, key: bytes, *, partition: int) -> PlayedFuture:
        assert (topic, partition) == ("arborcast.pullpoints", 0)
        future = PlayedFuture()
        self._open.append((key, value, future))
        return future

    def flush(self, timeout: float | None = None) -> None:
        for key, value, future in self._open:
            if self.refusals:
                self.refusals -= 1
                future.fail(KafkaTimeoutError("away"))
                continue
            pull_point, record = decode(key, value)
            assert isinstance(record, StoredMessage)
            self.taken.append((pull_point, record))
            future.acknowledge(PlayedAcknowledgement())
        self._open.clear()

    def abort(self) -> None:
        self._open.clear()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "RETRY_S", 0.0)


class Rows(list[Attempt]):
    """In place of the log of attempts."""

    def add(self, row: Attempt) -> None:
        self.append(row)

    def write_due(self) -> None:
        """Every row is in the log."""

    def settle(self, timeout_s: float) -> None:
        """The same."""

    def is_behind(self, seconds: float) -> bool:
        return False

    def close(self) -> None:
        """Nothing is open."""


class Deliveries:
    """A worker's journal over a played producer, and the rows that it writes."""

    def __init__(
        self, connect: Callable[[KafkaSettings], Any], clock: Callable[[], float] = lambda: 0.0, timeout_s: float = 120
    ) -> None:
        self.journal = SinkJournal(KafkaSettings(), timeout_s, connect, clock)
        self.rows = Rows()
        self.journal._attempts = self.rows  # type: ignore[assignment]  # no Kafka: the rows are looked at
        self.journal.begin(4)

    def store(self, notification: Notification) -> None:
        self.journal.store(SUBSCRIPTION, notification)

    def written(self) -> list[Attempt]:
        self.journal.write_due()
        return list(self.rows)

    def settled(self) -> list[Attempt]:
        self.journal.catch_up()
        return list(self.rows)


def opened(producer: PlayedProducer, timeout_s: float = 120) -> Deliveries:
    return Deliveries(lambda _: producer, timeout_s=timeout_s)


def notification(number: int) -> Notification:
    return Notification(f"n{number}", TopicPath("{urn:t}a/b"), b'<o:x xmlns:o="urn:o"> 1 </o:x>', accepted_ms=5)


SUBSCRIPTION = Subscription(
    "s", EndpointReference("http://h/wsn/pullpoints/p"), "http://h/wsn/subscriptions/s?a&b", pull_point="p"
)


def test_what_is_stored_is_a_whole_message() -> None:
    producer_reference = b'<n:ProducerReference xmlns:n="http://docs.oasis-open.org/wsn/b-2"><a:Address \
xmlns:a="http://www.w3.org/2005/08/addressing">http://p/</a:Address></n:ProducerReference>'
    given = Notification("n", TopicPath("{urn:t}a/b"), b'<o:x xmlns:o="urn:o"> 1 </o:x>', 5, producer_reference)
    stored = stored_element(given, SUBSCRIPTION)
    assert given.payload in stored, "as it was sent"
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


def test_a_kafka_that_stays_away_is_an_error_and_nothing_is_recorded() -> None:
    delivery = opened(PlayedProducer(refusals=1_000_000), timeout_s=0.05)
    delivery.store(notification(1))
    with pytest.raises(InfrastructureError, match=r"did not take 1 records of arborcast\.pullpoints"):
        delivery.settled()
    assert delivery.rows == []
    delivery.journal.close()
    assert delivery.settled() == [], "what was given up is forgotten: the batch is repeated"
