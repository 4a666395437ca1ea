"""A browser's EventSource, with a real gateway and Kafka, through a kill and restart of the gateway."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from arborcast.admin.control_log import read_table
from arborcast.core.eventlog.topics import PULL_LOG
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.records.pull import StoredMessage, encode
from tests.support.chromium import Visitors
from tests.support.gateway_process import gateway_run
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.browser]

FOLLOW = """address => {
    window.found = []; window.stream = new EventSource(address);
    window.stream.onmessage = message => {
        window.found.push(JSON.parse(message.data).id); window.last = message.lastEventId;
    };
}"""


def test_an_event_source_reconnects_by_itself(
    kafka_settings: KafkaSettings, tmp_path: Path, visit: Visitors, elsewhere: str
) -> None:
    """Messages are written as the dispatch job writes them."""
    writer = LogWriter(kafka_settings, PULL_LOG)

    def put(stream: str, numbers: range) -> None:
        for number in numbers:
            element = (
                '<wsnt:NotificationMessage xmlns:wsnt="http://docs.oasis-open.org/wsn/b-2"><wsnt:Topic Dialect='
                '"http://docs.oasis-open.org/wsn/t-1/TopicExpression/Concrete">a/b</wsnt:Topic><wsnt:Message>'
                f"<n>{number}</n></wsnt:Message></wsnt:NotificationMessage>"
            )
            message = StoredMessage(element.encode(), f"n{number}", stream, int(time.time() * 1000))
            writer.append_encoded([encode(stream, message)])

    visit.expected = ("ERR_", "Failed to load resource")
    with gateway_run(tmp_path, kafka_settings, page_origins=f'"{elsewhere}"') as gateway:
        page = visit()
        page.goto(elsewhere)
        page.evaluate(FOLLOW, f"{gateway.base}/events/a//.")
        wait_until(lambda: page.evaluate("stream.readyState") == 1, "connected")
        wait_until(lambda: gateway.metric("arborcast_subscriptions") == 1, "subscribed")
        # A browser sends the id of the last event only when it reconnects, so the test reads it from the log.
        (made,) = read_table(kafka_settings).subscriptions()
        put(made.id, range(10))
        wait_until(lambda: len(page.evaluate("found")) == 10, "ten")
        gateway.kill()
        put(made.id, range(10, 20))
        gateway.start(ready=False)
        wait_until(lambda: len(page.evaluate("found")) >= 20, lambda: str(page.evaluate("found")), timeout_s=300)
        put(made.id, range(20, 25))
        wait_until(lambda: len(page.evaluate("found")) >= 25, "five more")
        assert page.evaluate("found") == [f"n{number}" for number in range(25)]
        page.evaluate("stream.close()")
    writer.close()
