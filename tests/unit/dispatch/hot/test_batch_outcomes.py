from __future__ import annotations

import pytest

from arborcast.dispatch.delivery.health import Sign
from arborcast.dispatch.delivery.outcomes import classify
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult
from arborcast.dispatch.delivery.verdict import Push
from arborcast.dispatch.hot.batch_outcomes import BatchOutcomes
from arborcast.dispatch.logs.parked import Tries
from arborcast.dispatch.settings import RetrySettings
from arborcast.topic_model.subscriptions import DeliveryPolicy, Subscription
from tests.support.fake_journal import FakeJournal
from tests.support.hot import outcomes_in, received
from tests.support.make import subscription

NOW_MS = 100_000_000
RETRY = RetrySettings(first_wait_s=1.0, jitter=0.0, lifespan_s=3_600.0)
ANY = subscription()
HASTY = subscription(policy=DeliveryPolicy(lifespan_ms=10))


def made() -> tuple[FakeJournal, BatchOutcomes]:
    journal = FakeJournal()
    return journal, outcomes_in(journal, lambda: NOW_MS / 1000, RETRY, total_timeout_s=2.0)


def settle(settlement: BatchOutcomes, result: PushResult, target: Subscription = ANY) -> None:
    """One push of one message."""
    message = received(accepted_ms=NOW_MS)
    push = Push("p", [message.notification], PushRequest("http://s/", (), b""), result, NOW_MS)
    settlement.settle(target, [message], push, classify(result))


def settled(result: PushResult, target: Subscription = ANY) -> tuple[FakeJournal, BatchOutcomes]:
    journal, settlement = made()
    settle(settlement, result, target)
    return journal, settlement


def test_an_answer_of_a_host_counts_until_it_is_forgotten() -> None:
    _, settlement = made()
    ports = [subscription(f"s{port}", url=f"http://host:{port}/") for port in range(10, 20)]
    for port in ports[:5]:
        settle(settlement, PushResult(202) if port is ports[1] else PushResult(0, "timeout"), port)
    assert settlement.unreachable(ports[9]) is None
    settlement.forget()
    for port in ports[5:9]:
        settle(settlement, PushResult(0, "timeout"), port)
    assert settlement.unreachable(ports[9]) is not None


@pytest.mark.parametrize(
    ("result", "signs"),
    [
        (PushResult(202, duration_s=1.0), []),
        (PushResult(202, duration_s=1.001), [Sign("slow")]),
        (PushResult(404), [Sign("quick")]),
        (PushResult(404, duration_s=1.5), [Sign("slow")]),
        (PushResult(500), [Sign("failing", "n")]),
        (PushResult(503, retry_after_s=30.0), [Sign("unreachable", "n", 30_000)]),
        (PushResult(0, "timeout"), [Sign("unreachable", "n")]),
    ],
)
def test_signs_of_an_endpoint(result: PushResult, signs: list[Sign]) -> None:
    _, settlement = settled(result)
    assert settlement.report.signs == [("http://s/", each) for each in signs]


def test_what_is_decided_is_written_down() -> None:
    journal, _ = settled(PushResult(503, retry_after_s=30.0))
    assert (journal.rows[0].state, journal.rows[0].next_ms) == ("parked", NOW_MS + 30_000)
    assert journal.parked == {("s", "n"): Tries(1, 1, NOW_MS + 30_000, NOW_MS)}
    journal, _ = settled(PushResult(500), subscription(policy=DeliveryPolicy(maximum_attempts=1)))
    assert (journal.rows[0].state, journal.buried, journal.parked) == ("dead", [("s", "n")], {})


OLD = "too old when read"


@pytest.mark.parametrize(
    ("target", "age_ms", "valid_ms", "detail"),
    [
        (ANY, 3_599_999, None, ""),
        (ANY, 3_600_000, None, OLD),
        (HASTY, 10, None, OLD),
        (ANY, 0, 1, ""),
        (ANY, 0, 0, "its validity ended at 1970-01-02T03:46:40.000Z"),
        (ANY, 0, 1 - NOW_MS, "its validity ended at 1970-01-01T00:00:00.001Z"),
        # Here the lifespan ended it, and there may be a use for a dead letter.
        (HASTY, 10, 5, OLD),
        (HASTY, 50, -5, OLD),
        # A pull point keeps a message of any age.
        (subscription(pull_point="p"), 3_600_000, None, ""),
        (subscription(pull_point="p"), 3_600_001, -1, "its validity ended at 1970-01-02T03:46:39.999Z"),
    ],
)
def test_what_is_too_old_when_it_is_read_expires_untried(
    target: Subscription, age_ms: int, valid_ms: int | None, detail: str
) -> None:
    """A dead letter is left by the end of the lifespan alone, not by that of the validity."""
    journal, settlement = made()
    valid_until_ms = 0 if valid_ms is None else NOW_MS + valid_ms
    message = received(accepted_ms=NOW_MS - age_ms, valid_until_ms=valid_until_ms)
    assert settlement.expired(target, message) is bool(detail)
    rows = [("expired", "lifespan", 0, "", detail)] if detail else []
    assert [(row.state, row.error, row.number, row.push, row.detail) for row in journal.rows] == rows
    assert journal.buried == ([("s", "n")] if detail == OLD else [])
