"""`LegacyClient`, `LegacyFuturesClient`: against our gateway at its old address, and against the words of others."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping

import pytest
from lxml import etree

from arborcast.client import (
    BrokerUnavailable,
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    FaultReceived,
    HttpAnswer,
    LegacyClient,
    LegacyFuturesClient,
    LegacySubscription,
    Retries,
    UnreadableAnswer,
)
from arborcast.client.listener import read_push
from arborcast.core.errors import ExpressionError, InfrastructureError
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.packages import read_package
from arborcast.topic_model.topics import TopicPath
from tests.support.gateway_parts import GatewayParts

SERVICE = "http://org.apache.servicemix.application"
ADDRESS = "http://host:9002/wsn-subscribe?a=1&b=2"
ALARM = "all:alarm:alarm1"


def test_a_subscriber_comes_and_goes(parts: GatewayParts, url: str) -> None:
    with LegacyClient(url) as client:
        assert client.broker == f"{url}/wsnprocess/"
        made = client.subscribe(ALARM, to=ADDRESS)
        (subscription,) = parts.table.subscriptions()
        assert made == LegacySubscription(ALARM, ADDRESS, subscription.address)
        assert (subscription.consumer.address, subscription.form) == (ADDRESS, "legacy")
        assert subscription.selector() == "all/alarm/alarm1//."
        again = client.subscribe("all/alarm/alarm1", to=ADDRESS)
        assert again == LegacySubscription(ALARM, ADDRESS)
        client.unsubscribe(again)
        assert not list(parts.table.subscriptions())
        with pytest.raises(FaultReceived, match="refused the Unsubscribe with the answer 'faild'"):
            client.unsubscribe(made)
        client.unsubscribe(client.subscribe(ALARM, to=ADDRESS).address)
        assert not list(parts.table.subscriptions())


@pytest.mark.parametrize("part_bytes", [3, 7, 1_000])
def test_what_is_published_in_parts_is_put_together(parts: GatewayParts, url: str, part_bytes: int) -> None:
    content = "<n a='1'>ä &amp; 告 ö</n>"
    with LegacyClient(url) as client:
        client.notify_in_parts(ALARM, f"<?xml version='1.0'?>{content}", part_bytes=part_bytes, alone=False)
        client.notify_in_parts(ALARM, io.BytesIO(content.encode()), part_bytes=part_bytes)
        whole, *alone = parts.notifications.accepted
        assert whole.payload.decode() == content
        assert len(alone) == max(1, -(-len(content.encode()) // part_bytes))
        fragments = [read_package(each.package) for each in alone]
        assert [each.number for each, _ in fragments] == [*range(len(alone))]
        assert [each.more for each, _ in fragments] == [True] * (len(alone) - 1) + [False]
        assert len({identification for _, identification in fragments}) == 1
        with pytest.raises(ClientError, match="not UTF-8"):
            client.notify_in_parts(ALARM, io.BytesIO(b"<n>\xff</n>"), part_bytes=part_bytes)
        with pytest.raises(ClientError, match="not UTF-8"):
            client.notify_in_parts(ALARM, io.BytesIO("ä".encode()[:1]), part_bytes=part_bytes)


def test_an_old_subscriber_asks_for_parts(parts: GatewayParts, url: str) -> None:
    with LegacyClient(url) as client:
        client.subscribe(ALARM, to=ADDRESS, fragment_bytes=3_000)
    (subscription,) = parts.table.subscriptions()
    assert subscription.policy.fragment_bytes == 3_000


def test_what_is_wrong_is_said(parts: GatewayParts, url: str) -> None:
    once = Retries(attempts=1)
    with LegacyClient(url, retries=once) as client, LegacyFuturesClient(url, retries=once) as futures:
        with pytest.raises(FaultReceived, match="refused the Subscribe with the answer 'faild'"):
            client.subscribe(ALARM, to="nowhere")
        for notify in (client.notify, futures.notify):
            with pytest.raises(ExpressionError):
                notify("all:*", "<n/>")
            with pytest.raises(ClientError, match="in a namespace"):
                notify("{urn:a}all", "<n/>")
        with pytest.raises(ClientError, match="not text in UTF-8"):
            client.notify("all", b"\xff")
        assert isinstance(futures.subscribe(ALARM, to="nowhere").exception(30), FaultReceived)
        parts.notifications.error = InfrastructureError("no broker", retry_after=7)
        with pytest.raises(BrokerUnavailable):
            client.notify("all", "<n/>")
        assert isinstance(futures.notify("all", "<n/>").exception(30), BrokerUnavailable)
    with pytest.raises(ClientClosed):
        futures.notify("all", "<n/>")


class Old:
    """Another broker of the family."""

    def __init__(self, *answers: str | Exception) -> None:
        self._answers = list(answers)
        self.sent: list[str] = []

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        self.sent.append(body.decode())
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        inside = f'<ns:WsnProcessResponse xmlns:ns="{SERVICE}">{answer}</ns:WsnProcessResponse>'
        envelope = (
            f'<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body>{inside}</s:Body></s:Envelope>'
        )
        return HttpAnswer(200, {"Content-Type": "text/xml"}, envelope.encode())


REFERENCE = '<w:SubscriptionReference xmlns:w="urn:w"><ns2:Address>http://b/1?a&amp;amp;b</ns2:Address></w:SubscriptionReference>'


def test_start_tags_are_those_that_the_old_system_looks_for() -> None:
    """Its broker compares text: prefixes, order of attributes and the one blank are part of the protocol."""
    old = Old(html.escape(REFERENCE.replace("&amp;amp;", "&amp;")), "success!")
    with LegacyClient("http://old:9000/wsn-core", transport=old) as client:
        assert client.subscribe(ALARM, to="http://h/").address == "http://b/1?a&b"
        client.notify(ALARM, "<x/>")
    assert "<soapenv:Header/><soapenv:Body><org:WsnProcess>&lt;wsnt:Subscribe xmlns:wsnt=" in old.sent[0]
    subscribe, notify = (
        etree.fromstring(each.encode()).findtext(f".//{{{SERVICE}}}WsnProcess") or "" for each in old.sent
    )
    simple = "http://docs.oasis-open.org/wsn/t-1/TopicExpression/Simple"
    assert subscribe == (
        '<wsnt:Subscribe xmlns:wsnt="http://docs.oasis-open.org/wsn/b-2" '
        'xmlns:wsa="http://www.w3.org/2005/08/addressing"><wsnt:ConsumerReference> '
        "<wsa:Address>endpoint:null</wsa:Address></wsnt:ConsumerReference><wsnt:Filter>"
        f'<wsnt:TopicExpression Dialect="{simple}">all:alarm:alarm1</wsnt:TopicExpression></wsnt:Filter>'
        "<wsnt:SubscriberAddress>http://h/</wsnt:SubscriberAddress></wsnt:Subscribe>"
    )
    assert f'<wsnt:Topic Dialect="{simple}">all:alarm:alarm1</wsnt:Topic><wsnt:Package><Identification>' in notify
    assert "</Identification><Fragment>0-0-1-0</Fragment></wsnt:Package><wsnt:Message><x/></wsnt:Message>" in notify


def test_an_answer_without_the_address_and_a_refusal_in_any_spelling_are_errors() -> None:
    for answer in ("", "success", "<a/>"):
        with (
            LegacyClient("http://old", transport=Old(answer)) as client,
            pytest.raises(UnreadableAnswer, match="no address"),
        ):
            client.create_pull_point()
    for word in ("faild", "failed", " failed: no such topic "):
        with LegacyClient("http://old", transport=Old(word)) as client, pytest.raises(FaultReceived, match="fail"):
            client.notify("all", "<x/>")


def test_what_may_have_arrived_is_not_published_again() -> None:
    old = Old(BrokerUnreachable("no answer"), BrokerUnreachable("no connection", sent=False), "success!")
    with LegacyClient("http://old", transport=old, retries=Retries(first_s=0.0)) as client:
        with pytest.raises(BrokerUnreachable):
            client.notify("all", "<x/>")
        client.notify("all", "<x/>")
    assert len(old.sent) == 3


@pytest.mark.parametrize(
    ("payload", "seen"),
    [(b"<x>1</x>", b"<x>1</x>"), (b'<ac:Content xmlns:ac="urn:arborcast:legacy">t</ac:Content>', b"t")],
)
def test_a_listener_reads_old_pushes(parts: GatewayParts, url: str, payload: bytes, seen: bytes) -> None:
    with LegacyClient(url) as client:
        client.subscribe(ALARM, to=ADDRESS)
    (subscription,) = parts.table.subscriptions()
    push = Envelope(subscription, None).request([Notification("n1", TopicPath("all"), payload, 0)], 1, None)
    (message,) = read_push(push.body, b"text/xml", "n1")
    assert (message.payload, message.topic, message.notification_id) == (seen, None, "n1")
