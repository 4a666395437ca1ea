"""Times as an operator writes them."""

from __future__ import annotations

import pytest

from arborcast.admin.times import beginning, moment_ms
from arborcast.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30m", 1_000_000 - 1_800), ("1.5h", 1_000_000 - 5_400), ("2 d", 1_000_000 - 172_800), ("90s", 1_000_000 - 90)],
)
def test_spans(text: str, expected: float) -> None:
    assert beginning(text, 1_000_000) == expected


def test_times() -> None:
    assert beginning("2026-01-01T00:00:00+00:00", 0) == 1_767_225_600
    with pytest.raises(ConfigError, match="yesterday"):
        beginning("yesterday", 0)


def test_an_error_names_the_field_as_pages_and_commands_do() -> None:
    with pytest.raises(ConfigError, match=r"^until --help: write a span"):
        moment_ms("until", "--help")
