"""Pushes over TLS and through a proxy, with an authority of our own; the same tests for each transport."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from arborcast.core.errors import ConfigError
from arborcast.dispatch.delivery.transport.contract import Transport
from arborcast.dispatch.delivery.transport.curl import CurlTransport
from arborcast.dispatch.settings import PushSettings
from tests.support.certificates import Certificates
from tests.support.http2 import Http2Server
from tests.support.outbound import THIS_MACHINE
from tests.support.receiver import Receiver, refusing_url
from tests.support.transports import push

Make = Callable[..., Transport]


@pytest.fixture
def hurried(make: Make) -> Make:
    """Gives up soon."""
    return partial(make, connect_timeout_s=2.0, total_timeout_s=4.0, max_in_flight=4)


@pytest.fixture
def ours(hurried: Make, certificates: Certificates) -> Make:
    """Trusts our authority."""
    return partial(hurried, tls_ca_file=certificates.authority)


@pytest.fixture
def both(certificates: Certificates, tmp_path: Path) -> str:
    """A file with the certificate of a client and its key."""
    file = tmp_path / "client-and-key.pem"
    file.write_text(Path(certificates.certificate("client")).read_text() + Path(certificates.key("client")).read_text())
    return str(file)


def test_a_receiver_with_a_certificate_of_our_authority(ours: Make, hurried: Make, certificates: Certificates) -> None:
    transport = ours()
    with Receiver(tls=certificates.server()) as receiver:
        results = [push(transport, receiver.url("/tls")) for _ in range(3)]
        found = [(result.status, result.failure, result.reused) for result in results]
        assert found == [(202, "", False), (202, "", True), (202, "", True)]
        assert receiver.received("/tls")[0].body == b"<x/>"
        assert push(hurried(), receiver.url()).failure == "tls", "public authorities have not signed it"


@pytest.mark.parametrize("name", ["stranger", "elsewhere"])
def test_a_receiver_with_a_wrong_certificate(ours: Make, certificates: Certificates, name: str) -> None:
    with Receiver(tls=certificates.server(name)) as receiver:
        result = push(ours(), receiver.url())
        assert (result.status, result.failure) == (0, "tls")
        assert result.detail
        assert not receiver.requests


def test_a_receiver_with_outdated_tls_only(ours: Make, certificates: Certificates) -> None:
    context = certificates.server()
    context.set_ciphers("ALL:@SECLEVEL=0")  # else OpenSSL refuses it on the receiver's side already
    for bound in ("minimum_version", "maximum_version"):
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            setattr(context, bound, ssl.TLSVersion.TLSv1_1)
    with Receiver(tls=context) as receiver:
        assert push(ours(), receiver.url()).failure == "tls"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_receiver_that_requests_a_certificate(
    ours: Make, certificates: Certificates, version: ssl.TLSVersion, both: str
) -> None:
    context = certificates.server(ask_client=True)
    context.maximum_version = version
    certificate, key = certificates.certificate("client"), certificates.key("client")
    with Receiver(tls=context) as receiver:
        two_files = ours(tls_client_certificate=certificate, tls_client_key=key)
        assert push(two_files, receiver.url("/two")).status == 202
        assert push(ours(tls_client_certificate=both), receiver.url("/one")).status == 202
        # A receiver may break off before its reason arrives; what matters is that nothing was delivered.
        assert push(ours(), receiver.url("/none")).failure in ("tls", "disconnected")
        assert [request.path for request in receiver.requests] == ["/two", "/one"]


def test_a_push_shows_its_own_certificate_and_the_next_one_does_not(
    ours: Make, certificates: Certificates, both: str
) -> None:
    """Connections are kept: one that was made with a subscription's certificate must not serve another's push."""
    transport = ours()
    with Receiver(tls=certificates.server(ask_client=True)) as receiver:
        results = [push(transport, receiver.url(), certificate=each) for each in ("", both, both, "")]
    assert [result.status for result in results] == [0, 202, 202, 0]
    assert [result.reused for result in results[1:3]] == [False, True]


def test_certificates_lie_in_a_folder_of_any_name(hurried: Make, certificates: Certificates, tmp_path: Path) -> None:
    folder = tmp_path / "Zo\u00eb's \u2603"
    folder.mkdir()
    files = [folder / name for name in ("ca.pem", "client.pem", "client.key")]
    for file in files:
        file.write_bytes((certificates.folder / file.name).read_bytes())
    ca, certificate, key = map(str, files)
    transport = hurried(tls_ca_file=ca, tls_client_certificate=certificate, tls_client_key=key)
    with Receiver(tls=certificates.server(ask_client=True)) as receiver:
        assert push(transport, receiver.url()).status == 202


def test_the_proxy_of_the_settings_is_used(hurried: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")  # of the environment: does not lead around it
    with Receiver() as proxy:
        assert push(hurried(proxy=proxy.url("")), "http://receiver.invalid/behind").status == 202
        (request,) = proxy.requests
        assert (request.path, request.body) == ("http://receiver.invalid/behind", b"<x/>")
    with refusing_url() as away:
        assert push(hurried(proxy=away.rstrip("/")), "http://receiver.invalid/").failure == "connect"


def test_http_2_where_it_is_offered(certificates: Certificates) -> None:
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
def test_settings_that_cannot_work_are_refused(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        PushSettings(**settings)  # type: ignore[arg-type]
