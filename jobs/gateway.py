"""The gateway process:

    python -m jobs.gateway --config arborcast.toml

It listens at once (`/health/live`), waits for Kafka as long as it takes, and is ready (`/health/ready`) when it has
read the control log to its end. SIGTERM or SIGINT stop it within a few seconds; a second one at once. The exit status
is 0 after an orderly stop, 1 when it could not go on, 2 for wrong settings or a busy port.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import uvloop

from ingest.addresses import OwnAddresses
from ingest.app import GatewayApp
from ingest.changes import ControlChanges
from ingest.expiry import end_expired_forever
from ingest.gateway import Gateway
from ingest.metrics import Registry
from ingest.notification_log import NotificationLog
from ingest.oasis import PublishedDocuments
from ingest.publishers.worker import DemandWorker
from ingest.pull_points import end_orphans
from ingest.pull_queues import PullQueues
from ingest.pull_view import PullLog, PullView
from ingest.repeats import RepeatMemory, Repeats
from ingest.repeats_history import remember_history
from ingest.retained import RetainedMessages
from ingest.service_wsdl import ServiceDescriptions
from ingest.serving import GatewayServer, listen, listen_for_workers, make_server
from ingest.view import ControlView
from jobs import gateway_workers
from jobs.gateway_workers import Share, WorkerMetrics, Workers
from jobs.settings import Settings, load_settings
from jobs.stack import jars
from jobs.stack.errors import StackError
from topic_model.control_log import ControlLog
from topic_model.directory.opening import open_directory
from topic_model.directory.sync import DirectorySync
from topic_model.errors import ArborcastError, ConfigError, InfrastructureError
from topic_model.pull_points import PullPoints
from topic_model.pull_store import PullLimits
from topic_model.registrations import Registrations

logger = logging.getLogger("arborcast.gateway")

_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  # looked for, not listened on

# Between attempts to find Kafka at start; doubled up to the second.
_FIRST_WAIT_S = 0.25
_LONGEST_WAIT_S = 5.0

# For letting go of the control log and the directory at a stop, beside gateway.stop_timeout_s for requests under way.
_STOP_S = 1.0


class GatewayProcess:
    """Puts the parts of the gateway together, runs them, and stops them in order."""

    def __init__(self, settings: Settings, host: str, port: int, share: Share | None = None) -> None:
        _check_sizes(settings)
        self._settings = settings
        self._share = share
        # What must be done once is done by the first of several workers.
        self._has_duties = share is None or share.first
        self._memory = RepeatMemory(settings.gateway.deduplication_window_s, share.memory if share else None)
        self._remembers = False
        self._log = ControlLog(settings.kafka)
        self._sync = _directory_sync(settings, self._log) if self._has_duties else None
        pull_points = PullPoints()
        registrations = Registrations()
        self._view = ControlView(
            settings.kafka,
            self._cannot_go_on,
            self._sync.applied if self._sync else None,
            folds=[pull_points, registrations],
        )
        self._pull_view = PullView(
            settings.kafka, _pull_limits(settings), self._cannot_go_on, lambda each: self._pulls.arrived(each)
        )
        self._pull_log = PullLog(settings.kafka, self._pull_view)
        self._pulls = PullQueues(
            self._pull_view.store,
            self._pull_log,
            pull_points.is_there,
            claim_s=settings.gateway.pull_claim_s,
            max_bytes=settings.gateway.max_body_bytes,
        )
        self._notifications = NotificationLog(settings.kafka, settings.gateway)
        self._retained = RetainedMessages(settings.kafka)
        self._changes = ControlChanges(settings.kafka, self._log, self._view)
        announced = "127.0.0.1" if host in _WILDCARDS else host
        self.own = OwnAddresses(announced, port, settings.gateway.public_url)
        self._gateway = Gateway(
            settings=settings.gateway,
            topics=settings.topics,
            own=self.own,
            table=self._view.table,
            changes=self._changes,
            notifications=self._notifications,
            retained=self._retained,
            pulls=self._pulls,
            pull_points=pull_points,
            registrations=registrations,
            repeats=Repeats(self._memory),
            descriptions=_descriptions(),
        )
        app = GatewayApp(self._gateway, self._metrics(), self._obstacle, self._caught_up)
        self._server: GatewayServer = make_server(app, settings.gateway)
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: Exception | None = None

    async def run(self, listener: socket.socket) -> int:
        """Serve until stopped; returns the exit status."""
        self._server.stop_on_signals()
        self._spawn(self._start_parts(), "start")
        await self._server.serve(sockets=[listener])
        for task in self._tasks:
            task.cancel()
        await self._pulls.close()
        await asyncio.gather(
            self._notifications.stop(),
            self._view.stop(),
            self._pull_view.stop(),
            _within(_STOP_S, self._close_control),
        )
        if isinstance(self._failure, ConfigError):
            return 2
        return 1 if self._failure else 0

    def _caught_up(self) -> bool:
        return self._view.caught_up and self._pull_view.caught_up and self._remembers

    def _close_control(self) -> None:
        self._pull_log.close()
        self._changes.close()
        self._retained.close()
        if self._sync is not None:
            self._sync.close()
        self._log.close()

    async def _start_parts(self) -> None:
        await self._until_kafka(self._log.ensure_created)
        self._spawn(self._remember_history(), "history")
        self._view.start()
        self._pull_view.start()
        self._notifications.start()
        if self._has_duties:
            self._spawn(end_expired_forever(self._gateway), "expiry")
        self._spawn(self._retained.warm(), "retained")
        await self._view.until_caught_up()
        await self._pull_view.until_caught_up()
        self._spawn(self._pulls.sweep_forever(partial(end_orphans, self._gateway)), "pull-points")
        if self._settings.gateway.demand_publishing and self._has_duties:
            self._spawn(DemandWorker(self._gateway, lambda: self._view.applied).run(), "demand")
        if self._sync is not None:
            self._sync.start()

    async def _remember_history(self) -> None:
        window_s = self._settings.gateway.deduplication_window_s
        if self._memory.enabled:
            await self._until_kafka(lambda: remember_history(self._settings.kafka, self._memory, window_s))
        self._remembers = True

    async def _until_kafka(self, work: Callable[[], object]) -> None:
        """Do it in a thread, and again until Kafka does its part."""
        wait = _FIRST_WAIT_S
        while True:
            try:
                await asyncio.to_thread(work)
                return
            except InfrastructureError as error:
                if error.retry_after is None:
                    raise
                logger.warning("waiting for Kafka at %s: %s", self._settings.kafka.bootstrap_servers, error)
                await asyncio.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT_S)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._finished)
        self._tasks.append(task)

    def _finished(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._cannot_go_on(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def _cannot_go_on(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
            known = isinstance(error, ArborcastError)
            logger.critical("stopping: %s", error, exc_info=None if known else error)
        self._server.stop()

    def _obstacle(self) -> str:
        own = self._own_obstacle()
        if own or self._share is None:
            return own
        return self._share.waits_for(self._settings.gateway.workers)

    def _own_obstacle(self) -> str:
        if not self._caught_up():
            return "the logs are not read to their ends yet"
        if not (self._notifications.connected and self._view.reachable):
            return "the Kafka broker does not answer"
        return ""

    def _metrics(self) -> Registry:
        metrics = WorkerMetrics(self._share) if self._share else Registry()
        process = psutil.Process()
        started = time.time()
        metrics.gauge(
            "arborcast_gateway_unacknowledged_bytes",
            "Bytes of notifications that Kafka has not acknowledged yet.",
            lambda: self._notifications.unacknowledged_bytes,
        )
        metrics.gauge(
            "arborcast_subscriptions", "Subscriptions in force.", lambda: self._view.table.statistics().subscriptions
        )
        metrics.gauge(
            "arborcast_publisher_registrations", "Publishers registered.", lambda: len(self._gateway.registrations)
        )
        metrics.gauge("arborcast_pull_points", "Pull points there are.", lambda: len(self._gateway.pull_points))
        store = self._pull_view.store
        metrics.gauge("arborcast_pull_waiting_messages", "Messages in pull points.", lambda: store.total)
        metrics.gauge("arborcast_pull_claims", "Answers with messages on their way.", lambda: store.claims)
        metrics.gauge("arborcast_pull_memory_bytes", "Of these, held in memory.", lambda: store.resident_bytes)
        metrics.gauge(
            "arborcast_pull_dropped_messages",
            "Messages that had to go since the start because their pull point was full.",
            lambda: store.dropped,
        )
        metrics.gauge(
            "arborcast_pull_waiting_clients",
            "Requests that wait for messages.",
            lambda: self._pulls.waiting_clients,
        )
        metrics.gauge("arborcast_topics", "Topics in the tree.", lambda: len(self._view.table.topics))
        metrics.gauge(
            "arborcast_control_position", "Offset of the next control record to apply.", lambda: self._view.applied
        )
        if (sync := self._sync) is not None:
            metrics.gauge(
                "arborcast_directory_connected",
                "1 when the topic directory can be read.",
                lambda: 1 if sync.status.connected else 0,
            )
            metrics.gauge(
                "arborcast_directory_problems",
                "Entries of the directory that could not be taken over, and changes that it refused.",
                lambda: len(sync.status.problems),
            )
        metrics.gauge(
            "arborcast_gateway_repeated_requests",
            "Requests since the start that were repetitions of accepted ones.",
            lambda: self._gateway.repeats.count,
        )
        metrics.gauge("arborcast_gateway_ready", "1 when ready.", lambda: 0 if self._own_obstacle() else 1)
        metrics.gauge("process_resident_memory_bytes", "Resident memory.", lambda: process.memory_info().rss)
        metrics.gauge("process_cpu_seconds_total", "CPU time used.", lambda: sum(process.cpu_times()[:2]))
        metrics.gauge("process_start_time_seconds", "When the process started.", lambda: started)
        if isinstance(metrics, WorkerMetrics):
            arguments = (self._own_obstacle,)
            threading.Thread(target=metrics.publish_forever, args=arguments, name="metrics", daemon=True).start()
        return metrics


def _pull_limits(settings: Settings) -> PullLimits:
    gateway = settings.gateway
    return PullLimits(gateway.pull_messages, gateway.pull_bytes, gateway.pull_memory_bytes)


def _check_sizes(settings: Settings) -> None:
    """A body grows when it is stored (as UTF-8, with its namespaces); what was accepted must fit into a record."""
    needed = 3 * settings.gateway.max_body_bytes // 2 + 128 * 1024
    if settings.kafka.max_record_bytes < needed:
        raise ConfigError(
            f"kafka.max_record_bytes = {settings.kafka.max_record_bytes} is too small for gateway.max_body_bytes = "
            f"{settings.gateway.max_body_bytes}: at least {needed} are needed"
        )


def _descriptions() -> ServiceDescriptions | None:
    """What `?wsdl` needs; None where the published schemas are not there, which is no reason not to work."""
    try:
        (jar,) = jars.jar_paths("wsdl")
        return ServiceDescriptions(PublishedDocuments(jar))
    except (StackError, InfrastructureError) as error:
        logger.warning("no WSDL is served: %s", error)
        return None


def _directory_sync(settings: Settings, log: ControlLog) -> DirectorySync | None:
    """What keeps the control log and the directory in step; None without a directory. Raises ConfigError."""
    directory = open_directory(settings.directory, settings.home / "topics.ldif")
    if directory is None:
        return None
    try:
        settings.home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"home = {settings.home} cannot be made: {error.strerror}") from error
    return DirectorySync(directory, log.append, settings.home / "directory-known.json")


async def _within(seconds: float, work: Callable[[], None]) -> None:
    """Do it in a thread that may be left behind: waiting for a broker or a server that is away must not hold a stop."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    await asyncio.to_thread(thread.join, seconds)


def main(arguments: list[str] | None = None) -> int:
    """Run the gateway until it is stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m jobs.gateway", description="Arborcast's gateway: SOAP in, log out."
    )
    parser.add_argument("--config", type=Path, help="settings file (TOML)")
    parser.add_argument("--home", type=Path, help="data directory")
    gateway_workers.add_arguments(parser)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # The client libraries report every failed attempt of theirs; ours say what it means.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        settings = load_settings(options.config, options.home)
        share = gateway_workers.share_of(options)
        if share is None and settings.gateway.workers > 1:
            given = sys.argv[1:] if arguments is None else arguments
            return Workers(settings.gateway, given, listen_for_workers(settings.gateway)).run()
        listener = share.listener if share else listen(settings.gateway)
        # Not closed: that would wait for threads that may be waiting for a broker that is away.
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        return runner.run(_run(settings, listener, share))
    except ConfigError as error:
        print(f"arborcast gateway: {error}", file=sys.stderr)
        return 2


async def _run(settings: Settings, listener: socket.socket, share: Share | None) -> int:
    host, port = listener.getsockname()[:2]
    process = GatewayProcess(settings, host, port, share)
    logger.info("listening on %s port %d, reached as %s", host, port, process.own.broker)
    return await process.run(listener)


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    sys.stderr.flush()
    # Everything is stopped and written. Python's own end would wait for threads too, see above.
    os._exit(status)
