"""Pushes over TLS and through a proxy, with an authority of our own; the same tests for each transport."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from arborcast.core.errors import ConfigError
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult, Transport
from arborcast.dispatch.delivery.transport.curl import CurlTransport
from arborcast.dispatch.delivery.transport.futures import FuturesTransport
from arborcast.dispatch.settings import PushSettings
from tests.support.certificates import Certificates, make_certificates
from tests.support.http2 import Http2Server
from tests.support.outbound import THIS_MACHINE
from tests.support.receiver import Receiver, refusing_url

Make = Callable[..., Transport]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=[CurlTransport, FuturesTransport])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    opened: list[Transport] = []

    def build(**settings: object) -> Transport:
        chosen: dict[str, Any] = {"connect_timeout_s": 2.0, "total_timeout_s": 4.0, "max_in_flight": 4, **settings}
        opened.append(request.param(PushSettings(**chosen), THIS_MACHINE))
        return opened[-1]

    yield build
    for transport in opened:
        transport.close()


def push(transport: Transport, url: str, certificate: str = "") -> PushResult:
    results: list[PushResult] = []
    transport.submit(PushRequest(url, (("Content-Type", "text/xml"),), b"<x/>", certificate), results.append)
    while transport.in_flight:
        transport.drive(0.2)
    return results[0]


def test_receiver_with_a_certificate_of_our_authority(make: Make, certificates: Certificates) -> None:
    transport = make(tls_ca_file=certificates.authority)
    with Receiver(tls=certificates.server()) as receiver:
        results = [push(transport, receiver.url("/tls")) for _ in range(3)]

        assert [(result.status, result.failure, result.reused) for result in results] == [
            (202, "", False),
            (202, "", True),
            (202, "", True),
        ]
        assert receiver.received("/tls")[0].body == b"<x/>"


def test_certificates_lie_in_a_folder_of_any_name(make: Make, certificates: Certificates, tmp_path: Path) -> None:
    folder = tmp_path / "Zo\u00eb's \u2603"
    folder.mkdir()
    ca, certificate, key = (folder / name for name in ("ca.pem", "client.pem", "client.key"))
    ca.write_bytes(Path(certificates.authority).read_bytes())
    certificate.write_bytes(Path(certificates.certificate("client")).read_bytes())
    key.write_bytes(Path(certificates.key("client")).read_bytes())
    transport = make(tls_ca_file=str(ca), tls_client_certificate=str(certificate), tls_client_key=str(key))
    with Receiver(tls=certificates.server(ask_client=True)) as receiver:
        assert push(transport, receiver.url()).status == 202


@pytest.mark.parametrize("name", ["stranger", "elsewhere"])
def test_receiver_that_is_not_who_it_should_be(make: Make, certificates: Certificates, name: str) -> None:
    with Receiver(tls=certificates.server(name)) as receiver:
        result = push(make(tls_ca_file=certificates.authority), receiver.url())

        assert (result.status, result.failure) == (0, "tls")
        assert result.detail
        assert not receiver.requests


def test_public_authorities_know_nothing_of_ours(make: Make, certificates: Certificates) -> None:
    with Receiver(tls=certificates.server()) as receiver:
        assert push(make(), receiver.url()).failure == "tls"


def test_receiver_that_speaks_only_outdated_tls(make: Make, certificates: Certificates) -> None:
    context = certificates.server()
    context.set_ciphers("ALL:@SECLEVEL=0")  # else OpenSSL refuses it on the receiver's side already
    for bound in ("minimum_version", "maximum_version"):
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            setattr(context, bound, ssl.TLSVersion.TLSv1_1)
    with Receiver(tls=context) as receiver:
        assert push(make(tls_ca_file=certificates.authority), receiver.url()).failure == "tls"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_receiver_that_asks_for_a_certificate(
    make: Make, certificates: Certificates, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    context = certificates.server(ask_client=True)
    context.maximum_version = version
    together = tmp_path / "client-and-key.pem"
    together.write_text(
        Path(certificates.certificate("client")).read_text() + Path(certificates.key("client")).read_text()
    )
    ca = certificates.authority
    with Receiver(tls=context) as receiver:
        two_files = make(
            tls_ca_file=ca,
            tls_client_certificate=certificates.certificate("client"),
            tls_client_key=certificates.key("client"),
        )
        assert push(two_files, receiver.url("/two")).status == 202
        assert push(make(tls_ca_file=ca, tls_client_certificate=str(together)), receiver.url("/one")).status == 202

        # A receiver may break off before its reason arrives; what matters is that nothing was delivered.
        assert push(make(tls_ca_file=ca), receiver.url("/none")).failure in ("tls", "disconnected")
        assert [request.path for request in receiver.requests] == ["/two", "/one"]


def test_proxy_of_the_settings_is_used(make: Make) -> None:
    with Receiver() as proxy:
        result = push(make(proxy=proxy.url("")), "http://receiver.invalid/behind")

        assert result.status == 202
        (request,) = proxy.requests
        assert request.path == "http://receiver.invalid/behind"
        assert request.body == b"<x/>"


def test_no_proxy_of_the_environment_does_not_lead_around_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with Receiver() as proxy:
        assert push(make(proxy=proxy.url("")), "http://receiver.invalid/behind").status == 202


def test_proxy_that_is_away(make: Make) -> None:
    with refusing_url() as proxy:
        assert push(make(proxy=proxy.rstrip("/")), "http://receiver.invalid/").failure == "connect"


def test_http_2_where_it_is_offered(certificates: Certificates) -> None:
    with Http2Server(certificates.server()) as server:
        for http2 in (True, False):
            transport = CurlTransport(PushSettings(tls_ca_file=certificates.authority, http2=http2), THIS_MACHINE)
            try:
                assert [push(transport, server.url).status for _ in range(2 if http2 else 1)][-1] == 202
            finally:
                transport.close()

    assert server.protocols == ["h2", "http/1.1"]
    assert server.requests == 3


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


def test_a_push_shows_its_own_certificate_and_the_next_one_does_not(
    make: Make, certificates: Certificates, tmp_path: Path
) -> None:
    """Connections are kept: one that was made with a subscription's certificate must not serve another's push."""
    both = tmp_path / "client.pem"
    both.write_text(Path(certificates.certificate("client")).read_text() + Path(certificates.key("client")).read_text())
    transport = make(tls_ca_file=certificates.authority)
    with Receiver(tls=certificates.server(ask_client=True)) as receiver:
        url = receiver.url("/asks")
        assert push(transport, url).status == 0
        shown = [push(transport, url, str(both)) for _ in range(2)]
        assert [(result.status, result.reused) for result in shown] == [(202, False), (202, True)]
        assert push(transport, url).status == 0
