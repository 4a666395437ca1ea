"""The screen Try: what is published, what arrives, and that nothing is left when the page goes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from starlette.requests import Request

from arborcast.admin.messages import Busiest
from arborcast.client import Credentials
from arborcast.client.received import read_push
from arborcast.console.guard import Visitor
from arborcast.console.screens import trying
from arborcast.console.screens.trying.watching import _arrived, arrivals
from arborcast.core.errors import InfrastructureError
from arborcast.dispatch.hot.sink_journal import stored_element
from arborcast.topic_model.expressions import parse_friendly
from arborcast.topic_model.namespaces import SOAP11, WSNT
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from tests.support.console import Browser, ConsoleParts, console_parts
from tests.support.routing import make_subscription

HOSTILE = "<reading><script>alert(1)</script></reading>"

_MESSAGES = """<wsnt:NotificationMessage xmlns:wsnt="http://docs.oasis-open.org/wsn/b-2"><wsnt:Topic
 Dialect="http://docs.oasis-open.org/wsn/t-1/TopicExpression/Concrete">plant/press</wsnt:Topic><wsnt:Message>{}</wsnt:Message>
</wsnt:NotificationMessage>"""


class Gateway(ThreadingHTTPServer):
    """Remembers what it was asked, and answers as the gateway does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str, str]] = []
        """Path, Authorization, body."""
        self.refuses = ""
        self.waiting: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def told(self, word: str) -> list[str]:
        return [body for _, _, body in self.asked if word in body]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        gateway = self.server
        assert isinstance(gateway, Gateway)
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        gateway.asked.append((self.path, self.headers.get("Authorization", ""), body))
        status, answer, kind = self._answer(gateway, body)
        content = answer.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if status == 202:
            self.send_header("Arborcast-Notification-Id", "01a2")
        self.end_headers()
        self.wfile.write(content)

    def _answer(self, gateway: Gateway, body: str) -> tuple[int, str, str]:
        if gateway.refuses:
            return 403, gateway.refuses, "text/plain"
        if self.path.startswith("/publish/"):
            return 202, "", "text/plain"
        if "CreatePullPointSubscription" in body:
            return self._soap(
                "<tev:CreatePullPointSubscriptionResponse xmlns:tev='http://www.onvif.org/ver10/events/wsdl'>"
                "<tev:SubscriptionReference><a:Address xmlns:a='http://www.w3.org/2005/08/addressing'>"
                f"{gateway.url}/wsn/subscriptions/s1</a:Address></tev:SubscriptionReference>"
                "</tev:CreatePullPointSubscriptionResponse>"
            )
        if "PullMessages" in body:
            found, gateway.waiting[:] = "".join(map(_MESSAGES.format, gateway.waiting)), []
            return self._soap(
                "<tev:PullMessagesResponse xmlns:tev='http://www.onvif.org/ver10/events/wsdl'>"
                f"{found}</tev:PullMessagesResponse>"
            )
        return self._soap("<w:UnsubscribeResponse xmlns:w='http://docs.oasis-open.org/wsn/b-2'/>")

    @staticmethod
    def _soap(body: str) -> tuple[int, str, str]:
        envelope = (
            f"<s:Envelope xmlns:s='http://schemas.xmlsoap.org/soap/envelope/'><s:Body>{body}</s:Body></s:Envelope>"
        )
        return 200, envelope, "text/xml"

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as gateway:
        thread = threading.Thread(target=gateway.serve_forever, args=(0.05,))
        thread.start()
        yield gateway
        gateway.shutdown()
        thread.join()


def parts_with(home: Path, gateway: Gateway, **settings: str) -> ConsoleParts:
    return console_parts(home, settings={"gateway__public_url": gateway.url, **settings})


def test_a_message_is_published(tmp_path: Path, gateway: Gateway) -> None:
    browser = Browser(parts_with(tmp_path, gateway).app)
    browser.get("/try?topic=plant/press")
    assert browser.submit("/try", payload=HOSTILE).status_code == 200
    assert "accepted 01a2" in browser.text
    assert gateway.asked == [("/publish/plant/press", "", HOSTILE)]
    assert browser.page.xpath("//textarea")[0].text.strip() == HOSTILE, "the form as it was"
    browser.submit("/try", topic="{urn:x?y}a/ä", payload='{"a": 1}')
    assert gateway.asked[-1][0] == "/publish/%7Burn%3Ax%3Fy%7Da/%C3%A4"
    gateway.refuses = "anna may not publish to <b>a</b>"
    browser.submit("/try", topic="a", payload="<a/>")
    assert gateway.refuses in browser.text
    gateway.shutdown()
    gateway.server_close()
    browser.submit("/try", topic="a", payload="<a/>")
    assert "no answer from" in browser.text


@pytest.mark.parametrize(
    ("topic", "payload", "said"),
    [
        ("plant//.", "<a/>", "exactly one"),
        ("a/<b>", "<a/>", "position"),
        ("code:1.2", "<a/>", "code"),
        ("a", "not xml", "neither XML, which begins with <, nor JSON"),
    ],
)
def test_wrong_topics_and_messages(tmp_path: Path, gateway: Gateway, topic: str, payload: str, said: str) -> None:
    browser = Browser(parts_with(tmp_path, gateway).app)
    browser.get("/try")
    assert browser.submit("/try", topic=topic, payload=payload).status_code == 400
    assert said in browser.text
    assert browser.page.get_element_by_id("topic").get("value") == topic
    assert gateway.asked == []


def test_credentials_are_on_no_page(tmp_path: Path, gateway: Gateway) -> None:
    parts = parts_with(tmp_path, gateway, access__methods="basic")
    browser, other = Browser(parts.app), Browser(parts.app)
    browser.get("/try")
    browser.submit("/try/who", name="anna", password="correct horse")  # noqa: S106
    assert "As anna" in browser.text
    assert "correct horse" not in browser.answer.text
    browser.submit("/try", topic="a", payload="<a/>")
    assert gateway.asked[-1][1] == "Basic YW5uYTpjb3JyZWN0IGhvcnNl"
    other.get("/try")
    assert "anna" not in other.answer.text
    browser.get("/try")
    browser.submit("/try/who")
    browser.submit("/try", topic="a", payload="<a/>")
    assert gateway.asked[-1][1] == ""


def test_a_page_that_watches_listens_there(tmp_path: Path, gateway: Gateway) -> None:
    browser = Browser(parts_with(tmp_path, gateway).app)
    browser.get("/try?watch=plant//.%26x")
    assert "position" in browser.text, "that is no expression"
    browser.get("/try?watch={urn:x%26y}a//.")
    (element,) = browser.page.xpath("//*[@id='try-arrived']")
    assert element.get("data-live") == "/try/live?watch=%7Burn%3Ax%26y%7Da//."


def test_the_busiest_topics(tmp_path: Path, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trying, "busiest", lambda *_: Busiest([("{urn:<x>}a", 12), ("b", 3)], 15, 1_767_225_600_000))
    browser = Browser(parts_with(tmp_path, gateway).app)
    browser.get("/try")
    assert "{urn:<x>}a 12" in browser.text
    assert "the newest 15 notifications" in browser.text

    def away(*_: object) -> Busiest:
        raise InfrastructureError("Kafka is away", 1.0)

    monkeypatch.setattr(trying, "busiest", away)
    other = Browser(parts_with(tmp_path / "other", gateway).app)
    assert other.get("/try").status_code == 200
    assert "No messages yet" not in other.text
    assert "Not known Kafka is away" in other.text


def watched(parts: ConsoleParts, gateway: Gateway, steps: int) -> list[str]:
    """What a page that watches plant//. gets, until it goes."""

    async def run() -> list[str]:
        scope = {
            "type": "http",
            "headers": [],
            "query_string": b"watch=plant//.",
            "state": {"visitor": Visitor("s", "t")},
        }
        stream = arrivals(
            parts.console, Request(scope), gateway.url, Credentials("anna", "x"), parse_friendly("plant//.")
        )
        found = []
        for _ in range(steps):
            found.append((await anext(stream)).html)
            gateway.waiting.append(HOSTILE)
        await stream.aclose()
        return found

    return asyncio.run(run())


def test_a_subscription_ends_with_its_page(tmp_path: Path, gateway: Gateway) -> None:
    shown = watched(parts_with(tmp_path, gateway), gateway, 3)
    assert "plant//." in shown[0]
    assert "0 arrived" in shown[0]
    assert "1 arrived" in shown[1]
    assert "2 arrived" in shown[2]
    assert "&lt;script&gt;" in shown[1]
    assert "<script>" not in shown[1]
    (made,) = gateway.told("CreatePullPointSubscription")
    assert ">plant//.<" in made
    assert "PT60S" in made
    assert len(gateway.told("Unsubscribe")) == 1
    assert gateway.asked[-1][0] == "/wsn/subscriptions/s1"
    assert {proof for _, proof, _ in gateway.asked} == {"Basic YW5uYTp4"}
    gateway.asked.clear()
    gateway.refuses = "no"
    (refused,) = watched(parts_with(tmp_path, gateway), gateway, 1)
    assert "refusal" in refused
    assert not gateway.told("Unsubscribe")


def test_messages_of_one_pull_have_their_own_ids_and_times() -> None:
    times = [datetime(2026, 1, 2, 3, 4, 5, 678_000).astimezone(), datetime(2026, 1, 2, 3, 4, 6, 5_000).astimezone()]
    names = [f"{round(each.timestamp() * 1000):012x}7b000b00000000000000" for each in times]
    made = [Notification(name, TopicPath("a"), b"<x/>", 0) for name in names]
    stored = b"".join(stored_element(each, make_subscription("s", "a")) for each in made).decode()
    body = (
        f'<e:Envelope xmlns:e="{SOAP11}"><e:Body><w:Notify xmlns:w="{WSNT}">{stored}</w:Notify></e:Body></e:Envelope>'
    )
    arrived = [_arrived(each) for each in read_push(body.encode(), b"text/xml; charset=utf-8")]
    assert [each.id for each in arrived] == names
    assert [each.at for each in arrived] == ["03:04:05.678", "03:04:06.005"]
