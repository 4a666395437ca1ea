from __future__ import annotations

import dataclasses

import pytest
from kafka import codec

from arborcast.admin.kafka_safety import ClusterFacts, KafkaRisk, TopicFacts, unsafe
from arborcast.core.eventlog.client import PartitionState
from arborcast.core.eventlog.topics import specifications
from arborcast.core.settings import KafkaSettings

THREE = KafkaSettings(replication=3, partitions=2)
DAY_S = 86_400.0
NOW_MS = 1_800_000_000_000


def as_made(kafka: KafkaSettings, brokers: int) -> ClusterFacts:
    """A cluster on which the engine has just created its logs."""
    topics = {
        specification.name: TopicFacts(
            [PartitionState(1, kafka.replication, kafka.replication)] * specification.partitions, specification.configs
        )
        for specification in specifications(kafka)
    }
    return ClusterFacts(brokers, {"auto.create.topics.enable": "false"}, topics)


def with_topic(facts: ClusterFacts, name: str, *partitions: PartitionState, **configs: str) -> ClusterFacts:
    """The same with one log changed; underscores in the names of configurations stand for dots."""
    old = facts.topics[name]
    changed = {key.replace("_", "."): value for key, value in configs.items()}
    new = TopicFacts(partitions or old.partitions, {**old.configs, **changed})
    return dataclasses.replace(facts, topics={**facts.topics, name: new})


def about(findings: list[KafkaRisk], words: str) -> list[str]:
    return [finding.level for finding in findings if words in finding.what]


@pytest.mark.parametrize(("kafka", "brokers"), [(THREE, 3), (KafkaSettings(), 1), (KafkaSettings(replication=2), 2)])
def test_logs_made_by_the_engine_are_safe(kafka: KafkaSettings, brokers: int) -> None:
    assert unsafe(as_made(kafka, brokers), kafka, DAY_S, NOW_MS) == []


def test_inconsistent_numbers_of_replicas_and_brokers() -> None:
    found = unsafe(as_made(KafkaSettings(), 2), KafkaSettings(), DAY_S, NOW_MS)
    assert about(found, "kafka.replication = 1 on 2 brokers") == ["fail"]
    assert about(found, "arborcast.control has one replica") == ["fail"]
    assert about(unsafe(ClusterFacts(2, {}, {}), THREE, DAY_S, NOW_MS), "there are 2 brokers") == ["fail"]
    configs = {"socket.request.max.bytes": str(THREE.max_record_bytes), "log.cleaner.enable": "false"}
    found = unsafe(dataclasses.replace(as_made(THREE, 3), broker_configs=configs), THREE, DAY_S, NOW_MS)
    assert [about(found, name) for name in configs] == [["fail"], ["fail"]]


@pytest.mark.parametrize(
    ("log", "configs", "words", "level"),
    [
        ("notifications", {"min_insync_replicas": "1"}, "acknowledges what 1 of 3 replicas have", "fail"),
        ("notifications", {"min_insync_replicas": "3"}, "needs all of its 3 replicas", "warn"),
        ("notifications", {"unclean_leader_election_enable": "true"}, "led by a replica that was behind", "fail"),
        ("notifications", {"retention_ms": "3600000"}, "is kept for 1 h, deliveries may wait for 24 h", "fail"),
        ("notifications", {"retention_bytes": "1000000"}, "is cut at 1000000 bytes", "warn"),
        ("notifications", {"max_message_bytes": "1000"}, "takes records of 1000 bytes", "fail"),
        ("notifications", {"compression_type": "lz4"}, "compression.type = lz4, which cannot be read here", "fail"),
        ("notifications", {"message_timestamp_type": "CreateTime"}, "message.timestamp.type = CreateTime", "warn"),
        ("notifications", {"cleanup_policy": "compact"}, "has cleanup.policy = compact", "fail"),
        ("notifications", {"retention_ms": "172800000"}, "is kept for 48 h, kafka.retention_hours is 168", "warn"),
        ("control", {"cleanup_policy": "compact,delete"}, "arborcast.control has cleanup.policy", "fail"),
        ("control", {"cleanup_policy": "delete"}, "arborcast.control has cleanup.policy", "fail"),
        ("control", {"min_compaction_lag_ms": "0"}, "arborcast.control", "warn"),
        ("control", {"delete_retention_ms": "3600000"}, "arborcast.control", "warn"),
        ("control", {"segment_bytes": str(2**30)}, "arborcast.control has segment.bytes = 1073741824", "warn"),
        ("parked", {"max_compaction_lag_ms": str(2**63 - 1)}, "has max.compaction.lag.ms = 92233720", "warn"),
    ],
)
def test_dangers_of_a_configuration(
    log: str, configs: dict[str, str], words: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "has_lz4", lambda: False)
    (found,) = unsafe(with_topic(as_made(THREE, 3), f"arborcast.{log}", **configs), THREE, DAY_S, NOW_MS)
    assert (found.level, words in found.what) == (level, True), found
    assert found.advice
    if log == "control":
        (key,) = configs
        assert f"{key.replace('_', '.')}=" in found.advice, "the advice names the setting"


@pytest.mark.parametrize(
    ("log", "partitions", "words", "level"),
    [
        ("attempts", [(-1, 3, 1), (2, 3, 2)], "1 partitions of arborcast.attempts have no leader", "fail"),
        ("attempts", [(1, 3, 3), (2, 3, 2)], "1 partitions of arborcast.attempts lack replicas", "warn"),
        ("control", [(1, 3, 3)] * 2, "arborcast.control has 2 partitions", "fail"),
        ("notifications", [(1, 3, 3)], "has 1 partitions, kafka.partitions requires 2", "warn"),
    ],
)
def test_dangers_of_partitions(log: str, partitions: list[tuple[int, int, int]], words: str, level: str) -> None:
    facts = with_topic(as_made(THREE, 3), f"arborcast.{log}", *(PartitionState(*each) for each in partitions))
    assert about(unsafe(facts, THREE, DAY_S, NOW_MS), words) == [level]


def test_automatic_creation_of_topics_is_the_least_danger() -> None:
    facts = dataclasses.replace(as_made(THREE, 3), broker_configs={"auto.create.topics.enable": "true"})
    facts = with_topic(facts, "arborcast.dead", unclean_leader_election_enable="true")
    assert [finding.level for finding in unsafe(facts, THREE, DAY_S, NOW_MS)] == ["fail", "warn"]


def test_missing_logs_and_records_from_the_future() -> None:
    facts = as_made(THREE, 3)
    lost = "control", "parked", "dead"
    left = {name: topic for name, topic in facts.topics.items() if name.rpartition(".")[2] not in lost}
    found = unsafe(dataclasses.replace(facts, topics=left), THREE, DAY_S, NOW_MS)
    assert [(finding.level, finding.what.split()[0]) for finding in found] == [
        ("fail", "arborcast.control"),
        ("fail", "arborcast.parked"),
        ("warn", "arborcast.dead"),
    ]
    assert unsafe(dataclasses.replace(facts, topics={}), THREE, DAY_S, NOW_MS) == [], "an engine without logs"
    for ahead_ms, expected in ((-3_600_000, []), (1_000, []), (90_000, ["warn"])):
        later = dataclasses.replace(facts, newest_ms={"arborcast.lease": NOW_MS + ahead_ms})
        assert about(unsafe(later, THREE, DAY_S, NOW_MS), "in the future") == expected, ahead_ms
