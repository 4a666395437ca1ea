"""The logs of a gateway process and the state folded from them: opened, read to their ends, closed together."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine
from contextlib import closing
from functools import partial
from typing import Any

from arborcast.core.backoff import Backoff
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.consumer import LogConsumer
from arborcast.core.threads import start_thread
from arborcast.engine.embedded.pending_operations import append_pending
from arborcast.engine.gateway.parts import directory_sync, pull_limits
from arborcast.engine.gateway.workers import Share
from arborcast.engine.settings.loading import Settings
from arborcast.ingest.federation.interests import PeerInterests
from arborcast.ingest.operations.current_message import RetainedMessages
from arborcast.ingest.operations.gateway import GatewayView
from arborcast.ingest.operations.push_results import results_for
from arborcast.ingest.operations.topic_codes import TopicCodes
from arborcast.ingest.state.changes import ControlChanges, GatewayPositions
from arborcast.ingest.state.fragment_log import FragmentLog, FragmentView
from arborcast.ingest.state.log_view import ControlLogView
from arborcast.ingest.state.notification_log import NotificationLog
from arborcast.ingest.state.pull_queues import PullLog, PullQueues, PullView
from arborcast.ingest.state.repeats import RepeatMemory, remember_history
from arborcast.topic_model.control_log import ControlLog, OperationsLog
from arborcast.topic_model.projections.pull_points import PullPoints

logger = logging.getLogger("arborcast.gateway")

# Wait between attempts to reach Kafka at the start.
_BACKOFF = Backoff(0.25, 5.0)

# Time to close the control log and the directory at a stop, beside gateway.stop_timeout_s for current requests.
_CLOSE_S = 1.0

Failed = Callable[[Exception], None]
Spawn = Callable[[Coroutine[Any, Any, None], str], None]


class GatewayControl:
    """The `control` log: its writer, the projections of its records, and the thread that applies them."""

    def __init__(self, settings: Settings, share: Share | None, failed: Failed) -> None:
        singletons = share is None or share.first
        self._kafka = settings.kafka
        self.log = ControlLog(settings.kafka)
        self.sync = directory_sync(settings, self.log) if singletons else None
        self.codes = TopicCodes() if singletons and settings.topics.codes == "position" else None
        self.interests = PeerInterests()
        self.projections = GatewayView(self.interests, *([self.codes] if self.codes else []))
        self.positions = share.positions() if share else GatewayPositions()
        applied = self.sync.applied if self.sync else lambda _: None
        self.view = ControlLogView(settings.kafka, self.projections, failed, applied, self.positions.moved)
        self.changes = ControlChanges(settings.kafka, self.log, self.view, self.positions)

    def create(self, *, alter: bool) -> None:
        """Create the missing logs; see `ControlLog.ensure_created`."""
        self.log.ensure_created(alter=alter)
        if self.sync is not None:
            with closing(LogConsumer(self._kafka, self.log.name)) as log:
                self.sync.of_log(log.topic_id())

    def close(self) -> None:
        """Waits for Kafka and for the directory."""
        self.changes.close()
        if self.sync is not None:
            self.sync.close()
            self.log.close()  # its last step may have connected again


class PullState:
    """The `pullpoints` log and the queues of the pull points."""

    def __init__(self, settings: Settings, pull_points: PullPoints, failed: Failed) -> None:
        self.view = PullView(settings.kafka, pull_limits(settings), failed, lambda each: self.queues.arrived(each))
        self.log = PullLog(settings.kafka, self.view)
        self.queues = PullQueues(
            self.view.store,
            self.log,
            pull_points.exists,
            claim_s=settings.gateway.pull_claim_s,
            max_bytes=settings.gateway.max_body_bytes,
            max_nodes=settings.gateway.max_elements,
        )


class GatewayState:
    """All logs of a gateway process. `failed` is called with the error that ends the thread of a view."""

    def __init__(self, settings: Settings, share: Share | None, failed: Failed) -> None:
        self._settings = settings
        self.control = GatewayControl(settings, share, failed)
        self.pulls = PullState(settings, self.control.projections.pull_points, failed)
        self.part_view = FragmentView(settings.kafka, failed)
        self.part_log = FragmentLog(settings.kafka, self.part_view)
        self.notifications = NotificationLog(settings.kafka, settings.gateway)
        self.retained = RetainedMessages(settings.kafka)
        self.results = results_for(settings.kafka, settings.secrets)
        self.memory = RepeatMemory(settings.gateway.deduplication_window_s, share.memory if share else None)
        self._history_read = False
        self._failure = ""  # of work at the start
        self._views = (self.control.view, self.pulls.view, self.part_view)

    async def open(self, spawn: Spawn, read_more: Callable[[], None] | None) -> None:
        """Wait for Kafka, follow the logs, and return when the views have reached their ends.

        `read_more` is called after the history of requests is read, in the same thread.
        """
        # The topics of another cluster may have a configuration of its operators.
        alter = self._settings.stack.broker == "embedded"
        await self._until_kafka(partial(self.control.create, alter=alter))
        await self._until_kafka(self._append_pending_operations)
        spawn(self._read_history(read_more), "history")
        for view in self._views:
            view.start()
        self.notifications.start()
        spawn(self.retained.warm(), "retained")
        for view in self._views:
            await view.until_caught_up()

    def _append_pending_operations(self) -> None:
        with closing(OperationsLog(self._settings.kafka)) as log:
            append_pending(self._settings.home, log)

    @property
    def caught_up(self) -> bool:
        """Whether requests can be served: all logs are read, and the other gateways have seen the position."""
        return self._has_read() and self.control.positions.shown

    def obstacle(self) -> str:
        """Why requests cannot be served; empty if they can."""
        if not self._has_read():
            failures = [self._failure, *(view.obstacle for view in self._views)]
            return ": ".join(["the logs are not read to their ends yet", *filter(None, failures)])
        if not self.control.positions.shown:
            return "the other gateways have not seen this one in the lease log yet"
        if unread := self.control.view.obstacle:
            return f"the control log is not read: {unread}"
        return self.notifications.obstacle

    async def close(self) -> None:
        """Stop the threads and close the logs. Does not wait longer than a second for a server that is away."""
        await self.pulls.queues.close()
        await asyncio.gather(
            self.notifications.stop(),
            *(view.stop() for view in self._views),
            within(_CLOSE_S, self._close_logs),
        )

    def _has_read(self) -> bool:
        return self._history_read and all(view.caught_up for view in self._views)

    def _close_logs(self) -> None:
        self.pulls.log.close()
        self.part_log.close()
        self.results.close()
        self.retained.close()
        self.control.close()

    async def _read_history(self, read_more: Callable[[], None] | None) -> None:
        if self.memory.enabled:
            await self._until_kafka(partial(remember_history, self._settings.kafka, self.memory))
        if read_more is not None:
            await self._until_kafka(read_more)
        self._history_read = True

    async def _until_kafka(self, work: Callable[[], object]) -> None:
        """Run `work` in a thread, and repeat it until Kafka answers."""
        for failures in itertools.count(1):
            try:
                await asyncio.to_thread(work)
            except InfrastructureError as error:
                if error.retry_after is None:
                    raise
                self._failure = str(error)
                logger.warning("waiting for Kafka at %s: %s", self._settings.kafka.bootstrap_servers, error)
                await asyncio.sleep(_BACKOFF.after(failures))
            else:
                self._failure = ""
                return


async def within(seconds: float, work: Callable[[], None]) -> None:
    """Run `work` in a daemon thread and return when it is done or the time is over: an unavailable server must not
    delay a stop."""
    thread = start_thread("stop", work)
    await asyncio.to_thread(thread.join, seconds)
