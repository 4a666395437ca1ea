"""Cameras over real HTTP: the worker, the publisher and the push address, with lists for logs.

One camera is independent software: gSOAP's server with WS-Security, as in the firmware of many cameras, from Debian's
packages, compiled into the cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from arborcast.core.backoff import Backoff
from arborcast.core.errors import InfrastructureError
from arborcast.core.security.keyring import KeyRing
from arborcast.core.security.outbound import AddressPolicy
from arborcast.ingest.cameras import conversation, worker
from arborcast.ingest.cameras.messages import notices
from arborcast.ingest.cameras.publisher import BACK, GONE, CameraPublisher
from arborcast.ingest.cameras.worker import CameraWorker
from arborcast.ingest.http.serving import listen, make_server
from arborcast.ingest.settings import GatewaySettings, TopicSettings
from arborcast.topic_model.projections.cameras import Cameras
from arborcast.topic_model.records.control import CameraRecord, CameraState, Tombstone, TopicRemoved, ending_camera
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.errors import InvalidRequest
from arborcast.wire.xml_reading import read_xml
from tests.support import soap_messages as soap
from tests.support.camera import Camera, event
from tests.support.debian import DebianProgram, Unavailable, environment, refuse
from tests.support.gateway_parts import GatewayParts
from tests.support.held_port import HeldPort
from tests.support.waiting import wait_until_async

_SOURCES = Path(__file__).with_name("gsoap")

GSOAP = DebianProgram(
    "gsoap",
    ("gsoap", "libgsoap-dev"),
    lambda root: [each for each in [root / "usr/bin/soapcpp2"] if each.exists()],
    never=re.compile(r"^(libc6|libgcc-s1|libstdc\+\+6|libssl3.*)$"),
    rounds=2,
)

_PLUGINS = ("plugin/wsseapi.cpp", "plugin/smdevp.c", "plugin/mecevp.c", "plugin/wsaapi.c", "custom/struct_timeval.c")


def compiled() -> Path:
    """The program. Raises Unavailable."""
    if shutil.which("g++") is None:
        raise Unavailable("g++ is not on the PATH: install it to test with a camera on gSOAP")
    root = GSOAP.root if GSOAP.starts(GSOAP.root) else GSOAP.unpack(print)
    sources = sorted(_SOURCES.iterdir())
    version = hashlib.sha256(b"".join(each.read_bytes() for each in sources)).hexdigest()[:16]
    folder = GSOAP.cache / f"camera-{version}"
    program = folder / "camera"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _compile(root, folder, program)
    return program


def _compile(root: Path, folder: Path, program: Path) -> None:
    share, libraries = root / "usr/share/gsoap", GSOAP.libraries(root)

    def run(*command: str | Path) -> None:
        done = subprocess.run(
            list(map(str, command)), cwd=folder, env=environment(libraries), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Unavailable(f"the camera on gSOAP cannot be compiled: {done.stderr[-2000:]}")

    included = f"-I{share / 'import'}:{share}"
    run(root / "usr/bin/soapcpp2", "-S", "-2", "-x", "-L", "-w", included, _SOURCES / "camera.h")
    places = [folder, root / "usr/include", share, share / "plugin", share / "import"]
    plugins = (share / each for each in _PLUGINS)
    sources: list[str | Path] = ["soapC.cpp", "soapServer.cpp", _SOURCES / "camera.cpp", *plugins]
    options = ["-O0", "-w", "-DWITH_OPENSSL", "-DWITH_DOM", "-x", "c++"]
    # gSOAP's libraries statically: the program needs no library from the cache.
    linked = [*(f"-L{each}" for each in libraries), "-Wl,-Bstatic", "-lgsoapssl++", "-Wl,-Bdynamic"]
    made = folder / "camera.new"
    included_too = [f"-I{each}" for each in places]
    run("g++", *options, *included_too, *sources, "-x", "none", "-o", made, *linked, "-lssl", "-lcrypto", "-lz")
    made.rename(program)


class GsoapCamera:
    """A context manager for a running camera."""

    def __init__(self, port: int, user: str, password: str, lease_s: int) -> None:
        self.url = f"http://127.0.0.1:{port}/onvif/device_service"
        self._command = [str(compiled()), str(port), user, password, str(lease_s)]

    def __enter__(self) -> GsoapCamera:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._read() == "ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def emit(self, value: str) -> None:
        """An event; "forget" also drops all subscriptions."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{value}\n")
        self._process.stdin.flush()

    def renewed(self) -> None:
        """Wait for a renewal."""
        assert self._read() == "renewed\n"

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


pytestmark = pytest.mark.slow

KEYS = KeyRing({"k": b"k" * 32})

MOTION = TopicPath("cameras/gate/VideoSource/MotionAlarm/Source.1")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter pauses. Real ones are in test_conversation.py."""
    monkeypatch.setattr(worker, "_CHECK_S", 0.02)
    monkeypatch.setattr(worker, "PAUSES", Backoff(0.05, 0.05))
    monkeypatch.setattr(conversation, "_IDLE_S", 0.05)


class Running:
    """A gateway with its cameras on the event loop of the test."""

    def __init__(self, parts: GatewayParts | None = None, cameras: Cameras | None = None) -> None:
        self.parts = parts or GatewayParts()
        self.parts.gateway.now = lambda: datetime.now(UTC)
        self.cameras = cameras or self.parts.control.view.cameras
        self.worker = self.parts.gateway.cameras = CameraWorker(self.parts.gateway, self.cameras, KEYS)
        self.task = asyncio.create_task(self.worker.run())

    async def add(self, camera: Camera | GsoapCamera, user: str = "", password: str = "") -> CameraRecord:
        record = CameraRecord("gate", camera.url, "key-of-the-gate", user)
        if user:
            record = msgspec.structs.replace(record, sealed=KEYS.seal(password.encode(), record.sealing_context()))
        await self.parts.control.commit([record])
        return record

    async def connected(self, state: str = "connected") -> CameraState:
        def reached() -> CameraState | None:
            found = self.cameras.state("gate")
            return found if found is not None and found.state == state else None

        return await wait_until_async(reached, lambda: f"{state}, not {self.cameras.state('gate')}")

    def payloads(self, topic: TopicPath = MOTION) -> list[bytes]:
        return [each.payload for each in self.parts.notifications.accepted if each.topic == topic]

    async def received(self, count: int, topic: TopicPath = MOTION) -> list[bytes]:
        await wait_until_async(lambda: len(self.payloads(topic)) >= count, lambda: self.parts.notifications.accepted)
        return self.payloads(topic)


@contextlib.asynccontextmanager
async def running(parts: GatewayParts | None = None, cameras: Cameras | None = None) -> AsyncIterator[Running]:
    found = Running(parts, cameras)
    try:
        yield found
    finally:
        found.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await found.task


@contextlib.asynccontextmanager
async def with_camera(
    camera: Camera | None = None, password: str = "", parts: GatewayParts | None = None, state: str = "connected"
) -> AsyncIterator[tuple[Running, Camera]]:
    """A camera that was added, in this state."""
    with camera or Camera() as there:
        async with running(parts) as gateway:
            await gateway.add(there, "viewer" if password else "", password)
            await gateway.connected(state)
            yield gateway, there


async def test_publications_and_current_messages_of_events() -> None:
    async with with_camera() as (gateway, camera):
        camera.emit()
        camera.emit(source="2")
        camera.emit(value="false")
        found = await gateway.received(2)
        assert b'PropertyOperation="Changed"' in found[0]
        assert b'<tt:SimpleItem Name="State" Value="true"/>' in found[0]
        current = gateway.parts.notifications.current
        await wait_until_async(lambda: b'"false"' in current[MOTION].payload)
        other = TopicPath("cameras/gate/VideoSource/MotionAlarm/Source.2")
        assert b'"true"' in current[other].payload
        camera.sends(event("tns1:RuleEngine/Counter", operation=""))
        (counted,) = await gateway.received(1, TopicPath("cameras/gate/RuleEngine/Counter"))
        assert b"PropertyOperation" not in counted
        assert len(current) == 2, "only properties have current messages"
        assert gateway.worker.counts["gate"].events == 4


async def test_broken_answers_an_outage_of_kafka_and_a_restart() -> None:
    async with with_camera() as (gateway, camera):
        camera.spoils = 1
        camera.emit()
        (first, *_) = await gateway.received(1)
        assert b"Initialized" in first
        assert [camera.count(each) for each in ("CreatePullPointSubscription", "SetSynchronizationPoint")] == [1, 1]
        camera.emit(value="door\x01 open")
        await wait_until_async(lambda: b"door open" in gateway.payloads()[-1])
        # Events wait while they cannot be stored, and keep their order.
        before = len(gateway.payloads())
        gateway.parts.notifications.error = InfrastructureError("Kafka is unavailable", 1.0)
        for number in range(5):
            camera.emit(value=f"{number}")
        (held,) = camera.subscriptions.values()
        await wait_until_async(lambda: held.waiting == [] or len(held.waiting) >= 1)
        gateway.parts.notifications.error = None
        found = (await gateway.received(before + 5))[before:]
        assert [each.partition(b'Name="State" Value="')[2][:1] for each in found] == [b"0", b"1", b"2", b"3", b"4"]
        # A restarted camera has lost its subscriptions, and sends its states to a new one.
        camera.forget()
        await wait_until_async(lambda: b"Initialized" in gateway.payloads()[-1])
        assert camera.count("CreatePullPointSubscription") == 2
        assert camera.count("Unsubscribe") == 0


async def test_events_that_are_stored_one_by_one_are_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = GatewayParts()
    append, attempts = parts.notifications.append, list[int]()

    async def appended(notifications: Sequence[Notification], retained: Sequence[Notification] = ()) -> None:
        attempts.append(len(notifications))
        if len(notifications) > 1:
            raise InvalidRequest("a batch is refused")
        if len(attempts) == 3:
            raise InfrastructureError("Kafka is unavailable")
        await append(notifications, retained)

    monkeypatch.setattr(parts.notifications, "append", appended)
    body = soap.envelope(soap.notify(*(soap.message(payload=f"<n>{number}</n>") for number in range(3))))
    await CameraPublisher(parts.gateway).publish("gate", notices(read_xml(body)))
    assert [each.payload for each in parts.notifications.accepted] == [b"<n>0</n>", b"<n>1</n>", b"<n>2</n>"]
    assert attempts == [3, 1, 1, 1, 1]


@pytest.mark.parametrize("http_digest", [False, True])
async def test_credentials_by_the_clock_of_the_camera(http_digest: bool) -> None:
    secret = "secret & <more>"  # noqa: S105
    there = Camera("viewer", secret, http_digest=http_digest, clock=timedelta(days=-400))
    async with with_camera(there, secret) as (gateway, camera):
        camera.clock = timedelta(days=-9)
        camera.emit()
        await gateway.received(1)
        camera.forget()
        camera.emit()
        await wait_until_async(lambda: camera.count("CreatePullPointSubscription") >= 2)
        await gateway.connected()


async def test_a_wrong_password_until_it_is_corrected() -> None:
    async with with_camera(Camera("viewer", "right"), "wrong", state="refused") as (gateway, _):
        assert "not authorized" in (await gateway.connected("refused")).error
        record = gateway.cameras.get("gate")
        assert record is not None
        right = msgspec.structs.replace(record, sealed=KEYS.seal(b"right", record.sealing_context()))
        await gateway.parts.control.commit([right])
        await gateway.connected()


async def test_the_address_and_parameters_of_a_subscription() -> None:
    parameters = '<d:SubscriptionId xmlns:d="http://www.axis.com/2009/event">7</d:SubscriptionId>'
    async with with_camera(Camera(address="http://10.1.2.3:99", parameters=parameters)) as (_, camera):
        assert camera.headers
        for header in camera.headers:
            assert "<wsa:To>http://10.1.2.3:99/onvif/subscriptions/1</wsa:To>" in header
            assert "SubscriptionId" in header


CONSUMER = "http://127.0.0.1:1/cameras/key-of-the-gate"


async def test_a_camera_that_pushes() -> None:
    parts, settings = GatewayParts(), dataclasses.replace(GatewaySettings(), port=0)
    listener = listen(settings)
    server = make_server(parts.app, settings, None, None)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    parts.gateway.own.base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with with_camera(Camera(pulls=False), parts=parts) as (gateway, camera):
        assert (await gateway.connected()).push
        (held,) = camera.subscriptions.values()
        assert held.consumer == f"{parts.gateway.own.base}/cameras/key-of-the-gate"
        await asyncio.to_thread(camera.emit)
        await gateway.received(1)
        refused = await parts.request("POST", "/cameras/another-key", b"<a/>")
        assert refused.status == 410
        assert gateway.worker.counts["gate"].events == 1
        parts.gateway.own.base = CONSUMER.partition("/cameras")[0]
        gateway.task.cancel()
        async with running(parts) as again:
            await wait_until_async(lambda: len(camera.subscriptions) == 2, lambda: camera.operations)
            assert [each.consumer for each in camera.subscriptions.values()] == [held.consumer, CONSUMER]
            state = again.cameras.state
            await wait_until_async(lambda: (found := state("gate")) is not None and found.consumer == CONSUMER)
    server.stop()
    await serving


async def test_operator_events_of_a_lost_camera(monkeypatch: pytest.MonkeyPatch) -> None:
    # _TROUBLE_S in virtual time is in test_conversation.py.
    monkeypatch.setattr(conversation, "_TROUBLE_S", 1.0)
    async with with_camera() as (gateway, camera):
        assert not [each for each in gateway.parts.notifications.accepted if each.topic in (GONE, BACK)]
        camera.pulls, camera.most = False, 0
        camera.forget()
        assert (await gateway.connected("refused")).since_ms
        (lost,) = await gateway.received(1, GONE)
        assert b'kind="camera-gone"' in lost
        assert b"<Camera>gate</Camera>" in lost
        camera.pulls, camera.most = True, 10
        await gateway.connected()
        await gateway.received(1, BACK)
        await gateway.parts.control.commit(ending_camera("gate"))
        await wait_until_async(lambda: not gateway.worker.sessions and not gateway.worker.counts)


async def test_operator_events_after_an_import_that_removed_their_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "_TROUBLE_S", 1.0)
    async with with_camera(parts=GatewayParts(topics=TopicSettings(fixed=True))) as (gateway, camera):
        removed = [each for topic in (GONE, BACK) for each in (TopicRemoved(topic), Tombstone.of("topic", topic))]
        await gateway.parts.control.commit(removed)
        camera.pulls, camera.most = False, 0
        camera.forget()
        assert (await gateway.connected("refused")).since_ms
        await gateway.received(1, GONE)


async def test_many_cameras_that_do_not_answer_are_called_less_often() -> None:
    async with with_camera() as (gateway, camera):
        cameras = gateway.worker
        longest_s = [cameras.pause_s(f"dead {number}", 1) for number in range(10_000)][-1]
        assert 10_000 / longest_s <= 100, "requests a second"
        cameras.failed.clear()
        camera.pulls, camera.most = False, 0
        camera.forget()
        await wait_until_async(lambda: "gate" in cameras.failed)
        camera.pulls, camera.most = True, 10
        await wait_until_async(lambda: not cameras.failed)


async def test_another_gateway_continues_with_the_subscription() -> None:
    with Camera(most=1) as camera:
        async with running() as first:
            record = await first.add(camera)
            await first.connected()
        camera.emit()
        async with running(first.parts, first.cameras) as second:
            await second.received(1)
            assert camera.count("CreatePullPointSubscription") == 1
            # A paused camera is not called.
            await second.parts.control.commit([msgspec.structs.replace(record, paused=True)])
            await wait_until_async(lambda: not second.worker.sessions)
            await second.parts.control.commit([record])
            await second.connected()
            camera.emit()
            await second.received(2)


async def test_the_outbound_policy_and_a_fixed_set_of_topics(caplog: pytest.LogCaptureFixture) -> None:
    async with with_camera(parts=GatewayParts(outbound=AddressPolicy()), state="refused") as (gateway, camera):
        assert "outbound rule" in (await gateway.connected("refused")).error
        assert not camera.operations
    async with with_camera(parts=GatewayParts(topics=TopicSettings(fixed=True))) as (gateway, camera):
        camera.emit()
        await wait_until_async(lambda: gateway.worker.counts.get("gate") and gateway.worker.counts["gate"].dropped)
        assert "the topic set is fixed" in caplog.text


def test_a_camera_on_gsoap() -> None:
    """It checks the gateway's digests, has no device service, returns 0.0.0.0 as its address, and does not declare the
    prefixes of its topics."""

    async def conversation_with(camera: GsoapCamera) -> None:
        async with running() as gateway:
            await gateway.add(camera, "viewer", "se<cret")
            await gateway.connected()
            camera.emit("true")
            topic = TopicPath("cameras/gate/Device/Trigger/DigitalInput/InputToken.1")
            (first,) = await gateway.received(1, topic)
            assert b'<tt:SimpleItem Name="LogicalState" Value="true"' in first
            await asyncio.to_thread(camera.renewed)
            camera.emit("forget")
            created = gateway.cameras.state("gate")
            session = gateway.worker.sessions["gate"]
            await wait_until_async(lambda: created and session.conversation.subscription != created.subscription)
            await wait_until_async(lambda: session.conversation.status.state == "connected")
            while len(gateway.payloads(topic)) < 2:
                camera.emit("a &amp; b")  # lost if the subscription has just expired
                await asyncio.sleep(1.0)
            assert b'Value="a &amp; b"' in (await gateway.received(2, topic))[-1]

    try:
        camera = GsoapCamera(HeldPort().for_life_of(conversation_with), "viewer", "se<cret", 12)
    except Unavailable as error:
        refuse(str(error))
    with camera:
        asyncio.run(conversation_with(camera))
