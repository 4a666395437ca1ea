"""From a notification to the lanes: what is parked, in which order, and what an earlier run has come to."""

from __future__ import annotations

from collections.abc import Container

from arborcast.dispatch.hot.hold_buffer import HoldBuffer
from arborcast.dispatch.hot.intake import HELD, Exclusions
from arborcast.dispatch.hot.pump import PumpRun
from arborcast.dispatch.hot.recovered import NOTHING, RecoveredDeliveries, StartState
from arborcast.dispatch.logs.parked import Place
from arborcast.topic_model.projections.erasures import Erasures
from arborcast.topic_model.records.control import Erasure, ErasureScope
from arborcast.topic_model.routing import Found
from arborcast.topic_model.subscriptions import queue_of
from arborcast.topic_model.topics import TopicPath
from tests.support.fake_journal import FakeJournal
from tests.support.hot import intake_of, outcomes_in, received
from tests.support.make import subscription

ONE = subscription("one")


class World:
    """An intake over a journal that remembers."""

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


def test_what_was_over_when_it_was_accepted_expires_for_everybody_who_matches() -> None:
    world = World()
    targets = ONE, subscription("pulled", pull_point="p"), subscription("paused", paused=True)
    assert world.intake.take(received(accepted_ms=1, valid_until_ms=1), Found(targets, [])) == 3

    rows = {(row.subscription, row.state) for row in world.journal.rows}
    assert rows == {(each.id, "expired") for each in targets}
    assert (world.journal.buried, world.journal.parked, world.lanes.size) == ([], {}, 0)


def test_what_an_open_erasure_covers_ends_without_a_push() -> None:
    world, erasures = World(), Erasures()
    erasures.apply(Erasure(ErasureScope("e1", 5, topic="a"), "ann", 5))
    world.intake.exclusions = Exclusions(erased=erasures.for_workers)
    world.take(1)
    world.intake.take(received("later", 2, accepted_ms=5), Found([ONE], []))

    (row,) = world.journal.rows
    assert (row.notification, row.state, row.error) == ("n1", "cancelled", "erased")
    assert "e1" in row.detail
    assert world.lanes.size == 1, "what was accepted after the request is pushed"
    assert [each.subscriptions for each in world.intake.matched[0]] == [1, 1], "the audit counts it"


def test_what_is_queued_is_parked_before_what_comes_behind_it() -> None:
    world = World()
    world.take(1)
    world.take(2)
    assert world.lanes.take() is not None, "the first push is under way, and has both"
    world.take(3)
    world.take(4)
    world.intake.held = frozenset({"one"})
    world.take(5)
    assert world.parked == [], "whoever pushed them now might overtake what is under way"

    PumpRun(world.lanes, world.intake.outcomes).end(ONE, TopicPath("a"), None)
    assert world.parked == ["n3", "n4", "n5"]
    assert {row.detail for row in world.journal.rows} == {HELD}
    assert world.lanes.size == 0


def test_what_is_urgent_is_not_kept_back_and_what_is_kept_stays_behind_it() -> None:
    world = World(held=frozenset({"one"}))
    world.intake.buffer = HoldBuffer(room=2)
    world.take(1)
    world.take(2, priority=5)
    assert world.parked == ["n2"]
    world.take(3)
    assert world.parked == ["n2"]
    world.take(4)
    assert world.parked == ["n2", "n1", "n3", "n4"], "there is room for two"


def test_what_has_a_row_is_left_out_and_what_lacks_it_gets_one() -> None:
    world = World(before=RecoveredDeliveries(frozenset({("one", "n1")}), frozenset({("one", "n2")})))
    for offset in (1, 2, 3):
        world.take(offset)

    assert world.parked == ["n2"]
    assert not world.journal.parked, "it was parked already"
    assert [each.offset for each in (world.lanes.take() or (ONE, []))[1]] == [3]


def test_what_is_taken_again_keeps_its_place_among_what_was_parked() -> None:
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
    places = [received(offset=at)._replace(parked_as=known.number(0, at)) for at in (3, 8)]
    ours = [each.delivery("one").place for each in places]
    assert ours[0] < Place(1_000, 0, 4) < ours[1] < Place(1_007, 0, 9)


def test_what_is_known_is_not_forgotten_before_all_of_it_is_passed() -> None:
    known = RecoveredDeliveries(frozenset({("one", "n1")}))
    began = StartState({0: 5, 1: 5}, known, 70, since=30)
    ends = {0: 8, 1: 5}

    assert began.advanced({0: 7, 1: 9}, ends, 90) == StartState({0: 7, 1: 9}, known, 90, 30)
    assert began.advanced({0: 8, 1: 5}, ends, 90) == StartState({0: 8, 1: 5}, NOTHING, 90)
    plain = StartState({0: 5, 1: 5}, NOTHING, 70)
    assert plain.advanced({0: 7, 1: 9}, ends, 90) == StartState({0: 7, 1: 9}, NOTHING, 90)


def test_a_request_waits_for_a_server_whatever_its_age() -> None:
    world, request = World(), received(accepted_ms=1, valid_until_ms=1, queue=True)
    assert world.intake.take(request, Found([queue_of(TopicPath("a"))], [])) == 1
    (row,) = world.journal.rows
    assert (row.subscription, row.endpoint, row.state, row.error) == ("queue:a", "", "parked", "waiting")
    assert world.journal.parked["queue:a", "n"].number == 0
    assert world.lanes.empty
