"""Callbacks, waits and queries for messages of certain topics."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
import requests

from arborcast.client import ClientError
from arborcast.client import triggers as module
from arborcast.client.listener import Listener
from arborcast.client.received import ReceivedMessage
from arborcast.client.triggers import Triggers
from arborcast.core.errors import ExpressionError
from arborcast.topic_model.topics import TopicPath
from tests.support import soap_messages as soap
from tests.support.waiting import wait_until


def message(topic: str | None, payload: bytes = b"<x/>") -> ReceivedMessage:
    return ReceivedMessage(payload, None if topic is None else TopicPath(topic))


def test_callbacks_for_topics_follow_the_one_for_all() -> None:
    called: list[str] = []
    made = Triggers(lambda each: called.append(f"all {each.topic}"))
    end = made.on("plant//.", lambda each: called.append(f"below {each.topic}"))
    made.on("p:plant/line1|plant/line2", lambda each: called.append(f"one {each.topic}"), {"p": "urn:p"})
    for topic, expected in (
        ("plant/line2", ["all plant/line2", "below plant/line2", "one plant/line2"]),
        ("{urn:p}plant/line1", ["all {urn:p}plant/line1", "one {urn:p}plant/line1"]),
        ("other", ["all other"]),
    ):
        called.clear()
        made._trigger(message(topic))
        assert called == expected
    called.clear()
    end()
    end()
    made._trigger(message("plant/line2"))
    assert called == ["all plant/line2", "one plant/line2"]


def test_expressions_are_checked_at_once() -> None:
    made = Triggers()
    for use in (made.seen, lambda text: made.wait_for(text, 0), lambda text: made.on(text, print)):
        with pytest.raises(ExpressionError):
            use("a//")


def test_messages_are_counted_once_for_each_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Triggers()
    assert not made.seen("a//.")
    made._trigger(message("a/b"))
    made._trigger(message("c"))
    assert made.seen("c"), "received before the first query"
    assert [made.seen("a//."), made.seen("a//.")] == [True, False]
    made._trigger(message("a/b"))
    assert [made.seen("a/b"), made.seen("a//."), made.seen("c")] == [True, True, False]

    monkeypatch.setattr(module, "_MAX_TOPICS", 2)
    made = Triggers()
    for topic in ("a", "b", "a", "c"):
        made._trigger(message(topic))
    assert [made.seen(each) for each in "abc"] == [True, False, True], (
        "the topic longest without a message is forgotten"
    )


def test_a_message_whose_callback_fails_is_not_seen() -> None:
    made = Triggers()
    made.on("a", Mock(side_effect=[ValueError("not now"), None]))
    with pytest.raises(ValueError, match="not now"):
        made._trigger(message("a"))
    assert not made.seen("a")
    made._trigger(message("a"))
    assert made.seen("a")


def test_a_wait_ends_with_the_next_message() -> None:
    made = Triggers()
    made._trigger(message("a", b"<before/>"))
    with pytest.raises(TimeoutError, match=r"no message arrived on a within 0\.01 s"):
        made.wait_for("a", 0.01)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(made.wait_for, "a", 30) for _ in range(2)]
        wait_until(lambda: len(made._waiting) == 2)
        for each in (message("b"), message("a", b"<first/>"), message("a", b"<second/>")):
            made._trigger(each)
    assert [each.result().payload for each in waiting] == [b"<first/>", b"<first/>"]
    assert made._waiting == []


def test_a_listener_without_a_callback_for_all() -> None:
    called: list[str | None] = []
    body = soap.envelope(soap.notify(soap.message(payload="<x/>")))
    with Listener() as listener, ThreadPoolExecutor(2) as threads:
        listener.on("{urn:t}a//.", lambda each: called.append(each.topic))
        waiting = threads.submit(listener.wait_for, "t:a/b", timeout=30, namespaces={"t": "urn:t"})
        stopped = threads.submit(listener.wait_for, "other")
        wait_until(lambda: len(listener._waiting) == 2)
        assert requests.post(listener.url, body, timeout=30).status_code == 202
        assert waiting.result(30).payload == b"<x/>"
        assert (called, listener.seen("//.")) == (["{urn:t}a/b"], True)
        listener.stop()
        with pytest.raises(ClientError, match="stopped before a message arrived on other"):
            stopped.result(30)
