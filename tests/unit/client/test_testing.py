"""`arborcast.client.testing`: what its page shows works as it is printed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from arborcast.client import Client, FuturesClient, HttpAnswer
from arborcast.client.testing import Inbox, MemoryTransport, running_engine
from arborcast.core.errors import InfrastructureError
from tests.support import soap_messages as soap

ANSWER = (
    "<wsnt:SubscribeResponse><wsnt:SubscriptionReference><wsa:Address>http://b/s</wsa:Address>"
    "</wsnt:SubscriptionReference></wsnt:SubscribeResponse>"
)

MEMORY, RECEIVER, ENGINE = re.findall(
    r"```python\n(.*?)```", (Path(__file__).parents[3] / "docs" / "testing.md").read_text(), re.DOTALL
)


def test_the_example_without_a_network() -> None:
    exec(compile(MEMORY, "docs/testing.md", "exec"), {})  # noqa: S102  # of our own page


def test_the_example_with_a_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is played: it pushes what is published to the address that was subscribed with."""

    class Broker(MemoryTransport):
        def post(self, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
            super().post(url, headers, body)
            if b"Subscribe>" in body:
                return HttpAnswer(200, {}, soap.envelope(ANSWER))
            to = re.findall(rb"ConsumerReference>.*?Address>([^<]+)", self.sent[0].body)[0].decode()
            assert requests.post(to, body, timeout=60).status_code == 202
            return HttpAnswer(202)

    broker = Broker()
    monkeypatch.setattr("arborcast.client.Client", partial(Client, transport=broker))
    names: dict[str, Any] = {}
    exec(compile(RECEIVER, "docs/testing.md", "exec"), names)  # noqa: S102  # of our own page
    assert names["message"].payload == b"<reading>42</reading>"


def test_other_requests_are_recorded_and_an_inbox_says_how_many_came() -> None:
    transport = MemoryTransport(HttpAnswer(404))
    with FuturesClient("http://broker", transport=transport) as client:
        assert client.unsubscribe("http://broker/s").exception(60)
        client.notify("a", "<x/>").result(60)
    assert (transport.sent[0].url, transport.published) == ("http://broker/s", [("a", b"<x/>")])
    with Inbox() as inbox, pytest.raises(TimeoutError, match="0 of 1 messages arrived within 0 s"):
        inbox.receive(timeout_s=0)


def test_an_engine_is_started_and_stopped_by_its_command(tmp_path: Path) -> None:
    command, log = tmp_path / "arborcast", tmp_path / "log"
    answer = '{"addresses": {"gateway": "URL"}}'
    command.write_text(f"#!/bin/sh\necho $1 $ARBORCAST_HOME >> {log}\necho '{answer}'\n")
    command.chmod(0o755)
    home = tmp_path / "home"
    with running_engine(home, command=str(command)) as url:
        assert url == "URL"
    assert log.read_text().split(os.linesep)[:-1] == [f"{each} {home}" for each in ("up", "status", "down")]
    command.write_text("#!/bin/sh\necho no room >&2; exit 1\n")
    with pytest.raises(InfrastructureError, match="up` failed: no room"), running_engine(home, command=str(command)):
        pass
    assert "running_engine" in ENGINE
