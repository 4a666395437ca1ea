"""What the application asks for each request: may it come in, and who is it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingest.access.connections import client_key
from ingest.access.rates import Rates
from ingest.access.visitor import Visitor


class Gate:
    """Stands before the operations. There is none where nothing is limited and nobody has to say who it is."""

    def __init__(self, rates: Rates | None = None) -> None:
        self._rates = rates

    async def enter(self, scope: Mapping[str, Any]) -> Visitor:
        """A request begins: only its head is there. Raises AccessRefused."""
        visitor = Visitor(_address(scope))
        if self._rates is not None:
            self._rates.request(visitor.client)
        return visitor

    def received(self, visitor: Visitor, size: int) -> None:
        """The body is there, in so many bytes."""
        if self._rates is not None:
            self._rates.received(visitor.client, size)


def _address(scope: Mapping[str, Any]) -> str:
    client = scope.get("client")
    return client_key(client[0]) if client else ""
