"""Dead letters are taken up some at a time."""

from __future__ import annotations

from collections.abc import Iterator

from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.parked import Delivery, Place
from arborcast.dispatch.operations import dead_letters
from arborcast.dispatch.operations.dead_letters import _chunks
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath


def letters(size: int, count: int) -> Iterator[tuple[Delivery, DeadLetter]]:
    payload = b"x" * size
    for number in range(count):
        notification = Notification(f"n{number}", TopicPath("a"), payload, 1)
        yield Delivery("s", Place(1, 0, number)), DeadLetter("s", "http://s/", notification, "dead", 2, 3)


def test_they_are_taken_up_by_number_and_by_bytes() -> None:
    assert [len(each) for each in _chunks(letters(10, 1_200))] == [500, 500, 200]
    large = 4 * 1024 * 1024
    assert [len(each) for each in _chunks(letters(large, 10))] == [4, 4, 2]
    assert [len(each) for each in _chunks(letters(2 * dead_letters._BYTES_AT_ONCE, 2))] == [1, 1]
    assert list(_chunks(letters(1, 0))) == []
