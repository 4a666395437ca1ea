"""A kill in the middle of a backlog repeats the pushes in flight, however many the batch had made before.

The receiver stops to answer in the middle of the batch, so the pushes in flight are known; the test waits until all
other outcomes are recorded.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.operations.audit import audit
from tests.support.dispatch_job import Logs, attempts_in, logs, subscription
from tests.support.dispatch_process import running_job, with_suppressed_kill
from tests.support.receiver import Received, Receiver
from tests.support.waiting import wait_until

SUBSCRIBERS = 6
EACH = 100
# Neither a multiple of what fits into a record nor of the subscribers.
BEFORE_IT_HANGS = (201, 403)

REFUSES = "/refuses"

Delivery = tuple[str, str]  # path, notification


class Stubborn:
    """A receiver that answers a number of pushes, and then none until the test continues."""

    def __init__(self) -> None:
        self.arrived: list[Delivery] = []
        self.hung: set[Delivery] = set()
        self.limit = 0
        self.receiver = Receiver(on_received=self._note)

    def hang_after(self, count: int) -> None:
        """Answer this number of pushes in all; later ones hang."""
        self.limit = count
        for number in range(SUBSCRIBERS):
            self.receiver.behave(f"/s{number}", "")

    def _note(self, request: Received) -> None:
        # Runs in the receiver's thread after the answer of this request is chosen: a change is for the next one.
        if request.path == REFUSES:
            return
        delivery = request.path, request.headers["arborcast-notification-id"]
        self.arrived.append(delivery)
        if request.behaviour == "hang":
            self.hung.add(delivery)
        elif len(self.arrived) >= self.limit:
            for number in range(SUBSCRIBERS):
                self.receiver.behave(f"/s{number}", "hang")

    def wait_until_all_hang(self) -> set[Delivery]:
        """The pushes in flight: one of each subscriber."""
        wait_until(
            lambda: len(self.hung) >= SUBSCRIBERS,
            lambda: f"only {len(self.hung)} pushes hang, {len(self.arrived)} have arrived",
            timeout_s=300,
        )
        return set(self.hung)


@pytest.mark.long
@pytest.mark.chaos
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(1_200)
def test_a_kill_repeats_pushes_in_flight_and_none_that_was_answered(
    tmp_path: Path, kafka_settings: KafkaSettings
) -> None:
    """First all processes are killed, and after the restart only the Python workers."""
    stubborn = Stubborn()
    settings: dict[str, str | int | float] = {
        "push.max_notify_messages": 1,
        # Hanging pushes are in flight until the kill.
        "push.total_timeout_s": 300,
        "retry.batch_wait_s": 300,
        # Retries for the receiver that refuses everything are unrelated to the kills.
        "retry.first_wait_s": 3_600,
    }
    with stubborn.receiver as receiver, logs(kafka_settings) as log:
        sent = fill(log, receiver)
        stubborn.hang_after(BEFORE_IT_HANGS[0])
        with running_job(tmp_path, kafka_settings, settings) as job:
            hung = stubborn.wait_until_all_hang()
            refused = wait_until_all_is_written(kafka_settings, set(stubborn.arrived) - hung)
            assert refused, "what was parked is in the log, too, before its batch is done"
            job.kill()
            stubborn.hung.clear()
            stubborn.hang_after(BEFORE_IT_HANGS[1])
            job.start()
            hung |= (hung_again := stubborn.wait_until_all_hang())
            wait_until_all_is_written(kafka_settings, set(stubborn.arrived) - hung_again)
            stubborn.hang_after(10**9)
            for worker in job.processes()["worker"]:
                with_suppressed_kill(worker)
            wait_until_all_is_written(kafka_settings, {(f"/s{number}", name) for name in sent for number in range(6)})
            assert audit(kafka_settings, 0, deep=True, order=True, patience_s=120).balanced

    counted = Counter(stubborn.arrived)
    assert set(counted) >= {(f"/s{number}", name) for name in sent for number in range(SUBSCRIBERS)}
    again = {delivery for delivery, count in counted.items() if count > 1}
    assert again == hung, "exactly what was under way at one of the kills"


def fill(log: Logs, receiver: Receiver) -> list[str]:
    """The same messages for all; one receiver refuses its first, and those behind it are parked untried."""
    log.subscribe(*(subscription(f"s{number}", receiver.url(f"/s{number}"), "a/b") for number in range(SUBSCRIBERS)))
    log.subscribe(subscription("refuses", receiver.url(REFUSES), "a/b"))
    receiver.behave(REFUSES, "status/503")
    return log.notify_many(["a/b"] * EACH)


def wait_until_all_is_written(kafka: KafkaSettings, deliveries: set[Delivery]) -> list[Attempt]:
    """Wait until the `attempts` log has a row for each of these; the rows of the receiver that refuses."""

    def missing() -> set[Delivery]:
        return deliveries - {(f"/{row.subscription}", row.notification) for row in attempts_in(kafka)}

    wait_until(lambda: not missing(), lambda: f"{len(missing())} outcomes are not written during the batch", 300)
    return [row for row in attempts_in(kafka) if row.subscription == "refuses"]
