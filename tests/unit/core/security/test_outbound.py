"""The policy for outgoing requests by itself; test_ssrf.py tries it with real sockets. And IRIs: their URIs were
written by hand, out of RFC 3987 and the registries' own examples."""

from __future__ import annotations

import gc
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.errors import ConfigError
from arborcast.core.security.outbound import AddressPolicy, GuardedSockets, OutboundSettings, Refusal, families_in_turn
from arborcast.core.security.uris import to_uri


def policy(*own: tuple[str, int], **settings: str | bool) -> AddressPolicy:
    return AddressPolicy(OutboundSettings(**settings), frozenset(own))  # type: ignore[arg-type]


def rule(refusal: Refusal | None) -> str:
    return refusal.rule if refusal is not None else ""


@pytest.mark.parametrize(
    ("expected", "urls"),
    [
        ("", ["http://example.org/", "HTTPS://Example.org:8443/a?b#c", "http://1.1.1.1:9000"]),
        ("", ["http://[2606:4700::1]/", "http://example.org/é"]),
        ("", ["http://intranet/"]),  # a name, checked at the connection
        ("loopback", ["http://127.0.0.1/", "http://[::1]/", "http://localhost/"]),
        ("private", ["http://10.0.0.1/"]),
        ("userinfo", ["http://a@example.org/"]),
        ("spelling", ["http://example.org:0/", "http://exa mple.org/", "http://0x7f.1/", "http://example.org/\x9b31m"]),
        ("spelling", [f"http://example.org/{each}" for each in ("\x85/", "\u202egpj.exe", "\u2028")]),
        ("scheme", ["urn:x", ""]),
        # IRIs without a URI: full-width digits, ideographic full stops, ...
        ("spelling", ["http://\uff11\uff12\uff17.0.0.1/", "http://127\u30020\u30020\u30021/"]),
        ("spelling", ["http://host\uff0fpath/", f"http://{'é' * 70}.example/", "http://\u200d.example/"]),
        ("spelling", ["http://host:\uff18\uff10/", "http://host/\ud800", "http:é", "http://é\u202e.example/"]),
    ],
)
def test_urls(expected: str, urls: list[str]) -> None:
    for url in urls:
        assert rule(policy().check_url(url)) == expected, url


def test_reasons_name_the_setting() -> None:
    refusal = policy().check_url("http://10.0.0.1/")

    assert refusal is not None
    assert "10.0.0.1" in refusal.reason
    assert "outbound.scope is public" in refusal.reason
    assert str(refusal).endswith("(outbound rule: private)")


def test_own_services() -> None:
    own = policy(("127.0.0.1", 9092), ("bus.example", 443), ("10.0.0.5", 8080), scope="private", allow="127.0.0.0/8")

    for address in ("127.0.0.1", "127.8.8.8", "::ffff:127.0.0.1", "0.0.0.0"):  # noqa: S104  # judged only
        assert rule(own.check_address(address, 9092)) == "own-port"
    assert rule(own.check_url("http://localhost:9092/")) == "own-port"
    assert rule(own.check_address("127.0.0.1", 9093)) == ""
    assert rule(own.check_url("https://BUS.example./x")) == "own-port"
    assert rule(own.check_url("http://bus.example/x")) == ""
    assert rule(own.check_address("10.0.0.5", 8080)) == "own-port"
    assert rule(own.check_address("10.0.0.6", 8080)) == "", "another host's port of the same number"
    assert rule(policy(allow="0.0.0.0/0, ::/0").check_address("localhost", 80)) == "address", "no address"


@pytest.mark.parametrize(
    "guise",
    [
        *("::ffff:9.9.9.9", "::9.9.9.9", "::ffff:0:9.9.9.9", "64:ff9b::9.9.9.9", "2002:909:909::1"),
        *("64:ff9b:1:909:9:900::", "64:ff9b:1:9:9:909::", "64:ff9b:1:0:9:909:900::", "64:ff9b:1::9.9.9.9"),
        *("2001:0:1:1::f6f6:f6f6", "2001:0:909:909::1", "2606:4700::5efe:909:909"),
    ],
)
def test_own_services_in_every_ipv6_notation(guise: str) -> None:
    """A public address of the engine is no endpoint, through any translator or tunnel, even if allowed."""
    for settings in ({}, {"allow": "::/0"}):
        own = policy(("9.9.9.9", 8080), **settings)
        assert rule(own.check_address(guise, 8080)) == "own-port"
        assert rule(own.check_address(guise, 8081)) != "own-port"
        assert rule(policy(deny="9.9.9.0/24", **settings).check_address(guise, 80)) == "denied"


def test_own_services_under_other_addresses_of_the_machine() -> None:
    """Even if allowed, the engine's ports on this machine are no endpoints under any of its addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but loopback")
        mine = str(probe.getsockname()[0])

    assert rule(policy(("127.0.0.1", 9092), allow="0.0.0.0/0").check_address(mine, 9092)) == "own-port"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"allow": "10.0.0.0/33"}, "outbound.allow: '10.0.0.0/33'"),
        ({"allow": "10.0.0.1/8"}, "host bits"),
        ({"deny": "intranet"}, "outbound.deny: 'intranet'"),
        ({"ports": "http"}, "outbound.ports: 'http'"),
        ({"ports": "0"}, "between 1 and 65535"),
        ({"ports": "9-8"}, "smaller number first"),
        ({"ports": "1-65536"}, "between 1 and 65535"),
        ({"ports": "80-"}, "neither a port"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        OutboundSettings(**settings)  # type: ignore[arg-type]


def test_sockets_are_opened_for_permitted_addresses_only() -> None:
    sockets = GuardedSockets(policy())
    assert sockets.open(socket.AF_INET, socket.SOCK_STREAM, 0, ("10.0.0.1", 80)) is None
    assert rule(sockets.refusal) == "private"

    opened = sockets.open(socket.AF_INET, socket.SOCK_STREAM, 0, ("1.1.1.1", 80))
    assert opened is not None
    assert sockets.refusal is None, "one of several suffices"
    assert sockets.open(socket.AF_UNIX, socket.SOCK_STREAM, 0, ("/run/x", 0)) is None

    del opened
    gc.collect()  # an unclosed socket is a warning, and so an error
    sockets.begin()
    assert sockets.refusal is None


@pytest.mark.parametrize(
    ("iri", "uri"),
    [
        ("http://host/a%20b/é?ü=ß#Ж", "http://host/a%20b/%C3%A9?%C3%BC=%C3%9F#%D0%96"),
        ("http://host?é", "http://host?%C3%A9"),
        ("http://host/𝄞", "http://host/%F0%9D%84%9E"),
        ("http://BÜCHER.example:8080/x", "http://xn--bcher-kva.example:8080/x"),
        ("http://bu\u0308cher.example/", "http://xn--bcher-kva.example/"),
        ("http://straße.de/", "http://xn--strae-oqa.de/"),
        ("http://例え.テスト/", "http://xn--r8jz45g.xn--zckzah/"),
        ("http://a_b.é/", "http://a_b.xn--9ca/"),
        ("http://[::1]:80/é", "http://[::1]:80/%C3%A9"),
        ("http://Host/A?b=%7e&c=[d]", "http://Host/A?b=%7e&c=[d]"),
        ("no url", "no url"),
        ("é", "é"),
    ],
)
def test_iris(iri: str, uri: str) -> None:
    assert to_uri(iri) == to_uri(uri) == uri


def test_an_iri_is_checked_like_its_uri() -> None:
    ours = policy(("xn--9ca.example", 443), ports="443")
    for iri in ("http://é.example/", "https://é.example/é", "https://ö.example/", "http://é@h/", "http://10.0.0.1/é"):
        assert ours.check_url(iri) == ours.check_url(to_uri(iri))
    assert ours.check_url("https://ö.example/é") is None
    assert rule(ours.check_url("https://É.example/")) == "own-port"


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(), st.text())
def test_accepted_urls_are_ascii(host: str, path: str, query: str) -> None:
    iri = f"http://{host}/{path}?{query}"
    if policy().check_url(iri) is None:
        assert to_uri(iri).isascii()


def test_families_of_addresses_are_tried_in_turn() -> None:
    found = [(socket.AF_INET6, 1), (socket.AF_INET6, 2), (socket.AF_INET6, 3), (socket.AF_INET, 4)]
    assert [number for _, number in families_in_turn(found)] == [1, 4, 2, 3]
    assert families_in_turn(found[:0]) == []
