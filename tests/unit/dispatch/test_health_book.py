from __future__ import annotations

import pytest

from dispatch.health import Health, Sign
from dispatch.health_book import HealthBook
from dispatch.settings import RetrySettings

HERE = "http://here/"
NOW_MS = 1_700_000_000_000


@pytest.fixture
def book() -> HealthBook:
    return HealthBook(RetrySettings())


def fall(book: HealthBook) -> Health:
    """The breaker opens, and its probe begins."""
    for message in "abc":
        book.note(HERE, Sign("away", message), NOW_MS)
    assert book.begin_push(HERE)
    health = book.get(HERE)
    assert health.breaker == "half-open"
    return health


def test_probe_of_a_killed_process_does_not_keep_the_breaker_for_ever(book: HealthBook) -> None:
    kept = {HERE: fall(HealthBook(RetrySettings()))}

    book.restore(kept)

    assert book.get(HERE).breaker == "open"
    assert book.get(HERE).may_try(book.get(HERE).probe_at_ms)


def test_probe_of_a_failed_shift_is_forgotten(book: HealthBook) -> None:
    fall(book)

    book.forget_probes()

    assert book.get(HERE).breaker == "open"


def test_what_is_known_already_is_newer_than_what_was_kept(book: HealthBook) -> None:
    known = fall(book)

    book.restore({HERE: Health(), "http://there/": Health(failures=1)})

    assert book.get(HERE) == known
    assert book.get("http://there/").failures == 1
