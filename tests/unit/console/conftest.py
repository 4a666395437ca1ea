"""A console over a list of records, and a browser without script. A file with its own records overrides `parts`."""

from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.admin.messages import Busiest
from arborcast.console.screens import trying
from tests.support.console import Browser, ConsoleParts, console_parts


@pytest.fixture
def parts(tmp_path: Path) -> ConsoleParts:
    return console_parts(tmp_path)


@pytest.fixture
def browser(parts: ConsoleParts) -> Browser:
    return Browser(parts.app)


@pytest.fixture(autouse=True)
def nothing_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen *Try* reads the newest notifications: unit tests have no Kafka."""
    monkeypatch.setattr(trying, "busiest", lambda *_: Busiest([]))
