"""Topics without a code get one from their places, with the setting `topics.codes`: in the gateway with the lease."""

from __future__ import annotations

import asyncio
from functools import partial

from arborcast.core.backoff import Backoff, repeated
from arborcast.core.errors import InfrastructureError
from arborcast.ingest.operations.gateway import Gateway
from arborcast.topic_model.records.control import ControlRecord
from arborcast.topic_model.tree.places import Places

# Codes per plan: some milliseconds, since no request is served meanwhile.
_AT_ONCE = 500

_RETRY_S = 1.0


class TopicCodes:
    """Follows the control log as a projection, and assigns codes in `assign_forever`."""

    def __init__(self) -> None:
        self._places = Places()
        self._pending = asyncio.Event()

    def apply(self, record: ControlRecord) -> None:
        self._places.apply(record)
        if not self._places.idle:
            self._pending.set()

    async def assign_forever(self, gateway: Gateway) -> None:
        """Run until cancelled."""
        what, pauses = "topics cannot be given codes now", Backoff(_RETRY_S, _RETRY_S)
        await repeated(what, partial(self._give, gateway), 0.0, pauses, InfrastructureError)

    async def _give(self, gateway: Gateway) -> None:
        if self._places.idle:
            self._pending.clear()
            await self._pending.wait()
        if records := self._places.plan(gateway.table.topics, _AT_ONCE):
            try:
                await gateway.changes.commit(records)
            except InfrastructureError:
                self._places.return_plan(records)
                raise
