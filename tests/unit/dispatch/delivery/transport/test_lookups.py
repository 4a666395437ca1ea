"""Lookups before pushes, with a resolver of the test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from arborcast.dispatch.delivery.transport import lookups
from arborcast.dispatch.delivery.transport.contract import PushRequest
from arborcast.dispatch.delivery.transport.futures import FuturesTransport
from arborcast.dispatch.delivery.transport.lookups import Lookups
from arborcast.dispatch.settings import PushSettings
from tests.support.outbound import THIS_MACHINE
from tests.support.waiting import wait_until


class Resolver:
    """Names with "hang" have no answer until `release`, and then no address; those with "late" then have one."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self._released = threading.Event()

    def look_up(self, host: bytes, port: None, family: int, kind: int) -> list[object]:
        name = host.decode()
        if family == socket.AF_INET:
            self.began.append(name)
        if "hang" in name or "late" in name:
            self._released.wait()
        if "hang" in name:
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return []

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver.look_up)
    monkeypatch.setattr(lookups, "MOST", 2)
    yield resolver
    resolver.release()


def taken(of: Lookups[str], count: int) -> dict[str, str]:
    """The next pushes whose lookup has ended, with the reasons of failures."""
    found: dict[str, str] = {}

    def enough() -> bool:
        found.update({push: failure for push, failure, _ in of.take()})
        return len(found) >= count

    wait_until(enough)
    return found


def test_all_pushes_to_a_host_wait_for_one_lookup(resolver: Resolver) -> None:
    of: Lookups[str] = Lookups(240.0, lambda: None)
    for push in ("first", "second"):
        of.add("receiver.test", push)

    assert taken(of, 2) == {"first": "", "second": ""}
    assert resolver.began == ["receiver.test"]
    assert of.resolves("receiver.test")


def test_names_without_an_answer_wait_behind_others(resolver: Resolver) -> None:
    """Also after their time-out: their threads wait longer."""
    of: Lookups[str] = Lookups(0.0, lambda: None)
    hanging = ["hang-1", "hang-2", "hang-3"]
    for host in hanging:
        of.failed(host)
        of.add(host, host)
    assert "did not begin" in taken(of, 3)["hang-3"], "all of them wait no longer"
    assert not resolver.began, "no push waits for them"

    of = Lookups(240.0, lambda: None)
    for host in hanging:
        of.failed(host)
        of.add(host, host)
    of.add("receiver.test", "push")

    assert taken(of, 1) == {"push": ""}
    assert "hang-3" not in resolver.began, "one thread is left"


def test_an_answer_after_the_time_out_counts(resolver: Resolver) -> None:
    times = [0.0]
    of: Lookups[str] = Lookups(5.0, lambda: None, lambda: times[0])
    of.add("late.test", "push")
    assert list(of.take()) == []

    times[0] = 5.0

    assert list(of.take()) == [("push", "the lookup of late.test had no answer within 5 s", 5.0)]
    assert not of.resolves("late.test")

    resolver.release()

    wait_until(lambda: list(of.take()) == [] and of.resolves("late.test"))


def test_without_a_free_thread_lookups_wait_for_a_later_turn(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    of: Lookups[str] = Lookups(240.0, lambda: None)
    of.add("receiver.test", "push")
    with monkeypatch.context() as patched:
        patched.setattr(lookups, "start_thread", Mock(side_effect=RuntimeError("can't start new thread")))
        assert not list(of.take())
    assert "the lookup of receiver.test cannot begin now, and is tried again: can't start new thread" in caplog.text
    assert taken(of, 1) == {"push": ""}


def test_an_error_names_the_host(resolver: Resolver) -> None:
    resolver.release()
    of: Lookups[str] = Lookups(240.0, lambda: None)
    of.add("hang.test", "push")

    assert taken(of, 1) == {"push": "hang.test: its name cannot be resolved now"}


def test_names_without_an_answer_occupy_no_thread_of_a_push(
    monkeypatch: pytest.MonkeyPatch, resolver: Resolver
) -> None:
    def look_up(host: str | bytes, port: int | None, *rest: int, type: int = 0) -> list[object]:
        if isinstance(host, bytes):
            resolver.look_up(host, None, rest[0], rest[1])
        elif "hang" in host:
            resolver.look_up(host.encode(), None, socket.AF_INET, type)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(lookups, "MOST", 3)
    settings = PushSettings(max_in_flight=2, connect_timeout_s=200.0, total_timeout_s=200.0)
    transport = FuturesTransport(settings, THIS_MACHINE)
    ended: list[str] = []

    def submit(name: str, port: int) -> None:
        request = PushRequest(f"http://{name}.test:{port}/", (), b"<x/>")
        transport.submit(request, lambda result: ended.append(f"{name} {result.failure}"))

    def driven(count: int) -> bool:
        transport.drive(0.1)
        return len(ended) >= count

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        for name in ("hang-1", "hang-2", "there"):
            submit(name, closed.getsockname()[1])
        wait_until(lambda: driven(1))
        assert ended == ["there connect"]
        resolver.release()
        wait_until(lambda: driven(3))
    assert sorted(ended) == ["hang-1 dns", "hang-2 dns", "there connect"]
    transport.close()
