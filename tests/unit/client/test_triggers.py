"""Somebody is called, waits or asks when a message of certain topics comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

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


def message(topic: str | None, payload: bytes = b"<x/>") -> ReceivedMessage:
    return ReceivedMessage(payload, None if topic is None else TopicPath(topic))


def test_those_who_want_a_topic_are_called_behind_the_one_who_wants_all() -> None:
    called: list[str] = []
    made = Triggers(lambda each: called.append(f"all {each.topic}"))
    end = made.on("plant//.", lambda each: called.append(f"below {each.topic}"))
    made.on("p:plant/line1|plant/line2", lambda each: called.append(f"one {each.topic}"), {"p": "urn:p"})
    made(message("plant/line2"))
    made(message("{urn:p}plant/line1"))
    made(message("other"))
    assert called == [
        "all plant/line2",
        "below plant/line2",
        "one plant/line2",
        "all {urn:p}plant/line1",
        "one {urn:p}plant/line1",
        "all other",
    ]
    called.clear()
    end()
    end()
    made(message("plant/line2"))
    assert called == ["all plant/line2", "one plant/line2"]


def test_what_is_no_expression_is_refused_at_once() -> None:
    made = Triggers()
    for ask in (made.seen, lambda text: made.wait_for(text, 0), lambda text: made.on(text, print)):
        with pytest.raises(ExpressionError):
            ask("a//")


def test_a_flag_is_up_once_for_each_who_asks_of_other_topics() -> None:
    made = Triggers()
    assert not made.seen("a//.")
    made(message("a/b"))
    made(message("c"))
    assert made.seen("c"), "it came before anybody asked"
    assert [made.seen("a//."), made.seen("a//.")] == [True, False]
    made(message("a/b"))
    assert [made.seen("a/b"), made.seen("a//."), made.seen("c")] == [True, True, False]


def test_topics_that_nobody_hears_of_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_TOPICS", 2)
    made = Triggers()
    for topic in ("a", "b", "a", "c"):
        made(message(topic))
    assert [made.seen(each) for each in "abc"] == [True, False, True]


def test_what_a_callback_fails_at_counts_for_nobody_as_seen() -> None:
    made = Triggers()
    failing = [True]

    def callback(each: ReceivedMessage) -> None:
        if failing:
            failing.pop()
            raise ValueError("not now")

    made.on("a", callback)
    with pytest.raises(ValueError, match="not now"):
        made(message("a"))
    assert not made.seen("a")
    made(message("a"))
    assert made.seen("a")


def test_who_waits_gets_the_next_message_and_none_from_before() -> None:
    made = Triggers()
    made(message("a", b"<before/>"))
    with pytest.raises(TimeoutError, match=r"no message arrived on a within 0\.01 s"):
        made.wait_for("a", 0.01)
    got: list[ReceivedMessage] = []
    waiting = [threading.Thread(target=lambda: got.append(made.wait_for("a", 30))) for _ in range(2)]
    for each in waiting:
        each.start()
    while len(made._waiting) < 2:
        time.sleep(0.001)
    made(message("b"))
    made(message("a", b"<first/>"))
    made(message("a", b"<second/>"))
    for each in waiting:
        each.join()
    assert [each.payload for each in got] == [b"<first/>", b"<first/>"]
    assert made._waiting == []


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener() as started:
        yield started


def test_a_listener_needs_no_callback_for_all(listener: Listener) -> None:
    called: list[str | None] = []
    listener.on("{urn:t}a//.", lambda each: called.append(each.topic))
    body = soap.envelope(soap.notify(soap.message(payload="<x/>")))
    answers: list[int] = []
    pushing = threading.Timer(0.2, lambda: answers.append(requests.post(listener.url, body, timeout=30).status_code))
    pushing.start()
    assert listener.wait_for("t:a/b", timeout=30, namespaces={"t": "urn:t"}).payload == b"<x/>"
    pushing.join()
    assert (answers, called, listener.seen("//.")) == ([202], ["{urn:t}a/b"], True)


def test_who_waits_is_let_go_when_the_listener_stops() -> None:
    with Listener() as listener:
        stopping = threading.Timer(0.1, listener.stop)
        stopping.start()
        with pytest.raises(ClientError, match="stopped before a message arrived on a"):
            listener.wait_for("a")
        stopping.join()
