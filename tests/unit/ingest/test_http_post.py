"""The gateway's own calls leave the way that pushes do, and leave nothing behind."""

from __future__ import annotations

import pytest

from arborcast.core.security.outbound import AddressPolicy
from arborcast.ingest.consumers import DIRECT, OutboundRoute, post
from arborcast.wire.errors import NoAnswer, NotCalled
from tests.support.certificates import Certificates, make_certificates
from tests.support.outbound import THIS_MACHINE
from tests.support.receiver import Receiver, refusing_url


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def call(url: str, route: OutboundRoute = DIRECT, policy: AddressPolicy = THIS_MACHINE) -> int:
    return post(url, [], b"<x/>", policy, route, total_s=5, max_answer=1_000)[0]


def test_servers_are_certified_by_the_same_authorities(certificates: Certificates) -> None:
    with Receiver(tls=certificates.server()) as receiver:
        with pytest.raises(NoAnswer):
            call(receiver.url("/"))
        assert call(receiver.url("/"), OutboundRoute(ca_file=certificates.authority)) == 202
    with Receiver(tls=certificates.server("elsewhere")) as receiver, pytest.raises(NoAnswer):
        call(receiver.url("/"), OutboundRoute(ca_file=certificates.authority))


def test_the_proxy_is_used_and_judges_addresses() -> None:
    with Receiver() as proxy:
        route = OutboundRoute(proxy=proxy.url("").rstrip("/"))
        assert call("http://publisher.invalid/x", route, AddressPolicy()) == 202
        for url in ("http://10.0.0.1/", "http://localhost/", "http://0x7f.1/"):
            with pytest.raises(NotCalled):
                call(url, route, AddressPolicy())
        assert [request.path for request in proxy.requests] == ["http://publisher.invalid/x"]


def test_the_environment_has_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    with refusing_url() as proxy, Receiver() as receiver:
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("no_proxy", "*")
        assert call(receiver.url("/")) == 202
        with Receiver() as wanted:
            assert call(receiver.url("/"), OutboundRoute(proxy=wanted.url("").rstrip("/"))) == 202
            assert len(wanted.requests) == 1
