"""A notification is matched by a view that can say who gets it: not before, and not much later."""

from __future__ import annotations

import pytest

from arborcast.dispatch.realtime.view_position import TaskView
from arborcast.topic_model.records.notifications import UNSTAMPED, Notification
from arborcast.topic_model.topics import TopicPath


def stamped(control: int, unchanged: int = UNSTAMPED) -> Notification:
    return Notification("n", TopicPath("a"), b"<x/>", 0, control=control, unchanged=unchanged)


def unasked() -> int:
    raise AssertionError("Kafka was asked")


@pytest.mark.parametrize(
    ("control", "unchanged", "view", "covered"),
    [
        (10, UNSTAMPED, 9, False),
        (10, UNSTAMPED, 10, True),
        (10, 4, 3, False),
        (10, 4, 4, True),
        (10, 10, 9, False),
        (10, 0, 0, True),
        (10, 0, -1, False),  # there is no view yet
    ],
)
def test_it_waits_for_the_last_change_that_may_concern_it(
    control: int, unchanged: int, view: int, covered: bool
) -> None:
    position = TaskView(unasked, None)
    position.control = view
    assert position.covers(stamped(control, unchanged), 0, 0) == covered


def test_one_without_a_stamp_waits_for_where_the_log_ends_now() -> None:
    position = TaskView(lambda: 7, None)
    position.control = 6
    assert not position.covers(stamped(UNSTAMPED, 0), 0, 0)
    position.control = 7
    assert position.covers(stamped(UNSTAMPED, 0), 0, 0)
