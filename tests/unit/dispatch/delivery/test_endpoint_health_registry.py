from __future__ import annotations

import pytest

from arborcast.dispatch.delivery.health import EndpointHealthRegistry, Health, Sign
from arborcast.dispatch.settings import RetrySettings

HERE = "http://here/"
NOW_MS = 1_700_000_000_000


THERE = "http://there/"


@pytest.fixture
def used() -> set[str]:
    """The endpoints that somebody subscribes with."""
    return {HERE, THERE, "http://slow/"}


@pytest.fixture
def book(used: set[str]) -> EndpointHealthRegistry:
    return EndpointHealthRegistry(RetrySettings(), used.__contains__)


def fall(book: EndpointHealthRegistry) -> Health:
    """The breaker opens, and its probe begins."""
    for message in "abc":
        book.note(HERE, Sign("unreachable", message), NOW_MS)
    assert book.begin_push(HERE)
    health = book.get(HERE)
    assert health.breaker == "half-open"
    return health


def test_probe_of_a_killed_process_does_not_keep_the_breaker_for_ever(book: EndpointHealthRegistry) -> None:
    kept = {HERE: fall(EndpointHealthRegistry(RetrySettings(), {HERE}.__contains__))}

    book.restore(kept)

    assert book.get(HERE).breaker == "open"
    assert book.get(HERE).may_try(book.get(HERE).probe_at_ms)


def test_probe_of_a_failed_shift_is_forgotten(book: EndpointHealthRegistry) -> None:
    fall(book)

    book.note("http://there/", Sign("unreachable", "m"), NOW_MS)
    closed = book.get("http://there/")

    book.forget_probes()

    assert book.get(HERE).breaker == "open"
    assert book.get("http://there/") == closed


def test_what_is_known_already_is_newer_than_what_was_kept(book: EndpointHealthRegistry) -> None:
    known = fall(book)

    book.restore({HERE: Health(), "http://there/": Health(failures=1)})

    assert book.get(HERE) == known
    assert book.get("http://there/") == Health(failures=1)


def test_endpoints_that_are_well_take_no_memory(book: EndpointHealthRegistry) -> None:
    assert book.note(HERE, Sign("quick"), NOW_MS) == Health()
    assert book.everything() == {}

    for _ in range(3):
        book.note(HERE, Sign("slow"), NOW_MS)
    for _ in range(3):
        book.note(HERE, Sign("quick"), NOW_MS + 1_000)
    assert list(book.everything()) == [HERE]  # a relapse would be its second

    book.note(HERE, Sign("quick"), NOW_MS + 2_000_000)
    assert book.everything() == {}


def test_batches_pass_over_the_degraded_and_report_successes_of_these_and_of_those_that_fail(
    book: EndpointHealthRegistry,
) -> None:
    book.note(HERE, Sign("failing", "a"), NOW_MS)
    book.note("http://slow/", Sign("slow"), NOW_MS)

    assert book.degraded() == {"http://slow/"}
    assert book.watched() == {HERE, "http://slow/"}


def test_who_is_vouched_for_is_probed_at_once_and_has_the_whole_time_again(book: EndpointHealthRegistry) -> None:
    for message in "abc":
        book.note(HERE, Sign("unreachable", message), NOW_MS)
    opened = book.get(HERE)

    book.resume(HERE, NOW_MS + 10)
    book.resume("http://there/", NOW_MS)

    forgiven = book.get(HERE)
    assert (forgiven.breaker, forgiven.probe_at_ms, forgiven.failing_since_ms) == ("open", NOW_MS + 10, 0)
    assert forgiven.failures == opened.failures
    assert list(book.everything()) == [HERE]

    # A probe that is due already does not come later for it.
    book.resume(HERE, NOW_MS + 60_000)
    assert book.get(HERE).probe_at_ms == NOW_MS + 10


def test_an_endpoint_that_nobody_has_any_more_is_forgotten_however_sick_it_is(
    book: EndpointHealthRegistry, used: set[str]
) -> None:
    fall(book)
    book.note(THERE, Sign("slow"), NOW_MS)
    used.remove(HERE)

    book.forget(HERE)
    book.forget("http://never/")

    assert list(book.everything()) == [THERE]
    assert book.degraded() == {THERE}
    assert book.watched() == {THERE}
    assert book.get(HERE) == Health()


def test_what_a_push_says_that_ends_after_its_subscription_is_not_kept(
    book: EndpointHealthRegistry, used: set[str]
) -> None:
    fall(book)
    used.remove(HERE)
    book.forget(HERE)

    assert book.note(HERE, Sign("unreachable", "late"), NOW_MS) == Health()

    assert not book.begin_push(HERE)
    assert book.everything() == {}
    used.add(HERE)
    assert book.note(HERE, Sign("unreachable", "later"), NOW_MS).failures == 1


def test_a_restart_brings_back_nothing_that_nobody_has(book: EndpointHealthRegistry) -> None:
    sick = Health(degraded=True)

    book.restore({HERE: sick, "http://gone/": sick})

    assert book.everything() == {HERE: sick}
