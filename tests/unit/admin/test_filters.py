"""Subscriptions, topics and times in an operator's notation."""

from __future__ import annotations

import pytest

from arborcast.admin import control_log
from arborcast.admin.filters import TopicTest, subscription_id
from arborcast.admin.times import beginning, moment_ms
from arborcast.core.errors import ConfigError, ExpressionError
from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import TopicPath

KAFKA = KafkaSettings()

PATHS = [TopicPath(each) for each in ("a", "a/b", "{urn:p}a/b", "c")]


def selected(wanted: TopicTest, control: ControlView | None = None) -> list[str]:
    return [*filter(wanted.test(KAFKA, control), PATHS)]


def test_the_id_of_a_subscription_and_expressions_of_topics() -> None:
    for text in ("s1", "http://broker.example/wsn/subscriptions/s1", "http://broker.example/s1/"):
        assert subscription_id(text) == "s1"
    assert subscription_id("queue:{urn:plant}plant/inspections") == "queue:{urn:plant}plant/inspections"
    assert selected(TopicTest()) == PATHS
    assert selected(TopicTest("a//.")) == ["a", "a/b"]
    assert selected(TopicTest("p:a//.", (("p", "urn:p"),))) == ["{urn:p}a/b"]
    for wrong in ("a//", "*[c]"):
        with pytest.raises(ExpressionError):
            selected(TopicTest(wrong))


def test_codes_are_looked_up_in_the_given_state(monkeypatch: pytest.MonkeyPatch) -> None:
    control = ControlView()
    control.apply(TopicRecord(TopicPath("a/b"), code="1.4"))
    assert selected(TopicTest("code:1.4"), control) == ["a/b"]
    monkeypatch.setattr(control_log, "read_tree", lambda _: control.table.topics)
    assert selected(TopicTest("code:1.4")) == ["a/b"]


def test_spans_and_times_with_errors_that_name_the_field() -> None:
    spans = [1_000_000 - beginning(text, 1_000_000) for text in ("30m", "1.5h", "2 d", "90s")]
    assert spans == [1_800, 5_400, 172_800, 90]
    assert beginning("2026-01-01T00:00:00+00:00", 0) == 1_767_225_600
    for text in ("99999d", "9" * 400 + "d", "1900-01-01"):
        assert moment_ms("since", text) == 0, "a time before the epoch is no time of a log"
    for text in ("yesterday", "0001-01-01T00:00"):
        with pytest.raises(ConfigError, match=text):
            beginning(text, 0)
    with pytest.raises(ConfigError, match=r"^until --help: write a span"):
        moment_ms("until", "--help")
