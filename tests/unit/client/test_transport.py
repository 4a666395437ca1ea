"""A transport of one's own under both clients: what it sees, and what it may answer."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping

import pytest

from arborcast.client import (
    BrokerUnreachable,
    Client,
    ClientClosed,
    Credentials,
    HttpAnswer,
    Retries,
)
from arborcast.client.testing import MemoryTransport
from tests.support.gateway_process import ROOT

URL = "http://broker:8080"
SOON = Retries(attempts=3, first_s=0.0, longest_s=0.0)


TAKEN = HttpAnswer(202, {"arborcast-notification-ID": "n1"})


def test_one_method_is_enough() -> None:
    transport = MemoryTransport(TAKEN)
    with Client(URL, transport=transport, credentials=Credentials("u", "p")) as client:
        assert client.notify("a", "<x/>") == "n1", "names of headers are taken in any case"
    (sent,) = transport.sent
    assert sent.url == f"{URL}/wsn/NotificationBroker"
    assert (sent.headers["Content-Type"], sent.headers["Authorization"]) == ("text/xml; charset=utf-8", "Basic dTpw")
    assert transport.published == [("a", b"<x/>")]


def test_a_synchronous_call_is_one_of_requests_futures_that_is_waited_for() -> None:
    threads: list[str] = []

    class Named(MemoryTransport):
        def post(self, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
            threads.append(threading.current_thread().name)
            return super().post(url, headers, body)

    client = Client(URL, transport=Named(TAKEN, TAKEN))
    assert client.notify("a", "<x/>") == "n1"
    client.notify("a", "<x/>")
    assert threads == ["wsn-client_0"] * 2
    client.close()
    with pytest.raises(ClientClosed) as refused:
        client.notify("a", "<x/>")
    assert not refused.value.sent


def test_a_client_works_in_a_forked_process() -> None:
    """Its threads are not there."""
    code = """
import os
from arborcast.client import Client, HttpAnswer

class Accepts:
    def post(self, url, headers, body):
        return HttpAnswer(202)

client = Client("http://broker:8080", transport=Accepts())
client.notify("a", "<x/>")
child = os.fork()
if not child:
    client.notify("a", "<x/>")
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.stdout == "7\n", done.stderr


@pytest.mark.parametrize(("sent", "attempts"), [(True, 1), (False, 3)])
def test_what_must_not_happen_twice_is_repeated_only_if_nothing_arrived(sent: bool, attempts: int) -> None:
    transport = MemoryTransport(*[BrokerUnreachable("away", sent=sent) for _ in range(3)])
    with Client(URL, transport=transport, retries=SOON) as client, pytest.raises(BrokerUnreachable):
        client.create_pull_point()
    assert len(transport.sent) == attempts
