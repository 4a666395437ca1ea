"""Messages that a page watches, as dispatch stores them in the page's pull point."""

from __future__ import annotations

from datetime import datetime

from arborcast.client.received import read_push
from arborcast.console.screens.trying.watching import _arrived
from arborcast.dispatch.hot.sink_journal import stored_element
from arborcast.topic_model.namespaces import SOAP11, WSNT
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from tests.support.routing import make_subscription


def test_messages_that_are_pulled_together_have_their_own_ids_and_times() -> None:
    times = [datetime(2026, 1, 2, 3, 4, 5, 678_000).astimezone(), datetime(2026, 1, 2, 3, 4, 6, 5_000).astimezone()]
    names = [f"{round(each.timestamp() * 1000):012x}7b000b00000000000000" for each in times]
    made = [Notification(name, TopicPath("a"), b"<x/>", 0) for name in names]
    stored = b"".join(stored_element(each, make_subscription("s", "a")) for each in made).decode()
    body = (
        f'<e:Envelope xmlns:e="{SOAP11}"><e:Body><w:Notify xmlns:w="{WSNT}">{stored}</w:Notify></e:Body></e:Envelope>'
    )
    arrived = [_arrived(each) for each in read_push(body.encode(), b"text/xml; charset=utf-8")]
    assert [each.id for each in arrived] == names
    assert [each.at for each in arrived] == ["03:04:05.678", "03:04:06.005"]
