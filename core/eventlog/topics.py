"""The Kafka topics behind the logs: what each must be, creating them, and refusing ones that are something else."""

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

# What a record of the `parked` and `dead` logs may be longer than the notification in it.
PARKED_OVERHEAD = 16 * 1024

# A reader that was away for less than this still sees what a subscription was when a notification was accepted, and why
# it ended, not only that it is gone: compaction leaves records alone for so long, and tombstones after it.
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
    """What the logs have to be under these settings."""
    record_bytes = {
        "max.message.bytes": str(kafka.max_record_bytes),
        # "acks=all" means all replicas that are in step. Without a minimum that may be the leader alone, and its loss
        # is the loss of what was acknowledged.
        "min.insync.replicas": str(min_insync_replicas(kafka.replication)),
        # A replica that was behind must not become the leader: what it lacks was acknowledged.
        "unclean.leader.election.enable": "false",
        # The broker says when a record was written, not who wrote it. By the writers' clocks Kafka refuses what is an
        # hour ahead of its own, keeps for ever what a clock of next year has stamped, and deletes within minutes what
        # one of last month has, delivered or not.
        "message.timestamp.type": "LogAppendTime",
    }
    kept_for_a_while = record_bytes | {
        "cleanup.policy": "delete",
        "retention.ms": str(kafka.retention_hours * _HOUR_MS),
    }
    control = record_bytes | {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": str(CONTROL_HISTORY_MS),
        "delete.retention.ms": str(CONTROL_HISTORY_MS),
        # Only closed segments are compacted. With the defaults (1 GB, a week, half dirty) a million subscriptions that
        # came and went would be replayed at every start.
        "segment.bytes": str(64 * 1024 * 1024),
        "segment.ms": str(CONTROL_HISTORY_MS),
        "min.cleanable.dirty.ratio": "0.2",
    }
    latest_of_each = record_bytes | {
        "cleanup.policy": "compact",
        # Older ones are of no use: compacted as soon as a segment is full, or in an hour.
        "segment.bytes": str(64 * 1024 * 1024),
        "segment.ms": str(_HOUR_MS),
    }
    # What is old after seconds, two records of a lease each second among it; an hour shows what happened.
    lease = record_bytes | {"cleanup.policy": "delete", "retention.ms": str(_HOUR_MS), "segment.ms": str(_HOUR_MS // 4)}
    # Deliveries that wait, or were given up: mostly short-lived, so that old segments are worth compacting soon. Null
    # values stay as long as in the control log, for a reader that goes on where it was.
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
        # One partition here too: the order of the claims decides who hands out what.
        LogSpecification(kafka.topic(PULL_LOG), 1, False, kept_for_a_while, ordered=True),
        LogSpecification(kafka.topic(RESULTS_LOG), 1, False, kept_for_a_while),
        # Who reads it must come to one result. A message that is not together by then was given up long before.
        LogSpecification(kafka.topic(FRAGMENT_LOG), 1, False, lease, ordered=True),
        LogSpecification(kafka.topic(LEASE_LOG), 1, False, lease, ordered=True),
        LogSpecification(kafka.topic(JOB_LEASE_LOG), 1, False, lease, ordered=True),
        # Steps build on those before them.
        LogSpecification(kafka.topic(FEED_LOG), 1, False, lease, ordered=True),
        LogSpecification(kafka.topic(PROGRESS_LOG), 1, True, latest_of_each, ordered=True),
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
    # Another process has just created it, and the broker that was asked does not know all of it yet.
    while not (policy and partitions) and time.monotonic() < until:
        time.sleep(0.1)
        policy, partitions = _described(admin, specification.name)
    # More partitions or another retention are an operator's choice. These two would break what the engine promises.
    if ("compact" in policy) != specification.compacted:
        wanted = "compact" if specification.compacted else "delete"
        raise ConfigError(
            f"Kafka topic {specification.name} has cleanup.policy={policy or '(not told)'}, {wanted} is "
            f"needed: alter it, or choose another kafka.prefix"
        )
    if specification.ordered and len(partitions) != 1:
        raise ConfigError(
            f"Kafka topic {specification.name} has {len(partitions)} partitions, it must have one: delete it when it "
            f"is not ours, or choose another kafka.prefix"
        )
    # Kafka moves replicas only when told to, so we cannot repair this; and it works as it is, until a broker goes.
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
