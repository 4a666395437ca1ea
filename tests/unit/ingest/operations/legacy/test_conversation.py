"""Conversations of old clients with the gateway: all forms of messages, the strings in the answers, and the records.

Messages are elements or text, in either namespace, in a WsnProcess or as plain operations. The pull points that
clients create before a Subscribe are removed.
"""

from __future__ import annotations

import asyncio
import gc
import html
import itertools
import re
import tracemalloc
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest
from lxml import etree

from arborcast.ingest.operations import pull_points
from arborcast.ingest.operations.subscription_manager import end_expired_forever
from arborcast.ingest.settings import GatewaySettings, TopicSettings
from arborcast.topic_model.expressions import SIMPLE
from arborcast.topic_model.records.control import SubscriptionEnded
from arborcast.topic_model.topics import TopicPath
from tests.support import legacy_messages as legacy
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer, live, only_subscription

URL = "http://host:9002/wsn-subscribe"
ALARM = "all:alarm:alarm1"
REPEATED = "Repeated subscriptions"
SLASHED = f"{legacy.WSNT}/"
PATHS = ["/wsnprocess", "/WSN/Broker/", "/WSN/CreatePullPoint"]


@dataclass(frozen=True)
class Form:
    """A form of a message."""

    namespace: str = legacy.WSNT
    element: bool = False

    def post(self, parts: GatewayParts, message: str, path: str = "/wsnprocess/") -> str:
        """The result string."""
        body = wsn_process(self.named(message)) if self.element else legacy.wsn_process(self.named(message))
        return result(parts.post(body, path, Content_Type="text/xml"))

    def named(self, message: str) -> str:
        return message.replace(f'"{legacy.WSNT}"', f'"{self.namespace}"')


ESCAPED = Form()
send = ESCAPED.post


def wsn_process(inside: str) -> bytes:
    """A WsnProcess with child elements."""
    return soap.envelope(f'\n<o:WsnProcess xmlns:o="{legacy.SERVICE}">\n {inside}\n</o:WsnProcess>')


def result(answer: HttpAnswer) -> str:
    assert answer.status == 200, answer.body
    (found,) = answer.root.find("{*}Body")  # type: ignore[misc]
    assert found.tag == f"{{{legacy.SERVICE}}}WsnProcessResponse"
    return found.text or ""


@pytest.fixture(params=itertools.product([legacy.WSNT, SLASHED], [True, False]), ids=str)
def form(request: pytest.FixtureRequest) -> Form:
    return Form(*request.param)


@pytest.fixture(params=[legacy.WSNT, SLASHED])
def namespace(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("name", ["", "\n a subscriber \n"])
def test_subscribe_and_unsubscribe(parts: GatewayParts, form: Form, name: str) -> None:
    endpoint = legacy.address_in(form.post(parts, legacy.create_pull_point(name)))
    assert endpoint.startswith("http://127.0.0.1:8080/wsn/pullpoints/")
    reference = form.post(parts, legacy.subscribe("\n all:alarm\n", f"\n {URL} ", f" {endpoint}\n"))
    assert etree.fromstring(reference).tag == f"{{{legacy.WSNT}}}SubscriptionReference"
    subscription = only_subscription(parts)
    assert legacy.address_in(reference) == subscription.address
    assert (subscription.consumer.address, subscription.form, subscription.terminates_ms) == (URL, "legacy", None)
    assert subscription.selector() == "all/alarm//."
    for topic, matches in (("all/alarm", 1), ("all/alarm/alarm1/x", 1), ("all", 0), ("all/alarm2", 0)):
        assert len(parts.table.match(TopicPath(topic))) == matches, topic
    assert form.post(parts, legacy.subscribe("all:alarm", URL)) == REPEATED
    assert only_subscription(parts) == subscription
    for topic, to in (("all", URL), ("all:alarm", "http://host:9002/other")):
        assert form.post(parts, legacy.unsubscribe(topic, to)) == "faild"
    ends = len(parts.control.records)
    assert form.post(parts, legacy.unsubscribe("all:alarm", URL)) == "success"
    assert type(parts.control.records[ends]) is SubscriptionEnded
    assert live(parts.control.records) == set()
    assert form.post(parts, legacy.unsubscribe("all:alarm", URL)) == "faild"


def test_the_address_can_be_cut_out_of_the_answer(parts: GatewayParts) -> None:
    answer = parts.post(legacy.wsn_process(legacy.subscribe(ALARM, URL)), "/wsnprocess/")
    assert answer.headers[b"content-type"] == b"text/xml; charset=utf-8"
    assert legacy.address_in(html.unescape(answer.body.decode())) == only_subscription(parts).address


def test_an_address_for_registration_only_gets_no_pushes(parts: GatewayParts) -> None:
    dummy = "http://localhost:12345/only/register/use"
    send(parts, legacy.subscribe(ALARM, dummy))
    assert len(list(parts.table.subscriptions())) == 1
    assert parts.table.match(TopicPath("all/alarm/alarm1")) == ()
    assert send(parts, legacy.unsubscribe(ALARM, dummy)) == "success"


def test_a_pull_point_as_the_consumer(parts: GatewayParts) -> None:
    point = etree.fromstring(send(parts, legacy.create_pull_point()))
    address = point[0].text or ""
    identifier = address.removeprefix("http://127.0.0.1:8080/wsn/pullpoints/")
    assert (point.tag, parts.pull_points.exists(identifier)) == (f"{{{legacy.WSNT}}}PullPoint", True)
    assert "ns2:Address" in send(parts, legacy.subscribe(ALARM, address))
    assert (only_subscription(parts).pull_point, only_subscription(parts).form) == (identifier, "notify")
    assert send(parts, legacy.subscribe(ALARM, address)) == REPEATED
    assert send(parts, legacy.unsubscribe(ALARM, address)) == "success"


ELEMENT = "<level a='1'><!-- c --><![CDATA[<]]></level>"


def test_notifications(parts: GatewayParts, form: Form) -> None:
    both = legacy.notify("\n all : alarm:alarm1 ", ELEMENT) + legacy.notify("a", " door &amp; window ")
    assert form.post(parts, f'<n:Notify xmlns:n="{legacy.WSNT}">{both}</n:Notify>') == "success!"
    assert form.post(parts, legacy.notify("a:b", "<y/>")) == "success!"
    assert [(each.topic, each.payload) for each in parts.notifications.accepted] == [
        ("all/alarm/alarm1", ELEMENT.encode()),
        ("a", b'<ac:Content xmlns:ac="urn:arborcast:legacy">door &amp; window</ac:Content>'),
        ("a/b", b"<y/>"),
    ]
    assert "all/alarm/alarm1" in parts.table.topics


@pytest.mark.parametrize(
    "inside",
    [
        *("", "hello", "<a/>", "&lt;!DOCTYPE a>&lt;a/>", "&lt;a/>text"),
        legacy.notify(ALARM, "<x/>", "0-1-0-0"),
        legacy.notify("a b", ""),
        legacy.create_pull_point() * 2,
        f"&lt;x/>{legacy.create_pull_point()}",
        f"{legacy.create_pull_point()}text",
    ],
)
def test_other_contents_than_one_message_are_faults(parts: GatewayParts, inside: str) -> None:
    for body in (wsn_process(inside), legacy.wsn_process(inside)):
        answer = parts.post(body, "/wsnprocess")
        assert answer.status in (400, 500)
        assert answer.reason
    assert (parts.notifications.accepted, parts.control.records) == ([], [])


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
def test_an_incomplete_subscribe_is_refused_and_logged(
    parts: GatewayParts, form: Form, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert form.post(parts, message) == "faild"
    assert "refused" in caplog.text
    assert parts.control.records == []


def test_the_default_topic(parts: GatewayParts) -> None:
    text = re.sub("<wsnt:Topic .*</wsnt:Topic>", "", legacy.notify(ALARM, "<x/>"))
    assert "no Topic" in parts.post(legacy.wsn_process(text), "/wsnprocess").reason
    parts = GatewayParts(topics=TopicSettings(default="all/other"))
    assert send(parts, text) == "success!"
    assert [each.topic for each in parts.notifications.accepted] == ["all/other"]


def test_both_protocols_at_all_addresses(parts: GatewayParts) -> None:
    for path in (*PATHS, "/wsn/NotificationBroker", "/wsn/CreatePullPoint", "/wsn/subscriptions/x"):
        assert send(parts, legacy.notify(ALARM, "<x/>"), path) == "success!"
    assert parts.post(soap.envelope(soap.notify()), "/wsnprocess").status == 202
    assert parts.post(soap.envelope(soap.subscribe()), "/WSN/Broker/").status == 200


def test_a_later_service_namespace_and_a_trace(parts: GatewayParts) -> None:
    trace, service = f"00-{'a' * 32}-{'b' * 16}-01", "http://edu.bupt.wangfu.module.wsnMgr.util.soap"
    answer = parts.post(legacy.wsn_process(legacy.notify(ALARM, "<x/>"), service), "/wsnprocess", traceparent=trace)
    assert answer.root.findtext(f".//{{{service}}}WsnProcessResponse") == "success!"
    assert [each.traceparent for each in parts.notifications.accepted] == [trace]


def delivered(attributes: str) -> str:
    policy = f'<p:Delivery xmlns:p="urn:arborcast:policy" {attributes}/>'
    around = f"<wsnt:SubscriptionPolicy>{policy}</wsnt:SubscriptionPolicy></wsnt:Subscribe>"
    return legacy.subscribe(ALARM, URL).replace("</wsnt:Subscribe>", around)


def test_a_subscriber_may_request_parts(parts: GatewayParts) -> None:
    assert "ns2:Address" in send(parts, delivered('FragmentBytes="3000"'))
    made = only_subscription(parts)
    assert made.policy.fragment_bytes == 3_000
    assert send(parts, delivered('FragmentBytes="3000"')) == REPEATED
    assert len(parts.control.records) == 1, "no change"
    assert send(parts, delivered('FragmentBytes="8000"')) == REPEATED
    assert (only_subscription(parts).id, only_subscription(parts).policy.fragment_bytes) == (made.id, 8_000)
    assert send(parts, legacy.unsubscribe(ALARM, URL)) == "success"
    for attributes in ('FragmentBytes="499"', 'FragmentBytes="many"', 'Order="strict"'):
        answer = parts.post(soap.envelope(delivered(attributes)), "/WSN/Broker")
        assert (answer.status in (400, 500), "p:Delivery" in answer.reason) == (True, True), attributes
    assert not list(parts.table.subscriptions())


@pytest.mark.parametrize(("routing", "split_bytes"), [("", 0), ("split", 3_000), ("everywhere split reliable", 3_000)])
def test_messages_on_topics_with_split_are_split(parts: GatewayParts, routing: str, split_bytes: int) -> None:
    parts.have_topics("all", routing=routing)
    send(parts, legacy.notify("all", "<x/>"))
    (message,) = parts.notifications.accepted
    assert (message.split_bytes, message.package) == (split_bytes, "0-0-1-0")


# Plain operations.


@pytest.mark.parametrize("path", PATHS)
def test_a_plain_subscribe_with_a_subscriber_address(parts: GatewayParts, path: str, namespace: str) -> None:
    body = soap.envelope(Form(namespace).named(legacy.subscribe("all: alarm", URL)))
    for _ in range(2):
        answer = parts.post(body, path)
        assert answer.root.find(f".//{{{legacy.WSNT}}}SubscribeResponse") is not None
        subscription = only_subscription(parts)
        assert subscription.address in answer.body.decode()
    assert (subscription.consumer.address, subscription.form) == (URL, "legacy")
    assert subscription.selector() == "all/alarm//."
    unsubscribe = soap.envelope(f'<w:Unsubscribe xmlns:w="{namespace}"/>')
    ended = parts.post(unsubscribe, urlsplit(subscription.address).path)
    assert ended.root.find(f".//{{{legacy.WSNT}}}UnsubscribeResponse") is not None
    assert not list(parts.table.subscriptions())


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (legacy.subscribe("all:alarm", ""), "SubscribeCreationFailedFault"),
        (legacy.subscribe("all:alarm", "ftp://host/"), "SubscribeCreationFailedFault"),
        (legacy.subscribe("a b", URL), "InvalidTopicExpressionFault"),
        (legacy.subscribe("a", URL).replace("</wsnt:F", "<wsnt:MessageContent/></wsnt:F"), "InvalidFilterFault"),
    ],
)
def test_faults_of_a_plain_subscribe(parts: GatewayParts, message: str, fault: str) -> None:
    assert parts.post(soap.envelope(message), "/wsnprocess").fault == fault
    assert parts.control.records == []


def plain_notify(
    topic: str, dialect: str = SIMPLE, *, declared: str = "", message: str = "<x/>", namespace: str = legacy.WSNT
) -> bytes:
    return soap.envelope(
        f'<w:Notify xmlns:w="{namespace}" {declared}><w:NotificationMessage><w:Topic Dialect="{dialect}">{topic}'
        f"</w:Topic><w:ProducerReference><wsa:Address>http://p/</wsa:Address></w:ProducerReference>"
        f"<w:Message>{message}</w:Message></w:NotificationMessage></w:Notify>"
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("topic", "stored"), [("all:alarm:alarm1", "all/alarm/alarm1"), (" all :\nalarm ", "all/alarm"), ("a", "a")]
)
def test_colon_paths_in_a_plain_notify(parts: GatewayParts, path: str, topic: str, stored: str) -> None:
    assert parts.post(plain_notify(topic), path).status == 202
    assert [each.topic for each in parts.notifications.accepted] == [stored]
    if ":" in topic:
        assert parts.post(plain_notify(topic)).fault == "InvalidTopicExpressionFault", "no cache hit at other addresses"


def test_declared_prefixes_and_other_dialects(parts: GatewayParts) -> None:
    declared, full = 'xmlns:all="urn:t"', "http://docs.oasis-open.org/wsn/t-1/TopicExpression/Full"
    assert parts.post(plain_notify("all:alarm", declared=declared), "/wsnprocess").status == 202
    assert [each.topic for each in parts.notifications.accepted] == ["{urn:t}alarm"]
    for body in (plain_notify("a:b", full), plain_notify("all:a:b", declared=declared)):
        assert parts.post(body, "/wsnprocess").fault == "InvalidTopicExpressionFault"


def test_a_plain_notify_in_the_other_namespace(parts: GatewayParts) -> None:
    payload = f'<x xmlns:n="{SLASHED}"><n:Message/></x>'
    body = plain_notify("all:alarm", message=payload, namespace=SLASHED)
    assert parts.post(body, "/WSN/Broker").status == 202
    (stored,) = parts.notifications.accepted
    assert (stored.topic, stored.payload) == ("all/alarm", payload.encode())
    assert f'xmlns:w="{legacy.WSNT}"'.encode() in stored.producer
    assert parts.post(body).fault == "ActionNotSupported", "a foreign namespace at the standard's address"


# Pull points that clients create before a Subscribe.


def made(parts: GatewayParts, name: str = "") -> str:
    """The address of the pull point that CreatePullPoint returns."""
    return legacy.address_in(send(parts, legacy.create_pull_point(name)))


def subscribe(parts: GatewayParts, endpoint: str, topic: str = ALARM, url: str = URL) -> str:
    return send(parts, legacy.subscribe(topic, url, endpoint))


def unsubscribe(parts: GatewayParts, to: str, path: str = "/wsnprocess") -> HttpAnswer:
    return parts.post(legacy.plain_unsubscribe(to), path)


def expire(parts: GatewayParts) -> None:
    asyncio.run(pull_points.end_unused(parts.gateway))


@pytest.mark.parametrize("name", ["", "a subscriber"])
@pytest.mark.parametrize("ends_by", ["reference", "endpoint", "endpoint itself", "envelope"])
def test_rounds_of_a_client_need_one_pull_point(name: str, ends_by: str) -> None:
    parts = GatewayParts(GatewaySettings(pull_points=1))
    for _ in range(5):
        endpoint, committed = made(parts, name), len(parts.control.records)
        reference = legacy.address_in(subscribe(parts, endpoint))
        # The subscription and the end of its pull point are one change.
        changes = [type(each).__name__ for each in parts.control.records[committed:]]
        assert changes == ["SubscriptionRecord", "PullPointEnded", "Tombstone"]
        assert subscribe(parts, made(parts)) == REPEATED
        assert len(parts.pull_points) == 0
        if ends_by == "envelope":
            assert send(parts, legacy.unsubscribe(ALARM, URL)) == "success"
        else:
            to = reference if ends_by == "reference" else endpoint
            path = urlsplit(endpoint).path if ends_by == "endpoint itself" else "/wsnprocess"
            assert unsubscribe(parts, to, path).status == 200
    assert live(parts.control.records) == set()


def test_plain_calls_leave_no_records(namespace: str) -> None:
    def envelope(message: str) -> bytes:
        return soap.envelope(Form(namespace).named(message))

    parts = GatewayParts(GatewaySettings(pull_points=1))
    for path in ("/WSN/CreatePullPoint", "/wsnprocess", "/WSN/Broker/"):
        endpoint = parts.post(envelope(legacy.create_pull_point("\n a name ")), path).text("Address") or ""
        assert parts.post(envelope(legacy.create_pull_point("a name")), path).text("Address") == endpoint
        assert parts.post(envelope(legacy.subscribe(ALARM, URL, endpoint)), path).status == 200
        assert len(parts.pull_points) == 0
        assert parts.post(legacy.plain_unsubscribe(endpoint, namespace), path).status == 200
    assert live(parts.control.records) == set()


def test_a_name_keeps_its_endpoint(parts: GatewayParts) -> None:
    endpoint = made(parts, "one")
    assert made(parts, " \n one ") == endpoint != made(parts, "two")

    async def concurrently() -> str:
        """The endpoint of the name, requested during the Subscribe that ends it."""
        bodies = (legacy.subscribe(ALARM, URL, endpoint), legacy.create_pull_point("one"))
        requests = [parts.request("POST", "/wsnprocess", legacy.wsn_process(body)) for body in bodies]
        _, answer = await asyncio.gather(*requests)
        return legacy.address_in(answer.root.findtext(".//{*}WsnProcessResponse") or "")

    assert asyncio.run(concurrently()) == endpoint
    assert (len(parts.pull_points), only_subscription(parts).consumer.address) == (1, URL)
    # A restarted client without its state.
    assert made(parts, "one") == endpoint
    assert subscribe(parts, endpoint) == REPEATED
    subscribe(parts, endpoint, "all:other")
    assert len(list(parts.table.subscriptions())) == 2
    assert unsubscribe(parts, endpoint).status == 200
    assert not list(parts.table.subscriptions())
    assert unsubscribe(parts, endpoint).fault == "ResourceUnknownFault"
    again = made(parts, "one")
    assert again != endpoint
    # Another subscriber with the same name: neither can end the other's subscription.
    subscribe(parts, again)
    subscribe(parts, again, url="http://other:9002/")
    answer = unsubscribe(parts, again)
    assert (answer.status, "SubscriptionReference" in answer.reason) == (500, True)
    assert len(list(parts.table.subscriptions())) == 2


def test_names_have_up_to_200_characters(parts: GatewayParts) -> None:
    assert made(parts, "n" * 200)
    for body, path in (
        (legacy.wsn_process(legacy.create_pull_point("n" * 201)), "/wsnprocess"),
        (soap.envelope(legacy.create_pull_point("n" * 201)), "/WSN/CreatePullPoint"),
    ):
        answer = parts.post(body, path)
        assert (answer.fault, "200" in answer.reason) == ("UnableToCreatePullPointFault", True)


def test_unused_pull_points_expire() -> None:
    parts = GatewayParts(GatewaySettings(endpoint_idle_s=60))
    endpoint, named = made(parts), made(parts, "named")
    parts.later(seconds=59)
    expire(parts)
    assert made(parts, "named") == named  # a use
    parts.later(seconds=1)
    expire(parts)
    assert [parts.pull_points.exists(each.rpartition("/")[2]) for each in (endpoint, named)] == [False, True]
    parts.later(seconds=60)

    async def until_there_is_none() -> None:
        duty = asyncio.create_task(end_expired_forever(parts.gateway))
        while len(parts.pull_points):
            await asyncio.sleep(0)
        duty.cancel()

    asyncio.run(until_there_is_none())
    assert live(parts.control.records) == set()
    # A slow client: the endpoint continues as that of its subscription.
    subscribe(parts, endpoint)
    assert unsubscribe(parts, endpoint).status == 200


def test_used_and_standard_pull_points_do_not_expire(parts: GatewayParts) -> None:
    def get_messages(address: str) -> int:
        return parts.post(soap.envelope("<wsnt:GetMessages/>"), urlsplit(address).path).status

    fetched, filled, of_an_old_one, locked = (made(parts) for _ in range(4))
    assert get_messages(fetched) == 200
    parts.post(soap.envelope(soap.subscribe(filled)))
    subscribe(parts, of_an_old_one, url=of_an_old_one)
    assert {f"{each.pull_point}" for each in parts.table.subscriptions()} == {
        each.rpartition("/")[2] for each in (filled, of_an_old_one)
    }
    standard = parts.post(soap.envelope(legacy.create_pull_point()), "/wsn/CreatePullPoint").text("Address") or ""
    committed = len(parts.control.records)
    parts.later(days=1)

    async def expire_while_locked() -> None:
        async with parts.gateway.locks.hold(("pull point", locked.rpartition("/")[2])):
            await pull_points.end_unused(parts.gateway)

    asyncio.run(expire_while_locked())
    assert [get_messages(each) for each in (fetched, filled, of_an_old_one, standard)] == [200] * 4
    assert len(parts.control.records) == committed
    subscribe(parts, fetched)
    assert len(parts.pull_points) == 5, "Subscribe does not end it"


@pytest.mark.long
def test_memory_after_many_rounds() -> None:
    parts = GatewayParts(GatewaySettings(pull_points=3))

    async def call(message: str) -> str:
        answer = await parts.request("POST", "/wsnprocess/", legacy.wsn_process(message))
        return legacy.address_in(answer.root.findtext(".//{*}WsnProcessResponse") or "")

    async def rounds(count: int) -> None:
        for number in range(count):
            endpoint = await call(legacy.create_pull_point("" if number % 2 else f"name {number}"))
            await call(legacy.subscribe(ALARM, URL, endpoint))
            ended = await parts.request("POST", "/wsnprocess/", legacy.plain_unsubscribe(endpoint))
            assert ended.status == 200
            parts.control.records.clear()  # the log is a list
        gc.collect()

    asyncio.run(rounds(500))
    tracemalloc.start()
    asyncio.run(rounds(500))
    before = tracemalloc.get_traced_memory()[0]
    asyncio.run(rounds(5_000))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(parts.pull_points) == len(parts.pull_points.endpoints) == len(parts.gateway.locks._locks) == 0
    assert not list(parts.table.subscriptions())
    assert not any(vars(parts.pull_points.endpoints).values())
    assert grown < 50_000, "ten bytes per round"
