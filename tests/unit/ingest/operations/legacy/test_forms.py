"""The forms in which HPwsn's clients send their messages: each as element and as text, with either namespace."""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from arborcast.topic_model.expressions import SIMPLE
from arborcast.topic_model.topics import TopicPath
from tests.support import legacy_messages as legacy
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer, only_subscription

URL = "http://host:9002/wsn-subscribe"
SLASHED = f"{legacy.WSNT}/"


@dataclass(frozen=True)
class Form:
    """A way to write a message."""

    namespace: str
    element: bool

    def post(self, parts: GatewayParts, message: str) -> str:
        """The string result."""
        answer = self.answer(parts, message)
        assert answer.status == 200, answer.body
        return answer.root.findtext(".//{*}WsnProcessResponse") or ""

    def answer(self, parts: GatewayParts, message: str) -> HttpAnswer:
        message = message.replace(f'"{legacy.WSNT}"', f'"{self.namespace}"')
        escaped = message.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return parts.post(_envelope(message if self.element else escaped), "/wsnprocess/", Content_Type="text/xml")


def _envelope(inside: str) -> bytes:
    return (
        '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body>\n'
        f'<o:WsnProcess xmlns:o="{legacy.SERVICE}">\n {inside}\n</o:WsnProcess></s:Body></s:Envelope>'
    ).encode()


FORMS = [Form(*form) for form in itertools.product([legacy.WSNT, SLASHED], [True, False])]


@pytest.fixture(params=FORMS, ids=lambda form: f"{form.namespace[-4:]}-{'element' if form.element else 'escaped'}")
def form(request: pytest.FixtureRequest) -> Form:
    assert isinstance(request.param, Form)
    return request.param


@pytest.mark.parametrize("name", ["", "\n a subscriber \n"])
def test_the_three_calls(form: Form, name: str) -> None:
    parts = GatewayParts()
    endpoint = legacy.address_in(form.post(parts, legacy.create_pull_point(name)))
    assert endpoint.startswith("http://127.0.0.1:8080/wsn/pullpoints/")
    answer = form.post(parts, legacy.subscribe("\n all:alarm\n", f"\n {URL} ", f" {endpoint}\n"))
    subscription = only_subscription(parts)
    assert legacy.address_in(answer) == subscription.address
    assert (subscription.consumer.address, subscription.form) == (URL, "legacy")
    assert subscription.selector() == "all/alarm//."
    answered = parts.post(legacy.plain_unsubscribe(subscription.address, form.namespace), "/wsnprocess")
    assert answered.status == 200, answered.body
    assert not list(parts.table.subscriptions())


@pytest.mark.parametrize(
    ("content", "payload"),
    [
        ("<level a='1'><!-- c --><![CDATA[<]]></level>", b"<level a='1'><!-- c --><![CDATA[<]]></level>"),
        (" text ", b'<ac:Content xmlns:ac="urn:arborcast:legacy">text</ac:Content>'),
    ],
)
def test_a_message_is_stored_as_it_was_sent(form: Form, content: str, payload: bytes) -> None:
    parts = GatewayParts()
    assert form.post(parts, legacy.notify("\n all : alarm:alarm1 ", content)) == "success!"
    (stored,) = parts.notifications.accepted
    assert (stored.topic, stored.payload) == ("all/alarm/alarm1", payload)


def test_several_messages_in_a_notify(form: Form) -> None:
    parts = GatewayParts()
    both = legacy.notify("a", "<x/>") + legacy.notify("a:b", "<y/>")
    assert form.post(parts, f'<n:Notify xmlns:n="{legacy.WSNT}">{both}</n:Notify>') == "success!"
    assert [(each.topic, each.payload) for each in parts.notifications.accepted] == [("a", b"<x/>"), ("a/b", b"<y/>")]


@pytest.mark.parametrize(
    "inside",
    [
        f"{legacy.create_pull_point()}{legacy.create_pull_point()}",
        f"&lt;x/>{legacy.create_pull_point()}",
        f"{legacy.create_pull_point()}text",
        "<unknown/>",
        "&lt;!DOCTYPE a>&lt;a/>",
        "&lt;a/>text",
        "",
    ],
)
def test_what_is_no_one_message_is_a_fault(inside: str) -> None:
    parts = GatewayParts()
    answer = parts.post(_envelope(inside), "/wsnprocess")
    assert answer.status in (400, 500)
    assert answer.reason
    assert parts.control.records == []


@pytest.mark.parametrize(
    "message",
    [
        legacy.subscribe("all:alarm", ""),
        legacy.subscribe("all:alarm", URL).replace("SubscriberAddress", "Other"),
        legacy.subscribe("all:alarm", "ftp://host/"),
        legacy.subscribe("", URL),
        legacy.subscribe("a b", URL),
        legacy.subscribe("all:alarm", URL).replace("TopicExpression", "Other"),
    ],
)
def test_a_subscribe_with_something_missing_is_refused_and_logged(
    form: Form, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    parts = GatewayParts()
    with caplog.at_level(logging.WARNING):
        assert form.post(parts, message) == "faild"
    assert "refused" in caplog.text
    assert parts.control.records == []


# Plain operations.

OLD_PATHS = ["/wsnprocess", "/WSN/Broker/", "/WSN/CreatePullPoint"]


@pytest.mark.parametrize("namespace", [legacy.WSNT, SLASHED])
@pytest.mark.parametrize("path", OLD_PATHS)
def test_a_plain_subscribe_with_a_subscriber_address_is_pushed_to(path: str, namespace: str) -> None:
    parts = GatewayParts()
    body = soap.envelope(legacy.subscribe("all: alarm", URL).replace(f'"{legacy.WSNT}"', f'"{namespace}"'))
    answer = parts.post(body, path)
    assert answer.status == 200, answer.body
    assert answer.root.find(f".//{{{legacy.WSNT}}}SubscribeResponse") is not None
    subscription = only_subscription(parts)
    assert (subscription.consumer.address, subscription.form, subscription.selector()) == (
        URL,
        "legacy",
        "all/alarm//.",
    )
    assert len(parts.table.match(TopicPath("all/alarm/x"))) == 1
    again = parts.post(body, path)
    assert again.status == 200
    assert subscription.address in again.body.decode()
    assert only_subscription(parts) == subscription


@pytest.mark.parametrize("namespace", [legacy.WSNT, SLASHED])
def test_a_plain_unsubscribe_works_at_the_address_that_a_client_got(namespace: str) -> None:
    parts = GatewayParts()
    parts.post(soap.envelope(legacy.subscribe("all:alarm", URL)))
    address = urlsplit(only_subscription(parts).address).path
    answer = parts.post(soap.envelope(f'<w:Unsubscribe xmlns:w="{namespace}"/>'), address)
    assert answer.status == 200, answer.body
    assert answer.root.find(f".//{{{legacy.WSNT}}}UnsubscribeResponse") is not None
    assert not list(parts.table.subscriptions())


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (legacy.subscribe("all:alarm", ""), "SubscribeCreationFailedFault"),
        (legacy.subscribe("all:alarm", "ftp://host/"), "SubscribeCreationFailedFault"),
        (legacy.subscribe("a b", URL), "InvalidTopicExpressionFault"),
        (
            legacy.subscribe("a", URL).replace("</wsnt:Filter>", "<wsnt:MessageContent/></wsnt:Filter>"),
            "InvalidFilterFault",
        ),
    ],
)
def test_a_plain_subscribe_gets_the_standards_faults(message: str, fault: str) -> None:
    parts = GatewayParts()
    assert parts.post(soap.envelope(message), "/wsnprocess").fault == fault
    assert parts.control.records == []


def _plain_notify(topic: str, dialect: str = f' Dialect="{SIMPLE}"', declared: str = "") -> bytes:
    return soap.envelope(
        f'<w:Notify xmlns:w="{legacy.WSNT}" {declared}><w:NotificationMessage><w:Topic{dialect}>{topic}</w:Topic>'
        "<w:Message><x/></w:Message></w:NotificationMessage></w:Notify>"
    )


@pytest.mark.parametrize("path", OLD_PATHS)
@pytest.mark.parametrize(
    ("topic", "stored"),
    [("all:alarm:alarm1", "all/alarm/alarm1"), ("all:alarm", "all/alarm"), (" all :\nalarm ", "all/alarm"), ("a", "a")],
)
def test_a_plain_notify_may_name_a_colon_path(path: str, topic: str, stored: str) -> None:
    parts = GatewayParts()
    assert parts.post(_plain_notify(topic), path).status == 202
    assert [each.topic for each in parts.notifications.accepted] == [stored]
    # What was understood here is not remembered for others.
    if ":" in topic:
        assert parts.post(_plain_notify(topic)).fault == "InvalidTopicExpressionFault"


def test_a_declared_prefix_and_another_dialect_mean_what_they_say() -> None:
    parts = GatewayParts()
    assert parts.post(_plain_notify("all:alarm", declared='xmlns:all="urn:t"'), "/wsnprocess").status == 202
    assert [each.topic for each in parts.notifications.accepted] == ["{urn:t}alarm"]
    full = ' Dialect="http://docs.oasis-open.org/wsn/t-1/TopicExpression/Full"'
    assert parts.post(_plain_notify("a:b", full), "/wsnprocess").fault == "InvalidTopicExpressionFault"
    declared = _plain_notify("all:a:b", declared='xmlns:all="urn:t"')
    assert parts.post(declared, "/wsnprocess").fault == "InvalidTopicExpressionFault"


def test_a_plain_notify_in_the_other_namespace() -> None:
    parts = GatewayParts()
    payload = b'<x xmlns:n="http://docs.oasis-open.org/wsn/b-2/"><n:Message/></x>'
    producer = (
        '<w:ProducerReference><a:Address xmlns:a="http://www.w3.org/2005/08/addressing">http://p/</a:Address>'
        "</w:ProducerReference>"
    )
    body = soap.envelope(
        f'<w:Notify xmlns:w="{SLASHED}"><w:NotificationMessage><w:Topic Dialect="{SIMPLE}">all:alarm</w:Topic>'
        f"{producer}<w:Message>{payload.decode()}</w:Message></w:NotificationMessage></w:Notify>"
    )
    assert parts.post(body, "/WSN/Broker").status == 202
    (stored,) = parts.notifications.accepted
    assert (stored.topic, stored.payload) == ("all/alarm", payload)
    assert f'xmlns:w="{legacy.WSNT}"'.encode() in stored.producer
    # Only there: to others it is another namespace.
    assert parts.post(body).fault == "ActionNotSupported"
