"""TLS on loopback: client certificates, renewed certificates, and stalled handshakes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import shutil
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from arborcast.core.errors import ConfigError
from arborcast.ingest.access.gate import Authenticator, Gate
from arborcast.ingest.access.rates import client_key
from arborcast.ingest.access.settings import AccessSettings, TlsSettings
from arborcast.ingest.access.users_file import User
from arborcast.ingest.http.tls import Acceptor, ServerTls, certificate_names
from tests.support.certificates import Certificates, make_certificates
from tests.support.gateway_parts import GatewayParts
from tests.support.guarded_gateway import users_in
from tests.support.served_app import NOTIFY, connected, served
from tests.support.waiting import change_mode, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


def server_tls(certificates: Certificates, **more: Any) -> ServerTls:
    return ServerTls(TlsSettings(certificates.certificate("server"), certificates.key("server"), **more))


def notified(
    port: int, certificates: Certificates, client: str = "", source: str = "127.0.0.1"
) -> tuple[bytes, dict[str, object]]:
    """The first bytes of the answer to a Notify, and the server's certificate."""
    context = ssl.create_default_context(cafile=certificates.authority)
    if client:
        context.load_cert_chain(certificates.certificate(client), certificates.key(client))
    with connected(port, source) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
        shown: dict[str, object] = {**(connection.getpeercert() or {})}
        try:
            connection.sendall(NOTIFY)
            return connection.recv(4096), shown
        except (ssl.SSLError, ConnectionError):
            # In TLS 1.3 the client's handshake is complete before the server has checked its certificate.
            return b"", shown


def is_served(port: int, certificates: Certificates) -> bool:
    return notified(port, certificates)[0].startswith(b"HTTP/1.1 202")


def test_no_plain_http_and_no_older_versions(certificates: Certificates) -> None:
    parts = GatewayParts()
    tls = server_tls(certificates, minimum="1.3")
    with served(parts, tls=tls) as port:
        assert is_served(port, certificates)
        with connected(port) as plain:
            plain.sendall(NOTIFY)
            assert not plain.recv(4096).startswith(b"HTTP/1.1 202")
        context = ssl.create_default_context(cafile=certificates.authority)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with connected(port) as plain, pytest.raises(ssl.SSLError):
            context.wrap_socket(plain, server_hostname="127.0.0.1")
    assert len(parts.notifications.accepted) == 1
    assert server_tls(certificates).context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("settings", "accepted"),
    [
        ({}, {"client"}),
        ({"certificate_name": "dns", "certificate_users": "any"}, {"elsewhere"}),  # the other one has no DNS name
    ],
    ids=["users", "any name of a kind"],
)
def test_client_certificates(
    certificates: Certificates, tmp_path: Path, settings: dict[str, Any], accepted: set[str]
) -> None:
    users, parts = users_in(tmp_path, User("client")), GatewayParts()
    parts.gateway.gate = Gate(None, Authenticator(AccessSettings(methods="certificate", **settings), users))
    # A certificate of another authority ends the connection; an unknown user is refused.
    with served(parts, tls=server_tls(certificates, client_ca_file=certificates.authority)) as port:
        found = {name: notified(port, certificates, name)[0][9:12] for name in ("", "elsewhere", "stranger", "client")}
    assert found.pop("stranger") == b""
    assert found == {name: b"202" if name in accepted else b"401" for name in ("", "elsewhere", "client")}
    assert len(parts.notifications.accepted) == len(accepted)


def test_renewed_and_mismatched_certificates(certificates: Certificates, tmp_path: Path) -> None:
    folder, again = tmp_path / "served", tmp_path / "again"
    folder.mkdir()
    again.mkdir()
    for kind in ("pem", "key"):
        shutil.copy(certificates.folder / f"server.{kind}", folder / f"our.{kind}")
    tls = ServerTls(TlsSettings(str(folder / "our.pem"), str(folder / "our.key")))
    renewed = make_certificates(again)
    with served(GatewayParts(), tls=tls) as port:
        first = notified(port, certificates)[1]
        assert not tls.refresh()
        shutil.copy(renewed.folder / "server.pem", folder / "our.pem")
        assert not tls.refresh(), "certificate and key do not match"
        assert notified(port, certificates)[1] == first
        shutil.copy(renewed.folder / "server.key", folder / "our.key")
        assert tls.refresh()
        assert notified(port, renewed)[1]["serialNumber"] != first["serialNumber"]
        change_mode(folder / "our.key", 0o640)
        assert tls.refresh(), "a key that could not be read may be readable now"


def test_a_certificate_is_read_when_files_can_be_opened_again(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Too many connections at the moment of the renewal: later the old certificate would expire in use."""
    shutil.copy(certificates.folder / "server.pem", tmp_path / "our.pem")
    tls = ServerTls(TlsSettings(str(tmp_path / "our.pem"), certificates.key("server")))
    shutil.copy(certificates.folder / "server.pem", tmp_path / "new.pem")
    (tmp_path / "new.pem").replace(tmp_path / "our.pem")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as free:
        first_free = free.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, limits[1]))
    try:
        assert [tls.refresh() for _ in range(3)] == [False] * 3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    (line,) = caplog.messages
    assert "Too many open files; the previous certificate stays in use" in line
    assert [tls.refresh(), tls.refresh()] == [True, False]


def test_settings_of_unusable_files_are_named(certificates: Certificates, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tls\.certificate_file = /nowhere"):
        ServerTls(TlsSettings("/nowhere/cert.pem"))
    with pytest.raises(ConfigError, match=r"tls\.client_ca_file"):
        server_tls(certificates, client_ca_file=str(tmp_path / "none.pem"))
    with pytest.raises(ConfigError, match=r"tls\.certificate_file must be set"):
        TlsSettings(client_ca_file="x")


def test_names_in_a_certificate() -> None:
    certificate = {
        "subject": ((("countryName", "DE"),), (("organizationName", "A, B"),), (("commonName", "press 1"),)),
        "subjectAltName": (("DNS", "a.example"), ("DNS", "b.example"), ("email", "p@x"), ("URI", "spiffe://x/p")),
    }
    assert {kind: certificate_names(certificate, kind) for kind in ("common_name", "dns", "email", "uri")} == {
        "common_name": ["press 1"],
        "dns": ["a.example", "b.example"],
        "email": ["p@x"],
        "uri": ["spiffe://x/p"],
    }
    assert certificate_names(certificate, "subject") == ["CN=press 1,O=A\\, B,C=DE"]
    assert certificate_names({}, "common_name") == []


# The beginning of a ClientHello.
BEGINNING = b"\x16\x03\x01\x02\x00\x01"


@contextlib.contextmanager
def stalled(port: int, count: int, sources: list[str]) -> Iterator[None]:
    """Handshakes that stop after their first bytes."""
    with contextlib.ExitStack() as stack:
        for number in range(count):
            one = stack.enter_context(connected(port, sources[number % len(sources)]))
            with contextlib.suppress(ConnectionError):  # already refused
                one.sendall(BEGINNING)
        yield


@pytest.fixture
def tls(certificates: Certificates) -> ServerTls:
    # Longer than any test: no handshake times out.
    return server_tls(certificates, handshake_timeout_s=600, handshakes=100, handshakes_per_client=10)


# On Linux all of 127.0.0.0/8 is local, elsewhere only 127.0.0.1.
@pytest.mark.skipif(sys.platform != "linux", reason="needs more than one loopback address")
def test_stalled_handshakes_are_bounded_per_address(tls: ServerTls, certificates: Certificates) -> None:
    with served(GatewayParts(), tls=tls) as port, stalled(port, 60, ["127.0.0.2"]):
        wait_until(lambda: tls.handshakes.begun == 60)
        assert tls.handshakes.refused == 50, "ten per address"
        assert is_served(port, certificates)
        with pytest.raises((ConnectionError, ssl.SSLError)):
            notified(port, certificates, source="127.0.0.2")
    tls.handshakes = type(tls.handshakes)()
    sources = [f"127.0.0.{number}" for number in range(2, 34)]
    with served(GatewayParts(), tls=tls) as port, stalled(port, 160, sources):
        wait_until(lambda: tls.handshakes.begun == 160)
        assert tls.handshakes.refused == 60, "the oldest handshakes are closed"
        assert is_served(port, certificates)


def test_ended_handshakes_are_not_counted(tls: ServerTls, certificates: Certificates) -> None:
    with contextlib.ExitStack() as stack, served(GatewayParts(), tls=tls) as port:
        for _ in range(16):
            with connected(port) as one:
                one.sendall(b"GET / HTTP/1.1\r\n\r\n")  # no TLS
                with contextlib.suppress(ConnectionError):
                    while one.recv(4096):
                        pass
        assert all(is_served(port, certificates) for _ in range(12))
        assert (tls.handshakes.begun, tls.handshakes.succeeded, tls.handshakes.refused) == (28, 12, 0)
        stack.enter_context(stalled(port, 5, ["127.0.0.1"]))
        wait_until(lambda: tls.handshakes.begun == 33)


@pytest.mark.parametrize(("key", "refused"), [(client_key, 2), (lambda _: None, 1)], ids=["client", "proxy"])
async def test_cancelled_handshakes_close_their_connections(
    certificates: Certificates, key: Callable[[str], str | None], refused: int
) -> None:
    tls = server_tls(certificates, handshakes=2, handshakes_per_client=1)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    with listener, contextlib.ExitStack() as clients:
        for _ in range(3):
            clients.enter_context(socket.create_connection(listener.getsockname()))
        acceptor = Acceptor(listener, tls, asyncio.Protocol, key)
        while tls.handshakes.begun < 3:  # within one turn of the event loop
            acceptor._accept()
        assert tls.handshakes.refused == refused, "those of a proxy are limited in total only"
        assert len(acceptor._hosts) == 3 - refused
        address = listener.getsockname()
        acceptor.close()
        await acceptor.wait_closed()  # an open socket would be a ResourceWarning
        assert len(acceptor._peers._open) == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)


def test_a_stalled_handshake_times_out(certificates: Certificates) -> None:
    tls = server_tls(certificates, handshake_timeout_s=2)
    with served(GatewayParts(), tls=tls) as port:
        with connected(port) as silent, connected(port) as halting:
            halting.sendall(BEGINNING)
            assert is_served(port, certificates)
            assert (tls.handshakes.begun, tls.handshakes.succeeded) == (3, 1)
            for one in (silent, halting):
                one.settimeout(45)  # asyncio's own limit is a minute
                with contextlib.suppress(ConnectionError):
                    assert one.recv(100) == b""
        assert is_served(port, certificates)
    assert (tls.handshakes.begun, tls.handshakes.succeeded) == (4, 2)


def test_accepting_continues_after_emfile(
    tls: ServerTls, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([OSError(errno.EMFILE, "Too many open files")])
    accept = socket.socket.accept

    def exhausted(listener: socket.socket) -> tuple[socket.socket, object]:
        for error in failures:
            raise error
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", exhausted)
    monkeypatch.setattr("arborcast.ingest.http.tls._EXHAUSTED_S", 0.05)
    with served(GatewayParts(), tls=tls) as port:
        assert is_served(port, certificates)
