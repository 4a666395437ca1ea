"""The Kafka topics of the logs: their configuration, creation and verification."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass

from arborcast.core.errors import ConfigError
from arborcast.core.eventlog.client import Admin, PartitionState
from arborcast.core.settings import KafkaSettings

logger = logging.getLogger(__name__)

_HOUR_MS = 3_600_000

# Bytes of a `parked` or `dead` record beyond its notification.
PARKED_OVERHEAD = 16 * 1024

# Compaction leaves records alone for this time, and tombstones afterwards: a reader that was away for less sees former
# states of a subscription and the reason of its end.
CONTROL_HISTORY_MS = 24 * _HOUR_MS


@dataclass(frozen=True)
class LogSpecification:
    """How the Kafka topic of one log has to be."""

    name: str
    partitions: int
    compacted: bool
    configs: Mapping[str, str]
    ordered: bool = False
    """Whether more than one partition would break it."""


def min_insync_replicas(replication: int) -> int:
    """How many replicas must have a record before it counts: the majority. With two replicas one, since two would stop
    the engine with either broker."""
    return replication // 2 + 1 if replication > 2 else 1


def specifications(kafka: KafkaSettings) -> tuple[LogSpecification, ...]:
    """The configuration of the logs under these settings."""
    record_bytes = {
        "max.message.bytes": str(kafka.max_record_bytes),
        # "acks=all" means all in-sync replicas. Without a minimum that may be the leader alone, whose loss would lose
        # acknowledged records.
        "min.insync.replicas": str(min_insync_replicas(kafka.replication)),
        # A lagging replica must not become the leader: it lacks acknowledged records.
        "unclean.leader.election.enable": "false",
        # The broker sets timestamps. By the writers' clocks Kafka would refuse records an hour ahead of its own, keep
        # those of a clock of next year for ever, and delete those of a clock of last month within minutes.
        "message.timestamp.type": "LogAppendTime",
    }
    kept_for_a_while = record_bytes | {
        "cleanup.policy": "delete",
        "retention.ms": str(kafka.retention_hours * _HOUR_MS),
        # Kafka deletes whole segments. With its default of a week a quiet partition keeps records a week longer.
        "segment.ms": str(min(24, kafka.retention_hours) * _HOUR_MS),
    }
    control = record_bytes | {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": str(CONTROL_HISTORY_MS),
        "delete.retention.ms": str(CONTROL_HISTORY_MS),
        # Only closed segments are compacted. With the defaults (1 GB, a week, half dirty) a million former
        # subscriptions would be replayed at every start.
        "segment.bytes": str(64 * 1024 * 1024),
        "segment.ms": str(CONTROL_HISTORY_MS),
        "min.cleanable.dirty.ratio": "0.2",
    }
    latest_of_each = record_bytes | {
        "cleanup.policy": "compact",
        # Older ones are of no use: compacted as soon as a segment is full, or in an hour.
        "segment.bytes": str(64 * 1024 * 1024),
        "segment.ms": str(_HOUR_MS),
        # Without a limit a quiet log keeps what a null has removed (an erased message) for ever.
        "max.compaction.lag.ms": str(24 * _HOUR_MS),
    }
    # Obsolete after seconds, with two records of a lease each second; an hour is for diagnosis.
    lease = record_bytes | {"cleanup.policy": "delete", "retention.ms": str(_HOUR_MS), "segment.ms": str(_HOUR_MS // 4)}
    # Waiting and dead deliveries: mostly short-lived, so old segments are compacted soon. Nulls stay as long as in the
    # control log, for readers that continue.
    unfinished = latest_of_each | {
        "max.message.bytes": str(kafka.max_record_bytes + PARKED_OVERHEAD),
        "delete.retention.ms": str(CONTROL_HISTORY_MS),
        "min.cleanable.dirty.ratio": "0.2",
    }
    return (
        # One partition: the order of all control records is the order in which every reader applies them.
        LogSpecification(kafka.topic("control"), 1, True, control, ordered=True),
        LogSpecification(kafka.topic("notifications"), kafka.partitions, False, kept_for_a_while),
        LogSpecification(kafka.topic("attempts"), kafka.partitions, False, kept_for_a_while),
        LogSpecification(kafka.topic("parked"), kafka.partitions, True, unfinished),
        LogSpecification(kafka.topic("dead"), kafka.partitions, True, unfinished),
        LogSpecification(kafka.topic("retained"), 1, True, latest_of_each, ordered=True),
        # One partition, too: the order of claims decides.
        LogSpecification(kafka.topic(PULL_LOG), 1, False, kept_for_a_while, ordered=True),
        LogSpecification(kafka.topic(RESULTS_LOG), 1, False, kept_for_a_while),
        # All readers must come to one result. Incomplete messages were given up long before.
        LogSpecification(kafka.topic(FRAGMENT_LOG), 1, False, lease, ordered=True),
        LogSpecification(kafka.topic(LEASE_LOG), 1, False, lease, ordered=True),
        LogSpecification(kafka.topic(JOB_LEASE_LOG), 1, False, lease, ordered=True),
        # Steps build on those before them.
        LogSpecification(kafka.topic(FEED_LOG), 1, False, lease, ordered=True),
        LogSpecification(kafka.topic(PROGRESS_LOG), 1, True, latest_of_each, ordered=True),
        LogSpecification(kafka.topic(OPERATIONS_LOG), 1, False, kept_for_a_while, ordered=True),
    )


def ensure_topics(kafka: KafkaSettings, only: Collection[str] = ()) -> None:
    """Create the topics that are missing and check the others, of all logs or `only` of these; several processes may do
    so at once.

    Raises InfrastructureError when Kafka cannot be reached, ConfigError when a topic of that name is something else.
    """
    with closing(Admin(kafka)) as admin:
        wanted = {kafka.topic(name) for name in only}
        until = time.monotonic() + kafka.request_timeout_s
        for specification in specifications(kafka):
            if wanted and specification.name not in wanted:
                continue
            created = admin.create_topic(
                specification.name, specification.partitions, kafka.replication, specification.configs
            )
            if created:
                logger.info("created Kafka topic %s", specification.name)
            else:
                _check(admin, specification, kafka.replication, until)


def _check(admin: Admin, specification: LogSpecification, replication: int, until: float) -> None:
    policy, partitions = _described(admin, specification.name)
    # Another process has just created it, and the broker does not know all of it yet.
    while not (policy and partitions) and time.monotonic() < until:
        time.sleep(0.1)
        policy, partitions = _described(admin, specification.name)
    # More partitions or another retention are the operator's choice. These two would break promises.
    if ("compact" in policy) != specification.compacted:
        wanted = "compact" if specification.compacted else "delete"
        raise ConfigError(
            f"Kafka topic {specification.name} has cleanup.policy={policy or '(unknown)'}, {wanted} is "
            f"needed: alter it, or choose another kafka.prefix"
        )
    if specification.ordered and len(partitions) != 1:
        raise ConfigError(
            f"Kafka topic {specification.name} has {len(partitions)} partitions, it must have one: delete it when it "
            f"is not ours, or choose another kafka.prefix"
        )
    # Kafka moves replicas on request only, so this cannot be repaired here; it works until a broker is lost.
    fewest = min((partition.replicas for partition in partitions), default=replication)
    if fewest < replication:
        logger.warning(
            "Kafka topic %s has %d replicas, kafka.replication asks for %d: add them with kafka-reassign-partitions",
            specification.name,
            fewest,
            replication,
        )


def _described(admin: Admin, topic: str) -> tuple[str, list[PartitionState]]:
    return admin.configs(topic).get("cleanup.policy", ""), admin.partitions(topic) or []


LEASE_LOG = "lease"

JOB_LEASE_LOG = "dispatch-lease"

FEED_LOG = "feed"

PROGRESS_LOG = "progress"

PULL_LOG = "pullpoints"

RESULTS_LOG = "results"

FRAGMENT_LOG = "fragments"

OPERATIONS_LOG = "operations"
