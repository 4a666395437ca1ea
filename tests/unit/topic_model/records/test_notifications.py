from __future__ import annotations

import msgspec

from arborcast.topic_model.records.notifications import Notification, replayed
from arborcast.topic_model.topics import TopicPath

NOTIFICATION = Notification("id", TopicPath("{urn:t}a"), b"<n/>", 1, b"<p/>", "urn:uuid:1", "pub")


def test_a_replay_is_a_notification_of_its_own_that_says_what_it_was() -> None:
    first = msgspec.structs.replace(NOTIFICATION, request=b"fingerprint", request_size=4, priority=5)
    again = replayed(first, "r1", "sub", 99, 7)
    assert (again.id, again.original_id, again.replay, again.only) == ("id~r1", "id", "r1", "sub")
    assert (again.topic, again.payload, again.producer, again.message_id) == (
        first.topic,
        first.payload,
        first.producer,
        first.message_id,
    )
    assert (again.accepted_ms, again.priority) == (99, 5)
    assert (again.request, again.request_size) == (b"", 1), "it is not part of a publisher's request"
    assert first.original_id == "id"
    assert replayed(again, "r2", "sub", 100, 7).id == "id~r2"
