"""A backup of an engine's logs, taken while it works, and its restore to another Kafka."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from arborcast.admin import backup
from arborcast.admin.archive import BackupError
from arborcast.admin.backup import restore
from arborcast.core.eventlog.topics import PULL_LOG
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import dead_letters, parked
from arborcast.dispatch.operations.audit import audit
from arborcast.topic_model.projections.pull_store import PullLimits
from arborcast.topic_model.records import pull
from arborcast.topic_model.records.control import PullPointRecord, TopicRecord, TriggerRecord
from arborcast.topic_model.records.pull import Claimed, Settled, StoredMessage
from arborcast.topic_model.topics import TopicPath
from tests.support.broker import records_in
from tests.support.command import Engine
from tests.support.dispatch_job import job_settings, logs, running, subscription, trigger
from tests.support.held_port import HeldPort
from tests.support.receiver import Received, Receiver
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

LIMITS = PullLimits(1_000, 1 << 20, 1 << 20)
TOPICS = 3


def elsewhere(kafka: KafkaSettings) -> KafkaSettings:
    """Other logs in the same Kafka, with another number of partitions."""
    return dataclasses.replace(kafka, prefix=f"elsewhere.{kafka.prefix}", partitions=3)


def numbers(received: Iterable[Received]) -> list[int]:
    """The arrivals without repetitions."""
    return list(dict.fromkeys(int(each) for one in received for each in re.findall(rb"<x>(\d+)</x>", one.body)))


def in_order(found: list[int]) -> bool:
    """In order within each topic."""
    return all(ours == sorted(ours) for ours in ([n for n in found if n % TOPICS == t] for t in range(TOPICS)))


def records(kafka: KafkaSettings, name: str) -> list[tuple[bytes, bytes]]:
    return [(each.key, each.value) for each in records_in(kafka, name) if each.value is not None]


def test_another_engine_delivers_the_messages_of_a_backup(
    spark: SparkSession, tmp_path: Path, kafka_settings: KafkaSettings
) -> None:
    other = elsewhere(kafka_settings)
    total = 0

    def publish(count: int) -> None:
        nonlocal total
        for number in range(total, total + count):
            log.notify(f"a/t{number % TOPICS}", b"<x>%d</x>" % number)
        total += count

    with Receiver() as receiver:
        away = HeldPort().for_life_of(receiver)
        with logs(kafka_settings) as log:
            log.subscribe(
                subscription("well", receiver.url("/well"), "a//."),
                subscription("away", f"http://127.0.0.1:{away}/away", "a//."),
                subscription("refused", receiver.url("/status/404"), "a/t0"),
                subscription("over", receiver.url("/over"), "a//."),
                subscription("mirrored", receiver.url("/mirrored"), "mirror"),
            )
            log.control(TopicRecord(TopicPath("mirror")), TriggerRecord(trigger("t", "a/t0", "mirror")))
            log.end("over")
            with running(spark, job_settings(tmp_path / "one", kafka_settings)):
                publish(60)
                wait_until(lambda: len(records(kafka_settings, "dead")) >= 60 // TOPICS, "given-up messages")
                publish(240)  # some are in flight during the backup
                manifest = backup.backup(kafka_settings, tmp_path / "backup", LIMITS)
                accepted = total
        assert manifest.logs["control"].records >= 5
        before = {each for each, _ in records(kafka_settings, "dead")}
        assert accepted <= manifest.logs["notifications"].records + len(numbers(receiver.received("/well")))

        restore(tmp_path / "backup", other)

        letters = [(parked.decode_key(key)[0], dead_letters.decode(value)) for key, value in records(other, "dead")]
        assert len(letters) >= 60 // TOPICS
        assert all(delivery.subscription == "refused" and delivery.place.redrive for delivery, _ in letters)
        assert not before & {delivery.key() for delivery, _ in letters}, "new letters have other keys"
        with Receiver(port=away) as back, running(spark, job_settings(tmp_path / "two", other)):
            wait_until(
                lambda: len(numbers(back.received("/away"))) >= accepted,
                lambda: f"{len(numbers(back.received('/away')))} of {accepted}",
            )
            report = audit(other, 0, deep=True, patience_s=120)
            assert report.balanced, report.problems[:3]
            assert in_order(numbers(back.received("/away")))
        assert set(numbers(receiver.received("/well"))) == set(range(accepted)), "by one of the engines"
        assert set(numbers(receiver.received("/mirrored"))) == set(range(0, accepted, TOPICS))
        assert not receiver.received("/over")


def test_pull_points_keep_unfetched_messages(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    other = elsewhere(kafka_settings)
    with logs(kafka_settings) as log:
        log.control(PullPointRecord("p", "http://gateway/p"))
    writer = LogWriter(kafka_settings, PULL_LOG)
    first = writer.append_encoded([pull.encode("p", StoredMessage(b"<m>%d</m>" % n)) for n in range(6)]) - 5
    writer.append_encoded(
        [
            pull.encode("p", Claimed("done", first, first + 1, 0)),
            pull.encode("p", Settled("done")),
            pull.encode("p", Claimed("not known", first + 2, first + 2, 0)),
        ]
    )
    writer.close()

    backup.backup(kafka_settings, tmp_path / "backup", LIMITS)
    restore(tmp_path / "backup", other)

    kept = [pull.decode(key, value) for key, value in records(other, PULL_LOG)]
    assert kept == [("p", StoredMessage(b"<m>%d</m>" % n)) for n in range(2, 6)]
    assert records(other, "control") == records(kafka_settings, "control")


def test_a_backup_is_not_mixed_with_the_logs_of_an_engine(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    other, engine, folder = elsewhere(kafka_settings), Engine(tmp_path / "home"), str(tmp_path / "backup")

    def run(command: str, kafka: KafkaSettings) -> tuple[int, str]:
        variables = {
            "ARBORCAST_STACK_BROKER": "external",
            "ARBORCAST_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "ARBORCAST_KAFKA_PREFIX": kafka.prefix,
        }
        done = engine.run_here(command, folder, "--json", env=variables, check=False)
        return done.returncode, done.stderr if done.returncode else done.stdout

    with logs(kafka_settings) as log:
        log.notify("a/b")

    status, said = run("backup", kafka_settings)
    assert (status, json.loads(said)["records"]["notifications"]) == (0, 1)
    assert run("backup", kafka_settings)[0] == 1, "over an older backup"
    status, said = run("restore", kafka_settings)
    assert status == 1
    assert "notifications is not empty" in " ".join(said.split())
    status, said = run("restore", other)
    assert (status, json.loads(said)["records"]["notifications"]) == (0, 1)
    with pytest.raises(BackupError, match="is not empty"):
        restore(tmp_path / "backup", other)
    assert records(other, "notifications") == records(kafka_settings, "notifications")
