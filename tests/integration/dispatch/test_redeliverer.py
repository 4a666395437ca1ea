"""The redelivery with a real broker and real HTTP: restarts, a lost file, an outage of the broker."""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kafka.admin import KafkaAdminClient

from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import dead_letters, parked
from arborcast.dispatch.logs.parked import Delivery, ParkingLog, Place, Tries, with_parked_overhead
from arborcast.dispatch.matching.view import ControlState
from arborcast.dispatch.redelivery.events import OperatorEvent
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.dispatch.redelivery.redeliverer import Redeliverer
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.control_log import ControlFollower, ControlLog
from arborcast.topic_model.records.control import ControlRecord, SubscriptionEnded, SubscriptionSuspended, Tombstone
from arborcast.topic_model.records.results import Result, State, encode, read_promise
from arborcast.topic_model.subscriptions import Subscription
from tests.support import make
from tests.support.broker import BrokerProcess, add_partitions, records_in, settings_for
from tests.support.dispatch_job import attempts_in
from tests.support.make import known_to_redelivery
from tests.support.outbound import THIS_MACHINE
from tests.support.receiver import NOTIFICATION_ID, Receiver
from tests.support.sealed import SECRET_OPENER
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

QUICK = RetrySettings(first_wait_s=0.1, first_probe_s=0.05, longest_probe_s=0.2, jitter=0.0)


def known_of(kafka: KafkaSettings, *subscriptions: Subscription) -> Any:
    """Subscriptions set by the test; ended and suspended ones from the control log."""
    state = ControlState()
    follower = ControlFollower(kafka, lambda record, _: state.apply(record))
    found = known_to_redelivery(state, *subscriptions)
    found.catch_up = follower.read_to_end
    return found


def subscription(name: str, url: str) -> Subscription:
    return make.subscription(name, url=url, address=f"http://gateway/wsn/subscriptions/{name}", form="raw")


class Lot:
    """Parks deliveries as a batch does."""

    def __init__(self, log: ParkingLog) -> None:
        self.log = log
        self.place = 0

    def park(self, name: str, *notifications: str) -> None:
        for each in notifications:
            self.place += 1
            message = make.notification(each, accepted_ms=int(time.time() * 1000))
            self.log.park(Delivery(name, Place(1, 0, self.place)), message, Tries())
        self.log.settle(120)


@pytest.fixture
def lot(kafka_settings: KafkaSettings) -> Iterator[Lot]:
    ensure_topics(kafka_settings)
    with closing(ParkingLog(kafka_settings)) as log:
        yield Lot(log)


@contextmanager
def running(
    kafka: KafkaSettings,
    file: Path,
    known: Any,
    publish_event: Callable[[OperatorEvent], None] = lambda event: None,
    retry: RetrySettings = QUICK,
) -> Iterator[Redeliverer]:
    push = PushSettings(callback_s=60.0)
    redeliverer = Redeliverer(kafka, push, retry, THIS_MACHINE, known, file, SECRET_OPENER, publish_event)
    redeliverer.start(60)
    try:
        yield redeliverer
    finally:
        redeliverer.stop(120)


def read(kafka: KafkaSettings, log: str) -> list[tuple[bytes, bytes | None]]:
    """All current records of a log."""
    return [(record.key, record.value) for record in records_in(with_parked_overhead(kafka), log)]


def delivered(kafka: KafkaSettings) -> int:
    return sum(row.state == "delivered" for row in attempts_in(kafka))


def waiting(kafka: KafkaSettings) -> set[bytes]:
    """The keys of the `parked` log that compaction keeps."""
    last = dict(read(kafka, "parked"))
    return {key for key, value in last.items() if value is not None}


def control(kafka: KafkaSettings) -> list[ControlRecord]:
    records: list[ControlRecord] = []
    with closing(ControlFollower(kafka, lambda record, offset: records.append(record))) as follower:
        follower.read_to_end(120)
    return records


@pytest.mark.parametrize("file", ["kept", "lost", "spoilt"])
def test_a_restart_with_a_kept_lost_or_spoilt_file(
    kafka_settings: KafkaSettings, lot: Lot, tmp_path: Path, file: str
) -> None:
    names = [f"n{number}" for number in range(30)]
    path = tmp_path / "parked.db"
    with Receiver() as receiver:
        known = known_of(kafka_settings, subscription("s", receiver.url("/s")))
        receiver.behave("/s", "status/503")
        with running(kafka_settings, path, known) as redeliverer:
            lot.park("s", *names)
            redeliverer.catch_up(120)
            wait_until(lambda: redeliverer.health.get(receiver.url("/s")).breaker != "closed")
        tried = len(receiver.received("/s"))
        if file == "lost":
            path.unlink()
        elif file == "spoilt":
            path.write_bytes(b"torn" * 4_096)

        receiver.behave("/s", "status/202")
        with running(kafka_settings, path, known) as redeliverer:
            assert redeliverer.health.get(receiver.url("/s")).degraded == (file == "kept")
            redeliverer.batch_done([PartitionReport(reach=lot.log.held.take_reach())])
            wait_until(lambda: not redeliverer.lanes.for_workers()[0] and redeliverer.statistics().parked == 0)
            wait_until(lambda: delivered(kafka_settings) == len(names))
        after = receiver.names("/s")[tried:]

    assert sorted(after, key=names.index) == names
    written = attempts_in(kafka_settings)
    assert {row.notification: row.state for row in written} == dict.fromkeys(names, "delivered")
    assert {row.batch for row in written} == {-1}
    numbers = [row.number for row in written if row.notification == "n0"]
    assert numbers == list(range(1, len(numbers) + 1))
    assert waiting(kafka_settings) == set()


def test_partitions_added_while_deliveries_wait(kafka_settings: KafkaSettings, lot: Lot, tmp_path: Path) -> None:
    """Each is pushed once and in order, also by a start that reads the log from its beginning."""
    path, names = tmp_path / "parked.db", [f"s{number}" for number in range(6)]
    with Receiver() as receiver:
        subscriptions = [subscription(each, receiver.url(f"/{each}")) for each in names]
        paused = known_of(kafka_settings, *(msgspec.structs.replace(each, paused=True) for each in subscriptions))
        with running(kafka_settings, path, paused):
            for each in names:
                lot.park(each, *(f"{each}-{number}" for number in range(20)))
        add_partitions(kafka_settings, "parked", 9)

        with running(kafka_settings, path, paused) as redeliverer, closing(ParkingLog(kafka_settings)) as log:
            later = Lot(log)
            later.place = lot.place
            for each in names:
                later.park(each, f"{each}-20")
            redeliverer.catch_up(120)
            assert redeliverer.statistics().parked == 21 * len(names)
        known = known_of(kafka_settings, *subscriptions)
        for _ in range(2):
            with running(kafka_settings, path, known) as redeliverer:
                wait_until(lambda: redeliverer.statistics().parked == 0 and not redeliverer.lanes.for_workers()[0])
            path.unlink()
        for each in names:
            assert receiver.names(f"/{each}") == [f"{each}-{number}" for number in range(21)]
    assert waiting_by_partition(kafka_settings) == set()


def waiting_by_partition(kafka: KafkaSettings) -> set[tuple[int, bytes]]:
    """As `waiting`, but compaction is by partition: a null in another one removes nothing."""
    last = {
        (record.partition, record.key): record.value for record in records_in(with_parked_overhead(kafka), "parked")
    }
    return {place for place, value in last.items() if value is not None}


def test_the_file_of_another_log_of_the_same_name_is_not_used(
    kafka_settings: KafkaSettings, lot: Lot, tmp_path: Path
) -> None:
    """The log was created again, or is in another cluster, and is longer than the first one was."""
    path = tmp_path / "parked.db"
    with Receiver() as receiver:
        to = subscription("s", receiver.url("/s"))
        paused = known_of(kafka_settings, msgspec.structs.replace(to, paused=True))
        with running(kafka_settings, path, paused) as redeliverer:
            lot.park("s", "first-0", "first-1")
            redeliverer.catch_up(120)
        recreate(kafka_settings, "parked")
        names = [f"second-{number}" for number in range(5)]
        with closing(ParkingLog(kafka_settings)) as log:
            Lot(log).park("s", *names)
        with running(kafka_settings, path, known_of(kafka_settings, to)) as redeliverer:
            wait_until(lambda: redeliverer.statistics().parked == 0)
        assert receiver.names("/s") == names


def recreate(kafka: KafkaSettings, log: str) -> None:
    def is_gone() -> bool:
        return kafka.topic(log) not in admin.list_topics()

    with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)) as admin:
        admin.delete_topics([kafka.topic(log)])
        wait_until(is_gone, "the topic is deleted")
    ensure_topics(kafka)


def test_an_outage_of_the_broker_loses_nothing(own_broker: BrokerProcess, tmp_path: Path) -> None:
    kafka = settings_for(own_broker)
    ensure_topics(kafka)
    names = [f"n{number}" for number in range(400)]
    with Receiver() as receiver, closing(ParkingLog(kafka)) as log:
        lot = Lot(log)
        known = known_of(kafka, *(subscription(f"s{n}", receiver.url(f"/s{n}")) for n in range(4)))
        for number in range(4):
            receiver.behave(f"/s{number}", "slow/0.02")
        with running(kafka, tmp_path / "parked.db", known) as redeliverer:
            for number in range(4):
                lot.park(f"s{number}", *names[number * 100 : number * 100 + 50])
            wait_until(lambda: len(receiver.requests) > 40)
            own_broker.kill()
            own_broker.start()
            for number in range(4):
                lot.park(f"s{number}", *names[number * 100 + 50 : number * 100 + 100])
            redeliverer.catch_up(60)
            wait_until(lambda: redeliverer.statistics().parked == 0 and redeliverer.statistics().lanes == 0)
        for number in range(4):
            first_times = list(dict.fromkeys(receiver.names(f"/s{number}")))
            assert first_times == names[number * 100 : number * 100 + 100]
    last = {row.notification: row.state for row in attempts_in(kafka)}
    assert last == dict.fromkeys(names, "delivered")
    assert waiting(kafka) == set()


def test_dead_letters_and_ended_or_suspended_subscriptions(
    kafka_settings: KafkaSettings, lot: Lot, tmp_path: Path
) -> None:
    events: list[OperatorEvent] = []
    retry = dataclasses.replace(QUICK, suspend_after_s=1.0)
    with Receiver() as receiver:
        known = known_of(
            kafka_settings,
            subscription("bad", receiver.url("/status/400")),
            subscription("gone", receiver.url("/status/410")),
            subscription("away", receiver.url("/away")),
        )
        receiver.behave("/away", "status/503")
        with running(kafka_settings, tmp_path / "parked.db", known, events.append, retry) as redeliverer:
            lot.park("bad", "n1")
            lot.park("gone", "n2", "n3")
            lot.park("away", "n4", "n5")
            wait_until(lambda: "subscription-suspended" in {event.kind for event in events})
            receiver.behave("/away", "")
            redeliverer.catch_up(120)
            seen = len(receiver.received("/away"))
            lot.park("away", "n6")
            redeliverer.catch_up(120)
            wait_until(lambda: len(read(kafka_settings, "dead")) == 1 and redeliverer.statistics().parked == 3)
            assert len(receiver.received("/away")) == seen
            written = control(kafka_settings)
            assert [each.id for each in written if isinstance(each, SubscriptionSuspended)] == ["away"]
            ended = [(each.id, each.reason) for each in written if isinstance(each, SubscriptionEnded)]
            assert ended == [("gone", "gone")]

            with closing(ControlLog(kafka_settings)) as log:
                log.append([Tombstone.of("susp", "away")])
            wait_until(lambda: delivered(kafka_settings) == 3)

    ((key, value),) = read(kafka_settings, "dead")
    assert value is not None
    letter = dead_letters.decode(value)
    assert parked.decode_key(key) == (Delivery("bad", Place(1, 0, 1)), False)
    assert (letter.notification.payload, letter.state, letter.status) == (b"<x/>", "dead", 400)
    states = {(row.subscription, row.notification): row.state for row in attempts_in(kafka_settings)}
    assert states == {
        ("bad", "n1"): "dead",
        **{("gone", each): "cancelled" for each in ("n2", "n3")},
        **{("away", each): "delivered" for each in ("n4", "n5", "n6")},
    }
    kinds = {event.kind for event in events}
    assert {"dead-letters-growing", "subscription-gone", "subscription-suspended"} <= kinds
    assert waiting(kafka_settings) == set()
    assert {key for key, value in dict(read(kafka_settings, "control")).items() if value is not None} == set()


@pytest.mark.parametrize("file", ["kept", "lost"])
def test_a_later_result_counts_also_when_the_job_was_stopped(
    kafka_settings: KafkaSettings, lot: Lot, tmp_path: Path, file: str
) -> None:
    path = tmp_path / "parked.db"
    with Receiver() as receiver, closing(LogWriter(kafka_settings, "results")) as log:

        def say(notification: str, state: State) -> None:
            (push,) = [each for each in receiver.received("/s") if each.headers[NOTIFICATION_ID] == notification]
            promise = read_promise(push.headers["arborcast-callback"].rpartition("/")[2], SECRET_OPENER.keys)
            log.append_encoded([encode(Result(promise, state, promise.started_ms + 500, "so it is"))])

        known = known_of(kafka_settings, subscription("s", receiver.url("/s")))
        receiver.behave("/s", "later")
        with running(kafka_settings, path, known):
            lot.park("s", "well", "done", "failed")
            wait_until(lambda: len(attempts_in(kafka_settings)) == 3)
            say("well", "delivered")
            wait_until(lambda: delivered(kafka_settings) == 1)
        say("done", "delivered")
        say("failed", "failed")
        if file == "lost":
            path.unlink()
        receiver.behave("/s", "")
        with running(kafka_settings, path, known):
            wait_until(lambda: delivered(kafka_settings) == 3)
        assert receiver.names("/s") == ["well", "done", "failed", "failed"]
    found: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
    for row in attempts_in(kafka_settings):
        found[row.notification].append((row.state, row.error, row.number))
    assert found == {
        "well": [("parked", "later", 1), ("delivered", "", 1)],
        "done": [("parked", "later", 1), ("delivered", "", 1)],
        "failed": [("parked", "later", 1), ("parked", "reported", 1), ("delivered", "", 2)],
    }
    assert waiting(kafka_settings) == set()
