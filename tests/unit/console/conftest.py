"""A console over a list of records, and a browser without script. A file that needs records has `parts` of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.console import Browser, ConsoleParts, console_parts


@pytest.fixture
def parts(tmp_path: Path) -> ConsoleParts:
    return console_parts(tmp_path)


@pytest.fixture
def browser(parts: ConsoleParts) -> Browser:
    return Browser(parts.app)
