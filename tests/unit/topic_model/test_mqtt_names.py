"""MQTT topics and topics of the tree in both directions; filters compared with those of paho."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import topic_matches_sub

from arborcast.core.errors import TopicError
from arborcast.topic_model.mqtt_names import TopicsIn, TopicsOut, address_of, level_of, name_of
from arborcast.topic_model.topics import TopicPath, parse_path

BASE = "mqtt://broker.example:1883/"

LEVELS = st.text(st.characters(exclude_characters="/+#\0", exclude_categories=["Cs"]), max_size=12) | st.text(
    "_x0F5$ é\U0001f600", max_size=16
)


@given(st.lists(LEVELS, min_size=1, max_size=5).filter(lambda levels: "/".join(levels) != ""))
def test_an_incoming_topic_is_unchanged_when_outgoing(levels: list[str]) -> None:
    topic = "/".join(levels)
    path = TopicsIn("#", "{topic}").topic(topic)
    assert (path is None) is topic.startswith("$"), "# does not select topics of the broker itself"
    if path is not None:
        assert parse_path(path) == path
        assert outgoing("{topic}").topic(path) == topic


@pytest.mark.parametrize(
    ("level", "name"),
    [
        ("a", "a"),
        ("0x12", "_x0030_x12"),
        ("living room", "living_x0020_room"),
        ("", "_x_"),
        ("_x_", "_x005F_x_"),
        ("_x0041_", "_x005F_x0041_"),
        ("$SYS", "_x0024_SYS"),
        ("\U000fffff", "_x000FFFFF_"),
    ],
)
def test_spelling_of_names(level: str, name: str) -> None:
    assert (name_of(level), level_of(name)) == (name, level)


@pytest.mark.parametrize("name", ["_x002B_", "_x0023_", "_x002F_", "_x0000_", "_xD800_", "_xFFFFFFFF_"])
def test_escaped_characters_stay_escaped(name: str) -> None:
    assert level_of(name) == name


def outgoing(template: str, retain: bool = False) -> TopicsOut:
    return TopicsOut(address_of(BASE, template, retain=retain))


@pytest.mark.parametrize(
    ("template", "path", "topic"),
    [
        ("out/{topic}", "a/b", "out/a/b"),
        ("{2}/{1}", "a/b", "b/a"),
        ("fixed", "a/b", "fixed"),
        ("{topic}", "{urn:t}a/b", "{urn:t}a/b"),
        ("{topic}", "{http://h/#x}a/b", "{http:_x002F__x002F_h_x002F__x0023_x}a/b"),
        ("{topic}", "_x0024_SYS/b", "_x0024_SYS/b"),
        ("a/{topic}", "_x0024_SYS/b", "a/$SYS/b"),
        ("a b/é/{1}", "x", "a b/é/x"),
    ],
)
def test_topics_of_outgoing_messages(template: str, path: str, topic: str) -> None:
    out = outgoing(template, retain=True)
    assert out.topic(TopicPath(path)) == topic
    url = out.url(TopicPath(path))
    assert (url.startswith(BASE), url.endswith("?retain"), "{" in url) == (True, True, False)


def test_topics_that_no_rule_can_map() -> None:
    with pytest.raises(TopicError, match=r"has \{2\}, but the topic has 1 levels"):
        outgoing("x/{2}").topic(TopicPath("a"))
    with pytest.raises(TopicError):
        TopicsIn("#", "{topic}").topic(" " * 4_000)


@pytest.mark.parametrize(
    ("wanted", "template", "mqtt", "path"),
    [
        ("plant/+/temp", "t/{1}", "plant/3/temp", "t/_x0033_"),
        ("plant/#", "p/{#}", "plant/a/b", "p/a/b"),
        ("plant/#", "p/{#}", "plant", "p"),
        ("+/x/+", "{2}/{1}", "a/x/b", "b/a"),
        ("a/b", "{urn:t}fixed/c", "a/b", "{urn:t}fixed/c"),
        ("$SYS/broker/#", "broker/{#}", "$SYS/broker/load", "broker/load"),
        ("/a", "{topic}", "/a", "_x_/a"),
    ],
)
def test_topics_of_incoming_messages(wanted: str, template: str, mqtt: str, path: str) -> None:
    assert TopicsIn(wanted, template).topic(mqtt) == path


@pytest.mark.parametrize(
    ("wanted", "template", "words"),
    [
        ("a/b+", "a", "complete level"),
        ("a/#/b", "a", "the last one"),
        ("", "a", "not an MQTT topic filter"),
        ("$share/g/a", "a", "shared subscription"),
        ("a/+", "{2}", "exceeds the number of wildcards"),
        ("a/+", "{#}", "only with a filter"),
        ("a/+", "x-{1}", "a complete level"),
        ("a/+", "a//b", "parts with slashes"),
        ("a/+", "1a", "not a canonical topic path"),
        ("a", "", "parts with slashes"),
    ],
)
def test_invalid_rules_for_incoming_messages(wanted: str, template: str, words: str) -> None:
    with pytest.raises(TopicError, match=words):
        TopicsIn(wanted, template)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("", "is empty"),
        ("$SYS/a", "begins with"),
        ("a/+", "has"),
        ("a/{#}", "only with a filter"),
        ("a/{topics}", "the placeholders are"),
        ("x" * 70_000, "at most 65535 bytes"),
    ],
)
def test_invalid_rules_for_outgoing_messages(template: str, words: str) -> None:
    with pytest.raises(TopicError, match=words):
        outgoing(template)


TOPICS = st.lists(st.sampled_from(["", "a", "b", "$c"]), min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = (
    st.lists(st.sampled_from(["", "a", "b", "$c", "+"]), min_size=1, max_size=4)
    .flatmap(lambda levels: st.sampled_from(["/".join(levels), "/".join([*levels, "#"]), "#"]))
    .filter(bool)
)


@given(FILTERS, FILTERS, TOPICS)
def test_filters_against_those_of_paho(first: str, second: str, topic: str) -> None:
    one, other = TopicsIn(first, "x"), TopicsIn(second, "x")
    assert (one.topic(topic) is not None) is topic_matches_sub(first, topic)
    assert one.overlaps(other) is other.overlaps(one)
    if topic_matches_sub(first, topic) and topic_matches_sub(second, topic):
        assert one.overlaps(other)


@pytest.mark.parametrize(
    ("first", "second"),
    [("a/+", "b/#"), ("a", "a/b"), ("a/+", "a/+/b"), ("#", "$SYS/#"), ("+/a", "$c/a"), ("a/b", "a/c")],
)
def test_filters_that_do_not_overlap(first: str, second: str) -> None:
    assert not TopicsIn(first, "x").overlaps(TopicsIn(second, "x"))
