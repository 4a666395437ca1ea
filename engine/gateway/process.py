"""One gateway process: its parts put together, run, and stopped in order."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from arborcast.core.backoff import Backoff
from arborcast.core.errors import ArborcastError, ConfigError, InfrastructureError
from arborcast.core.security.ip_addresses import host_to_reach
from arborcast.core.telemetry.metrics import Registry
from arborcast.core.telemetry.tracing import make_tracing
from arborcast.core.threads import start_thread
from arborcast.engine.gateway.federation import Federation, close_links
from arborcast.engine.gateway.lease import SingletonTasks, Work, name_of
from arborcast.engine.gateway.metrics import (
    declare_directory,
    declare_framed,
    declare_handshakes,
    declare_inflight,
    declare_log,
    declare_parts,
    declare_pull_points,
    declare_routing,
    declare_state,
)
from arborcast.engine.gateway.parts import check_sizes, descriptions, directory_sync, gate, public_url, pull_limits
from arborcast.engine.gateway.workers import LoopBeats, Share, WorkerMetrics
from arborcast.engine.monitoring.endpoint import declare_process
from arborcast.engine.settings.loading import Settings
from arborcast.engine.settings.outbound import describe, policy_of
from arborcast.ingest.addresses import OwnAddresses
from arborcast.ingest.consumers import DnsCheck, OutboundRoute, OwnershipProof
from arborcast.ingest.demand.worker import DemandWorker
from arborcast.ingest.elements.protection import Protector
from arborcast.ingest.federation.interests import PeerInterests
from arborcast.ingest.framed.server import FramedServer
from arborcast.ingest.http.app import GatewayApp
from arborcast.ingest.http.listening import listen_on, on_signals
from arborcast.ingest.http.serving import GatewayServer, make_server
from arborcast.ingest.http.tls import ServerTls
from arborcast.ingest.operations.current_message import RetainedMessages
from arborcast.ingest.operations.gateway import Gateway
from arborcast.ingest.operations.legacy import parts
from arborcast.ingest.operations.pull_points import end_orphans
from arborcast.ingest.operations.push_results import results_for
from arborcast.ingest.operations.subscription_manager import end_expired_forever
from arborcast.ingest.operations.topic_codes import TopicCodes
from arborcast.ingest.state.changes import ControlChanges, GatewayPositions, LogEnd
from arborcast.ingest.state.fragment_log import FragmentLog, FragmentView
from arborcast.ingest.state.log_view import ControlLogView
from arborcast.ingest.state.notification_log import NotificationLog
from arborcast.ingest.state.pull_queues import PullLog, PullQueues, PullView
from arborcast.ingest.state.repeats import RepeatMemory, Repeats, remember_history
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.projections.owners import Owners
from arborcast.topic_model.projections.pull_points import PullPoints
from arborcast.topic_model.projections.registrations import Registrations

logger = logging.getLogger("arborcast.gateway")


# Between attempts to find Kafka at start; doubled up to the second.
_BACKOFF = Backoff(0.25, 5.0)

# For letting go of the control log and the directory at a stop, beside gateway.stop_timeout_s for requests under way.
_STOP_S = 1.0


class GatewayProcess:
    """Puts the parts of the gateway together, runs them, and stops them in order."""

    def __init__(self, settings: Settings, host: str, port: int, share: Share | None = None) -> None:
        check_sizes(settings)
        self._tls = ServerTls(settings.tls) if settings.tls.certificate_file else None
        self._settings = settings
        self._share = share
        # What must be done once may be done by the first of several workers, if no other gateway does it already.
        self._runs_singletons = share is None or share.first
        self._singletons: SingletonTasks | None = None
        self._name = name_of(host, port)
        self._memory = RepeatMemory(settings.gateway.deduplication_window_s, share.memory if share else None)
        self._remembers = False
        self._log = ControlLog(settings.kafka)
        self._sync = directory_sync(settings, self._log) if self._runs_singletons else None
        pull_points = PullPoints()
        registrations = Registrations()
        owners = Owners()
        gives_codes = self._runs_singletons and settings.topics.codes == "position"
        self._codes = TopicCodes() if gives_codes else None
        self._interests = PeerInterests()
        control = ControlView(
            pull_points, owners, registrations, self._interests, *([self._codes] if self._codes else [])
        )
        self._positions = share.positions() if share else GatewayPositions()
        self._view = ControlLogView(
            settings.kafka,
            control,
            self._cannot_go_on,
            self._sync.applied if self._sync else None,
            self._positions.moved,
        )
        self._pull_view = PullView(
            settings.kafka, pull_limits(settings), self._cannot_go_on, lambda each: self._pulls.arrived(each)
        )
        self._pull_log = PullLog(settings.kafka, self._pull_view)
        self._pulls = PullQueues(
            self._pull_view.store,
            self._pull_log,
            pull_points.is_there,
            claim_s=settings.gateway.pull_claim_s,
            max_bytes=settings.gateway.max_body_bytes,
            max_nodes=settings.gateway.max_elements,
        )
        self._part_view = FragmentView(settings.kafka, self._cannot_go_on)
        self._part_log = FragmentLog(settings.kafka, self._part_view)
        self._notifications = NotificationLog(settings.kafka, settings.gateway)
        self._retained = RetainedMessages(settings.kafka)
        self._results = results_for(settings.kafka, settings.secrets)
        self._log_end = LogEnd(settings.kafka, "control")
        self._changes = ControlChanges(settings.kafka, self._log, self._view, self._log_end, self._positions)
        announced = host_to_reach(host)
        self.own = OwnAddresses(announced, port, public_url(settings, announced, port))
        policy = policy_of(settings, port)
        route = OutboundRoute(settings.push.proxy, settings.push.tls_ca_file)
        logger.info("subscribers may be at %s", describe(settings.outbound))
        self._gateway = Gateway(
            settings=settings.gateway,
            topics=settings.topics,
            own=self.own,
            table=control.table,
            changes=self._changes,
            notifications=self._notifications,
            retained=self._retained,
            pulls=self._pulls,
            parts=self._part_log,
            fragments=settings.fragments,
            pull_points=pull_points,
            registrations=registrations,
            suspensions=control.suspensions,
            owners=owners,
            outbound=policy,
            route=route,
            dns_check=DnsCheck(policy) if settings.outbound.look_up_names and not settings.push.proxy else None,
            proof=OwnershipProof(policy, route) if settings.outbound.prove_ownership else None,
            repeats=Repeats(self._memory),
            descriptions=descriptions(),
            protector=Protector(settings.secrets),
            results=self._results,
            tracing=make_tracing(settings.tracing, "gateway"),
            gate=gate(settings),
        )
        self._metrics = WorkerMetrics(share) if share else Registry()
        self._declare(self._metrics)
        self._beats = LoopBeats(share, settings.gateway.hang_timeout_s) if share else None
        lives = self._beats.ill if self._beats else lambda: ""
        app = GatewayApp(self._gateway, self._metrics, self._obstacle, self._caught_up, lives)
        declare_inflight(self._metrics, app.inflight)
        self._server: GatewayServer = make_server(app, settings.gateway, settings.limits, self._tls)
        self._framed: FramedServer | None = None
        if settings.framed.port:
            self._framed = FramedServer(
                self._gateway, app.inflight, settings.framed, settings.limits, self._caught_up, self._tls
            )
            declare_framed(self._metrics, self._framed)
        self._federation: Federation | None = None
        if settings.federation.name:
            memory = share.memory if share else None
            self._federation = Federation(self._gateway, settings, self._interests, memory)
            self._gateway.federation = self._federation.endpoint(self._caught_up, self._metrics)
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: Exception | None = None

    async def run(self, listener: socket.socket) -> int:
        """Serve until stopped; returns the exit status."""
        on_signals(self._server.stop)
        self._spawn(self._start_parts(), "start")
        if self._beats is not None:
            self._spawn(self._beats.beat_forever(), "beat")
        if isinstance(self._metrics, WorkerMetrics):
            self._spawn(self._metrics.publish_forever(self._own_obstacle), "metrics")
        if self._tls is not None:
            self._spawn(self._tls.follow_files(), "tls")
        if self._framed is not None:
            gateway = self._settings.gateway
            framed = listen_on(
                gateway.host,
                self._settings.framed.port,
                host_by="gateway.host",
                port_by="framed.port",
                shared=gateway.workers > 1,
            )
            await self._framed.start(framed)
        if self._federation is not None and self._runs_singletons and self._settings.federation.datagram_port:
            self._spawn(self._federation.datagrams(), "datagrams")
        await self._server.serve(sockets=[listener])
        if self._framed is not None:
            await self._framed.stop()
        for task in self._tasks:
            task.cancel()
        if self._singletons is not None:
            self._singletons.cancel()
            await _within(_STOP_S, self._singletons.stop)
        await self._pulls.close()
        await asyncio.gather(
            self._notifications.stop(),
            self._view.stop(),
            self._pull_view.stop(),
            self._part_view.stop(),
            _within(_STOP_S, self._close_control),
        )
        if isinstance(self._failure, ConfigError):
            return 2
        return 1 if self._failure else 0

    def _caught_up(self) -> bool:
        return self._has_read() and self._positions.shown

    def _has_read(self) -> bool:
        views = (self._view, self._pull_view, self._part_view)
        return all(each.caught_up for each in views) and self._remembers

    def _close_control(self) -> None:
        self._pull_log.close()
        self._part_log.close()
        self._results.close()
        self._changes.close()
        self._log_end.close()
        self._retained.close()
        if self._sync is not None:
            self._sync.close()
        self._log.close()
        if self._gateway.tracing is not None:
            self._gateway.tracing.close()

    async def _start_parts(self) -> None:
        await self._until_kafka(self._log.ensure_created)
        self._spawn(self._remember_history(), "history")
        self._view.start()
        self._pull_view.start()
        self._part_view.start()
        self._notifications.start()
        self._spawn(self._retained.warm(), "retained")
        await self._view.until_caught_up()
        await self._pull_view.until_caught_up()
        await self._part_view.until_caught_up()
        # What is there now stays. The garbage collector looks through all objects that it has not been told to leave
        # alone, and nothing else runs meanwhile: a tenth of a second for the modules alone, seconds for many
        # subscriptions.
        gc.collect()
        gc.freeze()
        self._spawn(self._pulls.sweep_forever(partial(end_orphans, self._gateway)), "pull-points")
        if self._runs_singletons:
            self._singletons = self._make_singleton_tasks()
            self._singletons.start()

    def _make_singleton_tasks(self) -> SingletonTasks:
        work: dict[str, Work] = {
            "expiry": partial(end_expired_forever, self._gateway),
            "parts": partial(parts.look_after_forever, self._gateway),
        }
        if self._codes is not None:
            work["codes"] = partial(self._codes.give_forever, self._gateway)
        if self._settings.gateway.demand_publishing:
            work["demand"] = lambda: DemandWorker(self._gateway, lambda: self._view.applied).run()
        if self._federation is not None:
            federation = self._federation
            work["federation"] = lambda: federation.member().run()
        elif self._interests.links:
            work["links"] = partial(close_links, self._gateway, self._interests)
        return SingletonTasks(self._settings.kafka, self._name, work, self._sync, self._cannot_go_on, self._positions)

    async def _remember_history(self) -> None:
        window_s = self._settings.gateway.deduplication_window_s
        if self._memory.enabled:
            await self._until_kafka(lambda: remember_history(self._settings.kafka, self._memory, window_s))
        if self._federation is not None:
            await self._until_kafka(self._federation.remember)
        self._remembers = True

    async def _until_kafka(self, work: Callable[[], object]) -> None:
        """Do it in a thread, and again until Kafka does its part."""
        for failures in itertools.count(1):
            try:
                await asyncio.to_thread(work)
                return
            except InfrastructureError as error:
                if error.retry_after is None:
                    raise
                logger.warning("waiting for Kafka at %s: %s", self._settings.kafka.bootstrap_servers, error)
                await asyncio.sleep(_BACKOFF.after(failures))

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
        if not self._has_read():
            return "the logs are not read to their ends yet"
        if not self._positions.shown:
            return "the other gateways have not seen this one in the lease log yet"
        if not (self._notifications.connected and self._view.reachable):
            return "the Kafka broker does not answer"
        return ""

    def _declare(self, metrics: Registry) -> None:
        """Everything that /metrics shows beside the requests."""
        declare_process(metrics)
        declare_log(metrics, self._notifications)
        declare_routing(metrics, self._view, self._gateway)
        declare_pull_points(metrics, self._pull_view.store, self._pulls)
        declare_parts(metrics, self._part_view.messages)
        if self._sync is not None:
            declare_directory(metrics, self._sync)
        declare_state(
            metrics,
            ready=lambda: not self._own_obstacle(),
            ours=lambda: self._singletons is not None and self._singletons.ours,
        )
        if self._tls is not None:
            declare_handshakes(metrics, self._tls.handshakes)


async def _within(seconds: float, work: Callable[[], None]) -> None:
    """Do it in a thread that may be left behind: waiting for a broker or a server that is away must not hold a stop."""
    thread = start_thread("stop", work)
    await asyncio.to_thread(thread.join, seconds)
