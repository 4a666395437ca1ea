"""A batch that is dispatched in several rounds: what becomes of subscriptions meanwhile; and a start without Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.hot import stream
from arborcast.dispatch.settings import JobSettings
from tests.support.dispatch_job import Logs, job_settings, running, subscription
from tests.support.held_port import HeldPort
from tests.support.receiver import Received, Receiver
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

COUNT = 40
# Of deliveries, so that the backlog takes eight of two subscriptions.
A_ROUND = 10


class Watched:
    """A receiver that does something before it answers a push; until then no round can end."""

    def __init__(self) -> None:
        self.arrived: list[tuple[str, str]] = []
        self.then: Callable[[str], None] = lambda path: None
        self.receiver = Receiver(on_received=self._note)

    def _note(self, request: Received) -> None:
        names = request.headers["arborcast-notification-id"].split(",")
        self.arrived += [(request.path, name) for name in names]
        self.then(request.path)

    def names(self, path: str) -> list[str]:
        return [name for to, name in self.arrived if to == path]

    def wait_for(self, path: str, last: str) -> None:
        """Until the last one has come there."""
        wait_until(lambda: last in self.names(path), lambda: f"{len(self.names(path))} have come to {path}")


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    with made.receiver:
        yield made


@pytest.fixture
def settings(tmp_path: Path, kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> JobSettings:
    monkeypatch.setattr(stream, "_FIRST", A_ROUND)
    # However quick they are, they do not become longer.
    monkeypatch.setattr(stream, "_MOST_GROWTH", 1.0)
    monkeypatch.setattr(stream, "_FEWEST", A_ROUND)
    return job_settings(tmp_path, kafka_settings, "batch")


def test_a_change_of_a_subscription_applies_in_the_next_round(
    spark: SparkSession, settings: JobSettings, log: Logs, watched: Watched
) -> None:
    log.subscribe(*(subscription(name, watched.receiver.url(f"/{name}"), "a/b") for name in ("stays", "ends")))
    sent = log.notify_many(["a/b"] * COUNT)

    def end(path: str) -> None:
        if path == "/ends":
            watched.then = lambda path: None
            log.end("ends")

    watched.then = end
    with running(spark, settings):
        watched.wait_for("/stays", sent[-1])

    assert watched.names("/stays") == sent, "each once and in order, through all rounds"
    got = watched.names("/ends")
    assert got == sent[: len(got)]
    assert 1 <= len(got) <= A_ROUND


def test_start_without_kafka_fails_with_a_reason_instead_of_hanging(spark: SparkSession, tmp_path: Path) -> None:
    held = HeldPort()
    nowhere = KafkaSettings(bootstrap_servers=f"127.0.0.1:{held.number}", request_timeout_s=1.0)

    with pytest.raises(InfrastructureError, match="Kafka"), running(spark, job_settings(tmp_path, nowhere)):
        pytest.fail("the job reported ready")
