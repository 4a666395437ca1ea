"""A console over a list of records, and a browser without script. A file with its own records overrides `parts`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from arborcast.admin.messages import Busiest
from arborcast.console.screens import trying
from tests.support import console_answers
from tests.support.console import Browser, ConsoleParts, console_parts
from tests.support.console_answers import Answering


@pytest.fixture
def parts(tmp_path: Path) -> ConsoleParts:
    return console_parts(tmp_path)


@pytest.fixture
def browser(parts: ConsoleParts) -> Browser:
    return Browser(parts.app)


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Answering:
    return partial(console_answers.answering, monkeypatch)


@pytest.fixture(autouse=True)
def nothing_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen *Try* reads the newest notifications: unit tests have no Kafka."""
    monkeypatch.setattr(trying, "busiest", lambda *_: Busiest([]))
