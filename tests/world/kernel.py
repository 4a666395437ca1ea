"""Simulated time, processes and threads: everything runs in one thread of the machine, one step after the other.

A simulated thread is a greenlet. It runs until it waits; then the next event of a heap is due, and time advances to it.
So days pass in seconds, and one seed determines one history. A process is a number of such threads with a host, whose
clock may be wrong. When a process is killed its greenlets are unwound at once, and their calls meanwhile have no
effect.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import greenlet

EPOCH_S = 1_700_000_000.0

Exit = greenlet.GreenletExit


class Host:
    """A host of processes. `ahead_s` is the error of its clock."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ahead_s = 0.0


class Process:
    """A process. `state` are its values of module globals."""

    def __init__(self, kernel: Kernel, name: str, host: Host) -> None:
        self.kernel = kernel
        self.name = name
        self.host = host
        self.pid = next(kernel.pids)
        self.alive = True
        self.fibers: dict[Fiber, None] = {}
        self.state: dict[tuple[str, str], Any] = {}
        self.at_death: list[Callable[[], None]] = []  # called at its kill, before the greenlets are unwound
        self.at_end: list[Callable[[], None]] = []
        self.steps = 0
        self.kill_at = 0  # the step at which it is killed; 0 for none
        self.task: Any = None
        self.lag_s = 0.0  # the delay with which it reads the control log

    def step(self) -> None:
        """Called before each effect on other processes: here a process may be killed."""
        self.steps += 1
        if self.steps == self.kill_at:
            self.kernel.count("killed at a step")
            self.kernel.call(0.0, self.kill)
            self.kernel.block(None)

    def kill(self) -> None:
        """kill -9."""
        self.kernel.end(self)


class Fiber:
    """A simulated thread."""

    def __init__(self, process: Process, target: Callable[[], object], name: str) -> None:
        self.process = process
        self.name = name
        self.turn = 0  # the number of its waits: a wake-up is for one of them
        self.woken = False
        self.over = False
        self.failure: BaseException | None = None
        self.greenlet = greenlet.greenlet(lambda: self._run(target), process.kernel.hub)
        self.joiners: list[tuple[Fiber, int]] = []

    def _run(self, target: Callable[[], object]) -> None:
        try:
            target()
        except Exit:
            pass
        except BaseException as error:
            self.failure = error
            self.process.kernel.failures.append((self, error))
        finally:
            self.over = True
            self.process.fibers.pop(self, None)
            for fiber, turn in self.joiners:
                self.process.kernel.wake(fiber, turn)


class Kernel:
    """The simulated time, and the due events."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(f"world {seed}")
        self.now = 0.0
        self.events = 0
        self.pids = itertools.count(1_000)
        self.processes: dict[int, Process] = {}
        self.failures: list[tuple[Fiber, BaseException]] = []
        self.counts: dict[str, int] = {}
        self.notes: dict[str, list[float]] = {}
        self.current: Fiber | None = None
        self.of_callback: Process | None = None  # the process of the running callback, outside simulated threads
        self.stretched = [
            (0.0, 1.0)
        ]  # times, and factors of timeouts of waits from then on: an idle engine polls in vain
        self._stretched: dict[Fiber, int] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.hub: Any = greenlet.getcurrent()
        self._loaded: Process | None = None
        self._closing = False
        self.switched: Callable[[Process | None, Process | None], None] = lambda before, now: None

    # Time

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def note(self, what: str) -> None:
        """Record the time of an event."""
        self.notes.setdefault(what, []).append(self.now)

    def wall_s(self, host: Host | None = None) -> float:
        """The time by the clock of a host, by default that of the running process."""
        process = self.running
        if host is None and process is not None:
            host = process.host
        return EPOCH_S + self.now + (host.ahead_s if host is not None else 0.0)

    def call(self, after_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + after_s, next(self._numbers), call))

    @property
    def running(self) -> Process | None:
        return self.current.process if self.current is not None else self.of_callback

    def run(self, until_s: float, done: Callable[[], bool] = lambda: False) -> None:
        """Run until this time, or until `done`."""
        while self._heap and not done():
            at, _, call = self._heap[0]
            if at > until_s:
                break
            heapq.heappop(self._heap)
            self.now = max(self.now, at)
            self.events += 1
            call()
            if self.failures:
                fiber, error = self.failures[0]
                raise RuntimeError(f"{fiber.process.name}/{fiber.name} ended with {error!r}") from error
        self.now = max(self.now, until_s) if not done() else self.now

    @contextmanager
    def as_process(self, process: Process) -> Iterator[None]:
        """Calls in this context belong to a process, outside its threads."""
        before, self.of_callback = self.of_callback, process
        self._load(process)
        try:
            yield
        finally:
            self.of_callback = before

    def _load(self, process: Process | None) -> None:
        if process is not self._loaded:
            before, self._loaded = self._loaded, process
            self.switched(before, process)

    # Processes and threads

    def process(self, name: str, host: Host) -> Process:
        made = Process(self, name, host)
        self.processes[made.pid] = made
        return made

    def spawn(self, process: Process, target: Callable[[], object], name: str) -> Fiber:
        fiber = Fiber(process, target, name)
        process.fibers[fiber] = None
        self.call(0.0, lambda: self._resume(fiber, 0))
        return fiber

    def end(self, process: Process) -> None:
        """End a process with all its threads."""
        if not process.alive:
            return
        process.alive = False
        process.state["died", "at"] = self.now
        self.processes.pop(process.pid, None)
        for call in process.at_death:
            call()
        for fiber in list(process.fibers):
            self._unwind(fiber)
        process.fibers.clear()
        for call in process.at_end:
            call()

    def _unwind(self, fiber: Fiber) -> None:
        fiber.over = True
        if fiber is self.current:
            return  # it ends at its next check
        before, self.current = self.current, fiber
        self._load(fiber.process)
        try:
            fiber.greenlet.throw(Exit)
        finally:
            self.current = before
            self._load(before.process if before is not None else None)

    def close(self) -> None:
        """End all processes."""
        self._closing = True
        for process in list(self.processes.values()):
            self.end(process)
        self._heap.clear()
        self._load(None)

    def check_alive(self) -> None:
        """End the running thread if its process has ended."""
        process = self.running
        if self._closing or (process is not None and not process.alive):
            raise Exit

    def block(self, timeout_s: float | None, stretches: bool = False) -> bool:
        """Wait for `wake`; returns whether it was in time."""
        self.check_alive()
        fiber = self.current
        assert fiber is not None, "only a simulated thread may wait"
        fiber.turn += 1
        fiber.woken = False
        turn = fiber.turn
        if timeout_s is not None:
            if stretches and timeout_s > 0.01 and (factor := self.stretched[-1][1]) > 1.0:
                timeout_s *= factor
                self._stretched[fiber] = turn
            self.call(max(timeout_s, 1e-6), lambda: self._resume(fiber, turn))  # each step takes time
        self.hub.switch()
        self._stretched.pop(fiber, None)
        self.check_alive()
        return fiber.woken

    def stretch(self, factor: float) -> None:
        """Set the factor of timeouts of waits."""
        self.stretched.append((self.now, factor))

    def stretch_at(self, at: float) -> float:
        """The factor of waits that began at this time."""
        return next(factor for since, factor in reversed(self.stretched) if since <= at)

    def unstretch(self) -> None:
        """Set the factor of timeouts to 1 again."""
        self.stretched.append((self.now, 1.0))
        for fiber, turn in list(self._stretched.items()):
            self.call(0.0, lambda fiber=fiber, turn=turn: self._resume(fiber, turn))  # type: ignore[misc]  # mypy infers no lambda with a default
        self._stretched.clear()

    def wake(self, fiber: Fiber, turn: int) -> None:
        """End this wait of a thread, if it has not ended."""
        if fiber.turn == turn and not fiber.woken:
            fiber.woken = True
            self.call(0.0, lambda: self._resume(fiber, turn))

    def _resume(self, fiber: Fiber, turn: int) -> None:
        if fiber.over or fiber.turn != turn or not fiber.process.alive:
            return
        self.current = fiber
        self._load(fiber.process)
        try:
            fiber.greenlet.switch()
        finally:
            self.current = None

    def sleep(self, seconds: float, stretches: bool = False) -> None:
        self.block(max(seconds, 1e-6), stretches)


class Waiters:
    """Threads that wait for one event."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._waiting: deque[tuple[Fiber, int]] = deque()

    def wait(self, timeout_s: float | None, stretches: bool = False) -> bool:
        fiber = self._kernel.current
        assert fiber is not None, "only a simulated thread may wait"
        entry = fiber, fiber.turn + 1
        self._waiting.append(entry)
        try:
            return self._kernel.block(timeout_s, stretches)
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    def notify(self, count: int | None = None) -> None:
        while self._waiting and count != 0:
            self._kernel.wake(*self._waiting.popleft())
            if count is not None:
                count -= 1


class Threading:
    """Replaces the module `threading` as far as production code uses it."""

    def __init__(self, kernel: Kernel) -> None:
        world = self

        class Lock:
            def __init__(self) -> None:
                self._holder: Fiber | Process | None = None
                self._depth = 0
                self._waiters = Waiters(kernel)

            def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
                me = kernel.current or kernel.of_callback
                until = None if timeout is None or timeout < 0 else kernel.now + timeout
                while self._depth and not (world.reentrant(self) and self._holder is me):
                    if me is not None and not (me.alive if isinstance(me, Process) else me.process.alive):
                        return True  # it is being unwound
                    if not blocking or (until is not None and kernel.now >= until):
                        return False
                    self._waiters.wait(None if until is None else until - kernel.now)
                self._holder = me
                self._depth += 1
                return True

            def release(self) -> None:
                self._depth = max(0, self._depth - 1)
                if not self._depth:
                    self._holder = None
                    self._waiters.notify(1)

            def locked(self) -> bool:
                return bool(self._depth)

            def __enter__(self) -> bool:
                return self.acquire()

            def __exit__(self, *_: object) -> None:
                self.release()

        class RLock(Lock):
            pass

        class Condition:
            def __init__(self, lock: Any = None) -> None:
                self._lock = lock or RLock()
                self._waiters = Waiters(kernel)
                self.acquire, self.release = self._lock.acquire, self._lock.release

            def __enter__(self) -> bool:
                return bool(self._lock.acquire())

            def __exit__(self, *_: object) -> None:
                self._lock.release()

            def wait(self, timeout: float | None = None) -> bool:
                depth, self._lock._depth = self._lock._depth, 1
                self._lock.release()
                try:
                    return self._waiters.wait(timeout, stretches=True)
                finally:
                    self._lock.acquire()
                    self._lock._depth = depth

            def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
                until = None if timeout is None else kernel.now + timeout
                found = predicate()
                while not found:
                    left = None if until is None else until - kernel.now
                    if left is not None and left <= 0:
                        break
                    woken = self.wait(left)
                    found = predicate()
                    if not woken:
                        break
                return found

            def notify(self, n: int = 1) -> None:
                self._waiters.notify(n)

            def notify_all(self) -> None:
                self._waiters.notify()

        class Event:
            def __init__(self) -> None:
                self._set = False
                self._waiters = Waiters(kernel)

            def is_set(self) -> bool:
                return self._set

            def set(self) -> None:
                self._set = True
                self._waiters.notify()

            def clear(self) -> None:
                self._set = False

            def wait(self, timeout: float | None = None) -> bool:
                if not self._set:
                    self._waiters.wait(timeout, stretches=True)
                return self._set

        class Thread:
            def __init__(
                self,
                group: None = None,
                target: Callable[..., object] | None = None,
                name: str = "thread",
                args: tuple[Any, ...] = (),
                kwargs: dict[str, Any] | None = None,
                daemon: bool | None = None,
            ) -> None:
                self._target, self._args, self._kwargs = target, args, kwargs or {}
                self.name = name
                self.daemon = daemon
                self._fiber: Fiber | None = None

            def start(self) -> None:
                process = kernel.running
                assert process is not None
                assert self._target is not None
                target = self._target
                if process.alive:
                    self._fiber = kernel.spawn(process, lambda: target(*self._args, **self._kwargs), self.name)

            def is_alive(self) -> bool:
                return self._fiber is not None and not self._fiber.over

            def join(self, timeout: float | None = None) -> None:
                if self.is_alive() and kernel.current is not None and self._fiber is not None:
                    self._fiber.joiners.append((kernel.current, kernel.current.turn + 1))
                    kernel.block(timeout)

        self.Lock, self.RLock, self.Condition, self.Event, self.Thread = Lock, RLock, Condition, Event, Thread
        self._reentrant = RLock

    def reentrant(self, lock: object) -> bool:
        return isinstance(lock, self._reentrant)

    def __getattr__(self, name: str) -> Any:
        import threading

        return getattr(threading, name)


class Future:
    """A `concurrent.futures.Future` for simulated threads."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._waiters = Waiters(kernel)
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._done

    def set_result(self, result: Any) -> None:
        self._done, self._result = True, result
        self._waiters.notify()

    def set_exception(self, error: BaseException) -> None:
        self._done, self._error = True, error
        self._waiters.notify()

    def result(self, timeout: float | None = None) -> Any:
        if not self._done:
            self._waiters.wait(timeout)
        if not self._done:
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._result
