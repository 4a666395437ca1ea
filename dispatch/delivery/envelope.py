"""Envelopes of pushes, assembled from bytes that are prepared once per subscription.

The forms:
- `notify`: a wsnt:Notify with one NotificationMessage per notification, in the SOAP version of the subscriber;
- `raw`: the payload itself is the child of the SOAP body;
- `legacy`: the older system's `notificationProcess`, whose text is the payload with `<` and `>` escaped, nothing else.
  Its receivers parse the XML around the text once, and not the text;
- `peer`: MessagePack for another engine (`topic_model.records.peers`), with the subscription in a header and no more;
- `cloudevents-binary`, `-structured`, `-batched`: CloudEvents (`topic_model.cloud_events`), without SOAP.
A topic of an MQTT broker gets the payload, or its text if it is loose content, without an envelope; the headers become
properties of the message.

The consumer's reference parameters are headers of pushes in the forms `notify` and `raw`. Other WS-Addressing headers
go only to subscribers whose Subscribe had some. No header is mustUnderstand.

The notification's id, the attempt's number and the subscription are in HTTP headers of every push and, in these two
forms, in a SOAP header block, so that a receiver can drop repeats in any software stack. A replayed notification keeps
its id; the replay is in a header and an attribute of its own. So are a trace context and the number of a part
(`topic_model.records.packages`). The HTTP header `traceparent` has room for one context, so a push of several
notifications has it only if all are of one trace. A message that is too large for an old subscriber with a limit is
sent in several pushes. Signatures and credentials are in `PushSecrets`.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from xml.sax.saxutils import escape, quoteattr

from arborcast.core.errors import SecretError
from arborcast.core.mqtt.settings import EXPIRES_HEADER
from arborcast.core.recent import Recent
from arborcast.core.security.keyring import Keys
from arborcast.core.telemetry import tracing
from arborcast.core.telemetry.tracing import shared
from arborcast.dispatch.delivery.credentials import PushSecrets, SecretOpener
from arborcast.dispatch.delivery.transport.contract import PushRequest
from arborcast.topic_model.cloud_events import Event, event_of, published_in, pushed
from arborcast.topic_model.expressions import CONCRETE, write_topic
from arborcast.topic_model.legacy_content import unwrap
from arborcast.topic_model.mqtt_names import TopicsOut, is_mqtt
from arborcast.topic_model.namespaces import (
    ACTION_BW,
    ARBORCAST_DELIVERY,
    ARBORCAST_QUEUE,
    HPWSN_PUSH,
    SOAP11,
    SOAP12,
    WSA,
    WSNT,
)
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.packages import (
    PACKAGE_HEADER,
    Fragment,
    Piece,
    package_header,
    read_content,
    read_package,
    split,
)
from arborcast.topic_model.records.peers import MEDIA_TYPE, encode_push
from arborcast.topic_model.records.results import PATH, Promise, ServedRequest, write_answer_token, write_promise
from arborcast.topic_model.subscriptions import Subscription, is_cloud_events, parameter_blocks, queue_of
from arborcast.topic_model.topics import TopicPath

logger = logging.getLogger(__name__)

NOTIFY_ACTION = f"{ACTION_BW}/NotificationConsumer/Notify"

ID_HEADER = "Arborcast-Notification-Id"
ATTEMPT_HEADER = "Arborcast-Attempt"
SUBSCRIPTION_HEADER = "Arborcast-Subscription"
SEQUENCE_HEADER = "Arborcast-Sequence"
"""The number of earlier pushes, only on repeats. Receivers may drop them as duplicates."""
REPLAY_HEADER = "Arborcast-Replay"
"""Only if a notification is replayed: the replay of each id, `-` for an id without one."""
TOPIC_HEADER = "Arborcast-Topic"
"""Only over MQTT: the path of the topic."""

# Added to the validity of a token: a server may still answer a request that it got at the end of the lifespan, or that
# was redriven.
_WORK_MS = 60_000

# Characters forbidden in an HTTP header's value: a line break would begin another header.
_UNSAFE = re.compile(r"[^\x21-\x7e]")

# Where an ampersand is an ordinary character. An unterminated one extends to the end of the text: otherwise each
# further beginning would be searched to there.
_VERBATIM = re.compile(rb"<!\[CDATA\[.*?(?:\]\]>|\Z)|<!--.*?(?:-->|\Z)|<\?.*?(?:\?>|\Z)", re.DOTALL)

# One pattern for both: a search for two bytes takes three times as long.
_OPENS_VERBATIM = re.compile(rb"<[!?]")


class Envelope:
    """The prepared form of the pushes to one subscription. Immutable; cached until the subscription changes."""

    def __init__(
        self,
        subscription: Subscription,
        opener: SecretOpener | None = None,
        callback_s: float = 0.0,
        lifespan_s: float = 0.0,
    ) -> None:
        """Raises SecretError if the protection cannot be opened, TopicError for an address of impossible MQTT topics.
        A receiver may report a result within `callback_s`, 0 for never. A queue server may answer a request into a pull
        point of another owner for `lifespan_s`."""
        self._secrets = _secrets(subscription, opener)
        self._callback = callback_of(subscription, opener.keys, callback_s) if opener is not None else None
        self._url = subscription.consumer.address
        self._mqtt = TopicsOut(self._url) if is_mqtt(self._url) else None
        self._subscription = subscription
        keys = opener.keys if opener is not None else None
        mark = partial(answer_token, keys, subscription.owner, int(lifespan_s * 1000))
        self._answer_token = mark if subscription.queue else None
        self._headers = _http_headers(subscription)
        if self._secrets is not None:
            self._headers += self._secrets.fixed
        self._source = ""
        """The engine's public address, of subscriptions for CloudEvents."""
        if is_cloud_events(subscription.form):
            self._source = subscription.address.rpartition(_MANAGER)[0] or "urn:arborcast"
        if subscription.form in ("legacy", "peer") or self._source:
            self._start = self._message_start = b""
            return
        self._start = (
            f'<soap:Envelope xmlns:soap="{SOAP11 if subscription.soap == "1.1" else SOAP12}" xmlns:wsa="{WSA}">'
            f"<soap:Header>{_addressing_headers(subscription)}"
            f'<ac:Delivery xmlns:ac="{ARBORCAST_DELIVERY}"><ac:Subscription>{escape(subscription.id)}</ac:Subscription>'
        ).encode()
        self._message_start = (
            "<wsnt:NotificationMessage><wsnt:SubscriptionReference>"
            f"<wsa:Address>{escape(subscription.address)}</wsa:Address></wsnt:SubscriptionReference>"
        ).encode()

    def requests(
        self,
        notifications: Sequence[Notification],
        attempt: int,
        now_s: float,
        traceparent: str | None = None,
        push: str = "",
        sequence: int | None = None,
    ) -> Iterator[PushRequest]:
        """As `request`; or several requests, each sent after the previous one was accepted: a message too large for an
        old subscriber is sent in parts. Each is made on demand. Raises ValueError if it cannot be split."""
        pieces = self._pieces(notifications[0])
        piece = next(pieces, None)
        if piece is None:
            yield self.request(notifications, attempt, now_s, traceparent, push, sequence)
        while piece is not None:
            following = next(pieces, None)
            # The result of all of them is reported with the last one.
            name = push if following is None else ""
            yield self.request(notifications, attempt, now_s, traceparent, name, sequence, piece)
            piece, now_s = following, time.time()

    def _pieces(self, notification: Notification) -> Iterator[Piece]:
        limit = self._subscription.policy.fragment_bytes or notification.split_bytes
        if not limit or self._subscription.form != "legacy":
            return iter(())
        fragment = read_package(notification.package)[0] if notification.package else Fragment()
        if fragment.part:
            return iter(())
        content = read_content(_as_text(notification.payload, strip=True).decode())
        return split(content, notification.topic, f"arborcast:{notification.original_id}", limit, alone=fragment.alone)

    def request(
        self,
        notifications: Sequence[Notification],
        attempt: int,
        now_s: float | None = None,
        traceparent: str | None = None,
        push: str = "",
        sequence: int | None = None,
        piece: Piece | None = None,
    ) -> PushRequest:
        """The push of these notifications, as the `attempt`th attempt. Only the `notify` form carries several. With a
        `piece` it is that part of the notification.

        `now_s` is the time of the push in seconds since the epoch, default now: it is signed, and old signatures are
        refused, so a request is made for each attempt. `traceparent` is the trace context of the push, default that of
        the notifications; `push` its id. `sequence` is the number of earlier pushes, default `attempt - 1`.
        """
        now_s = time.time() if now_s is None else now_s
        if self._subscription.peer is not None:
            headers = (*self._headers, (ATTEMPT_HEADER, str(attempt)))
            return self._guarded(headers, encode_push(notifications, self._subscription.peer), notifications, now_s)
        ids = _header_value(",".join([notification.original_id for notification in notifications]))
        if piece is not None:
            ids += f".{piece.fragment.number}"
        headers = (*self._headers, (ID_HEADER, ids), (ATTEMPT_HEADER, str(attempt)))
        if piece is not None:
            headers += ((PACKAGE_HEADER, package_header(piece.fragment, piece.identification)),)
        elif any(notification.package for notification in notifications):
            packages = ",".join(package_of(each) or "-" for each in notifications)
            if packages.strip("-,"):
                headers += ((PACKAGE_HEADER, packages),)
        sequence = attempt - 1 if sequence is None else sequence
        if sequence:
            headers += ((SEQUENCE_HEADER, str(sequence)),)
        if any(notification.replay for notification in notifications):
            replays = ",".join(_header_value(notification.replay) or "-" for notification in notifications)
            headers += ((REPLAY_HEADER, replays),)
        context = shared([each.traceparent for each in notifications]) if traceparent is None else traceparent
        if context:
            headers += ((tracing.HEADER, _header_value(context)),)
        if self._mqtt is not None:
            return _mqtt_request(self._mqtt, headers, notifications[0])
        by_ms = 0
        if self._callback is not None and push:
            callback_headers, by_ms = self._callback.headers(push, int(now_s * 1000), len(notifications))
            headers += callback_headers
        if self._source:
            events, body = pushed(self._subscription.form, [self._event(each) for each in notifications])
            headers += events
        elif self._subscription.form == "legacy":
            body = _LEGACY_START + (_legacy_content(notifications[0]) if piece is None else _part(piece)) + _LEGACY_END
        else:
            body = self._body(notifications, attempt, now_s)
        return self._guarded(
            headers, body, notifications, now_s, "" if piece is None else f".{piece.fragment.number}", by_ms
        )

    def _guarded(
        self,
        headers: tuple[tuple[str, str], ...],
        body: bytes,
        notifications: Sequence[Notification],
        now_s: float,
        suffix: str = "",
        by_ms: int = 0,
    ) -> PushRequest:
        if self._secrets is None:
            return PushRequest(self._url, headers, body, result_by_ms=by_ms)
        message_id = f"msg_{_digest(self._subscription.id, notifications).hex()}{suffix}"
        signature = self._secrets.signature(message_id, body, now_s)
        return PushRequest(self._url, (*headers, *signature), body, self._secrets.certificate, by_ms)

    @property
    def size(self) -> int:
        """Its approximate size in memory, exact for the parts whose length a subscriber chooses."""
        written = sum(len(name) + len(value) for name, value in self._headers)
        return 1_000 + len(self._url) + written + len(self._start) + len(self._message_start)

    def redact(self, answer: bytes) -> bytes:
        """A receiver's answer with echoed credentials removed."""
        return answer if self._secrets is None else self._secrets.redact(answer)

    def _event(self, each: Notification) -> Event:
        published = published_in(each.producer)
        return event_of(
            each.original_id, each.topic, each.payload, each.accepted_ms, self._source, each.type, published
        )

    def _body(self, notifications: Sequence[Notification], attempt: int, now_s: float) -> bytes:
        parts = [self._start]
        for notification in notifications:
            parts.append(_notification_entry(notification))
            if self._answer_token is not None:
                parts.append(_request_entry(notification, self._answer_token(notification, int(now_s * 1000))))
        parts.append(b"<ac:Attempt>%d</ac:Attempt></ac:Delivery>" % attempt)
        if self._subscription.addressing:
            parts.append(f"<wsa:MessageID>{_message_id(self._subscription.id, notifications)}</wsa:MessageID>".encode())
        parts.append(b"</soap:Header><soap:Body>")
        if self._subscription.form == "raw":
            parts.append(notifications[0].payload)
        else:
            parts.append(_NOTIFY_START)
            # A server gets one request at a time; merged equal ones add reply addresses.
            for notification in notifications[:1] if self._answer_token is not None else notifications:
                topic = topic_element(notification.topic, notification.prefixes)
                parts += (self._message_start, topic, notification.producer)
                parts += (b"<wsnt:Message>", notification.payload, _MESSAGE_END)
            parts.append(b"</wsnt:Notify>")
        parts.append(b"</soap:Body></soap:Envelope>")
        return b"".join(parts)


def _mqtt_request(topics: TopicsOut, headers: tuple[tuple[str, str], ...], notification: Notification) -> PushRequest:
    """The push to the MQTT topic of a notification. Raises TopicError."""
    content = unwrap(notification.payload)
    if content is notification.payload:
        headers += (("Content-Type", "application/xml"),)
    else:
        content = read_content(content.decode()).encode()
    headers += ((TOPIC_HEADER, notification.topic),)
    if notification.valid_until_ms:
        headers += ((EXPIRES_HEADER, str(notification.valid_until_ms)),)
    return PushRequest(topics.url(notification.topic), headers, content)


_NOTIFY_START = f'<wsnt:Notify xmlns:wsnt="{WSNT}">'.encode()
_MESSAGE_END = b"</wsnt:Message></wsnt:NotificationMessage>"
_LEGACY_START = (
    f'<soapenv:Envelope xmlns:soapenv="{SOAP11}" xmlns:org="{HPWSN_PUSH}">'
    "<soapenv:Header/><soapenv:Body><org:notificationProcess>"
).encode()
_LEGACY_END = b"</org:notificationProcess></soapenv:Body></soapenv:Envelope>"


# Bytes of topic elements, twice: some ten thousand of ordinary length.
_topic_elements: Recent[str, bytes] = Recent(4 * 1024 * 1024)


def topic_element(path: TopicPath, prefixes: str = "") -> bytes:
    """The wsnt:Topic element that names this one topic, with these prefixes (`topic_model.tree.prefixes`)."""
    key = f"{prefixes} {path}" if prefixes else path  # there is no blank in a path
    element = _topic_elements.get(key)
    if element is None:
        element = _topic_element(path, prefixes)
        _topic_elements.put(key, element, len(key) + len(element))
    return element


def _topic_element(path: TopicPath, prefixes: str) -> bytes:
    text, namespaces = write_topic(path, prefixes)
    declared = "".join(f" xmlns:{prefix}={quoteattr(uri)}" for prefix, uri in namespaces.items())
    return f'<wsnt:Topic{declared} Dialect="{CONCRETE}">{escape(text)}</wsnt:Topic>'.encode()


def _notification_entry(notification: Notification) -> bytes:
    label = f" replay={quoteattr(notification.replay)}" if notification.replay else ""
    if notification.traceparent:
        label += f" traceparent={quoteattr(notification.traceparent)}"
    if notification.package and (package := package_of(notification)):
        label += f" package={quoteattr(package)}"
    return f"<ac:Notification{label}>{escape(notification.original_id)}</ac:Notification>".encode()


def _request_entry(notification: Notification, token: str) -> bytes:
    """The entry of a request: its message id, reply address, and the `token`."""
    reply_to = notification.reply_to
    if reply_to is None:
        return b""
    parameters = "".join(reply_to.reference_parameters) + token
    if parameters:
        parameters = f"<wsa:ReferenceParameters>{parameters}</wsa:ReferenceParameters>"
    return (
        f"<ac:Request id={quoteattr(notification.original_id)}>"
        f"<wsa:MessageID>{escape(notification.message_id)}</wsa:MessageID>"
        f"<wsa:ReplyTo><wsa:Address>{escape(reply_to.address)}</wsa:Address>{parameters}</wsa:ReplyTo></ac:Request>"
    ).encode()


def _http_headers(subscription: Subscription) -> tuple[tuple[str, str], ...]:
    fixed = ((SUBSCRIPTION_HEADER, _header_value(subscription.id)),)
    if is_mqtt(subscription.consumer.address):
        return fixed
    # The action is sent only to users of WS-Addressing: a consumer whose binding declares another action, or none,
    # refuses it, while an empty one is accepted everywhere.
    action = NOTIFY_ACTION if subscription.addressing else ""
    if subscription.form == "legacy":
        return (("Content-Type", "text/xml; charset=UTF-8"), ("SOAPAction", '""'), *fixed)
    if subscription.form == "peer":
        return (("Content-Type", MEDIA_TYPE), *fixed)
    if is_cloud_events(subscription.form):
        return fixed
    if subscription.soap == "1.1":
        return (("Content-Type", "text/xml; charset=utf-8"), ("SOAPAction", f'"{action}"'), *fixed)
    parameter = f'; action="{action}"' if action else ""
    return (("Content-Type", f"application/soap+xml; charset=utf-8{parameter}"), *fixed)


def package_of(notification: Notification) -> str:
    """The value of the headers for a part; empty for a whole message."""
    fragment, identification = read_package(notification.package) if notification.package else (Fragment(), "")
    return package_header(fragment, identification) if fragment.part else ""


def _part(piece: Piece) -> bytes:
    # A bare carriage return would be read as a line feed.
    return escape(piece.text, {"\r": "&#13;"}).encode()


def _legacy_content(notification: Notification) -> bytes:
    """The payload as text. Entity references stay, as the receivers expect."""
    # Of a part the blanks at its ends belong to the message.
    content = _as_text(notification.payload, strip=not package_of(notification))
    return content.replace(b"<", b"&lt;").replace(b">", b"&gt;")


def _as_text(payload: bytes, *, strip: bool) -> bytes:
    content = unwrap(payload)
    if strip:
        content = content.strip()
    if _OPENS_VERBATIM.search(content):
        # There an ampersand begins no reference; unescaped, it would break the XML around the text.
        content = _VERBATIM.sub(lambda found: found[0].replace(b"&", b"&amp;"), content)
    return content


def _addressing_headers(subscription: Subscription) -> str:
    parameters = parameter_blocks(subscription.consumer.reference_parameters)
    if not subscription.addressing:
        return parameters
    address = escape(subscription.consumer.address)
    return f"<wsa:To>{address}</wsa:To><wsa:Action>{NOTIFY_ACTION}</wsa:Action>{parameters}"


def _message_id(subscription_id: str, notifications: Sequence[Notification]) -> str:
    """The same for the same messages on every attempt, another one for any other subscription or set of messages.

    A receiver that drops repeats by wsa:MessageID must recognise a retry, and must not drop a new message because it
    is pushed together with a repeated one.
    """
    return uuid.UUID(bytes=_digest(subscription_id, notifications), version=4).urn


def _digest(subscription_id: str, notifications: Sequence[Notification]) -> bytes:
    identity = "\n".join((subscription_id, *(n.id for n in notifications)))
    return hashlib.blake2b(identity.encode(), digest_size=16).digest()


def _secrets(subscription: Subscription, opener: SecretOpener | None) -> PushSecrets | None:
    if subscription.protection is None:
        return None
    if opener is None:
        raise SecretError("this subscription's pushes are protected, and this process has no keys to open the secrets")
    return opener.open(subscription)


def _header_value(text: str) -> str:
    return _UNSAFE.sub("_", text)


def answer_token(keys: Keys | None, server: str, lifespan_ms: int, notification: Notification, now_ms: int) -> str:
    """The reference parameter by which the gateway lets this server of a queue answer a request, also into a pull point
    of another owner; empty where it needs none."""
    if keys is None or not (server and notification.reply_point):
        return ""
    until_ms = notification.valid_until_ms or notification.accepted_ms + lifespan_ms
    request = ServedRequest(notification.reply_point, notification.message_id, server)
    try:
        token = write_answer_token(request, max(until_ms, now_ms) + _WORK_MS, keys)
    except SecretError as error:
        logger.debug("no token for an answer: %s", error)
        return ""
    return f'<q:Answer xmlns:q="{ARBORCAST_QUEUE}">{token}</q:Answer>'


# The address for a later result is one of the gateway that manages the subscription, so it needs no setting. It
# contains everything about the push (`topic_model.records.results`); no state is kept.
CALLBACK_HEADER = "Arborcast-Callback"
PUSH_HEADER = "Arborcast-Push"

_MANAGER = "/wsn/subscriptions/"


@dataclass(frozen=True)
class Callback:
    """Makes the callback addresses of one subscription's pushes."""

    subscription: str
    base: str
    keys: Keys
    wait_ms: int

    def headers(self, push: str, started_ms: int, messages: int) -> tuple[tuple[tuple[str, str], ...], int]:
        """The headers of a push, and the deadline of its result in milliseconds; `((), 0)` without keys."""
        promise = Promise(self.subscription, push, started_ms, started_ms + self.wait_ms, messages)
        try:
            address = self.base + write_promise(promise, self.keys)
        except SecretError as error:
            # Without the address, the receiver can still answer at once.
            logger.debug("no address for a result: %s", error)
            return (), 0
        return ((PUSH_HEADER, push), (CALLBACK_HEADER, address)), promise.until_ms


def callback_of(subscription: Subscription, keys: Keys, wait_s: float) -> Callback | None:
    """For the pushes of a subscription; None if results cannot be reported later. A timely push has no later result."""
    base, manager, _ = subscription.address.rpartition(_MANAGER)
    if not (wait_s and base and manager) or subscription.policy.reliability == "timely":
        return None
    # A request of a queue waits in the lane of the queue.
    lane = queue_of(TopicPath(subscription.selector())).id if subscription.queue else subscription.id
    return Callback(lane, base + PATH, keys, int(wait_s * 1000))
