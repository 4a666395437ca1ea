"""What addresses are, and hosts that are spelled to deceive. What transports make of them is tested with these."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.security.ip_addresses import (
    MEANING,
    Kind,
    OddHost,
    embedded_ipv4,
    kind_of,
    loose_ipv4,
    plain,
    read_address,
    read_host,
)


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        # Both ends of each range, and their neighbours outside.
        ("0.0.0.0", "unspecified"),  # noqa: S104  # judged, not listened on
        ("0.255.255.255", "unspecified"),
        ("1.0.0.0", "public"),
        ("9.255.255.255", "public"),
        ("10.0.0.0", "private"),
        ("10.255.255.255", "private"),
        ("11.0.0.0", "public"),
        ("100.63.255.255", "public"),
        ("100.64.0.0", "shared"),
        ("100.127.255.255", "shared"),
        ("100.128.0.0", "public"),
        ("126.255.255.255", "public"),
        ("127.0.0.0", "loopback"),
        ("127.255.255.255", "loopback"),
        ("128.0.0.0", "public"),
        ("169.253.255.255", "public"),
        ("169.254.0.0", "link-local"),
        ("169.254.169.254", "metadata"),
        ("169.255.0.0", "public"),
        ("172.15.255.255", "public"),
        ("172.16.0.0", "private"),
        ("172.31.255.255", "private"),
        ("172.32.0.0", "public"),
        ("192.0.0.0", "reserved"),
        ("192.0.1.0", "public"),
        ("192.0.2.255", "documentation"),
        ("192.88.99.1", "relay"),
        ("192.167.255.255", "public"),
        ("192.168.0.0", "private"),
        ("192.169.0.0", "public"),
        ("198.17.255.255", "public"),
        ("198.18.0.0", "benchmarking"),
        ("198.20.0.0", "public"),
        ("223.255.255.255", "public"),
        ("224.0.0.0", "multicast"),
        ("240.0.0.0", "reserved"),
        ("255.255.255.255", "broadcast"),
        ("168.63.129.16", "metadata"),
        ("168.63.129.17", "public"),
        ("::", "unspecified"),
        ("::1", "loopback"),
        ("::2", "translated"),
        ("::ffff:8.8.8.8", "public"),
        ("::ffff:10.0.0.1", "private"),
        ("64:ff9b::808:808", "public"),
        ("64:ff9b::a00:1", "translated"),
        ("64:ff9b:1::1", "translated"),
        ("100::1", "reserved"),
        ("1fff:ffff::", "reserved"),
        ("2000::", "public"),
        ("2001::1", "tunnel"),
        ("2001:1::1", "reserved"),
        ("2001:2::1", "benchmarking"),
        ("2001:1ff:ffff::", "reserved"),
        ("2001:200::1", "public"),
        ("2001:db8::1", "documentation"),
        ("2002:808:808::1", "tunnel"),
        ("2003::1", "public"),
        ("3fff:fff:ffff::1", "documentation"),
        ("3fff:1000::1", "public"),
        ("4000::", "reserved"),
        ("fbff::1", "reserved"),
        ("fc00::1", "private"),
        ("fd00:ec2::254", "metadata"),
        ("fe00::1", "reserved"),
        ("fe80::1%eth0", "link-local"),
        ("fec0::1", "private"),
        ("ff02::1", "multicast"),
    ],
)
def test_kinds(address: str, kind: Kind) -> None:
    assert kind_of(ip_address(address)) == kind
    assert MEANING[kind]


@given(st.ip_addresses())
def test_nothing_is_public_that_python_knows_to_be_special(address: IPv4Address | IPv6Address) -> None:
    """Python's own tables as a second opinion: ours may refuse more, never less."""
    if kind_of(address) == "public":
        real = plain(address)
        (real,) = embedded_ipv4(real) or {real}
        assert real.is_global
        assert not any((real.is_multicast, real.is_private, real.is_reserved, real.is_loopback))


@given(st.ip_addresses(v=4))
def test_a_guise_is_worth_what_is_in_it(address: IPv4Address) -> None:
    mapped = IPv6Address(0xFFFF << 32 | int(address))
    translated = IPv6Address(int(IPv6Address("64:ff9b::")) | int(address))

    assert kind_of(mapped) == kind_of(address)
    assert (kind_of(translated) == "public") == (kind_of(address) == "public")
    assert kind_of(IPv6Address(0x2002 << 112 | int(address) << 80)) == "tunnel"


@pytest.mark.parametrize(
    ("text", "name", "address"),
    [
        ("Example.ORG.", "example.org", None),
        ("a_b.example", "a_b.example", None),
        ("xn--bcher-kva.example", "xn--bcher-kva.example", None),
        ("1.2.3.4", "1.2.3.4", "1.2.3.4"),
        ("1.2.3.4.", "1.2.3.4", "1.2.3.4"),
        ("2001:DB8::1", "2001:db8::1", "2001:db8::1"),
        ("1.2.3.4.example", "1.2.3.4.example", None),
        ("0x7f.example", "0x7f.example", None),
    ],
)
def test_hosts(text: str, name: str, address: str | None) -> None:
    host = read_host(text)

    assert (host.name, host.address) == (name, None if address is None else ip_address(address))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        (".", "empty"),
        ("a..b", "empty"),
        ("a" * 64, "too long"),
        ("a." * 127 + "bc", "too long"),
        ("0x7f.1", "is read as 127.0.0.1"),
        ("2130706433", "is read as 127.0.0.1"),
        ("0177.0.0.1", "is read as 127.0.0.1"),
        ("127.1", "is read as 127.0.0.1"),
        ("0x", "is read as 0.0.0.0"),
        ("1.2.3.4.5", "ends in a number"),
        ("256.1.1.1", "ends in a number"),
        ("example.1", "ends in a number"),
        ("example.0x1f", "ends in a number"),
        ("fe80::1%eth0", "percent"),
        ("a%2eb", "percent"),
        ("bücher.example", "xn--"),
        ("\uff11\uff12\uff17.0.0.1", "is read as 127.0.0.1"),
        ("127\u30020\u30020\u30021", "is read as 127.0.0.1"),
        ("::g", "not an IPv6 address"),
        ("1:2", "not an IPv6 address"),
    ],
)
def test_odd_hosts(text: str, says: str) -> None:
    with pytest.raises(OddHost, match=says.replace(".", r"\.")):
        read_host(text)


_parts = st.one_of(
    st.integers(0, 2**33).map(str),
    st.integers(0, 2**33).map(hex),
    st.integers(0, 2**33).map(lambda number: f"0{number:o}"),
    st.sampled_from(["", "0x", "08", "0x1g", "1_0", "-1", "+1", "a"]),
)


@given(st.lists(_parts, min_size=1, max_size=5).map(".".join))
def test_loose_addresses_are_read_as_the_c_library_does(text: str) -> None:
    try:
        expected = IPv4Address(socket.inet_aton(text))
    except OSError:
        return  # what it refuses, we may still understand: it is refused all the same

    assert loose_ipv4(text) == expected


def test_what_is_no_address() -> None:
    assert read_address("127.0.0.1") == IPv4Address("127.0.0.1")
    assert read_address("localhost") is None
    assert read_address("127.0.0.1 ") is None


@pytest.mark.parametrize(
    ("address", "inside"),
    [
        ("::ffff:192.0.2.33", {"192.0.2.33"}),
        ("::192.0.2.33", {"192.0.2.33"}),
        ("::ffff:0:192.0.2.33", {"192.0.2.33"}),
        ("64:ff9b::192.0.2.33", {"192.0.2.33"}),
        ("2002:c000:221::1", {"192.0.2.33"}),
        # RFC 4380: the server, and the client.
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", {"65.54.227.120", "192.0.2.45"}),
        ("2606:4700::5efe:c000:221", {"192.0.2.33"}),
        ("fe80::200:5efe:c000:221", {"192.0.2.33"}),
        ("2606:4700::c000:221", set()),
        ("192.0.2.33", set()),
    ],
)
def test_every_form_that_carries_an_address_is_known(address: str, inside: set[str]) -> None:
    assert {str(each) for each in embedded_ipv4(ip_address(address))} == inside


@pytest.mark.parametrize(
    "address",
    # RFC 6052, 2.4, with a site's own prefix in front: 48, 56, 64 and 96 bits long.
    ["64:ff9b:1:c000:2:2100::", "64:ff9b:1:3c0:0:221::", "64:ff9b:1:344:c0:2:2100::", "64:ff9b:1::192.0.2.33"],
)
def test_wherever_a_site_puts_it(address: str) -> None:
    assert IPv4Address("192.0.2.33") in embedded_ipv4(ip_address(address))
