"""Where a query starts, in either mode: at the positions in the log `progress`.

Each start is a run with a number of its own, and begins with an empty checkpoint. `progress` has, for each partition of
`notifications`, the offset before which all is settled. Tasks in real time write it themselves; for batches the driver
does, after each round.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.scan import LogScan
from arborcast.dispatch.hot.recovered import (
    NOTHING,
    RecoveredDeliveries,
    StartState,
    appended_ms,
    newest_batch,
    settled_since,
)
from arborcast.dispatch.logs.attempts import RUN_NUMBERS
from arborcast.dispatch.realtime.driver import ProgressListener
from arborcast.dispatch.realtime.messages import ProgressLog, WorkerProgress
from arborcast.dispatch.redelivery.redeliverer import Redeliverer
from arborcast.dispatch.settings import JobSettings

logger = logging.getLogger(__name__)

READ_BACK_S = 300.0


class Recovery:
    """Reads and writes where queries start. Not for two threads at once.

    `partitions` and `ends` are those of the `notifications` log when it was read last.
    """

    def __init__(self, settings: JobSettings, redeliverer: Redeliverer, listener: ProgressListener) -> None:
        self._settings = settings
        self._kafka = settings.kafka
        self._redeliverer = redeliverer
        self._listener = listener
        self._log: ProgressLog | None = None
        self.partitions = 0
        self.ends: Mapping[int, int] = {}

    def look(self) -> None:
        """Read the number of partitions. Raises InfrastructureError."""
        with LogScan(self._kafka, "notifications") as log:
            self.partitions = len(log.partitions())

    def start_state(self) -> StartState:
        """Where the next run starts, with the deliveries that are settled behind that. Raises InfrastructureError."""
        known = self._listener.known
        positions = self._placed({number: each.position for number, each in known.items()})
        newest = self.newest()
        begun = {
            number: position
            for number, position in positions.items()
            if number in known and not known[number].clean and position < self.ends[number]
        }
        if not begun:
            return StartState(positions, NOTHING, newest)
        since = min(known[number].since for number in begun)
        behind_ms = appended_ms(self._kafka, begun)
        if len(known) < len(positions):
            # Partitions were added: a topic may be in another one than its last notifications.
            behind_ms = dict.fromkeys(positions, min(behind_ms.values()))
        # Parked deliveries first: one that the redelivery finishes meanwhile has its row in the log already.
        parked = list(self._redeliverer.parked_behind(begun))
        found, tried = settled_since(self._kafka, since, behind_ms, len(positions), READ_BACK_S)
        tried = {lane: at for lane, at in tried.items() if at[1] > positions[at[0]]}
        behind = RecoveredDeliveries.of(found, parked, since, tried)
        logger.info("%d deliveries were settled before the workers were cut off", len(found) + len(behind.unwritten))
        # Tasks write their own number, the driver none.
        return StartState(positions, behind, newest, since, any(known[number].task < 0 for number in begun))

    def newest(self) -> int:
        """The highest number of a run or batch so far."""
        if known := self._listener.known:
            return max(each.run for each in known.values())
        # A first start, or the log `progress` was lost.
        return max(self._redeliverer.newest_batch(), newest_batch(self._kafka, READ_BACK_S))

    def write_start(self, run: int, begin: StartState) -> None:
        """Write to `progress` where this run starts: the next start is there, too, until the run has settled more.
        Raises InfrastructureError."""
        self.write_positions(run, begin, begin.positions)
        self.settle()

    def write_positions(self, run: int, begin: StartState, positions: Mapping[int, int]) -> None:
        """Write that a run in batches, which started there, has settled everything before these positions; does not
        wait for Kafka. Raises InfrastructureError when Kafka has not taken earlier positions for long."""
        for number, position in positions.items():
            since = begin.since if self._is_again(begin, number, position) else run
            self._write(WorkerProgress(run, number, position, since, task=-1))
        if self._log is not None and self._log.is_late():
            self.settle()

    def write_clean(self, run: int, begin: StartState, positions: Mapping[int, int]) -> None:
        """Write that the run, which started there, has ended at these positions, and has started no push behind them.
        Raises InfrastructureError."""
        for number, position in positions.items():
            if not self._is_again(begin, number, position):
                self._write(WorkerProgress(run, number, position, run, clean=True, task=-1))
        self.settle()

    def settle(self) -> None:
        """Return when `progress` has all that was written. Raises InfrastructureError."""
        log, self._log = self._log, None
        if log is not None:
            try:
                log.settle(self._kafka.request_timeout_s)
            finally:
                log.close()

    def _is_again(self, begin: StartState, partition: int, position: int) -> bool:
        """Whether an earlier run may have started pushes behind this position."""
        return begin.since >= 0 and position < self.ends.get(partition, 0)

    def _placed(self, positions: Mapping[int, int]) -> dict[int, int]:
        """With all partitions that there are. Raises InfrastructureError where the log is another than it was."""
        with LogScan(self._kafka, "notifications") as log:
            begins, ends = log.beginnings(), log.ends()
        first = ends if self._settings.dispatch.starting_offsets == "latest" and not positions else begins
        found = {number: positions.get(number, first[number]) for number in ends}
        for number, position in found.items():
            if begins[number] <= position <= ends[number]:
                continue
            if self._settings.dispatch.fail_on_data_loss:
                raise InfrastructureError(
                    f"partition {number} of the notifications log reaches from {begins[number]} to {ends[number]}, and "
                    f"the job is at {position}: notifications are lost, or the log was created again. "
                    f"dispatch.fail_on_data_loss = false continues behind the gap"
                )
            found[number] = begins[number]
        self.partitions, self.ends = len(ends), ends
        return found

    def _write(self, progress: WorkerProgress) -> None:
        if self._log is None:
            self._log = ProgressLog(self._kafka)
        self._log.write(progress)


def next_run(newest: int) -> int:
    """The number of the run behind one with this number, or with this batch."""
    return (newest // RUN_NUMBERS + 1) * RUN_NUMBERS
