"""One gateway process: its parts are assembled, run, and stopped in order."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arborcast.core.errors import ArborcastError, ConfigError
from arborcast.core.security.ip_addresses import connect_host
from arborcast.core.security.keyring import KeyFile
from arborcast.core.security.outbound import OutboundRoute
from arborcast.core.telemetry.metrics import Registry
from arborcast.core.telemetry.tracing import make_tracing
from arborcast.engine.gateway import metrics
from arborcast.engine.gateway.federation import Federation, close_links
from arborcast.engine.gateway.lease import SingletonTasks, Work, name_of, report_failure
from arborcast.engine.gateway.parts import descriptions, gate, mqtt_bridge, public_url
from arborcast.engine.gateway.state import GatewayState, within
from arborcast.engine.gateway.workers import LoopBeats, Share, WorkerMetrics
from arborcast.engine.monitoring.endpoint import declare_process
from arborcast.engine.settings.loading import Settings
from arborcast.engine.settings.outbound import describe, policy_of
from arborcast.ingest.addresses import OwnAddresses
from arborcast.ingest.cameras.worker import CameraWorker
from arborcast.ingest.consumers import DnsCheck, OwnershipProof
from arborcast.ingest.demand.worker import DemandWorker
from arborcast.ingest.elements.protection import Protector
from arborcast.ingest.framed.server import FramedServer
from arborcast.ingest.http.app import GatewayApp
from arborcast.ingest.http.listening import listen_on, on_signals
from arborcast.ingest.http.serving import GatewayServer, make_server
from arborcast.ingest.http.tls import ServerTls
from arborcast.ingest.mqtt.outgoing import keep_subscriptions
from arborcast.ingest.operations.current_message import remove_orphans_forever
from arborcast.ingest.operations.gateway import Gateway
from arborcast.ingest.operations.legacy import parts
from arborcast.ingest.operations.pull_points import end_orphans
from arborcast.ingest.operations.subscription_manager import end_expired_forever
from arborcast.ingest.state.repeats import Repeats

if TYPE_CHECKING:
    from arborcast.ingest.mqtt.bridge import MqttBridge

logger = logging.getLogger("arborcast.gateway")

# Time for the release of the lease at a stop, beside gateway.stop_timeout_s for current requests.
_STOP_S = 1.0

# Requests leave no cycles. With the default of 700, the objects of 64 concurrent requests are examined for each 17
# requests, at 12 us of CPU per request.
_GC_OBJECTS = 5_000


class GatewayProcess:
    """Assembles the parts of the gateway, runs them, and stops them in order."""

    def __init__(self, settings: Settings, host: str, port: int, share: Share | None = None) -> None:
        self._settings = settings
        self._share = share
        self._failure: Exception | None = None
        self._tasks: list[asyncio.Task[None]] = []
        # Only the first of several workers runs them, and only while no other gateway does.
        self._singletons: SingletonTasks | None = None
        self._tls = ServerTls(settings.tls) if settings.tls.certificate_file else None
        self._state = GatewayState(settings, share, self._fail)
        announced = connect_host(host)
        self.own = OwnAddresses(announced, port, public_url(settings, announced, port))
        self._gateway = _make_gateway(settings, self.own, self._state, port)
        self._metrics = WorkerMetrics(share) if share else Registry()
        self._beats = LoopBeats(share, settings.gateway.hang_timeout_s) if share else None
        liveness = self._beats.problem if self._beats else lambda: ""
        app = GatewayApp(self._gateway, self._metrics, self._obstacle, liveness)
        self._server: GatewayServer = make_server(app, settings.gateway, settings.limits, self._tls)
        self._framed: FramedServer | None = None
        if settings.framed.port:
            self._framed = FramedServer(self._gateway, settings.framed, settings.limits, self._tls)
        self._federation: Federation | None = None
        if settings.federation.name:
            memory = share.memory if share else None
            self._federation = Federation(self._gateway, settings, self._state.control.interests, memory)
            self._gateway.federation = self._federation.endpoint(self._metrics)
        bridge = mqtt_bridge(self._gateway, settings, self._metrics) if settings.mqtt.url else None
        keys = KeyFile(Path(settings.secrets.key_file))
        self._gateway.cameras = cameras = CameraWorker(self._gateway, self._state.control.projections.cameras, keys)
        self._make_tasks = partial(self._make_singleton_tasks, name_of(host, port), cameras, bridge)
        metrics.declare_cameras(self._metrics, cameras)
        self._declare(app)

    async def run(self, listener: socket.socket) -> int:
        """Serve until stopped; returns the exit status."""
        on_signals(self._server.stop)
        self._spawn(self._start_parts(), "start")
        if self._beats is not None:
            self._spawn(self._beats.beat_forever(), "beat")
        if isinstance(self._metrics, WorkerMetrics):
            self._spawn(self._metrics.publish_forever(self._state.obstacle), "metrics")
        if self._tls is not None:
            self._spawn(self._tls.follow_files(), "tls")
        if self._framed is not None:
            await self._framed.start(listen_framed(self._settings, shared=self._settings.gateway.workers > 1))
        if self._federation is not None and self._is_first() and self._settings.federation.datagram_port:
            self._spawn(self._federation.datagrams(), "datagrams")
        await self._server.serve(sockets=[listener])
        if self._framed is not None:
            await self._framed.stop()
        for task in self._tasks:
            task.cancel()
        if self._singletons is not None:
            self._singletons.cancel()
            await within(_STOP_S, self._singletons.stop)
        await self._state.close()
        if self._gateway.tracing is not None:
            await within(_STOP_S, self._gateway.tracing.close)
        if isinstance(self._failure, ConfigError):
            return 2
        return 1 if self._failure else 0

    def _is_first(self) -> bool:
        return self._share is None or self._share.first

    async def _start_parts(self) -> None:
        await self._state.open(self._spawn, self._federation.remember if self._federation else None)
        # Garbage collection stops the event loop: a tenth of a second for the modules alone, seconds for many
        # subscriptions. So the modules and the state read so far are excluded from it.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GC_OBJECTS)
        orphans = partial(end_orphans, self._gateway)
        self._spawn(self._state.pulls.queues.sweep_forever(self._gateway.changes.catch_up, orphans), "pull-points")
        if self._is_first():
            self._singletons = self._make_tasks()
            self._singletons.start()

    def _make_singleton_tasks(self, name: str, cameras: CameraWorker, bridge: MqttBridge | None) -> SingletonTasks:
        control = self._state.control
        work: dict[str, Work] = {
            "expiry": partial(end_expired_forever, self._gateway),
            "parts": partial(parts.maintain_forever, self._gateway),
            "retained": partial(remove_orphans_forever, self._gateway),
            "demand": lambda: DemandWorker(self._gateway).run(),
            "cameras": cameras.run,
        }
        if control.codes is not None:
            work["codes"] = partial(control.codes.assign_forever, self._gateway)
        if self._federation is not None:
            federation = self._federation
            work["federation"] = lambda: federation.member().run()
        elif control.interests.links:
            work["links"] = partial(close_links, self._gateway, control.interests)
        ends = partial(keep_subscriptions, self._gateway, self._settings.mqtt, ())
        work["mqtt"] = ends if bridge is None else bridge.run
        return SingletonTasks(self._settings.kafka, name, work, control.sync, self._fail, control.positions)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(partial(report_failure, self._fail))
        self._tasks.append(task)

    def _fail(self, error: Exception) -> None:
        """Stop the process. The first error decides its exit status."""
        if self._failure is None:
            self._failure = error
            known = isinstance(error, ArborcastError)
            logger.critical("stopping: %s", error, exc_info=None if known else error)
        self._server.stop()

    def _obstacle(self) -> str:
        own = self._state.obstacle()
        if own or self._share is None:
            return own
        return self._share.waits_for(self._settings.gateway.workers)

    def _declare(self, app: GatewayApp) -> None:
        """All metrics beside those of requests."""
        own, sync = self._metrics, self._state.control.sync
        declare_process(own)
        metrics.declare_gateway(
            own,
            self._gateway,
            self._state,
            app.streams,
            leads=lambda: self._singletons is not None and self._singletons.are_active,
        )
        if sync is not None:
            metrics.declare_directory(own, sync)
        if self._tls is not None:
            metrics.declare_handshakes(own, self._tls.handshakes)
        if self._framed is not None:
            metrics.declare_framed(own, self._framed)


def listen_framed(settings: Settings, *, shared: bool = False) -> socket.socket:
    """A listening socket of the framed edge. Raises ConfigError for an address that is in use or not local."""
    host, port = settings.gateway.host, settings.framed.port
    return listen_on(host, port, host_by="gateway.host", port_by="framed.port", shared=shared)


def _make_gateway(settings: Settings, own: OwnAddresses, state: GatewayState, port: int) -> Gateway:
    control, policy = state.control, policy_of(settings, port)
    route = OutboundRoute(settings.push.proxy, settings.push.tls_ca_file)
    logger.info("subscribers may be at %s", describe(settings.outbound))
    return Gateway(
        settings=settings.gateway,
        topics=settings.topics,
        own=own,
        view=control.projections,
        changes=control.changes,
        notifications=state.notifications,
        retained=state.retained,
        pulls=state.pulls.queues,
        parts=state.part_log,
        fragments=settings.fragments,
        outbound=policy,
        route=route,
        dns_check=DnsCheck(policy) if settings.outbound.look_up_names and not settings.push.proxy else None,
        proof=OwnershipProof(policy, route) if settings.outbound.prove_ownership else None,
        repeats=Repeats(state.memory),
        descriptions=descriptions(),
        protector=Protector(settings.secrets),
        results=state.results,
        tracing=make_tracing(settings.tracing, "gateway"),
        gate=gate(settings),
        started=lambda: state.caught_up,
    )
