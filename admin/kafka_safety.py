"""Kafka settings that would break a guarantee of the engine. Pure; `examine` reads the cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal

from arborcast.core.eventlog.client import Admin, PartitionState, can_read
from arborcast.core.eventlog.scan import LogScan, OffsetRange
from arborcast.core.eventlog.topics import (
    FEED_LOG,
    FRAGMENT_LOG,
    LEASE_LOG,
    NEVER_EMPTY,
    OPERATIONS_LOG,
    PARKED_OVERHEAD,
    LogSpecification,
    min_insync_replicas,
    specifications,
)
from arborcast.core.settings import KafkaSettings

_HOUR_MS = 3_600_000

# A newest record later than this was written with a wrong clock, or this clock is wrong.
_CLOCKS_MS = 2_000

# Kafka's default for the longest request to a broker.
_LONGEST_REQUEST = 104_857_600

# Configurations that logs of an earlier version lack, and the consequence of a larger value.
_AT_MOST = {
    "segment.bytes": "A killed broker reads the last segment of each partition at its start, and compaction omits it",
    "max.compaction.lag.ms": "A quiet log keeps removed and erased messages",
}

# Logs that are not compacted, so that the last offset of each partition is that of a record.
_DATED = ("notifications", "attempts", LEASE_LOG)

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class KafkaRisk:
    """One unsafe setting: "fail" if acknowledged records can be lost."""

    level: Level
    what: str
    advice: str


@dataclass(frozen=True)
class TopicFacts:
    """The settings of a Kafka topic."""

    partitions: Sequence[PartitionState]
    configs: Mapping[str, str]


@dataclass(frozen=True)
class ClusterFacts:
    """The settings of a Kafka cluster. `topics` has the existing logs by full name; `newest_ms` the time of the newest
    record of some of them."""

    brokers: int
    broker_configs: Mapping[str, str]
    topics: Mapping[str, TopicFacts]
    newest_ms: Mapping[str, int] = field(default_factory=dict)


def examine(kafka: KafkaSettings) -> ClusterFacts:
    """Read the cluster's settings. Raises InfrastructureError."""
    with closing(Admin(kafka)) as admin:
        brokers = admin.brokers()
        partitions = admin.partitions([each.name for each in specifications(kafka)])
        topics = {name: TopicFacts(states, admin.configs(name)) for name, states in partitions.items()}
        configs = admin.broker_configs(brokers[0]) if brokers else {}
    newest = {
        kafka.topic(name): when
        for name in _DATED
        if kafka.topic(name) in topics and (when := _newest_ms(kafka, name)) is not None
    }
    return ClusterFacts(len(brokers), configs, topics, newest)


def _newest_ms(kafka: KafkaSettings, name: str) -> int | None:
    with LogScan(kafka, name) as log:
        firsts, ends = log.beginnings(), log.ends()
        last = {number: OffsetRange(end - 1, end) for number, end in ends.items() if end > firsts[number]}
        return max((record.timestamp for record in log.read(last)), default=None)


def unsafe(facts: ClusterFacts, kafka: KafkaSettings, longest_wait_s: float, now_ms: int) -> list[KafkaRisk]:
    """Unsafe settings, the worst first. `longest_wait_s` is the maximum time for which a delivery is retried."""
    found = [*_of_cluster(facts, kafka), *_of_clocks(facts, now_ms), *_of_missing(facts, kafka)]
    for specification in specifications(kafka):
        topic = facts.topics.get(specification.name)
        if topic is not None:
            found += _of_topic(specification, topic, facts.brokers, kafka, longest_wait_s)
    return sorted(found, key=lambda finding: finding.level != "fail")


def _of_cluster(facts: ClusterFacts, kafka: KafkaSettings) -> Iterator[KafkaRisk]:
    if kafka.replication > facts.brokers:
        yield KafkaRisk(
            "fail",
            f"kafka.replication = {kafka.replication}, and there are {facts.brokers} brokers",
            "No log can be created so: lower kafka.replication, or start the missing brokers.",
        )
    if facts.brokers > 1 and kafka.replication == 1:
        yield KafkaRisk(
            "fail",
            f"kafka.replication = 1 on {facts.brokers} brokers",
            "The loss of any broker's disk loses a part of the logs: set kafka.replication = 3 before the first start.",
        )
    if facts.broker_configs.get("auto.create.topics.enable") == "true":
        yield KafkaRisk(
            "warn",
            "the brokers create topics on first use (auto.create.topics.enable)",
            "A log could be created with one partition and a week's retention: set it to false.",
        )
    if facts.broker_configs.get("log.cleaner.enable") == "false":
        yield KafkaRisk(
            "fail",
            "the brokers compact nothing (log.cleaner.enable)",
            "The logs of subscriptions and waiting deliveries would grow without limit: set it to true.",
        )
    longest = int(facts.broker_configs.get("socket.request.max.bytes", _LONGEST_REQUEST))
    if longest < kafka.max_record_bytes + PARKED_OVERHEAD:
        yield KafkaRisk(
            "fail",
            f"the brokers take requests of {longest} bytes (socket.request.max.bytes), and kafka.max_record_bytes is "
            f"{kafka.max_record_bytes}",
            "Raise the one or lower the other: a large message could be accepted, but not stored while it waits.",
        )


def _of_clocks(facts: ClusterFacts, now_ms: int) -> Iterator[KafkaRisk]:
    ahead = {name: when - now_ms for name, when in facts.newest_ms.items() if when - now_ms > _CLOCKS_MS}
    if ahead:
        name = max(ahead, key=lambda each: ahead[each])
        yield KafkaRisk(
            "warn",
            f"the newest record of {name} is from {ahead[name] / 1000:.0f} s in the future",
            "The clock of a gateway, of the job, or of this machine is wrong, and lifespans and retries depend on it: "
            "synchronise all of them (chronyc tracking, timedatectl).",
        )


def _of_missing(facts: ClusterFacts, kafka: KafkaSettings) -> Iterator[KafkaRisk]:
    missing = [each.name for each in specifications(kafka) if each.name not in facts.topics]
    # Without any topic the engine was never started; it will create them.
    if not missing or not facts.topics:
        return
    for name in missing:
        stops = name in map(kafka.topic, NEVER_EMPTY)
        yield KafkaRisk(
            "fail" if stops else "warn",
            f"{name} does not exist, although other logs of the engine do",
            "Nothing starts without it: restore it (docs/backup.md)."
            if stops
            else "It is created empty at the next start: stop the engine and restore it first (docs/backup.md).",
        )


def _of_topic(
    specification: LogSpecification, topic: TopicFacts, brokers: int, kafka: KafkaSettings, longest_wait_s: float
) -> Iterator[KafkaRisk]:
    name, configs = specification.name, topic.configs
    alter = f"kafka-configs --alter --topic {name} --add-config"
    replicas = min((each.replicas for each in topic.partitions), default=0)
    if brokers > 1 and replicas == 1:
        yield KafkaRisk(
            "fail", f"{name} has one replica on {brokers} brokers", "Add replicas with kafka-reassign-partitions."
        )
    elif replicas < kafka.replication:
        yield KafkaRisk(
            "warn",
            f"{name} has {replicas} replicas, kafka.replication requires {kafka.replication}",
            "Add replicas with kafka-reassign-partitions.",
        )
    needed, minimum = min_insync_replicas(replicas), int(configs.get("min.insync.replicas", "1"))
    if minimum < needed:
        yield KafkaRisk(
            "fail",
            f"{name} acknowledges what {minimum} of {replicas} replicas have (min.insync.replicas)",
            f"{alter} min.insync.replicas={needed}",
        )
    elif 1 < replicas <= minimum:
        yield KafkaRisk(
            "warn",
            f"{name} needs all of its {replicas} replicas (min.insync.replicas = {minimum}): any broker stops it",
            f"{alter} min.insync.replicas={needed}",
        )
    if replicas > 1 and configs.get("unclean.leader.election.enable") == "true":
        yield KafkaRisk(
            "fail",
            f"{name} may be led by a replica that was behind (unclean.leader.election.enable)",
            f"{alter} unclean.leader.election.enable=false",
        )
    yield from _of_partitions(specification, topic)
    leaderless = sum(each.leader < 0 for each in topic.partitions)
    behind = sum(each.in_sync < each.replicas for each in topic.partitions)
    if leaderless:
        yield KafkaRisk("fail", f"{leaderless} partitions of {name} have no leader", "Start the missing brokers.")
    elif behind:
        yield KafkaRisk("warn", f"{behind} partitions of {name} lack replicas", "A broker is down, or too slow.")
    largest = int(configs.get("max.message.bytes", "0"))
    if largest < int(specification.configs["max.message.bytes"]):
        yield KafkaRisk(
            "fail",
            f"{name} takes records of {largest} bytes, kafka.max_record_bytes = {kafka.max_record_bytes}",
            f"{alter} max.message.bytes={specification.configs['max.message.bytes']}",
        )
    if not can_read(codec := configs.get("compression.type", "producer")):
        yield KafkaRisk(
            "fail",
            f"{name} has compression.type = {codec}, which cannot be read here",
            f"{alter} compression.type=producer",
        )
    stamps, required = configs.get("message.timestamp.type", ""), specification.configs["message.timestamp.type"]
    if stamps != required:
        yield KafkaRisk(
            "warn",
            f"{name} has message.timestamp.type = {stamps}",
            f"A gateway or a worker whose clock is wrong could have its records refused, or deleted early: {alter} "
            f"message.timestamp.type={required}",
        )
    for key, consequence in _AT_MOST.items():
        most = specification.configs.get(key)
        if most is not None and int(configs.get(key, most)) > int(most):
            yield KafkaRisk("warn", f"{name} has {key} = {configs[key]}", f"{consequence}: {alter} {key}={most}")
    yield from _of_retention(specification, configs, alter, longest_wait_s)


def _of_partitions(specification: LogSpecification, topic: TopicFacts) -> Iterator[KafkaRisk]:
    name, count = specification.name, len(topic.partitions)
    if specification.ordered and count != 1:
        yield KafkaRisk(
            "fail",
            f"{name} has {count} partitions, and its order must be one",
            "Nothing starts on it: delete it if it is not Arborcast's, or choose another kafka.prefix.",
        )
    elif count < specification.partitions:
        yield KafkaRisk(
            "warn",
            f"{name} has {count} partitions, kafka.partitions requires {specification.partitions}",
            "Fewer tasks than that can work at a time. Partitions are added with kafka-topics --alter while the engine "
            "is stopped and has no backlog: a topic may move to another one.",
        )


def _of_retention(
    specification: LogSpecification, configs: Mapping[str, str], alter: str, longest_wait_s: float
) -> Iterator[KafkaRisk]:
    name, policy = specification.name, configs.get("cleanup.policy", "")
    if ("compact" in policy) != specification.compacted or (specification.compacted and "delete" in policy):
        required = "compact" if specification.compacted else "delete"
        yield KafkaRisk("fail", f"{name} has cleanup.policy = {policy}", f"{alter} cleanup.policy={required}")
        return
    if specification.name.endswith((LEASE_LOG, FEED_LOG, FRAGMENT_LOG, OPERATIONS_LOG)):
        return  # old records of these are not needed, or are in a table
    if specification.compacted:
        yield from _of_compaction(specification, configs, alter)
        return
    retention_ms = int(configs.get("retention.ms", "-1"))
    if 0 <= retention_ms < longest_wait_s * 1000:
        yield KafkaRisk(
            "fail",
            f"{name} is kept for {retention_ms / _HOUR_MS:g} h, deliveries may wait for {longest_wait_s / 3600:g} h",
            f"{alter} retention.ms={int(longest_wait_s * 1000)}, or lower the lifespan",
        )
    elif 0 <= retention_ms < int(specification.configs["retention.ms"]):
        required_ms = int(specification.configs["retention.ms"])
        yield KafkaRisk(
            "warn",
            f"{name} is kept for {retention_ms / _HOUR_MS:g} h, kafka.retention_hours is {required_ms // _HOUR_MS}",
            f"Audits and replays reach back so far only: {alter} retention.ms={required_ms}",
        )
    if int(configs.get("retention.bytes", "-1")) >= 0:
        yield KafkaRisk(
            "warn",
            f"{name} is cut at {configs['retention.bytes']} bytes a partition, however young its records are",
            f"{alter} retention.bytes=-1, and watch the disks",
        )


def _of_compaction(specification: LogSpecification, configs: Mapping[str, str], alter: str) -> Iterator[KafkaRisk]:
    for key in ("min.compaction.lag.ms", "delete.retention.ms"):
        required, current_ms = specification.configs.get(key), int(configs.get(key, "0"))
        if required is not None and current_ms < int(required):
            yield KafkaRisk(
                "warn",
                f"{specification.name} removes ended entries after {current_ms / _HOUR_MS:g} h ({key})",
                f"A process that is down for longer would miss them: {alter} {key}={required}",
            )
