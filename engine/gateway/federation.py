"""The parts of a federation in a gateway process."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from arborcast.core.errors import ConfigError
from arborcast.core.telemetry.metrics import Registry
from arborcast.engine.gateway.metrics import declare_federation
from arborcast.engine.gateway.parts import ensure_home
from arborcast.engine.install.version import installed
from arborcast.engine.settings.loading import Settings
from arborcast.ingest.federation import links
from arborcast.ingest.federation.datagrams import DatagramListener
from arborcast.ingest.federation.endpoint import PeerEndpoint
from arborcast.ingest.federation.interests import PeerInterests
from arborcast.ingest.federation.keys import SharedKeys
from arborcast.ingest.federation.member import FederationMember
from arborcast.ingest.federation.receiver import REMEMBERED_S, PeerReceiver, remember_taken
from arborcast.ingest.federation.topology import Topology
from arborcast.ingest.http.listening import listen_on
from arborcast.ingest.operations.gateway import Gateway
from arborcast.ingest.state.repeats import RepeatMemory
from arborcast.wire import times

TOPOLOGY_FILE = "federation.json"
"""In the data directory: the last topology."""


async def close_links(gateway: Gateway, interests: PeerInterests) -> None:
    """Let links take no more messages after this engine has left its federation."""
    existing = [each for each in map(gateway.table.get, sorted(interests.links)) if each is not None]
    records = links.changes("", [], existing, times.to_ms(gateway.now()), lambda link: link)
    if records:
        await gateway.changes.commit(records)


class Federation:
    """Made only if `federation.name` is set. Raises ConfigError for an unreadable key file."""

    def __init__(
        self, gateway: Gateway, settings: Settings, interests: PeerInterests, memory: memoryview | None
    ) -> None:
        ensure_home(settings)
        self._gateway = gateway
        self._settings = settings
        self._interests = interests
        self._memory = RepeatMemory(REMEMBERED_S, memory)
        self._keys = SharedKeys(settings.federation.key_file)
        self._member: FederationMember | None = None
        self._url = settings.federation.url or settings.gateway.public_url
        if not self._url:
            raise ConfigError(
                "federation.url must be the address at which other engines reach this gateway: http://host:8080 (or "
                "set gateway.public_url)"
            )

    def endpoint(self, metrics: Registry) -> PeerEndpoint:
        own, limit = self._settings.federation.engine, self._settings.gateway.max_body_bytes
        declare_federation(metrics, lambda: Topology() if self._member is None else self._member.topology)
        receiver = PeerReceiver(self._gateway, own, self._keys, self._interests, self._memory)
        self._listener = DatagramListener(receiver, metrics)
        return PeerEndpoint(receiver, limit, metrics, self._settings.federation.group_transport == "fast")

    def datagrams(self) -> Coroutine[Any, Any, None]:
        """The receiver of datagrams, until cancelled; after `endpoint`. Raises ConfigError for an unavailable port."""
        bound = listen_on(
            self._settings.gateway.host,
            self._settings.federation.datagram_port,
            host_by="gateway.host",
            port_by="federation.datagram_port",
            datagrams=True,
        )
        return self._listener.run(bound)

    def member(self) -> FederationMember:
        """The part that runs with the lease."""
        self._member = FederationMember(
            self._gateway,
            self._settings.federation,
            self._settings.kafka,
            self._keys,
            self._interests,
            self._url,
            installed("arborcast"),
            self._settings.home / TOPOLOGY_FILE,
        )
        return self._member

    def remember(self) -> None:
        """Load the recent notifications of other engines, to recognise duplicates. Raises InfrastructureError."""
        remember_taken(self._settings.kafka, self._memory)
