"""The dispatch job of a simulated engine: `dispatch.job.runtime.DispatchJob` as it is, in a simulated process, without
its tables."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from arborcast.core.errors import InfrastructureError
from arborcast.core.security.outbound import AddressPolicy
from arborcast.core.settings import KafkaSettings, SecretSettings
from arborcast.dispatch.job.runtime import DispatchJob
from arborcast.dispatch.operations.erasure import Eraser
from arborcast.dispatch.settings import DispatchSettings, JobSettings, PushSettings, RetrySettings, TableSettings
from arborcast.dispatch.spark.query_supervisor import StopGate
from tests.world import spark
from tests.world.brokers import Broker
from tests.world.kernel import Exit, Future, Host, Kernel, Waiters
from tests.world.receivers import Network, SimulatedTransport

RETRY = RetrySettings(
    jitter=0.0,
    retransmissions=1_000,
    longest_wait_s=60.0,
    longest_probe_s=30.0,
    suspend_after_s=2_592_000.0,
    lifespan_s=2_592_000.0,
)
# The pause between two passes of erasures.
_ERASES_S = 5.0

# Changes before the routing table is shared with the workers as a whole again: few, so that it occurs.
_MIN_OVERLAY = 5

PUSH = PushSettings(max_notify_messages=4)


def settings(home: Path, kafka: KafkaSettings, mode: str, key_file: str, retry: RetrySettings) -> JobSettings:
    dispatch = DispatchSettings(mode=cast(Any, mode), max_rows_per_batch=400)
    return JobSettings(
        home, kafka, dispatch, PUSH, TableSettings(archive=False), AddressPolicy(), retry, SecretSettings(key_file)
    )


class Engine:
    """The job and its process."""

    def __init__(self, kernel: Kernel, broker: Broker, host: Host, job_settings: JobSettings) -> None:
        self.kernel, self.broker = kernel, broker
        self.gate: StopGate | None = None
        self.ready = False
        self.healthy: bool | None = None
        self.error: BaseException | None = None
        self.process = kernel.process("driver", host)
        self.spark = spark.Spark(kernel, broker, self.process)
        self.job: DispatchJob | None = None
        self._settings = job_settings
        kernel.spawn(self.process, self._main, "main")

    def _main(self) -> None:
        from arborcast.dispatch.spark import query_supervisor

        self.gate = query_supervisor.StopGate()
        self.job = DispatchJob(cast(Any, self.spark), self._settings, self.gate)
        rebuilder = self.job._view._rebasing
        rebuilder._min_overlay = rebuilder._limit = _MIN_OVERLAY
        try:
            self.healthy = self.job.run(self._is_ready)
        except Exit:
            raise
        except Exception as error:
            self.error = error
        self.kernel.call(0.0, self.process.kill)

    def _is_ready(self) -> None:
        self.ready = True

    def request_stop(self) -> None:
        """SIGTERM."""
        gate = self.gate
        if gate is not None and self.process.alive:
            self.kernel.spawn(self.process, gate.close, "signal")
        else:
            self.process.kill()

    @property
    def ended(self) -> bool:
        return not self.process.alive


class _Recording:
    """Replaces the tables, which are not simulated. Erasures are."""

    archive = None
    attempts = SimpleNamespace(progress=None)
    behind = dict

    def __init__(self, kernel: Kernel, *_: object, eraser: Eraser, **__: object) -> None:
        self._kernel, self._eraser = kernel, eraser

    def open(self) -> None: ...

    def start(self) -> None:
        assert self._kernel.running is not None
        self._kernel.spawn(self._kernel.running, self._erase, "eraser")

    def _erase(self) -> None:
        while True:
            with suppress(InfrastructureError):
                self._eraser.step()
            self._kernel.sleep(_ERASES_S)

    def stop(self, timeout_s: float) -> None: ...


class _Executor:
    """A ThreadPoolExecutor in simulated threads."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def __enter__(self) -> _Executor:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future:
        future = Future(self._kernel)
        process = self._kernel.running
        assert process is not None

        def run() -> None:
            try:
                future.set_result(call(*arguments))
            except Exit:
                raise
            except BaseException as error:
                future.set_exception(error)

        self._kernel.spawn(process, run, "executor")
        return future

    def shutdown(self, wait: bool = True, cancel_futures: bool = False) -> None:
        pass


class _Queue:
    """A queue.Queue in simulated threads."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._items: deque[Any] = deque()
        self._waiters = Waiters(kernel)

    def put_nowait(self, item: Any) -> None:
        self._items.append(item)
        self._waiters.notify(1)

    def qsize(self) -> int:
        return len(self._items)

    def get(self) -> Any:
        while not self._items:
            self._waiters.wait(None)
        return self._items.popleft()


class _NoFrame:
    def foreachPartition(self, call: object) -> None:
        pass


def exchanges(kernel: Kernel, broker: Broker, network: Network) -> Mapping[tuple[str, str], Any]:
    """The replacements of Spark, HTTP and threads, by module and name."""
    import queue

    task_context = SimpleNamespace(get=lambda: kernel.running.task if kernel.running is not None else None)
    runtime = "arborcast.dispatch.job.runtime"
    realtime = "arborcast.dispatch.realtime.realtime_mode"
    stream = "arborcast.dispatch.hot.stream"

    def started_at(pid: int) -> int:
        return pid if pid in kernel.processes else 0

    def transport(*_: object) -> SimulatedTransport:
        return SimulatedTransport(network)

    queues = SimpleNamespace(Queue=lambda most=0: _Queue(kernel), Full=queue.Full)
    return {
        (runtime, "Recording"): partial(_Recording, kernel),
        # Erasures stay in the control log until the end of the history.
        ("arborcast.dispatch.operations.erasure", "kept_until"): lambda kafka, now_ms, is_cut: {"log": 1 << 60},
        (runtime, "warm_up"): lambda *arguments: None,
        ("arborcast.topic_model.control_log", "ensure_topics"): lambda kafka, alter: None,
        (runtime, "empty_frame"): lambda session, partitions: _NoFrame(),
        (runtime, "pool"): lambda *arguments: _Executor(kernel),
        (realtime, "KnownEnds"): lambda *arguments: SimpleNamespace(forget=lambda: None, show=lambda ends: None),
        (realtime, "realtime_session"): lambda session: session,
        (realtime, "start_realtime"): spark.start_realtime,
        (realtime, "remove_checkpoint"): lambda session, location: None,
        ("arborcast.dispatch.realtime.mode_controller", "remove_checkpoint"): lambda session, location: None,
        (stream, "read_log"): spark.read_log,
        (stream, "accumulator"): lambda frame: spark.Accumulator(kernel),
        ("arborcast.dispatch.realtime.worker", "TaskContext"): task_context,
        ("arborcast.dispatch.hot.sink", "TaskContext"): task_context,
        ("arborcast.dispatch.hot.worker", "gc"): SimpleNamespace(collect=lambda: 0, freeze=lambda: None),
        ("arborcast.dispatch.hot.worker", "make_transport"): transport,
        ("arborcast.dispatch.redelivery.redeliverer", "make_transport"): transport,
        ("arborcast.dispatch.job.heartbeat", "started_at"): started_at,
        ("arborcast.dispatch.job.operator_events", "queue"): queues,
        ("arborcast.ingest.state.changes", "pool"): lambda *arguments, **named: _Executor(kernel),
    }
