"""Replaces time, threads, Kafka and Spark in all modules of `arborcast` during a history.

Production code uses the modules `time`, `threading`, `random`, `uuid` and `os`, a Kafka client and Spark. Only these
names, and default arguments taken from them, are replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from arborcast.core.eventlog import client
from tests.world.brokers import Broker, connected
from tests.world.kernel import Exit, Future, Kernel, Process, Threading

# Module globals of which each process has its own, and what a process begins with.
OF_A_PROCESS: tuple[tuple[str, str, object], ...] = (
    ("arborcast.dispatch.hot.worker", "_worker", None),
    ("arborcast.dispatch.matching.view", "_opened", None),
    ("arborcast.core.fence", "_until", None),
)


class SimulatedTime:
    """The module `time`."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def time(self) -> float:
        return self._kernel.wall_s()

    def monotonic(self) -> float:
        return self._kernel.now

    perf_counter = monotonic

    def clock_gettime(self, clock: int) -> float:
        return self._kernel.now

    def sleep(self, seconds: float) -> None:
        self._kernel.sleep(seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class SimulatedOs:
    """The functions of the module `os` for processes."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def getpid(self) -> int:
        process = self._kernel.running
        return process.pid if process is not None else 0

    def kill(self, pid: int, signal: int) -> None:
        process = self._kernel.processes.get(pid)
        if process is None:
            raise ProcessLookupError
        self._kernel.call(0.0, process.kill)

    def _exit(self, status: int) -> None:
        process = self._kernel.running
        assert process is not None
        if process.alive:
            self._kernel.call(0.0, process.kill)
            self._kernel.block(None)
        raise Exit

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class SimulatedUuid:
    """The module `uuid`, from the seed."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(int=self._kernel.random.getrandbits(128), version=4)

    def __getattr__(self, name: str) -> Any:
        return getattr(uuid, name)


class SimulatedSecrets:
    """The module `secrets`, from the seed."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def token_hex(self, size: int) -> str:
        return f"{self._kernel.random.getrandbits(8 * size):0{2 * size}x}"

    def __getattr__(self, name: str) -> Any:
        return getattr(secrets, name)


class SimulatedRandom:
    """The module `random`, from the seed."""

    def __init__(self, kernel: Kernel) -> None:
        self._random = kernel.random

    def __getattr__(self, name: str) -> Any:
        return getattr(self._random, name) if hasattr(self._random, name) else getattr(random, name)


@contextlib.contextmanager
def installed(kernel: Kernel, broker: Broker, more: dict[tuple[str, str], Any]) -> Iterator[None]:
    """Replace them in this context. `more` are attributes by module and name."""
    simulated = SimulatedTime(kernel)
    exchanged: dict[int, Any] = {
        id(time): simulated,
        id(threading): Threading(kernel),
        id(os): SimulatedOs(kernel),
        id(uuid): SimulatedUuid(kernel),
        id(random): SimulatedRandom(kernel),
        id(secrets): SimulatedSecrets(kernel),
    }
    defaults: dict[Any, Any] = {time.time: simulated.time, time.monotonic: simulated.monotonic}
    undo: list[Callable[[], None]] = []

    def exchange(owner: Any, name: str, value: Any) -> None:
        before = getattr(owner, name)
        undo.append(lambda: setattr(owner, name, before))
        setattr(owner, name, value)

    def connect(factory: Any, settings: Any, arguments: dict[str, Any]) -> Any:
        with client.translated(f"Kafka at {settings.bootstrap_servers} does not answer"):
            return connected(broker, arguments)

    before = dict(more)
    before[client.__name__, "_connected"] = connect
    before["arborcast.core.eventlog.writers", "Future"] = lambda: Future(kernel)
    for (module, name), value in before.items():
        exchange(sys.modules[module], name, value)
    for module_name in sorted(sys.modules):
        module = sys.modules[module_name]
        if not module_name.startswith("arborcast.") or not isinstance(module, types.ModuleType):
            continue
        for name, value in list(vars(module).items()):
            if id(value) in exchanged and value is not None:
                exchange(module, name, exchanged[id(value)])
            elif getattr(value, "__module__", "") == module_name:
                for function in _functions(value):
                    if any(_is_one_of(each, defaults) for each in function.__defaults__ or ()):
                        found = tuple(
                            defaults.get(each, each) if _is_one_of(each, defaults) else each
                            for each in function.__defaults__ or ()
                        )
                        exchange(function, "__defaults__", found)
                    if any(_is_one_of(each, defaults) for each in (function.__kwdefaults__ or {}).values()):
                        keywords = {
                            key: defaults[each] if _is_one_of(each, defaults) else each
                            for key, each in (function.__kwdefaults__ or {}).items()
                        }
                        exchange(function, "__kwdefaults__", keywords)

    def switched(old: Process | None, new: Process | None) -> None:
        if old is not None:
            old.state["asyncio", "loop"] = asyncio._get_running_loop()
        asyncio._set_running_loop(new.state.get(("asyncio", "loop")) if new is not None else None)
        for module, name, first in OF_A_PROCESS:
            place = vars(sys.modules[module])
            if old is not None:
                old.state[module, name] = place[name]
            place[name] = new.state.get((module, name), first) if new is not None else first

    kernel.switched = switched
    try:
        yield
    finally:
        kernel.close()
        while undo:
            undo.pop()()


def _is_one_of(value: object, known: dict[Any, Any]) -> bool:
    return isinstance(value, types.BuiltinFunctionType) and value in known


def _functions(value: object) -> Iterator[types.FunctionType]:
    if isinstance(value, types.FunctionType):
        yield value
    elif isinstance(value, type):
        for each in vars(value).values():
            if isinstance(each, types.FunctionType):
                yield each
