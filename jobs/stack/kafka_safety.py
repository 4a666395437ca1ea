"""What in a Kafka cluster's configuration would break a promise of the engine. Pure; `examine` asks the cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

from topic_model.kafka_client import Admin, PartitionState
from topic_model.kafka_topics import LogSpecification, min_insync_replicas, specifications
from topic_model.lease import LEASE_LOG
from topic_model.settings import KafkaSettings

_HOUR_MS = 3_600_000

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be: "fail" where something acknowledged can be lost."""

    level: Level
    what: str
    advice: str


@dataclass(frozen=True)
class TopicFacts:
    """A Kafka topic as it is."""

    partitions: Sequence[PartitionState]
    configs: Mapping[str, str]


@dataclass(frozen=True)
class ClusterFacts:
    """A Kafka cluster as it is. `topics` holds those of our logs that exist, by full name."""

    brokers: int
    broker_configs: Mapping[str, str]
    topics: Mapping[str, TopicFacts]


def examine(kafka: KafkaSettings) -> ClusterFacts:
    """Ask the cluster. Raises InfrastructureError."""
    with closing(Admin(kafka)) as admin:
        brokers = admin.brokers()
        topics = {}
        for specification in specifications(kafka):
            partitions = admin.partitions(specification.name)
            if partitions is not None:
                topics[specification.name] = TopicFacts(partitions, admin.configs(specification.name))
        configs = admin.broker_configs(brokers[0].id) if brokers else {}
        return ClusterFacts(len(brokers), configs, topics)


def unsafe(facts: ClusterFacts, kafka: KafkaSettings, longest_wait_s: float) -> list[Finding]:
    """What is unsafe, the worst first. `longest_wait_s` is how long a delivery may be tried."""
    found = list(_of_cluster(facts, kafka))
    for specification in specifications(kafka):
        topic = facts.topics.get(specification.name)
        if topic is not None:
            found += _of_topic(specification, topic, facts.brokers, kafka, longest_wait_s)
    return sorted(found, key=lambda finding: finding.level != "fail")


def _of_cluster(facts: ClusterFacts, kafka: KafkaSettings) -> Iterator[Finding]:
    if kafka.replication > facts.brokers:
        yield Finding(
            "fail",
            f"kafka.replication = {kafka.replication}, and there are {facts.brokers} brokers",
            "No log can be created so: lower kafka.replication, or start the missing brokers.",
        )
    if facts.brokers > 1 and kafka.replication == 1:
        yield Finding(
            "fail",
            f"kafka.replication = 1 on {facts.brokers} brokers",
            "Any broker's disk may take a share of the logs with it: set kafka.replication = 3 before the first start.",
        )
    if facts.broker_configs.get("auto.create.topics.enable") == "true":
        yield Finding(
            "warn",
            "the brokers create topics that somebody only asks for (auto.create.topics.enable)",
            "A log could come into being with one partition and a week's retention: set it to false.",
        )


def _of_topic(
    specification: LogSpecification, topic: TopicFacts, brokers: int, kafka: KafkaSettings, longest_wait_s: float
) -> Iterator[Finding]:
    name, configs = specification.name, topic.configs
    alter = f"kafka-configs --alter --topic {name} --add-config"
    replicas = min((each.replicas for each in topic.partitions), default=0)
    if brokers > 1 and replicas == 1:
        yield Finding(
            "fail", f"{name} has one replica on {brokers} brokers", "Add replicas with kafka-reassign-partitions."
        )
    elif replicas < kafka.replication:
        yield Finding(
            "warn",
            f"{name} has {replicas} replicas, kafka.replication asks for {kafka.replication}",
            "Add replicas with kafka-reassign-partitions.",
        )
    needed, minimum = min_insync_replicas(replicas), int(configs.get("min.insync.replicas", "1"))
    if minimum < needed:
        yield Finding(
            "fail",
            f"{name} acknowledges what {minimum} of {replicas} replicas have (min.insync.replicas)",
            f"{alter} min.insync.replicas={needed}",
        )
    elif 1 < replicas <= minimum:
        yield Finding(
            "warn",
            f"{name} needs all of its {replicas} replicas (min.insync.replicas = {minimum}): any broker stops it",
            f"{alter} min.insync.replicas={needed}",
        )
    if replicas > 1 and configs.get("unclean.leader.election.enable") == "true":
        yield Finding(
            "fail",
            f"{name} may be led by a replica that was behind (unclean.leader.election.enable)",
            f"{alter} unclean.leader.election.enable=false",
        )
    leaderless = sum(each.leader < 0 for each in topic.partitions)
    behind = sum(each.in_sync < each.replicas for each in topic.partitions)
    if leaderless:
        yield Finding("fail", f"{leaderless} partitions of {name} have no leader", "Start the brokers that are away.")
    elif behind:
        yield Finding("warn", f"{behind} partitions of {name} lack replicas", "A broker is away, or too slow.")
    largest = int(configs.get("max.message.bytes", "0"))
    if largest < int(specification.configs["max.message.bytes"]):
        yield Finding(
            "fail",
            f"{name} takes records of {largest} bytes, kafka.max_record_bytes = {kafka.max_record_bytes}",
            f"{alter} max.message.bytes={specification.configs['max.message.bytes']}",
        )
    yield from _of_retention(specification, configs, alter, longest_wait_s)


def _of_retention(
    specification: LogSpecification, configs: Mapping[str, str], alter: str, longest_wait_s: float
) -> Iterator[Finding]:
    name, policy = specification.name, configs.get("cleanup.policy", "")
    if ("compact" in policy) != specification.compacted or (specification.compacted and "delete" in policy):
        wanted = "compact" if specification.compacted else "delete"
        yield Finding("fail", f"{name} has cleanup.policy = {policy}", f"{alter} cleanup.policy={wanted}")
        return
    if specification.compacted or specification.name.endswith(LEASE_LOG):
        return  # nobody needs old words about the lease
    kept_ms = int(configs.get("retention.ms", "-1"))
    if 0 <= kept_ms < longest_wait_s * 1000:
        yield Finding(
            "fail",
            f"{name} is kept for {kept_ms / _HOUR_MS:g} h, deliveries may be tried for {longest_wait_s / 3600:g} h",
            f"{alter} retention.ms={int(longest_wait_s * 1000)}, or lower the lifespan",
        )
    if int(configs.get("retention.bytes", "-1")) >= 0:
        yield Finding(
            "warn",
            f"{name} is cut at {configs['retention.bytes']} bytes a partition, however young its records are",
            f"{alter} retention.bytes=-1, and watch the disks",
        )
