from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.admin.backup import BatchSpan, progress

MINUTE = 60_000
NOW = 1_800_000_000_000


def test_of_the_newest_batch_everything_may_be_under_way() -> None:
    found = progress([BatchSpan(NOW, 7, 0, 10, 19), BatchSpan(NOW + 9, 8, 0, 25, 30), BatchSpan(NOW + 5, 8, 0, 20, 24)])
    assert found.first_undelivered(0, at_before=3) == 20


def test_a_partition_that_the_newest_batch_had_nothing_from() -> None:
    found = progress([BatchSpan(NOW, 7, 1, 10, 19), BatchSpan(NOW + 5, 8, 0, 20, 24)])
    assert found.before_ms == NOW - MINUTE
    assert found.first_undelivered(1, at_before=15) == 20, "batch 7 is done"
    assert found.first_undelivered(1, at_before=22) == 22
    assert found.first_undelivered(2, at_before=4) == 4, "how far it had come is unknown, but the older was looked at"


def test_nothing_is_known_of_an_engine_that_never_dispatched() -> None:
    found = progress([])
    assert found.before_ms is None
    assert found.first_undelivered(0, at_before=0) == 0


def test_a_run_in_real_time_has_one_number_however_long_it_lasts() -> None:
    found = progress([BatchSpan(NOW, 7, 0, 10, 19), BatchSpan(NOW + 2 * MINUTE, 7, 0, 20, 22)])
    assert found.first_undelivered(0, at_before=0) == 20


@pytest.mark.parametrize("skew_ms", [-MINUTE // 2, 0, MINUTE // 2])
def test_hosts_whose_clocks_differ(skew_ms: int) -> None:
    found = progress([BatchSpan(NOW + skew_ms, 7, 0, 10, 19), BatchSpan(NOW, 8, 1, 5, 9)])
    assert found.first_undelivered(1, at_before=0) == 5, "what batch 8 has begun is not taken for done"
    assert found.first_undelivered(0, at_before=0) in (10, 20)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=30), st.integers(0, 2**32))
def test_every_notification_of_the_newest_batch_and_later_is_owed(sizes: list[int], seed: int) -> None:
    """Batches one after the other over two partitions, their records in any order."""
    seen, ends, first_of_newest = [], [0, 0], {}
    for batch, size in enumerate(sizes):
        partition = (seed >> batch) & 1
        first_of_newest = {partition: ends[partition]}
        seen.append(BatchSpan(NOW + batch * 100, batch, partition, ends[partition], ends[partition] + size - 1))
        ends[partition] += size
    found = progress(seen[::-1])
    for partition, end in enumerate(ends):
        # Nothing was written long ago: what the time tells is the beginning.
        assert found.first_undelivered(partition, at_before=0) == first_of_newest.get(partition, end)
