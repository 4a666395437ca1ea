"""Envelopes, read by an XML parser."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from arborcast.core.security import signatures
from arborcast.core.security.keyring import add_key
from arborcast.core.settings import SecretSettings
from arborcast.dispatch.delivery.credentials import SecretOpener
from arborcast.dispatch.delivery.envelope import NOTIFY_ACTION, Envelope, topic_element
from arborcast.dispatch.delivery.transport.contract import PushRequest
from arborcast.topic_model.expressions import CONCRETE, concrete_topic
from arborcast.topic_model.legacy_content import wrap
from arborcast.topic_model.namespaces import ARBORCAST_DELIVERY
from arborcast.topic_model.records.notifications import Notification, replayed
from arborcast.topic_model.records.peers import decode_push
from arborcast.topic_model.records.results import Promise, read_promise
from arborcast.topic_model.subscriptions import DeliveryPolicy, EndpointReference, Peer, Subscription
from arborcast.topic_model.topics import TopicPath, make_path
from tests.support import make
from tests.support.sealed import KEYS, SECRET_OPENER, protected

SOAP = {"1.1": "http://schemas.xmlsoap.org/soap/envelope/", "1.2": "http://www.w3.org/2003/05/soap-envelope"}
NS = {
    "wsnt": "http://docs.oasis-open.org/wsn/b-2",
    "wsa": "http://www.w3.org/2005/08/addressing",
    "ac": ARBORCAST_DELIVERY,
}
MANAGER = "http://broker/wsn/subscriptions/s?a=1&b=2"
PARAMETERS = ('<r:room xmlns:r="urn:r" r:floor="2">12</r:room>', "<plain>&lt;</plain>")
TRACE, OTHER_TRACE = f"00-{'a' * 32}-{'1' * 16}-01", f"00-{'b' * 32}-{'2' * 16}-01"
NOW_MS = 1_700_000_000_000


def subscription(**changes: Any) -> Subscription:
    values = {"consumer": EndpointReference("http://consumer/?x=1&y=<2>"), "address": MANAGER, **changes}
    return Subscription(id="sub-1", **values)


def notification(name: str = "n1", payload: bytes = b'<p:x xmlns:p="urn:p">1</p:x>', **more: Any) -> Notification:
    return make.notification(name, "{urn:t}a/b", payload, **more)


def pushed(target: Subscription, *notifications: Notification, attempt: int = 1) -> PushRequest:
    return Envelope(target).request(notifications or (notification(),), attempt)


def header_and_body(request: PushRequest) -> list[etree._Element]:
    return list(etree.fromstring(request.body))


def the(element: etree._Element, path: str) -> etree._Element:
    found = element.find(path, NS)
    assert found is not None, path
    return found


@pytest.mark.parametrize(
    ("soap", "media"), [("1.1", "text/xml; charset=utf-8"), ("1.2", "application/soap+xml; charset=utf-8")]
)
def test_notify(soap: str, media: str) -> None:
    producer = b'<wsnt:ProducerReference xmlns:wsnt="http://docs.oasis-open.org/wsn/b-2"><a/></wsnt:ProducerReference>'
    target = subscription(soap=soap)
    request = pushed(target, notification(producer=producer), notification("n<2>", b"<x/>"), attempt=4)
    header, body = header_and_body(request)
    headers = dict(request.headers)

    assert (request.url, headers["Content-Type"]) == (target.consumer.address, media)
    assert body.tag == f"{{{SOAP[soap]}}}Body"
    first, second = body.findall("wsnt:Notify/wsnt:NotificationMessage", NS)
    names = [etree.QName(child).localname for child in first]
    assert names == ["SubscriptionReference", "Topic", "ProducerReference", "Message"], "the schema's order"
    assert [etree.QName(child).localname for child in second] == ["SubscriptionReference", "Topic", "Message"]
    assert first.findtext("wsnt:SubscriptionReference/wsa:Address", namespaces=NS) == MANAGER
    assert first.findtext("wsnt:Message/{urn:p}x", namespaces=NS) == "1"
    assert the(second, "wsnt:Message")[0].tag == "x", "no namespace, as published"
    topic = the(first, "wsnt:Topic")
    assert topic.get("Dialect") == CONCRETE
    namespaces = {prefix: uri for prefix, uri in topic.nsmap.items() if prefix}
    assert concrete_topic(topic.text or "", CONCRETE, namespaces) == "{urn:t}a/b"

    delivery = the(header, "ac:Delivery")
    assert [each.text for each in delivery.findall("ac:Notification", NS)] == ["n1", "n<2>"]
    named = {"Notification-Id": "n1,n<2>", "Attempt": "4", "Subscription": "sub-1"}
    assert {name: headers[f"Arborcast-{name}"] for name in named} == named
    for name in ("Attempt", "Subscription"):
        assert delivery.findtext(f"ac:{name}", namespaces=NS) == named[name]


@pytest.mark.parametrize("form", ["notify", "raw"])
@pytest.mark.parametrize("addressing", [False, True])
@pytest.mark.parametrize("soap", ["1.1", "1.2"])
def test_addressing_and_reference_parameters(soap: str, addressing: bool, form: str) -> None:
    consumer = EndpointReference("http://consumer/", PARAMETERS)
    target = subscription(soap=soap, addressing=addressing, consumer=consumer, form=form)
    request = pushed(target)
    header, body = header_and_body(request)
    assert [child.tag for child in body] == ["{urn:p}x" if form == "raw" else f"{{{NS['wsnt']}}}Notify"]
    assert header.findtext("ac:Delivery/ac:Notification", namespaces=NS) == "n1"
    marked = [block for block in header if block.get(f"{{{NS['wsa']}}}IsReferenceParameter") == "true"]
    assert [(block.tag, block.text) for block in marked] == [("{urn:r}room", "12"), ("plain", "<")]
    assert marked[0].get("{urn:r}floor") == "2"
    assert b"mustUnderstand" not in request.body
    found = {name: header.findtext(f"wsa:{name}", namespaces=NS) for name in ("To", "Action", "MessageID")}
    if addressing:
        assert (found["To"], found["Action"]) == ("http://consumer/", NOTIFY_ACTION)
        assert (found["MessageID"] or "").startswith("urn:uuid:")
    else:
        assert set(found.values()) == {None}
    plain = etree.fromstring(pushed(subscription(soap=soap)).body)
    assert {etree.QName(each).localname for each in plain.iter(f"{{{NS['wsa']}}}*")} == {"Address"}


def test_stored_reference_parameters_replace_no_header() -> None:
    own = (NS["wsa"], "To"), (NS["wsa"], "Action"), (NS["wsa"], "MessageID"), (ARBORCAST_DELIVERY, "Delivery")
    parameters = tuple(f'<x:{name} xmlns:x="{namespace}">other</x:{name}>' for namespace, name in own)
    header, _ = header_and_body(
        pushed(subscription(addressing=True, consumer=EndpointReference("http://consumer/", parameters)))
    )
    assert sorted(block.tag for block in header) == sorted(f"{{{namespace}}}{name}" for namespace, name in own)
    assert "other" not in [block.text for block in header]
    with pytest.raises(etree.XMLSyntaxError):
        Envelope(subscription(consumer=EndpointReference("http://consumer/", ("<a>",))))


def test_message_id_is_equal_on_each_attempt() -> None:
    def message_id(target: Subscription, *messages: Notification, attempt: int = 1) -> str:
        return header_and_body(pushed(target, *messages, attempt=attempt))[0].findtext("wsa:MessageID", "", NS)

    target = subscription(addressing=True)
    other = msgspec.structs.replace(target, id="sub-2")
    again = replayed(notification(), "r", target.id, 99, 7)
    assert message_id(target) == message_id(target, attempt=2)
    ids = {message_id(target), message_id(target, notification(), notification("n2")), message_id(other)}
    assert len({*ids, message_id(target, again)}) == 4, "a replay is no duplicate"


def test_bytes_of_a_legacy_push() -> None:
    request = pushed(subscription(form="legacy"), notification(payload=b" <x>a &amp; b</x>\n"))
    assert request.body == (
        b'<soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/" '
        b'xmlns:org="http://org.apache.servicemix.wsn.push"><soapenv:Header/><soapenv:Body>'
        b"<org:notificationProcess>&lt;x&gt;a &amp; b&lt;/x&gt;</org:notificationProcess>"
        b"</soapenv:Body></soapenv:Envelope>"
    )
    assert dict(request.headers)["Content-Type"] == "text/xml; charset=UTF-8"
    assert dict(request.headers)["Arborcast-Notification-Id"] == "n1"


@pytest.mark.parametrize(
    ("payload", "read"),
    [
        (b"<x><![CDATA[a & b]]></x>", "<x><![CDATA[a & b]]></x>"),
        (b"<x><!-- &amp; --><?p &?>&amp;</x>", "<x><!-- &amp; --><?p &?>&</x>"),
        (wrap(" text &amp; more ", {"p": "urn:p"}), "text & more"),
        (wrap("<topic>t</topic><message>m</message>", {}), "<topic>t</topic><message>m</message>"),
        (wrap("", {}), ""),
    ],
)
def test_legacy_receivers_read_the_content_as_text(payload: bytes, read: str) -> None:
    body = pushed(subscription(form="legacy"), notification(payload=payload)).body
    assert etree.fromstring(body).findtext(".//{*}notificationProcess") == read


# The ends of the ranges of characters in names; generation from the whole expression takes seconds.
_names = st.builds(
    str.__add__,
    st.sampled_from([*"AZ_az\u00c0\u00f6\u00f8\u02ff\u0370\u1fff\u3001\ud7ff\ufffd\U00010000\U000effff"]),
    st.text(st.sampled_from([*"az_-.09\u00b7\u0300\u036f\u203f\u2040\u4e00\U000effff"]), max_size=18),
)
_namespaces = st.sampled_from(["urn:a", "http://example.org/x?a=1&b='2'", "urn:it's"])


@given(st.lists(st.tuples(_namespaces, _names), min_size=1, max_size=5))
def test_any_topic_can_be_read_back_from_its_element(steps: list[tuple[str, str]]) -> None:
    path = make_path(steps)
    element = etree.fromstring(b'<wsnt:Notify xmlns:wsnt="%s">%s</wsnt:Notify>' % (b"urn:w", topic_element(path)))[0]
    assert element.tag == "{urn:w}Topic"
    namespaces = {prefix: uri for prefix, uri in element.nsmap.items() if prefix}
    assert concrete_topic(element.text or "", element.get("Dialect"), namespaces) == path


@pytest.mark.parametrize(("prefixes", "text"), [("tns1", "tns1:RuleEngine/x"), ("on", "on:RuleEngine/x"), ("", None)])
def test_topics_keep_the_prefix_of_the_publisher(prefixes: str, text: str | None) -> None:
    """Home Assistant compares the literal text. Without a published prefix it is the prefix in ONVIF's documents."""
    path = TopicPath("{http://www.onvif.org/ver10/topics}RuleEngine/x")
    request = pushed(subscription(), make.notification("n", path, prefixes=prefixes))
    topic = the(etree.fromstring(request.body), ".//wsnt:Topic")
    assert topic.text == (text or "tns1:RuleEngine/x")
    assert concrete_topic(topic.text, CONCRETE, {prefix or "": uri for prefix, uri in topic.nsmap.items()}) == path


@pytest.mark.parametrize("form", ["raw", "legacy"])
def test_a_replay_keeps_its_id_and_is_labelled(form: str) -> None:
    target = subscription(form=form)
    request = pushed(target, replayed(notification(), "r<1>", target.id, 99, 7))
    headers = dict(request.headers)
    assert (headers["Arborcast-Notification-Id"], headers["Arborcast-Replay"]) == ("n1", "r<1>")
    assert "Arborcast-Replay" not in dict(pushed(target).headers)
    if form != "legacy":
        label = the(header_and_body(request)[0], "ac:Delivery/ac:Notification")
        assert (label.text, label.get("replay")) == ("n1", "r<1>")


def test_each_message_of_a_push_has_its_own_labels() -> None:
    again = replayed(notification("n2"), "r1", "sub-1", 99, 7)
    request = pushed(
        subscription(), notification(traceparent=TRACE), again, notification("n3", traceparent=OTHER_TRACE)
    )
    headers = dict(request.headers)
    assert (headers["Arborcast-Notification-Id"], headers["Arborcast-Replay"]) == ("n1,n2,n3", "-,r1,-")
    assert "traceparent" not in headers, "notifications of several traces"
    labels = etree.fromstring(request.body).findall(".//ac:Notification", NS)
    found = [(label.text, label.get("replay"), label.get("traceparent")) for label in labels]
    assert found == [("n1", None, TRACE), ("n2", "r1", None), ("n3", None, OTHER_TRACE)]


def test_links_push_signed_messagepack() -> None:
    link = Subscription("peer-b", EndpointReference("http://b/federation"), form="peer", peer=Peer("G/a", "G/b"))
    envelope = Envelope(protected(link, (b"s" * 32, None)), SECRET_OPENER, 60.0)
    request = envelope.request([notification("n1"), notification("n2", path=("H/x",))], 2, 1_000.0)
    headers = {name.lower(): value for name, value in request.headers}
    signatures.check([b"s" * 32], headers, request.body, 1_000.0)
    assert headers["content-type"] == "application/vnd.msgpack"
    assert (headers["arborcast-subscription"], headers["arborcast-attempt"]) == ("peer-b", "2")
    assert "soapaction" not in headers
    push = decode_push(request.body)
    assert [(each.id, each.path) for each in push.notifications] == [("n1", ("G/a",)), ("n2", ("H/x", "G/a"))]


def test_to_an_mqtt_topic_only_the_payload_is_sent() -> None:
    address = "mqtt://broker.example:1883/out/%7Btopic%7D?retain"
    envelope = Envelope(subscription(consumer=EndpointReference(address), form="raw"), SECRET_OPENER, callback_s=60.0)
    xml = notification(valid_until_ms=5_000)
    request = envelope.request([xml], 2, push="p1")
    assert request.url == "mqtt://broker.example:1883/out/%7Burn%3At%7Da/b?retain"
    assert request.body == xml.payload
    headers = {
        "Arborcast-Subscription": "sub-1",
        "Arborcast-Notification-Id": "n1",
        "Arborcast-Attempt": "2",
        "Arborcast-Sequence": "1",
        "Arborcast-Topic": "{urn:t}a/b",
    }
    assert dict(request.headers) == headers | {"Content-Type": "application/xml", "Expires-Ms": "5000"}
    assert request.result_by_ms == 0, "a PUBACK announces no later result"

    text = '{"t": "<ü> & \r\n"}'
    loose = notification(payload=wrap(escape(text, {"\r": "&#13;"}), {}))
    request = envelope.request([loose], 2)
    assert (request.body.decode(), dict(request.headers)) == (text, headers), "text as published"


def accepting(
    target: Subscription, opener: SecretOpener | None = SECRET_OPENER, callback_s: float = 60.0
) -> PushRequest:
    messages = [notification("n1"), notification("n2")] if target.form == "notify" else [notification("n1")]
    return Envelope(target, opener, callback_s).request(messages, 1, NOW_MS / 1000, push="p-1")


def managed(
    form: str = "notify", address: str = "https://gw/base/wsn/subscriptions/s%201", **more: Any
) -> Subscription:
    # `form` has a value of DeliveryForm; `more` has fields by name.
    return Subscription("s 1", EndpointReference("http://r/"), address=address, form=form, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("form", "messages"), [("notify", 2), ("raw", 1), ("legacy", 1)])
def test_a_push_has_the_address_for_a_later_result(form: str, messages: int) -> None:
    made = accepting(managed(form))
    headers = dict(made.headers)
    assert headers["Arborcast-Push"] == "p-1"
    base, _, promise = headers["Arborcast-Callback"].rpartition("/")
    assert base == "https://gw/base/results"
    assert read_promise(promise, KEYS) == Promise("s 1", "p-1", NOW_MS, NOW_MS + 60_000, messages)
    assert made.result_by_ms == NOW_MS + 60_000


@pytest.mark.parametrize(
    ("target", "opener", "callback_s"),
    [
        (managed(), SECRET_OPENER, 0.0),
        (managed(), None, 60.0),
        (managed(address=""), SECRET_OPENER, 60.0),
        (managed(policy=DeliveryPolicy(reliability="timely")), SECRET_OPENER, 60.0),
        (managed(address="http://another.broker/subscription?id=1"), SECRET_OPENER, 60.0),
        (managed(), SecretOpener(SecretSettings(key_file="there/is/none")), 60.0),
    ],
    ids=["switched off", "no keys", "no manager", "timely", "foreign manager", "no keys"],
)
def test_no_address_for_a_later_result(target: Subscription, opener: SecretOpener | None, callback_s: float) -> None:
    made = accepting(target, opener, callback_s)
    assert not {"Arborcast-Callback", "Arborcast-Push"} & dict(made.headers).keys()
    assert made.result_by_ms == 0


def test_a_key_file_created_later_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arborcast.core.security.keyring._CHECK_INTERVAL_S", 0.0)
    opener = SecretOpener(SecretSettings(key_file=str(tmp_path / "keys")))
    envelope = Envelope(managed("raw"), opener, 60.0)
    assert envelope.request([notification()], 1, push="p").result_by_ms == 0
    add_key(tmp_path / "keys", "k1")
    made = envelope.request([notification()], 1, push="p")
    promise = dict(made.headers)["Arborcast-Callback"].rpartition("/")[2]
    assert read_promise(promise, opener.keys).push == "p"
