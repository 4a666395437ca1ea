"""A little publisher on demand: an HTTP server that grants subscriptions and remembers what it was asked.

It knows nothing of our code: messages are read with a plain XML parser and written by hand.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

import requests
from lxml import etree

from tests.support.waiting import TIMEOUT_S, wait_until

WSNT = "http://docs.oasis-open.org/wsn/b-2"
WSA = "http://www.w3.org/2005/08/addressing"
SOAP11 = "http://schemas.xmlsoap.org/soap/envelope/"


@dataclass(frozen=True)
class Asked:
    """One request: the operation's name, where it was posted, and the whole message."""

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
    """A context manager. `refuses` are operations answered with a fault, `away` answers everything with 503, `manager`
    is what it says about where its subscriptions are."""

    lasts_s: float = 600
    ends: str = ""
    """What it says as TerminationTime, where that is not counted from now."""
    refuses: set[str] = field(default_factory=set)
    away: bool = False
    asked: list[Asked] = field(default_factory=list)
    subscriptions: dict[str, Held] = field(default_factory=dict)
    reference_parameters: str = ""
    manager: str = ""

    def __enter__(self) -> Publisher:
        publisher = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer = publisher._answer(self.path, body)
                self.send_response(status)
                self.send_header("Content-Type", "text/xml; charset=utf-8")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join(120)
        self._server.server_close()

    @property
    def url(self) -> str:
        """Where it takes Subscribe."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/producer"

    @property
    def operations(self) -> list[str]:
        """What it was asked, in order."""
        return [one.operation for one in self.asked]

    def publish(self, topic: str, payload: str) -> int:
        """Notify the subscribers to this topic that are not paused; how many there were."""
        held = [one for one in list(self.subscriptions.values()) if one.topic == topic and not one.paused]
        for one in held:
            message = (
                f'<s:Envelope xmlns:s="{SOAP11}" xmlns:wsnt="{WSNT}" xmlns:wsa="{WSA}"><s:Body><wsnt:Notify>'
                f"<wsnt:NotificationMessage><wsnt:Topic>{topic}</wsnt:Topic><wsnt:ProducerReference><wsa:Address>"
                f"{self.url}</wsa:Address></wsnt:ProducerReference><wsnt:Message>{payload}</wsnt:Message>"
                "</wsnt:NotificationMessage></wsnt:Notify></s:Body></s:Envelope>"
            )
            headers = {"Content-Type": "text/xml; charset=utf-8"}
            requests.post(one.consumer, data=message.encode(), headers=headers, timeout=60).raise_for_status()
        return len(held)

    def wait_for(self, condition: Callable[[], bool], what: str, timeout: float = TIMEOUT_S) -> None:
        """Poll until the condition holds."""
        wait_until(
            lambda: condition(), lambda: f"not {what} after {timeout} s; asked: {self.operations}", timeout_s=timeout
        )

    def _answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        root = etree.fromstring(body)
        operation = root.find("{*}Body")[0]  # type: ignore[index]
        name = etree.QName(operation).localname
        answer = self._carry_out(path, name, operation)
        # Only now: whoever sees that it was asked may look at what came of it.
        self.asked.append(Asked(name, path, root))
        return answer

    def _carry_out(self, path: str, name: str, operation: etree._Element) -> tuple[int, bytes]:
        if self.away:
            return 503, b""
        known = path == "/producer" if name == "Subscribe" else path in self.subscriptions
        if name in self.refuses or not known:
            return 500, _envelope("<s:Fault><faultcode>s:Client</faultcode><faultstring>no</faultstring></s:Fault>")
        now = datetime.now(UTC)
        current = f"<wsnt:CurrentTime>{now.isoformat()}</wsnt:CurrentTime>"
        until = self.ends or (now + timedelta(seconds=self.lasts_s)).isoformat()
        ends = f"<wsnt:TerminationTime>{until}</wsnt:TerminationTime>"
        match name:
            case "Subscribe":
                path = f"/held/{len(self.asked) + 1}"
                self.subscriptions[path] = Held(
                    operation.findtext(f"{{{WSNT}}}ConsumerReference/{{{WSA}}}Address") or "",
                    operation.findtext(f"{{{WSNT}}}Filter/{{{WSNT}}}TopicExpression") or "",
                )
                address = self.manager or self.url.replace("/producer", path)
                return 200, _envelope(
                    f"<wsnt:SubscribeResponse><wsnt:SubscriptionReference><wsa:Address>{address}</wsa:Address>"
                    f"{self.reference_parameters}</wsnt:SubscriptionReference>{current}{ends}</wsnt:SubscribeResponse>"
                )
            case "Renew":
                return 200, _envelope(f"<wsnt:RenewResponse>{ends}{current}</wsnt:RenewResponse>")
            case "PauseSubscription" | "ResumeSubscription":
                self.subscriptions[path].paused = name == "PauseSubscription"
            case "Unsubscribe":
                del self.subscriptions[path]
        return 200, _envelope(f"<wsnt:{name}Response/>")


def _envelope(body: str) -> bytes:
    return (
        f'<s:Envelope xmlns:s="{SOAP11}" xmlns:wsnt="{WSNT}" xmlns:wsa="{WSA}"><s:Body>{body}</s:Body></s:Envelope>'
    ).encode()
