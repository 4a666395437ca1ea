"""Dead letters found, redriven and purged, in a real Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.parked import DeadLetterLog, Delivery, ParkingLog, Place, Tries
from arborcast.dispatch.operations.dead_letters import SETTLED_AFTER_S, DeadLetterAdmin, LetterConditions, letters
from arborcast.dispatch.redelivery.parked_store import ParkedStore, WaitingDelivery
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from tests.support.broker import records_in
from tests.support.command import Shell
from tests.support.dispatch_job import attempts_in, logs, subscription

pytestmark = pytest.mark.kafka

AT_MS = int(time.time() * 1000) - 3_600_000


def letter(notification: str, subscription: str = "s1", topic: str = "a/b", **more: object) -> DeadLetter:
    made = Notification(notification, TopicPath(topic), b"<x>kept</x>", AT_MS - 5)
    facts = {"state": "dead", "at_ms": AT_MS, "number": 6, "error": "server-error", "detail": "HTTP 500", "status": 500}
    return DeadLetter(subscription, f"http://r/{subscription}", made, **(facts | more))  # type: ignore[arg-type]


@pytest.fixture
def buried(kafka_settings: KafkaSettings) -> Iterator[DeadLetterLog]:
    ensure_topics(kafka_settings)
    with closing(DeadLetterLog(kafka_settings)) as log:
        yield log


def write_dead_letter(log: DeadLetterLog, *letters: DeadLetter) -> None:
    for offset, each in enumerate(letters):
        log.write_dead_letter(Delivery(each.subscription, Place(0, 0, offset)), each)
    log.settle(120)


def found(kafka: KafkaSettings, wanted: LetterConditions = LetterConditions()) -> list[str]:  # noqa: B008  # frozen
    return sorted(each.notification.id for _, each in letters(kafka, wanted.includes))


def waiting(kafka: KafkaSettings) -> list[WaitingDelivery]:
    """The deliveries that the redelivery reads for the lane of `s1`."""
    with closing(ParkedStore(None)) as store:
        for offset, each in enumerate(records_in(kafka, "parked")):
            store.apply(each.key, each.value, offset)
        return list(store.untried("s1", 10))


def test_letters_are_found_by_their_properties_and_purged(kafka_settings: KafkaSettings, buried: DeadLetterLog) -> None:
    write_dead_letter(
        buried,
        letter("n1"),
        letter("n2", "s2", error="client-error", status=410, detail="HTTP 410"),
        letter("n3", "s2", "a/c", at_ms=AT_MS + 1_000, state="expired", error="lifespan", status=0, detail="too old"),
        letter("n4"),
    )
    buried.forget(Delivery("s1", Place(0, 0, 3)))
    buried.settle(120)

    for wanted, names in (
        (LetterConditions(), ["n1", "n2", "n3"]),
        (LetterConditions(subscription="s2"), ["n2", "n3"]),
        (LetterConditions(endpoint="http://r/s1"), ["n1"]),
        (LetterConditions(notification="n3"), ["n3"]),
        (LetterConditions(topic=lambda path: path == "a/b"), ["n1", "n2"]),
        (LetterConditions(since_ms=AT_MS + 1), ["n3"]),
        (LetterConditions(until_ms=AT_MS + 1), ["n1", "n2"]),
        (LetterConditions(reason="410"), ["n2"]),
        (LetterConditions(reason="lifespan"), ["n3"]),
        (LetterConditions(reason="expired"), ["n3"]),
        (LetterConditions(reason="HTTP"), ["n1", "n2"]),
        (LetterConditions(reason="no"), []),
    ):
        assert found(kafka_settings, wanted) == names, wanted
    (_, whole) = next(letters(kafka_settings, LetterConditions(notification="n1").includes))
    assert whole == letter("n1")

    with DeadLetterAdmin(kafka_settings) as desk:
        assert desk.purge(letters(kafka_settings, LetterConditions(notification="n1").includes)) == 1
    assert found(kafka_settings) == ["n2", "n3"]
    assert [(row.notification, row.state, row.error) for row in attempts_in(kafka_settings)] == [
        ("n1", "dead", "purged")
    ]


def test_a_redriven_letter_keeps_its_place_and_has_all_tries(
    kafka_settings: KafkaSettings, buried: DeadLetterLog
) -> None:
    now_ms = int(time.time() * 1000)
    write_dead_letter(buried, letter("n1"), letter("n2", at_ms=now_ms + 3_600_000), letter("now", at_ms=now_ms))
    before_ms = int(time.time() * 1000)
    with DeadLetterAdmin(kafka_settings) as desk:
        assert desk.redrive(letters(kafka_settings, LetterConditions().includes)) == 2
    assert found(kafka_settings) == ["now"], f"it was given up less than {SETTLED_AFTER_S} s ago"
    with closing(ParkingLog(kafka_settings)) as late:  # with rows of its earlier attempts
        late.finished(Delivery("s1", Place(0, 0, 0)), tried=True)
        late.settle(120)

    first, second = waiting(kafka_settings)
    assert (first.delivery, first.tries) == (Delivery("s1", Place(0, 0, 0, redrive=AT_MS)), Tries())
    assert [first.notification.id, second.notification.id] == ["n1", "n2"]
    assert first.notification.payload == b"<x>kept</x>"
    assert first.notification.accepted_ms >= before_ms, "a new lifespan"
    assert [(row.notification, row.state, row.error, row.number) for row in attempts_in(kafka_settings)] == [
        ("n1", "parked", "redriven", 0),
        ("n2", "parked", "redriven", 0),
    ]
    assert attempts_in(kafka_settings)[0].detail == "redriven after 6 attempts, the last server-error"


def test_a_crash_during_a_redrive_keeps_the_letter(
    kafka_settings: KafkaSettings, buried: DeadLetterLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dead_letter(buried, letter("n1"))
    with monkeypatch.context() as broken, DeadLetterAdmin(kafka_settings) as desk:
        broken.setattr(DeadLetterLog, "forget", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            desk.redrive(letters(kafka_settings, LetterConditions().includes))
    assert found(kafka_settings) == ["n1"]
    with DeadLetterAdmin(kafka_settings) as desk:
        assert desk.redrive(letters(kafka_settings, LetterConditions().includes)) == 1
    assert found(kafka_settings) == []
    assert len(waiting(kafka_settings)) == 1


@pytest.mark.parametrize(("action", "left"), [("redrive", [AT_MS]), ("purge", [])])
def test_a_delivery_that_waits_beside_its_letter_ends(
    kafka_settings: KafkaSettings, buried: DeadLetterLog, action: str, left: list[int]
) -> None:
    """A crash came between the letter and the removal of the delivery, and no job has run since."""
    write_dead_letter(buried, letter("n1"))
    with closing(ParkingLog(kafka_settings)) as parking:
        parking.park(Delivery("s1", Place(0, 0, 0)), letter("n1").notification, Tries())
        parking.settle(120)
    with DeadLetterAdmin(kafka_settings) as desk:
        assert getattr(desk, action)(letters(kafka_settings, LetterConditions().includes)) == 1
    assert [each.delivery.place.redrive for each in waiting(kafka_settings)] == left


def test_two_letters_of_a_delivery_are_redriven_once(kafka_settings: KafkaSettings, buried: DeadLetterLog) -> None:
    """The second is of the run behind a crash that came before the row of the first."""
    for run in (1, 2):
        buried.write_dead_letter(Delivery("s1", Place(run, 0, 0)), letter("n1", at_ms=AT_MS + run))
    write_dead_letter(buried, letter("n1", "s2"))
    with DeadLetterAdmin(kafka_settings) as desk:
        assert desk.redrive(letters(kafka_settings, LetterConditions().includes)) == 2
    assert found(kafka_settings) == []
    assert [each.notification.id for each in waiting(kafka_settings)] == ["n1"]


@pytest.mark.parametrize(("action", "left"), [("redrive", ["n2"]), ("purge", [])])
def test_a_letter_that_another_process_redrives_is_omitted(
    kafka_settings: KafkaSettings, buried: DeadLetterLog, action: str, left: list[str]
) -> None:
    write_dead_letter(buried, letter("n1"), letter("n2"))
    everything = LetterConditions()
    with DeadLetterAdmin(kafka_settings) as desk, DeadLetterAdmin(kafka_settings) as other:
        read = list(letters(kafka_settings, everything.includes))
        assert other.redrive(letters(kafka_settings, LetterConditions(notification="n1").includes)) == 1
        with closing(ParkingLog(kafka_settings)) as parking:  # delivered
            parking.finished(waiting(kafka_settings)[0].delivery, tried=True)
            parking.settle(120)
        assert getattr(desk, action)(read) == 1
    assert [each.notification.id for each in waiting(kafka_settings)] == left
    assert [each.notification for each in attempts_in(kafka_settings)] == ["n1", "n2"]


def test_the_commands(kafka_settings: KafkaSettings, buried: DeadLetterLog, tmp_path: Path) -> None:
    run = Shell(tmp_path / "arborcast.toml", kafka_settings, "dead-letters")
    write_dead_letter(buried, letter("n1"), letter("n2", "s2", "a/c"), letter("n3", "gone"), letter("n4", topic="b"))
    with logs(kafka_settings) as log:
        log.subscribe(subscription("s1", "http://r/s1", "//."), subscription("s2", "http://r/s2", "//."))

    listed = run.json("list", "--topic", "a//.", "--limit", "2")
    assert len(listed["letters"]) == 2
    assert listed["more"] == 1
    assert "n4" in run("list", "--topic", "b")
    assert "n1" not in run("list", "--topic", "b")
    assert "<x>kept</x>" in run("show", "n2")
    assert run.json("show", "n2")["payload"] == "<x>kept</x>"

    assert "0 dead" in run("purge", "--notification", "n4", typed="n\n"), "not confirmed"
    assert run.json("purge", "--notification", "n4", "--yes") == {"purged": 1}
    assert run.json("redrive", "--yes") == {"redriven": 2, "over": 1, "too_new": 0}
    assert found(kafka_settings) == ["n3"], "its subscription is over"
