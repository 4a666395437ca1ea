from __future__ import annotations

import pytest

from arborcast.dispatch.spark.checkpoint_repair import RANGE, RANGES, first_number


class FakeFolder(dict[str, set[int]]):
    """A checkpoint with so many batches planned."""

    def __init__(self, planned: int = 0) -> None:
        super().__init__({"offsets": set(range(planned))})

    def highest(self, kind: str) -> int | None:
        return max(self.get(kind, ()), default=None)

    def add(self, kind: str, number: int) -> None:
        self.setdefault(kind, set()).add(number)


def never() -> int:
    raise AssertionError("the logs are asked once in the life of a checkpoint")


def test_a_new_engine_counts_from_0() -> None:
    assert first_number(FakeFolder(), lambda: -1) == 0


@pytest.mark.parametrize(("newest", "first"), [(0, RANGE), (17, RANGE), (RANGE, 2 * RANGE), (3 * RANGE + 5, 4 * RANGE)])
def test_a_new_checkpoint_counts_on_above_all_that_is_known(newest: int, first: int) -> None:
    assert first_number(FakeFolder(), lambda: newest) == first


def test_a_checkpoint_keeps_its_range_whatever_happens_to_the_logs() -> None:
    folder = FakeFolder()
    assert first_number(folder, lambda: 17) == RANGE
    for planned in range(3):
        folder.add("offsets", planned)
        assert first_number(folder, never) == RANGE


@pytest.mark.parametrize(("newest", "first"), [(0, RANGE), (10, RANGE), (RANGE + 3, 2 * RANGE)])
def test_one_that_has_lost_its_range_goes_on_above_what_is_known(newest: int, first: int) -> None:
    folder = FakeFolder(planned=10)
    assert first_number(folder, lambda: newest) == first
    assert folder[RANGES] == {first // RANGE}
