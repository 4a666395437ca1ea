"""Kinds of addresses, and hosts in deceptive notations. Transports are tested with these."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.security.ip_addresses import (
    MEANING,
    InvalidHost,
    Kind,
    embedded_ipv4,
    kind_of,
    plain,
    read_address,
    read_host,
)

KINDS: dict[Kind, str] = {
    # Both ends of each range are in the rows of their kinds, their neighbours outside in this one.
    "public": "1.0.0.0 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 169.253.255.255 "
    "169.255.0.0 172.15.255.255 172.32.0.0 192.0.1.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 "
    "223.255.255.255 168.63.129.17 ::ffff:8.8.8.8 64:ff9b::808:808 2000:: 2001:200::1 2003::1 3fff:1000::1",
    "unspecified": "0.0.0.0 0.255.255.255 ::",
    "private": "10.0.0.0 10.255.255.255 172.16.0.0 172.31.255.255 192.168.0.0 ::ffff:10.0.0.1 fc00::1 fec0::1",
    "shared": "100.64.0.0 100.127.255.255",
    "loopback": "127.0.0.0 127.255.255.255 ::1",
    "link-local": "169.254.0.0 fe80::1%eth0",
    "metadata": "169.254.169.254 168.63.129.16 fd00:ec2::254",
    "reserved": "192.0.0.0 240.0.0.0 100::1 1fff:ffff:: 2001:1::1 2001:1ff:ffff:: 4000:: fbff::1 fe00::1",
    "documentation": "192.0.2.255 2001:db8::1 3fff:fff:ffff::1",
    "relay": "192.88.99.1",
    "benchmarking": "198.18.0.0 2001:2::1",
    "multicast": "224.0.0.0 ff02::1",
    "broadcast": "255.255.255.255",
    "translated": "::2 64:ff9b::a00:1 64:ff9b:1::1",
    "tunnel": "2001::1 2002:808:808::1",
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind: Kind) -> None:
    assert {each: kind_of(ip_address(each)) for each in KINDS[kind].split()} == dict.fromkeys(KINDS[kind].split(), kind)
    assert MEANING[kind]


@given(st.ip_addresses())
def test_special_addresses_of_python_are_not_public(address: IPv4Address | IPv6Address) -> None:
    """The product's ranges may include more addresses than Python's, never fewer."""
    if kind_of(address) == "public":
        real = plain(address)
        (real,) = embedded_ipv4(real) or {real}
        assert real.is_global
        assert not any((real.is_multicast, real.is_private, real.is_reserved, real.is_loopback))


@given(st.ip_addresses(v=4))
def test_an_ipv6_form_has_the_kind_of_its_ipv4_address(address: IPv4Address) -> None:
    mapped = IPv6Address(0xFFFF << 32 | int(address))
    translated = IPv6Address(int(IPv6Address("64:ff9b::")) | int(address))

    assert kind_of(mapped) == kind_of(address)
    assert (kind_of(translated) == "public") == (kind_of(address) == "public")
    assert kind_of(IPv6Address(0x2002 << 112 | int(address) << 80)) == "tunnel"


def test_hosts_by_name_and_by_address() -> None:
    names = {"Example.ORG.": "example.org", "1.2.3.4.example": "1.2.3.4.example", "0x7f.example": "0x7f.example"}
    for text, name in {**names, **{each: each for each in ("a_b.example", "xn--bcher-kva.example")}}.items():
        assert (read_host(text).name, read_host(text).address) == (name, None)
    for text, name in {"1.2.3.4": "1.2.3.4", "1.2.3.4.": "1.2.3.4", "2001:DB8::1": "2001:db8::1"}.items():
        assert (read_host(text).name, read_host(text).address) == (name, ip_address(name))
    assert read_address("127.0.0.1") == IPv4Address("127.0.0.1")
    assert read_address("localhost") is read_address("127.0.0.1 ") is None


@pytest.mark.parametrize(
    ("says", "hosts"),
    [
        ("empty", ["", ".", "a..b"]),
        ("too long", ["a" * 64, "a." * 127 + "bc"]),
        ("is read as 127.0.0.1", ["0x7f.1", "2130706433", "0177.0.0.1", "127.1"]),
        ("is read as 127.0.0.1", ["\uff11\uff12\uff17.0.0.1", "127\u30020\u30020\u30021"]),
        ("ends in a number", ["0x", "1.2.3.4.5", "256.1.1.1", "example.1", "example.0x1f"]),
        ("percent", ["fe80::1%eth0", "a%2eb"]),
        ("xn--", ["bücher.example"]),
        ("not an IPv6 address", ["::g", "1:2"]),
    ],
)
def test_odd_hosts(says: str, hosts: list[str]) -> None:
    for host in hosts:
        with pytest.raises(InvalidHost, match=re.escape(says)):
            read_host(host)


def test_an_embedded_ipv4_address_is_found_in_every_form() -> None:
    # RFC 4380: the server, and the client.
    teredo = ip_address("2001:0:4136:e378:8000:63bf:3fff:fdd2")
    assert embedded_ipv4(teredo) == {IPv4Address("65.54.227.120"), IPv4Address("192.0.2.45")}
    inside = IPv4Address("192.0.2.33")
    mapped = "::ffff:192.0.2.33 ::192.0.2.33 ::ffff:0:192.0.2.33 64:ff9b::192.0.2.33"
    tunnelled = "2002:c000:221::1 2606:4700::5efe:c000:221 fe80::200:5efe:c000:221"
    for form in (*mapped.split(), *tunnelled.split()):
        assert embedded_ipv4(ip_address(form)) == {inside}, form
    for none in ("2606:4700::c000:221", "192.0.2.33"):
        assert embedded_ipv4(ip_address(none)) == set()
    # RFC 6052, 2.4, with a site's own prefix in front: 48, 56, 64 and 96 bits long.
    site = "64:ff9b:1:c000:2:2100:: 64:ff9b:1:3c0:0:221:: 64:ff9b:1:344:c0:2:2100:: 64:ff9b:1::192.0.2.33"
    for form in site.split():
        assert inside in embedded_ipv4(ip_address(form)), form
