"""Envelopes as a receiver's XML parser sees them."""

from __future__ import annotations

from xml.sax.saxutils import escape

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from arborcast.core.security import signatures
from arborcast.core.security.keyring import KeyRing
from arborcast.core.settings import SecretSettings
from arborcast.dispatch.delivery.credentials import Vault
from arborcast.dispatch.delivery.envelope import DELIVERY, NOTIFY_ACTION, Envelope, topic_element
from arborcast.topic_model.expressions import CONCRETE, concrete_topic
from arborcast.topic_model.legacy_content import wrap
from arborcast.topic_model.records.notifications import Notification, replayed
from arborcast.topic_model.records.peers import decode_push
from arborcast.topic_model.subscriptions import EndpointReference, Peer, Protection, SigningSecret, Subscription
from arborcast.topic_model.topics import TopicPath, make_path

NS = {
    "s11": "http://schemas.xmlsoap.org/soap/envelope/",
    "s12": "http://www.w3.org/2003/05/soap-envelope",
    "wsnt": "http://docs.oasis-open.org/wsn/b-2",
    "wsa": "http://www.w3.org/2005/08/addressing",
    "ac": DELIVERY,
}
MANAGER = "http://broker/wsn/subscriptions/s?a=1&b=2"


def subscription(**changes: object) -> Subscription:
    values: dict[str, object] = {"consumer": EndpointReference("http://consumer/?x=1&y=<2>"), "address": MANAGER}
    return Subscription(id="sub-1", **{**values, **changes})  # type: ignore[arg-type]


def notification(name: str = "n1", payload: bytes = b'<p:x xmlns:p="urn:p">1</p:x>', **more: object) -> Notification:
    return Notification(name, TopicPath("{urn:t}a/b"), payload, 0, **more)  # type: ignore[arg-type]


def parsed(target: Subscription, *notifications: Notification, attempt: int = 1) -> etree._Element:
    return etree.fromstring(Envelope(target).request(notifications, attempt).body)


@pytest.mark.parametrize(
    ("soap", "prefix", "media"),
    [("1.1", "s11", "text/xml; charset=utf-8"), ("1.2", "s12", "application/soap+xml; charset=utf-8")],
)
def test_notify_in_both_soap_versions(soap: str, prefix: str, media: str) -> None:
    producer = b'<wsnt:ProducerReference xmlns:wsnt="http://docs.oasis-open.org/wsn/b-2"><a/></wsnt:ProducerReference>'
    target = subscription(soap=soap)
    request = Envelope(target).request([notification(producer=producer), notification("n2")], 3)
    envelope = etree.fromstring(request.body)

    assert request.url == target.consumer.address
    assert dict(request.headers)["Content-Type"] == media
    first, second = envelope.findall(f"{prefix}:Body/wsnt:Notify/wsnt:NotificationMessage", NS)
    names = [etree.QName(child).localname for child in first]
    assert names == ["SubscriptionReference", "Topic", "ProducerReference", "Message"], "the schema's order"
    assert [etree.QName(child).localname for child in second] == ["SubscriptionReference", "Topic", "Message"]
    assert first.findtext("wsnt:SubscriptionReference/wsa:Address", namespaces=NS) == MANAGER
    assert first.findtext("wsnt:Message/{urn:p}x", namespaces=NS) == "1"
    topic = first.find("wsnt:Topic", NS)
    assert topic is not None
    assert topic.get("Dialect") == CONCRETE
    namespaces = {prefix: uri for prefix, uri in topic.nsmap.items() if prefix}
    assert concrete_topic(topic.text or "", CONCRETE, namespaces) == "{urn:t}a/b"


def test_every_push_says_what_it_is() -> None:
    request = Envelope(subscription()).request([notification("n1"), notification("n<2>")], 4)
    delivery = etree.fromstring(request.body).find("s11:Header/ac:Delivery", NS)

    assert delivery is not None
    assert [each.text for each in delivery.findall("ac:Notification", NS)] == ["n1", "n<2>"]
    assert delivery.findtext("ac:Attempt", namespaces=NS) == "4"
    assert delivery.findtext("ac:Subscription", namespaces=NS) == "sub-1"
    headers = dict(request.headers)
    assert headers["Arborcast-Notification-Id"] == "n1,n<2>"
    assert headers["Arborcast-Attempt"] == "4"
    assert headers["Arborcast-Subscription"] == "sub-1"


@pytest.mark.parametrize("soap", ["1.1", "1.2"])
def test_addressing_only_for_those_who_speak_it(soap: str) -> None:
    prefix = "s11" if soap == "1.1" else "s12"
    without = parsed(subscription(soap=soap), notification())
    assert not without.xpath("//*[namespace-uri() = $wsa][local-name() != 'Address']", wsa=NS["wsa"])

    parameter = '<r:room xmlns:r="urn:r" r:floor="2">12</r:room>'
    consumer = EndpointReference("http://consumer/", reference_parameters=(parameter,))
    envelope = parsed(subscription(soap=soap, addressing=True, consumer=consumer), notification())
    header = envelope.find(f"{prefix}:Header", NS)
    assert header is not None
    assert header.findtext("wsa:To", namespaces=NS) == "http://consumer/"
    assert header.findtext("wsa:Action", namespaces=NS) == NOTIFY_ACTION
    assert (header.findtext("wsa:MessageID", namespaces=NS) or "").startswith("urn:uuid:")
    room = header.find("{urn:r}room")
    assert room is not None
    assert (room.text, room.get("{urn:r}floor")) == ("12", "2")
    assert room.get(f"{{{NS['wsa']}}}IsReferenceParameter") == "true"
    assert b"mustUnderstand" not in etree.tostring(envelope)


@pytest.mark.parametrize("form", ["notify", "raw"])
@pytest.mark.parametrize("addressing", [False, True])
@pytest.mark.parametrize("soap", ["1.1", "1.2"])
def test_reference_parameters_are_in_every_message_to_the_reference(soap: str, addressing: bool, form: str) -> None:
    parameters = ('<r:room xmlns:r="urn:r" r:floor="2">12</r:room>', "<plain>&lt;</plain>")
    consumer = EndpointReference("http://consumer/", parameters)
    target = subscription(soap=soap, addressing=addressing, consumer=consumer, form=form)
    header = parsed(target, notification())[0]
    marked = [block for block in header if block.get(f"{{{NS['wsa']}}}IsReferenceParameter") == "true"]
    assert [(block.tag, block.text) for block in marked] == [("{urn:r}room", "12"), ("plain", "<")]
    assert etree.tostring(header).count(b' wsa:IsReferenceParameter="true"') == 2
    assert len(header.findall("wsa:To", NS)) == addressing


def test_no_header_is_there_twice_whatever_an_earlier_version_took() -> None:
    ours = (NS["wsa"], "To"), (NS["wsa"], "Action"), (NS["wsa"], "MessageID"), (DELIVERY, "Delivery")
    parameters = tuple(f'<x:{name} xmlns:x="{namespace}">other</x:{name}>' for namespace, name in ours)
    target = subscription(addressing=True, consumer=EndpointReference("http://consumer/", parameters))
    header = parsed(target, notification())[0]
    names = [block.tag for block in header]
    assert sorted(names) == sorted(f"{{{namespace}}}{name}" for namespace, name in ours)
    assert "other" not in [block.text for block in header]


def test_message_id_is_the_same_on_every_attempt_and_differs_otherwise() -> None:
    def message_id(target: Subscription, *names: str, attempt: int = 1) -> str:
        envelope = parsed(target, *(notification(name) for name in names), attempt=attempt)
        return str(envelope.findtext("s11:Header/wsa:MessageID", namespaces=NS))

    target = subscription(addressing=True)
    other = Subscription("sub-2", target.consumer, address=MANAGER, addressing=True)
    assert message_id(target, "n1") == message_id(target, "n1", attempt=2)
    assert len({message_id(target, "n1"), message_id(target, "n1", "n2"), message_id(other, "n1")}) == 3


def test_raw_body_is_the_payload_itself() -> None:
    envelope = parsed(subscription(form="raw"), notification())

    body = envelope.find("s11:Body", NS)
    assert body is not None
    (only,) = body
    assert only.tag == "{urn:p}x"
    assert envelope.findtext("s11:Header/ac:Delivery/ac:Notification", namespaces=NS) == "n1"


def test_legacy_push_is_byte_for_byte_what_old_receivers_expect() -> None:
    request = Envelope(subscription(form="legacy")).request([notification(payload=b" <x>a &amp; b</x>\n")], 1)

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
    body = Envelope(subscription(form="legacy")).request([notification(payload=payload)], 1).body

    assert etree.fromstring(body).findtext(".//{*}notificationProcess") == read


def test_payload_without_namespace_stays_without() -> None:
    message = parsed(subscription(), notification(payload=b"<x/>")).find(".//wsnt:Message", NS)

    assert message is not None
    assert message[0].tag == "x"


def test_broken_reference_parameters_are_found_when_the_envelope_is_prepared() -> None:
    consumer = EndpointReference("http://consumer/", reference_parameters=("<a>",))

    with pytest.raises(etree.XMLSyntaxError):
        Envelope(subscription(consumer=consumer, addressing=True))


# The ends of the ranges that a name may have characters of; to make names from the whole expression takes seconds.
_names = st.builds(
    str.__add__,
    st.sampled_from([*"AZ_az\u00c0\u00f6\u00f8\u02ff\u0370\u1fff\u3001\ud7ff\ufffd\U00010000\U000effff"]),
    st.text(st.sampled_from([*"az_-.09\u00b7\u0300\u036f\u203f\u2040\u4e00\U000effff"]), max_size=18),
)
_namespaces = st.sampled_from(["urn:a", "http://example.org/x?a=1&b='2'", "urn:it's"])


@given(st.lists(st.tuples(_namespaces, _names), min_size=1, max_size=5))
def test_any_topic_can_be_read_back_from_its_element(steps: list[tuple[str, str]]) -> None:
    path = make_path(steps)
    element = etree.fromstring(
        b'<wsnt:Notify xmlns:wsnt="http://docs.oasis-open.org/wsn/b-2">' + topic_element(path) + b"</wsnt:Notify>"
    )[0]

    assert element.tag == "{http://docs.oasis-open.org/wsn/b-2}Topic"
    namespaces = {prefix: uri for prefix, uri in element.nsmap.items() if prefix}
    assert concrete_topic(element.text or "", element.get("Dialect"), namespaces) == path


@pytest.mark.parametrize("form", ["notify", "raw", "legacy"])
def test_a_replay_keeps_its_id_and_is_labelled(form: str) -> None:
    target = subscription(form=form, addressing=True)
    again = replayed(notification(), "r<1>", target.id, 99, 7)
    first, request = Envelope(target).request([notification()], 1), Envelope(target).request([again], 1)
    headers = dict(request.headers)
    assert headers["Arborcast-Notification-Id"] == "n1"
    assert headers["Arborcast-Replay"] == "r<1>"
    assert "Arborcast-Replay" not in dict(first.headers)
    if form != "legacy":
        header = "s11:Header/ac:Delivery/ac:Notification"
        found, before = (etree.fromstring(each.body).find(header, NS) for each in (request, first))
        assert found is not None
        assert (found.text, found.get("replay")) == ("n1", "r<1>")
        assert before is not None
        assert before.get("replay") is None
        ids = [etree.fromstring(each.body).findtext("s11:Header/wsa:MessageID", None, NS) for each in (first, request)]
        assert ids[0] != ids[1], "who drops repeats by WS-Addressing must not drop what was asked for again"


def test_replays_travel_with_others_and_each_has_its_own_label() -> None:
    again = replayed(notification("n2"), "r1", "sub-1", 99, 7)
    request = Envelope(subscription()).request([notification(), again], 1)
    headers = dict(request.headers)
    assert (headers["Arborcast-Notification-Id"], headers["Arborcast-Replay"]) == ("n1,n2", "-,r1")
    labels = [each.get("replay") for each in etree.fromstring(request.body).iterfind(".//ac:Notification", NS)]
    assert labels == [None, "r1"]


_TRACE, _OTHER = f"00-{'a' * 32}-{'1' * 16}-01", f"00-{'b' * 32}-{'2' * 16}-01"


def test_each_message_of_a_push_has_its_own_trace_beside_its_id() -> None:
    request = Envelope(subscription()).request(
        [notification(traceparent=_TRACE), notification("n2"), notification("n3", traceparent=_OTHER)], 1
    )
    assert "traceparent" not in dict(request.headers), "it would be the wrong one for all but one"
    blocks = etree.fromstring(request.body).findall(".//ac:Notification", NS)
    assert [(block.text, block.get("traceparent")) for block in blocks] == [
        ("n1", _TRACE),
        ("n2", None),
        ("n3", _OTHER),
    ]


@pytest.mark.parametrize(("prefixes", "text"), [("tns1", "tns1:RuleEngine/x"), ("on", "on:RuleEngine/x"), ("", None)])
def test_a_topic_goes_out_as_it_came(prefixes: str, text: str | None) -> None:
    """Home Assistant looks parsers up by the literal text; what nobody has said, is said as ONVIF's documents do."""
    path = TopicPath("{http://www.onvif.org/ver10/topics}RuleEngine/x")
    sent = Envelope(subscription()).request([Notification("n", path, b"<x/>", 0, prefixes=prefixes)], 1)
    topic = etree.fromstring(sent.body).find(".//wsnt:Topic", NS)
    assert topic is not None
    assert topic.text == (text or "tns1:RuleEngine/x")
    assert concrete_topic(topic.text, CONCRETE, {prefix or "": uri for prefix, uri in topic.nsmap.items()}) == path


def test_other_engines_get_messagepack_with_a_signature_and_no_soap() -> None:
    keys = KeyRing({"k": b"k" * 32})
    link = Subscription("peer-b", EndpointReference("http://b/federation"), form="peer", peer=Peer("G/a", "G/b"))
    key = b"s" * 32
    sealed = SigningSecret(keys.seal(key, link.sealing_context()))
    link = msgspec.structs.replace(link, protection=Protection((sealed,)))
    request = Envelope(link, Vault(SecretSettings(), keys), 60.0).request(
        [notification("n1"), notification("n2", path=("H/x",))], 2, 1_000.0
    )
    headers = {name.lower(): value for name, value in request.headers}
    signatures.check([key], headers, request.body, 1_000.0)
    assert headers["content-type"] == "application/vnd.msgpack"
    assert (headers["arborcast-subscription"], headers["arborcast-attempt"]) == ("peer-b", "2")
    assert "soapaction" not in headers
    push = decode_push(request.body)
    assert [(each.id, each.path) for each in push.notifications] == [("n1", ("G/a",)), ("n2", ("H/x", "G/a"))]


def to_mqtt(more: str = "", **changes: object) -> Subscription:
    address = f"mqtt://broker.example:1883/out/%7Btopic%7D{more}"
    return subscription(consumer=EndpointReference(address), form="raw", **changes)


def test_to_an_mqtt_topic_goes_the_payload_alone() -> None:
    vault = Vault(SecretSettings(), KeyRing({"k": b"k" * 32}))
    envelope = Envelope(to_mqtt("?retain"), vault, callback_s=60.0)
    sent = notification(valid_until_ms=5_000)
    request = envelope.request([sent], 2, push="p1")
    assert request.url == "mqtt://broker.example:1883/out/%7Burn%3At%7Da/b?retain"
    assert request.body == sent.payload
    assert dict(request.headers) == {
        "Arborcast-Subscription": "sub-1",
        "Arborcast-Notification-Id": "n1",
        "Arborcast-Attempt": "2",
        "Arborcast-Sequence": "1",
        "Arborcast-Topic": "{urn:t}a/b",
        "Content-Type": "application/xml",
        "Expires-Ms": "5000",
    }
    assert request.result_by_ms == 0, "a PUBACK announces no later result"


def test_to_an_mqtt_topic_text_goes_as_it_was_published() -> None:
    text = '{"t": "<ü> & \r\n"}'
    loose = wrap(escape(text, {"\r": "&#13;"}), {})
    request = Envelope(to_mqtt()).request([notification(payload=loose)], 1)
    assert request.body.decode() == text
    assert not {"Content-Type", "Expires-Ms"} & dict(request.headers).keys()
