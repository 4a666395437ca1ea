"""Requests to cameras, their answers, credentials, and events as notifications."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from lxml import etree
from requests.auth import HTTPDigestAuth

from arborcast.core.http_client import HttpAnswer
from arborcast.ingest.cameras.conversation import (
    Broken,
    CameraOperation,
    Clock,
    Done,
    Fault,
    Granted,
    Outcome,
    Request,
    Services,
)
from arborcast.ingest.cameras.credentials import Credentials, DigestAccess
from arborcast.ingest.cameras.events import MOST_TOPICS, CameraEvents, read_events
from arborcast.ingest.cameras.messages import notices, read_answer, written
from arborcast.topic_model.subscriptions import EndpointReference
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.xml_reading import read_xml
from tests.support.camera import envelope, fault

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
URL = "http://camera.example/onvif/events"
NONE = Credentials()


def request(operation: CameraOperation, **fields: Any) -> Request:
    return Request(operation, URL, 29.0, **fields)


def outcome(operation: CameraOperation, body: str | bytes, status: int = 200) -> Outcome:
    document = envelope(body) if isinstance(body, str) else body
    return read_answer(request(operation), HttpAnswer(status, {}, document), NOW)[0]


def test_addressing_and_signature_of_a_request() -> None:
    to = EndpointReference(f"{URL}?a=1&b=2", ('<x:Id xmlns:x="urn:x">7</x:Id>',))
    message, media_type = written(request(CameraOperation.PULL, to=to, wait_s=8), Credentials("u", "p"), NOW, "")
    root = etree.fromstring(message)
    action = "http://www.onvif.org/ver10/events/wsdl/PullPointSubscription/PullMessagesRequest"
    assert media_type.endswith(f'action="{action}"')
    assert root.findtext(".//{*}To") == f"{URL}?a=1&b=2"
    assert root.findtext(".//{urn:x}Id") == "7"
    assert root.findtext(".//{*}Timeout") == "PT8S"
    created, nonce = root.findtext(".//{*}Created") or "", base64.b64decode(root.findtext(".//{*}Nonce") or "")
    digest = hashlib.sha1(nonce + created.encode() + b"p", usedforsecurity=False).digest()
    assert (created, root.findtext(".//{*}Password")) == ("2026-01-01T12:00:00Z", base64.b64encode(digest).decode())
    assert b"p</" not in message
    clock, _ = written(request(CameraOperation.CLOCK), Credentials("u", "p"), NOW, "")
    assert b"Security" not in clock, "without credentials, which depend on it"


@pytest.mark.parametrize("operation", CameraOperation)
def test_leases_are_in_whole_seconds_without_must_understand(operation: CameraOperation) -> None:
    for absolute in (False, True):
        now, address = NOW + timedelta(milliseconds=17), "http://gw/cameras/k"
        message, _ = written(request(operation, absolute=absolute), NONE, now, address)
        assert b"mustUnderstand" not in message
        text = "".join(map(str, etree.fromstring(message).itertext()))
        if operation in (CameraOperation.CREATE, CameraOperation.RENEW, CameraOperation.SUBSCRIBE):
            assert ("2026-01-01T12:02:00Z" if absolute else "PT120S") in text


GRANTED = (
    "<wsnt:CurrentTime>1970-01-01T00:00:00Z</wsnt:CurrentTime>"
    "<wsnt:TerminationTime>1970-01-01T00:01:30Z</wsnt:TerminationTime>"
)
REFERENCE = f"<tev:SubscriptionReference><wsa5:Address>{URL}/1</wsa5:Address></tev:SubscriptionReference>"


CLOCK = (
    "<tt:UTCDateTime><tt:Time><tt:Hour>12</tt:Hour><tt:Minute>1</tt:Minute><tt:Second>60</tt:Second></tt:Time>"
    "<tt:Date><tt:Year>2026</tt:Year><tt:Month>1</tt:Month><tt:Day>1</tt:Day></tt:Date></tt:UTCDateTime>"
)


@pytest.mark.parametrize(
    ("operation", "body", "expected"),
    [
        (CameraOperation.CLOCK, CLOCK, Clock(119.0)),
        (CameraOperation.SERVICES, "<tt:Events><tt:XAddr> http://a/b </tt:XAddr></tt:Events>", Services("http://a/b")),
        (CameraOperation.SERVICES, "<tt:Device/>", Services("")),
        (CameraOperation.CREATE, f"{REFERENCE}{GRANTED}", Granted(90.0, EndpointReference(f"{URL}/1"))),
        (CameraOperation.CREATE, REFERENCE, Granted(60.0, EndpointReference(f"{URL}/1"))),
        (CameraOperation.RENEW, f"<wsnt:RenewResponse>{GRANTED}</wsnt:RenewResponse>", Granted(90.0)),
        (CameraOperation.RENEW, "<wsnt:TerminationTime>soon</wsnt:TerminationTime>", Granted(60.0)),
        (CameraOperation.RENEW, "<wsnt:TerminationTime>2000-01-01T00:00:00Z</wsnt:TerminationTime>", Granted(1.0)),
        (CameraOperation.PULL, "<tev:PullMessagesResponse/>", Done(0)),
        (CameraOperation.SYNCHRONIZE, "<tev:SetSynchronizationPointResponse/>", Done()),
    ],
)
def test_answers(operation: CameraOperation, body: str, expected: Outcome) -> None:
    assert outcome(operation, body) == expected


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        *((CameraOperation.CLOCK, body) for body in ("<tt:UTCDateTime/>", "<tds:GetSystemDateAndTimeResponse/>")),
        *((CameraOperation.CREATE, body) for body in (GRANTED, "<tev:SubscriptionReference/>")),
        *((CameraOperation.PULL, body) for body in ("<wsnt:RenewResponse/>", b"<html>login", b"")),
        (CameraOperation.PULL, envelope("<tev:PullMessagesResponse/>")[:-20]),
        (CameraOperation.PULL, f"<tev:PullMessagesResponse>{'<a>' * 300}{'</a>' * 300}</tev:PullMessagesResponse>"),
        (CameraOperation.PULL, b'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><x>&e;</x>'),
    ],
)
def test_unreadable_answers(operation: CameraOperation, body: str | bytes) -> None:
    assert isinstance(outcome(operation, body), Broken)


@pytest.mark.parametrize(
    ("body", "status", "denied", "unsupported"),
    [
        (fault("ter:NotAuthorized", "Sender not Authorized"), 400, True, False),
        (fault("wsse:FailedAuthentication", "no"), 500, True, False),
        (b"", 401, True, False),
        (b"<html/>", 403, True, False),
        (fault("ter:ActionNotSupported", "Optional Action Not Implemented"), 500, False, True),
        (fault("SOAP-ENV:Client", "Method 'tev:CreatePullPointSubscription' not implemented"), 500, False, True),
        (b"not found", 404, False, True),
        (fault("wsrf-rw:ResourceUnknownFault", "no such subscription"), 500, False, False),
        (fault("ter:MaximumReached", "too many"), 200, False, False),
    ],
)
def test_faults(body: str | bytes, status: int, denied: bool, unsupported: bool) -> None:
    found = outcome(CameraOperation.CREATE, body, status)
    assert isinstance(found, Fault)
    assert (found.denied, found.unsupported) == (denied, unsupported)


@pytest.mark.parametrize("algorithm", ["", ", algorithm=MD5", ", algorithm=SHA-256"])
@pytest.mark.parametrize("qop", ["", ', qop="auth"'])
def test_http_digest_equals_that_of_requests(algorithm: str, qop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    challenge = f'realm="a b", nonce="n1", opaque="o"{algorithm}{qop}'
    access = DigestAccess(Credentials("user", "pass"))
    assert access.challenged(f"Digest {challenge}")
    reference: Any = HTTPDigestAuth("user", "pass")
    reference.init_per_thread_state()
    named = {"realm": "a b", "nonce": "n1", "opaque": "o"}
    named |= {"algorithm": algorithm.rpartition("=")[2]} if algorithm else {}
    reference._thread_local.chal = named | ({"qop": "auth"} if qop else {})
    expected = reference.build_digest_header("POST", "http://c/onvif/x?a=1")
    assert expected is not None
    read = parts_of(expected)
    header = parts_of(access.authorization("POST", "http://c/onvif/x?a=1", read.get("cnonce")))
    assert header == read


def parts_of(header: str) -> dict[str, str]:
    fields = (each.partition("=") for each in header.removeprefix("Digest ").split(", "))
    return {name: value.strip('"') for name, _, value in fields}


def test_http_digest_counts_and_ends_with_a_wrong_password() -> None:
    access, challenge = DigestAccess(Credentials("user", "pass")), 'Digest realm="r", nonce="n", qop="auth"'
    assert access.authorization("POST", URL) == ""
    assert access.challenged(challenge)
    for count in (1, 2):
        assert f"nc=0000000{count}" in access.authorization("POST", URL)
    assert not access.challenged(challenge)
    assert access.challenged(f"{challenge}, stale=true")
    assert access.challenged('Digest realm="r", nonce="m", qop="auth"')
    for refused in ('Basic realm="r"', "", 'Digest realm="r", nonce="x", algorithm=SHA-512'):
        assert not DigestAccess(Credentials("user", "pass")).challenged(refused)
    assert not DigestAccess(NONE).challenged('Digest realm="r", nonce="n"')


def message(topic: str, items: str = "", operation: str = "Changed") -> str:
    kind = f' PropertyOperation="{operation}"' if operation else ""
    return (
        f"<wsnt:NotificationMessage>{topic}<wsnt:Message><tt:Message{kind}><tt:Source>{items}</tt:Source></tt:Message>"
        "</wsnt:Message></wsnt:NotificationMessage>"
    )


def topic(text: str) -> str:
    return f'<wsnt:Topic Dialect="http://www.onvif.org/ver10/tev/topicExpression/ConcreteSet">{text}</wsnt:Topic>'


def item(name: str, value: str) -> str:
    return f'<tt:SimpleItem Name="{name}" Value="{value}"/>'


def events_of(*messages: str, room: int = MOST_TOPICS, known: frozenset[TopicPath] = frozenset()) -> CameraEvents:
    body = f"<tev:PullMessagesResponse>{''.join(messages)}</tev:PullMessagesResponse>"
    numbers = iter(range(1_000))
    return read_events("gate", notices(read_xml(envelope(body))), known, room, lambda: str(next(numbers)))


AXIS = "{http://www.axis.com/2009/event/topics}"


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (message(topic("tns1:VideoSource/MotionAlarm"), item("Source", "1")), "VideoSource/MotionAlarm/Source.1"),
        (message(topic("tns1:VideoSource/MotionAlarm"), item("Source", "1"), ""), "VideoSource/MotionAlarm"),
        (message(topic(" tns1:Device/\n Trigger//. ")), "Device/Trigger"),
        (message(topic("tnsaxis:Camera/VMD"), item("a", "b")), f"{AXIS}Camera/VMD/a.b"),
        (message(topic("tns1:Device/tnsaxis:Status/Temperature"), ""), f"Device/{AXIS}Status/Temperature"),
        (message(topic("nowhere:Device/Trigger")), "Device/Trigger"),
        (message(topic("tns1:A"), item("Token", "x y/ü_1") + item("Rule", "")), "A/Token.x_x20_y_x2f__xfc__1/Rule."),
        (message(topic("tns1:A"), item("1", "_x20_")), "A/_1._x5f_x20_"),
        (message(""), ""),
    ],
)
def test_topics(one: str, expected: str) -> None:
    (found,) = events_of(one).notifications
    assert found.topic == "/".join(filter(None, ("cameras/gate", expected)))
    assert found.type == "{http://www.onvif.org/ver10/schema}Message"
    assert etree.fromstring(found.payload).tag == found.type


def test_unreadable_events_are_counted() -> None:
    found = events_of(
        message(topic("tns1:A")),
        message(topic("tns1:A|tns1:B")),
        "<wsnt:NotificationMessage/>",
        "<wsnt:NotificationMessage><wsnt:Message/></wsnt:NotificationMessage>",
        message(topic("tns1:B")),
    )
    assert [each.topic for each in found.notifications] == ["cameras/gate/A", "cameras/gate/B"]
    assert found.unreadable == 1


def test_the_number_of_topics_of_a_camera() -> None:
    many = [message(topic("tns1:A"), item("Object", str(number))) for number in range(20)]
    found = events_of(*many, room=3)
    assert len({each.topic for each in found.notifications}) == 4
    assert (len(found.properties), len(found.notifications)) == (3, 20)
    known = frozenset(TopicPath(f"cameras/gate/A/Object.{number}") for number in range(20))
    assert len(events_of(*many, room=0, known=known).properties) == 20
