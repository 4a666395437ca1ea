"""Spark in memory, as far as the dispatch job uses it: sessions, broadcasts, accumulators, the two queries with
checkpoints on disk, and reused Python workers."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from arborcast.dispatch.hot.recovered import StartState
from arborcast.dispatch.realtime.task import RealtimeJob
from arborcast.dispatch.realtime.worker import push_rows
from arborcast.dispatch.spark.query_supervisor import StopRequested
from tests.world.brokers import Broker, Partition
from tests.world.kernel import Exit, Fiber, Host, Kernel, Process, Waiters

# One of Spark's batches in real time.
BATCH_S = 8 * 86_400.0

# The number of attempts of a task.
_ATTEMPTS = 4

_POLL_S = 0.04

# The time until Spark detects the end of a worker for which it has a row.
_NOTICED_S = 0.1


# The view and the recovered deliveries of a run.
_MOST_BROADCASTS = 2


class Broadcast:
    """A broadcast, which is a file of the driver until it is destroyed."""

    def __init__(self, value: Any, kept: set[Broadcast]) -> None:
        self.value = value
        self._kept = kept
        kept.add(self)

    def destroy(self) -> None:
        self._kept.discard(self)


class Accumulator:
    """Additions of a task count when it ends."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.value: list[Any] = []

    def add(self, more: list[Any]) -> None:
        process = self._kernel.running
        assert process is not None
        process.task.added.append((self, more))


class TaskOfSpark:
    """A TaskContext."""

    def __init__(self, partition: int, attempt: int, batch: int) -> None:
        self._partition, self._attempt, self._batch = partition, attempt, batch
        self.added: list[tuple[Accumulator, list[Any]]] = []

    def partitionId(self) -> int:
        return self._partition

    def attemptNumber(self) -> int:
        return self._attempt

    def getLocalProperty(self, name: str) -> str | None:
        return str(self._batch) if name == "streaming.sql.batchId" else None


class TaskFailed(Exception):
    """A task has failed in all attempts, so its query fails."""


class Spark:
    """A session of one driver, and its workers."""

    def __init__(self, kernel: Kernel, broker: Broker, driver: Process) -> None:
        self.kernel, self.broker, self.driver = kernel, broker, driver
        self.idle: list[Process] = []
        self.workers: list[Process] = []
        self.slots = 16
        self._broadcasts: set[Broadcast] = set()
        self.sparkContext: Any = SimpleNamespace(
            master="local[16]",
            broadcast=self._broadcast,
            accumulator=lambda value: Accumulator(kernel),
            setLocalProperty=lambda name, value: None,
            environment={},
            getConf=lambda: SimpleNamespace(get=lambda name: None),
            _jsc=SimpleNamespace(sc=self._scala_context),
        )
        driver.at_end.append(self._driver_has_ended)

    def _broadcast(self, value: Any) -> Broadcast:
        made = Broadcast(value, self._broadcasts)
        if len(self._broadcasts) > _MOST_BROADCASTS:
            self.kernel.note("broadcasts kept")
        return made

    def _scala_context(self) -> Any:
        profile = SimpleNamespace(defaultResourceProfile=lambda: None)
        return SimpleNamespace(maxNumConcurrentTasks=lambda profile: self.slots, resourceProfileManager=lambda: profile)

    def worker(self) -> Process:
        """An idle worker, or a new one."""
        while self.idle:
            found = self.idle.pop()
            if found.alive:
                return found
        made = self.kernel.process("worker", self.driver.host)
        self.workers = [each for each in self.workers if each.alive]
        self.workers.append(made)
        return made

    def free(self, worker: Process) -> None:
        worker.task = None
        if worker.alive:
            self.idle.append(worker)

    def _driver_has_ended(self) -> None:
        """The workers end soon after the JVM."""
        for each in self.workers:
            self.kernel.call(self.kernel.random.uniform(0.0, 0.05), each.kill)

    def log(self, name: str, starting: dict[int, int], most: int) -> Source:
        return Source(self, self.broker.log(name), starting, most)

    def run(
        self, partition: int, attempt: int, batch: int, call: Callable[[], object], done: Callable[[bool], None]
    ) -> Process:
        """Run a task in a worker. `done` is called with whether it has completed."""
        worker = self.worker()
        worker.task = context = TaskOfSpark(partition, attempt, batch)
        state = {"over": False}

        def finish(well: bool) -> None:
            if not state["over"]:
                state["over"] = True
                if worker.alive:
                    self.free(worker)
                if well:
                    for accumulator, more in context.added:
                        accumulator.value.extend(more)
                done(well)

        def body() -> None:
            try:
                call()
            except Exit:
                raise
            except BaseException:
                finish(False)
            else:
                finish(True)

        worker.at_end.append(lambda: finish(False))

        def begin() -> None:
            if worker.alive:
                self.kernel.spawn(worker, body, f"task {partition}")

        self.kernel.call(0.001, begin)
        return worker


class _Row(NamedTuple):
    value: bytes
    partition: int
    offset: int


class Frame:
    """The rows of a batch."""

    def __init__(
        self, spark: Spark, partitions: Sequence[Partition], stretches: dict[int, tuple[int, int]], batch: int
    ) -> None:
        self.sparkSession = spark
        self._partitions, self._stretches, self._batch = partitions, stretches, batch

    def select(self, *names: object) -> Frame:
        return self

    def rows(self, number: int) -> Iterator[tuple[bytearray, int, int]]:
        partition = self._partitions[number]
        first, end = self._stretches[number]
        if first < partition.first:
            raise TaskFailed("offsets are out of range: the log has lost them")
        for record in partition.records[partition.index(first) : partition.index(end)]:
            self.sparkSession.kernel.count("rows read by tasks of batches")
            yield bytearray(record.value or b""), number, record.offset

    def foreachPartition(self, call: Callable[[Iterator[Any]], object]) -> None:
        kernel, spark = self.sparkSession.kernel, self.sparkSession
        left = dict.fromkeys(self._stretches, 0)
        failed: list[int] = []
        waiters = Waiters(kernel)

        def begin(number: int) -> None:
            def done(well: bool) -> None:
                if not spark.driver.alive:
                    return
                if well:
                    left.pop(number, None)
                else:
                    left[number] += 1
                    kernel.count("tasks of a batch that failed")
                    if left[number] >= _ATTEMPTS:
                        failed.append(number)
                    else:
                        kernel.call(0.05, lambda: begin(number))
                waiters.notify()

            if spark.driver.alive:
                spark.run(number, left[number], self._batch, lambda: call(self.rows(number)), done)

        for number in list(left):
            begin(number)
        while left and not failed:
            waiters.wait(None)
        if failed:
            raise TaskFailed(f"task {failed[0]} has failed {_ATTEMPTS} times")


class _Query:
    """A streaming query."""

    def __init__(self, spark: Spark, name: str) -> None:
        self.spark, self.kernel = spark, spark.kernel
        self.isActive = True
        self.status = {"message": "Initializing"}
        self.runId = uuid.UUID(int=spark.kernel.random.getrandbits(128))
        self._failure: BaseException | None = None
        self._waiters = Waiters(spark.kernel)
        self.fiber = spark.kernel.spawn(spark.driver, self._body, name)

    def _body(self) -> None:
        try:
            self._run()
        except Exit:
            raise
        except StopRequested as error:
            self._failure = error
        except Exception as error:
            self._failure = error
        self._end()

    def _run(self) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        self.isActive = False
        self._waiters.notify()

    def awaitTermination(self, timeout: float | None = None) -> bool:
        until = None if timeout is None else self.kernel.now + timeout
        while self.isActive and (until is None or self.kernel.now < until):
            self._waiters.wait(None if until is None else until - self.kernel.now)
        if self._failure is not None:
            raise self._failure
        return not self.isActive

    def stop(self) -> None:
        self._end()


class Source:
    """A log as a streaming frame, and the query over it."""

    def __init__(self, spark: Spark, partitions: Sequence[Partition], starting: dict[int, int], most: int) -> None:
        self._spark, self._partitions, self._starting, self._most = spark, partitions, starting, most
        self._call: Callable[[Any, int], object] = lambda frame, batch: None

    def select(self, *columns: object) -> Source:
        return self

    @property
    def writeStream(self) -> Source:
        return self

    def queryName(self, name: str) -> Source:
        return self

    def option(self, name: str, value: str) -> Source:
        return self

    def foreachBatch(self, call: Callable[[Any, int], object]) -> Source:
        self._call = call
        return self

    def start(self) -> BatchQuery:
        return BatchQuery(self._spark, self._partitions, self._starting, self._most, self._call)


class BatchQuery(_Query):
    """The query of the batches, with an empty checkpoint: it starts at its offsets, and counts batches from 0."""

    def __init__(
        self,
        spark: Spark,
        partitions: Sequence[Partition],
        starting: dict[int, int],
        most: int,
        call: Callable[[Any, int], object],
    ) -> None:
        self._partitions, self._starting, self._most = partitions, starting, most
        self._call = call
        super().__init__(spark, "stream execution")

    def _run(self) -> None:
        begin, batch = self._starting, 0
        while self.isActive:
            ends = self._plan(begin)
            if ends == begin:
                self.status["message"] = "Waiting for data to arrive"
                self._wait(begin)
                continue
            self.status["message"] = "Processing new data"
            self.spark.driver.step()
            stretches = {number: (begin.get(number, 0), end) for number, end in ends.items()}
            self.kernel.sleep(0.03)
            self._call(Frame(self.spark, self._partitions, stretches, batch), batch)
            self.spark.driver.step()
            self.kernel.count("batches")
            begin, batch = ends, batch + 1

    def _plan(self, begin: dict[int, int]) -> dict[int, int]:
        ends = {each.number: each.end for each in self._partitions}
        share = max(1, self._most // len(ends))
        return {number: min(end, begin.get(number, 0) + share) for number, end in ends.items()}

    def _wait(self, begin: dict[int, int]) -> None:
        fiber = self.kernel.current
        assert fiber is not None
        entry = fiber, fiber.turn + 1
        for each in self._partitions:
            each.waiters._waiting.append(entry)
        self.kernel.block(1.0, stretches=True)
        for each in self._partitions:
            if entry in each.waiters._waiting:
                each.waiters._waiting.remove(entry)
        self.kernel.sleep(self.kernel.random.uniform(0.0, _POLL_S))


class _Column:
    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values

    def __getitem__(self, number: int) -> Any:
        return SimpleNamespace(as_py=lambda: self._values[number])

    def to_pylist(self) -> list[Any]:
        return list(self._values)


class _Rows:
    """A record batch of Arrow."""

    def __init__(self, rows: Sequence[_Row]) -> None:
        self.columns = (
            _Column([each.value for each in rows]),
            _Column([each.partition for each in rows]),
            _Column([each.offset for each in rows]),
        )


class RealtimeQuery(_Query):
    """The query of Spark's Real-time Mode: in each of Spark's batches a task for each partition."""

    def __init__(self, spark: Spark, job: RealtimeJob, begin: StartState) -> None:
        self._job = job
        self._partitions = spark.broker.log("notifications")
        self._positions = dict(begin.positions)
        self.workers: dict[int, Process] = {}
        self._batch = 0
        self._until = 0.0
        self._left: set[int] = set()
        super().__init__(spark, "stream execution")

    def _run(self) -> None:
        self.status["message"] = "Processing"
        self.kernel.sleep(self.kernel.random.uniform(0.3, 1.0))
        while self.isActive:
            self._until = self.kernel.now + BATCH_S
            failed: list[int] = []
            self._left = set(self._positions)
            for number in self._positions:
                self._begin(number, failed)
            while self._left and self.isActive:
                self._waiters.wait(None)
                for number in failed:
                    # Spark detects the end of a worker when it has a row for it.
                    partition = self._partitions[number]
                    while self.isActive and partition.end <= self._positions[number]:
                        partition.waiters.wait(60.0, stretches=True)
                    if self.isActive:
                        self.kernel.sleep(_NOTICED_S)
                        raise TaskFailed(f"the worker of task {number} has ended")
            if self.isActive:
                self.kernel.count("Spark's batches in real time that ended")
                self._batch += 1
                self.kernel.sleep(0.3)

    def _begin(self, number: int, failed: list[int]) -> None:
        def done(well: bool) -> None:
            if well:
                self._left.discard(number)
            else:
                failed.append(number)
            self._waiters.notify()

        def task() -> None:
            for _ in push_rows(self._job, self._batches(number)):
                pass

        self.workers[number] = self.spark.run(number, 0, self._batch, task, done)

    def _batches(self, number: int) -> Iterator[_Rows]:
        partition = self._partitions[number]
        while True:
            if not self.isActive:
                raise EOFError("the socket is closed")
            position = self._positions[number]
            if position < partition.first:
                raise TaskFailed("offsets are out of range: the log has lost them")
            if position < partition.end and self.spark.broker.ready_at(partition) <= self.kernel.now:
                index = partition.index(position)
                records = partition.records[index : index + self.kernel.random.choice((1, 1, 5))]
                self._positions[number] = records[-1].offset + 1
                yield _Rows([_Row(each.value or b"", number, each.offset) for each in records])
                continue
            left_s = self._until - self.kernel.now
            if left_s <= 0:
                return
            if position < partition.end:
                self.kernel.sleep(0.2)
            else:
                partition.waiters.wait(min(left_s, 2.0), stretches=True)

    def _end(self) -> None:
        """Cut off the running tasks; their workers end later."""
        for worker in self.workers.values():
            if self.isActive and worker.alive and worker.task is not None:
                worker.state.setdefault(("cut off", "at"), self.kernel.now)
        super()._end()

    def end_batch(self) -> None:
        """End the current batch of Spark."""
        self._until = self.kernel.now
        for each in self._partitions:
            each.waiters.notify()

    def stop(self) -> None:
        """Spark does not wait for running workers, which end soon."""
        super().stop()
        for worker in self.workers.values():
            if worker.task is not None:
                self.kernel.call(self.kernel.random.uniform(0.0, 2.0), worker.kill)


def start_realtime(session: Spark, job: RealtimeJob, begin: StartState, checkpoint: str) -> RealtimeQuery:
    return RealtimeQuery(session, job, begin)


def read_log(spark: Spark, kafka: Any, name: str, *, starting: str, fail_on_data_loss: bool, most: int) -> Source:
    begin = {int(number): offset for number, offset in json.loads(starting)[kafka.topic(name)].items()}
    return spark.log(name, begin, most)


__all__ = ["Fiber", "Host", "RealtimeQuery", "Spark", "read_log", "start_realtime"]
