"""Both directions of the bridge, in the gateway with the lease: `run` until cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from arborcast.core.backoff import Backoff, repeated
from arborcast.core.errors import InfrastructureError
from arborcast.core.mqtt.settings import MqttSettings
from arborcast.ingest.mqtt.incoming import Incoming
from arborcast.ingest.mqtt.outgoing import keep_subscriptions
from arborcast.ingest.mqtt.rules import Rules
from arborcast.ingest.mqtt.session import Session
from arborcast.ingest.operations.gateway import Gateway

logger = logging.getLogger(__name__)

_BACKOFF = Backoff(0.5, 30.0)

# A connection of this duration resets the back-off.
_LASTS_S = 10.0


class MqttBridge:
    """Used on the event loop."""

    def __init__(self, gateway: Gateway, settings: MqttSettings, rules: Rules) -> None:
        self._gateway = gateway
        self._settings = settings
        self._rules = rules
        self._session: Session | None = None
        self.counts: Counter[str] = Counter()
        """Incoming messages by outcome."""

    @property
    def connected(self) -> bool:
        """Whether the session for incoming messages is held now."""
        return self._session is not None and self._session.connected

    async def run(self) -> None:
        """Until cancelled. Failures of the broker are logged and retried."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keep_subscriptions(self._gateway, self._settings, self._rules.outgoing))
            if self._rules.incoming:
                tasks.create_task(self._hold_session())

    async def _hold_session(self) -> None:
        loop = asyncio.get_running_loop()
        incoming = Incoming(self._gateway, self._rules, self._settings, self.counts)

        async def session() -> None:
            self._session = Session(incoming)
            began = loop.time()
            try:
                await self._session.run()
            except InfrastructureError as error:
                if loop.time() - began <= _LASTS_S:
                    raise
                logger.warning("mqtt: %s; trying again", error)
            finally:
                self._session = None

        await repeated("mqtt", session, _BACKOFF.first_s, _BACKOFF, Exception)
