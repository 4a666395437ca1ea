"""A small publisher on demand: an HTTP server that grants subscriptions and records its requests.

It uses no product code: messages are read with a plain XML parser and written by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import requests
from lxml import etree

from tests.support import soap_messages as soap
from tests.support.http_server import Answer, AnsweringServer


@dataclass(frozen=True)
class Received:
    """One request: the operation's name, the URL path, and the whole message."""

    operation: str
    path: str
    message: etree._Element


@dataclass
class Held:
    """A subscription at the publisher."""

    consumer: str
    topic: str
    paused: bool = False


@dataclass
class Publisher:
    """A context manager. `refuses` are operations answered with a fault, `away` answers everything with 503."""

    lasts_s: float = 600
    ends: str = ""
    """TerminationTime in answers, if not counted from now."""
    refuses: set[str] = field(default_factory=set)
    away: bool = False
    requests: list[Received] = field(default_factory=list)
    subscriptions: dict[str, Held] = field(default_factory=dict)
    reference_parameters: str = ""

    def __enter__(self) -> Publisher:
        self._server = AnsweringServer(self._answer)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    @property
    def url(self) -> str:
        """The URL for Subscribe."""
        return f"http://127.0.0.1:{self._server.port}/producer"

    @property
    def operations(self) -> list[str]:
        """The requested operations, in order."""
        return [one.operation for one in self.requests]

    def publish(self, topic: str, payload: str) -> int:
        """Notify the subscribers to this topic that are not paused; returns their number."""
        held = [one for one in list(self.subscriptions.values()) if one.topic == topic and not one.paused]
        for one in held:
            message = soap.envelope(
                f"<wsnt:Notify><wsnt:NotificationMessage><wsnt:Topic>{topic}</wsnt:Topic><wsnt:ProducerReference>"
                f"<wsa:Address>{self.url}</wsa:Address></wsnt:ProducerReference><wsnt:Message>{payload}</wsnt:Message>"
                "</wsnt:NotificationMessage></wsnt:Notify>"
            )
            headers = {"Content-Type": soap.MEDIA_TYPES["1.1"]}
            requests.post(one.consumer, data=message, headers=headers, timeout=60).raise_for_status()
        return len(held)

    def _answer(self, path: str, body: bytes, _: object) -> Answer:
        root = etree.fromstring(body)
        operation = root.find("{*}Body")[0]  # type: ignore[index]
        name = etree.QName(operation).localname
        status, answer = self._carry_out(path, name, operation)
        # Recorded after the operation: tests that see the request may check its effect.
        self.requests.append(Received(name, path, root))
        return status, answer, {"Content-Type": soap.MEDIA_TYPES["1.1"]}

    def _carry_out(self, path: str, name: str, operation: etree._Element) -> tuple[int, bytes]:
        if self.away:
            return 503, b""
        known = path == "/producer" if name == "Subscribe" else path in self.subscriptions
        if name in self.refuses or not known:
            return 500, soap.envelope("<s:Fault><faultcode>s:Client</faultcode><faultstring>no</faultstring></s:Fault>")
        now = datetime.now(UTC)
        current = f"<wsnt:CurrentTime>{now.isoformat()}</wsnt:CurrentTime>"
        until = self.ends or (now + timedelta(seconds=self.lasts_s)).isoformat()
        ends = f"<wsnt:TerminationTime>{until}</wsnt:TerminationTime>"
        match name:
            case "Subscribe":
                path = f"/held/{len(self.requests) + 1}"
                self.subscriptions[path] = Held(
                    operation.findtext("{*}ConsumerReference/{*}Address") or "",
                    operation.findtext("{*}Filter/{*}TopicExpression") or "",
                )
                address = self.url.replace("/producer", path)
                return 200, soap.envelope(
                    f"<wsnt:SubscribeResponse><wsnt:SubscriptionReference><wsa:Address>{address}</wsa:Address>"
                    f"{self.reference_parameters}</wsnt:SubscriptionReference>{current}{ends}</wsnt:SubscribeResponse>"
                )
            case "Renew":
                return 200, soap.envelope(f"<wsnt:RenewResponse>{ends}{current}</wsnt:RenewResponse>")
            case "PauseSubscription" | "ResumeSubscription":
                self.subscriptions[path].paused = name == "PauseSubscription"
            case "Unsubscribe":
                del self.subscriptions[path]
        return 200, soap.envelope(f"<wsnt:{name}Response/>")
