"""Threads: the only module that starts them.

`Service` repeats a step until it is stopped. `start_thread` is for work that ends by itself, `pool` for work that
other threads wait for, `within` for work that an event loop waits for.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

from arborcast.core.backoff import Backoff
from arborcast.core.errors import ArborcastError, InfrastructureError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_BACKOFF = Backoff(1.0, 15.0)

# Failures of one kind in the log until a success.
_LOGGED = 5


def start_thread(name: str, work: Callable[..., object], *args: object) -> threading.Thread:
    """Run `work(*args)` in a daemon thread."""
    thread = threading.Thread(target=work, args=args, name=name, daemon=True)
    thread.start()
    return thread


def pool(name: str, threads: int) -> ThreadPoolExecutor:
    """A thread pool with one queue. The end of the process waits for running work."""
    return ThreadPoolExecutor(threads, thread_name_prefix=name)


async def within(seconds: float, threads: Executor, work: Callable[[], T], late: str) -> T:
    """The result of `work` in a pool. Raises InfrastructureError, with the message `late`, after this time; work that
    has not begun until then is left out."""
    import asyncio  # here, since commands without an event loop load this module, too

    try:
        async with asyncio.timeout(seconds):
            return await asyncio.get_running_loop().run_in_executor(threads, work)
    except TimeoutError:
        raise InfrastructureError(late, 1.0) from None


class Service:
    """A thread that repeats `step` until it is stopped.

    `step` returns the seconds until its next call, or None to end the thread. When it raises, the thread calls it again
    after the pause of `backoff`. Until a step succeeds, the log has one entry for each message, up to five of a kind
    of exception, and one for that success.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        *,
        backoff: Backoff = _BACKOFF,
        delay_s: float = 0.0,
        close: Callable[[], object] = lambda: None,
        what: str = "",
    ) -> None:
        """`delay_s` is the pause before the first step. `close` is called at the end of the thread. `what` names the
        work in the log, instead of `name`."""
        self._step = step
        self._backoff = backoff
        self._delay_s = delay_s
        self._close = close
        self._what = what or name
        self._failures = 0
        self._logged: dict[type[Exception], set[str]] = {}
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """End the pause between two steps; the pause after a failure lasts."""
        self._woken.set()

    def wait(self, seconds: float) -> bool:
        """Within a step: a pause that only `stop` ends. Returns whether the service is to stop."""
        return self._stopping.wait(seconds)

    def succeeded(self) -> None:
        """Called within a long step: it works, and a later failure counts as the first one."""
        if self._failures:
            self._failures = 0
            self._logged.clear()
            logger.info("%s works again", self._what)

    def stop(self, timeout_s: float | None = 0.0) -> bool:
        """End the thread after its current step, and wait up to `timeout_s` for its end (None: without limit). Returns
        whether it has ended."""
        self._stopping.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._woken.wait(self._delay_s)
            self._repeat()
        finally:
            self._close()

    def _repeat(self) -> None:
        while True:
            self._woken.clear()
            # Checked after `clear`: a stop between the two would otherwise wait for the pause.
            if self._stopping.is_set():
                return
            try:
                pause_s = self._step()
            except Exception as error:
                self._failures += 1
                logged = self._logged.setdefault(type(error), set())
                # The bound is for messages with a number or a time.
                if not self._stopping.is_set() and len(logged) < _LOGGED and str(error) not in logged:
                    logged.add(str(error))
                    self._log_failure(error)
                self._stopping.wait(self._backoff.after(self._failures))
                continue
            self.succeeded()
            if pause_s is None:
                return
            self._woken.wait(pause_s)

    def _log_failure(self, error: Exception) -> None:
        if isinstance(error, ArborcastError):
            logger.warning("%s failed and is retried: %s", self._what, error)
        else:
            logger.error("%s failed and is retried: %r", self._what, error, exc_info=error)
