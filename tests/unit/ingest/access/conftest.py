"""A gateway that asks who is there, and its clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.gateway_parts import GatewayParts
from tests.support.guarded_gateway import Clock, guarded


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def parts(tmp_path: Path, clock: Clock) -> GatewayParts:
    return guarded(tmp_path, clock)
