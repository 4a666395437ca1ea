"""Sockets of libcurl: closed, not inherited by child processes, bounded in number."""

from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.core.security.outbound import AddressPolicy
from arborcast.dispatch.delivery.transport.curl import CurlTransport
from arborcast.dispatch.settings import PushSettings
from tests.support.open_sockets import inherited, sockets
from tests.support.outbound import THIS_MACHINE
from tests.support.receiver import Receiver
from tests.support.transports import push_many
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are listed by Linux")

AT_ONCE = 20


def test_pushes() -> None:
    with Receiver() as receiver:
        before, children = sockets(), inherited()
        settings = PushSettings(max_in_flight=AT_ONCE, max_idle_connections=5)
        transport = CurlTransport(settings, THIS_MACHINE)
        for _ in range(3):
            results = push_many(transport, [receiver.url("/")] * AT_ONCE)
            assert [result.status for result in results] == [202] * AT_ONCE
        assert inherited() == children, "a child process would keep the connections open"
        # Both ends of each connection are in this process; libcurl has a few further descriptors.
        wait_until(lambda: len(sockets()) <= len(before) + 2 * 5 + 4, f"idle connections are bounded: {sockets()}")
        assert receiver.connections <= 3 * AT_ONCE
        transport.close()
        wait_until(lambda: len(sockets()) <= len(before), "sockets are left")


def test_refused_addresses_open_nothing() -> None:
    transport = CurlTransport(PushSettings(), AddressPolicy())
    urls = ["http://localhost:9/"] * AT_ONCE
    push_many(transport, urls)
    before = sockets()
    assert {result.failure for result in push_many(transport, urls)} == {"address"}
    assert sockets() == before
    transport.close()
