"""Checks of records of the logs, and of pushes made from them."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
from lxml import etree

from arborcast.core.errors import ArborcastError, InfrastructureError
from arborcast.core.security.signatures import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, check
from arborcast.core.settings import SecretSettings
from arborcast.dispatch.delivery.credentials import SecretOpener
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.logs import attempts, dead_letters, parked
from arborcast.ingest.federation.receiver import read_forwarded
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.records import control, fragments, notifications, peers, pull
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.subscriptions import (
    DeliveryForm,
    EndpointReference,
    Peer,
    Protection,
    SigningSecret,
    SoapVersion,
    Subscription,
)
from arborcast.wire.errors import MalformedMessage
from tests.fuzz._generate import KEYS, TOPIC_TEXTS, XML_SNIPPETS, Target, reasoned
from tests.support import make
from tests.unit.test_recorded_logs import DELIVERY, written

_HEADER = re.compile(r"[\x20-\x7e]*")


class _Pushed(msgspec.Struct):
    """Input of the envelope writer."""

    subscription: Subscription
    names: list[str]
    topic: str
    payload: str
    attempt: int
    secret: str = ""


_pushed_decoder = msgspec.json.Decoder(_Pushed)


def check_peers(data: bytes) -> None:
    """Messages of another engine are refused, or become notifications that any receiver can read."""
    try:
        push = peers.decode_push(data)
    except InfrastructureError:
        return
    target = Subscription("s", EndpointReference("http://h/"))
    for each in push.notifications:
        try:
            notification = read_forwarded(each, 1)
        except MalformedMessage:
            continue
        etree.fromstring(Envelope(target).request([notification], 1, 1.0).body, etree.XMLParser(huge_tree=True))
        assert notifications.decode(notifications.encode(notification)[1]) == notification


def peer_seeds() -> tuple[bytes, ...]:
    """Pushes as engines make them."""
    plain = make.notification(accepted_ms=1)
    whole = make.notification("n2", "{urn:t}a", b"<p:x xmlns:p='urn:p'>text</p:x>", producer=b"<p/>", accepted_ms=1)
    fields = {"prefixes": "t", "path": ("H/x",), "package": "1-1-1-0 me:1", "distribution": "to:H"}
    made = [plain, msgspec.structs.replace(whole, **fields)]
    return tuple(peers.encode_push(each, Peer("G/a", "G/b")) for each in ([], made[:1], made))


def check_datagram(data: bytes) -> None:
    """Any datagram is refused with a ValueError, or equals its decoded and encoded form."""
    try:
        signed, body = peers.decode_datagram(data)
    except ValueError:
        return
    assert peers.encode_datagram(signed, body) == data
    check_peers(body)


def datagram_seeds() -> tuple[bytes, ...]:
    """Datagrams as engines make them, without their signatures."""
    signed = {ID_HEADER: "msg_1", TIMESTAMP_HEADER: "1700000000", SIGNATURE_HEADER: "v1,eA== v1,eQ=="}
    return tuple(peers.encode_datagram(signed, each) for each in peer_seeds())


def check_envelope(data: bytes) -> None:
    """Any storable subscription and payload make XML that contains them, and headers of one line."""
    try:
        pushed = _pushed_decoder.decode(data)
        etree.fromstring(pushed.payload.encode())
        topic = parse_normal(pushed.topic).single_topic()
        for fragment in pushed.subscription.consumer.reference_parameters:
            etree.fromstring(fragment.encode())
    except (msgspec.DecodeError, etree.XMLSyntaxError, ArborcastError, UnicodeError, ValueError):
        return  # not stored by the gateway
    if topic is None or "<!" in pushed.payload or "<?" in pushed.payload or not pushed.names:
        return
    subscription = pushed.subscription
    texts = [subscription.id, subscription.consumer.address, subscription.address, *pushed.names]
    if any(not _is_xml_text(text) for text in texts):
        return  # ids are the gateway's, and addresses were checked
    if pushed.secret:
        key = pushed.secret.encode().ljust(24, b"x")[:64]
        sealed = SigningSecret(KEYS.seal(key, subscription.sealing_context()))
        subscription = msgspec.structs.replace(subscription, protection=Protection((sealed,)))
    elif subscription.protection is not None:
        return
    names = pushed.names if subscription.form == "notify" else pushed.names[:1]
    stored = [Notification(name, topic, pushed.payload.encode(), 0) for name in names]
    request = Envelope(subscription, SecretOpener(SecretSettings(), KEYS)).request(
        stored, pushed.attempt, 1_800_000_000.0
    )
    for name, value in request.headers:
        assert _HEADER.fullmatch(value), name
    root = etree.fromstring(request.body)
    if subscription.form != "legacy":
        assert stored[0].payload in request.body
        found = [element.text for element in root.iter("{urn:arborcast:delivery}Notification")]
        assert [_one_line(text or "") for text in found] == [_one_line(name) for name in names]
    if pushed.secret:
        check([key], {k.lower(): v for k, v in request.headers}, request.body, 1_800_000_000.0)


def _is_xml_text(text: str) -> bool:
    return all(c in "\t\n\r" or "\x20" <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c >= "\U00010000" for c in text)


def _one_line(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def envelope_seeds() -> tuple[bytes, ...]:
    consumer = EndpointReference("http://h/?a=1&b=2", ('<r:room xmlns:r="urn:r">1</r:room>',))
    kinds: tuple[tuple[DeliveryForm, SoapVersion, bool, str], ...] = (
        ("notify", "1.1", False, ""),
        ("notify", "1.2", True, "secret"),
        ("raw", "1.1", True, ""),
        ("legacy", "1.1", False, "secret"),
    )
    pushes = []
    for form, version, addressing, secret in kinds:
        to = Subscription("s-1", consumer, "http://b/s-1", form=form, soap=version, addressing=addressing)
        pushes.append(_Pushed(to, ["n1", "n2"], "{urn:t}a/b", '<x xmlns="urn:p">a &amp; b</x>', 1, secret))
    return tuple(map(msgspec.json.encode, pushes))


def check_control(data: bytes) -> None:
    """A control record is read or refused; a read one is written back to the same, and can be applied."""
    key, _, value = data.partition(b"\n")
    try:
        record = control.decode(key, value or None)
    except (InfrastructureError, UnicodeDecodeError):
        return
    again = control.encode(record)
    assert control.decode(*again) == record
    table = RoutingTable()
    try:
        table.apply(record)
        table.apply(record)
    except ArborcastError:
        return


def control_seeds() -> tuple[bytes, ...]:
    return tuple(kept.key + b"\n" + (kept.value or b"") for kept in written("control"))


def check_log_records(data: bytes) -> None:
    """Notification, attempt, parked, dead-letter and pull-point records: read, or refused as damaged or too new."""
    readers: tuple[Callable[[bytes], object], ...] = (
        *(notifications.decode, attempts.decode, parked.decode, parked.decode_key, dead_letters.decode),
        lambda value: pull.decode(b"p1", value),
        lambda value: fragments.decode(b"", value),
    )
    for read in readers:
        try:
            read(data)
        except InfrastructureError as error:
            reasoned(error)


def log_seeds() -> tuple[bytes, ...]:
    logs = ("notifications", "attempts", "parked", "dead", "pullpoints", "fragments")
    values = (kept.value for log in logs for kept in written(log) if kept.value is not None)
    return (*values, DELIVERY.key(), DELIVERY.tried_key())


TARGETS = {
    "peers": Target(check_peers, peer_seeds(), (*XML_SNIPPETS, *TOPIC_TEXTS, b"G/a", b"\x91", b"\xc4\x04")),
    "datagrams": Target(check_datagram, datagram_seeds(), (b"ACD1", b"\n", b"v1,", b"G/a", b"\x91", b"\xc4\x04")),
    "envelope": Target(
        check_envelope, envelope_seeds(), (*XML_SNIPPETS, b"\\r\\n", b'\\"', b"\\ud800", b"legacy", b"raw")
    ),
    "control": Target(
        check_control, control_seeds(), tuple(b'" { } [ ] , : null true "v":2 "v":99 //. | xpath: \\ud800'.split())
    ),
    "records": Target(
        check_log_records, log_seeds(), (b"\x80", b"\xdf\xff\xff\xff\xff", b"\xcf", b"\xc0", b"\xda\xff\xff", b"\t")
    ),
}
