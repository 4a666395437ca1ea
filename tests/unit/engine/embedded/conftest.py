"""The data directory of an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.engine.embedded.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "data")
    home.create()
    return home
