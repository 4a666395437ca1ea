"""The Kafka topics of the logs: their configuration, creation and verification."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from arborcast.core.errors import ConfigError
from arborcast.core.eventlog.client import Admin, PartitionState, can_read
from arborcast.core.eventlog.consumer import LogConsumer
from arborcast.core.settings import KafkaSettings

logger = logging.getLogger(__name__)

_HOUR_MS = 3_600_000

_LONGEST = "max.message.bytes"
_SEGMENT = "segment.bytes"

# Bytes of a `parked` or `dead` record beyond its notification.
PARKED_OVERHEAD = 16 * 1024

# Compaction leaves records alone for this time, and tombstones for as long again: a reader after a shorter outage sees
# the former states of a subscription and the reason of its end.
CONTROL_HISTORY_MS = 24 * _HOUR_MS


@dataclass(frozen=True)
class LogSpecification:
    """The required configuration of a log's Kafka topic."""

    name: str
    partitions: int
    configs: Mapping[str, str]
    ordered: bool = False
    """Whether it must have exactly one partition."""

    @property
    def compacted(self) -> bool:
        return self.configs["cleanup.policy"] == "compact"


def min_insync_replicas(replication: int) -> int:
    """The number of replicas that must have a record before its acknowledgement: the majority. With two replicas it is
    one, since otherwise the loss of either broker would stop the engine."""
    return replication // 2 + 1 if replication > 2 else 1


def specifications(kafka: KafkaSettings) -> tuple[LogSpecification, ...]:
    """The configuration of the logs under these settings."""
    record_bytes = {
        _LONGEST: str(kafka.max_record_bytes),
        # "acks=all" means all in-sync replicas. Without a minimum that may be the leader alone, whose loss would lose
        # acknowledged records.
        "min.insync.replicas": str(min_insync_replicas(kafka.replication)),
        # A lagging replica must not become the leader: it lacks acknowledged records.
        "unclean.leader.election.enable": "false",
        # The broker sets timestamps. With the writers' clocks, Kafka would refuse records an hour ahead of its own
        # clock, keep records of a clock a year ahead for ever, and delete those of a clock a month behind in minutes.
        "message.timestamp.type": "LogAppendTime",
        # A broker's default may be a codec that kafka-python cannot read.
        "compression.type": "producer",
    }
    time_limited = record_bytes | {
        "cleanup.policy": "delete",
        "retention.ms": str(kafka.retention_hours * _HOUR_MS),
        # Kafka deletes whole segments. With its default of a week a quiet partition keeps records a week longer.
        "segment.ms": str(min(24, kafka.retention_hours) * _HOUR_MS),
        # After a kill or a power cut the broker reads the last segment of each partition before it starts. With the
        # default of 1 GB that is many gigabytes.
        _SEGMENT: str(256 * 1024 * 1024),
    }
    # Kafka refuses a record above the size of a segment: a message could be accepted, and not be parked.
    compacted_bytes = str(max(64 * 1024 * 1024, kafka.max_record_bytes + PARKED_OVERHEAD))
    control = record_bytes | {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": str(CONTROL_HISTORY_MS),
        "delete.retention.ms": str(CONTROL_HISTORY_MS),
        # Only closed segments are compacted. With the defaults (1 GB, a week, half dirty) a million former
        # subscriptions would be replayed at every start.
        _SEGMENT: compacted_bytes,
        "segment.ms": str(CONTROL_HISTORY_MS),
        "min.cleanable.dirty.ratio": "0.2",
    }
    latest_by_key = record_bytes | {
        "cleanup.policy": "compact",
        # Older records are useless: compacted as soon as a segment is full, or in an hour.
        _SEGMENT: compacted_bytes,
        "segment.ms": str(_HOUR_MS),
        # Without a limit a quiet log keeps the records that a null removed (an erased message) for ever.
        "max.compaction.lag.ms": str(24 * _HOUR_MS),
    }
    # Obsolete after seconds, with two records of a lease each second; an hour is for diagnosis.
    lease = record_bytes | {"cleanup.policy": "delete", "retention.ms": str(_HOUR_MS), "segment.ms": str(_HOUR_MS // 4)}
    # Waiting and dead deliveries: mostly short-lived, so old segments are compacted soon. Nulls stay as long as in the
    # control log, for readers that continue.
    unfinished = latest_by_key | {
        _LONGEST: str(kafka.max_record_bytes + PARKED_OVERHEAD),
        "delete.retention.ms": str(CONTROL_HISTORY_MS),
        "min.cleanable.dirty.ratio": "0.2",
    }
    return (
        # One partition: the order of all control records is the order in which every reader applies them.
        LogSpecification(kafka.topic("control"), 1, control, ordered=True),
        LogSpecification(kafka.topic("notifications"), kafka.partitions, time_limited),
        LogSpecification(kafka.topic("attempts"), kafka.partitions, time_limited),
        LogSpecification(kafka.topic("parked"), kafka.partitions, unfinished),
        LogSpecification(kafka.topic("dead"), kafka.partitions, unfinished),
        LogSpecification(kafka.topic("retained"), 1, latest_by_key, ordered=True),
        # One partition: the order of claims decides.
        LogSpecification(kafka.topic(PULL_LOG), 1, time_limited, ordered=True),
        LogSpecification(kafka.topic(RESULTS_LOG), 1, time_limited),
        # One partition: all readers must get the same result. Incomplete messages are given up long before the hour.
        LogSpecification(kafka.topic(FRAGMENT_LOG), 1, lease, ordered=True),
        LogSpecification(kafka.topic(LEASE_LOG), 1, lease, ordered=True),
        LogSpecification(kafka.topic(JOB_LEASE_LOG), 1, lease, ordered=True),
        # Each step changes the result of the previous ones.
        LogSpecification(kafka.topic(FEED_LOG), 1, lease, ordered=True),
        LogSpecification(kafka.topic(PROGRESS_LOG), 1, latest_by_key, ordered=True),
        LogSpecification(kafka.topic(OPERATIONS_LOG), 1, time_limited, ordered=True),
    )


def ensure_topics(kafka: KafkaSettings, only: Collection[str] = (), *, alter: bool = False) -> None:
    """Create the missing topics and check the others, of all logs or `only` of these. Concurrent calls of several
    processes are safe. With `alter`, existing topics get the configuration of these settings.

    Raises InfrastructureError if Kafka cannot be reached, ConfigError if an existing topic has a wrong configuration.
    """
    selected = {kafka.topic(name) for name in only}
    required = {each.name: each for each in specifications(kafka) if not selected or each.name in selected}
    with closing(Admin(kafka)) as admin:
        # Only these: a request for an existing topic needs the right to create it, and a controller.
        missing = required.keys() - admin.partitions(required).keys()
        created = set[str]()
        if missing:
            _check_none_lost(kafka, admin, {name: required[name] for name in missing})
            created = admin.create_topics(
                {name: (required[name].partitions, kafka.replication, required[name].configs) for name in missing}
            )
        for name in sorted(created):
            logger.info("created Kafka topic %s", name)
        existing = required.keys() - created
        if not existing:
            return
        until = time.monotonic() + kafka.request_timeout_s
        configs, partitions = admin.configs_of(existing, _CHECKED), admin.partitions(existing)
        # The broker may not have the whole description of a topic that another process has just created.
        while not all(configs.get(name) and partitions.get(name) for name in existing) and time.monotonic() < until:
            time.sleep(0.1)
            configs, partitions = admin.configs_of(existing, _CHECKED), admin.partitions(existing)
        for name in sorted(existing):
            _check(required[name], kafka.replication, configs.get(name, {}), partitions.get(name, []))
            if alter:
                _alter(admin, required[name])
            else:
                _check_records(required[name], configs.get(name, {}))


NEVER_EMPTY = ("control", "parked")
"""Logs whose loss ends all subscriptions, or loses all waiting deliveries."""


def _check_none_lost(kafka: KafkaSettings, admin: Admin, missing: Mapping[str, LogSpecification]) -> None:
    """Raises ConfigError if one of these is missing although the engine has accepted notifications."""
    lost = [name for each in NEVER_EMPTY if (name := kafka.topic(each)) in missing]
    if not lost or not admin.partitions([kafka.topic("notifications")]):
        return
    with closing(LogConsumer(kafka, "notifications")) as log:
        if any(log.ends().values()):
            contents = "all subscriptions" if lost[0] == kafka.topic("control") else "the waiting deliveries"
            raise ConfigError(
                f"Kafka topic {lost[0]} does not exist, although {log.topic} has notifications: it was deleted, "
                f"with {contents}. Restore it (docs/backup.md). To continue without its records, create it with "
                "kafka-topics --create --config cleanup.policy=compact --config max.message.bytes="
                + missing[lost[0]].configs[_LONGEST]
            )


def for_existing_records(kafka: KafkaSettings) -> KafkaSettings:
    """The settings with the largest record size that all existing logs take: records from before a reduction of
    kafka.max_record_bytes must still be parked, or become dead letters. Raises InfrastructureError."""
    with closing(Admin(kafka)) as admin:
        required = {each.name: int(each.configs[_LONGEST]) for each in specifications(kafka)}
        configs = admin.configs_of(admin.partitions(required), [_LONGEST])
    spare = [int(found[_LONGEST]) - required[name] for name, found in configs.items()]
    return replace(kafka, max_record_bytes=kafka.max_record_bytes + max(0, min(spare, default=0)))


def _alter(admin: Admin, specification: LogSpecification) -> None:
    current = admin.configs(specification.name)
    required = dict(specification.configs)
    required[_LONGEST] = max(required[_LONGEST], current[_LONGEST], key=int)  # see `for_existing_records`
    if _SEGMENT in required:
        required[_SEGMENT] = max(required[_SEGMENT], required[_LONGEST], key=int)
    changed = {key: value for key, value in required.items() if current.get(key) != value}
    if changed:
        admin.alter(specification.name, changed)
        was = ", ".join(f"{key}={value} (before: {current.get(key)})" for key, value in sorted(changed.items()))
        logger.info("altered Kafka topic %s: %s", specification.name, was)


_CHECKED = ("cleanup.policy", _LONGEST, "compression.type")


def _check_records(specification: LogSpecification, configs: Mapping[str, str]) -> None:
    """Records must fit, and be readable."""
    alter = "alter it with kafka-configs --alter --add-config"
    most, longest = configs.get(_LONGEST, "0"), specification.configs[_LONGEST]
    if int(most) < int(longest):
        raise ConfigError(
            f"Kafka topic {specification.name} has max.message.bytes={most}, {longest} is needed: {alter} "
            f"max.message.bytes={longest}, or lower kafka.max_record_bytes"
        )
    if not can_read(codec := configs.get("compression.type", "producer")):
        raise ConfigError(
            f"Kafka topic {specification.name} has compression.type={codec}, which cannot be read here: {alter} "
            "compression.type=producer"
        )


def _check(
    specification: LogSpecification, replication: int, configs: Mapping[str, str], partitions: list[PartitionState]
) -> None:
    policy = configs.get("cleanup.policy", "")
    # More partitions or another retention are the operator's choice. These two checks are required for correctness.
    # With both policies records of a subscription would be deleted by their age.
    if ("compact" in policy) != specification.compacted or (specification.compacted and "delete" in policy):
        required = "compact" if specification.compacted else "delete"
        raise ConfigError(
            f"Kafka topic {specification.name} has cleanup.policy={policy or '(unknown)'}, {required} is "
            f"needed: alter it, or choose another kafka.prefix"
        )
    if specification.ordered and len(partitions) != 1:
        raise ConfigError(
            f"Kafka topic {specification.name} has {len(partitions)} partitions, it must have one: delete it, or "
            f"choose another kafka.prefix if another system uses it"
        )
    # Kafka moves replicas on request only, so this cannot be repaired here; it works until a broker is lost.
    fewest = min((partition.replicas for partition in partitions), default=replication)
    if fewest < replication:
        logger.warning(
            "Kafka topic %s has %d replicas, kafka.replication requires %d: add them with kafka-reassign-partitions",
            specification.name,
            fewest,
            replication,
        )


LEASE_LOG = "lease"
JOB_LEASE_LOG = "dispatch-lease"
FEED_LOG = "feed"
PROGRESS_LOG = "progress"
PULL_LOG = "pullpoints"
RESULTS_LOG = "results"
FRAGMENT_LOG = "fragments"
OPERATIONS_LOG = "operations"
