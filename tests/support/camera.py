"""A simulated camera: an HTTP server with ONVIF's device and event services, and the faults of real cameras.

It uses no product code: messages are read with a plain XML parser and written by hand. `tests/unit/ingest/cameras`
has cameras in virtual time; this one is for HTTP and XML.
"""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.request import parse_http_list, parse_keqv_list

import requests
from lxml import etree

from tests.support.http_server import Answer, AnsweringServer

SOAP12 = "http://www.w3.org/2003/05/soap-envelope"
REALM = "camera"
GRANTED_S = 120.0

_MEDIA_TYPE = {"Content-Type": "application/soap+xml"}

_WSSE = "{http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-secext-1.0.xsd}"
_WSU = "{http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-utility-1.0.xsd}"

_ENVELOPE = (
    f'<?xml version="1.0" encoding="UTF-8"?><SOAP-ENV:Envelope xmlns:SOAP-ENV="{SOAP12}" '
    'xmlns:wsa5="http://www.w3.org/2005/08/addressing" xmlns:wsnt="http://docs.oasis-open.org/wsn/b-2" '
    'xmlns:tev="http://www.onvif.org/ver10/events/wsdl" xmlns:tt="http://www.onvif.org/ver10/schema" '
    'xmlns:tds="http://www.onvif.org/ver10/device/wsdl" xmlns:tns1="http://www.onvif.org/ver10/topics" '
    'xmlns:tnsaxis="http://www.axis.com/2009/event/topics" '
    'xmlns:ter="http://www.onvif.org/ver10/error"><SOAP-ENV:Body>{}</SOAP-ENV:Body></SOAP-ENV:Envelope>'
)


@dataclass
class Subscribed:
    """A subscription at the camera."""

    until: float
    consumer: str = ""
    waiting: list[str] = field(default_factory=list)


def envelope(body: str) -> bytes:
    """A SOAP message of the camera."""
    return _ENVELOPE.format(body).encode()


def fault(subcode: str, reason: str) -> str:
    """A refusal by the camera."""
    return (
        "<SOAP-ENV:Fault><SOAP-ENV:Code><SOAP-ENV:Value>SOAP-ENV:Sender</SOAP-ENV:Value><SOAP-ENV:Subcode>"
        f"<SOAP-ENV:Value>{subcode}</SOAP-ENV:Value></SOAP-ENV:Subcode></SOAP-ENV:Code><SOAP-ENV:Reason>"
        f'<SOAP-ENV:Text xml:lang="en">{reason}</SOAP-ENV:Text></SOAP-ENV:Reason></SOAP-ENV:Fault>'
    )


def event(
    topic: str = "tns1:VideoSource/MotionAlarm", source: str = "1", value: str = "true", operation: str = "Changed"
) -> str:
    """A wsnt:NotificationMessage."""
    operation_attribute = f' PropertyOperation="{operation}"' if operation else ""
    return (
        '<wsnt:NotificationMessage><wsnt:Topic Dialect="http://www.onvif.org/ver10/tev/topicExpression/ConcreteSet">'
        f'{topic}</wsnt:Topic><wsnt:Message><tt:Message UtcTime="2026-01-01T00:00:00Z"{operation_attribute}><tt:Source>'
        f'<tt:SimpleItem Name="Source" Value="{source}"/></tt:Source><tt:Data><tt:SimpleItem Name="State" '
        f'Value="{value}"/></tt:Data></tt:Message></wsnt:Message></wsnt:NotificationMessage>'
    )


class _Refused(Exception):
    def __init__(self, reason: str, subcode: str = "ter:InvalidArgVal") -> None:
        super().__init__(reason)
        self.subcode = subcode


@dataclass
class Camera:
    """A context manager. The fields are its settings and its faults; they may be changed while it runs."""

    user: str = ""
    password: str = ""
    http_digest: bool = False
    clock: timedelta = timedelta()
    pulls: bool = True
    most: int = 10
    address: str = ""
    """A wrong address of the camera in its answers."""
    parameters: str = ""
    """Reference parameters that requests must return."""
    spoils: int = 0
    """This many pulls get broken XML."""
    states: dict[str, str] = field(default_factory=dict)
    """The values of the property by source."""
    subscriptions: dict[str, Subscribed] = field(default_factory=dict)
    operations: list[str] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    """The whole headers of requests to subscriptions."""

    def __enter__(self) -> Camera:
        self._changed = threading.Condition()
        self._made = 0
        self._down = False
        self._server = AnsweringServer(self._answered)
        self.port = self._server.port
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._down = True
            self._changed.notify_all()
        self._server.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/onvif/device_service"

    def emit(self, source: str = "1", value: str = "true") -> None:
        """Send an event of a property to all subscriptions."""
        with self._changed:
            self.states[source] = value
        self.sends(event(source=source, value=value))

    def sends(self, message: str) -> None:
        """Send a message to all subscriptions."""
        with self._changed:
            live = self._live()
            for each in live.values():
                if not each.consumer:
                    each.waiting.append(message)
            self._changed.notify_all()
        for each in live.values():
            if each.consumer:
                body = envelope(f"<wsnt:Notify>{message}</wsnt:Notify>")
                answer = requests.post(each.consumer, body, timeout=120)
                assert answer.status_code in (200, 202), answer.text

    def forget(self) -> None:
        """Drop all subscriptions, as a reboot does."""
        with self._changed:
            self.subscriptions.clear()
            self._changed.notify_all()

    def count(self, operation: str) -> int:
        return self.operations.count(operation)

    def _live(self) -> dict[str, Subscribed]:
        now = time.monotonic()
        for name in [name for name, each in self.subscriptions.items() if each.until < now]:
            del self.subscriptions[name]
        return dict(self.subscriptions)

    def _answered(self, path: str, body: bytes, given: Mapping[str, str]) -> Answer:
        root = etree.fromstring(body)
        operation = etree.QName(root[1][0]).localname
        authorization = given.get("authorization", "")
        if self.http_digest and operation != "GetSystemDateAndTime" and not self._digest_fits(authorization, path):
            challenge = f'Digest realm="{REALM}", qop="auth", nonce="n{self._made}", opaque="o"'
            return 401, b"", {"WWW-Authenticate": challenge, **_MEDIA_TYPE}
        with self._changed:
            self.operations.append(operation)
            if "/subscriptions/" in path:
                self.headers.append(etree.tostring(root[0], encoding="unicode"))
        try:
            if operation != "GetSystemDateAndTime":
                self._authenticate(root)
            answer = envelope(self._performed(operation, path, root[1][0]))
        except _Refused as error:
            return 400, envelope(fault(error.subcode, str(error))), _MEDIA_TYPE
        if operation == "PullMessages" and self.spoils:
            self.spoils -= 1
            answer = answer[: len(answer) // 2]
        return 200, answer, _MEDIA_TYPE

    def _digest_fits(self, authorization: str, path: str) -> bool:
        fields = parse_keqv_list(parse_http_list(authorization.removeprefix("Digest ")))

        def md5(text: str) -> str:
            return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()

        secret, request = md5(f"{self.user}:{REALM}:{self.password}"), md5(f"POST:{path}")
        middle = ":".join(fields.get(name, "") for name in ("nonce", "nc", "cnonce", "qop"))
        return fields.get("response") == md5(f"{secret}:{middle}:{request}") and fields.get("uri") == path

    def _authenticate(self, root: etree._Element) -> None:
        if not self.user or self.http_digest:
            return
        token = root.find(f".//{_WSSE}UsernameToken")
        refused = _Refused("Sender not authorized", "ter:NotAuthorized")
        if token is None or token.findtext(f"{_WSSE}Username") != self.user:
            raise refused
        nonce, created = token.findtext(f"{_WSSE}Nonce") or "", token.findtext(f"{_WSU}Created") or ""
        made = hashlib.sha1(base64.b64decode(nonce) + created.encode() + self.password.encode(), usedforsecurity=False)
        apart = datetime.fromisoformat(created) - (datetime.now(UTC) + self.clock)
        if token.findtext(f"{_WSSE}Password") != base64.b64encode(made.digest()).decode() or abs(apart) > timedelta(
            seconds=30
        ):
            raise refused

    def _performed(self, operation: str, path: str, request: etree._Element) -> str:
        now = datetime.now(UTC) + self.clock
        here = self.address or f"http://127.0.0.1:{self.port}"
        with self._changed:
            match operation:
                case "GetSystemDateAndTime":
                    return (
                        "<tds:GetSystemDateAndTimeResponse><tds:SystemDateAndTime><tt:UTCDateTime><tt:Time>"
                        f"<tt:Hour>{now.hour}</tt:Hour><tt:Minute>{now.minute}</tt:Minute><tt:Second>{now.second}"
                        f"</tt:Second></tt:Time><tt:Date><tt:Year>{now.year}</tt:Year><tt:Month>{now.month}</tt:Month>"
                        f"<tt:Day>{now.day}</tt:Day></tt:Date></tt:UTCDateTime></tds:SystemDateAndTime>"
                        "</tds:GetSystemDateAndTimeResponse>"
                    )
                case "GetCapabilities":
                    return (
                        "<tds:GetCapabilitiesResponse><tds:Capabilities><tt:Events><tt:XAddr>"
                        f"{here}/onvif/events</tt:XAddr></tt:Events></tds:Capabilities></tds:GetCapabilitiesResponse>"
                    )
                case "CreatePullPointSubscription" if not self.pulls:
                    raise _Refused("Optional Action Not Implemented", "ter:ActionNotSupported")
                case "CreatePullPointSubscription" | "Subscribe":
                    return self._subscribed(operation, request, here, now)
            held = self._live().get(path)
            if held is None:
                raise _Refused("unknown subscription", "wsnt:ResourceUnknownFault")
            if operation == "Renew":
                held.until = time.monotonic() + GRANTED_S
                return f"<wsnt:RenewResponse>{self._times(now)}</wsnt:RenewResponse>"
            if operation == "SetSynchronizationPoint":
                held.waiting += self._initial()
                return "<tev:SetSynchronizationPointResponse/>"
            assert operation == "PullMessages", operation
            timeout = float((request.findtext("{*}Timeout") or "").strip("PTS"))
            self._changed.wait_for(lambda: held.waiting or self._down or path not in self.subscriptions, timeout)
            if path not in self.subscriptions:
                raise _Refused("unknown subscription", "wsnt:ResourceUnknownFault")
            messages, held.waiting = held.waiting, []
            return (
                f"<tev:PullMessagesResponse><tev:CurrentTime>{now:%Y-%m-%dT%H:%M:%SZ}</tev:CurrentTime>"
                f"<tev:TerminationTime>{now:%Y-%m-%dT%H:%M:%SZ}</tev:TerminationTime>{''.join(messages)}"
                "</tev:PullMessagesResponse>"
            )

    def _subscribed(self, operation: str, request: etree._Element, here: str, now: datetime) -> str:
        if len(self._live()) >= self.most:
            raise _Refused("the limit of subscriptions is reached", "ter:MaximumReached")
        self._made += 1
        path = f"/onvif/subscriptions/{self._made}"
        consumer = "" if operation != "Subscribe" else request.findtext(".//{*}Address") or ""
        self.subscriptions[path] = Subscribed(time.monotonic() + GRANTED_S, consumer)
        if not consumer:
            self.subscriptions[path].waiting += self._initial()
        parameters = (
            f"<wsa5:ReferenceParameters>{self.parameters}</wsa5:ReferenceParameters>" if self.parameters else ""
        )
        prefix = "wsnt" if operation == "Subscribe" else "tev"
        return (
            f"<{prefix}:{operation}Response><{prefix}:SubscriptionReference><wsa5:Address>{here}{path}</wsa5:Address>"
            f"{parameters}</{prefix}:SubscriptionReference>{self._times(now)}</{prefix}:{operation}Response>"
        )

    def _initial(self) -> list[str]:
        return [event(source=source, value=value, operation="Initialized") for source, value in self.states.items()]

    def _times(self, now: datetime) -> str:
        ends = now + timedelta(seconds=GRANTED_S)
        return (
            f"<wsnt:CurrentTime>{now:%Y-%m-%dT%H:%M:%SZ}</wsnt:CurrentTime>"
            f"<wsnt:TerminationTime>{ends:%Y-%m-%dT%H:%M:%SZ}</wsnt:TerminationTime>"
        )
