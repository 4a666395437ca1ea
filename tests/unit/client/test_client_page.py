"""The examples of the pages for clients, cameras, receivers and tests; `arborcast.client.testing`."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from arborcast.client import Client, FuturesClient, HttpAnswer
from arborcast.client.testing import Inbox, MemoryTransport, running_engine
from arborcast.core.errors import InfrastructureError
from arborcast.core.security.keyring import KeyRing
from arborcast.core.settings import SecretSettings
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.ingest.elements.protection import Protector
from arborcast.topic_model.records.results import PATH, Promise, write_promise
from arborcast.topic_model.subscriptions import Subscription
from tests.support import soap_messages as soap
from tests.support.gateway_parts import RESULT_KEYS, START, GatewayParts
from tests.support.gateway_process import ROOT
from tests.support.waiting import wait_until


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def execute(code: str, url: str = "") -> dict[str, Any]:
    names: dict[str, Any] = {}
    if url:
        assert "http://127.0.0.1:8080" in code
        assert len([line for line in code.splitlines() if line.strip()]) <= 10
    exec(compile(code.replace("http://127.0.0.1:8080", url), "docs", "exec"), names)  # noqa: S102  # of our own pages
    return names


PUBLISH, SUBSCRIBE, WAITING, LATER, PARTS, SIGNED = examples("client.md")
MEMORY, RECEIVER, ENGINE = examples("testing.md")
PRESS = soap.envelope(soap.notify(soap.message("t:press", "<n>42</n>")))
Push = Callable[[Subscription], None]


@pytest.fixture
def during_input(parts: GatewayParts, monkeypatch: pytest.MonkeyPatch) -> Callable[[Push], None]:
    """Call a function with the subscription while an example waits for the return key."""

    def prepare(push: Push) -> None:
        def pushes(_prompt: str) -> str:
            push(*parts.table.subscriptions())
            return ""

        monkeypatch.setattr("builtins.input", pushes)

    return prepare


def test_publish(parts: GatewayParts, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    execute(PUBLISH, url)
    assert [one.topic for one in parts.notifications.accepted] == ["plant/line1/press"] * 100
    assert capsys.readouterr().out == ""
    execute(PUBLISH.replace("</reading>", "</writing>"), url)
    assert capsys.readouterr().out.count("not accepted:") == 100


def test_subscribe(
    parts: GatewayParts, url: str, during_input: Callable[[Push], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def push(subscription: Subscription) -> None:
        assert subscription.selector() == "plant//."
        assert requests.post(subscription.consumer.address, PRESS, timeout=60).status_code == 202

    during_input(push)
    execute(SUBSCRIBE, url)
    assert "{urn:t}press <n>42</n>" in capsys.readouterr().out
    assert list(parts.table.subscriptions()) == []


def test_wait_for_a_message(parts: GatewayParts, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    over = threading.Event()

    def push() -> None:
        (subscription,) = wait_until(lambda: list(parts.table.subscriptions()), "a subscription")
        alarm, press = soap.message("plant/line3/alarm", "<hot/>"), soap.message("plant/line1/press", "<n>42</n>")
        while not over.wait(0.05):  # until the example waits
            with contextlib.suppress(requests.RequestException):
                requests.post(subscription.consumer.address, soap.envelope(soap.notify(alarm, press)), timeout=120)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(push)
        try:
            execute(WAITING, url)
        finally:
            over.set()
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "alarm: <hot/>"
    assert "line 1: <n>42</n> True False" in printed


def test_result_of_a_push_later(parts: GatewayParts, url: str, during_input: Callable[[Push], None]) -> None:
    promise = Promise("s", "p-7", 0, int(START.timestamp() * 1000) + 60_000)

    def push(subscription: Subscription) -> None:
        headers = {"Arborcast-Callback": f"{url}{PATH}{write_promise(promise, RESULT_KEYS)}", "Arborcast-Push": "p-7"}
        answer = requests.post(subscription.consumer.address, PRESS, headers=headers, timeout=120)
        assert (answer.status_code, answer.headers["Arborcast-Result"]) == (202, "later")
        wait_until(lambda: bool(parts.results.taken), "the result at the broker")

    during_input(push)
    execute(LATER, url)
    (taken,) = parts.results.taken
    assert (taken.promise, taken.state, taken.text) == (promise, "delivered", "printed")


def test_messages_in_parts(
    parts: GatewayParts,
    url: str,
    during_input: Callable[[Push], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def push(subscription: Subscription) -> None:
        assert len(parts.notifications.accepted) == 3
        for notification in reversed(parts.notifications.accepted):
            made = Envelope(subscription).request([notification], 1)
            assert requests.post(made.url, made.body, headers=dict(made.headers), timeout=60).status_code == 202

    (tmp_path / "drawing.xml").write_text(f"<d>{'x' * 250_000}</d>")
    monkeypatch.chdir(tmp_path)
    during_input(push)
    execute(PARTS, url)
    assert capsys.readouterr().out == "250007 bytes\n"


def test_signed_pushes(parts: GatewayParts, url: str) -> None:
    parts.gateway.protector = Protector(SecretSettings(), KeyRing({"k1": b"k" * 32}))
    execute(SIGNED, url)
    (subscription,) = parts.table.subscriptions()
    assert subscription.protection is not None
    assert len(subscription.protection.secrets) == 2


def test_a_camera_is_registered(parts: GatewayParts, url: str) -> None:
    (code,) = examples("camera.md")
    execute(code, url)
    (registration,) = parts.registrations
    assert registration.demand
    assert [each.text for each in registration.topics] == ["tns1:RuleEngine/CellMotionDetector/Motion"]


def test_a_receiver_stores_a_message_once() -> None:
    (code,) = examples("receiver.md")
    names = execute(code.replace("9000", "0"))
    with names["server"] as server, ThreadPoolExecutor(1) as threads:
        threads.submit(server.serve_forever)
        try:
            for attempt in ("1", "2"):
                headers = {"Arborcast-Notification-Id": "n1,n2", "Arborcast-Attempt": attempt}
                address = f"http://127.0.0.1:{server.server_port}/"
                assert requests.post(address, attempt, headers=headers, timeout=60).status_code == 204
        finally:
            server.shutdown()
    assert names["Receiver"].stored == {"n1": b"1", "n2": b"1"}


def test_the_page_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulated broker, which pushes each publication to the subscribed address."""
    subscribed = (
        "<wsnt:SubscribeResponse><wsnt:SubscriptionReference><wsa:Address>http://b/s</wsa:Address>"
        "</wsnt:SubscriptionReference></wsnt:SubscribeResponse>"
    )

    class Broker(MemoryTransport):
        def post(self, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
            super().post(url, headers, body)
            if b"Subscribe>" in body:
                return HttpAnswer(200, {}, soap.envelope(subscribed))
            to = re.findall(rb"ConsumerReference>.*?Address>([^<]+)", self.sent[0].body)[0].decode()
            assert requests.post(to, body, timeout=60).status_code == 202
            return HttpAnswer(202)

    execute(MEMORY)
    monkeypatch.setattr("arborcast.client.Client", partial(Client, transport=Broker()))
    assert execute(RECEIVER)["message"].payload == b"<reading>42</reading>"
    assert "running_engine" in ENGINE


def test_recorded_requests_and_an_inbox() -> None:
    transport = MemoryTransport(HttpAnswer(404))
    with FuturesClient("http://broker", transport=transport) as client:
        assert client.unsubscribe("http://broker/s").exception(60)
        client.notify("a", "<x/>").result(60)
    assert (transport.sent[0].url, transport.published) == ("http://broker/s", [("a", b"<x/>")])
    with Inbox() as inbox, pytest.raises(TimeoutError, match="0 of 1 messages arrived within 0 s"):
        inbox.receive(timeout_s=0)


def test_an_engine_is_started_and_stopped_by_its_command(tmp_path: Path) -> None:
    command, log, home = tmp_path / "arborcast", tmp_path / "log", tmp_path / "home"
    answer = '{"addresses": {"gateway": "URL"}}'
    command.write_text(f"#!/bin/sh\necho $1 $ARBORCAST_HOME >> {log}\necho '{answer}'\n")
    command.chmod(0o755)
    with running_engine(home, command=str(command)) as url:
        assert url == "URL"
    assert log.read_text().splitlines() == [f"{each} {home}" for each in ("up", "status", "down")]
    command.write_text("#!/bin/sh\necho no room >&2; exit 1\n")
    with pytest.raises(InfrastructureError, match="up` failed: no room"), running_engine(home, command=str(command)):
        pass
