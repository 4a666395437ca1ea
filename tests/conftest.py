"""Fixtures of all tests; each kind of outside need has its own module in tests/support."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import random
import re
import signal
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import pytest
import typer.main
from xdist.scheduler import LoadScopeScheduling

from tests.support.receiver import Receiver

_ROOT = Path(__file__).parents[1]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Of a shell that has put us into the background. What tests start, and send Ctrl-C to, would ignore it as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # Of nohup. We go on when the terminal ends; what tests start, and send this to, does not inherit a handler.
    signal.signal(signal.SIGHUP, lambda number, frame: None)

pytest_plugins = [
    f"tests.support.{name}" for name in ("broker", "spark", "slapd", "mosquitto", "chromium", "console_engine")
]

# A call of CliRunner would make all commands from the signatures of their functions: three quarters of its time.
mock.patch("typer.testing._get_command", cache(typer.main.get_command)).start()

# However busy the machine is, no test fails for it: neither an example nor the making of one has a deadline.
for _name, _examples in (("quick", 15), ("usual", 50), ("long", 2_000)):
    hypothesis.settings.register_profile(
        _name, max_examples=_examples, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
hypothesis.settings.load_profile("usual")  # another: pytest --hypothesis-profile=long

# With several processes, what takes longest begins first, so that all end together.
_FIRST = ("spark", "stack", "kafka", "ldap")


_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """With several processes, each reads the files in another order: in a new clone pytest compiles each file, for two
    thirds of the time, and processes with one order would all compile the same file at the same time."""
    report = yield
    if _WORKER and isinstance(collector, pytest.Directory):
        random.Random(_WORKER).shuffle(report.result)
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several processes, put tests in the order in which their files are handed out."""
    if _WORKER:
        items.sort(key=lambda item: (*_turn(item), item.path))


def pytest_collection_finish() -> None:
    """Modules and tests live as long as the process: later collections of garbage skip them."""
    gc.freeze()


def _turn(item: pytest.Item) -> tuple[int, int]:
    turn = next((turn for turn, name in enumerate(_FIRST) if item.get_closest_marker(name)), len(_FIRST))
    if "shared_jobs" not in getattr(item, "fixturenames", ()):
        return turn, 2
    # A shared job is started once where no other one runs in between.
    return turn, int(item.callspec.params.get("gear") == "batch") if hasattr(item, "callspec") else 0


class _ByWhatIsShared(LoadScopeScheduling):  # type: ignore[misc]  # it ships no type information
    """Tests of one file run in one process, as they share fixtures, those of a lane in one, too.

    pytest-xdist's own groups (`loadgroup`) change ids of tests in a way that pytest 9 does not know any more.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _lane(nodeid)


def _lane(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return _lanes().get(file, file)


@cache
def _lanes() -> dict[str, str]:
    """The lane of each file whose tests use an embedded engine or a Spark session: a session takes a gigabyte of memory
    and a quarter of a minute to start. Tests that share an engine are in one, tests that share a job in another, and a
    third of the files with jobs of their own. Tests that kill a broker share one, too."""
    lanes, own = {}, 0
    for file in sorted((_ROOT / "tests" / "integration").rglob("test_*.py")):
        name, text = file.relative_to(_ROOT).as_posix(), file.read_text(encoding="utf-8")
        if "spark: SparkSession" in text:
            own += 1
            lanes[name] = "spark" if own % 3 else "shared job"
        elif "console_engine" in text:
            lanes[name] = "engine"
        elif "own_broker: " in text:
            lanes[name] = "own broker"
        elif "mark.spark" in text and re.search("own: Own|job: RunningJob|gateway: GatewayRun", text):
            lanes[name] = "shared job"
    return lanes


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the shared engine behind the last test of its lane: idle, it takes a sixth of a processor."""
    if _WORKER and nextitem is not None and _lane(item.nodeid) == "engine" != _lane(nextitem.nodeid):
        from tests.support.console_engine import ConsoleEngine  # not before pytest can rewrite its assertions

        ConsoleEngine.stop_last()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Who hands out the tests."""
    return _ByWhatIsShared(config, log)


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


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A subscriber of the test's own."""
    with Receiver() as started:
        yield started


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
