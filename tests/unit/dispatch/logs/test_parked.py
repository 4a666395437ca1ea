from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import Producer
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import parked
from arborcast.dispatch.logs.parked import Delivery, ParkingLog, Place, Tries
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath

NOTIFICATION = Notification("n1", TopicPath("a/b"), b"<x>\xc3\xa4</x>", 5, message_id="m")
DELIVERY = Delivery("urn:s/1", Place(3, 1, 12_000_000_000))


def test_a_key_tells_one_life_of_a_delivery_from_the_next() -> None:
    again = DELIVERY._replace(place=DELIVERY.place._replace(redrive=77))
    assert again.key() != DELIVERY.key()
    assert parked.decode_key(again.key()) == (again, False)
    assert parked.decode_key(again.tried_key()) == (again, True)


def test_a_key_names_the_delivery_and_what_is_said_of_it() -> None:
    assert parked.decode_key(DELIVERY.key()) == (DELIVERY, False)
    assert parked.decode_key(DELIVERY.tried_key()) == (DELIVERY, True)


@pytest.mark.parametrize("key", [b"", b"s", b"s\t1.2", b"s\t1.2.x", b"s\t1.2.3.4.5", b"\xff\t1.2.3"])
def test_a_key_that_is_none_of_ours_is_refused(key: bytes) -> None:
    with pytest.raises(InfrastructureError, match="not that of a parked delivery"):
        parked.decode_key(key)


def test_places_are_in_the_order_of_batches_then_of_the_log() -> None:
    places = [Place(2, 0, 5), Place(10, 0, 1), Place(2, 1, 4), Place(2, 0, 40), Place(2, 0, 5, redrive=9)]
    assert sorted(places) == [
        Place(2, 0, 5),
        Place(2, 0, 5, redrive=9),
        Place(2, 0, 40),
        Place(2, 1, 4),
        Place(10, 0, 1),
    ]


class AcknowledgingProducer:
    """Has each record in the log at once, at the next offset."""

    def __init__(self) -> None:
        self._offset = -1

    def partitions_for(self, topic: str) -> set[int]:
        return {0}

    def send(self, topic: str, **record: Any) -> Any:
        self._offset += 1
        acknowledgement = SimpleNamespace(partition=0, offset=self._offset)
        return SimpleNamespace(add_callback=lambda call: call(acknowledgement), add_errback=lambda call: None)


def test_a_lane_is_held_by_what_was_never_tried() -> None:
    log = ParkingLog(KafkaSettings(), lambda _: cast(Producer, AcknowledgingProducer()))

    log.park(DELIVERY, NOTIFICATION, Tries(1, 1, 9, 9))
    assert DELIVERY.subscription not in log.held, "it has had its turn, and what comes next may be pushed"
    assert not log.reach()

    log.park(DELIVERY, NOTIFICATION, Tries())
    assert DELIVERY.subscription in log.held
    log.held.change((), (), {0: 1})
    assert DELIVERY.subscription in log.held, "it has not been read yet"
    log.held.change((), (), {0: 2})
    assert DELIVERY.subscription not in log.held
