from __future__ import annotations

from collections.abc import Iterator

import pytest

from arborcast.client.framed import Connection
from tests.support.framed import Connects, FramedClient, FramedEdge, client, framed_edge


@pytest.fixture
def edge() -> Iterator[FramedEdge]:
    with framed_edge() as running:
        yield running


@pytest.fixture
def connection(edge: FramedEdge) -> Iterator[Connection]:
    with client(edge).connection() as opened:
        yield opened


@pytest.fixture
def dial() -> Iterator[Connects]:
    """Opens connections, and closes them at the end of the test."""
    opened: list[FramedClient] = []

    def make(edge: FramedEdge, *, connect: bool = True) -> FramedClient:
        opened.append(FramedClient(edge, connect=connect))
        return opened[-1]

    yield make
    for each in opened:
        each.close()
