"""Where the query was left, in whichever gear, and so where it begins.

The log `progress` says that as long as the real-time gear was the last that came to anything; Spark's checkpoint does
once a batch behind that is done. A checkpoint has a range of numbers for its batches, and a real-time run begins one,
so the higher number was the later one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing

from pyspark.sql import SparkSession

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.consumer import LogConsumer
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.hot.earlier import NOTHING, Beginning, appended_ms, earlier, newest_batch, recall_since
from arborcast.dispatch.logs.attempts import NO_BATCH
from arborcast.dispatch.realtime.driver import Hearing
from arborcast.dispatch.realtime.messages import ProgressLog, WorkerProgress
from arborcast.dispatch.redelivery.redeliverer import Redeliverer
from arborcast.dispatch.settings import JobSettings
from arborcast.dispatch.spark.checkpoint_repair import RANGE, RANGES, HadoopFolder, is_cut_off, mended, settled

logger = logging.getLogger(__name__)

RECALL_S = 300.0


class Resuming:
    """Finds that out. `partitions` and `ends` are of the `notifications` log when it was looked at last."""

    def __init__(self, spark: SparkSession, settings: JobSettings, redeliverer: Redeliverer, hearing: Hearing) -> None:
        self._spark = spark
        self._settings = settings
        self._kafka = settings.kafka
        self._checkpoint = settings.checkpoint("push")
        self._redeliverer = redeliverer
        self._hearing = hearing
        self.partitions = 0
        self.ends: Mapping[int, int] = {}

    def look(self) -> None:
        """How many partitions there are. Raises InfrastructureError."""
        with notifications(self._kafka) as log:
            self.partitions = len(log.partitions())

    def say_where(self, run: int, begin: Beginning) -> None:
        """Write to `progress` where this run begins: a start goes on there until a run, or a batch of a new checkpoint,
        has come further. Raises InfrastructureError."""
        since = begin.since if begin.since >= 0 else run
        self._tell([WorkerProgress(run, *at, since, task=-1) for at in begin.positions.items()])

    def say_clean(self, begin: Beginning) -> None:
        """All tasks of the run that began there have stopped. A task without a notification does not know its
        partition: write for it that nothing was begun. Raises InfrastructureError."""
        self._tell(
            [
                WorkerProgress(each.run, each.partition, each.position, each.since, clean=True, task=-1)
                for each in list(self._hearing.known.values())
                if not each.clean and (begin.since < 0 or each.position >= self.ends.get(each.partition, 0))
            ]
        )

    def realtime_was_last(self) -> Beginning | None:
        """Where it was, if no batch was done since."""
        known = self._hearing.known
        folder = HadoopFolder(self._spark, self._checkpoint)
        of_checkpoint = folder.highest(RANGES)
        run = max((each.run for each in known.values()), default=NO_BATCH)
        if not known or (
            of_checkpoint is not None and of_checkpoint * RANGE > run and folder.highest("commits") is not None
        ):
            return None
        positions = self._placed({number: each.position for number, each in known.items()})
        begun = {
            number: position
            for number, position in positions.items()
            if number in known and not known[number].clean and position < self.ends[number]
        }
        if not begun:
            return Beginning(positions, NOTHING, self.newest())
        since = min(known[number].since for number in begun)
        behind_ms = appended_ms(self._kafka, begun)
        if len(known) < len(positions):
            # Partitions were added: a topic may be in another one than its last notifications.
            behind_ms = dict.fromkeys(positions, min(behind_ms.values()))
        found = recall_since(self._kafka, since, behind_ms, len(positions), RECALL_S)
        behind = earlier(found, self._redeliverer.parked_behind(begun), since)
        logger.info("%d deliveries were settled before the workers were cut off", len(found) + len(behind.unwritten))
        return Beginning(positions, behind, self.newest(), since)

    def checkpoint_was_last(self) -> Beginning | None:
        """Where the batches were; None when the last one is not done, or that cannot be seen from here."""
        positions = settled(mended(self._checkpoint), self._kafka.topic("notifications"))
        if positions is None or is_cut_off(self._checkpoint):
            return None
        newest = max(self._redeliverer.newest_batch(), self.newest())
        if newest == NO_BATCH:
            newest = newest_batch(self._kafka, RECALL_S)
        return Beginning(self._placed(positions), NOTHING, newest)

    def _placed(self, positions: Mapping[int, int]) -> dict[int, int]:
        """With all partitions that there are. Raises InfrastructureError where the log is another than it was."""
        with notifications(self._kafka) as log:
            begins, ends = log.beginnings(), log.ends()
        first = ends if self._settings.dispatch.starting_offsets == "latest" and not positions else begins
        found = {number: positions.get(number, first[number]) for number in ends}
        for number, position in found.items():
            if begins[number] <= position <= ends[number]:
                continue
            if self._settings.dispatch.fail_on_data_loss:
                raise InfrastructureError(
                    f"partition {number} of the notifications log reaches from {begins[number]} to {ends[number]}, and "
                    f"we stand at {position}: notifications are lost, or the log was made anew. "
                    f"dispatch.fail_on_data_loss = false goes on behind the gap"
                )
            found[number] = begins[number]
        self.partitions, self.ends = len(ends), ends
        return found

    def _tell(self, said: list[WorkerProgress]) -> None:
        if not said:
            return
        log = ProgressLog(self._kafka)
        try:
            for each in said:
                log.tell(each)
            log.settle(self._kafka.request_timeout_s)
        finally:
            log.close()

    def newest(self) -> int:
        """The highest number of a batch that is known of, without a look into the logs; of a checkpoint that of its
        first, for all of its range are its own."""
        of_checkpoint = HadoopFolder(self._spark, self._checkpoint).highest(RANGES)
        of_batches = NO_BATCH if of_checkpoint is None else of_checkpoint * RANGE
        return max([of_batches, *(each.run for each in self._hearing.known.values())])


def notifications(kafka: KafkaSettings) -> closing[LogConsumer]:
    return closing(LogConsumer(kafka, "notifications"))
