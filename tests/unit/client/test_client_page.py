"""The examples of the pages for clients, cameras and receivers do what the pages say."""

from __future__ import annotations

import contextlib
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import requests

from arborcast.core.security.keyring import KeyRing
from arborcast.core.settings import SecretSettings
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.ingest.elements.protection import Protector
from arborcast.topic_model.records.results import PATH, Promise, write_promise
from tests.support import soap_messages as soap
from tests.support.gateway_parts import RESULT_KEYS, START, GatewayParts
from tests.support.gateway_process import ROOT
from tests.support.waiting import wait_until

PUBLISH, SUBSCRIBE, WAITING, LATER, PARTS, SIGNED = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "client.md").read_text(), re.DOTALL
)


(CAMERA,), (RECEIVER,) = (
    re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    for page in ("camera.md", "receiver.md")
)


def execute(code: str, url: str) -> None:
    assert "http://127.0.0.1:8080" in code
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    exec(compile(code.replace("http://127.0.0.1:8080", url), "docs/client.md", "exec"), {})  # noqa: S102


def test_ten_lines_publish(parts: GatewayParts, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    execute(PUBLISH, url)
    assert len(parts.notifications.accepted) == 100
    assert {one.topic for one in parts.notifications.accepted} == {"plant/line1/press"}
    assert capsys.readouterr().out == ""


def test_publishing_tells_what_was_not_accepted(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    execute(PUBLISH.replace("</reading>", "</writing>"), url)
    assert capsys.readouterr().out.count("not accepted:") == 100


def test_ten_lines_subscribe(
    parts: GatewayParts, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def push(_prompt: str) -> str:
        (subscription,) = parts.table.subscriptions()
        assert subscription.selector() == "plant//."
        body = soap.envelope(soap.notify(soap.message("t:press", "<n>42</n>")))
        assert requests.post(subscription.consumer.address, body, timeout=60).status_code == 202
        return ""

    monkeypatch.setattr("builtins.input", push)
    execute(SUBSCRIBE, url)
    assert "{urn:t}press <n>42</n>" in capsys.readouterr().out
    assert list(parts.table.subscriptions()) == []


def test_ten_lines_wait_for_something(parts: GatewayParts, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    over = threading.Event()

    def push() -> None:
        wait_until(lambda: bool(list(parts.table.subscriptions())), "somebody is subscribed")
        (subscription,) = parts.table.subscriptions()
        alarm, press = soap.message("plant/line3/alarm", "<hot/>"), soap.message("plant/line1/press", "<n>42</n>")
        body = soap.envelope(soap.notify(alarm, press))
        while not over.wait(0.05):  # who is not waiting yet gets the next one
            with contextlib.suppress(requests.RequestException):
                requests.post(subscription.consumer.address, body, timeout=10)

    pushing = threading.Thread(target=push)
    pushing.start()
    try:
        execute(WAITING, url)
    finally:
        over.set()
        pushing.join()
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "alarm: <hot/>"
    assert "line 1: <n>42</n> True False" in printed


def test_ten_lines_say_later_how_it_ended(parts: GatewayParts, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    promise = Promise("s", "p-7", 0, int(START.timestamp() * 1000) + 60_000)

    def push(_prompt: str) -> str:
        (subscription,) = parts.table.subscriptions()
        body = soap.envelope(soap.notify(soap.message("t:press", "<n>42</n>")))
        headers = {"Arborcast-Callback": f"{url}{PATH}{write_promise(promise, RESULT_KEYS)}", "Arborcast-Push": "p-7"}
        answer = requests.post(subscription.consumer.address, body, headers=headers, timeout=10)
        assert (answer.status_code, answer.headers["Arborcast-Result"]) == (202, "later")
        wait_until(lambda: bool(parts.results.taken), "the broker was told")
        return ""

    monkeypatch.setattr("builtins.input", push)
    execute(LATER, url)
    assert [(each.promise, each.state, each.text) for each in parts.results.taken] == [
        (promise, "delivered", "printed")
    ]


def test_ten_lines_send_and_join_parts(
    parts: GatewayParts,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "drawing.xml").write_text(f"<d>{'x' * 250_000}</d>")

    def push(_prompt: str) -> str:
        (subscription,) = parts.table.subscriptions()
        assert len(parts.notifications.accepted) == 3
        for notification in reversed(parts.notifications.accepted):
            push = Envelope(subscription).request([notification], 1)
            assert requests.post(push.url, push.body, headers=dict(push.headers), timeout=60).status_code == 202
        return ""

    monkeypatch.setattr("builtins.input", push)
    monkeypatch.chdir(tmp_path)
    execute(PARTS, url)
    assert capsys.readouterr().out == "250007 bytes\n"


def test_signed_pushes(parts: GatewayParts, url: str) -> None:
    parts.gateway.protector = Protector(SecretSettings(), KeyRing({"k1": b"k" * 32}))
    execute(SIGNED, url)
    (subscription,) = parts.table.subscriptions()
    assert subscription.protection is not None
    assert len(subscription.protection.secrets) == 2


def test_a_camera_is_registered(parts: GatewayParts, url: str) -> None:
    execute(CAMERA, url)
    (registration,) = parts.registrations
    assert registration.demand
    assert [each.text for each in registration.topics] == ["tns1:RuleEngine/CellMotionDetector/Motion"]


def test_a_receiver_stores_a_message_once(parts: GatewayParts, url: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(RECEIVER.replace("9000", "0"), "docs/receiver.md", "exec"), names)  # noqa: S102  # of our own page
    serving = threading.Thread(target=names["server"].serve_forever)
    serving.start()
    try:
        address = f"http://127.0.0.1:{names['server'].server_port}/"
        for attempt in ("1", "2"):
            headers = {"Arborcast-Notification-Id": "n1,n2", "Arborcast-Attempt": attempt}
            assert requests.post(address, attempt, headers=headers, timeout=60).status_code == 204
        assert names["Receiver"].stored == {"n1": b"1", "n2": b"1"}
    finally:
        names["server"].shutdown()
        names["server"].server_close()
        serving.join()
