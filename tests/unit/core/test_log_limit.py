from __future__ import annotations

import logging

from arborcast.core.log_limit import LogLimit


def test_equal_lines_are_limited_and_omitted_ones_are_counted() -> None:
    now = 0.0
    limit = LogLimit(3, 10.0, lambda: now)

    def line(number: int) -> logging.LogRecord:
        return logging.LogRecord("gateway", logging.WARNING, "refused.py", number, "refused", None, None)

    assert [limit.filter(line(1)) for _ in range(5)] == [True] * 3 + [False] * 2
    assert limit.filter(line(2))  # of another call
    now = 9.0
    assert not limit.filter(line(1))
    now = 10.0
    after = line(1)
    assert limit.filter(after)
    assert vars(after)["omitted"] == 3
    assert not limit.filter(line(1))
    now = 1_000.0
    assert sum(limit.filter(line(1)) for _ in range(5)) == 3
