"""Behind which address a client is: what proxies say that are trusted, and nothing of what others say."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal

import hypothesis.strategies as st
import pytest
from hypothesis import given

from arborcast.core.errors import ConfigError
from arborcast.ingest.access.gate import Authenticator, Gate
from arborcast.ingest.access.proxies import Proxies
from arborcast.ingest.access.rates import PeerConnections, Rates
from arborcast.ingest.access.settings import AccessSettings, LimitSettings
from arborcast.ingest.access.users import Guesses, Users
from arborcast.ingest.http.tls import HandshakeLimiter
from arborcast.ingest.settings import GatewaySettings
from arborcast.topic_model.grants import Identity
from arborcast.wire.errors import NotAuthenticated, TooManyRequests
from tests.support.guarded_gateway import basic

PROXIES = "10.0.0.1, 10.0.1.0/24, 2001:db8:ff::/48"


def scope(peer: str, **headers: str) -> dict[str, Any]:
    return {
        "client": (peer, 1),
        "server": ("10.0.0.9", 8080),
        "headers": [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()],
    }


@pytest.mark.parametrize(
    ("peer", "header", "client"),
    [
        ("10.0.0.1", "198.51.100.7", "198.51.100.7"),
        ("::ffff:10.0.0.1", "198.51.100.7", "198.51.100.7"),
        # What stands further left, the client itself has sent.
        ("10.0.0.1", "127.0.0.1, 198.51.100.7", "198.51.100.7"),
        ("10.0.0.1", "10.0.0.1, 198.51.100.7", "198.51.100.7"),
        # From proxy to proxy.
        ("10.0.0.1", "6.6.6.6, 198.51.100.7, 10.0.1.3 , 10.0.0.1", "198.51.100.7"),
        ("10.0.0.1", "10.0.1.3, 10.0.1.4", "10.0.1.3"),
        ("10.0.0.1", "198.51.100.7:4711", "198.51.100.7"),
        ("10.0.0.1", "2001:db8::7", "2001:db8::7"),
        ("10.0.0.1", "[2001:db8::7]:4711", "2001:db8::7"),
        ("10.0.0.1", "::ffff:198.51.100.7", "198.51.100.7"),
        ("2001:db8:ff::2", "198.51.100.7", "198.51.100.7"),
        # What cannot be read ends it: the request counts as the proxy that let it pass.
        ("10.0.0.1", "198.51.100.7, unknown", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.7, _hidden, 10.0.1.3", "10.0.1.3"),
        ("10.0.0.1", "198.51.100.7, ", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", ", ".join(["10.0.1.3"] * 5_000), "10.0.1.3"),
        # A stranger's word is a stranger's.
        ("198.51.100.7", "6.6.6.6", "198.51.100.7"),
        ("10.0.0.2", "6.6.6.6", "10.0.0.2"),
    ],
)
def test_the_nearest_address_that_no_proxy_of_ours_has(peer: str, header: str, client: str) -> None:
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
        # A host that is made to look like a further hop.
        ('for=198.51.100.7;host="x,for=6.6.6.6"', "198.51.100.7"),
        (r'for=198.51.100.7;host="x\",for=6.6.6.6;host=\"y"', "198.51.100.7"),
        # An open quotation mark of the client's before what the proxy has appended.
        ('for="6.6.6.6, for=198.51.100.7', "10.0.0.1"),
        ('for="x, for=198.51.100.7, for="6.6.6.6', "10.0.0.1"),
        ("for=198.51.100.7, proto=https", "10.0.0.1"),
        ("for=unknown", "10.0.0.1"),
        ("for", "10.0.0.1"),
        ("", "10.0.0.1"),
        (" " * 30_000 + "?", "10.0.0.1"),
        ("a" * 30_000, "10.0.0.1"),
        ('a="' + "\\x" * 15_000, "10.0.0.1"),
        ("," * 30_000, "10.0.0.1"),
    ],
)
def test_the_standard_header(header: str, client: str) -> None:
    assert Proxies(PROXIES, "Forwarded").client(scope("10.0.0.1", forwarded=header)) == client


def test_several_headers_are_one_list() -> None:
    found = scope("10.0.0.1")
    found["headers"] = [(b"x-forwarded-for", b"6.6.6.6"), (b"host", b"a"), (b"x-forwarded-for", b"198.51.100.7")]
    assert Proxies(PROXIES).client(found) == "198.51.100.7"


def test_the_header_that_these_proxies_do_not_write_is_the_clients() -> None:
    both = scope("10.0.0.1", x_forwarded_for="198.51.100.7", forwarded="for=6.6.6.6")
    assert Proxies(PROXIES, "X-Forwarded-For").client(both) == "198.51.100.7"
    assert Proxies(PROXIES, "Forwarded").client(both) == "6.6.6.6"


def test_without_proxies_nothing_is_read() -> None:
    assert Proxies().client(scope("10.0.0.1", x_forwarded_for="6.6.6.6")) == "10.0.0.1"
    assert Proxies(PROXIES).client({"client": None, "headers": []}) == ""


@given(st.text(st.characters(codec="latin-1")), st.sampled_from(["X-Forwarded-For", "Forwarded"]))
def test_whatever_the_client_sends_what_the_proxy_appends_counts_or_the_proxy(
    sent: str, header: Literal["X-Forwarded-For", "Forwarded"]
) -> None:
    written = "for=198.51.100.7" if header == "Forwarded" else "198.51.100.7"
    found = scope("10.0.0.1", **{header.lower(): f"{sent}, {written}"})
    assert Proxies("10.0.0.1", header).client(found) in ("198.51.100.7", "10.0.0.1")


@pytest.mark.parametrize("networks", ["here", "10.0.0.1/8", "0.0.0.0/0", "10.0.0.1, ::/0"])
def test_what_is_no_list_of_proxies(networks: str) -> None:
    with pytest.raises(ConfigError, match=r"gateway\.trusted_proxies"):
        GatewaySettings(trusted_proxies=networks)


def test_a_proxys_connections_and_handshakes_are_for_many() -> None:
    proxies = Proxies(PROXIES)
    peers, room = PeerConnections(1, proxies.connection_key), HandshakeLimiter(100, 1, proxies.connection_key)
    for number in range(5):
        assert not peers.opened("10.0.0.1")
        assert not room.full_for("10.0.0.1")
        assert room.enter(number, "10.0.0.1") is None
    assert len(peers) == 0
    assert [peers.opened("198.51.100.7") for _ in range(2)] == [False, True]
    room.enter("a", "198.51.100.7")
    assert room.full_for("198.51.100.7")
    peers.closed("10.0.0.1")
    for name in (*range(5), "a"):
        room.leave(name)
    assert len(room) == len(room._of) == 0


@dataclass
class Source:
    """Everybody's password is `right`."""

    asked: list[str] = field(default_factory=list)

    def check(self, name: str, password: str) -> Identity | None:
        self.asked.append(name)
        return Identity(name) if password.startswith("right") else None

    def find(self, name: str) -> Identity | None:
        return Identity(name)

    def clear_password(self, name: str) -> str:
        return "right"


def gate(proxies: Proxies, limits: LimitSettings | None = None) -> Gate:
    users = Users(Source(), remember_s=0, guesses=Guesses(3, 6))
    rates = Rates(limits) if limits else None
    return Gate(rates, Authenticator(AccessSettings(methods="basic"), users), proxies=proxies)


async def test_a_stranger_behind_the_proxy_keeps_nobody_else_behind_it_out() -> None:
    async def enter(stands: Gate, address: str, name: str, password: str) -> str:
        request = scope("10.0.0.1", x_forwarded_for=address, authorization=basic(name, password))
        try:
            client_request = await stands.enter(request)
        except NotAuthenticated:
            return "wrong"
        except TooManyRequests:
            return "too many"
        return client_request.address

    stands = gate(Proxies(PROXIES))
    # The very name that anna uses.
    outcomes = [await enter(stands, "6.6.6.6", "anna", str(number)) for number in range(30)]
    assert outcomes == ["wrong"] * 3 + ["too many"] * 27
    assert await enter(stands, "198.51.100.7", "anna", "right") == "198.51.100.7"
    assert await enter(stands, "2001:db8::7", "anna", "right") == "2001:db8::/64"


async def test_rates_are_counted_by_the_client_behind_the_proxy() -> None:
    stands = Gate(Rates(LimitSettings(requests_per_s=0.001, request_burst=1)), proxies=Proxies(PROXIES))
    await stands.enter(scope("10.0.0.1", x_forwarded_for="6.6.6.6"))
    with pytest.raises(TooManyRequests):
        await stands.enter(scope("10.0.0.1", x_forwarded_for="6.6.6.6"))
    await stands.enter(scope("10.0.0.1", x_forwarded_for="198.51.100.7"))


def test_a_stranger_is_not_this_machine_because_the_proxy_is() -> None:
    """A proxy beside the gateway comes from loopback, or from the gateway's own address."""
    for machine in ("127.0.0.1", "10.0.0.9"):
        stands = gate(Proxies(machine))
        asyncio.run(stands.look(scope(machine)))
        with pytest.raises(NotAuthenticated):
            asyncio.run(stands.look(scope(machine, x_forwarded_for="198.51.100.7")))


@pytest.mark.parametrize("header", ["x_forwarded_for", "forwarded", "x_real_ip", "via"])
def test_a_stranger_is_not_this_machine_because_a_proxy_that_is_not_named_is(header: str) -> None:
    for machine in ("127.0.0.1", "10.0.0.9"):
        with pytest.raises(NotAuthenticated):
            asyncio.run(gate(Proxies()).look(scope(machine, **{header: "198.51.100.7"})))
