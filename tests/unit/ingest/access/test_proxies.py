"""The address of a client from the headers of trusted proxies only."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import hypothesis.strategies as st
import pytest
from hypothesis import given

from arborcast.core.errors import ConfigError
from arborcast.ingest.access.gate import Authenticator, Gate
from arborcast.ingest.access.proxies import Proxies
from arborcast.ingest.access.rates import PeerConnections, Rates
from arborcast.ingest.access.settings import AccessSettings, LimitSettings
from arborcast.ingest.access.users import FailedLogins
from arborcast.ingest.access.users_file import User
from arborcast.ingest.settings import GatewaySettings
from arborcast.wire.errors import NotAuthenticated, TooManyRequests
from tests.support.guarded_gateway import basic, quick_hash, users_in

PROXIES = "10.0.0.1, 10.0.1.0/24, 2001:db8:ff::/48"


def scope(peer: str, **headers: str) -> dict[str, Any]:
    written = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"client": (peer, 1), "server": ("10.0.0.9", 8080), "headers": written}


@pytest.mark.parametrize(
    ("peer", "header", "client"),
    [
        ("10.0.0.1", "198.51.100.7", "198.51.100.7"),
        ("::ffff:10.0.0.1", "198.51.100.7", "198.51.100.7"),
        ("2001:db8:ff::2", "198.51.100.7", "198.51.100.7"),
        # Addresses further left are written by the client.
        ("10.0.0.1", "127.0.0.1, 198.51.100.7", "198.51.100.7"),
        ("10.0.0.1", "10.0.0.1, 198.51.100.7", "198.51.100.7"),
        # Several proxies.
        ("10.0.0.1", "6.6.6.6, 198.51.100.7, 10.0.1.3 , 10.0.0.1", "198.51.100.7"),
        ("10.0.0.1", "10.0.1.3, 10.0.1.4", "10.0.1.3"),
        ("10.0.0.1", "198.51.100.7:4711", "198.51.100.7"),
        ("10.0.0.1", "2001:db8::7", "2001:db8::7"),
        ("10.0.0.1", "[2001:db8::7]:4711", "2001:db8::7"),
        ("10.0.0.1", "::ffff:198.51.100.7", "198.51.100.7"),
        # An unreadable part ends the list: the client is the proxy that added it.
        ("10.0.0.1", "198.51.100.7, unknown", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.7, _hidden, 10.0.1.3", "10.0.1.3"),
        ("10.0.0.1", "198.51.100.7, ", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", ", ".join(["10.0.1.3"] * 5_000), "10.0.1.3"),
        # Ignored from other peers.
        ("198.51.100.7", "6.6.6.6", "198.51.100.7"),
        ("10.0.0.2", "6.6.6.6", "10.0.0.2"),
    ],
)
def test_x_forwarded_for(peer: str, header: str, client: str) -> None:
    assert Proxies(PROXIES).client(scope(peer, x_forwarded_for=header)) == client


@pytest.mark.parametrize(
    ("header", "client"),
    [
        ("for=198.51.100.7", "198.51.100.7"),
        ('For="198.51.100.7:4711";proto=https;by=10.0.0.1', "198.51.100.7"),
        ('for="[2001:db8::7]:4711"', "2001:db8::7"),
        ("for=[2001:db8::7]", "2001:db8::7"),
        ("proto=https;for=6.6.6.6, for=198.51.100.7;host=a, for=10.0.1.3", "198.51.100.7"),
        (r'for="198.51.100\.7"', "198.51.100.7"),
        # A host value that imitates a further hop.
        ('for=198.51.100.7;host="x,for=6.6.6.6"', "198.51.100.7"),
        (r'for=198.51.100.7;host="x\",for=6.6.6.6;host=\"y"', "198.51.100.7"),
        # The client's open quotation mark before the proxy's part.
        ('for="6.6.6.6, for=198.51.100.7', "10.0.0.1"),
        ('for="x, for=198.51.100.7, for="6.6.6.6', "10.0.0.1"),
        ("for=198.51.100.7, proto=https", "10.0.0.1"),
        *((text, "10.0.0.1") for text in ("for=unknown", "for", "")),
        # Linear time.
        *((text, "10.0.0.1") for text in (" " * 30_000 + "?", "a" * 30_000, 'a="' + "\\x" * 15_000, "," * 30_000)),
    ],
)
def test_forwarded(header: str, client: str) -> None:
    assert Proxies(PROXIES, "Forwarded").client(scope("10.0.0.1", forwarded=header)) == client


def test_several_headers_other_headers_and_no_proxies() -> None:
    found = scope("10.0.0.1")
    found["headers"] = [(b"x-forwarded-for", b"6.6.6.6"), (b"host", b"a"), (b"x-forwarded-for", b"198.51.100.7")]
    assert Proxies(PROXIES).client(found) == "198.51.100.7"
    both = scope("10.0.0.1", x_forwarded_for="198.51.100.7", forwarded="for=6.6.6.6")
    assert Proxies(PROXIES, "X-Forwarded-For").client(both) == "198.51.100.7"
    assert Proxies(PROXIES, "Forwarded").client(both) == "6.6.6.6"
    assert Proxies().client(both) == "10.0.0.1"
    assert Proxies(PROXIES).client({"client": None, "headers": []}) == ""


@given(st.binary(), st.sampled_from(["X-Forwarded-For", "Forwarded"]))
def test_text_of_a_client_does_not_hide_the_proxy_s_part(
    sent: bytes, header: Literal["X-Forwarded-For", "Forwarded"]
) -> None:
    written = "for=198.51.100.7" if header == "Forwarded" else "198.51.100.7"
    found = scope("10.0.0.1", **{header.lower(): f"{sent.decode('latin-1')}, {written}"})
    assert Proxies("10.0.0.1", header).client(found) in ("198.51.100.7", "10.0.0.1")


@pytest.mark.parametrize("networks", ["here", "10.0.0.1/8", "0.0.0.0/0", "10.0.0.1, ::/0"])
def test_invalid_lists_of_proxies(networks: str) -> None:
    with pytest.raises(ConfigError, match=r"gateway\.trusted_proxies"):
        GatewaySettings(trusted_proxies=networks)


def test_connections_of_a_proxy_are_not_counted() -> None:
    peers = PeerConnections(1, Proxies(PROXIES).connection_key)
    assert not any(peers.opened("10.0.0.1") for _ in range(5))
    assert len(peers._open) == 0
    assert [peers.opened(f"2001:db8::{number}") for number in range(2)] == [False, True]
    assert not peers.opened("198.51.100.7")
    peers.closed("10.0.0.1")
    for host in ("2001:db8::1", "198.51.100.7", "2001:db8::2"):
        assert len(peers._open) > 0
        peers.closed(host)
    assert len(peers._open) == 0


def gate(folder: Path, proxies: Proxies) -> Gate:
    """With one user, anna, with the password `right`."""
    users = users_in(folder, User("anna", quick_hash("right")), remember_s=0, failed_logins=FailedLogins(3, 6))
    return Gate(None, Authenticator(AccessSettings(methods="basic"), users), proxies=proxies)


async def test_guesses_and_rates_of_clients_behind_a_proxy(tmp_path: Path) -> None:
    entered = gate(tmp_path, Proxies(PROXIES))

    async def enter(address: str, password: str) -> str:
        request = scope("10.0.0.1", x_forwarded_for=address, authorization=basic("anna", password))
        try:
            return (await entered.enter(request)).address
        except (NotAuthenticated, TooManyRequests) as error:
            return type(error).__name__

    outcomes = [await enter("6.6.6.6", str(number)) for number in range(10)]
    assert outcomes == ["NotAuthenticated"] * 3 + ["TooManyRequests"] * 7
    assert await enter("198.51.100.7", "right") == "198.51.100.7"
    assert await enter("2001:db8::7", "right") == "2001:db8::/64"
    entered = Gate(Rates(LimitSettings(requests_per_s=0.001, request_burst=1)), proxies=Proxies(PROXIES))
    for address, outcome in (("6.6.6.6", ""), ("6.6.6.6", "TooManyRequests"), ("198.51.100.7", "")):
        assert await enter(address, "right") == (outcome or address)


@pytest.mark.parametrize("machine", ["127.0.0.1", "10.0.0.9"])
async def test_clients_of_a_local_proxy_are_not_local(tmp_path: Path, machine: str) -> None:
    """For loopback, for the gateway's own address, for a local proxy that is not in the settings, and for a header of
    which the client's part makes it unreadable."""
    named, unnamed = gate(tmp_path, Proxies(machine)), gate(tmp_path, Proxies())
    await named.check_page(scope(machine))
    with pytest.raises(NotAuthenticated):
        await named.check_page(scope(machine, x_forwarded_for="198.51.100.7"))
    with pytest.raises(NotAuthenticated):
        await gate(tmp_path, Proxies(machine, "Forwarded")).check_page(
            scope(machine, forwarded='for="x, for=198.51.100.7')
        )
    for header in ("x_forwarded_for", "forwarded", "x_real_ip", "via"):
        with pytest.raises(NotAuthenticated):
            await unnamed.check_page(scope(machine, **{header: "198.51.100.7"}))
