"""What becomes of the producer behind a log when Kafka refuses a record."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError

from topic_model import ordered_log
from topic_model.errors import InfrastructureError
from topic_model.ordered_log import LogWriter
from topic_model.settings import KafkaSettings


class PlayedProducer:
    """Settles each record at once: with this failure, or at offset 7."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.aborted = False

    def send(self, *_: object, **__: object) -> PlayedProducer:
        return self

    def add_callback(self, call: Callable[[object], object]) -> None:
        if self.failure is None:
            call(SimpleNamespace(offset=7))

    def add_errback(self, call: Callable[[BaseException], object]) -> None:
        if self.failure is not None:
            call(self.failure)

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def producers(monkeypatch: pytest.MonkeyPatch) -> list[PlayedProducer]:
    """Those that a writer is given, one after the other."""
    found: list[PlayedProducer] = []
    monkeypatch.setattr(ordered_log, "make_producer", lambda _: found.pop(0))
    return found


def test_after_a_failure_of_the_broker_another_producer_is_used(producers: list[PlayedProducer]) -> None:
    sick = PlayedProducer(KafkaTimeoutError("gone"))
    producers += [sick, PlayedProducer()]
    log = LogWriter(KafkaSettings(), "control")

    with pytest.raises(InfrastructureError, match="the control log cannot be written"):
        log.append_encoded([(b"k", b"v")])

    assert sick.aborted
    assert log.append_encoded([(b"k", b"v")]) == 7


def test_a_record_that_nobody_would_take_is_not_the_producers_fault(producers: list[PlayedProducer]) -> None:
    producers.append(PlayedProducer(MessageSizeTooLargeError("too large")))
    log = LogWriter(KafkaSettings(), "control")

    for _ in range(2):
        with pytest.raises(InfrastructureError, match="too large"):
            log.append_encoded([(b"k", b"v")])
