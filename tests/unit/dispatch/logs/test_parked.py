from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import parked
from arborcast.dispatch.logs.held_lanes import HeldLanes
from arborcast.dispatch.logs.parked import Delivery, ParkingLog, Place, Tries
from tests.support.fake_producer import FakeProducer, connecting
from tests.support.make import notification

DELIVERY = Delivery("urn:s/1", Place(3, 1, 12_000_000_000))


def test_keys_of_deliveries_redrives_and_tries() -> None:
    again = DELIVERY._replace(place=DELIVERY.place._replace(redrive=77))
    assert again.key() != DELIVERY.key()
    for each in (DELIVERY, again):
        assert parked.decode_key(each.key()) == (each, False)
        assert parked.decode_key(each.tried_key()) == (each, True)


@pytest.mark.parametrize("key", [b"", b"s", b"s\t1.2", b"s\t1.2.x", b"s\t1.2.3.4.5", b"\xff\t1.2.3"])
def test_invalid_keys_are_refused(key: bytes) -> None:
    with pytest.raises(InfrastructureError, match="not that of a parked delivery"):
        parked.decode_key(key)


def test_places_are_in_the_order_of_batches_then_of_the_log() -> None:
    places = [Place(2, 0, 5), Place(2, 0, 5, redrive=9), Place(2, 0, 40), Place(2, 1, 4), Place(10, 0, 1)]
    assert sorted(set(places)) == places


def test_untried_deliveries_hold_a_lane() -> None:
    offsets, producer = count(), FakeProducer(written=lambda record: next(offsets))
    log = ParkingLog(KafkaSettings(), connecting(producer))

    log.park(DELIVERY, notification(), Tries(1, 1, 9, 9))
    producer.take()
    assert DELIVERY.subscription not in log.held, "a tried delivery holds no lane"
    assert not log.held.take_reach()

    log.park(DELIVERY, notification(), Tries())
    producer.take()
    assert DELIVERY.subscription in log.held
    log.held.change((), (), {0: 1})
    assert DELIVERY.subscription in log.held, "the driver has not read it"
    log.held.change((), (), {0: 2})
    assert DELIVERY.subscription not in log.held


def test_held_lanes_of_the_driver() -> None:
    lanes = HeldLanes()
    lanes.parked({"s": (0, 7)})
    lanes.applied(0, 7)  # up to offset 7
    assert lanes.for_workers()[0] == {"s"}
    lanes.found("s")
    assert lanes.for_workers()[0] == {"s"}
    lanes.applied(0, 8)
    assert lanes.for_workers()[0] == {"s"}, "read, and not tried"
    lanes.drained("s")
    assert lanes.for_workers()[0] == frozenset()
    lanes.parked({"s": (0, 7)})
    assert lanes.for_workers()[0] == frozenset(), "tried before this report"

    lanes.parked({"s": (0, 9)})
    lanes.parked({"s": (3, 0)})  # a partition was added
    lanes.applied(3, 1)
    assert lanes.for_workers()[0] == {"s"}
    lanes.applied(0, 10)
    assert lanes.for_workers()[0] == frozenset()


def test_lanes_found_by_an_earlier_session() -> None:
    lanes = HeldLanes()
    for name in "stu":
        lanes.found(name)
    lanes.begin_session()
    assert not lanes.is_found("s")
    lanes.found("t")
    lanes.found("u")
    lanes.drained("u")
    assert lanes.for_workers()[0] == {"s", "t"}, "s may wait until the log is read to its end"
    lanes.caught_up()
    assert lanes.for_workers()[0] == {"t"}


def test_updates_examine_only_lanes_that_were_read() -> None:
    examined: list[int] = []

    def acknowledged(number: int) -> bool:
        examined.append(number)
        return number != 2

    lanes = HeldLanes(acknowledged)
    for number in range(1_000):
        lanes.sent(str(number), number)
        lanes.written(str(number), number % 2, number)
    lanes.change((), (), {0: 3, 1: 2})
    assert sorted(examined) == [0, 1, 2]
    held = lanes.for_workers()[0]
    assert len(held) == 998
    assert lanes.for_workers()[0] is held, "unchanged sets are the same object"


STEPS = ("park s", "park t", "acknowledge", "acknowledge", "read", "read", "try", "update", "report", "begin again")


@given(st.lists(st.sampled_from(STEPS), min_size=15, max_size=60))
def test_a_lane_is_held_until_all_its_deliveries_are_tried(steps: list[str]) -> None:
    log: list[str] = []  # the lane of each record
    acknowledged, read, sent_read = 0, 0, 0
    sent: frozenset[str] = frozenset()
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
            case "update":
                now, positions = driver.for_workers()
                worker.change(now - sent, sent - now, positions)
                sent, sent_read = now, read
            case "begin again":
                worker.begin_session()
                now, positions = driver.for_workers()
                assert all(name in worker for name in sent), "not released by the driver"
                worker.change(now, (), positions)
                worker.caught_up()
                sent, sent_read = now, read
        waiting = {log[offset] for offset in range(len(log)) if offset >= read or offset not in tried}
        assert {name for name in "st" if name in worker} >= waiting
        assert driver.for_workers()[0] >= {log[offset] for offset in range(read) if offset not in tried}
        assert {name for name in "st" if name in worker} == sent | {*log[sent_read:]}
