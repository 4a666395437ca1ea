from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
from lxml import etree

from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import pool
from arborcast.dispatch.job import operator_events
from arborcast.dispatch.job.operator_events import TOPICS, OperatorEvents, payload
from arborcast.dispatch.redelivery.events import NAMESPACE, EventKind, OperatorEvent
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.records import notifications
from arborcast.topic_model.topics import SYSTEM
from tests.support.waiting import wait_until


def test_each_kind_has_a_system_topic() -> None:
    assert set(TOPICS) == set(get_args(EventKind))
    assert len(set(TOPICS.values())) == len(TOPICS)
    assert all(parse_normal(f"{SYSTEM}//.").matches(path) for path in TOPICS.values())


@pytest.mark.parametrize(
    ("event", "at", "children"),
    [
        (
            OperatorEvent("breaker-opened", 1234, "http://e/?a=1&b=<2>", detail="503"),
            "1234",
            [("Endpoint", "http://e/?a=1&b=<2>"), ("Detail", "503")],
        ),
        (
            OperatorEvent(
                "fragments-incomplete",
                9,
                topic="a/b",
                facts=(("Identification", "m:1"), ("Received", "0 2"), ("None", "")),
            ),
            "9",
            [("Topic", "a/b"), ("Identification", "m:1"), ("Received", "0 2")],
        ),
    ],
    ids=lambda each: getattr(each, "kind", ""),
)
def test_the_message_of_an_event(event: OperatorEvent, at: str, children: list[tuple[str, str]]) -> None:
    read = etree.fromstring(payload(event))
    assert read.tag == f"{{{NAMESPACE}}}Event"
    assert dict(read.attrib.items()) == {"kind": event.kind, "at": at}
    assert [(etree.QName(child).localname, child.text) for child in read] == children


class FailingWriter:
    """A log of notifications whose first `failures` writes fail."""

    partitions = 1

    def __init__(self, *_: object) -> None:
        self.failures = 1
        self.sent: list[bytes] = []

    def send(self, partition: int, value: bytes, key: bytes) -> None:
        self.sent.append(value)

    def settle(self, timeout_s: float) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise InfrastructureError("Kafka does not answer")

    def close(self) -> None: ...


def test_events_are_repeated_with_the_same_id_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_events, "DurableWriter", FailingWriter)
    view: Any = SimpleNamespace(catch_up=lambda timeout_s: 7, subscription=lambda name: None)
    events = OperatorEvents(KafkaSettings(), view)
    for kind in ("breaker-opened", "breaker-closed"):
        events.publish(OperatorEvent(kind, 1))
    events._queue.put(None)

    with pytest.raises(InfrastructureError):
        events._publish()
    events._publish()

    writer: Any = events._writer
    sent = [notifications.decode(value) for value in writer.sent]
    assert [each.topic for each in sent] == [TOPICS[kind] for kind in ("breaker-opened",) * 2 + ("breaker-closed",)]
    assert (sent[0].id == sent[1].id, sent[1].id == sent[2].id, events.stored) == (True, False, 2)


def test_no_notice_for_a_subscriber_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """All subscribers of a silent topic may have one at once."""
    monkeypatch.setattr(operator_events, "_MOST_WAITING", 4)
    monkeypatch.setattr(operator_events, "DurableWriter", FailingWriter)
    events = OperatorEvents(KafkaSettings(), cast(Any, None))
    names = [f"s{number}" for number in range(20)]

    def publish() -> None:
        for name in names:
            events.publish(OperatorEvent("deadline-missed", 1, subscription=name))

    with pool("deadlines", 1) as threads:
        published = threads.submit(publish)
        wait_until(lambda: published.done() or events._queue.qsize() >= 2)
        taken = [events._queue.get(timeout=60) for _ in names]
        published.result(60)
    assert [each.subscription for each in taken if each is not None] == names
