"""Writing to the `parked` and `dead` logs. What the records mean is said in `parked` and `dead_letters`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from dispatch.attempts import partition_of_subscription
from dispatch.durable_writer import DurableWriter
from dispatch.redelivery import dead_letters, parked
from dispatch.redelivery.dead_letters import DeadLetter
from dispatch.redelivery.parked import Delivery, Parked, Tried, Tries
from topic_model.kafka_client import Acknowledgement, Producer, make_producer
from topic_model.kafka_topics import PARKED_OVERHEAD
from topic_model.notifications import Notification
from topic_model.settings import KafkaSettings


def roomy(kafka: KafkaSettings) -> KafkaSettings:
    """Settings for these logs, whose records hold a whole notification and more."""
    return dataclasses.replace(kafka, max_record_bytes=kafka.max_record_bytes + PARKED_OVERHEAD)


class ParkingLog(DurableWriter):
    """The `parked` log, and how far each lane reaches into it. Used by one thread."""

    def __init__(self, kafka: KafkaSettings, connect: Callable[[KafkaSettings], Producer] = make_producer) -> None:
        super().__init__(roomy(kafka), "parked", connect)
        self._reach: dict[str, tuple[int, int]] = {}

    def park(self, delivery: Delivery, notification: Notification, tries: Tries) -> int:
        """A delivery waits from now on; the record's number."""
        lane = delivery.subscription
        value = parked.encode(Parked(notification, tries))
        return self.send(partition_of_subscription(lane, self.partitions), value, delivery.key(), lane)

    def tried(self, delivery: Delivery, tries: Tries) -> None:
        """It was tried and waits again."""
        partition = partition_of_subscription(delivery.subscription, self.partitions)
        self.send(partition, parked.encode(Tried(tries)), delivery.tried_key())

    def finished(self, delivery: Delivery, tried: bool) -> None:
        """It does not wait any more. `tried` says whether there is a record of its tries to be forgotten, too."""
        partition = partition_of_subscription(delivery.subscription, self.partitions)
        if tried:
            self.send(partition, None, delivery.tried_key())
        self.send(partition, None, delivery.key())

    def acknowledged(self, number: int, label: str, acknowledgement: Acknowledgement) -> None:
        if label:
            reach = (acknowledgement.partition, acknowledgement.offset)
            self._reach[label] = max(self._reach.get(label, reach), reach)

    def reach(self) -> dict[str, tuple[int, int]]:
        """The partition and offset of the last delivery parked for each lane since this was last asked; only complete
        after `settle`."""
        reach, self._reach = self._reach, {}
        return reach

    def close(self) -> None:
        super().close()
        self._reach.clear()


class DeadLetterLog(DurableWriter):
    """The `dead` log. Used by one thread."""

    def __init__(self, kafka: KafkaSettings, connect: Callable[[KafkaSettings], Producer] = make_producer) -> None:
        super().__init__(roomy(kafka), "dead", connect)

    def bury(self, delivery: Delivery, letter: DeadLetter) -> int:
        """Keep what was given up; the record's number."""
        partition = partition_of_subscription(delivery.subscription, self.partitions)
        return self.send(partition, dead_letters.encode(letter), delivery.key())

    def forget(self, delivery: Delivery) -> None:
        """It was sent again, or thrown away."""
        partition = partition_of_subscription(delivery.subscription, self.partitions)
        self.send(partition, None, delivery.key())
