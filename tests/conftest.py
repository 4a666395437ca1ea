"""Fixtures of all tests; each kind of outside need has its own module in tests/support."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import hypothesis
import pytest

pytest_plugins = ["tests.support.broker", "tests.support.spark", "tests.support.slapd"]

# However busy the machine is, no test fails for it: neither an example nor the making of one has a deadline.
for _name, _examples in (("quick", 15), ("usual", 50), ("long", 2_000)):
    hypothesis.settings.register_profile(
        _name, max_examples=_examples, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
hypothesis.settings.load_profile("usual")  # another: pytest --hypothesis-profile=long

# With several processes: what takes longest begins first, so that all end together.
_FIRST = ("stack", "spark", "kafka", "ldap")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one file run in one process, as they share fixtures; all that use the Spark session in one, too."""
    for item in items:
        shared = "spark" if "spark" in getattr(item, "fixturenames", ()) else str(item.path)
        item.add_marker(pytest.mark.xdist_group(shared))
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    return next((turn for turn, name in enumerate(_FIRST) if item.get_closest_marker(name)), len(_FIRST))


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
