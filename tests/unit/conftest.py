"""A gateway of the test's own, in its process: the parts of it, and where clients reach it over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.gateway_parts import GatewayParts
from tests.support.served_app import served_url


@pytest.fixture
def parts() -> GatewayParts:
    return GatewayParts()


@pytest.fixture
def url(parts: GatewayParts) -> Iterator[str]:
    with served_url(parts) as url:
        yield url
