"""Fixtures of all tests; each kind of outside need has its own module in tests/support."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import hypothesis
import pytest

pytest_plugins = ["tests.support.broker", "tests.support.spark", "tests.support.slapd"]

# However busy the machine is, no test fails for it: neither an example nor the making of one has a deadline.
hypothesis.settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")

# For an hour of leisure: `pytest --hypothesis-profile=long tests/unit/dispatch/redelivery/test_model.py`.
hypothesis.settings.register_profile("long", max_examples=10_000)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on what the developer has exported; the caches may stay where they are."""
    for name in list(os.environ):
        if name.startswith("ARBORCAST_") and name not in ("ARBORCAST_CACHE", "ARBORCAST_JAVA"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _clean_logging() -> Iterator[None]:
    """A command that runs in this process sends logging to the standard error of its test, which ends with it."""
    root = logging.getLogger()
    before = root.handlers[:]
    yield
    for handler in root.handlers[:]:
        if handler not in before:
            root.removeHandler(handler)
