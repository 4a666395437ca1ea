"""The policy for outgoing requests, by itself; test_ssrf.py tries it against real sockets."""

from __future__ import annotations

import gc
import socket

import pytest

from arborcast.core.errors import ConfigError
from arborcast.core.security.outbound import AddressPolicy, GuardedSockets, OutboundSettings, Refusal


def policy(*own: tuple[str, int], **settings: str | bool) -> AddressPolicy:
    return AddressPolicy(OutboundSettings(**settings), frozenset(own))  # type: ignore[arg-type]


def rule(refusal: Refusal | None) -> str:
    return refusal.rule if refusal is not None else ""


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://example.org/", ""),
        ("HTTPS://Example.org:8443/a?b#c", ""),
        ("http://1.1.1.1:9000", ""),
        ("http://[2606:4700::1]/", ""),
        ("http://intranet/", ""),  # a name: decided at the connection
        ("http://127.0.0.1/", "loopback"),
        ("http://[::1]/", "loopback"),
        ("http://localhost/", "loopback"),
        ("http://10.0.0.1/", "private"),
        ("http://a@example.org/", "userinfo"),
        ("http://example.org:0/", "spelling"),
        ("http://exa mple.org/", "spelling"),
        ("http://0x7f.1/", "spelling"),
        ("http://example.org/\x9b31m", "spelling"),
        ("http://example.org/\x85/", "spelling"),
        ("http://example.org/\u202egpj.exe", "spelling"),
        ("http://example.org/\u2028", "spelling"),
        ("http://example.org/é", ""),
        ("urn:x", "scheme"),
        ("", "scheme"),
    ],
)
def test_urls(url: str, expected: str) -> None:
    assert rule(policy().check_url(url)) == expected


def test_reasons_name_what_to_change() -> None:
    refusal = policy().check_url("http://10.0.0.1/")

    assert refusal is not None
    assert "10.0.0.1" in refusal.reason
    assert "outbound.scope is public" in refusal.reason
    assert str(refusal).endswith("(outbound rule: private)")


def test_own_services() -> None:
    own = policy(("127.0.0.1", 9092), ("bus.example", 443), ("10.0.0.5", 8080), scope="private", allow="127.0.0.0/8")

    assert rule(own.check_address("127.0.0.1", 9092)) == "own-port"
    assert rule(own.check_address("127.8.8.8", 9092)) == "own-port"
    assert rule(own.check_address("::ffff:127.0.0.1", 9092)) == "own-port"
    assert rule(own.check_address("0.0.0.0", 9092)) == "own-port"  # noqa: S104  # judged only
    assert rule(own.check_url("http://localhost:9092/")) == "own-port"
    assert rule(own.check_address("127.0.0.1", 9093)) == ""
    assert rule(own.check_url("https://BUS.example./x")) == "own-port"
    assert rule(own.check_url("http://bus.example/x")) == ""
    assert rule(own.check_address("10.0.0.5", 8080)) == "own-port"
    assert rule(own.check_address("10.0.0.6", 8080)) == "", "somebody else's port of the same number"


@pytest.mark.parametrize(
    "guise",
    [
        *("::ffff:9.9.9.9", "::9.9.9.9", "::ffff:0:9.9.9.9", "64:ff9b::9.9.9.9", "2002:909:909::1"),
        *("64:ff9b:1:909:9:900::", "64:ff9b:1:9:9:909::", "64:ff9b:1:0:9:909:900::", "64:ff9b:1::9.9.9.9"),
        *("2001:0:1:1::f6f6:f6f6", "2001:0:909:909::1", "2606:4700::5efe:909:909"),
    ],
)
def test_own_services_in_every_guise_of_ipv6(guise: str) -> None:
    """A public address of ours is an endpoint for nobody, by whatever translator or tunnel; allowed or not."""
    for settings in ({}, {"allow": "::/0"}):
        own = policy(("9.9.9.9", 8080), **settings)
        assert rule(own.check_address(guise, 8080)) == "own-port"
        assert rule(own.check_address(guise, 8081)) != "own-port"
        assert rule(policy(deny="9.9.9.0/24", **settings).check_address(guise, 80)) == "denied"


def test_own_services_under_the_machine_s_other_addresses() -> None:
    """Allowed or not, what is ours on this machine is no endpoint by any of its addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but loopback")
        mine = str(probe.getsockname()[0])

    assert rule(policy(("127.0.0.1", 9092), allow="0.0.0.0/0").check_address(mine, 9092)) == "own-port"


def test_what_is_no_address_is_refused() -> None:
    assert rule(policy(allow="0.0.0.0/0, ::/0").check_address("localhost", 80)) == "address"


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


def test_sockets_are_opened_for_what_may_be_reached_only() -> None:
    sockets = GuardedSockets(policy())
    assert sockets.open(socket.AF_INET, socket.SOCK_STREAM, 0, ("10.0.0.1", 80)) is None
    assert rule(sockets.refusal) == "private"

    opened = sockets.open(socket.AF_INET, socket.SOCK_STREAM, 0, ("1.1.1.1", 80))
    assert opened is not None
    assert sockets.refusal is None, "one of several is enough"
    assert sockets.open(socket.AF_UNIX, socket.SOCK_STREAM, 0, ("/run/x", 0)) is None

    del opened
    gc.collect()  # a socket that was not closed would be a warning, and so an error
    sockets.begin()
    assert sockets.refusal is None
