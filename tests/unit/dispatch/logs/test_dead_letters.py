from __future__ import annotations

from arborcast.dispatch.logs import dead_letters
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.logs.dead_letters import letter_of
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath

NOTIFICATION = Notification("n1", TopicPath("a/b"), b"<x>\xc3\xa4</x>", 5, message_id="m")


def test_a_dead_letter_holds_the_message_and_the_last_attempt() -> None:
    attempt = Attempt(
        notification="n1",
        subscription="s",
        topic=TopicPath("a/b"),
        endpoint="http://r/",
        number=6,
        push="p-6",
        state="dead",
        accepted_ms=5,
        started_ms=70,
        duration_ms=1.0,
        error="server-error",
        detail="HTTP 500",
        status=500,
        response=b"oops",
    )
    letter = letter_of(attempt, NOTIFICATION)

    assert dead_letters.decode(dead_letters.encode(letter)) == letter
    assert (letter.notification, letter.subscription, letter.endpoint) == (NOTIFICATION, "s", "http://r/")
    assert (letter.state, letter.at_ms, letter.number, letter.push) == ("dead", 70, 6, "p-6")
    assert (letter.error, letter.detail, letter.status, letter.response) == ("server-error", "HTTP 500", 500, b"oops")
