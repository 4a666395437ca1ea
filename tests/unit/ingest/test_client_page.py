"""The examples of the client's page do what the page says."""

from __future__ import annotations

import re

import pytest
import requests

from core.security.keyring import KeyRing
from core.settings import SecretSettings
from ingest.elements.protection import Protector
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts
from tests.support.gateway_process import ROOT

PUBLISH, SUBSCRIBE, SIGNED = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "client.md").read_text(), re.DOTALL)


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


def test_signed_pushes(parts: GatewayParts, url: str) -> None:
    parts.gateway.protector = Protector(SecretSettings(), KeyRing({"k1": b"k" * 32}))
    execute(SIGNED, url)
    (subscription,) = parts.table.subscriptions()
    assert subscription.protection is not None
    assert len(subscription.protection.secrets) == 2
