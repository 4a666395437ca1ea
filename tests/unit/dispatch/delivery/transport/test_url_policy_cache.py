"""Cached decisions on URLs equal those of the policy; one decision covers all paths of an origin."""

from __future__ import annotations

from itertools import product

import pytest

from arborcast.core.security.outbound import AddressPolicy, OutboundSettings, Refusal
from arborcast.dispatch.delivery.transport.contract import UrlPolicyCache

POLICY = AddressPolicy(
    OutboundSettings(deny="93.184.216.0/24", ports="80,443,8000-8999"), frozenset({("kafka.example", 8092)})
)

_STARTS = ("http://", "https://", "HTTP://", "ftp://", "http:/", "")
_HOSTS = ("a.example", "A.Example", "1.1.1.1", "127.0.0.1", "[::1]", "[2606:4700::1]", "::1", "0x7f.1", "kafka.example")
_PORTS = ("", ":", ":80", ":8092", ":22", ":0", ":99999", ":x", ":80:80")
_RESTS = (
    *("", "/", "/a/b?c=d#e", "?q", "#f", "/@b", "@b/", "/a b"),
    *("/\\", "/é", "/\n", "\n", "/{x}", "/%00", "\\@b/", "/\x7f"),
)


def test_every_combination() -> None:
    cache = UrlPolicyCache(POLICY)

    for parts in product(_STARTS, _HOSTS, _PORTS, _RESTS):
        url = "".join(parts)
        assert cache.refusal(url) == POLICY.check_url(url), url


def test_one_check_for_ten_thousand_paths_of_an_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []

    def check_url(policy: AddressPolicy, url: str) -> Refusal | None:
        checked.append(url)
        return None

    monkeypatch.setattr(AddressPolicy, "check_url", check_url)
    cache = UrlPolicyCache(POLICY)

    for number in range(10_000):
        cache.refusal(f"https://receiver.example:8443/subscriber/{number}?x=y")

    assert checked == ["https://receiver.example:8443"]
