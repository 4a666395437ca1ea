"""Calls of an engine obey the outbound policy, end in time, and leave no sockets; with real servers."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from arborcast.core.errors import NoAnswer, OutboundRefused
from arborcast.core.http_client import HttpAnswer, HttpClient
from arborcast.core.security.outbound import DIRECT, AddressPolicy, AutoCloseSocket, OutboundRoute
from tests.support.certificates import Certificates, make_certificates
from tests.support.open_sockets import inherited, sockets
from tests.support.outbound import THIS_MACHINE, unresponsive_port
from tests.support.receiver import Receiver, refusing_url
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


def call(
    url: str,
    route: OutboundRoute = DIRECT,
    policy: AddressPolicy | None = THIS_MACHINE,
    method: str = "POST",
    total_s: float = 60.0,
) -> HttpAnswer:
    client = HttpClient(policy, route, threads=1)
    try:
        return client.call(
            method, url, {"X-Own": "1"}, b"<x/>", lambda answer: answer, total_s=total_s, max_answer=1_000
        ).result()
    finally:
        client.close()


def test_an_answer_has_status_headers_and_body(receiver: Receiver) -> None:
    answer = call(receiver.url("/status/409"))
    assert (answer.status, answer.headers["content-length"], answer.body) == (409, "10", b"status 409")
    (request,) = receiver.requests
    assert (request.body, request.headers["x-own"], request.headers["content-length"]) == (b"<x/>", "1", "4")
    for method in ("POST", "GET"):
        assert call(receiver.url("/redirect"), method=method).status == 307
    assert [each.path for each in receiver.requests[1:]] == ["/redirect"] * 2, "redirects are not followed"


def test_the_answer_is_read_in_the_thread_of_the_call(receiver: Receiver) -> None:
    client = HttpClient(THIS_MACHINE, threads=1, name="named")

    def read(answer: HttpAnswer) -> str:
        if answer.status != 200:
            raise ValueError(f"no {answer.status}")
        return f"{threading.current_thread().name} read {len(answer.body)} bytes"

    def called(path: str) -> str:
        return client.call("POST", receiver.url(path), {}, b"", read, total_s=60, max_answer=1_000).result()

    assert called("/huge/1000") == "named_0 read 1000 bytes"
    with pytest.raises(ValueError, match="no 202"):
        called("/")
    assert called("/huge/1000") == "named_0 read 1000 bytes"


@pytest.mark.parametrize(
    ("behaviour", "total_s", "says"),
    [
        # Single bytes do not extend the time limit: each read alone would be in time.
        *((each, 0.5, "no answer in time") for each in ("/hang", "/drip/0.01", "/drip-headers/0.01")),
        *((each, 60.0, None) for each in ("/drop", "/reset", "/garbage", "/close", "/cut")),
        *((each, 60.0, "larger than 1000 bytes") for each in ("/huge/1001", "/huge/5000000")),
    ],
)
def test_calls_without_a_whole_answer(receiver: Receiver, behaviour: str, total_s: float, says: str | None) -> None:
    with pytest.raises(NoAnswer, match=says):
        call(receiver.url(behaviour), total_s=total_s)
    assert len(receiver.requests) <= 1, "the call is not repeated"


def test_a_silent_address_leaves_time_for_the_next(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arborcast.core.http_client._CONNECT_S", 2.0)
    with unresponsive_port() as port:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", each)) for each in (port, receiver.port)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        assert call("http://localhost/").status == 202


def test_without_ipv6_in_the_kernel_the_ipv4_address_of_a_name_is_called(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ipv4Socket(AutoCloseSocket):
        def __init__(self, family: int, *rest: int) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *rest)

    monkeypatch.setattr("arborcast.core.security.outbound.AutoCloseSocket", Ipv4Socket)
    hosts = {socket.AF_INET6: "::1", socket.AF_INET: "127.0.0.1"}
    found = [(family, socket.SOCK_STREAM, 0, "", (host, receiver.port)) for family, host in hosts.items()]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert call("http://localhost/").status == 202


def test_only_the_operator_s_own_servers_are_exempt_from_the_policy(receiver: Receiver) -> None:
    class Blind(AddressPolicy):
        def check_url(self, url: str) -> None:
            return None

    for url in (receiver.url("/"), receiver.url("/").replace("127.0.0.1", "localhost")):
        for policy in (AddressPolicy(), Blind()):  # the URL is checked, and the address of its name
            with pytest.raises(OutboundRefused, match="loopback") as refused:
                call(url, policy=policy)
            assert refused.value.rule == "loopback"
        assert receiver.connections == 0
    assert call(receiver.url("/"), policy=None).status == 202


def test_servers_have_the_authorities_of_pushes(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    route = OutboundRoute(ca_file=certificates.authority)
    with Receiver(tls=certificates.server()) as receiver:
        for policy in (THIS_MACHINE, None):
            with pytest.raises(NoAnswer, match="certificate is not accepted"):
                call(receiver.url("/"), policy=policy)
        assert call(receiver.url("/"), route).status == 202
        with pytest.raises(NoAnswer, match="no answer in time"):
            call(receiver.url("/drip-headers/0.01"), route, total_s=2.0)
        # The operator's own servers may have certificates of the system's authorities.
        monkeypatch.setenv("SSL_CERT_FILE", certificates.authority)
        assert call(receiver.url("/"), policy=None).status == 202
        with pytest.raises(NoAnswer):
            call(receiver.url("/"))
    with Receiver(tls=certificates.server("elsewhere")) as receiver, pytest.raises(NoAnswer):
        call(receiver.url("/"), route)


def test_the_proxy_is_used_and_checks_addresses() -> None:
    with Receiver() as proxy:
        route = OutboundRoute(proxy=proxy.url("").rstrip("/"))
        assert call("http://publisher.invalid/x", route, AddressPolicy()).status == 202
        for url in ("http://10.0.0.1/", "http://localhost/", "http://0x7f.1/"):
            with pytest.raises(OutboundRefused):
                call(url, route, AddressPolicy())
        assert [request.path for request in proxy.requests] == ["http://publisher.invalid/x"]


def test_the_environment_has_no_effect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login anna password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with refusing_url() as proxy, Receiver() as receiver:
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("no_proxy", "*")
        assert call(receiver.url("/")).status == 202
        assert "authorization" not in receiver.requests[0].headers
        with Receiver() as wanted:
            assert call(receiver.url("/"), OutboundRoute(proxy=wanted.url("").rstrip("/"))).status == 202
            assert len(wanted.requests) == 1


def test_a_closed_client_drops_queued_calls(receiver: Receiver) -> None:
    client = HttpClient(THIS_MACHINE, threads=1)
    calls = [
        client.call("POST", receiver.url("/slow/0.2"), {}, b"", lambda _: None, total_s=60, max_answer=9)
        for _ in range(3)
    ]
    receiver.wait_for(1)
    client.close()
    assert calls[0].result() is None
    assert calls[2].cancelled()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are listed by Linux")
def test_no_socket_is_left() -> None:
    with Receiver() as receiver:
        before, children = sockets(), inherited()
        for _ in range(5):
            call(receiver.url("/"))
            assert inherited() == children, "a child process would inherit open connections"
        with pytest.raises(OutboundRefused):
            call("http://10.0.0.1/", policy=AddressPolicy())
        wait_until(lambda: len(sockets()) <= len(before), "sockets are closed")
