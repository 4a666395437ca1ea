"""Resource properties beyond the conformance table: sizes, prefix clashes, states of records."""

from __future__ import annotations

import pytest

from arborcast.ingest.elements import topics as topic_sets
from arborcast.topic_model.records.control import SubscriptionRecord, SubscriptionSuspended
from arborcast.topic_model.subscriptions import EndpointReference, Subscription, TopicFilter, XPathFilter
from tests.support import oasis
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer


def get(parts: GatewayParts, name: str, path: str = "/wsn/NotificationBroker") -> HttpAnswer:
    return parts.post(soap.envelope(soap.get_property(name)), path)


def document(parts: GatewayParts, path: str = "/wsn/NotificationBroker") -> HttpAnswer:
    return parts.post(soap.envelope(soap.PROPERTY_DOCUMENT), path)


def test_a_topic_set_that_is_too_large(parts: GatewayParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_sets, "_MAX_TOPICS", 2)
    parts.have_topics("a", "b")
    assert get(parts, "wstop:TopicSet").status == 200
    parts.have_topics("c")
    for answer in (get(parts, "wstop:TopicSet"), get(parts, "wsnt:TopicExpression"), document(parts)):
        assert answer.fault == "ResourceUnavailableFault"
        assert "3 topics" in answer.reason
        oasis.validate(answer.body)


def test_namespaces_and_marks_in_the_topic_set(parts: GatewayParts) -> None:
    parts.have_topics("{urn:t}a/b", "{urn:t}a/b/{urn:u}c", "plain")
    answer = document(parts)
    (topics,) = oasis.validate(answer.body).iter("{http://docs.oasis-open.org/wsn/t-1}TopicSet")
    marked = [element.tag for element in topics.iter() if element.get("{http://docs.oasis-open.org/wsn/t-1}topic")]
    assert sorted(map(str, marked)) == ["b", "{urn:u}c"], "the schema allows no root topic in no namespace"
    texts = [element.text for element in answer.root.iter(f"{{{soap.WSNT}}}TopicExpression")]
    assert sorted(filter(None, texts)) == ["plain//.", "tns:a//."]


def test_repeated_properties_are_answered_once() -> None:
    name = "<rp:ResourceProperty>wsnt:FixedTopicSet</rp:ResourceProperty>"
    body = (
        f'<rp:GetMultipleResourceProperties xmlns:rp="{soap.WSRF_RP}">{name * 900}</rp:GetMultipleResourceProperties>'
    )
    (only,) = oasis.validate(GatewayParts().post(soap.envelope(body)).body)
    assert only.text == "false"


def test_the_document_of_a_subscription_is_valid(parts: GatewayParts) -> None:
    # Prefixes that clash with those of the document.
    clash = {"wsnt": "urn:t", "wsnt_": "urn:u", "": "urn:default"}
    subscription = Subscription(
        "s",
        EndpointReference("http://h/?a&b", ('<p xmlns="urn:p">1</p>',), ('<m xmlns="urn:m"/>',)),
        topics=(TopicFilter("urn:d", "wsnt:a<b", "a", clash),),
        content=(XPathFilter("urn:x", "a < 'b&c'", {"p": "urn:p"}),),
        producer=(XPathFilter("urn:x", "true()"),),
        form="raw",
        terminates_ms=None,
    )
    parts.table.apply(SubscriptionRecord(subscription))
    path = "/wsn/subscriptions/s"
    found = oasis.validate(document(parts, path).body)[0]
    assert found.findtext(f"{{{soap.WSNT}}}ConsumerReference/{{{soap.WSA}}}Address") == "http://h/?a&b"
    (expression,) = found.iter(f"{{{soap.WSNT}}}TopicExpression")
    assert (expression.text, expression.nsmap["wsnt"], expression.nsmap[None]) == ("wsnt:a<b", "urn:t", "urn:default")
    assert found.findtext(f".//{{{soap.WSNT}}}MessageContent") == "a < 'b&c'"
    assert found.find(f".//{{{soap.WSNT}}}UseRaw") is not None
    end = get(parts, "rl:TerminationTime", path)
    assert oasis.validate(end.body)[0].get(f"{{{soap.XSI}}}nil") == "true"


def test_the_state_of_a_subscription(parts: GatewayParts) -> None:
    path = "/wsn/subscriptions/s"

    def state() -> tuple[str | None, str | None]:
        # An extension: the standard's schemas do not have it.
        (found,) = get(parts, "p:State", path).root.iter("{urn:arborcast:policy}State")
        return found.text, found.get("Since")

    parts.table.apply(SubscriptionRecord(Subscription("s", EndpointReference("http://h/"))))
    assert state() == ("active", None)
    parts.table.apply(SubscriptionRecord(Subscription("s", EndpointReference("http://h/"), paused=True)))
    assert state() == ("paused", None)
    parts.suspensions.apply(SubscriptionSuspended("s", "refused", 1_000, 2_000))
    assert state() == ("suspended", "1970-01-01T00:00:02Z")
    oasis.validate(document(parts, path).body)
