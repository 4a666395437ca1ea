from __future__ import annotations

import pytest

from dispatch.hot import sink_journal
from dispatch.hot.sink_journal import SinkJournal
from dispatch.redelivery.parked import Delivery, Place, Tries
from topic_model.notifications import Notification
from topic_model.settings import KafkaSettings
from topic_model.subscriptions import EndpointReference, Subscription
from topic_model.topics import TopicPath


class FakeLog:
    def __init__(self, kafka: KafkaSettings) -> None:
        self.parked: list[Delivery] = []

    def connect(self) -> None:
        pass

    def park(self, delivery: Delivery, notification: Notification, tries: Tries) -> None:
        self.parked.append(delivery)


def test_a_copy_for_one_subscription_does_not_take_the_place_of_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    log = FakeLog(KafkaSettings())
    monkeypatch.setattr(sink_journal, "AttemptsLog", FakeLog)
    monkeypatch.setattr(sink_journal, "DeadLetterLog", FakeLog)
    monkeypatch.setattr(sink_journal, "ParkingLog", lambda kafka: log)
    journal = SinkJournal(KafkaSettings(), 1.0)
    journal.begin(7)
    original = Notification("n", TopicPath("a"), b"<x/>", 1)
    copy = Notification("n", TopicPath("a"), b"<x/>", 1, only="new")
    journal.placed(original, 0, 5)
    journal.placed(copy, 0, 6)

    for name, notification in (("old", original), ("new", copy)):
        journal.park(Subscription(name, EndpointReference("http://s/")), notification, Tries())

    assert log.parked == [Delivery("old", Place(7, 0, 5)), Delivery("new", Place(7, 0, 6))]
