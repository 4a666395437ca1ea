"""SSRF: forbidden addresses and tricks are refused by both transports, and by the client of all other calls.

Most tests run on an island (`tests.support.island`), where all addresses lead to a trap: "not called" is no
connection, whatever listens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from arborcast.core.security.outbound import AddressPolicy, OutboundSettings, Refusal
from arborcast.dispatch.delivery.transport.contract import Transport
from tests.support import island
from tests.support.outbound import THIS_MACHINE
from tests.support.receiver import Receiver
from tests.support.transports import push

pytestmark = pytest.mark.slow

PUBLIC = ["93.184.216.34", "1.1.1.1", "223.255.255.254", "172.32.0.1", "100.128.0.1", "2606:4700::1", "2a00:1450::5"]

# Each address is tried literally in a URL, and as the result of name resolution.
FORBIDDEN = {
    "loopback": ["127.0.0.1", "127.0.0.2", "127.1.2.3", "127.255.255.254", "::1", "::ffff:127.0.0.1", "::ffff:7f00:1"],
    "unspecified": ["0.0.0.0", "0.1.2.3", "::", "::ffff:0.0.0.0"],  # noqa: S104  # never connected to
    "private": [
        *("10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.254", "192.168.0.1", "192.168.255.254"),
        *("fc00::1", "fd12:3456:789a::1", "fec0::1", "::ffff:10.0.0.1", "::ffff:c0a8:1"),
    ],
    "shared": ["100.64.0.1", "100.127.255.254"],
    "link-local": ["169.254.0.1", "169.254.255.254", "fe80::1", "::ffff:169.254.1.1"],
    "metadata": [
        *("169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.0.192", "168.63.129.16"),
        *("fd00:ec2::254", "fd20:ce::254", "::ffff:169.254.169.254", "::ffff:a9fe:a9fe"),
    ],
    "multicast": ["224.0.0.1", "239.255.255.250", "ff02::1", "ff0e::1"],
    "broadcast": ["255.255.255.255"],
    "documentation": ["192.0.2.1", "198.51.100.7", "203.0.113.9", "2001:db8::1", "3fff::1"],
    "benchmarking": ["198.18.0.1", "198.19.255.254", "2001:2::1"],
    "relay": ["192.88.99.1"],
    "translated": [
        *("64:ff9b::7f00:1", "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b::c0a8:101", "64:ff9b::e000:1"),
        *("64:ff9b:1::a00:1", "::127.0.0.1", "::7f00:1", "::10.0.0.1"),
    ],
    "tunnel": [
        *("2002:7f00:1::", "2002:a00:1::1", "2002:a9fe:a9fe::", "2002:5db8:d822::1"),
        *("2001::1", "2001:0:53aa:64c:0:fbff:f5ff:fffe", "2a00:1450::5efe:10.0.0.1", "2a00:1450::200:5efe:7f00:1"),
    ],
    "reserved": ["192.0.0.1", "240.0.0.1", "255.255.255.254", "2001:10::1", "5f00::1", "100::1", "4000::1", "e000::1"],
}

# URLs whose text is refused, by rule. `{p}` is the port of the trap.
TRICKS = {
    "spelling": [
        *("http://93.184.216.34\\@127.0.0.1:{p}/", "http://93.184.216.34 @127.0.0.1:{p}/"),
        *("http://127.0.0.1:{p}\\.example/", "http:\\\\127.0.0.1:{p}/", " http://127.0.0.1:{p}/"),
        *("http://127.0.0.1:{p}/\r\nX-Injected: yes", "http://127.0.0.1\t:{p}/", "http://127.0.0.1\n:{p}/"),
        *("http://" + "a" * 64 + ".test:{p}/", "http://\uff11\uff12\uff17.0.0.1:{p}/", "http://0x7f.1:{p}/"),
        *("http://0x7f000001:{p}/", "http://0X7F.0x0.0x0.0x1:{p}/", "http://2130706433:{p}/"),
        *("http://017700000001:{p}/", "http://0177.0.0.1:{p}/", "http://0177.0000.0000.0001:{p}/"),
        *("http://127.1:{p}/", "http://127.0.1:{p}/", "http://127.0.0.01:{p}/", "http://127.0x0.0.1:{p}/"),
        *("http://0:{p}/", "http://0x0:{p}/", "http://10.1:{p}/", "http://0xa9fea9fe:{p}/"),
        *("http://2852039166:{p}/", "http://0251.0376.0251.0376:{p}/", "http://169.16689662:{p}/"),
        *("http://4294967297:{p}/", "http://127.0.0.1..:{p}/", "http://127.0.0.1%00.example:{p}/"),
        *("http://%31%32%37.0.0.1:{p}/", "http://127%2e0%2e0%2e1:{p}/", "http://①②⑦.⓪.⓪.①:{p}/"),
        *("http://127。0。0。1:{p}/", "http://ⓛocalhost:{p}/", "http://[::1%25lo]:{p}/", "http://[fe80::1%25lo]:{p}/"),
        *("http://[fe80::1%lo]:{p}/", "http://[::ffff:127.1]:{p}/", "http://[127.0.0.1]:{p}/"),
        *("http://[v1.127]:{p}/", "http://[::1:{p}/", "http://::1:{p}/", "http:/127.0.0.1:{p}/"),
        *("http:///127.0.0.1:{p}/", "http:127.0.0.1:{p}/", "http://127.0.0.1:99999/", "http://127.0.0.1:0/"),
        *("http://127.0.0.1:-1/", "http://:{p}/"),
    ],
    "loopback": [
        *("http://127.0.0.1.:{p}/", "http://[0:0:0:0:0:0:0:1]:{p}/"),
        *("http://[0000:0000:0000:0000:0000:0000:0000:0001]:{p}/", "http://localhost:{p}/"),
        *("http://LOCALHOST:{p}/", "http://localhost.:{p}/", "http://anything.localhost:{p}/"),
        *("http://127.0.0.1:0{p}/", "http://127.0.0.1:{p}#@93.184.216.34/", "http://127.0.0.1:{p}?@93.184.216.34/"),
        *("HTTP://127.0.0.1:{p}/", "https://127.0.0.1:{p}/"),
    ],
    "userinfo": [
        *("http://user@127.0.0.1:{p}/", "http://93.184.216.34@127.0.0.1:{p}/"),
        *("http://93.184.216.34:80@127.0.0.1:{p}/", "http://@127.0.0.1:{p}/"),
        *("http://127.0.0.1:{p}@93.184.216.34/", "http://127.0.0.1:{p};@93.184.216.34/"),
    ],
    "scheme": [
        *("", "//127.0.0.1:{p}/", "127.0.0.1:{p}/", "gopher://127.0.0.1:{p}/_POST", "dict://127.0.0.1:{p}/"),
        *("ftp://127.0.0.1:{p}/", "file:///etc/passwd", "ldap://127.0.0.1:{p}/", "smb://127.0.0.1:{p}/"),
        "unix:///var/run/docker.sock",
    ],
}

needs_island = pytest.mark.skipif(not island.possible(), reason="no namespaces: unshare, ip and mount are required")
each = pytest.mark.parametrize("transport", ["curl", "futures", "calls"])
pushes = pytest.mark.parametrize("transport", ["curl", "futures"])

# A name for each transport: the name server counts its lookups.
FLIPPED = {"curl": "93-184-216-34", "futures": "93-184-216-35", "calls": "93-184-216-36"}


Explore = Callable[..., list[island.Finding]]


@pytest.fixture(scope="module")
def explore() -> Iterator[Explore]:
    """`explore` of one island for all transports."""
    with island.running() as found:
        yield found.explore


def literal(address: str) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{island.PORT}/"


def named(address: str) -> str:
    kind, written = ("v6", address.replace(":", "-")) if ":" in address else ("v4", address.replace(".", "-"))
    if "." in written:
        kind, written = "v6", _in_hex(address).replace(":", "-")
    return f"http://{kind}-{written}.test:{island.PORT}/"


def _in_hex(address: str) -> str:
    """An IPv6 address with its dotted end in hexadecimal: labels of a name contain no dots."""
    head, _, dotted = address.rpartition(":")
    one, two, three, four = (int(part) for part in dotted.split("."))
    return f"{head}:{one << 8 | two:x}:{three << 8 | four:x}"


def in_both_spellings(addresses: Iterable[str]) -> list[str]:
    return [spelled(address) for address in addresses for spelled in (literal, named)]


def tricks() -> dict[str, str]:
    """The URLs of the tricks, and their rules."""
    return {url.replace("{p}", str(island.PORT)): rule for rule, urls in TRICKS.items() for url in urls}


@needs_island
@each
def test_forbidden_addresses_and_tricks_are_never_called(explore: Explore, transport: str) -> None:
    urls = {url: rule for rule, addresses in FORBIDDEN.items() for url in in_both_spellings(addresses)} | tricks()
    for (url, rule), found in zip(urls.items(), explore(list(urls), transport), strict=True):
        assert (found.called, found.failure) == ((), "address"), (url, found)
        assert f"(outbound rule: {rule})" in found.detail, (url, found)


@needs_island
@each
def test_public_addresses_are_called(explore: Explore, transport: str) -> None:
    findings = explore(in_both_spellings(PUBLIC), transport)

    assert [(found.status, found.failure, found.called) for found in findings] == [
        (202, "", (address,)) for address in PUBLIC for _ in range(2)
    ]


@needs_island
@each
def test_the_check_at_connect_suffices_without_the_url_check(explore: Explore, transport: str) -> None:
    """URL parsers differ; no parse of a trick leads to a forbidden connection."""
    urls = [*tricks(), *(literal(address) for addresses in FORBIDDEN.values() for address in addresses)]

    findings = explore(urls, transport, skip_url_check=True)

    called = {url: found.called for url, found in zip(urls, findings, strict=True) if found.called}
    assert all(set(places) <= set(PUBLIC) for places in called.values()), called
    assert not [url for url, found in zip(urls, findings, strict=True) if found.failure == "internal"]


@needs_island
@each
def test_dns_rebinding(explore: Explore, transport: str) -> None:
    """The first answer is public, the next two are loopback; none may be cached. A transport has two lookups
    for a push, and connects to the answer of the second."""
    url = f"http://flip-{FLIPPED[transport]}.test:{island.PORT}/"

    findings = explore([url] * 6, transport, new_transports=True)

    assert {place for found in findings for place in found.called} == {FLIPPED[transport].replace("-", ".")}
    public, loopback = (202, ""), (0, "address")
    expected = [loopback, public, loopback] if transport != "calls" else [public, loopback, loopback]
    assert [(found.status, found.failure) for found in findings] == expected * 2


@needs_island
@each
def test_of_several_addresses_only_allowed_ones_are_called(explore: Explore, transport: str) -> None:
    (found,) = explore([f"http://mixed-93-184-216-34.test:{island.PORT}/"], transport)

    assert (found.status, found.called) == (202, ("93.184.216.34",))


@needs_island
@pushes
def test_names_without_an_answer_do_not_delay_others(explore: Explore, transport: str) -> None:
    """The second URL needs a lookup of its own: caches of libcurl are by host and port."""
    url = "http://v4-127-0-0-1.test"
    urls = [f"{url}:{island.PORT}/", f"{url}:{island.PORT + 1}/"]

    findings = explore(urls, transport, outbound={"scope": "loopback"}, hanging=100)

    assert [found.failure for found in findings] == ["", "connect"], "nothing listens there"


@needs_island
@pushes
def test_a_name_without_an_answer_is_no_time_out_of_its_receiver(explore: Explore, transport: str) -> None:
    """Otherwise it counts as resolved: the next pushes to it occupy the threads of libcurl."""
    findings = explore(["http://hang-again.test/"] * 2, transport)

    assert [found.failure for found in findings] == ["dns", "dns"]


SETTINGS: list[tuple[dict[str, str | bool], dict[str, str]]] = [
    ({"scope": "private"}, {"10.0.0.1": "", "fd12::1": "", "127.0.0.1": "loopback"}),
    ({"scope": "private"}, {"fd00:ec2::254": "metadata", "64:ff9b::a00:1": "translated"}),
    (
        {"scope": "loopback"},
        {"127.0.0.1": "", "::ffff:127.0.0.1": "", "10.0.0.1": "private", "64:ff9b::7f00:1": "translated"},
    ),
    ({"allow": "10.1.0.0/16"}, {"10.1.2.3": "", "10.2.0.1": "private", "::ffff:10.1.2.3": ""}),
    ({"allow": "10.0.0.0/8", "deny": "10.1.0.0/16"}, {"10.1.2.3": "denied"}),
    ({"deny": "93.184.216.0/24"}, {"93.184.216.34": "denied", "64:ff9b::5db8:d822": "denied"}),
    ({"ports": "443,8000-8999"}, {"93.184.216.34": ""}),
    ({"ports": "443,9000-9999"}, {"93.184.216.34": "port"}),
    ({"https_only": True}, {"93.184.216.34": "https-only"}),
]
"""Outbound settings; addresses with the rule that refuses them."""


@needs_island
@each
def test_what_the_settings_allow(explore: Explore, transport: str) -> None:
    for given, rules in SETTINGS:
        findings = explore(in_both_spellings(rules), transport, outbound=given)
        for rule, found in zip([rule for rule in rules.values() for _ in range(2)], findings, strict=True):
            assert bool(found.called) == (rule == ""), (given, found)
            assert found.failure == ("address" if rule else ""), (given, found)
            assert f"(outbound rule: {rule})" in found.detail or not rule, (given, found)


def test_loopback_is_refused_by_default(make: Callable[..., Transport]) -> None:
    """Also on systems without namespaces, where the island does not run."""
    with Receiver() as receiver:
        result = push(make(AddressPolicy()), receiver.url("/inside"))

        assert (result.status, result.failure) == (0, "address")
        assert "loopback" in result.detail
        assert receiver.requests == []


def test_own_services_are_no_endpoints(make: Callable[..., Transport]) -> None:
    with Receiver() as kafka, Receiver() as subscriber:
        port = int(kafka.url("").rpartition(":")[2])
        policy = AddressPolicy(OutboundSettings(scope="loopback"), frozenset({("127.0.0.1", port)}))
        transport = make(policy)

        for url in (kafka.url("/"), f"http://localhost:{port}/", f"http://127.9.9.9:{port}/"):
            result = push(transport, url)
            assert (result.failure, "own-port" in result.detail) == ("address", True), (url, result)
        assert push(transport, subscriber.url("/")).status == 202
        assert kafka.requests == []


def test_urls_are_checked_by_text_and_the_proxy_is_exempt(make: Callable[..., Transport]) -> None:
    with Receiver() as proxy:
        transport = make(AddressPolicy(), proxy=proxy.url("").rstrip("/"))

        assert push(transport, "http://receiver.invalid/through").status == 202
        for url in ("http://10.0.0.1/", "http://localhost/", "http://0x7f.1/", "http://[::ffff:169.254.169.254]/"):
            assert push(transport, url).failure == "address"
        assert [request.path for request in proxy.requests] == ["http://receiver.invalid/through"]


def test_a_kept_connection_is_not_checked_again(
    make: Callable[..., Transport], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    check = AddressPolicy.check_address

    def noted(self: AddressPolicy, address: str, port: int) -> Refusal | None:
        checked.append(address)
        return check(self, address, port)

    monkeypatch.setattr(AddressPolicy, "check_address", noted)
    with Receiver() as receiver:
        transport = make(THIS_MACHINE)
        assert [push(transport, receiver.url("/")).status for _ in range(5)] == [202] * 5

    assert checked == ["127.0.0.1"]
