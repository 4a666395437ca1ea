"""The engine through its ordinary interfaces: a message is published at the gateway, and messages are pulled from
there."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

import msgspec

from arborcast.client import Client, Credentials, Remote, RemoteSubscription, Retries, UnreadableAnswer
from arborcast.client.calls import Call, ResultT
from arborcast.client.received import ReceivedMessage, Reply, messages
from arborcast.client.transport import RequestsTransport
from arborcast.core.errors import ArborcastError
from arborcast.topic_model.expressions import FULL
from arborcast.topic_model.namespaces import WSA, WSNT
from arborcast.topic_model.patterns.patterns import EVERYTHING
from arborcast.topic_model.subscriptions import TopicFilter
from arborcast.topic_model.topics import TopicPath
from arborcast.wire import answers

_TEV = "http://www.onvif.org/ver10/events/wsdl"

# Timeout to connect, and beyond the requested wait: a visitor is watching.
_TIMEOUT_S = (2.0, 20.0)

WAIT_S: Final = 5.0
"""How long the gateway waits for a message."""

_MOST = 500

_LASTS_S = 60


class PublishRefused(ArborcastError):
    """The gateway's refusal, with the reason."""


def publish(url: str, credentials: Credentials | None, topic: TopicPath, payload: str) -> str:
    """Publish as `curl` would: the id that the message has in the log. Raises PublishRefused, ClientError."""
    kind = "application/xml" if payload.lstrip().startswith("<") else "application/json"
    if kind == "application/json":
        try:
            msgspec.json.decode(payload)
        except msgspec.DecodeError as error:
            raise PublishRefused("The message is neither XML, which begins with <, nor JSON.") from error
    headers = {"Content-Type": f"{kind}; charset=utf-8"}
    if credentials is not None:
        proof = base64.b64encode(f"{credentials.user}:{credentials.password}".encode()).decode()
        headers["Authorization"] = f"Basic {proof}"
    transport = RequestsTransport(_TIMEOUT_S, connections=1)
    try:
        answer = transport.post(f"{url}/publish/{quote(topic, safe='/')}", headers, payload.strip().encode())
    finally:
        transport.close()
    if answer.status != 202:
        refusal = answer.body.decode(errors="replace").strip()
        raise PublishRefused(refusal[:1_000] or f"the gateway answered {answer.status}")
    return answer.header("Arborcast-Notification-Id")


class Puller(Client):
    """A subscription with a pull point (ONVIF's): the console need not be reachable, and an abandoned one ends within
    two minutes."""

    def __init__(self, url: str, credentials: Credentials | None) -> None:
        super().__init__(url, timeout_s=_TIMEOUT_S, retries=Retries(unanswered=False), credentials=credentials)

    def subscribe_to(self, topics: TopicFilter) -> RemoteSubscription:
        """Raises ClientError."""
        declared = "".join(f" xmlns:{prefix}={answers.attribute(uri)}" for prefix, uri in topics.namespaces.items())
        expression = (
            ""
            if topics.normal == EVERYTHING
            else f'<tev:Filter><wsnt:TopicExpression{declared} Dialect="{FULL}">{answers.text(topics.text)}'
            "</wsnt:TopicExpression></tev:Filter>"
        )
        body = (
            f'<tev:CreatePullPointSubscription xmlns:tev="{_TEV}" xmlns:wsnt="{WSNT}">{expression}'
            f"<tev:InitialTerminationTime>PT{_LASTS_S}S</tev:InitialTerminationTime></tev:CreatePullPointSubscription>"
        )
        return self._asked(Remote(self.broker), "EventPortType/CreatePullPointSubscription", body, _made)

    def pull(self, subscription: RemoteSubscription) -> list[ReceivedMessage]:
        """Messages that wait, or arrive within WAIT_S; keeps the subscription alive. Raises ClientError."""
        body = (
            f'<tev:PullMessages xmlns:tev="{_TEV}"><tev:Timeout>PT{WAIT_S:g}S</tev:Timeout>'
            f"<tev:MessageLimit>{_MOST}</tev:MessageLimit></tev:PullMessages>"
        )
        return self._asked(subscription, "PullPointSubscription/PullMessages", body, messages)

    def _asked(self, to: Remote, action: str, body: str, read: Callable[[Reply], ResultT]) -> ResultT:
        return self._exchange(Call(to, f"{_TEV}/{action}Request", body, read, repeatable=False))[0]


def _made(reply: Reply) -> RemoteSubscription:
    address = None if reply is None else reply.operation.findtext(f".//{{{WSA}}}Address")
    if not address:
        raise UnreadableAnswer("the gateway's answer names no subscription")
    return RemoteSubscription(address.strip())
