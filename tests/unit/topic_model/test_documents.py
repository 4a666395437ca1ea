"""TopicSet, TopicNamespace and JSON: what real documents say, round trips, and hostile input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from arborcast.core.errors import DocumentError
from arborcast.topic_model.documents import (
    read_json,
    read_topic_namespace,
    read_topic_set,
    write_json,
    write_topic_namespace,
    write_topic_namespaces,
    write_topic_set,
)
from arborcast.topic_model.records.control import TopicPolicy, TopicRecord
from arborcast.topic_model.topics import TopicPath, make_path, split_path
from tests.support.xpath import elements

# The shape in which cameras answer: children without a namespace, descriptions among the topics, intermediate nodes.
CAMERA_TOPIC_SET = b"""<?xml version="1.0" encoding="UTF-8"?>
<t:TopicSet xmlns:t="http://docs.oasis-open.org/wsn/t-1" xmlns:tns1="http://www.onvif.org/ver10/topics"
            xmlns:hik="urn:vendor:topics" xmlns:tt="http://www.onvif.org/ver10/schema">
  <t:documentation>what there is</t:documentation>
  <tns1:RuleEngine t:topic="false">
    <CellMotionDetector>
      <Motion t:topic="true">
        <tt:MessageDescription IsProperty="true"><tt:Source/></tt:MessageDescription>
      </Motion>
    </CellMotionDetector>
  </tns1:RuleEngine>
  <tns1:VideoAnalytics t:topic=" 1 "><hik:MotionAlarm t:topic="true"/><tns1:Same t:topic="true"/></tns1:VideoAnalytics>
  <plain t:topic="true"/>
</t:TopicSet>"""

ONVIF = "{http://www.onvif.org/ver10/topics}"


def test_topic_set_of_a_camera() -> None:
    assert [record.path for record in read_topic_set(CAMERA_TOPIC_SET)] == [
        "plain",
        f"{ONVIF}RuleEngine/CellMotionDetector/Motion",
        f"{ONVIF}VideoAnalytics",
        f"{ONVIF}VideoAnalytics/Same",
        f"{ONVIF}VideoAnalytics/{{urn:vendor:topics}}MotionAlarm",
    ]


TOPIC_NAMESPACE = b"""<?xml version="1.0"?>
<wstop:TopicNamespace xmlns:wstop="http://docs.oasis-open.org/wsn/t-1" xmlns:m="urn:messages" xmlns:o="urn:other"
                      name="weather" targetNamespace="urn:weather" final="false">
  <wstop:Topic name="storm" messageTypes="m:Storm  plain
      m:Gale">
    <wstop:documentation>wind</wstop:documentation>
    <wstop:MessagePattern Dialect="urn:d">x</wstop:MessagePattern>
    <wstop:Topic name="tornado" final="true"/>
  </wstop:Topic>
  <wstop:Topic name="flood" parent="o:rivers/rhine"/>
</wstop:TopicNamespace>"""


def test_topic_namespace() -> None:
    assert read_topic_namespace(TOPIC_NAMESPACE) == (
        TopicRecord(TopicPath("{urn:other}rivers/rhine/{urn:weather}flood"), prefixes="o -"),
        TopicRecord(
            TopicPath("{urn:weather}storm"), message_types=("{urn:messages}Storm", "plain", "{urn:messages}Gale")
        ),
        TopicRecord(TopicPath("{urn:weather}storm/tornado"), final=True),
    )


def test_written_topic_set_is_what_xpath_users_expect() -> None:
    document = etree.fromstring(
        write_topic_set([TopicRecord(TopicPath("{urn:t}a/b")), TopicRecord(TopicPath("{urn:t}a/{urn:x}c"))])
    )
    namespaces = {"tns": "urn:t", "x": "urn:x", "w": "http://docs.oasis-open.org/wsn/t-1"}
    assert len(elements(document, "/w:TopicSet/tns:a/b[@w:topic='true']", namespaces)) == 1
    assert len(elements(document, "//x:c[@w:topic='true']", namespaces)) == 1
    assert len(elements(document, "//tns:a[@w:topic]", namespaces)) == 0


_names = st.sampled_from(["a", "b", "Ωmega", "c-1", "火"])
_namespaces = st.sampled_from(["", "", "urn:t", "http://example.org/x/"])
_texts = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"), max_size=6)


@st.composite
def _paths(draw: st.DrawFn) -> TopicPath:
    steps: list[tuple[str, str]] = []
    for name in draw(st.lists(_names, min_size=1, max_size=4)):
        inherited = steps[-1][0] if steps else ""
        steps.append((draw(_namespaces) or inherited, name))
    return make_path(steps)


_message_types = st.one_of(st.just("{urn:m}Alarm"), st.just("Plain"), _texts, st.just("tns:not clark"))
_records = st.builds(
    TopicRecord,
    _paths(),
    _texts,
    st.lists(_message_types, max_size=3).map(tuple),
    st.booleans(),
    st.builds(
        TopicPolicy,
        st.none() | st.booleans(),
        st.integers(-5, 5),
        _texts,
        st.lists(_texts, max_size=2).map(tuple),
        st.booleans(),
        st.booleans(),
    ),
)
_trees = st.lists(_records, max_size=8, unique_by=lambda record: record.path)


def _sorted(records: list[TopicRecord]) -> tuple[TopicRecord, ...]:
    return tuple(sorted(records, key=lambda record: record.path))


@given(_trees)
def test_topic_set_round_trip(records: list[TopicRecord]) -> None:
    assert read_topic_set(write_topic_set(records)) == _sorted(records)


@given(_trees)
def test_topic_namespaces_round_trip(records: list[TopicRecord]) -> None:
    documents = write_topic_namespaces(records)
    assert set(documents) == {list(split_path(record.path))[-1][0] for record in records}
    back = [record for document in documents.values() for record in read_topic_namespace(document)]
    assert _sorted(back) == _sorted(records)


@given(_trees)
def test_json_round_trip_in_a_stable_order(records: list[TopicRecord]) -> None:
    document = write_json(records)
    assert read_json(document) == _sorted(records)
    assert write_json(records[::-1]) == document
    assert write_topic_set(records[::-1]) == write_topic_set(records)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"", "not well-formed"),
        (b"<a>", "not well-formed"),
        (b"<a/>", "root element is a"),
        (b'<TopicSet xmlns="urn:other"/>', "root element is {urn:other}TopicSet"),
        (b'<!DOCTYPE TopicSet><TopicSet xmlns="http://docs.oasis-open.org/wsn/t-1"/>', "DOCTYPE"),
        (
            b'<!DOCTYPE t [<!ENTITY e SYSTEM "file:///etc/hostname">]>'
            b'<t:TopicSet xmlns:t="http://docs.oasis-open.org/wsn/t-1">&e;</t:TopicSet>',
            "DOCTYPE",
        ),
        (
            b'<t:TopicSet xmlns:t="http://docs.oasis-open.org/wsn/t-1">'
            + b"<a>" * 300
            + b"</a>" * 300
            + b"</t:TopicSet>",
            "not well-formed",
        ),
        (
            b'<t:TopicSet xmlns:t="http://docs.oasis-open.org/wsn/t-1">'
            + b"<a>" * 64
            + b'<a t:topic="true"/>'
            + b"</a>" * 64
            + b"</t:TopicSet>",
            "64 levels",
        ),
        (
            b'<t:TopicSet xmlns:t="http://docs.oasis-open.org/wsn/t-1">\n'
            b'<a t:topic="true"/>\n<a t:topic="1"/></t:TopicSet>',
            "line [23]: the document has the topic a twice",
        ),
        (
            b'<t:TopicSet xmlns:t="http://docs.oasis-open.org/wsn/t-1" xmlns:o="urn:arborcast:topic">\n'
            b'<a t:topic="true" o:priority="high"/></t:TopicSet>',
            "line 2: priority of topic a",
        ),
        (
            '<t:TopicSet xmlns:t="http://docs.oasis-open.org/wsn/t-1" xmlns:o="urn:arborcast:topic">'
            '<a t:topic="true" o:priority="\u0661"/></t:TopicSet>'.encode(),
            "priority of topic a",
        ),
        (
            b'<t:TopicSet xmlns:t="http://docs.oasis-open.org/wsn/t-1" xmlns:o="urn:arborcast:topic">'
            b'<a t:topic="true" o:publishers="me"/></t:TopicSet>',
            "publishers of topic a",
        ),
        (
            b'<t:TopicSet xmlns:t="http://docs.oasis-open.org/wsn/t-1" xmlns:o="urn:with{brace}">'
            b'<o:a t:topic="true"/></t:TopicSet>',
            "not a valid URI",
        ),
    ],
)
def test_illegal_topic_set(document: bytes, why: str) -> None:
    with pytest.raises(DocumentError, match=why):
        read_topic_set(document)


@pytest.mark.parametrize(
    ("inside", "attributes", "why"),
    [
        ("", "", "no targetNamespace"),
        ("<Topic/>", 'targetNamespace="urn:t"', "no name"),
        ('<Topic name="a b"/>', 'targetNamespace="urn:t"', "'a b' is not a legal topic name"),
        ('<Topic name="a/b"/>', 'targetNamespace="urn:t"', "not a legal topic name"),
        ('<Topic name="a"/><Topic name="a"/>', 'targetNamespace="urn:t"', " twice"),
        ('<Topic name="a" parent="q:b"/>', 'targetNamespace="urn:t"', "@parent: .*'q' is not declared"),
        ('<Topic name="a" parent="b//c"/>', 'targetNamespace="urn:t"', "@parent: "),
        ('<Topic name="a" messageTypes="q:M"/>', 'targetNamespace="urn:t"', "prefix of 'q:M'"),
        ('<Topic name="a"/>', 'targetNamespace="urn: t"', "not a valid URI"),
    ],
)
def test_illegal_topic_namespace(inside: str, attributes: str, why: str) -> None:
    document = f'<TopicNamespace xmlns="http://docs.oasis-open.org/wsn/t-1" {attributes}>{inside}</TopicNamespace>'
    with pytest.raises(DocumentError, match=why):
        read_topic_namespace(document.encode())


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"", "not a JSON document"),
        (b"[]", "not a JSON document"),
        (b'{"version":1,"topics":[{"path":1}]}', "not a JSON document"),
        (b'{"version":2,"topics":[]}', "version 2"),
        (b'{"version":1,"topics":[],"more":1}', "more"),
        (b'{"version":1,"topics":[{"type":"topic","path":"a b"}]}', "not a canonical topic path"),
        (b'{"version":1,"topics":[{"type":"topic","path":"a"},{"type":"topic","path":"{}a"}]}', " twice"),
        (b'{"version":1,"topics":' + b"[" * 100_000, "not a JSON document"),
    ],
)
def test_illegal_json(document: bytes, why: str) -> None:
    with pytest.raises(DocumentError, match=why):
        read_json(document)


def test_what_xml_cannot_carry_is_refused_with_the_topic() -> None:
    with pytest.raises(DocumentError, match="topic a"):
        write_topic_set([TopicRecord(TopicPath("a"), code="\x00")])


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (read_json, read_topic_set, read_topic_namespace):
        try:
            read(data)
        except DocumentError:
            continue


def test_a_namespace_writes_only_its_own_topics() -> None:
    records = [TopicRecord(TopicPath("{urn:t}a")), TopicRecord(TopicPath("b"))]
    assert [r.path for r in read_topic_namespace(write_topic_namespace(records, "urn:t"))] == ["{urn:t}a"]
    assert [r.path for r in read_topic_namespace(write_topic_namespace(records, ""))] == ["b"]
