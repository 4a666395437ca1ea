"""From notifications to lanes, and from answers to rows: exclusions, places, the buffer, decisions."""

from __future__ import annotations

from collections.abc import Container, Iterable

import pytest

from arborcast.dispatch.delivery.health import Sign
from arborcast.dispatch.delivery.outcomes import classify
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult
from arborcast.dispatch.delivery.verdict import Push
from arborcast.dispatch.hot import intake
from arborcast.dispatch.hot.batch_outcomes import BatchOutcomes
from arborcast.dispatch.hot.hold_buffer import HoldBuffer
from arborcast.dispatch.hot.intake import HELD, Exclusions
from arborcast.dispatch.hot.pump import PumpRun
from arborcast.dispatch.hot.recovered import NOTHING, RecoveredDeliveries, StartState
from arborcast.dispatch.logs.parked import Place, Tries
from arborcast.dispatch.settings import RetrySettings
from arborcast.topic_model.projections.erasures import Erasures, covering
from arborcast.topic_model.records.control import Erasure, ErasureScope
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.routing import Found
from arborcast.topic_model.subscriptions import DeliveryPolicy, Subscription, queue_of
from arborcast.topic_model.topics import TopicPath
from tests.support.fake_journal import FakeJournal
from tests.support.hot import intake_of, outcomes_in, received
from tests.support.make import subscription

ONE = subscription("one")


class Setup:
    """An intake with a recording journal."""

    def __init__(self, held: Container[str] = frozenset(), before: RecoveredDeliveries = NOTHING) -> None:
        self.journal = FakeJournal()
        self.intake = intake_of(outcomes_in(self.journal), held=held, recovered=before)
        self.lanes = self.intake.lanes

    def take(self, offset: int, priority: int = 0) -> None:
        taken = received(f"n{offset}", offset, accepted_ms=1, priority=priority)
        parked_as = self.intake.recovered.number(0, offset)
        self.intake.take(taken._replace(parked_as=parked_as), Found([ONE], []))

    @property
    def parked(self) -> list[str]:
        return [row.notification for row in self.journal.rows if row.state == "parked"]


def test_a_notification_after_its_validity_expires_for_all() -> None:
    setup = Setup()
    targets = ONE, subscription("pulled", pull_point="p"), subscription("paused", paused=True)
    assert setup.intake.take(received(accepted_ms=1, valid_until_ms=1), Found(targets, [])) == 3

    rows = {(row.subscription, row.state) for row in setup.journal.rows}
    assert rows == {(each.id, "expired") for each in targets}
    assert (setup.journal.buried, setup.journal.parked, setup.lanes.size) == ([], {}, 0)


def test_notifications_of_an_open_erasure_are_not_pushed() -> None:
    setup, erasures = Setup(), Erasures()
    erasures.apply(Erasure(ErasureScope("e1", 5, topic="a"), "ann", 5))
    setup.intake.exclusions = Exclusions(erased=erasures.for_workers)
    setup.take(1)
    setup.intake.take(received("later", 2, accepted_ms=5), Found([ONE], []))

    (row,) = setup.journal.rows
    assert (row.notification, row.state, row.error) == ("n1", "cancelled", "erased")
    assert "e1" in row.detail
    assert setup.lanes.size == 1, "accepted after the request"
    assert [each.subscriptions for each in setup.intake.matched[0]] == [1, 1], "the audit counts it"


def test_an_erasure_ends_the_deliveries_of_a_message_for_many_that_have_not_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup, erasures, many = Setup(), Erasures(), [subscription(f"s{number}") for number in range(100)]
    setup.intake.take(received("wrong", 1, accepted_ms=1), Found(many, []))
    setup.intake.fill(10)
    erasures.apply(Erasure(ErasureScope("e1", 5, notification="wrong"), "ann", 5))
    setup.intake.exclusions = Exclusions(erased=erasures.for_workers)
    searches = list[str]()

    def search(scopes: Iterable[ErasureScope], each: Notification) -> str:
        searches.append(each.id)
        return covering(scopes, each)

    monkeypatch.setattr(intake, "covering", search)
    setup.intake.fill(90)
    assert (setup.lanes.size, searches) == (10, ["wrong"])
    assert [(row.state, row.error) for row in setup.journal.rows] == [("cancelled", "erased")] * 90


def test_a_held_lane_is_parked_when_no_push_is_in_flight() -> None:
    setup = Setup()
    setup.take(1)
    setup.take(2)
    assert setup.lanes.take() is not None, "one push with both is in flight"
    setup.take(3)
    setup.take(4)
    setup.intake.held = frozenset({"one"})
    setup.take(5)
    assert setup.parked == [], "the redelivery could overtake the push"

    PumpRun(setup.lanes, setup.intake.outcomes).end(ONE, TopicPath("a"), None)
    assert setup.parked == ["n3", "n4", "n5"]
    assert {row.detail for row in setup.journal.rows} == {HELD}
    assert setup.lanes.size == 0


def test_urgent_notifications_do_not_wait_in_the_buffer() -> None:
    setup = Setup(held=frozenset({"one"}))
    setup.intake.buffer = HoldBuffer(room=2)
    setup.take(1)
    setup.take(2, priority=5)
    setup.take(3)
    assert setup.parked == ["n2"]
    setup.take(4)
    assert setup.parked == ["n2", "n1", "n3", "n4"], "the buffer has room for two"


def test_after_a_crash_rows_are_skipped_or_completed() -> None:
    setup = Setup(before=RecoveredDeliveries(frozenset({("one", "n1")}), frozenset({("one", "n2")})))
    for offset in (1, 2, 3):
        setup.take(offset)

    assert setup.parked == ["n2"]
    assert not setup.journal.parked, "already parked"
    assert [each.offset for each in (setup.lanes.take() or (ONE, []))[1]] == [3]


def test_places_of_notifications_that_are_read_again() -> None:
    behind = [
        ("one", "n4", Place(1_000, 0, 4)),
        ("two", "n4", Place(1_000, 0, 4)),
        ("one", "n9", Place(1_007, 0, 9)),
        ("one", "old", Place(3, 0, 60)),
        ("one", "redriven", Place(1_001, 0, 70, 1)),
        ("one", "elsewhere", Place(1_900, 1, 5)),
    ]
    known = RecoveredDeliveries.of(frozenset({("one", "n4")}), behind, since=1_000)

    assert [known.number(0, offset) for offset in (3, 4, 8, 9, 10)] == [1_000, 1_000, 1_000, 1_007, None]
    assert known.number(2, 1) is None
    assert (("one", "n4") in known.unwritten, ("two", "n4") in known.unwritten) == (False, True)
    repeated = [received(offset=at)._replace(parked_as=known.number(0, at)) for at in (3, 8)]
    places = [each.delivery("one").place for each in repeated]
    assert places[0] < Place(1_000, 0, 4) < places[1] < Place(1_007, 0, 9)


def test_recovered_deliveries_count_until_all_are_passed() -> None:
    known = RecoveredDeliveries(frozenset({("one", "n1")}))
    began = StartState({0: 5, 1: 5}, known, 70, since=30)
    ends = {0: 8, 1: 5}

    assert began.advanced({0: 7, 1: 9}, ends, 90) == StartState({0: 7, 1: 9}, known, 90, 30)
    assert began.advanced({0: 8, 1: 5}, ends, 90) == StartState({0: 8, 1: 5}, NOTHING, 90)
    plain = StartState({0: 5, 1: 5}, NOTHING, 70)
    assert plain.advanced({0: 7, 1: 9}, ends, 90) == StartState({0: 7, 1: 9}, NOTHING, 90)


def test_a_request_to_a_queue_is_parked_at_any_age() -> None:
    setup, request = Setup(), received(accepted_ms=1, valid_until_ms=1, queue=True)
    assert setup.intake.take(request, Found([queue_of(TopicPath("a"))], [])) == 1
    (row,) = setup.journal.rows
    assert (row.subscription, row.endpoint, row.state, row.error) == ("queue:a", "", "parked", "waiting")
    assert setup.journal.parked["queue:a", "n"].number == 0
    assert setup.lanes.empty


OTHER = subscription("other")
FIRST, SECOND, THIRD = (received(offset=each) for each in (1, 2, 3))


def test_messages_are_released_when_the_lane_is_free_or_late() -> None:
    buffer = HoldBuffer(10)
    for to, message, now in ((ONE, FIRST, 0.0), (OTHER, SECOND, 0.1), (ONE, THIRD, 0.2)):
        assert buffer.add(to, message, now)
    assert (buffer.size, buffer.oldest(), buffer.examined) == (3, 1, 2)

    assert list(buffer.release({"one", "other"}, 0.24)) == []
    assert list(buffer.release({"one"}, 0.24)) == [(OTHER, [SECOND])]
    assert list(buffer.release({"one"}, 0.25)) == [(ONE, [FIRST, THIRD])]
    assert (buffer.size, buffer.oldest(), buffer.examined) == (0, None, 1)

    full = HoldBuffer(2)
    assert [full.add(ONE, each, 0.0) for each in (FIRST, SECOND, THIRD)] == [True, True, False]
    assert (full.drain("one"), full.drain("other")) == ([FIRST, SECOND], [])
    assert full.add(ONE, THIRD, 1.0)


def test_the_time_in_the_buffer_doubles_while_the_lane_is_held() -> None:
    buffer, now, times = HoldBuffer(10), 0, []  # eighths of a second are exact
    for _ in range(6):
        began = now
        buffer.add(ONE, FIRST, now / 8)
        while not list(buffer.release({"one"}, now / 8)):
            now += 1
        times.append((now - began) / 8)
    assert times == [0.25, 0.5, 1.0, 2.0, 2.0, 2.0]

    assert list(buffer.release((), now / 8)) == []
    buffer.add(ONE, FIRST, now / 8)
    assert list(buffer.release({"one"}, now / 8 + 0.25)), "the first time again"


def test_release_examines_few_lanes_at_a_time() -> None:
    class Held(list[str]):
        def __contains__(self, lane: object) -> bool:
            looks.append(lane)
            return super().__contains__(lane)

    buffer, looks = HoldBuffer(10), list[object]()
    names = [f"s{number}" for number in range(20)]
    for name in names:
        buffer.add(subscription(name), FIRST, 0.0)
        buffer.drain(name)
    for _ in range(2):
        assert list(buffer.release(Held(names[1:]), 0.0)) == []
        assert len(looks) <= 32
    assert buffer.examined == 19, "the free lane is in the second half"


NOW_MS = 100_000_000
RETRY = RetrySettings(first_wait_s=1.0, jitter=0.0, lifespan_s=3_600.0)
ANY = subscription()
HASTY = subscription(policy=DeliveryPolicy(lifespan_ms=10))


def made() -> tuple[FakeJournal, BatchOutcomes]:
    journal = FakeJournal()
    return journal, outcomes_in(journal, lambda: NOW_MS / 1000, RETRY, total_timeout_s=2.0)


def settle(settlement: BatchOutcomes, result: PushResult, target: Subscription = ANY) -> None:
    """The result of a push with one message."""
    message = received(accepted_ms=NOW_MS)
    push = Push("p", [message.notification], PushRequest("http://s/", (), b""), result, NOW_MS)
    settlement.settle(target, [message], push, classify(result))


def settled(result: PushResult, target: Subscription = ANY) -> tuple[FakeJournal, BatchOutcomes]:
    journal, settlement = made()
    settle(settlement, result, target)
    return journal, settlement


def test_the_answer_of_a_host_counts_until_forget() -> None:
    _, settlement = made()
    ports = [subscription(f"s{port}", url=f"http://host:{port}/") for port in range(10, 20)]
    for port in ports[:5]:
        settle(settlement, PushResult(202) if port is ports[1] else PushResult(0, "timeout"), port)
    assert settlement.unreachable(ports[9]) is None
    settlement.forget()
    for port in ports[5:9]:
        settle(settlement, PushResult(0, "timeout"), port)
    assert settlement.unreachable(ports[9]) is not None


@pytest.mark.parametrize(
    ("result", "signs"),
    [
        (PushResult(202, duration_s=1.0), []),
        (PushResult(202, duration_s=1.001), [Sign("slow")]),
        (PushResult(404), [Sign("quick")]),
        (PushResult(404, duration_s=1.5), [Sign("slow")]),
        (PushResult(500), [Sign("failing", "n")]),
        (PushResult(503, retry_after_s=30.0), [Sign("unreachable", "n", 30_000)]),
        (PushResult(0, "timeout"), [Sign("unreachable", "n")]),
    ],
)
def test_health_signs_of_results(result: PushResult, signs: list[Sign]) -> None:
    _, settlement = settled(result)
    assert settlement.report.signs == [("http://s/", each) for each in signs]


def test_the_decision_is_written() -> None:
    journal, _ = settled(PushResult(503, retry_after_s=30.0))
    assert (journal.rows[0].state, journal.rows[0].next_ms) == ("parked", NOW_MS + 30_000)
    assert journal.parked == {("s", "n"): Tries(1, 1, NOW_MS + 30_000, NOW_MS)}
    journal, _ = settled(PushResult(500), subscription(policy=DeliveryPolicy(maximum_attempts=1)))
    assert (journal.rows[0].state, journal.buried, journal.parked) == ("dead", [("s", "n")], {})


OLD = "too old when read"


@pytest.mark.parametrize(
    ("target", "age_ms", "valid_ms", "detail"),
    [
        (ANY, 3_599_999, None, ""),
        (ANY, 3_600_000, None, OLD),
        (HASTY, 10, None, OLD),
        (ANY, 0, 1, ""),
        (ANY, 0, 0, "its validity ended at 1970-01-02T03:46:40.000Z"),
        (ANY, 0, 1 - NOW_MS, "its validity ended at 1970-01-01T00:00:00.001Z"),
        # The lifespan ended it: a dead letter may be useful.
        (HASTY, 10, 5, OLD),
        (HASTY, 50, -5, OLD),
        # A pull point keeps a message of any age.
        (subscription(pull_point="p"), 3_600_000, None, ""),
        (subscription(pull_point="p"), 3_600_001, -1, "its validity ended at 1970-01-02T03:46:39.999Z"),
    ],
)
def test_old_notifications_expire_untried(target: Subscription, age_ms: int, valid_ms: int | None, detail: str) -> None:
    """Only the end of the lifespan leaves a dead letter, not that of the validity."""
    journal, settlement = made()
    valid_until_ms = 0 if valid_ms is None else NOW_MS + valid_ms
    message = received(accepted_ms=NOW_MS - age_ms, valid_until_ms=valid_until_ms)
    assert settlement.expired(target, message) is bool(detail)
    rows = [("expired", "lifespan", 0, "", detail)] if detail else []
    assert [(row.state, row.error, row.number, row.push, row.detail) for row in journal.rows] == rows
    assert journal.buried == ([("s", "n")] if detail == OLD else [])
