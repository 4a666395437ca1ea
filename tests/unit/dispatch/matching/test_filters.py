"""Content and producer filters as a worker applies them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from arborcast.dispatch.matching import filters
from arborcast.dispatch.matching.filters import Allowance, Conditions, FilterEvaluator, Subject
from arborcast.topic_model.expressions import conditions as expressions
from arborcast.topic_model.expressions.conditions import XPATH_1, Condition, Document, compile_condition, parse_document
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.routing import Found
from arborcast.topic_model.subscriptions import Subscription, XPathFilter
from tests.support.make import notification, subscription

PRODUCER = (
    b'<wsnt:ProducerReference xmlns:wsnt="http://docs.oasis-open.org/wsn/b-2" '
    b'xmlns:wsa="http://www.w3.org/2005/08/addressing"><wsa:Address>http://pump-7/</wsa:Address>'
    b'<wsa:Metadata><site xmlns="urn:p">north</site></wsa:Metadata></wsnt:ProducerReference>'
)


def condition(text: str, **namespaces: str) -> XPathFilter:
    return XPathFilter(XPATH_1, text, namespaces)


def with_filters(*content: XPathFilter, producer: tuple[XPathFilter, ...] = ()) -> Subscription:
    return subscription(content=content, producer=producer)


def subject(payload: bytes = b"<x a='1'/>", producer: bytes = b"", conditions: Conditions | None = None) -> Subject:
    return Subject(conditions or Conditions(), notification(payload=payload, producer=producer))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All documents that are parsed by the test."""
    documents: list[bytes] = []

    def parse(data: bytes) -> Document:
        documents.append(data)
        return parse_document(data)

    monkeypatch.setattr(filters, "parse_document", parse)
    return documents


def test_all_filters_must_match() -> None:
    one, two = condition("@a = 1"), condition("@a = 2")
    assert subject().passes(with_filters(one))
    for each in (with_filters(one, two), with_filters(two, one), with_filters(one, producer=(condition("false()"),))):
        assert not subject().passes(each)


def test_producer_filters() -> None:
    scope = {"wsnt": "http://docs.oasis-open.org/wsn/b-2", "wsa": "http://www.w3.org/2005/08/addressing", "p": "urn:p"}
    north = with_filters(producer=(condition("wsnt:ProducerReference/wsa:Metadata/p:site = 'north'", **scope),))
    address = condition("/wsnt:NotificationProducerRP//wsa:Address = 'http://pump-7/'", **scope)

    assert subject(producer=PRODUCER).passes(north)
    assert subject(producer=PRODUCER).passes(with_filters(producer=(address,)))
    assert not subject().passes(north)
    assert subject().passes(with_filters(producer=(condition("not(*)"),)))


def test_a_payload_is_parsed_once_if_needed(parsed: list[bytes]) -> None:
    judged = subject(b"<x/>", producer=PRODUCER)
    assert parsed == []

    for number in range(5):
        judged.passes(with_filters(condition(f"self::x{number}")))

    assert parsed == [b"<x/>"]


@pytest.mark.parametrize(
    ("payloads", "content"),
    [
        ([b"<x>"], [condition("true()"), condition("1")]),
        ([b"<x><y a='1'/></x>", b"<x/>", b"<x><y a='1'/></x>"], [condition("*[count(@a + 1) > 1]")]),
        ([b"<x/>"], [XPathFilter("urn:later", "true()")]),
    ],
    ids=["unreadable", "unanswerable", "illegal"],
)
def test_conditions_without_an_answer_do_not_match(
    payloads: list[bytes], content: list[XPathFilter], parsed: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    conditions = Conditions()
    for payload in payloads:
        judged = subject(payload, conditions=conditions)
        assert not any(judged.passes(with_filters(each)) for each in content)
    assert caplog.text.count("a filter counts as not matched") == 1
    assert len(parsed) <= len(payloads)


def test_a_condition_that_fails_on_each_document_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(expressions, "BUDGET", 0)
    conditions = Conditions()
    for number in range(1_001):
        judged = subject(b"<x>%s</x>" % (b"." * number), conditions=conditions)
        assert not judged.passes(with_filters(condition("@a = 1")))
    assert not subject(conditions=conditions).passes(with_filters(condition("@b = 1")))
    assert [message.partition(" would")[0] for message in caplog.messages] == [
        "a filter counts as not matched: the condition '@a = 1'",
        "a filter counts as not matched: the condition '@b = 1'",
    ]


def test_conditions_are_compiled_once_and_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def noted(expression: XPathFilter) -> Condition:
        compiled.append(expression.text)
        return compile_condition(expression)

    monkeypatch.setattr(filters, "compile_condition", noted)
    conditions = Conditions(most=30_000)
    for number in range(100):
        for text in ("1", f"{number} = {number}"):
            assert subject(conditions=conditions).passes(with_filters(condition(text)))

    assert len(compiled) == len(set(compiled)) == 101, "used conditions stay"
    assert subject(conditions=conditions).passes(with_filters(condition("0 = 0")))
    assert compiled.count("0 = 0") == 2, "unused conditions are evicted"


def by(owner: str, name: str, *content: XPathFilter, host: str = "h") -> Subscription:
    return subscription(name, url=f"http://{host}/{name}", content=content, owner=owner)


def distinct(number: int) -> XPathFilter:
    return condition(f"//x/@a = {number}")


def evaluator(all_ms: float = 400, owner_ms: float = 100, unjudged: frozenset[str] = frozenset()) -> FilterEvaluator:
    return FilterEvaluator(Conditions(), Allowance(all_ms, owner_ms), unjudged)


LARGE = notification(payload=b"<x a='1'>" + b"<y/>" * 20_000 + b"</x>")


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All conditions that are evaluated by the test."""
    texts: list[str] = []
    holds = Condition.holds

    def counted(self: Condition, document: Document) -> bool:
        texts.append(self.text)
        return holds(self, document)

    monkeypatch.setattr(Condition, "holds", counted)
    return texts


COSTS = compile_condition(distinct(1)).cost(parse_document(LARGE.payload))


def test_cost_of_the_conditions_of_one_owner_is_bounded(evaluated: list[str]) -> None:
    hostile = [by("mallory", f"h{number}", distinct(number)) for number in range(500)]
    others = [by("anna", "cheap", condition("@a = 1")), by("", "plain")]
    of_partition = evaluator()
    most = int(Allowance(400, 100).of_owner(LARGE) / COSTS)
    assert 1 < most < 450

    recipients = of_partition.recipients(LARGE, [*hostile, *others])

    assert {("cheap", True), ("plain", True)} <= {(each.id, judged) for each, judged in recipients}
    assert len(evaluated) == most + 1
    assert {each.id for each, judged in recipients if not judged} == of_partition.costly
    assert len(of_partition.costly) == 500 - most
    assert of_partition.take_costly() == of_partition.costly
    assert of_partition.take_costly() == set(), "each is reported once"
    # After that these are not evaluated.
    evaluated.clear()
    again = of_partition.recipients(LARGE, hostile)
    assert {each.id for each, judged in again if not judged} == of_partition.costly
    assert len(evaluated) == most


def test_the_most_costly_of_many_owners_are_not_evaluated(evaluated: list[str]) -> None:
    hostile = [by(f"m{number // 20}", f"h{number}", distinct(number)) for number in range(2_000)]
    of_partition = evaluator()
    recipients = of_partition.recipients(LARGE, [*hostile, by("anna", "anna", distinct(9_999))])
    assert len(evaluated) == int(Allowance(400, 100).of_all(LARGE) / COSTS)
    assert "anna" not in of_partition.costly
    assert len(recipients) >= len(of_partition.costly) > 0


def test_equal_conditions_cost_once_and_hosts_count_as_owners(evaluated: list[str]) -> None:
    of_partition = evaluator()
    alike = [by("anna", f"s{number}", distinct(1)) for number in range(1_000)]
    assert len(of_partition.recipients(LARGE, alike)) == 1_000
    assert (len(evaluated), of_partition.costly) == (1, set())

    one = [by("", f"a{number}", distinct(number), host="one") for number in range(500)]
    of_partition = evaluator()
    of_partition.recipients(LARGE, [*one, by("", "b", distinct(7_777), host="two")])
    assert 0 < len(of_partition.costly) < 500
    assert "b" not in of_partition.costly


def test_ordinary_conditions_are_all_judged(evaluated: list[str]) -> None:
    many = [by("anna", f"s{number}", condition(f"@a = {number}")) for number in range(300)]
    of_partition = evaluator()
    small = notification(payload=b"<x a='1'>" + b"<y/>" * 100 + b"</x>")
    assert [each.id for each, _ in of_partition.recipients(small, many)] == ["s1"]
    assert (len(evaluated), of_partition.costly) == (300, set())


def test_types_are_compared_before_conditions_without_parsing(parsed: list[bytes]) -> None:
    by_types = {"alarms": ("{urn:plant}alarm",), "both": ("reading", "{urn:plant}alarm"), "all": (), "none": ("x",)}
    subscriptions = [subscription(name, types=types) for name, types in by_types.items()]

    def recipients(message: Notification) -> list[str]:
        return [each.id for each, judged in evaluator().recipients(message, subscriptions) if judged]

    typed = notification(payload=b"<reading/>", type="{urn:plant}alarm")
    assert recipients(typed) == ["alarms", "both", "all"]
    assert recipients(notification(payload=b"<reading/>", type="reading")) == ["both", "all"]
    # Without a declared type: the name of the payload's element, as for events of the engine.
    assert recipients(notification(payload=b"<p:alarm xmlns:p='urn:plant'/>")) == ["alarms", "both", "all"]
    filtered = subscription(content=(condition("true()"),), types=("reading",))
    assert evaluator(unjudged=frozenset({"s"})).recipients(typed, [filtered]) == []
    assert not Subject(Conditions(), typed).passes(filtered)
    assert parsed == []

    # Audit, trace and replay.
    view: Any = SimpleNamespace(of=lambda _: Found([filtered], []))
    for kind, found in (("reading", [filtered]), ("alarm", [])):
        message = notification(payload=b"<reading/>", type=kind)
        assert filters.matching_recipients(view, Conditions(), message).existing == found
