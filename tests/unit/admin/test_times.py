"""Times as an operator writes them."""

from __future__ import annotations

import pytest

from arborcast.admin.times import beginning, moment_ms
from arborcast.core.errors import ConfigError


def test_spans_times_and_errors_that_name_their_field() -> None:
    assert [1_000_000 - beginning(text, 1_000_000) for text in ("30m", "1.5h", "2 d", "90s")] == [
        1_800,
        5_400,
        172_800,
        90,
    ]
    assert beginning("2026-01-01T00:00:00+00:00", 0) == 1_767_225_600
    with pytest.raises(ConfigError, match="yesterday"):
        beginning("yesterday", 0)
    with pytest.raises(ConfigError, match=r"^until --help: write a span"):
        moment_ms("until", "--help")
