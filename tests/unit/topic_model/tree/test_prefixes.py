"""The literal prefixes of topics: read, stored, written; and the prefixes of a tree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.topic_model.documents.topic_namespace import read_topic_namespace, read_topic_set, write_topic_set
from arborcast.topic_model.expressions import CONCRETE, concrete_topic, write_topic
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import TopicPath, make_path
from arborcast.topic_model.tree.prefixes import KnownPrefixes, prefixes_in
from arborcast.topic_model.tree.tree import TopicTree
from tests.support.routing import topic_steps

ONVIF = "http://www.onvif.org/ver10/topics"
AXIS = "http://www.axis.com/2009/event/topics"


def path_of(text: str, namespaces: dict[str, str]) -> TopicPath:
    return concrete_topic(text, CONCRETE, namespaces)


@pytest.mark.parametrize(
    ("text", "namespaces", "prefixes"),
    [
        ("tns1:RuleEngine/CellMotionDetector/Motion", {"tns1": ONVIF}, "tns1"),
        ("tns1:Device/tnsaxis:Sensor/PIR", {"tns1": ONVIF, "tnsaxis": AXIS}, "tns1 tnsaxis"),
        ("x:a/x:b/y:c", {"x": "urn:x", "y": "urn:x"}, "x"),
        ("é:a", {"é": "urn:x"}, "é"),
        ("a/b", {"": "urn:x"}, ""),
        ("a/t:b", {"": "urn:x", "t": "urn:t"}, "- t"),
        ("a/t:b", {"t": "urn:t"}, "t"),
        ("a/b", {}, ""),
    ],
)
def test_prefixes_of_an_expression(text: str, namespaces: dict[str, str], prefixes: str) -> None:
    assert prefixes_in(text, path_of(text, namespaces), namespaces) == prefixes


@pytest.mark.parametrize(
    ("path", "prefixes", "written"),
    [
        (f"{{{ONVIF}}}RuleEngine/x", "tns1", "tns1:RuleEngine/x"),
        (f"{{{ONVIF}}}RuleEngine/x", "onvif", "onvif:RuleEngine/x"),
        (f"{{{ONVIF}}}Device/{{{AXIS}}}Sensor", "", "tns1:Device/tnsaxis:Sensor"),
        ("{urn:x}a/{urn:y}b", "p q", "p:a/q:b"),
        ("{urn:x}a/{urn:y}b", "- q", "tns:a/q:b"),
        ("{urn:x}a/{urn:y}b", "p", "p:a/tns2:b"),
        ("{urn:x}a/{urn:y}b", "- tns", "tns2:a/tns:b"),
        ("{urn:x}a/{urn:y}b", "p p", "p:a/tns2:b"),
        ("{urn:x}a", "wsnt", "tns:a"),  # declared by the surrounding element
        *(("{urn:x}a", prefix, "tns:a") for prefix in ("xml", 'p="" x', "1")),
        ("a/b", "p", "a/b"),
    ],
)
def test_a_topic_is_written_with_its_prefixes(path: str, prefixes: str, written: str) -> None:
    text, declared = write_topic(TopicPath(path), prefixes)
    assert text == written
    assert path_of(text, declared) == path


_STEPS = topic_steps(["a", "Ω"], ["", "urn:x", "urn:y", ONVIF, AXIS], 5)


@given(_STEPS, st.lists(st.sampled_from(["-", "tns", "tns1", "tnsaxis", "p", "wsnt", "", "a b"]), max_size=5))
def test_prefixes_do_not_change_the_topic(steps: list[tuple[str, str]], prefixes: list[str]) -> None:
    path = make_path(steps)
    text, declared = write_topic(path, " ".join(prefixes))
    assert path_of(text, declared) == path
    assert write_topic(path, prefixes_in(text, path, declared)) == (text, declared)


def test_a_tree_keeps_the_first_prefix_of_a_namespace() -> None:
    tree = TopicTree()
    for path, prefix in (
        *(("{urn:x}a", generated) for generated in ("tns", "tns1", "ns0")),
        *(("{urn:x}a", "x"), ("{urn:x}b", "other"), (f"{{{ONVIF}}}c", "odd")),
    ):
        tree.put(TopicRecord(TopicPath(path), prefixes=prefix))
    known = tree.prefixes
    assert tree.get(TopicPath("{urn:x}a")) == TopicRecord(TopicPath("{urn:x}a")), "not a fact about the topic"
    mixed = TopicPath("{urn:x}a/{urn:y}b")
    for prefixes, complete in (("", "x -"), ("- q", "x q"), ("p q", "p q"), ("- x", "- x")):
        assert known.complete(mixed, prefixes) == complete, "prefixes of the publisher take precedence"
    assert known.complete(TopicPath("{urn:y}a")) == ""
    assert known.declarations([mixed, TopicPath(f"{{{ONVIF}}}c")]) == {"x": "urn:x", "tns1": ONVIF}
    assert known.unknown(mixed, "x y") == "x y"
    assert known.unknown(TopicPath("{urn:x}z"), "x") == known.unknown(TopicPath("{urn:z}z"), "tns") == ""


def test_known_namespaces_are_bounded() -> None:
    known = KnownPrefixes()
    for number in range(5_000):
        known.add(TopicPath(f"{{urn:{number}}}a"), "p")
    assert len(known._known) == 1_000


def test_prefixes_of_documents() -> None:
    document = b"""<w:TopicSet xmlns:w="http://docs.oasis-open.org/wsn/t-1" xmlns:v="urn:v">
      <v:a w:topic="true"><b w:topic="true"/><x:c xmlns:x="urn:x" w:topic="true"/></v:a>
      <n:d xmlns:n="http://www.onvif.org/ver10/topics" w:topic="true"/></w:TopicSet>"""
    records = read_topic_set(document)
    prefixes = {record.path: record.prefixes for record in records if record.prefixes}
    assert prefixes == {"{urn:v}a": "v", "{urn:v}a/{urn:x}c": "- x"}
    namespace = b"""<w:TopicNamespace xmlns:w="http://docs.oasis-open.org/wsn/t-1" xmlns:v="urn:v"
      targetNamespace="urn:v"><w:Topic name="a"/><w:Topic name="b"/></w:TopicNamespace>"""
    assert [record.prefixes for record in read_topic_namespace(namespace)] == ["v", ""]
    assert b"<tns1:d " in write_topic_set(records)
