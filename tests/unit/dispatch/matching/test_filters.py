"""Content and producer filters as a worker applies them."""

from __future__ import annotations

import pytest

from dispatch.matching import filters
from dispatch.matching.filters import Conditions, Subject
from topic_model.conditions import XPATH_1, Condition, Document, compile_condition, parse_document
from topic_model.notifications import Notification
from topic_model.subscriptions import EndpointReference, Subscription, XPathFilter
from topic_model.topics import TopicPath

PRODUCER = (
    b'<wsnt:ProducerReference xmlns:wsnt="http://docs.oasis-open.org/wsn/b-2" '
    b'xmlns:wsa="http://www.w3.org/2005/08/addressing"><wsa:Address>http://pump-7/</wsa:Address>'
    b'<wsa:Metadata><site xmlns="urn:p">north</site></wsa:Metadata></wsnt:ProducerReference>'
)


def condition(text: str, **namespaces: str) -> XPathFilter:
    return XPathFilter(XPATH_1, text, namespaces)


def subscription(*content: XPathFilter, producer: tuple[XPathFilter, ...] = ()) -> Subscription:
    return Subscription("s", EndpointReference("http://s/"), content=content, producer=producer)


def subject(payload: bytes = b"<x a='1'/>", producer: bytes = b"", conditions: Conditions | None = None) -> Subject:
    return Subject(conditions or Conditions(), Notification("n", TopicPath("a"), payload, 1, producer))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every document that is parsed from now on."""
    documents: list[bytes] = []

    def parse(data: bytes) -> Document:
        documents.append(data)
        return parse_document(data)

    monkeypatch.setattr(filters, "parse_document", parse)
    return documents


def test_all_filters_must_be_fulfilled() -> None:
    one, two = condition("@a = 1"), condition("@a = 2")

    assert subject().passes(subscription(one))
    assert not subject().passes(subscription(one, two))
    assert not subject().passes(subscription(two, one))
    assert not subject().passes(subscription(one, producer=(condition("false()"),)))


def test_producer_filter_sees_what_the_publisher_said_of_itself() -> None:
    scope = {
        "wsnt": "http://docs.oasis-open.org/wsn/b-2",
        "wsa": "http://www.w3.org/2005/08/addressing",
        "p": "urn:p",
    }
    north = condition("wsnt:ProducerReference/wsa:Metadata/p:site = 'north'", **scope)

    assert subject(producer=PRODUCER).passes(subscription(producer=(north,)))
    assert subject(producer=PRODUCER).passes(
        subscription(producer=(condition("/wsnt:NotificationProducerRP//wsa:Address = 'http://pump-7/'", **scope),))
    )
    assert not subject().passes(subscription(producer=(north,)))
    assert subject().passes(subscription(producer=(condition("not(*)"),)))


def test_same_text_under_other_declarations_is_another_condition() -> None:
    both = subject(b'<x xmlns:q="urn:q"><q:a/></x>')

    assert both.passes(subscription(condition("p:a", p="urn:q")))
    assert not both.passes(subscription(condition("p:a", p="urn:other")))


def test_payload_is_parsed_once_and_only_when_it_is_looked_at(parsed: list[bytes]) -> None:
    asked = subject(b"<x/>", producer=PRODUCER)
    assert parsed == []

    for number in range(5):
        asked.passes(subscription(condition(f"self::x{number}")))

    assert parsed == [b"<x/>"]


def test_unreadable_payload_matches_nothing_and_is_counted_once_per_notification(parsed: list[bytes]) -> None:
    conditions = Conditions()
    asked = subject(b"<x>", conditions=conditions)

    assert not asked.passes(subscription(condition("true()")))
    assert not asked.passes(subscription(condition("1")))
    assert len(parsed) == 1
    assert conditions.unanswered == {"unreadable": 1}


def test_condition_without_an_answer_does_not_match_and_is_counted() -> None:
    conditions = Conditions()
    strange = subscription(condition("*[count(@a + 1) > 1]"))

    assert not subject(b"<x><y a='1'/></x>", conditions=conditions).passes(strange)
    assert not subject(b"<x/>", conditions=conditions).passes(strange)
    assert conditions.unanswered == {"unanswerable": 1}


def test_condition_that_cannot_be_compiled_does_not_match() -> None:
    conditions = Conditions()

    assert not subject(conditions=conditions).passes(subscription(XPathFilter("urn:later", "true()")))
    assert conditions.unanswered == {"illegal": 1}


def test_conditions_are_compiled_once_and_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def noted(expression: XPathFilter) -> Condition:
        compiled.append(expression.text)
        return compile_condition(expression)

    monkeypatch.setattr(filters, "compile_condition", noted)
    conditions = Conditions(most=30_000)
    for number in range(100):
        for text in ("1", f"{number} = {number}"):
            assert subject(conditions=conditions).passes(subscription(condition(text)))

    assert len(compiled) == len(set(compiled)) == 101, "what is used stays"
    assert subject(conditions=conditions).passes(subscription(condition("0 = 0")))
    assert compiled.count("0 = 0") == 2, "what is not used has gone for others"
