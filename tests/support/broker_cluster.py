"""A real Kafka cluster on loopback: three brokers, each of which may be killed and started again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import Admin
from arborcast.core.eventlog.topics import specifications
from arborcast.core.settings import KafkaSettings
from arborcast.engine.embedded.kafka_broker import BrokerLayout, new_cluster_id
from arborcast.engine.processes import processes
from tests.support.broker import broker_of
from tests.support.waiting import TIMEOUT_S, wait_until

BROKERS = 3


@dataclass(frozen=True)
class NodeLayout(BrokerLayout):
    """One of several brokers; `voters` are the controller ports of all, in the order of their ids."""

    node: int = 1
    voters: Sequence[int] = ()

    def properties(self) -> dict[str, str]:
        """The embedded broker's with what docs/operations.md recommends for several."""
        host = processes.LOOPBACK
        voters = ",".join(f"{number}@{host}:{port}" for number, port in enumerate(self.voters, start=1))
        return super().properties() | {
            # With Kafka's default of 9 s the loss of a broker is noticed, and its partitions led by others, after 12 s.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "node.id": str(self.node),
            "controller.quorum.voters": voters,
            "offsets.topic.replication.factor": str(BROKERS),
            "transaction.state.log.replication.factor": str(BROKERS),
            "transaction.state.log.min.isr": "2",
            "share.coordinator.state.topic.replication.factor": str(BROKERS),
            "share.coordinator.state.topic.min.isr": "2",
            "min.insync.replicas": "2",
        }


class BrokerCluster:
    """Three brokers that are controllers as well, as small production clusters are."""

    def __init__(self, folder: Path) -> None:
        voters = [processes.free_port() for _ in range(BROKERS)]
        cluster_id = new_cluster_id()
        self.brokers = [
            broker_of(
                NodeLayout(
                    folder / f"kafka-{node}",
                    processes.free_port(),
                    voters[node - 1],
                    cluster_id=cluster_id,
                    node=node,
                    voters=voters,
                )
            )
            for node in range(1, BROKERS + 1)
        ]

    def start(self) -> None:
        """Start all; each waits for a majority, so they start together."""
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            broker.wait_until_it_answers(TIMEOUT_S)

    def settings(self, **changes: object) -> KafkaSettings:
        """Settings for an engine on it."""
        servers = ",".join(broker.bootstrap_servers for broker in self.brokers)
        values: dict[str, Any] = {"bootstrap_servers": servers, "partitions": 3, "replication": BROKERS, **changes}
        return KafkaSettings(**values)

    def wait_until_in_sync(self, settings: KafkaSettings, timeout: float = TIMEOUT_S) -> None:
        """Until every partition of the engine's logs has all its replicas."""
        names = [specification.name for specification in specifications(settings)]
        with closing(Admin(settings)) as admin:

            def in_sync() -> bool:
                # A broker that has just gone, or comes, may be the one that is asked.
                with suppress(InfrastructureError):
                    states = [state for states in admin.partitions(names).values() for state in states]
                    return all(state.leader > 0 and state.in_sync == state.replicas for state in states)
                return False

            wait_until(in_sync, "the replicas are in step", timeout, every_s=0.2)

    def controller(self) -> int:
        """The number, from 1, of the broker that is the active controller."""
        state = self.brokers[0].layout.data / "__cluster_metadata-0" / "quorum-state"
        return int(json.loads(state.read_text())["leaderId"])

    def kill(self) -> None:
        """End all of it."""
        for broker in self.brokers:
            broker.kill()


@contextmanager
def running_brokers(folder: Path) -> Iterator[BrokerCluster]:
    """A started cluster, killed in the end."""
    cluster = BrokerCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
