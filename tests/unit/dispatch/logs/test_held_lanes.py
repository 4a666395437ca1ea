from __future__ import annotations

from arborcast.dispatch.logs.held_lanes import HeldLanes


def test_a_lane_is_held_from_the_report_until_the_redeliverer_has_read_and_tried_it() -> None:
    book = HeldLanes()
    book.parked({"s": (0, 7)})
    assert book.for_batch() == {"s"}
    assert book.count() == 1

    book.applied(0, 7)  # it knows what is before offset 7, which is not ours
    assert book.for_batch() == {"s"}

    book.found("s")
    assert book.count() == 1
    book.applied(0, 8)
    assert book.for_batch() == {"s"}
    assert book.count() == 1

    book.drained("s")
    assert book.for_batch() == frozenset()


def test_what_was_tried_before_the_report_came_does_not_hold_for_ever() -> None:
    book = HeldLanes()
    book.found("s")
    book.applied(0, 8)
    book.drained("s")

    book.parked({"s": (0, 7)})

    assert book.for_batch() == frozenset()


def test_of_several_reports_the_farthest_counts_whatever_their_order() -> None:
    book = HeldLanes()
    book.parked({"s": (0, 9)})
    book.parked({"s": (0, 4)})
    book.applied(0, 5)

    assert book.for_batch() == {"s"}
    book.applied(0, 10)
    assert book.for_batch() == frozenset()


def test_the_first_record_of_a_partition_that_was_never_read_holds() -> None:
    book = HeldLanes()
    book.parked({"s": (1, 0)})

    assert book.for_batch() == {"s"}


def test_a_log_that_got_more_partitions_holds_a_lane_in_each() -> None:
    book = HeldLanes()
    book.parked({"s": (0, 9)})
    book.parked({"s": (3, 0)})
    book.applied(3, 1)
    assert book.for_batch() == {"s"}

    book.applied(0, 10)
    assert (book.for_batch(), book.count()) == (frozenset(), 0)


def test_what_was_finished_while_nobody_looked_does_not_hold_for_ever() -> None:
    book = HeldLanes()
    book.found("s")
    book.found("t")
    book.found("u")

    book.begin_session()
    assert not book.is_found("s")
    book.found("t")
    book.found("u")
    book.drained("u")
    assert book.for_batch() == {"s", "t"}, "until the log is read to its end, s may still wait"
    book.caught_up()

    assert book.for_batch() == {"t"}
