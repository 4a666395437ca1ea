"""Fixtures of all tests; tests/support has a module for each external program."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import random
import re
import signal
import tempfile
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
    # Ignored in background processes of a shell; child processes of tests, to which SIGINT is sent, would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # Ignored under nohup. A handler keeps the run alive when the terminal closes and not inherited by child processes.
    signal.signal(signal.SIGHUP, lambda number, frame: None)

pytest_plugins = [
    f"tests.support.{name}" for name in ("broker", "spark", "slapd", "mosquitto", "chromium", "console_engine")
]

# CliRunner would build all commands from the signatures of their functions in each call: three quarters of its time.
mock.patch("typer.testing._get_command", cache(typer.main.get_command)).start()

# No deadline for examples or their generation: no test fails on a busy machine.
for _name, _examples in (("quick", 15), ("usual", 50), ("long", 2_000)):
    hypothesis.settings.register_profile(
        _name, max_examples=_examples, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
hypothesis.settings.load_profile("usual")  # another: pytest --hypothesis-profile=long

# With several processes, the longest tests begin first, so that all processes end together.
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
    # A shared job is started once when no other job runs in between.
    return turn, int(item.callspec.params.get("mode") == "batch") if hasattr(item, "callspec") else 0


class _ByWhatIsShared(LoadScopeScheduling):  # type: ignore[misc]  # it ships no type information
    """Tests of one file run in one process, since they share fixtures; tests of a lane in one, too.

    pytest-xdist's own groups (`loadgroup`) change test ids in a way that pytest 9 does not support.
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
    third of the files with a private job. Tests that kill a broker share a lane, too."""
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
    """Stop the shared engine after the last test of its lane: an idle engine takes a sixth of a processor."""
    if _WORKER and nextitem is not None and _lane(item.nodeid) == "engine" != _lane(nextitem.nodeid):
        from tests.support.console_engine import ConsoleEngine  # not before pytest can rewrite its assertions

        ConsoleEngine.stop_last()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """The scheduler for pytest-xdist."""
    return _ByWhatIsShared(config, log)


@pytest.fixture(scope="session", autouse=True)
def _temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The temporary files of killed processes are removed with those of the run."""
    os.environ["TMPDIR"] = tempfile.tempdir = str(tmp_path_factory.getbasetemp())


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not depend on the developer's environment variables, except for the cache directories."""
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
    """An HTTP subscriber for one test."""
    with Receiver() as started:
        yield started


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test in a new event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
