"""Whole conversations of an old client with the gateway: the strings that it looks for, and what is stored."""

from __future__ import annotations

import html
import re

import pytest
from lxml import etree

from arborcast.ingest.settings import TopicSettings
from arborcast.topic_model.records.control import SubscriptionEnded, TopicPolicy, TopicRecord
from arborcast.topic_model.topics import TopicPath
from tests.support import legacy_messages as legacy
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer, live

ADDRESS = "http://host:9002/wsn-subscribe"
ALARM = "all:alarm:alarm1"
REPEATED = "Repeated subscriptions"


def ask(parts: GatewayParts, text: str, path: str = "/wsnprocess/") -> HttpAnswer:
    return parts.post(legacy.wsn_process(text), path, Content_Type="text/xml")


def reply(answer: HttpAnswer) -> str:
    """The string result."""
    assert answer.status == 200, answer.body
    (result,) = answer.root.find("{*}Body")  # type: ignore[misc]
    assert result.tag == f"{{{legacy.SERVICE}}}WsnProcessResponse"
    return result.text or ""


def test_a_subscriber_comes_and_goes() -> None:
    parts = GatewayParts()
    answer = ask(parts, legacy.subscribe(ALARM, ADDRESS))
    assert answer.headers[b"content-type"] == b"text/xml; charset=utf-8"
    # What the clients do: unescape the whole answer and cut.
    unescaped = html.unescape(answer.body.decode())
    address = unescaped.split("<ns2:Address>")[1].split("</ns2:Address>")[0]
    (subscription,) = parts.table.subscriptions()
    assert address == subscription.address
    assert etree.fromstring(reply(answer)).tag == f"{{{legacy.WSNT}}}SubscriptionReference"
    assert subscription.consumer.address == ADDRESS
    assert subscription.form == "legacy"
    assert subscription.terminates_ms is None

    assert reply(ask(parts, legacy.subscribe(ALARM, ADDRESS))) == "Repeated subscriptions"
    assert list(parts.table.subscriptions()) == [subscription]

    assert reply(ask(parts, legacy.unsubscribe("all:alarm", ADDRESS))) == "faild"
    assert reply(ask(parts, legacy.unsubscribe(ALARM, "http://host:9002/other"))) == "faild"
    assert reply(ask(parts, legacy.unsubscribe(ALARM, ADDRESS))) == "success"
    assert type(parts.control.records[1]) is SubscriptionEnded
    assert live(parts.control.records) == set()
    assert not list(parts.table.subscriptions())
    assert reply(ask(parts, legacy.unsubscribe(ALARM, ADDRESS))) == "faild"


def test_every_subscription_is_one_to_a_subtree() -> None:
    parts = GatewayParts()
    ask(parts, legacy.subscribe("all:alarm", ADDRESS))
    (subscription,) = parts.table.subscriptions()
    for topic, matches in (("all/alarm", 1), ("all/alarm/alarm1/x", 1), ("all", 0), ("all/alarm2", 0)):
        assert len(parts.table.match(TopicPath(topic))) == matches, topic
    assert subscription.selector() == "all/alarm//."


def test_the_address_given_for_registration_only_is_never_pushed_to() -> None:
    parts = GatewayParts()
    dummy = "http://localhost:12345/only/register/use"
    assert "ns2:Address" in reply(ask(parts, legacy.subscribe(ALARM, dummy)))
    assert len(list(parts.table.subscriptions())) == 1
    assert parts.table.match(TopicPath("all/alarm/alarm1")) == ()
    assert reply(ask(parts, legacy.unsubscribe(ALARM, dummy))) == "success"


def test_a_pull_point_can_be_made_and_subscribed() -> None:
    parts = GatewayParts()
    point = etree.fromstring(reply(ask(parts, legacy.create_pull_point())))
    assert point.tag == f"{{{legacy.WSNT}}}PullPoint"
    address = point[0].text or ""
    identifier = address.removeprefix("http://127.0.0.1:8080/wsn/pullpoints/")
    assert parts.pull_points.get(identifier) is not None
    assert "ns2:Address" in reply(ask(parts, legacy.subscribe(ALARM, address)))
    (subscription,) = parts.table.subscriptions()
    assert (subscription.pull_point, subscription.form) == (identifier, "notify")
    assert reply(ask(parts, legacy.subscribe(ALARM, address))) == "Repeated subscriptions"
    assert reply(ask(parts, legacy.unsubscribe(ALARM, address))) == "success"


def test_notifications_are_stored_like_any_other() -> None:
    parts = GatewayParts()
    assert reply(ask(parts, legacy.notify(ALARM, "<level>3</level>"))) == "success!"
    assert reply(ask(parts, legacy.notify(ALARM, "door & window"))) == "success!"
    first, second = parts.notifications.accepted
    assert first.topic == second.topic == "all/alarm/alarm1"
    assert first.payload == b"<level>3</level>"
    content = etree.fromstring(second.payload)
    assert (content.tag, content.text) == ("{urn:arborcast:legacy}Content", "door & window")
    assert "all/alarm/alarm1" in parts.table.topics


@pytest.mark.parametrize(
    "text", ["", "hello", "<a/>", legacy.notify(ALARM, "<x/>", "0-1-0-0"), legacy.notify("a b", "")]
)
def test_what_must_not_pass_for_success_is_a_fault(text: str) -> None:
    parts = GatewayParts()
    answer = ask(parts, text)
    assert answer.status in (400, 500)
    assert answer.reason
    assert parts.notifications.accepted == []
    assert parts.control.records == []


def test_a_message_without_topic_is_on_the_default_one_or_refused() -> None:
    text = re.sub("<wsnt:Topic .*</wsnt:Topic>", "", legacy.notify(ALARM, "<x/>"))
    assert "no Topic" in ask(GatewayParts(), text).reason
    parts = GatewayParts(topics=TopicSettings(default="all/other"))
    assert reply(ask(parts, text)) == "success!"
    assert [each.topic for each in parts.notifications.accepted] == ["all/other"]


@pytest.mark.parametrize(
    "path",
    ["/wsnprocess", "/wsn/NotificationBroker", "/wsn/CreatePullPoint", "/WSN/Broker/", "/wsn/subscriptions/x"],
)
def test_it_is_taken_at_any_address_of_ours(path: str) -> None:
    assert reply(ask(GatewayParts(), legacy.notify(ALARM, "<x/>"), path)) == "success!"


def test_later_relatives_standard_operations_and_traces_at_the_old_address() -> None:
    parts, trace = GatewayParts(), f"00-{'a' * 32}-{'b' * 16}-01"
    service = "http://edu.bupt.wangfu.module.wsnMgr.util.soap"
    answer = parts.post(legacy.wsn_process(legacy.notify(ALARM, "<x/>"), service), "/wsnprocess", traceparent=trace)
    assert answer.root.findtext(f".//{{{service}}}WsnProcessResponse") == "success!"
    assert [each.traceparent for each in parts.notifications.accepted] == [trace]
    assert parts.post(soap.envelope(soap.notify()), "/wsnprocess").status == 202
    assert parts.post(soap.envelope(soap.subscribe()), "/WSN/Broker/").status == 200


def in_parts_of(text: str, attributes: str) -> str:
    policy = f'<p:Delivery xmlns:p="urn:arborcast:policy" {attributes}/>'
    around = f"<wsnt:SubscriptionPolicy>{policy}</wsnt:SubscriptionPolicy></wsnt:Subscribe>"
    return text.replace("</wsnt:Subscribe>", around)


def test_an_old_subscriber_may_ask_for_parts_and_is_the_same_one_still() -> None:
    parts = GatewayParts()
    ask(parts, in_parts_of(legacy.subscribe(ALARM, ADDRESS), 'FragmentBytes="3000"'))
    (made,) = parts.table.subscriptions()
    assert made.policy.fragment_bytes == 3_000
    assert reply(ask(parts, in_parts_of(legacy.subscribe(ALARM, ADDRESS), 'FragmentBytes="3000"'))) == REPEATED
    assert len(parts.control.records) == 1, "nothing has changed"
    assert reply(ask(parts, in_parts_of(legacy.subscribe(ALARM, ADDRESS), 'FragmentBytes="8000"'))) == REPEATED
    (changed,) = parts.table.subscriptions()
    assert (changed.id, changed.policy.fragment_bytes) == (made.id, 8_000)
    assert reply(ask(parts, legacy.unsubscribe(ALARM, ADDRESS))) == "success"


@pytest.mark.parametrize("attributes", ['FragmentBytes="499"', 'FragmentBytes="many"', 'Order="strict"'])
def test_nothing_else_is_asked_for_in_the_older_form(attributes: str) -> None:
    parts = GatewayParts()
    answer = parts.post(soap.envelope(in_parts_of(legacy.subscribe(ALARM, ADDRESS), attributes)), "/WSN/Broker")
    assert answer.status in (400, 500)
    assert "p:Delivery" in answer.reason
    assert not list(parts.table.subscriptions())


@pytest.mark.parametrize(("routing", "split_bytes"), [("", 0), ("split", 3_000), ("everywhere split reliable", 3_000)])
def test_topics_that_say_split_have_their_messages_split(routing: str, split_bytes: int) -> None:
    parts = GatewayParts()
    parts.table.apply(TopicRecord(TopicPath("all"), policy=TopicPolicy(routing=routing)), 0)
    ask(parts, legacy.notify("all", "<x/>"))
    (message,) = parts.notifications.accepted
    assert (message.split_bytes, message.package) == (split_bytes, "0-0-1-0")
