from __future__ import annotations

import dataclasses

import pytest

from arborcast.admin.kafka_safety import ClusterFacts, KafkaRisk, TopicFacts, unsafe
from arborcast.core.eventlog.client import PartitionState
from arborcast.core.eventlog.topics import specifications
from arborcast.core.settings import KafkaSettings

THREE = KafkaSettings(replication=3, partitions=2)
DAY_S = 86_400.0
NOW_MS = 1_800_000_000_000


def as_made(kafka: KafkaSettings, brokers: int) -> ClusterFacts:
    """A cluster on which the engine has just made its logs."""
    topics = {
        specification.name: TopicFacts(
            [PartitionState(1, kafka.replication, kafka.replication)] * specification.partitions, specification.configs
        )
        for specification in specifications(kafka)
    }
    return ClusterFacts(brokers, {"auto.create.topics.enable": "false"}, topics)


def with_topic(facts: ClusterFacts, name: str, *partitions: PartitionState, **configs: str) -> ClusterFacts:
    """The same, with one log changed; underscores in the names of configurations stand for dots."""
    old = facts.topics[name]
    changed = {key.replace("_", "."): value for key, value in configs.items()}
    new = TopicFacts(partitions or old.partitions, {**old.configs, **changed})
    return dataclasses.replace(facts, topics={**facts.topics, name: new})


def about(findings: list[KafkaRisk], words: str) -> list[str]:
    return [finding.level for finding in findings if words in finding.what]


@pytest.mark.parametrize(("kafka", "brokers"), [(THREE, 3), (KafkaSettings(), 1), (KafkaSettings(replication=2), 2)])
def test_what_we_make_ourselves_is_safe(kafka: KafkaSettings, brokers: int) -> None:
    assert unsafe(as_made(kafka, brokers), kafka, DAY_S, NOW_MS) == []


def test_one_replica_is_for_one_broker() -> None:
    found = unsafe(as_made(KafkaSettings(), 3), KafkaSettings(), DAY_S, NOW_MS)

    assert about(found, "kafka.replication = 1 on 3 brokers") == ["fail"]
    assert about(found, "arborcast.control has one replica") == ["fail"]


def test_more_replicas_than_brokers_cannot_be() -> None:
    assert about(unsafe(ClusterFacts(2, {}, {}), THREE, DAY_S, NOW_MS), "there are 2 brokers") == ["fail"]


@pytest.mark.parametrize(
    ("configs", "words", "level"),
    [
        ({"min_insync_replicas": "1"}, "acknowledges what 1 of 3 replicas have", "fail"),
        ({"min_insync_replicas": "3"}, "needs all of its 3 replicas", "warn"),
        ({"unclean_leader_election_enable": "true"}, "may be led by a replica that was behind", "fail"),
        ({"retention_ms": "3600000"}, "is kept for 1 h, deliveries may be tried for 24 h", "fail"),
        ({"retention_bytes": "1000000"}, "is cut at 1000000 bytes", "warn"),
        ({"max_message_bytes": "1000"}, "takes records of 1000 bytes", "fail"),
        ({"message_timestamp_type": "CreateTime"}, "message.timestamp.type = CreateTime", "warn"),
        ({"cleanup_policy": "compact"}, "has cleanup.policy = compact", "fail"),
        ({"retention_ms": "172800000"}, "is kept for 48 h, kafka.retention_hours is 168", "warn"),
    ],
)
def test_each_danger_is_named(configs: dict[str, str], words: str, level: str) -> None:
    facts = with_topic(as_made(THREE, 3), "arborcast.notifications", **configs)

    found = unsafe(facts, THREE, DAY_S, NOW_MS)

    assert about(found, words) == [level]
    assert len(found) == 1
    assert found[0].advice


def test_a_control_log_that_forgets_is_one_that_loses_subscriptions() -> None:
    facts = with_topic(as_made(THREE, 3), "arborcast.control", cleanup_policy="compact,delete")

    assert about(unsafe(facts, THREE, DAY_S, NOW_MS), "arborcast.control has cleanup.policy") == ["fail"]


def test_partitions_without_leader_or_replicas_are_counted() -> None:
    facts = with_topic(as_made(THREE, 3), "arborcast.attempts", PartitionState(-1, 3, 1), PartitionState(2, 3, 2))
    assert about(unsafe(facts, THREE, DAY_S, NOW_MS), "1 partitions of arborcast.attempts have no leader") == ["fail"]

    facts = with_topic(as_made(THREE, 3), "arborcast.attempts", PartitionState(1, 3, 3), PartitionState(2, 3, 2))
    assert about(unsafe(facts, THREE, DAY_S, NOW_MS), "1 partitions of arborcast.attempts lack replicas") == ["warn"]


def test_brokers_that_create_what_is_asked_for_are_named_and_the_worst_comes_first() -> None:
    facts = dataclasses.replace(as_made(THREE, 3), broker_configs={"auto.create.topics.enable": "true"})
    facts = with_topic(facts, "arborcast.dead", unclean_leader_election_enable="true")

    found = unsafe(facts, THREE, DAY_S, NOW_MS)

    assert [finding.level for finding in found] == ["fail", "warn"]


def test_our_own_settings_may_be_the_danger() -> None:
    kafka = dataclasses.replace(THREE, retention_hours=12)

    assert about(unsafe(as_made(kafka, 3), kafka, DAY_S, NOW_MS), "deliveries may be tried for 24 h") == ["fail"] * 4


@pytest.mark.parametrize(
    ("key", "value"), [("min_compaction_lag_ms", "0"), ("delete_retention_ms", "3600000"), ("cleanup_policy", "delete")]
)
def test_a_log_that_was_made_by_somebody_else(key: str, value: str) -> None:
    found = unsafe(with_topic(as_made(THREE, 3), "arborcast.control", **{key: value}), THREE, DAY_S, NOW_MS)

    assert [finding.what.split()[0] for finding in found] == ["arborcast.control"]
    assert f"{key.replace('_', '.')}=" in found[0].advice, "it says with what to alter it"


def test_two_partitions_where_there_is_one_order() -> None:
    facts = with_topic(as_made(THREE, 3), "arborcast.control", *[PartitionState(1, 3, 3)] * 2)

    assert about(unsafe(facts, THREE, DAY_S, NOW_MS), "arborcast.control has 2 partitions") == ["fail"]


def test_fewer_partitions_than_asked_for() -> None:
    facts = with_topic(as_made(THREE, 3), "arborcast.notifications", PartitionState(1, 3, 3))

    assert about(unsafe(facts, THREE, DAY_S, NOW_MS), "has 1 partitions, kafka.partitions asks for 2") == ["warn"]


def test_a_log_that_has_gone_while_others_stay() -> None:
    facts = as_made(THREE, 3)
    left = {name: topic for name, topic in facts.topics.items() if name.rpartition(".")[2] not in ("control", "parked")}

    found = unsafe(dataclasses.replace(facts, topics=left), THREE, DAY_S, NOW_MS)

    assert [(finding.level, finding.what.split()[0]) for finding in found] == [
        ("fail", "arborcast.control"),
        ("warn", "arborcast.parked"),
    ]
    assert unsafe(dataclasses.replace(facts, topics={}), THREE, DAY_S, NOW_MS) == [], "an engine that never ran"


def test_brokers_that_take_less_than_we_accept_or_compact_nothing() -> None:
    configs = {"socket.request.max.bytes": str(THREE.max_record_bytes), "log.cleaner.enable": "false"}

    found = unsafe(dataclasses.replace(as_made(THREE, 3), broker_configs=configs), THREE, DAY_S, NOW_MS)

    assert about(found, "socket.request.max.bytes") == ["fail"]
    assert about(found, "log.cleaner.enable") == ["fail"]


@pytest.mark.parametrize(("ahead_ms", "expected"), [(-3_600_000, []), (1_000, []), (90_000, ["warn"])])
def test_a_record_from_the_future_tells_of_a_wrong_clock(ahead_ms: int, expected: list[str]) -> None:
    facts = dataclasses.replace(as_made(THREE, 3), newest_ms={"arborcast.lease": NOW_MS + ahead_ms})

    assert about(unsafe(facts, THREE, DAY_S, NOW_MS), "in the future") == expected
