"""A replay through the whole job: real Kafka, real Spark, a real receiver, and the audit at the end."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from arborcast.admin.control_log import read_table
from arborcast.admin.filters import TopicTest
from arborcast.admin.replay import plan
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.writers import DurableWriter
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.operations import replay
from arborcast.dispatch.operations.audit import audit
from arborcast.dispatch.operations.replay import Replay, ReplayRefused, ReplaySpan
from arborcast.topic_model.expressions.conditions import XPATH_1
from arborcast.topic_model.subscriptions import DeliveryPolicy, XPathFilter
from arborcast.topic_model.topics import TopicPath
from tests.support.broker import notifications_in
from tests.support.dispatch_job import Own, logs, subscription
from tests.support.receiver import NOTIFICATION_ID, Receiver
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka


def make(
    kafka: KafkaSettings, subscription_id: str, since_ms: int, topic: Callable[[TopicPath], bool] = lambda _: True
) -> Replay:
    span = ReplaySpan(since_ms, int(time.time() * 1000) + 1, topic)
    return Replay(kafka, read_table(kafka), subscription_id, span)


@pytest.mark.spark
def test_a_replay_to_one_subscription_with_its_label(own: Own, receiver: Receiver) -> None:
    kafka, since_ms = own.job.settings.kafka, int(time.time() * 1000)
    one, two = own.name("one"), own.name("two")
    own.subscribe("one", receiver.url("/one"), "a//.")
    own.subscribe("two", receiver.url("/two"), "a")
    first = [own.notify("a"), own.notify("a/b")]
    receiver.wait_for(1, "/two")
    one_replay = make(kafka, one, since_ms)
    assert one_replay.send(one_replay.find(10)) == 2

    def labels() -> list[tuple[str, str]]:
        headers = [each.headers for each in receiver.received("/one") if "arborcast-replay" in each.headers]
        pairs = (
            zip(*(h[name].split(",") for name in (NOTIFICATION_ID, "arborcast-replay")), strict=True) for h in headers
        )
        return sorted((name, label) for each in pairs for name, label in each if label != "-")

    wait_until(lambda: len(labels()) >= 2)
    assert labels() == [(each, one_replay.id) for each in sorted(first)]
    report = audit(kafka, since_ms, deep=True, patience_s=120)
    assert report.balanced, report.problems
    assert (report.subscriptions[one].delivered, report.subscriptions[two].delivered) == (4, 1)
    assert report.duplicates == 0, "a replay is a separate delivery"
    assert not [each for each in receiver.received("/two") if "arborcast-replay" in each.headers]
    assert len(make(kafka, one, since_ms).find(10)) == 2, "a replay is not replayed"


def test_a_replay_has_current_matches_up_to_the_limit(kafka_settings: KafkaSettings) -> None:
    kafka, since_ms = kafka_settings, int(time.time() * 1000) - 1
    with logs(kafka) as log:
        only_big = (XPathFilter(XPATH_1, "/x/@big"),)
        log.subscribe(
            subscription("all", "http://r/", "//."),
            subscription("big", "http://r/", "//.", content=only_big),
            subscription("timely", "http://r/", "c", policy=DeliveryPolicy(reliability="timely")),
            subscription("pulled", "http://r/", "a", pull_point="p1"),
            subscription("idle", "http://r/", "a", form="legacy", paused=True),
            subscription("over", "http://r/", "a", terminates_ms=since_ms),
        )
        for number in range(5):
            log.notify("a" if number else "c", b'<x big="1"/>' if number < 2 else b"<x/>")
        log.raw(b"\xc1", b"a")

    assert len(make(kafka, "all", since_ms).find(10)) == 5
    assert len(make(kafka, "all", since_ms).find(3)) == 4, "one more than the limit"
    assert len(make(kafka, "big", since_ms).find(10)) == 2
    assert len(make(kafka, "big", since_ms, lambda path: path == "c").find(10)) == 1
    assert make(kafka, "all", int(time.time() * 1000) + 1).find(10) == []
    for refused, why in {"pulled": "pull point", "idle": "paused", "over": "over", "nobody": "no subscription"}.items():
        with pytest.raises(ReplayRefused, match=why):
            make(kafka, refused, since_ms)

    planned = plan(kafka, "all", since_ms, None, TopicTest("a//."), 4)
    assert len(planned.places) == 4
    assert planned.since_ms == since_ms < planned.until_ms
    with pytest.raises(ReplayRefused, match="more than 4 notifications match"):
        plan(kafka, "all", since_ms, None, TopicTest(), 4)
    assert planned.send() == 4
    timely = make(kafka, "timely", since_ms)
    assert timely.send(timely.find(10)) == 1
    sent = {(each.only, each.reliable) for each in notifications_in(kafka)}
    assert sent == {("", False), ("all", False), ("timely", True)}, "a timely subscription gets the whole replay"


def test_a_failed_replay_is_continued_without_repetitions(
    kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka, since_ms = kafka_settings, int(time.time() * 1000)
    with logs(kafka) as log:
        log.subscribe(subscription("s", "http://r/", "//."))
        for number in range(5):
            log.notify(f"a/t{number}")
    planned = plan(kafka, "s", since_ms, None, TopicTest(), 10)

    class FailingWriter(DurableWriter):
        def settle(self, timeout_s: float) -> None:
            super().settle(timeout_s)
            if self.sent == 3:
                raise InfrastructureError("Kafka is away")

    with monkeypatch.context() as broken:
        broken.setattr(replay, "_AT_ONCE", 1)
        broken.setattr(replay, "DurableWriter", FailingWriter)
        with pytest.raises(InfrastructureError, match=f"--continue {planned.replay.id} and"):
            planned.send()
    again = plan(kafka, "s", since_ms, planned.until_ms, TopicTest(), 10, continued=planned.replay.id)
    assert again.send() == 2
    sent = [each.id for each in notifications_in(kafka) if each.replay]
    assert (len(sent), len(set(sent))) == (5, 5)
