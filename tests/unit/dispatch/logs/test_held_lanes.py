from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from arborcast.dispatch.logs.held_lanes import HeldLanes


def test_a_lane_is_held_from_the_report_until_the_redeliverer_has_read_and_tried_it() -> None:
    book = HeldLanes()
    book.parked({"s": (0, 7)})
    assert book.for_workers()[0] == {"s"}
    assert book.count() == 1

    book.applied(0, 7)  # it knows what is before offset 7, which is not ours
    assert book.for_workers()[0] == {"s"}

    book.found("s")
    assert book.count() == 1
    book.applied(0, 8)
    assert book.for_workers()[0] == {"s"}
    assert book.count() == 1

    book.drained("s")
    assert book.for_workers()[0] == frozenset()


def test_what_was_tried_before_the_report_came_does_not_hold_for_ever() -> None:
    book = HeldLanes()
    book.found("s")
    book.applied(0, 8)
    book.drained("s")

    book.parked({"s": (0, 7)})

    assert book.for_workers()[0] == frozenset()


def test_a_log_that_got_more_partitions_holds_a_lane_in_each() -> None:
    book = HeldLanes()
    book.parked({"s": (0, 9)})
    book.parked({"s": (3, 0)})
    book.applied(3, 1)
    assert book.for_workers()[0] == {"s"}

    book.applied(0, 10)
    assert (book.for_workers()[0], book.count()) == (frozenset(), 0)


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
    assert book.for_workers()[0] == {"s", "t"}, "until the log is read to its end, s may still wait"
    book.caught_up()

    assert book.for_workers()[0] == {"t"}


STEPS = ("park s", "park t", "acknowledge", "acknowledge", "read", "read", "try", "tell", "report", "begin again")


@given(st.lists(st.sampled_from(STEPS), min_size=15, max_size=60))
def test_a_worker_and_the_driver_free_no_lane_before_all_of_it_is_read_and_tried(steps: list[str]) -> None:
    log: list[str] = []  # the lane of each record
    acknowledged, read, told_read = 0, 0, 0
    told: frozenset[str] = frozenset()
    tried: set[int] = set()
    driver, worker = HeldLanes(), HeldLanes(lambda number: number <= acknowledged)
    for step in steps:
        match step:
            case "park s" | "park t":
                log.append(step[-1])
                worker.sent(log[-1], len(log))
            case "acknowledge" if acknowledged < len(log):
                worker.written(log[acknowledged], 0, acknowledged)
                acknowledged += 1
            case "report":
                driver.parked({log[offset]: (0, offset) for offset in range(acknowledged)})
            case "read" if read < acknowledged:
                driver.found(log[read])
                read += 1
                driver.applied(0, read)
            case "try" if read > len(tried):
                offset = len(tried)
                tried.add(offset)
                if log[offset] not in log[offset + 1 : read]:
                    driver.drained(log[offset])
            case "tell":
                now, positions = driver.for_workers()
                worker.change(now - told, told - now, positions)
                told, told_read = now, read
            case "begin again":
                worker.begin_session()
                now, positions = driver.for_workers()
                assert all(name in worker for name in told), "the driver has not said that they are free"
                worker.change(now, (), positions)
                worker.caught_up()
                told, told_read = now, read
        waiting = {log[offset] for offset in range(len(log)) if offset >= read or offset not in tried}
        assert {name for name in "st" if name in worker} >= waiting
        assert driver.for_workers()[0] >= {log[offset] for offset in range(read) if offset not in tried}
        assert {name for name in "st" if name in worker} == told | {*log[told_read:]}
