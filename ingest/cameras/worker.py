"""Carries out the conversations with all cameras, in the gateway with the lease.

Each camera has one task and one connection. A camera is pulled again when its events are stored: while Kafka is away,
they wait in the camera, whose lease is renewed. A gateway that takes over continues with the subscription in the log,
and requests the state of each property, since events that its predecessor pulled and did not store are lost.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from arborcast.core.backoff import Backoff, repeated, retried
from arborcast.core.errors import InfrastructureError, NoAnswer, OutboundRefused, SecretError, UnknownResource
from arborcast.core.security.keyring import Keys
from arborcast.ingest.cameras.connection import CameraConnection
from arborcast.ingest.cameras.conversation import PAUSES, CameraStatus, Conversation, Fault, Outcome, Request, Silent
from arborcast.ingest.cameras.credentials import Credentials
from arborcast.ingest.cameras.messages import Notice, notices, read_answer, written
from arborcast.ingest.cameras.publisher import BACK, GONE, CameraPublisher
from arborcast.ingest.operations.gateway import Gateway
from arborcast.topic_model.projections.cameras import Cameras
from arborcast.topic_model.records.control import CameraRecord, CameraState
from arborcast.wire import times
from arborcast.wire.xml_reading import read_xml

logger = logging.getLogger(__name__)

PATH = "/cameras/"
"""Where cameras push: /cameras/KEY. The key is in the address that a camera was given."""

LIMIT = 1024 * 1024
"""Larger requests of cameras are refused."""

_CHECK_S = 0.25

# The first requests to many cameras, and those to many failed ones, are spread, a hundredth of a second for each.
_SPREAD_S = 0.01

_BACKOFF = Backoff(0.5, 10.0)

# Between records of a camera with a changed subscription and an unchanged state.
_RECORD_S = 10.0


class CameraWorker:
    """`sessions` are the current conversations, by name of the camera; none without the lease."""

    def __init__(self, gateway: Gateway, cameras: Cameras, keys: Keys) -> None:
        self.gateway = gateway
        self.cameras = cameras
        self.keys = keys
        self.publisher = CameraPublisher(gateway)
        self.counts = self.publisher.counts
        self.sessions: dict[str, CameraSession] = {}
        self.failed: set[str] = set()
        """The names of the cameras whose events do not flow since a failure."""

    async def run(self) -> None:
        """Run until cancelled."""
        version = -1
        try:
            while True:
                if self.cameras.version != version:
                    version = self.cameras.version
                    self._update_sessions()
                    if self.sessions:
                        await self.publisher.add_topics()
                await asyncio.sleep(_CHECK_S)
        finally:
            for session in self.sessions.values():
                session.stop()
            self.sessions.clear()

    async def take(self, path: str, body: bytes) -> None:
        """Store the messages of a Notify of a camera that pushes. Raises UnknownResource, MalformedMessage, TooLarge,
        InfrastructureError."""
        self.gateway.check_started()
        camera = self.cameras.of_key(path.removeprefix(PATH))
        if camera is None or camera.paused:
            raise UnknownResource("there is no such camera (any more)")
        await self.publisher.publish(camera.name, notices(read_xml(body)))

    def pause_s(self, name: str, failures: int) -> float:
        """The pause before the next request to this camera, after consecutive failures."""
        self.failed.add(name)
        return max(PAUSES.jittered(failures), _SPREAD_S * len(self.failed))

    def _update_sessions(self) -> None:
        active = {each.name: each for each in self.cameras if not each.paused}
        for name, session in list(self.sessions.items()):
            if active.get(name) != session.camera:
                session.stop()
                del self.sessions[name]
        for name in self.counts.keys() - {each.name for each in self.cameras}:
            del self.counts[name]
        for name, camera in active.items():
            if name not in self.sessions:
                self.sessions[name] = CameraSession(self, camera, _SPREAD_S * len(active))


class CameraSession:
    """One camera: its conversation, carried out until `stop`."""

    def __init__(self, worker: CameraWorker, camera: CameraRecord, spread_s: float) -> None:
        self.camera = camera
        self._worker = worker
        self._gateway = worker.gateway
        self._spread_s = spread_s
        self._consumer = f"{self._gateway.own.base}{PATH}{camera.key}"
        known = worker.cameras.state(camera.name)
        if known is not None and known.push and known.consumer not in ("", self._consumer):
            known = None  # it pushes to a former address of this gateway, until its lease ends
        self.conversation = Conversation(
            camera.url,
            None if known is None else known.subscription,
            pushes=known is not None and known.push,
            pause=partial(worker.pause_s, camera.name),
        )
        self._connection: CameraConnection | None = None
        self._credentials = Credentials()
        self._publishing: asyncio.Task[None] | None = None
        self._recording: asyncio.Task[None] | None = None
        self._recorded_at = float("-inf")
        self._task = asyncio.create_task(self._run(), name=f"camera {camera.name}")

    def stop(self) -> None:
        """Begin no more requests. Events that were received are still stored."""
        self._task.cancel()

    async def _run(self) -> None:
        await asyncio.sleep(random.uniform(0, self._spread_s))  # noqa: S311 -- no secret
        try:
            await repeated(f"the conversation with the camera {self.camera.name}", self._step, 0.0, _BACKOFF, Exception)
        finally:
            self._worker.failed.discard(self.camera.name)
            if self._connection is not None:
                self._connection.close()

    async def _step(self) -> None:
        publishing = self._publishing if self._publishing is not None and not self._publishing.done() else None
        now = time.monotonic()
        request = self.conversation.next(now, hold=publishing is not None)
        if not isinstance(request, Request):
            pause_s = max(0.0, request - now)
            if publishing is None:
                await asyncio.sleep(pause_s)
            else:
                await asyncio.wait([publishing], timeout=pause_s)
            return
        outcome, events = await self._call(request)
        if events:
            what, store = f"events of the camera {self.camera.name} wait", self._worker.publisher.publish
            self._publishing = asyncio.create_task(
                retried(what, partial(store, self.camera.name, events), _BACKOFF, InfrastructureError)
            )
        self.conversation.take(request, outcome, time.monotonic())
        if not self.conversation.fails:
            self._worker.failed.discard(self.camera.name)
        self._record()

    async def _call(self, request: Request) -> tuple[Outcome, Sequence[Notice]]:
        connection = self._connected()
        clock = self._gateway.now() + timedelta(seconds=self.conversation.offset_s)
        message, media_type = written(request, self._credentials, clock, self._consumer)
        try:
            answer = await connection.post(request.url, {"Content-Type": media_type}, message, request.patience_s)
        except OutboundRefused as error:
            return Fault(str(error)), ()
        except NoAnswer as error:
            return Silent(str(error)), ()
        return read_answer(request, answer, self._gateway.now())

    def _connected(self) -> CameraConnection:
        """Raises SecretError."""
        if self._connection is None:
            camera, gateway, keys = self.camera, self._gateway, self._worker.keys
            try:
                password = keys.open(camera.sealed, camera.sealing_context()).decode() if camera.sealed else ""
            except SecretError as error:
                self.conversation.status = CameraStatus("refused", str(error))
                self._record()
                raise
            self._credentials = Credentials(camera.user, password)
            self._connection = CameraConnection(
                gateway.outbound, self._credentials, ca_file=gateway.route.ca_file, insecure=camera.insecure
            )
        return self._connection

    def _record(self) -> None:
        """Write the state where it differs from the recorded one."""
        if self._recording is not None and not self._recording.done():
            return
        conversation, name = self.conversation, self.camera.name
        before, (state, error) = self._worker.cameras.state(name), conversation.status
        consumer = self._consumer if conversation.by_push else ""
        if state is None or self._worker.cameras.get(name) != self.camera:
            return
        if before is not None and before.state == state:
            same = (before.subscription, before.push) == (conversation.subscription, conversation.by_push)
            if (same and before.consumer == consumer) or time.monotonic() < self._recorded_at + _RECORD_S:
                return
            since_ms = before.since_ms
        else:
            since_ms = times.to_ms(self._gateway.now())
        subscription = conversation.subscription
        after = CameraState(name, state, since_ms, error[:500], subscription, conversation.by_push, consumer)
        self._recorded_at = time.monotonic()
        self._recording = asyncio.create_task(self._write(before, after))

    async def _write(self, before: CameraState | None, after: CameraState) -> None:
        connected = after.state == "connected"
        topic, detail = (BACK, "") if connected else (GONE, after.error)
        try:
            if before is not None and connected != (before.state == "connected"):
                await self._worker.publisher.report(topic, after.name, before.since_ms, detail)
            await self._gateway.changes.commit([after])
        except InfrastructureError as error:
            logger.warning("the state of the camera %s is not recorded: %s", after.name, error)
