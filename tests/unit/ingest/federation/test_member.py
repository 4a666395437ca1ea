"""Where the members of a group take datagrams."""

from __future__ import annotations

import pytest

from arborcast.ingest.federation.member import address_of
from arborcast.ingest.federation.topology import Member


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1"),
        ("https://[::1]/below", "::1"),
        ("http://", ""),
        ("http://[::1", ""),
        (f"http://{'a' * 70}/", ""),
    ],
)
def test_the_address_of_a_member_is_that_of_its_url(url: str, address: str) -> None:
    assert address_of(Member("b", "G", url, "1", 1, datagram_port=9)) == address
