from __future__ import annotations

import pytest

from arborcast.dispatch.delivery.health import Sign
from arborcast.dispatch.delivery.outcomes import classify
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult
from arborcast.dispatch.delivery.verdict import Push
from arborcast.dispatch.hot.batch_outcomes import BatchOutcomes
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.logs.parked import Tries
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import DeliveryPolicy, EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.fake_journal import FakeJournal

NOW_MS = 100_000_000
RETRY = RetrySettings(first_wait_s=1.0, jitter=0.0, lifespan_s=3_600.0)


def settled(
    result: PushResult,
    target: Subscription | None = None,
    push: PushSettings = PushSettings(),  # noqa: B008
) -> tuple[FakeJournal, BatchOutcomes]:
    """The settlement of one push of one message."""
    journal, settlement = made(push)
    target = target or subscription()
    received = message()
    push_made = Push("p", [received.notification], PushRequest("http://s/", (), b""), result, NOW_MS)
    settlement.settle(target, [received], push_made, classify(result))
    return journal, settlement


def made(push: PushSettings = PushSettings()) -> tuple[FakeJournal, BatchOutcomes]:  # noqa: B008 - immutable
    journal = FakeJournal()
    return journal, BatchOutcomes(journal, push, RETRY, now=lambda: NOW_MS / 1000, chance=lambda: 0.0)


def subscription(**policy: object) -> Subscription:
    return Subscription("s", EndpointReference("http://s/"), policy=DeliveryPolicy(**policy))  # type: ignore[arg-type]


def message(accepted_ms: int = NOW_MS, valid_until_ms: int = 0) -> Received:
    return Received(Notification("n", TopicPath("a"), b"<x/>", accepted_ms, valid_until_ms=valid_until_ms), 0, 0)


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
    _, settlement = settled(result, push=PushSettings(total_timeout_s=2.0))
    assert settlement.report.signs == [("http://s/", each) for each in signs]


def test_what_is_decided_is_written_down() -> None:
    journal, _ = settled(PushResult(503, retry_after_s=30.0))
    assert (journal.rows[0].state, journal.rows[0].next_ms) == ("parked", NOW_MS + 30_000)
    assert journal.parked == {("s", "n"): Tries(1, 1, NOW_MS + 30_000, NOW_MS)}
    journal, _ = settled(PushResult(500), subscription(maximum_attempts=1))
    assert (journal.rows[0].state, journal.buried, journal.parked) == ("dead", [("s", "n")], {})


def test_what_was_too_old_when_it_was_read_expires_untried() -> None:
    journal, settlement = made()

    assert not settlement.expired(subscription(), message(NOW_MS - 3_599_999))
    assert settlement.expired(subscription(), message(NOW_MS - 3_600_000))
    assert settlement.expired(subscription(lifespan_ms=10), message(NOW_MS - 10))
    assert [(row.state, row.error, row.number, row.push) for row in journal.rows] == [
        ("expired", "lifespan", 0, "")
    ] * 2
    assert journal.buried == [("s", "n")] * 2


def test_what_its_publisher_wants_no_more_expires_untried_and_leaves_no_dead_letter() -> None:
    journal, settlement = made()

    assert not settlement.expired(subscription(), message(valid_until_ms=NOW_MS + 1))
    assert settlement.expired(subscription(), message(valid_until_ms=NOW_MS))
    assert settlement.expired(subscription(), message(valid_until_ms=1))
    assert {(row.state, row.error, row.number) for row in journal.rows} == {("expired", "lifespan", 0)}
    assert [row.detail for row in journal.rows] == [
        "its validity ended at 1970-01-02T03:46:40.000Z",
        "its validity ended at 1970-01-01T00:00:00.001Z",
    ]
    assert journal.buried == []
    # Here we were the first who gave it up, and somebody may want it back.
    assert settlement.expired(subscription(lifespan_ms=10), message(NOW_MS - 10, valid_until_ms=NOW_MS + 5))
    assert settlement.expired(subscription(lifespan_ms=10), message(NOW_MS - 50, valid_until_ms=NOW_MS - 5))
    assert journal.buried == [("s", "n")] * 2
    assert [row.detail for row in journal.rows[2:]] == ["too old when read"] * 2


def test_what_is_for_a_pull_point_is_too_old_for_its_publisher_only() -> None:
    journal, settlement = made()
    pulled = Subscription("s", EndpointReference("http://s/"), pull_point="p")

    assert not settlement.expired(pulled, message(NOW_MS - 3_600_000))
    assert settlement.expired(pulled, message(NOW_MS - 3_600_001, valid_until_ms=NOW_MS - 1))
    assert journal.buried == []
