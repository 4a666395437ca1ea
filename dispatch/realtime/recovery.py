"""The start positions of a query, in either mode, in the log `progress`.

Each start is a run with its own number, and begins with an empty checkpoint. `progress` has, for each partition of
`notifications`, the offset before which all is settled. Tasks in real time write it themselves; for batches the driver
writes it after each round.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyspark import SparkContext
from pyspark.core.broadcast import Broadcast

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.eventlog.topics import PROGRESS_LOG
from arborcast.dispatch.hot.recovered import (
    NOTHING,
    RecoveredDeliveries,
    StartState,
    appended_ms,
    newest_batch,
    remove_letters_without_rows,
    settled_since,
)
from arborcast.dispatch.logs.attempts import NO_BATCH, RUN_NUMBERS
from arborcast.dispatch.realtime.driver import ProgressListener
from arborcast.dispatch.realtime.messages import ProgressLog, WorkerProgress
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.dispatch.redelivery.redeliverer import Redeliverer
from arborcast.dispatch.settings import JobSettings

logger = logging.getLogger(__name__)


class Recovery:
    """Reads and writes the start positions. Not thread-safe.

    `partitions` and `ends` are those of the `notifications` log at the last read.
    """

    def __init__(self, settings: JobSettings, redeliverer: Redeliverer, listener: ProgressListener) -> None:
        self._settings = settings
        self._kafka = settings.kafka
        self._redeliverer = redeliverer
        self._listener = listener
        self._log: ProgressLog | None = None
        self._shared: Broadcast[RecoveredDeliveries] | None = None
        self.partitions = 0
        self.ends: Mapping[int, int] = {}
        self._topic = ""

    def read_partitions(self) -> None:
        """Read the number of partitions. Raises InfrastructureError."""
        with LogScan(self._kafka, "notifications") as log:
            self.partitions = len(log.partitions())

    def start_state(self) -> StartState:
        """The start of the next run, with the deliveries that are settled behind it. Raises InfrastructureError."""
        known = self._listener.known
        newest = self.newest()
        # After a restore, letters of the earlier logs may have been redriven before the first start.
        is_lost = not known and not self._listener.damaged and self.newest(redriven=False) != NO_BATCH
        if is_lost and self._settings.dispatch.fail_on_data_loss:
            raise InfrastructureError(
                f"Kafka topic {self._kafka.topic(PROGRESS_LOG)} has no positions, although pushes were made: it was "
                "deleted or created again. dispatch.fail_on_data_loss = false starts at dispatch.starting_offsets: "
                "earliest repeats the pushes of all notifications that Kafka has, latest omits those that were not "
                "pushed"
            )
        positions = self._placed({number: each.position for number, each in known.items()})
        begun = {
            number: position
            for number, position in positions.items()
            if number in known and not known[number].clean and position < self.ends[number]
        }
        if not begun:
            return StartState(positions, NOTHING, newest, topic=self._topic)
        since = min(known[number].since for number in begun)
        behind_ms = appended_ms(self._kafka, begun)
        if len(known) < len(positions):
            # After partitions were added a topic may be in another one than its last notifications.
            behind_ms = dict.fromkeys(positions, min(behind_ms.values()))
        # Parked deliveries first: if the redelivery finishes one meanwhile, the log has its row.
        parked = list(self._redeliverer.parked_behind(begun))
        found = settled_since(self._kafka, since, behind_ms, len(positions))
        if found.gone:
            # The crash may have come before their report.
            self._redeliverer.batch_done([PartitionReport(gone=set(found.gone))])
        tried = {lane: at for lane, at in found.newest.items() if at[1] > positions[at[0]]}
        behind = RecoveredDeliveries.of(found.deliveries, parked, since, tried)
        if behind_ms:
            not_repeated = behind.settled | behind.unwritten
            remove_letters_without_rows(self._kafka, since, begun, min(behind_ms.values()), not_repeated)
        settled = len(found.deliveries) + len(behind.unwritten)
        logger.info("%d deliveries were settled before the workers were cut off", settled)
        # Tasks write their own number, the driver -1.
        batches = any(known[number].task < 0 for number in begun)
        return StartState(positions, behind, newest, since, batches, self._topic)

    def share(self, begin: StartState, context: SparkContext) -> Broadcast[RecoveredDeliveries] | None:
        """The recovered deliveries for the tasks of the next run, None without any. Those of the run before are
        destroyed: none of its tasks may still run."""
        if self._shared is not None:
            self._shared.destroy()
        self._shared = context.broadcast(begin.recovered) if begin.since >= 0 else None
        return self._shared

    def newest(self, redriven: bool = True) -> int:
        """The highest number of a run or batch so far, also in the places of `redriven` deliveries."""
        known = max((each.run for each in self._listener.known.values()), default=NO_BATCH)
        if known != NO_BATCH and not self._listener.damaged:
            return known
        # A first start, or records of the log `progress` were lost.
        return max(known, self._redeliverer.newest_batch(redriven), newest_batch(self._kafka))

    def write_start(self, run: int, begin: StartState) -> None:
        """Write the start of this run to `progress`: the next start is at the same positions until the run has settled
        more. Raises InfrastructureError."""
        self.write_positions(run, begin, begin.positions)
        self.settle()

    def write_positions(self, run: int, begin: StartState, positions: Mapping[int, int]) -> None:
        """Write that a run in batches with this start has settled everything before these positions; does not wait for
        Kafka. Raises InfrastructureError if Kafka's acknowledgement of earlier positions is very late."""
        for number, position in positions.items():
            since = begin.since if self._is_recovered(begin, number, position) else run
            self._write(WorkerProgress(run, number, position, since, task=-1, topic=begin.topic))
        if self._log is not None and self._log.is_late():
            self.settle()

    def write_clean(self, run: int, begin: StartState, positions: Mapping[int, int]) -> None:
        """Write that the run with this start has ended at these positions, and has started no push behind them. Raises
        InfrastructureError."""
        for number, position in positions.items():
            if not self._is_recovered(begin, number, position):
                self._write(WorkerProgress(run, number, position, run, clean=True, task=-1, topic=begin.topic))
        self.settle()

    def settle(self) -> None:
        """Wait until `progress` has all written positions. Raises InfrastructureError."""
        log, self._log = self._log, None
        if log is not None:
            try:
                log.settle(self._kafka.request_timeout_s)
            finally:
                log.close()

    def _is_recovered(self, begin: StartState, partition: int, position: int) -> bool:
        """Whether an earlier run may have started pushes behind this position."""
        return begin.since >= 0 and position < self.ends.get(partition, 0)

    def _placed(self, positions: Mapping[int, int]) -> dict[int, int]:
        """The positions of all partitions. Raises InfrastructureError if the log was replaced."""
        with LogScan(self._kafka, "notifications") as log:
            begins, ends, topic = log.beginnings(), log.ends(), log.topic_id()
        is_first = not (positions or self._listener.damaged)
        first = ends if self._settings.dispatch.starting_offsets == "latest" and is_first else begins
        found = {number: positions.get(number, first[number]) for number in ends}
        for number, position in found.items():
            before = self._listener.known[number].topic if number in positions else ""
            is_other = bool(before and topic) and before != topic
            if begins[number] <= position <= ends[number] and not is_other:
                continue
            if self._settings.dispatch.fail_on_data_loss:
                raise InfrastructureError(
                    f"partition {number} of the notifications log reaches from {begins[number]} to {ends[number]}, and "
                    f"the job is at {position}{' of an earlier log' * is_other}: notifications are lost, or the log "
                    "was created again. dispatch.fail_on_data_loss = false continues behind the gap"
                )
            found[number] = begins[number]
        self.partitions, self.ends, self._topic = len(ends), ends, topic
        return found

    def _write(self, progress: WorkerProgress) -> None:
        if self._log is None:
            self._log = ProgressLog(self._kafka)
        self._log.write(progress)


def next_run(newest: int) -> int:
    """The number of the run after the one with this number, or with this batch."""
    return (newest // RUN_NUMBERS + 1) * RUN_NUMBERS
