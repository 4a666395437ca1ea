"""TopicSet, TopicNamespace and JSON: real documents, round trips, and hostile input."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from arborcast.core.errors import DocumentError
from arborcast.topic_model.documents.facts import read_json, write_json
from arborcast.topic_model.documents.topic_namespace import read_topic_namespace, read_topic_set, write_topic_set
from arborcast.topic_model.records.control import TopicPolicy, TopicRecord
from arborcast.topic_model.topics import TopicPath, make_path
from tests.support.routing import topic_steps
from tests.support.xpath import elements

# The form of cameras' answers: children without a namespace, descriptions among the topics, intermediate nodes.
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
                      xmlns:arbor="urn:arborcast:topic" name="weather" targetNamespace="urn:weather" final="false">
  <wstop:Topic name="storm" messageTypes="m:Storm  plain
      m:Gale">
    <wstop:documentation>wind</wstop:documentation>
    <wstop:MessagePattern Dialect="urn:d">x</wstop:MessagePattern>
    <wstop:Topic name="tornado" final="true" arbor:code="7" arbor:priority="-2"/>
  </wstop:Topic>
  <wstop:Topic name="flood" parent="o:rivers/rhine"/>
</wstop:TopicNamespace>"""


def test_topic_namespace() -> None:
    assert read_topic_namespace(TOPIC_NAMESPACE) == (
        TopicRecord(TopicPath("{urn:other}rivers/rhine/{urn:weather}flood"), prefixes="o -"),
        TopicRecord(
            TopicPath("{urn:weather}storm"), message_types=("{urn:messages}Storm", "plain", "{urn:messages}Gale")
        ),
        TopicRecord(TopicPath("{urn:weather}storm/tornado"), "7", final=True, policy=TopicPolicy(priority=-2)),
    )


def test_written_topic_set_for_users_of_xpath() -> None:
    document = etree.fromstring(
        write_topic_set([TopicRecord(TopicPath("{urn:t}a/b")), TopicRecord(TopicPath("{urn:t}a/{urn:x}c"))])
    )
    namespaces = {"tns": "urn:t", "x": "urn:x", "w": "http://docs.oasis-open.org/wsn/t-1"}
    topics = ("/w:TopicSet/tns:a/b[@w:topic='true']", "//x:c[@w:topic='true']", "//tns:a[@w:topic]")
    assert [len(elements(document, path, namespaces)) for path in topics] == [1, 1, 0]


_paths = topic_steps(["a", "b", "Ωmega", "c-1", "火"], ["", "", "urn:t", "http://example.org/x/"], 4).map(make_path)
_texts = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"), max_size=6)

_message_types = st.one_of(st.just("{urn:m}Alarm"), st.just("Plain"), _texts, st.just("tns:not clark"))
_policies = st.builds(
    TopicPolicy,
    st.none() | st.booleans(),
    st.integers(-5, 5),
    _texts,
    st.lists(_texts, max_size=2).map(tuple),
    st.booleans(),
    st.booleans(),
)
_types = st.lists(_message_types, max_size=3).map(tuple)
_records = st.builds(TopicRecord, _paths, _texts, _types, st.booleans(), _policies)
_trees = st.lists(_records, max_size=8, unique_by=lambda record: record.path)


@given(_trees)
def test_documents_round_trip_in_a_stable_order(records: list[TopicRecord]) -> None:
    expected = tuple(sorted(records, key=lambda record: record.path))
    assert read_topic_set(write_topic_set(records)) == read_json(write_json(records)) == expected
    assert write_json(records[::-1]) == write_json(records)
    assert write_topic_set(records[::-1]) == write_topic_set(records)


def topic_set(inside: bytes, more: bytes = b"") -> bytes:
    return b'<t:TopicSet xmlns:t="http://docs.oasis-open.org/wsn/t-1" %s>\n%s</t:TopicSet>' % (more, inside)


OURS = b'xmlns:o="urn:arborcast:topic"'


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"", "not well-formed"),
        (b"<a>", "not well-formed"),
        (b"<a/>", "root element is a"),
        (b'<TopicSet xmlns="urn:other"/>', "root element is {urn:other}TopicSet"),
        (b"<!DOCTYPE t:TopicSet>" + topic_set(b""), "DOCTYPE"),
        (b'<!DOCTYPE t [<!ENTITY e SYSTEM "file:///etc/hostname">]>' + topic_set(b"&e;"), "DOCTYPE"),
        (topic_set(b"<a>" * 300 + b"</a>" * 300), "not well-formed"),
        (topic_set(b"<a>" * 64 + b'<a t:topic="true"/>' + b"</a>" * 64), "64 levels"),
        (topic_set(b'<a t:topic="true"/>\n<a t:topic="1"/>'), "line [23]: the document has the topic a twice"),
        (topic_set(b'<a t:topic="true" o:priority="high"/>', OURS), "line 2: priority of topic a"),
        (topic_set('<a t:topic="true" o:priority="\u0661"/>'.encode(), OURS), "priority of topic a"),
        (topic_set(b'<a t:topic="true" o:publishers="me"/>', OURS), "publishers of topic a"),
        (topic_set(b'<o:a t:topic="true"/>', b'xmlns:o="urn:with{brace}"'), "not a valid URI"),
    ],
)
def test_illegal_topic_set(document: bytes, why: str) -> None:
    with pytest.raises(DocumentError, match=why):
        read_topic_set(document)


@pytest.mark.parametrize(
    ("inside", "namespace", "why"),
    [
        ("", "", "no targetNamespace"),
        ("<Topic/>", "urn:t", "no name"),
        ('<Topic name="a b"/>', "urn:t", "'a b' is not a legal topic name"),
        ('<Topic name="a/b"/>', "urn:t", "not a legal topic name"),
        ('<Topic name="a"/><Topic name="a"/>', "urn:t", " twice"),
        ('<Topic name="a" parent="q:b"/>', "urn:t", "@parent: .*'q' is not declared"),
        ('<Topic name="a" parent="b//c"/>', "urn:t", "@parent: "),
        ('<Topic name="a" messageTypes="q:M"/>', "urn:t", "prefix of 'q:M'"),
        ('<Topic name="a"/>', "urn: t", "not a valid URI"),
    ],
)
def test_illegal_topic_namespace(inside: str, namespace: str, why: str) -> None:
    target = f'targetNamespace="{namespace}"' if namespace else ""
    document = f'<TopicNamespace xmlns="http://docs.oasis-open.org/wsn/t-1" {target}>{inside}</TopicNamespace>'
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


def test_facts_with_characters_outside_xml_are_refused() -> None:
    with pytest.raises(DocumentError, match="topic a"):
        write_topic_set([TopicRecord(TopicPath("a"), code="\x00")])


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (read_json, read_topic_set, read_topic_namespace):
        with contextlib.suppress(DocumentError):
            read(data)
