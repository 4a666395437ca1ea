"""Messages as a consumer receives them: reading a push, or what a pull point handed out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from lxml import etree

from core.security.signatures import TOLERANCE_S, check, key_of, new_secret
from ingest.elements.topics import read_topic
from ingest.errors import InvalidRequest
from ingest.soap.envelope import parse
from ingest.soap.fragments import Source
from topic_model.namespaces import wsa, wsnt
from topic_model.topics import TopicPath

__all__ = ["ReceivedMessage", "SignedWith", "new_secret", "read_messages", "read_push", "read_push_request"]


class SignedWith:
    """Raises SignatureError for a push that none of these secrets has signed, or too long ago; a `verify` of listeners.

    While a secret is being replaced give both. Raises SecretError for what is no secret.
    """

    def __init__(self, *secrets: str, tolerance_s: float = TOLERANCE_S, now: Callable[[], float] = time.time) -> None:
        self._keys = tuple(key_of(secret) for secret in secrets)
        self._tolerance_s = tolerance_s
        self._now = now

    def trust(self, *secrets: str) -> None:
        """Accept these and no others from now on."""
        self._keys = tuple(key_of(secret) for secret in secrets)

    def __call__(self, headers: Mapping[str, str], body: bytes) -> None:
        check(self._keys, headers, body, self._now(), self._tolerance_s)


# Envelope, Body, Notify or GetMessagesResponse, NotificationMessage, Message, payload.
PAYLOAD_DEPTH = 6

_RAW_DEPTH = 3


@dataclass(frozen=True)
class ReceivedMessage:
    """One notification that came to us.

    `payload` is self-contained XML in UTF-8. `topic` and `subscription` (the subscription manager's address) are None
    in raw pushes. `notification_id` is the same on every attempt and empty when the broker says none; `attempt` counts
    from 1. `replay` names the replay that brought it again, empty when it came by itself.
    """

    payload: bytes
    topic: TopicPath | None = None
    subscription: str | None = None
    notification_id: str = ""
    attempt: int = 1
    replay: str = ""


OnMessage = Callable[[ReceivedMessage], None]

Verify = Callable[[Mapping[str, str], bytes], None]

"""Judges a push by its HTTP headers (names in lower case) and its body; raises when it is not genuine."""


def read_push(body: bytes, content_type: bytes, ids: str = "", attempt: int = 1) -> list[ReceivedMessage]:
    """The messages in a push: those of a wsnt:Notify, or the one payload of a raw push. Raises PeerError.

    `ids` are the notifications' ids in order, separated by commas, as our broker's HTTP header has them.
    """
    request = parse(body, content_type)
    numbered = ids.split(",") if ids else []
    if request.name != wsnt("Notify"):
        source = request.source(_RAW_DEPTH)
        payload = source.fragment(source.node(request.operation))
        return [ReceivedMessage(payload, notification_id=numbered[0] if numbered else "", attempt=attempt)]
    return read_messages(request.operation, request.source(PAYLOAD_DEPTH), numbered, attempt)


def read_push_request(headers: Mapping[str, str], body: bytes) -> list[ReceivedMessage]:
    """The messages in a push over HTTP; `headers` by names in lower case. Raises PeerError."""
    attempt = headers.get("arborcast-attempt", "1")
    messages = read_push(
        body,
        headers.get("content-type", "").encode("latin-1", "replace"),
        headers.get("arborcast-notification-id", ""),
        int(attempt) if attempt.isascii() and attempt.isdigit() and len(attempt) < 10 else 1,
    )
    replays = headers.get("arborcast-replay")
    if replays is None:
        return messages
    labels = (label.strip() for label in replays.split(","))
    # Whatever the header says, no message is left out for it.
    return [message if (label := next(labels, "-")) == "-" else replace(message, replay=label) for message in messages]


def read_messages(
    parent: etree._Element, source: Source, ids: Sequence[str] = (), attempt: int = 1
) -> list[ReceivedMessage]:
    """The NotificationMessages below an element. Raises PeerError."""
    received = []
    nodes = source.node(parent).children
    number = 0
    for message, node in zip(parent, nodes, strict=True):
        if message.tag != wsnt("NotificationMessage"):
            continue
        content, topic = message.find(wsnt("Message")), message.find(wsnt("Topic"))
        if content is None or not len(content):
            raise InvalidRequest("a NotificationMessage without a payload")
        address = message.findtext(f"{wsnt('SubscriptionReference')}/{wsa('Address')}")
        payload = node.children[message.index(content)].children[0]
        received.append(
            ReceivedMessage(
                source.fragment(payload),
                None if topic is None else read_topic(topic),
                address.strip() if address else None,
                ids[number] if number < len(ids) else "",
                attempt,
            )
        )
        number += 1
    return received
