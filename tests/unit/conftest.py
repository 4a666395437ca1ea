"""A gateway for each test, in its process, and its URL over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from arborcast.admin import operations
from tests.support.gateway_parts import GatewayParts
from tests.support.served_app import served_url
from tests.support.written_operations import WrittenOperations


@pytest.fixture
def parts() -> GatewayParts:
    return GatewayParts()


@pytest.fixture(autouse=True)
def written_operations(monkeypatch: pytest.MonkeyPatch) -> WrittenOperations:
    """The operations that functions of `admin` record: unit tests have no Kafka."""
    made = WrittenOperations()
    monkeypatch.setattr(operations, "OperationsLog", lambda _: made)
    return made


@pytest.fixture
def url(parts: GatewayParts) -> Iterator[str]:
    with served_url(parts) as url:
        yield url
