"""Pushes over TLS and through a proxy, with a private authority, for each transport."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from arborcast.core.errors import ConfigError
from arborcast.dispatch.delivery.transport.contract import Transport
from arborcast.dispatch.delivery.transport.curl import CurlTransport
from arborcast.dispatch.settings import PushSettings
from tests.support.certificates import Certificates
from tests.support.outbound import THIS_MACHINE
from tests.support.receiver import Receiver, refusing_url
from tests.support.scripted_server import ScriptedServer, request_on
from tests.support.transports import push

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_STATUS_202 = b"\x08\x03202"  # literal without indexing; name 8 of the static table is :status


class Http2Server(ScriptedServer):
    """Answers requests over HTTP/2, or HTTP/1.1."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        tls.set_alpn_protocols(["h2", "http/1.1"])
        super().__init__(self._act, tls=tls)
        self.protocols: list[str | None] = []
        self.requests = 0

    def _act(self, connection: socket.socket) -> None:
        assert isinstance(connection, ssl.SSLSocket)
        self.protocols.append(connection.selected_alpn_protocol())
        if connection.selected_alpn_protocol() != "h2":
            self.requests += b"<x/>" in request_on(connection)
            connection.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
            return
        frames = connection.makefile("rb")
        assert frames.read(len(_PREFACE)) == _PREFACE
        connection.sendall(_frame(_SETTINGS, 0, 0))
        while head := frames.read(9):
            length_and_kind, flags, stream = struct.unpack(">IBI", head)
            frames.read(length_and_kind >> 8)
            kind = length_and_kind & 0xFF
            if kind == _SETTINGS and not flags & _ACK:
                connection.sendall(_frame(_SETTINGS, _ACK, 0))
            elif kind in (_HEADERS, _DATA) and flags & _END_STREAM:
                self.requests += 1
                connection.sendall(_frame(_HEADERS, _END_STREAM | _END_HEADERS, stream, _STATUS_202))


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


Make = Callable[..., Transport]


@pytest.fixture
def short_time_outs(make: Make) -> Make:
    """Short time-outs."""
    return partial(make, connect_timeout_s=2.0, total_timeout_s=4.0, max_in_flight=4)


@pytest.fixture
def trusting(short_time_outs: Make, certificates: Certificates) -> Make:
    """Trusts the private authority."""
    return partial(short_time_outs, tls_ca_file=certificates.authority)


@pytest.fixture
def both(certificates: Certificates, tmp_path: Path) -> str:
    """A file with the certificate of a client, and its key."""
    file = tmp_path / "client-and-key.pem"
    file.write_text(Path(certificates.certificate("client")).read_text() + Path(certificates.key("client")).read_text())
    return str(file)


def test_a_receiver_with_a_certificate_of_the_authority(
    trusting: Make, short_time_outs: Make, certificates: Certificates
) -> None:
    transport = trusting()
    with Receiver(tls=certificates.server()) as receiver:
        results = [push(transport, receiver.url("/tls")) for _ in range(3)]
        found = [(result.status, result.failure, result.reused) for result in results]
        assert found == [(202, "", False), (202, "", True), (202, "", True)]
        assert receiver.received("/tls")[0].body == b"<x/>"
        assert push(short_time_outs(), receiver.url()).failure == "tls", "public authorities have not signed it"


@pytest.mark.parametrize("name", ["stranger", "elsewhere"])
def test_a_receiver_with_a_wrong_certificate(trusting: Make, certificates: Certificates, name: str) -> None:
    with Receiver(tls=certificates.server(name)) as receiver:
        result = push(trusting(), receiver.url())
        assert (result.status, result.failure) == (0, "tls")
        assert result.detail
        assert not receiver.requests


def test_a_receiver_with_outdated_tls_only(trusting: Make, certificates: Certificates) -> None:
    context = certificates.server()
    context.set_ciphers("ALL:@SECLEVEL=0")  # otherwise OpenSSL refuses it in the receiver
    for bound in ("minimum_version", "maximum_version"):
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            setattr(context, bound, ssl.TLSVersion.TLSv1_1)
    with Receiver(tls=context) as receiver:
        assert push(trusting(), receiver.url()).failure == "tls"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_receiver_that_requests_a_certificate(
    trusting: Make, certificates: Certificates, version: ssl.TLSVersion, both: str
) -> None:
    context = certificates.server(ask_client=True)
    context.maximum_version = version
    certificate, key = certificates.certificate("client"), certificates.key("client")
    with Receiver(tls=context) as receiver:
        two_files = trusting(tls_client_certificate=certificate, tls_client_key=key)
        assert push(two_files, receiver.url("/two")).status == 202
        assert push(trusting(tls_client_certificate=both), receiver.url("/one")).status == 202
        # A receiver may close before its alert arrives; nothing is delivered in either case.
        assert push(trusting(), receiver.url("/none")).failure in ("tls", "disconnected")
        assert [request.path for request in receiver.requests] == ["/two", "/one"]


def test_connections_are_not_shared_between_client_certificates(
    trusting: Make, certificates: Certificates, both: str
) -> None:
    """A kept connection with a subscription's certificate must not be reused for another's push."""
    transport = trusting()
    with Receiver(tls=certificates.server(ask_client=True)) as receiver:
        results = [push(transport, receiver.url(), certificate=each) for each in ("", both, both, "")]
    assert [result.status for result in results] == [0, 202, 202, 0]
    assert [result.reused for result in results[1:3]] == [False, True]


def test_certificates_in_a_folder_with_a_non_ascii_name(
    short_time_outs: Make, certificates: Certificates, tmp_path: Path
) -> None:
    folder = tmp_path / "Zo\u00eb's \u2603"
    folder.mkdir()
    files = [folder / name for name in ("ca.pem", "client.pem", "client.key")]
    for file in files:
        file.write_bytes((certificates.folder / file.name).read_bytes())
    ca, certificate, key = map(str, files)
    transport = short_time_outs(tls_ca_file=ca, tls_client_certificate=certificate, tls_client_key=key)
    with Receiver(tls=certificates.server(ask_client=True)) as receiver:
        assert push(transport, receiver.url()).status == 202


def test_the_proxy_of_the_settings_is_used(short_time_outs: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")  # ignored
    with Receiver() as proxy:
        assert push(short_time_outs(proxy=proxy.url("")), "http://receiver.invalid/behind").status == 202
        (request,) = proxy.requests
        assert (request.path, request.body) == ("http://receiver.invalid/behind", b"<x/>")
    with refusing_url() as away:
        assert push(short_time_outs(proxy=away.rstrip("/")), "http://receiver.invalid/").failure == "connect"


def test_http_2_by_alpn(certificates: Certificates) -> None:
    with Http2Server(certificates.server()) as server:
        for http2, pushes in ((True, 2), (False, 1)):
            settings = PushSettings(tls_ca_file=certificates.authority, http2=http2)
            with contextlib.closing(CurlTransport(settings, THIS_MACHINE)) as transport:
                assert [push(transport, server.url).status for _ in range(pushes)] == [202] * pushes
    assert (server.protocols, server.requests) == (["h2", "http/1.1"], 3)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"tls_ca_file": "/no/such/file.pem"}, "push.tls_ca_file"),
        ({"tls_client_certificate": "/no/such/file.pem"}, "push.tls_client_certificate"),
        ({"tls_client_key": __file__}, "without push.tls_client_certificate"),
        ({"proxy": "localhost:3128"}, "http:// or https://"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        PushSettings(**settings)  # type: ignore[arg-type]
