from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from arborcast.core.backoff import Backoff
from arborcast.core.errors import InfrastructureError
from arborcast.core.threads import Service

LONG_S = 600.0
"""A pause that no test waits for."""

NO_PAUSE = Backoff(0.0, 0.0)


def results(*given: float | Exception) -> Mock:
    """A step with these results, one after the other: pauses or exceptions. Then it ends."""
    return Mock(side_effect=[*given, None])


def run_to_its_end(step: Callable[[], float | None], backoff: Backoff = NO_PAUSE) -> None:
    over = threading.Event()
    Service("test", step, close=over.set, backoff=backoff).start()
    assert over.wait(60)


def test_wake_ends_the_pause_also_during_a_step() -> None:
    over, first = threading.Event(), threading.Event()
    count = 0

    def step() -> float | None:
        nonlocal count
        count += 1
        if count == 1:
            first.set()
        elif count == 2:
            service.wake()
        return LONG_S if count < 3 else None

    service = Service("test", step, close=over.set)
    service.start()
    assert first.wait(60)
    service.wake()
    assert over.wait(60)
    assert count == 3


def test_stop_ends_each_kind_of_pause() -> None:
    closed: list[str] = []

    def stopped(name: str, step: Callable[[], float | None], delay_s: float = 0.0) -> bool:
        began = threading.Event()

        def begin() -> float | None:
            began.set()
            return step()

        services.append(
            Service(name, begin, delay_s=delay_s, backoff=Backoff(LONG_S, LONG_S), close=lambda: closed.append(name))
        )
        services[-1].start()
        return (bool(delay_s) or began.wait(60)) and services[-1].stop(None)

    services: list[Service] = []
    assert stopped("before the first step", results(), delay_s=LONG_S)
    assert stopped("between two steps", results(LONG_S))
    assert stopped("after a failure", results(ValueError()))
    assert stopped("within a step", lambda: float(services[-1].wait(LONG_S)))
    assert closed == ["before the first step", "between two steps", "after a failure", "within a step"]


def test_stop_waits_for_a_hanging_step_up_to_its_timeout() -> None:
    go_on = threading.Event()
    began = threading.Event()

    def step() -> None:
        began.set()
        go_on.wait(60)

    service = Service("test", step)
    service.start()
    assert began.wait(60)
    assert not service.stop(0.0)
    assert service.stopping
    go_on.set()
    assert service.stop(None)
    assert Service("never started", results()).stop(None)


def test_failures_are_logged_once_until_a_step_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    away = InfrastructureError("Kafka is away")
    step = results(away, away, ValueError("a mistake"), away, 0.0, away)
    with caplog.at_level(logging.INFO):
        run_to_its_end(step)
    assert step.call_count == 7
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("WARNING", "test failed and is retried: Kafka is away"),
        ("ERROR", "test failed and is retried: ValueError('a mistake')"),
        ("INFO", "test works again"),
        ("WARNING", "test failed and is retried: Kafka is away"),
        ("INFO", "test works again"),
    ]
    assert [each.exc_info is not None for each in caplog.records] == [False, True, False, False, False]


def test_different_failures_of_a_kind_are_logged_up_to_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    numbers = [1, 2, 1, 2, 3, 4, 5, 6, 7]
    run_to_its_end(results(*(InfrastructureError(f"failure {each}") for each in numbers)))
    assert [each.getMessage().rpartition(" ")[2] for each in caplog.records] == ["1", "2", "3", "4", "5"]


def test_a_failure_after_a_success_within_a_step_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    failures = iter([True, False, False])

    def step() -> None:
        early = next(failures, None)
        if early is None:
            return
        if not early:
            service.succeeded()
        raise InfrastructureError("away")

    over = threading.Event()
    service = Service("test", step, close=over.set, backoff=NO_PAUSE)
    with caplog.at_level(logging.INFO):
        service.start()
        assert over.wait(60)
    failed, works = "test failed and is retried: away", "test works again"
    assert [record.getMessage() for record in caplog.records] == [failed, works, failed, works, failed, works]


def test_the_pause_grows_with_failures_in_a_row() -> None:
    asked: list[float] = []

    class Asked(Backoff):
        def after(self, failures: int) -> float:
            asked.append(super().after(failures))
            return 0.0

    run_to_its_end(results(ValueError(), ValueError(), ValueError(), 0.0, ValueError()), backoff=Asked(1.0, 3.0))
    assert asked == [1.0, 2.0, 3.0, 1.0]
