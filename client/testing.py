"""Helpers for tests of programs that publish or subscribe: a transport in memory, a listener that collects, an engine.

    transport = MemoryTransport()
    with Client("http://broker", transport=transport) as client:
        client.notify("plant/line1", "<reading>42</reading>")
    assert transport.published == [("plant/line1", b"<reading>42</reading>")]

The guide is docs/testing.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arborcast.client.listener import Listener
from arborcast.client.received import ReceivedMessage, read_push
from arborcast.client.transport import HttpAnswer
from arborcast.core.errors import ArborcastError, InfrastructureError
from arborcast.wire.envelope import parse

WAIT_S = 60.0


@dataclass(frozen=True)
class SentRequest:
    """A recorded request."""

    url: str
    headers: Mapping[str, str]
    body: bytes


class MemoryTransport:
    """A transport for `Client(transport=...)` without a network. It records each request in `sent`.

    Requests are answered by `answers` in turn; exceptions among them are raised. Further requests are answered 202.
    """

    def __init__(self, *answers: HttpAnswer | Exception) -> None:
        self.sent: list[SentRequest] = []
        self._answers = list(answers)
        self._lock = threading.Lock()

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """See `Transport`."""
        with self._lock:
            self.sent.append(SentRequest(url, dict(headers), body))
            answer = self._answers.pop(0) if self._answers else HttpAnswer(202)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def published(self) -> list[tuple[str, bytes]]:
        """Topic and payload of each message in the requests so far, in order; a repeated request counts again."""
        messages = [message for each in self.sent if _is_notify(each.body) for message in read_push(each.body, b"")]
        return [(each.topic or "", each.payload) for each in messages]


def _is_notify(body: bytes) -> bool:
    try:
        return parse(body).name.endswith("Notify")
    except ArborcastError:
        return False


class Inbox(Listener):
    """A listener that collects all messages in `messages`. The options are those of `Listener`.

    with Inbox() as inbox, Client(url) as client:
        client.subscribe("plant//.", to=inbox.url)
        ...
        first, second = inbox.receive(2)
    """

    def __init__(self, **options: Any) -> None:
        self.messages: list[ReceivedMessage] = []
        self._arrived = threading.Condition()
        super().__init__(self._keep, **options)

    def _keep(self, message: ReceivedMessage) -> None:
        with self._arrived:
            self.messages.append(message)
            self._arrived.notify_all()

    def receive(self, count: int = 1, timeout_s: float = WAIT_S) -> list[ReceivedMessage]:
        """Wait for the first `count` messages. Raises TimeoutError after `timeout_s` seconds."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.messages) >= count, timeout_s):
                raise TimeoutError(f"{len(self.messages)} of {count} messages arrived within {timeout_s:g} s")
            return self.messages[:count]


@contextmanager
def running_engine(home: Path, *options: str, command: str = "arborcast") -> Iterator[str]:
    """Run an embedded engine in this data directory, on free ports, for the block; yields the gateway's URL.

    The engine's distribution must be installed. `options` are those of `arborcast up`.
    """
    environment = {**os.environ, "ARBORCAST_HOME": str(home)}

    def run(*arguments: str) -> str:
        done = subprocess.run([command, *arguments], capture_output=True, text=True, env=environment)  # noqa: S603 -- of the test's own
        if done.returncode != 0:
            raise InfrastructureError(f"`{command} {arguments[0]}` failed: {done.stderr.strip()}")
        return done.stdout

    run("up", "--detach", "--gateway-port", "0", "--kafka-port", "0", *options)
    try:
        gateway: str = json.loads(run("status", "--json"))["addresses"]["gateway"]
        yield gateway
    finally:
        run("down")
