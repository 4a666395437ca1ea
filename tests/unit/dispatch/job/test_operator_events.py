from __future__ import annotations

from typing import get_args

from lxml import etree

from arborcast.dispatch.job.operator_events import TOPICS, payload
from arborcast.dispatch.redelivery.events import NAMESPACE, EventKind, OperatorEvent
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.topics import SYSTEM


def test_every_kind_has_a_topic_below_the_systems() -> None:
    assert set(TOPICS) == set(get_args(EventKind))
    assert len(set(TOPICS.values())) == len(TOPICS)
    assert all(parse_normal(f"{SYSTEM}//.").matches(path) for path in TOPICS.values())


def test_message_holds_what_applies() -> None:
    event = etree.fromstring(payload(OperatorEvent("breaker-opened", 1234, "http://e/?a=1&b=<2>", detail="503")))

    assert event.tag == f"{{{NAMESPACE}}}Event"
    assert dict(event.attrib.items()) == {"kind": "breaker-opened", "at": "1234"}
    assert [(etree.QName(child).localname, child.text) for child in event] == [
        ("Endpoint", "http://e/?a=1&b=<2>"),
        ("Detail", "503"),
    ]


def test_facts_of_one_kind_are_elements_of_their_own() -> None:
    facts = (("Identification", "me:1"), ("Had", "0 2"), ("Missing", ""))
    event = etree.fromstring(payload(OperatorEvent("fragments-incomplete", 9, topic="a/b", facts=facts)))

    children = [(etree.QName(child).localname, child.text) for child in event]
    assert children == [("Topic", "a/b"), ("Identification", "me:1"), ("Had", "0 2")]
