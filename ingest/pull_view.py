"""The gateway's side of the `pullpoints` log: the store that follows it, appending to it, and keeping it short."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from ingest.log_view import POLL_S, LogView
from topic_model.errors import InfrastructureError
from topic_model.kafka_client import Admin
from topic_model.ordered_log import LogFollower, LogReader, LogWriter
from topic_model.pull_log import PULL_LOG, PullRecord, StoredMessage, decode, encode
from topic_model.pull_store import PullLimits, PullStore
from topic_model.settings import KafkaSettings

logger = logging.getLogger(__name__)

_Keyed = tuple[str, PullRecord]

# Appends wait in threads; see ingest.changes.
_WRITERS = 8


class PullView(LogView[_Keyed]):
    """What waits in the pull points. `changed(pull_point_id)` is called when something has come to wait in one."""

    def __init__(
        self,
        kafka: KafkaSettings,
        limits: PullLimits,
        on_failure: Callable[[Exception], None],
        changed: Callable[[str], None],
    ) -> None:
        self._kafka = kafka
        self.store = PullStore(limits, changed)
        super().__init__(PULL_LOG, on_failure)

    def _make_follower(self) -> LogFollower[_Keyed]:
        return LogFollower(self._kafka, PULL_LOG, decode, self._take, wait_ms=int(POLL_S * 1000), forgetful=True)

    def _fold(self, record: _Keyed, offset: int) -> None:
        self.store.apply(*record, offset)


class PullLog:
    """Appends to the log and looks records up in it. Used on the event loop's thread."""

    def __init__(self, kafka: KafkaSettings, view: PullView) -> None:
        self._kafka = kafka
        self._view = view
        self._writer = LogWriter(kafka, PULL_LOG)
        self._reader = LogReader(kafka, PULL_LOG)
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="pull-log")
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="pull-log-reader")
        self._cut = 0

    async def commit(self, pull_point_id: str, records: Sequence[PullRecord]) -> None:
        """Return when the records are in the log and applied to our store. Raises InfrastructureError."""
        encoded = [encode(pull_point_id, record) for record in records]
        loop = asyncio.get_running_loop()
        offset = await loop.run_in_executor(self._writers, self._writer.append_encoded, encoded)
        await self._view.wait_applied(offset, self._kafka.request_timeout_s)

    async def elements(self, offsets: Iterable[int]) -> dict[int, bytes]:
        """The messages at these offsets, as far as the log still has them. Raises InfrastructureError."""
        values = await asyncio.get_running_loop().run_in_executor(self._readers, self._reader.read, list(offsets))
        found = {}
        for offset, value in values.items():
            _, record = decode(b"", value)
            if isinstance(record, StoredMessage):
                found[offset] = record.element
        return found

    async def cut(self) -> None:
        """Let Kafka delete what nobody needs any more, so that a start has little to read. Never raises."""
        earliest = self._view.store.earliest()
        before = self._view.applied if earliest is None else min(earliest, self._view.applied)
        if before > self._cut:
            try:
                await asyncio.to_thread(self._delete_before, before)
            except InfrastructureError as error:
                logger.warning("%s", error)
            else:
                self._cut = before

    def close(self) -> None:
        """Begin nothing more, and free the connections."""
        self._writers.shutdown(wait=False, cancel_futures=True)
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._writer.close()

    def _delete_before(self, offset: int) -> None:
        with closing(Admin(self._kafka)) as admin:
            admin.delete_before(self._kafka.topic(PULL_LOG), 0, offset)
