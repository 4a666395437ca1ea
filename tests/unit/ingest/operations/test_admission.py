"""Open topic sets grow within bounds; time is passed in."""

from __future__ import annotations

import pytest

from core.errors import TopicNotSupported
from ingest.operations.gateway import TopicAdmission
from ingest.settings import TopicSettings
from topic_model.records.control import TopicRecord
from topic_model.topics import TopicPath
from topic_model.tree.tree import TopicTree


def _path(text: str) -> TopicPath:
    return TopicPath(text)


def test_an_open_set_takes_an_unknown_topic_and_that_topic_only() -> None:
    admission = TopicAdmission(TopicSettings())
    assert admission.admit(TopicTree(), _path("{urn:t}a/b"), 0.0) == TopicRecord(_path("{urn:t}a/b"))


def test_a_known_topic_needs_nothing_even_in_a_fixed_and_full_set() -> None:
    tree = TopicTree()
    tree.put(TopicRecord(_path("a")))
    admission = TopicAdmission(TopicSettings(fixed=True, maximum=1, new_per_minute=0))
    assert admission.admit(tree, _path("a"), 0.0) is None


@pytest.mark.parametrize(
    ("settings", "path", "why"),
    [
        (TopicSettings(fixed=True), "b", "the topic set is fixed"),
        (TopicSettings(fixed=True), "n", "the topic set is fixed"),
        (TopicSettings(), "f/x/y", "the topic f is final"),
        (TopicSettings(maximum=2), "b", "topics.maximum is 2"),
        (TopicSettings(new_per_minute=0), "b", "topics.new_per_minute is 0"),
    ],
)
def test_refusals_say_which_setting(settings: TopicSettings, path: str, why: str) -> None:
    tree = TopicTree()
    tree.put(TopicRecord(_path("f"), final=True))
    tree.put(TopicRecord(_path("n/below")))
    with pytest.raises(TopicNotSupported, match=why) as caught:
        TopicAdmission(settings).admit(tree, _path(path), 0.0)
    assert caught.value.topic == path
    assert caught.value.fault == "TopicNotSupportedFault"


def test_the_window_slides() -> None:
    admission = TopicAdmission(TopicSettings(new_per_minute=3))
    tree = TopicTree()

    def admitted(name: str, now_s: float) -> bool:
        try:
            return admission.admit(tree, _path(name), now_s) is not None
        except TopicNotSupported:
            return False

    assert [admitted("a", 10.0), admitted("b", 10.9), admitted("c", 40.0)] == [True, True, True]
    assert not admitted("d", 40.5)
    assert not admitted("d", 69.9)
    # The two of second 10 have left the window of sixty seconds, the one of second 40 has not.
    assert [admitted("d", 70.0), admitted("e", 70.0), admitted("f", 70.0)] == [True, True, False]
    assert not admitted("f", 99.9)
    assert [admitted("f", 100.0), admitted("g", 100.0)] == [True, False]


def test_refused_topics_do_not_count() -> None:
    admission = TopicAdmission(TopicSettings(new_per_minute=1))
    tree = TopicTree()
    assert admission.admit(tree, _path("a"), 0.0)
    for second in range(1, 60):
        with pytest.raises(TopicNotSupported):
            admission.admit(tree, _path("b"), float(second))
    assert admission.admit(tree, _path("b"), 60.0)
