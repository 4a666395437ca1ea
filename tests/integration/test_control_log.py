"""The control log over a real broker."""

from __future__ import annotations

import dataclasses
import threading
from contextlib import closing, suppress

import pytest
from kafka.admin import KafkaAdminClient

from arborcast.core.errors import ConfigError, InfrastructureError, RecordVersionError
from arborcast.core.eventlog.client import Admin, make_producer
from arborcast.core.eventlog.topics import ensure_topics, for_existing_records
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.parked import Delivery, ParkingLog, Place, Tries
from arborcast.engine.embedded.kafka_broker import answers
from arborcast.topic_model.control_log import ControlFollower, ControlLog
from arborcast.topic_model.records import control
from arborcast.topic_model.records.control import ControlRecord, SubscriptionRecord, Tombstone, TopicRecord
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support import make
from tests.support.broker import BrokerProcess, settings_for
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka


def subscription(number: int) -> SubscriptionRecord:
    return SubscriptionRecord(Subscription(id=f"s{number}", consumer=EndpointReference("http://h/")))


def topic(number: int) -> TopicRecord:
    return TopicRecord(TopicPath(f"t{number}"))


@pytest.fixture
def log(kafka_settings: KafkaSettings) -> ControlLog:
    log = ControlLog(kafka_settings)
    log.ensure_created()
    return log


def read_all(settings: KafkaSettings) -> list[ControlRecord]:
    seen: list[ControlRecord] = []
    with closing(ControlFollower(settings, lambda record, _: seen.append(record))) as follower:
        follower.read_to_end(120)
    return seen


def test_records_come_back_in_order_with_their_offsets(kafka_settings: KafkaSettings, log: ControlLog) -> None:
    assert read_all(kafka_settings) == []
    assert log.append([topic(1), subscription(1)]) == 1
    assert log.append([Tombstone("sub:s1")]) == 2
    seen: list[tuple[ControlRecord, int]] = []
    follower = ControlFollower(kafka_settings, lambda record, offset: seen.append((record, offset)))
    assert follower.read_to_end(120) == 3
    assert seen == [(topic(1), 0), (subscription(1), 1), (Tombstone("sub:s1"), 2)]
    assert follower.read_to_end(120) == 3
    log.append([topic(2)])
    assert follower.poll(10) == 1
    assert follower.position == 4
    follower.close()
    log.close()


def test_records_of_one_append_stay_together(kafka_settings: KafkaSettings, log: ControlLog) -> None:
    def write(writer: int) -> None:
        for _ in range(20):
            log.append([topic(writer)] * 5)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    control = read_all(kafka_settings)
    assert len(control) == 4 * 20 * 5
    groups = [control[start : start + 5] for start in range(0, len(control), 5)]
    assert all(len({str(record) for record in group}) == 1 for group in groups)
    log.close()


def test_topics_are_created_once_and_foreign_ones_are_refused(kafka_settings: KafkaSettings, log: ControlLog) -> None:
    log.ensure_created()
    admin = Admin(kafka_settings)
    configs = admin.configs(kafka_settings.topic("control"))
    assert configs["cleanup.policy"] == "compact"
    assert configs["min.compaction.lag.ms"] == "86400000"
    expected = {kafka_settings.topic("control"): 1, kafka_settings.topic("attempts"): kafka_settings.partitions}
    partitions = admin.partitions([*expected, kafka_settings.topic("absent")])
    assert {name: len(states) for name, states in partitions.items()} == expected
    assert admin.configs(kafka_settings.topic("notifications"))["retention.ms"] == str(168 * 3_600_000)

    other = dataclasses.replace(kafka_settings, prefix=kafka_settings.prefix + "other.")
    admin.create_topics({other.topic("control"): (1, 1, {"cleanup.policy": "delete"})})
    with pytest.raises(ConfigError, match=r"cleanup\.policy=delete, compact is needed"):
        ensure_topics(other)
    admin.close()


@pytest.mark.parametrize("lost", ["control", "parked"])
def test_a_lost_topic_is_not_created_empty_beside_notifications(kafka_settings: KafkaSettings, lost: str) -> None:
    kafka = dataclasses.replace(kafka_settings, prefix=f"{kafka_settings.prefix}{lost}.")
    ensure_topics(kafka, only=["notifications"])
    ensure_topics(kafka)  # as after a start that was cut off
    with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)) as admin, closing(Admin(kafka)) as ours:
        admin.delete_topics([kafka.topic(lost)])
        wait_until(lambda: not ours.partitions([kafka.topic(lost)]))
        with closing(LogWriter(kafka, "notifications")) as log:
            log.append_encoded([(b"a", b"x")])
        with pytest.raises(ConfigError, match=rf"{lost} does not exist, although .*notifications has notifications"):
            ensure_topics(kafka)
        assert not ours.partitions([kafka.topic(lost)])
        configs = {"cleanup.policy": "compact", "max.message.bytes": str(2 * kafka.max_record_bytes)}
        ours.create_topics({kafka.topic(lost): (1, 1, configs)})
        ensure_topics(kafka)


def test_existing_topics_get_a_changed_configuration_on_request(kafka_settings: KafkaSettings) -> None:
    ensure_topics(kafka_settings)
    changed = dataclasses.replace(kafka_settings, retention_hours=1)
    notifications = kafka_settings.topic("notifications")
    with closing(Admin(kafka_settings)) as admin:

        def configured() -> list[str]:
            configs = admin.configs(notifications)
            return [configs[key] for key in ("retention.ms", "segment.ms", "segment.bytes")]

        before = [str(168 * 3_600_000), str(24 * 3_600_000), str(1024**3)]
        admin.alter(notifications, {"segment.bytes": before[2]})
        ensure_topics(changed)
        wait_until(lambda: configured() == before)
        ensure_topics(changed, alter=True)
        wait_until(lambda: configured() == ["3600000", "3600000", str(256 * 1024**2)])
        with pytest.raises(InfrastructureError, match=r"could not be changed: .*retention\.ms"):
            admin.alter(notifications, {"retention.ms": "-7"})


def test_larger_records_than_a_reduced_limit_can_be_parked(kafka_settings: KafkaSettings) -> None:
    reduced = dataclasses.replace(kafka_settings, max_record_bytes=100_000)
    assert for_existing_records(reduced) == reduced, "without logs"
    ensure_topics(kafka_settings)
    ensure_topics(reduced, alter=True)
    assert for_existing_records(reduced) == kafka_settings
    with closing(ParkingLog(for_existing_records(reduced))) as log:
        message = make.notification(payload=b"<m>" + b"x" * 200_000 + b"</m>")
        log.park(Delivery("s", Place(1, 0, 1)), message, Tries())
        log.settle(120)
    raised = dataclasses.replace(kafka_settings, max_record_bytes=kafka_settings.max_record_bytes + 1)
    assert for_existing_records(raised) == raised
    ensure_topics(raised, alter=True)
    wait_until(lambda: for_existing_records(reduced) == raised)


def test_a_missing_log_is_a_retryable_error(kafka_settings: KafkaSettings) -> None:
    follower = ControlFollower(kafka_settings, lambda *_: None)
    with pytest.raises(InfrastructureError, match="does not exist yet") as caught:
        follower.read_to_end(5)
    assert caught.value.retry_after is not None
    log = ControlLog(kafka_settings)
    log.ensure_created()
    log.append([topic(1)])
    assert follower.read_to_end(120) == 1
    follower.close()
    log.close()


def test_after_the_upgrade_a_follower_continues_at_its_position(
    kafka_settings: KafkaSettings, log: ControlLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = control.VERSION + 1
    log.append([topic(1)])
    with closing(make_producer(kafka_settings)) as producer:
        value = b'{"v":%d,"record":{"type":"topic","path":"newer"}}' % newer
        producer.send(kafka_settings.topic("control"), value=value, key=b"topic:newer")
        producer.flush(120)
    log.append([topic(2)])
    seen: list[ControlRecord] = []
    follower = ControlFollower(kafka_settings, lambda record, _: seen.append(record))
    for _ in range(2):  # a second attempt does not skip it
        with pytest.raises(RecordVersionError, match=rf"version {newer}.*upgrade.*offset 1 of"):
            follower.read_to_end(120)
        assert (seen, follower.position) == ([topic(1)], 1)

    monkeypatch.setattr(control._codec.codec, "version", newer)
    follower.read_to_end(120)

    assert seen == [topic(1), TopicRecord(TopicPath("newer")), topic(2)]
    follower.close()
    log.close()


def test_a_missing_broker_fails_in_time_and_leaves_no_threads() -> None:
    nowhere = KafkaSettings(bootstrap_servers="127.0.0.1:1", request_timeout_s=1)
    log = ControlLog(nowhere)
    follower = ControlFollower(nowhere, lambda *_: None)
    before = threading.active_count()
    for _ in range(2):
        with pytest.raises(InfrastructureError) as appended:
            log.append([topic(1)])
        with pytest.raises(InfrastructureError) as read:
            follower.read_to_end(1)
    assert appended.value.retry_after is not None
    assert read.value.retry_after is not None
    assert threading.active_count() == before


@pytest.mark.chaos
def test_log_and_clients_survive_a_kill_and_a_stop_of_the_broker(own_broker: BrokerProcess) -> None:
    settings = dataclasses.replace(settings_for(own_broker), request_timeout_s=2)
    log = ControlLog(settings)
    log.ensure_created()
    seen: list[ControlRecord] = []
    follower = ControlFollower(settings, lambda record, _: seen.append(record))
    log.append([topic(1)])
    follower.read_to_end(120)

    own_broker.kill()
    assert not answers(own_broker.layout.port)
    for _ in range(2):
        with pytest.raises(InfrastructureError) as caught:
            log.append([topic(2)])
        assert caught.value.retry_after is not None
        with pytest.raises(InfrastructureError):
            follower.read_to_end(1)
        assert follower.poll(0.1) == 0

    own_broker.start()

    def appended() -> int:
        with suppress(InfrastructureError):
            return log.append([topic(3)])
        return 0

    last = wait_until(appended)
    assert follower.read_to_end(120) == last + 1
    # Refused records may or may not be stored; acknowledged ones are, in order.
    assert [record for record in seen if record != topic(2)] == [topic(1), topic(3)]
    own_broker.stop()
    own_broker.start()
    assert read_all(settings) == seen
    follower.close()
    log.close()
