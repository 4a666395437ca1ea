from __future__ import annotations

import pytest

from arborcast.core.recent import BoundedDict, Recent
from tests.support.make import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_what_is_used_stays_and_what_is_not_goes_with_its_generation(clock: Clock) -> None:
    recent: Recent[str, int] = Recent(max_bytes=100_000, age_s=60, clock=clock)
    recent.put("used", 1, 10)
    recent.put("unused", 2, 10)

    for _ in range(5):
        clock.now += 50
        assert recent.get("used") == 1

    assert recent.get("unused") is None
    assert len(recent) == 1


def test_however_many_keys_there_were_and_however_large_no_more_than_two_generations_are_kept(clock: Clock) -> None:
    recent: Recent[str, bytes] = Recent(max_bytes=100_000, clock=clock)
    for number in range(100_000):
        recent.put(f"http://host{number}/", b"", 100)
    assert len(recent) <= 2 * 100_000 / 300

    for number in range(1_000):
        recent.put(f"http://large{number}/", bytes(30_000), 30_000)
    assert len(recent) <= 6


def test_one_that_is_larger_than_a_generation_stays_as_long_as_it_is_used(clock: Clock) -> None:
    recent: Recent[str, str] = Recent(max_bytes=1_000, clock=clock)
    recent.put("large", "l", 100_000)

    for number in range(100):
        recent.put(f"small{number}", "s", 100)
        assert recent.get("large") == "l"
        assert len(recent) <= 4


def test_after_a_long_silence_nothing_is_left(clock: Clock) -> None:
    recent: Recent[str, int] = Recent(max_bytes=100_000, age_s=60, clock=clock)
    recent.put("a", 1, 10)

    clock.now += 120

    assert recent.get("a") is None
    assert len(recent) == 0


def test_of_a_bounded_dict_the_entry_set_longest_ago_goes_first() -> None:
    bounded: BoundedDict[str, int] = BoundedDict(2)
    bounded["a"] = 1
    bounded["b"] = 2
    bounded["a"] = 3
    bounded["c"] = 4
    assert list(bounded.items()) == [("a", 3), ("c", 4)]
