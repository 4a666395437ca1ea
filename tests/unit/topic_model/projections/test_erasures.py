"""Which notifications an erasure covers, and the fold of its records."""

from __future__ import annotations

import pytest

from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.projections.erasures import covering, covers, mentions, scopes_of
from arborcast.topic_model.records.control import Erasure, ErasureScope, Tombstone, decode, encode, erasure_key
from arborcast.topic_model.records.notifications import Notification, replayed
from arborcast.topic_model.topics import TopicPath

OLD = Notification("n1", TopicPath("wards/a"), b'<p id="4711">Smith</p>', 1_000)


@pytest.mark.parametrize(
    ("scope", "covered"),
    [
        (ErasureScope("e", 1_001), True),
        (ErasureScope("e", 1_000), False),
        (ErasureScope("e", 2_000, topic="wards//."), True),
        (ErasureScope("e", 2_000, topic="wards"), False),
        (ErasureScope("e", 2_000, notification="n1"), True),
        (ErasureScope("e", 2_000, notification="n2"), False),
        (ErasureScope("e", 2_000, subject="4711"), True),
        (ErasureScope("e", 2_000, subject="Smith"), True),
        (ErasureScope("e", 2_000, subject="471"), False),
        (ErasureScope("e", 2_000, topic="other", subject="4711"), False),
    ],
)
def test_each_condition_must_hold(scope: ErasureScope, covered: bool) -> None:
    assert covers(scope, OLD) is covered
    assert covering([ErasureScope("no", 0), scope], OLD) == ("e" if covered else "")


def test_a_replay_is_covered_like_the_notification_itself() -> None:
    again = replayed(OLD, "r1", "s1", 9_000, 5)
    assert covers(ErasureScope("e", 10_000, notification="n1"), again)
    made = "0196f0a0b3c07abc8def0123456789ab"  # the id says when: before its redrive
    at_ms = int(made[:12], 16)
    assert covers(ErasureScope("e", at_ms + 1), Notification(made, TopicPath("a"), b"", at_ms + 60_000))


@pytest.mark.parametrize(
    ("fragment", "there"),
    [
        (b"<a>M&#252;ller</a>", True),
        ("<a>Müller</a>".encode(), True),
        ('<a><b c=" Müller "/></a>'.encode(), True),
        ("<a>Herr Müller</a>".encode(), False),
        ("<a><!-- Müller --></a>".encode(), False),
        ("Müller <".encode(), True),
        (b"<a/>", False),
    ],
)
def test_a_subject_is_a_whole_text_or_value(fragment: bytes, there: bool) -> None:
    assert mentions("Müller", fragment) is there


def test_erasures_are_open_until_they_are_done_and_known_until_they_are_forgotten() -> None:
    control = ControlView()
    asked = Erasure(ErasureScope("e1", 5, topic="a"), "ann", 7)
    done = Erasure(asked.scope, "ann", 7, {"waiting": 2}, 9, {"x": 11})
    for offset, each in enumerate((asked, done)):
        assert decode(*encode(each)) == each
        control.apply(each, offset)
        texts = control.erasures.for_workers
        assert scopes_of(texts) == tuple(one.scope for one in control.erasures.open)
        assert bool(texts) is not bool(each.done_ms)
    assert control.erasures.all() == [done]
    assert control.erasures.scopes == (asked.scope,)
    control.apply(Tombstone(erasure_key("e1")), 2)
    assert not control.erasures.all()
    assert not control.erasures.scopes
