"""Real TLS on loopback: who is let in by a certificate, and certificates that change."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import socket
import ssl
from pathlib import Path

import pytest

from arborcast.core.errors import ConfigError
from arborcast.ingest.access.gate import Authenticator, Gate
from arborcast.ingest.access.settings import AccessSettings, TlsSettings
from arborcast.ingest.access.users import FileUsers, Guesses, Users
from arborcast.ingest.access.users_file import User, write_users
from arborcast.ingest.http.tls import ServerTls, certificate_names
from tests.support.certificates import Certificates, make_certificates
from tests.support.gateway_parts import GatewayParts
from tests.support.served_app import served
from tests.support.soap_messages import envelope, notify

pytestmark = pytest.mark.slow

BODY = envelope(notify())
REQUEST = b"POST /wsn/NotificationBroker HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


def tls_settings(certificates: Certificates, **more: str) -> TlsSettings:
    return TlsSettings(certificates.certificate("server"), certificates.key("server"), **more)  # type: ignore[arg-type]


def asked(port: int, certificates: Certificates, client: str = "") -> tuple[bytes, dict[str, object]]:
    """The first bytes of the answer, and the server's certificate."""
    context = ssl.create_default_context(cafile=certificates.authority)
    if client:
        context.load_cert_chain(certificates.certificate(client), certificates.key(client))
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        shown: dict[str, object] = {**(connection.getpeercert() or {})}
        try:
            connection.sendall(REQUEST)
            return connection.recv(4096), shown
        except (ssl.SSLError, ConnectionError):
            # With TLS 1.3 a client learns only afterwards that its certificate was not good.
            return b"", shown


def by_certificate(tmp_path: Path, **settings: str) -> GatewayParts:
    write_users({"client": User("client", groups=frozenset({"g"}))}, tmp_path / "users.toml")
    users = Users(FileUsers(tmp_path / "users.toml"), remember_s=60, guesses=Guesses(50, 1_000))
    parts = GatewayParts()
    access = AccessSettings(methods="certificate", **settings)  # type: ignore[arg-type]
    parts.gateway.gate = Gate(None, Authenticator(access, users))
    return parts


def test_plain_tls(certificates: Certificates) -> None:
    parts = GatewayParts()
    with served(parts, tls=ServerTls(tls_settings(certificates))) as port:
        assert asked(port, certificates)[0].startswith(b"HTTP/1.1 202")
        with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
            plain.sendall(REQUEST)
            assert not plain.recv(4096).startswith(b"HTTP/1.1 202")
    assert len(parts.notifications.accepted) == 1


def test_old_versions_of_tls_are_not_spoken(certificates: Certificates) -> None:
    with served(GatewayParts(), tls=ServerTls(tls_settings(certificates, minimum="1.3"))) as port:
        context = ssl.create_default_context(cafile=certificates.authority)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection(("127.0.0.1", port), timeout=60) as plain, pytest.raises(ssl.SSLError):
            context.wrap_socket(plain, server_hostname="127.0.0.1")
    assert ServerTls(tls_settings(certificates)).context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_handshake_that_stalls_is_cut_off_and_counted(certificates: Certificates) -> None:
    tls = ServerTls(dataclasses.replace(tls_settings(certificates), handshake_timeout_s=5))
    with served(GatewayParts(), tls=tls) as port:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=45) as silent,
            socket.create_connection(("127.0.0.1", port), timeout=45) as halting,
        ):
            halting.sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a ClientHello
            assert asked(port, certificates)[0].startswith(b"HTTP/1.1 202")
            assert (tls.handshakes.begun, tls.handshakes.succeeded) == (3, 1)
            # Well before the minute that asyncio would give them, which is beyond the sockets' own patience.
            for stalled in (silent, halting):
                with contextlib.suppress(ConnectionError):
                    assert stalled.recv(100) == b""
        assert asked(port, certificates)[0].startswith(b"HTTP/1.1 202")
    assert (tls.handshakes.begun, tls.handshakes.succeeded) == (4, 2)


def test_a_certificate_says_who_it_is(certificates: Certificates, tmp_path: Path) -> None:
    parts = by_certificate(tmp_path)
    tls = ServerTls(tls_settings(certificates, client_ca_file=certificates.authority))
    with served(parts, tls=tls) as port:
        assert asked(port, certificates)[0].startswith(b"HTTP/1.1 401")
        # Signed by our authority, but nobody we know.
        assert asked(port, certificates, "elsewhere")[0].startswith(b"HTTP/1.1 401")
        assert asked(port, certificates, "stranger")[0] == b""
        assert parts.notifications.accepted == []
        assert asked(port, certificates, "client")[0].startswith(b"HTTP/1.1 202")
    assert len(parts.notifications.accepted) == 1


def test_a_name_may_count_for_itself(certificates: Certificates, tmp_path: Path) -> None:
    parts = by_certificate(tmp_path, certificate_name="dns", certificate_users="any")
    tls = ServerTls(tls_settings(certificates, client_ca_file=certificates.authority))
    with served(parts, tls=tls) as port:
        # It has no name of this kind.
        assert asked(port, certificates, "client")[0].startswith(b"HTTP/1.1 401")


def test_a_renewed_certificate_is_taken_over_and_a_broken_one_is_not(
    certificates: Certificates, tmp_path: Path
) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    for kind in ("pem", "key"):
        shutil.copy(certificates.folder / f"server.{kind}", folder / f"our.{kind}")
    tls = ServerTls(TlsSettings(str(folder / "our.pem"), str(folder / "our.key")))
    again = tmp_path / "again"
    again.mkdir()
    renewed = make_certificates(again)
    with served(GatewayParts(), tls=tls) as port:
        first = asked(port, certificates)[1]
        assert not tls.refresh()
        # Only the certificate so far: it does not go with the key.
        shutil.copy(renewed.folder / "server.pem", folder / "our.pem")
        assert not tls.refresh()
        assert asked(port, certificates)[1] == first
        shutil.copy(renewed.folder / "server.key", folder / "our.key")
        assert tls.refresh()
        assert asked(port, renewed)[1]["serialNumber"] != first["serialNumber"]


def test_files_that_cannot_be_used_are_named(certificates: Certificates, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tls\.certificate_file = /nowhere"):
        ServerTls(TlsSettings("/nowhere/cert.pem"))
    with pytest.raises(ConfigError, match=r"tls\.client_ca_file"):
        ServerTls(tls_settings(certificates, client_ca_file=str(tmp_path / "none.pem")))
    with pytest.raises(ConfigError, match=r"tls\.certificate_file must be set"):
        TlsSettings(client_ca_file="x")


def test_names_in_a_certificate() -> None:
    certificate = {
        "subject": ((("countryName", "DE"),), (("organizationName", "A, B"),), (("commonName", "press 1"),)),
        "subjectAltName": (("DNS", "a.example"), ("DNS", "b.example"), ("email", "p@x"), ("URI", "spiffe://x/p")),
    }
    assert certificate_names(certificate, "common_name") == ["press 1"]
    assert certificate_names(certificate, "dns") == ["a.example", "b.example"]
    assert certificate_names(certificate, "email") == ["p@x"]
    assert certificate_names(certificate, "uri") == ["spiffe://x/p"]
    assert certificate_names(certificate, "subject") == ["CN=press 1,O=A\\, B,C=DE"]
    assert certificate_names({}, "common_name") == []
