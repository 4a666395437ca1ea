"""`LegacyClient` and `LegacyFuturesClient`, with the gateway at its old address and recorded texts of other brokers."""

from __future__ import annotations

import html
import io
import time

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
from arborcast.client.testing import MemoryTransport
from arborcast.core.errors import ExpressionError, InfrastructureError
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.packages import read_package
from arborcast.topic_model.topics import TopicPath
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts
from tests.support.make import subscription

SERVICE = "http://org.apache.servicemix.application"
ADDRESS = "http://host:9002/wsn-subscribe?a=1&b=2"
ALARM = "all:alarm:alarm1"


def test_the_life_of_a_subscription(parts: GatewayParts, url: str) -> None:
    with LegacyClient(url) as client:
        assert client.broker == f"{url}/wsnprocess/"
        made = client.subscribe(ALARM, to=ADDRESS, fragment_bytes=3_000)
        (known,) = parts.table.subscriptions()
        assert made == LegacySubscription(ALARM, ADDRESS, known.address)
        assert (known.consumer.address, known.form) == (ADDRESS, "legacy")
        assert (known.selector(), known.policy.fragment_bytes) == ("all/alarm/alarm1//.", 3_000)
        again = client.subscribe("all/alarm/alarm1", to=ADDRESS)
        assert again == LegacySubscription(ALARM, ADDRESS)
        client.unsubscribe(again)
        assert not list(parts.table.subscriptions())
        with pytest.raises(FaultReceived, match="refused the Unsubscribe with the answer 'faild'"):
            client.unsubscribe(made)
        client.unsubscribe(client.subscribe(ALARM, to=ADDRESS).address)
        assert not list(parts.table.subscriptions())


@pytest.mark.parametrize("part_bytes", [3, 1_000])
def test_publishing_in_parts(parts: GatewayParts, url: str, part_bytes: int) -> None:
    content = "<n a='1'>ä &amp; 告 ö</n>"
    with LegacyClient(url) as client:
        client.notify_in_parts(ALARM, f"<?xml version='1.0'?>{content}", part_bytes=part_bytes, alone=False)
        client.notify_in_parts(ALARM, io.BytesIO(content.encode()), part_bytes=part_bytes)
        whole, *alone = parts.notifications.accepted
        assert whole.payload.decode() == content
        fragments = [read_package(each.package) for each in alone]
        assert [each.number for each, _ in fragments] == [*range(max(1, -(-len(content.encode()) // part_bytes)))]
        assert [each.more for each, _ in fragments] == [True] * (len(alone) - 1) + [False]
        assert len({identification for _, identification in fragments}) == 1
        for broken in (b"<n>\xff</n>", "ä".encode()[:1]):
            with pytest.raises(ClientError, match="not UTF-8"):
                client.notify_in_parts(ALARM, io.BytesIO(broken), part_bytes=part_bytes)


def test_refused_and_failed_calls(parts: GatewayParts, url: str) -> None:
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


def old(*answers: str | Exception) -> MemoryTransport:
    """Another broker of the family."""
    made: list[HttpAnswer | Exception] = []
    for each in answers:
        if isinstance(each, str):
            inside = f'<ns:WsnProcessResponse xmlns:ns="{SERVICE}">{each}</ns:WsnProcessResponse>'
            made.append(HttpAnswer(200, {"Content-Type": "text/xml"}, soap.envelope(inside)))
        else:
            made.append(each)
    return MemoryTransport(*made)


REFERENCE = '<w:SubscriptionReference xmlns:w="urn:w"><ns2:Address>http://b/1?a&amp;amp;b</ns2:Address></w:SubscriptionReference>'


def test_start_tags_are_those_of_the_old_system() -> None:
    """The old broker compares text: prefixes, order of attributes and the single blank are part of the protocol."""
    transport = old(html.escape(REFERENCE.replace("&amp;amp;", "&amp;")), "success!")
    with LegacyClient("http://old:9000/wsn-core", transport=transport) as client:
        assert client.subscribe(ALARM, to="http://h/").address == "http://b/1?a&b"
        client.notify(ALARM, "<x/>")
    assert b"<soapenv:Header/><soapenv:Body><org:WsnProcess>&lt;wsnt:Subscribe xmlns:wsnt=" in transport.sent[0].body
    subscribe, notify = (
        etree.fromstring(each.body).findtext(f".//{{{SERVICE}}}WsnProcess") or "" for each in transport.sent
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


def test_publishers_that_start_together_have_no_identification_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_767_225_600.0)
    found: list[str] = []
    for _ in range(2):
        transport = old("success!", "success!")
        with LegacyClient("http://h", transport=transport) as client:
            client.notify(ALARM, "<x/>")
            client.notify_in_parts(ALARM, "<x/>")
        texts = [html.unescape(each.body.decode()) for each in transport.sent]
        found += [text.partition("<Identification>")[2].partition("<")[0] for text in texts]
    assert (len(found), len(set(found))) == (4, 4)


def test_answers_without_an_address_and_refusals() -> None:
    no_address = ["", "success", "<a/>"]
    refused = ["faild", "failed", " failed: no such topic "]
    with LegacyClient("http://old", transport=old(*no_address, *refused)) as client:
        for _ in no_address:
            with pytest.raises(UnreadableAnswer, match="no address"):
                client.create_pull_point()
        for _ in refused:
            with pytest.raises(FaultReceived, match="fail"):
                client.notify("all", "<x/>")


def test_a_message_with_unknown_outcome_is_not_repeated() -> None:
    transport = old(BrokerUnreachable("no answer"), BrokerUnreachable("no connection", sent=False), "success!")
    with LegacyClient("http://old", transport=transport, retries=Retries(first_s=0.0)) as client:
        with pytest.raises(BrokerUnreachable):
            client.notify("all", "<x/>")
        client.notify("all", "<x/>")
    assert len(transport.sent) == 3


@pytest.mark.parametrize(
    ("payload", "seen"),
    [(b"<x>1</x>", b"<x>1</x>"), (b'<ac:Content xmlns:ac="urn:arborcast:legacy">t</ac:Content>', b"t")],
)
def test_a_listener_reads_old_pushes(payload: bytes, seen: bytes) -> None:
    old_subscriber = subscription(url=ADDRESS, form="legacy")
    push = Envelope(old_subscriber).request([Notification("n1", TopicPath("all"), payload, 0)], 1, None)
    (message,) = read_push(push.body, b"text/xml", "n1")
    assert (message.payload, message.topic, message.notification_id) == (seen, None, "n1")
