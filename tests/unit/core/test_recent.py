from __future__ import annotations

from arborcast.core.recent import BoundedDict, Recent
from tests.support.make import Clock


def test_entries_in_use_stay_and_others_expire() -> None:
    clock = Clock()
    recent: Recent[str, int] = Recent(max_bytes=100_000, age_s=60, clock=clock)
    recent.put("used", 1, 10)
    recent.put("unused", 2, 10)
    for _ in range(5):
        clock.after(50)
        assert recent.get("used") == 1
    assert recent.get("unused") is None
    assert len(recent) == 1

    clock.after(120)
    assert recent.get("used") is None, "after a long pause"
    assert len(recent) == 0


def test_a_new_entry_stays_after_a_long_time_with_writes_only() -> None:
    clock = Clock()
    recent: Recent[str, int] = Recent(max_bytes=100_000, age_s=60, clock=clock)
    for number in range(20):
        clock.after(10)
        recent.put(f"id{number}", number, 10)
    assert recent.get("id19") == 19
    assert len(recent) <= 12, "older ones are dropped"


def test_no_more_than_two_generations_are_kept() -> None:
    recent: Recent[str, bytes] = Recent(max_bytes=100_000, clock=Clock())
    for number in range(10_000):
        recent.put(f"http://host{number}/", b"", 100)
    assert len(recent) <= 2 * 100_000 / 300
    for number in range(1_000):
        recent.put(f"http://large{number}/", bytes(30_000), 30_000)
    assert len(recent) <= 6

    # An entry larger than a generation stays as long as it is used.
    few: Recent[str, str] = Recent(max_bytes=1_000, clock=Clock())
    few.put("large", "l", 100_000)
    for number in range(100):
        few.put(f"small{number}", "s", 100)
        assert few.get("large") == "l"
        assert len(few) <= 4


def test_a_bounded_dict_drops_the_oldest_entry() -> None:
    bounded: BoundedDict[str, int] = BoundedDict(2)
    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        bounded[key] = value
    assert list(bounded.items()) == [("a", 3), ("c", 4)]
