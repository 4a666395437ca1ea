"""Erasures in a real Kafka, with a real job: every copy is removed, rows stay, and an interruption loses nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from arborcast.admin import audit, dead_letters, erasures, operations, replay, waiting
from arborcast.admin.control_log import read_control
from arborcast.admin.erasures import ErasureRequest
from arborcast.admin.filters import TopicTest
from arborcast.admin.operations import OperationFilter
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.eventlog.topics import PULL_LOG, ensure_topics
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import parked
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.parked import DeadLetterLog, Delivery, Parked, ParkingLog, Place, Tried, Tries
from arborcast.dispatch.matching.view import ControlState, RoutingView
from arborcast.dispatch.operations.erasure import Eraser
from arborcast.dispatch.settings import JobSettings
from arborcast.dispatch.tables import ATTEMPTS, DEAD_LETTERS, ERASURES, NOTIFICATIONS, RETRIES
from arborcast.dispatch.tables.spec import TableSpec
from arborcast.topic_model.control_log import ControlFollower, ControlLog
from arborcast.topic_model.projections.pull_store import PullLimits, PullStore
from arborcast.topic_model.records import notifications, pull
from arborcast.topic_model.records.control import Erasure
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.operations import Operator
from arborcast.topic_model.records.pull import Claimed, StoredMessage
from arborcast.topic_model.topics import TopicPath
from tests.support.broker import records_in
from tests.support.dispatch_job import Logs, Row, attempts_in, running, subscription, wait_for_rows
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

PERSON, OTHER = b'<p id="4711">Smith</p>', b'<p id="14711">Miller</p>'


def pullable(kafka: KafkaSettings) -> list[bytes]:
    """The messages that are in pull points, or claimed."""
    store, found = PullStore(PullLimits(100, 1 << 20, 0)), {}
    for record in records_in(kafka, PULL_LOG):
        name, entry = pull.decode(record.key, record.value)
        store.apply(name, entry, record.offset)
        if isinstance(entry, StoredMessage):
            found[record.offset] = entry.element
    return [found[each] for each in sorted(store.unsettled())]


def current(kafka: KafkaSettings) -> dict[str, str]:
    """The current messages, by topic."""
    last = {record.key: record.value for record in records_in(kafka, "retained")}
    return {key.decode(): notifications.decode(value).id for key, value in last.items() if value is not None}


def done(kafka: KafkaSettings, count: int = 1) -> Erasure:
    """The latest of this number of completed erasures."""
    found = wait_until(
        lambda: len(all_ := read_control(kafka).erasures.all()) == count and all(each.done_ms for each in all_) and all_
    )
    return max(found, key=lambda each: each.done_ms)


def rows(settings: JobSettings, spec: TableSpec) -> list[Row]:
    table = DeltaTable(spec.location(settings.tables, settings.home))
    found: list[Row] = spec.read(table).to_pylist()
    return found


@pytest.mark.spark
def test_a_person_is_erased_everywhere_and_the_audit_balances(
    spark: SparkSession, settings: JobSettings, log: Logs, kafka_settings: KafkaSettings
) -> None:
    kafka = kafka_settings
    with Receiver() as receiver, running(spark, settings) as job:
        log.subscribe(
            subscription("waits", receiver.url("/status/503"), "a"),
            subscription("refuses", receiver.url("/status/400"), "a"),
            subscription("pulls", "http://broker.example/p", "a", pull_point="p"),
            subscription("works", receiver.url("/works"), "a"),
        )
        person, other = log.notify("a", PERSON), log.notify("a", OTHER)
        with closing(LogWriter(kafka, "retained")) as retained:
            for name, topic, payload in ((person, "a", PERSON), (other, "b", OTHER)):
                made = Notification(name, TopicPath(topic), payload, int(time.time() * 1000) - 1)
                retained.append_encoded([notifications.encode(made)])
        wait_until(lambda: len(dead_letters.listed(kafka, dead_letters.LetterFilter(), 10).letters) == 2)
        wait_until(lambda: len(waiting.oldest(kafka, waiting.WaitingFilter(), 10).waiting) == 2)
        wait_until(lambda: len(pullable(kafka)) == 2)
        wait_for_rows(settings, NOTIFICATIONS, lambda them: {person, other} <= {row["notification"] for row in them})

        requested = erasures.erase(kafka, ErasureRequest(subject="4711"), Operator("command", "ann@here"))
        assert all(at_ms > time.time() * 1000 for at_ms in requested.kept_until_ms.values())
        erased = done(kafka)

        assert erased.erased == {
            "notifications": 1,
            "waiting": 1,
            "dead_letters": 1,
            "pull_points": 1,
            "current_messages": 1,
        }
        assert [each.notification for each in waiting.oldest(kafka, waiting.WaitingFilter(), 10).waiting] == [other]
        letters = dead_letters.listed(kafka, dead_letters.LetterFilter(), 10).letters
        assert [each.notification for each in letters] == [other]
        (left,) = pullable(kafka)
        assert b"14711" in left
        assert current(kafka) == {"b": other}
        archived = {row["notification"]: row for row in rows(settings, NOTIFICATIONS)}
        assert (archived[person]["payload"], archived[person]["erased"]) == (b"", erased.scope.id)
        assert archived[person]["payload_bytes"] == len(PERSON)
        assert (archived[other]["payload"], archived[other]["erased"]) == (OTHER, None)
        for spec in (RETRIES, DEAD_LETTERS):
            assert [row["notification"] for row in rows(settings, spec)] == [other], spec.name
        (row,) = wait_for_rows(settings, ERASURES, lambda them: them and them[0]["done_at"])
        assert (row["requested_by"], row["waiting"], row["erasure"]) == ("ann@here", 1, erased.scope.id)
        assert "4711" not in str(row)
        ((recorded,), _) = operations.listed(kafka, OperationFilter(), 10)
        assert (recorded.actor, recorded.action, recorded.result) == ("ann@here", "erase", "requested")
        assert (recorded.subject, row["subject_sha256"] in recorded.after) == (erased.scope.id, True)
        assert "4711" not in str(recorded)
        report = audit.audit(kafka, 0, deep=True)
        assert (report.problems, report.totals.cancelled) == ([], 1)

        planned = replay.plan(kafka, "works", 0, None, TopicTest(), 10)
        assert len(planned.places) == 1, "in the log, and not replayed"
        after = log.notify("a", PERSON)
        wait_until(lambda: len(receiver.names("/works")) == 3)
        assert receiver.names("/works") == [person, other, after], "an erasure covers only the past"
        job.restart()
        assert current(kafka) == {"b": other}


@pytest.mark.spark
def test_undispatched_messages_and_the_beginning_of_the_log(
    spark: SparkSession, settings: JobSettings, log: Logs, kafka_settings: KafkaSettings
) -> None:
    kafka = kafka_settings
    log.subscribe(subscription("p", "http://b/p", "a", pull_point="p"))
    with Receiver() as receiver:
        log.subscribe(subscription("s", receiver.url("/s"), "a"))
        person, other = log.notify("a", PERSON), log.notify("a", OTHER)
        erasures.erase(kafka, ErasureRequest(notification=person))
        with running(spark, settings) as job:
            assert receiver.wait_for(1, "/s")
            first = done(kafka)
            found = wait_for_rows(settings, ATTEMPTS, lambda them: len(them) == 4)
            assert {(row["notification"], row["state"], row["error"]) for row in found} == {
                (person, "cancelled", "erased"),
                (other, "delivered", ""),
            }
            archived = wait_for_rows(
                settings, NOTIFICATIONS, lambda them: {person, other} <= {row["notification"] for row in them}
            )
            assert {(person, b""), (other, OTHER)} <= {(row["notification"], row["payload"]) for row in archived}
            assert len(pullable(kafka)) == 1

            # The job continues after the deletion of the beginning of its log.
            time.sleep(1.1)
            erasures.erase(kafka, ErasureRequest(before="1s"))
            erased = done(kafka, 2)
            assert erased.scope.id != first.scope.id
            assert records_in(kafka, "notifications") == []
            # Kafka closes its active segment after a day.
            assert erased.kept_until_ms[kafka.topic("notifications")] < erased.done_ms + 25 * 3_600_000
            second = log.notify("a", OTHER)
            wait_until(lambda: receiver.names("/s") == [other, second])
            job.restart()
            third = log.notify("a", OTHER)
            wait_until(lambda: receiver.names("/s") == [other, second, third])
            wait_until(lambda: not audit.audit(kafka, 0).waiting)
            report = audit.audit(kafka, 0, deep=True)
    assert (report.problems, report.totals.delivered) == ([], 6)
    assert report.notes[-1].startswith("2 notifications are deleted from the notifications log")


@pytest.fixture
def view(kafka_settings: KafkaSettings) -> Iterator[RoutingView]:
    """The control log as the job reads it."""
    ensure_topics(kafka_settings)
    state: Any = ControlState()
    with closing(ControlFollower(kafka_settings, state.apply)) as follower:
        state.catch_up = follower.read_to_end
        yield state


def message(name: str, payload: bytes = PERSON, age_ms: int = 60_000) -> Notification:
    return Notification(name, TopicPath("a"), payload, int(time.time() * 1000) - age_ms)


def park(kafka: KafkaSettings, offset: int, payload: bytes = PERSON) -> None:
    """`nOFFSET`, tried twice, for `s1`."""
    now_ms = int(time.time() * 1000)
    with closing(ParkingLog(kafka)) as parking:
        delivery = Delivery("s1", Place(1, 0, offset))
        parking.park(delivery, message(f"n{offset}", payload), Tries(2, 2, now_ms, now_ms))
        parking.settle(60)


def eraser(
    kafka: KafkaSettings,
    view: RoutingView,
    folder: Path,
    log: ControlLog,
    settled: Callable[[], Mapping[int, int]] | None = None,
) -> Eraser:
    """An eraser whose job has settled all notifications, or those up to these offsets."""

    def all_settled() -> Mapping[int, int]:
        with LogScan(kafka, "notifications") as scan:
            return scan.ends()

    places = (lambda spec: str(folder / spec.name),)
    return Eraser(kafka, view, settled or all_settled, log.append, *places, archive=False, unused_files_hours=1)


def test_an_interrupted_erasure_continues_in_the_next_job(
    kafka_settings: KafkaSettings, view: RoutingView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka, now_ms = kafka_settings, int(time.time() * 1000)
    park(kafka, 1)
    with closing(DeadLetterLog(kafka)) as dead:
        letter = DeadLetter("s2", "http://r/", message("n1"), "dead", now_ms, 1, "client-error", "HTTP 400", 400)
        dead.write_dead_letter(Delivery("s2", Place(1, 0, 1)), letter)
        dead.settle(60)
    with closing(LogWriter(kafka, PULL_LOG)) as pulled:
        stored = StoredMessage(b"<m><id>4711</id></m>", "n1", "s3", now_ms - 5)
        offset = pulled.append_encoded([pull.encode("p", stored)])
        pulled.append_encoded([pull.encode("p", Claimed("c", offset, offset, now_ms + 60_000))])
    erasures.erase(kafka, ErasureRequest(subject="4711"))

    with closing(ControlLog(kafka)) as log:
        first = eraser(kafka, view, tmp_path, log)
        with monkeypatch.context() as away:
            away.setattr(Eraser, "_current_messages", mock.Mock(side_effect=InfrastructureError("Kafka is away")))
            with pytest.raises(InfrastructureError):
                first.step()
        assert [each.done_ms for each in read_control(kafka).erasures.all()] == [0]
        assert waiting.oldest(kafka, waiting.WaitingFilter(), 10).waiting == ()

        second = eraser(kafka, view, tmp_path, log)
        second.step()
        assert not read_control(kafka).erasures.all()[0].done_ms, "a client has claimed the message of the pull point"
        with closing(LogWriter(kafka, PULL_LOG)) as pulled:
            pulled.append_encoded([pull.encode("p", pull.Returned("c"))])
        second.step()
        assert pullable(kafka) == []
        second.step()
        (erased,) = read_control(kafka).erasures.all()
        assert erased.done_ms
        assert erased.erased == {"waiting": 1, "dead_letters": 1, "pull_points": 1}
        passes = len(records_in(kafka, "control"))
        second.step()
        assert len(records_in(kafka, "control")) == passes, "nothing is left to do"
    assert [(row.subscription, row.state, row.error) for row in attempts_in(kafka)] == [
        ("s1", "cancelled", "erased"),
        ("s2", "dead", "purged"),
    ]


def test_the_covered_beginning_of_the_log_is_deleted(
    kafka_settings: KafkaSettings, view: RoutingView, tmp_path: Path
) -> None:
    kafka, now_ms = kafka_settings, int(time.time() * 1000)

    def left() -> list[str]:
        return [notifications.decode(each.value or b"").id for each in records_in(kafka, "notifications")]

    with closing(LogWriter(kafka, "notifications")) as writer:
        for name, age_ms in (("n1", 10_000), ("n2", 10_000), ("n3", -60_000), ("n4", 10_000)):
            writer.append_encoded([notifications.encode(message(name, age_ms=age_ms))])
    topic, latest_ms = kafka.topic("notifications"), now_ms + kafka.retention_hours * 3_600_000
    with closing(ControlLog(kafka)) as log:
        made = eraser(kafka, view, tmp_path, log)
        for request in (ErasureRequest(before="5s", topic=TopicTest("b")), ErasureRequest(before="5s")):
            erasures.erase(kafka, request)
            made.step()
        with_topic, without = reversed(read_control(kafka).erasures.all())
        assert left() == ["n3", "n4"], "Kafka deletes only the beginning of a log"
        assert with_topic.kept_until_ms[topic] > latest_ms
        assert without.kept_until_ms[topic] > latest_ms, "n4 stays until its retention ends"

        scope = msgspec.structs.replace(without.scope, id="all", before_ms=now_ms + 120_000)
        with LogScan(kafka, "notifications") as scan:
            settled = {number: max(0, end - 1) for number, end in scan.ends().items()}
        assert not eraser(kafka, view, tmp_path, log, lambda: settled)._cut(scope)
        assert left() == ["n4"], "the job reads it at its start"
        assert made._cut(scope), "no covered record is left"
        assert left() == []
        assert not made._cut(with_topic.scope)


def test_a_further_pass_reads_only_newly_parked_records(
    kafka_settings: KafkaSettings, view: RoutingView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = kafka_settings
    read: list[str] = []
    decode = parked.decode

    def counted(value: bytes) -> Parked | Tried:
        entry = decode(value)
        read.extend([entry.notification.id] if isinstance(entry, Parked) else [])
        return entry

    monkeypatch.setattr(parked, "decode", counted)

    park(kafka, 1)
    park(kafka, 2, OTHER)
    erasures.erase(kafka, ErasureRequest(subject="4711"))
    with closing(ControlLog(kafka)) as log:
        made = eraser(kafka, view, tmp_path, log)
        made.step()
        assert read == ["n1", "n2"]
        park(kafka, 3)  # by a worker that read it before the erasure
        made.step()
        assert read == ["n1", "n2", "n3"]
        erasures.erase(kafka, ErasureRequest(subject="14711"))
        made.step()
        assert read[3:].count("n2") == 1, "another erasure reads all"
    assert waiting.oldest(kafka, waiting.WaitingFilter(), 10).waiting == ()


def test_a_message_that_becomes_current_during_an_erasure_stays(
    kafka_settings: KafkaSettings, view: RoutingView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = kafka_settings
    erasures.erase(kafka, ErasureRequest(topic=TopicTest("a")))
    old, new = message("old"), message("new", age_ms=-60_000)
    with closing(LogWriter(kafka, "retained")) as writer:
        writer.append_encoded([notifications.encode(old)])
    append = LogWriter.append_encoded

    def beside(self: LogWriter, encoded: list[tuple[bytes, bytes | None]]) -> int:
        if encoded == [(b"a", None)]:
            append(self, [notifications.encode(new)])  # by a publisher, just before the tombstone
        return append(self, encoded)

    monkeypatch.setattr(LogWriter, "append_encoded", beside)
    with closing(ControlLog(kafka)) as log:
        eraser(kafka, view, tmp_path, log).step()
    assert current(kafka) == {"a": "new"}
