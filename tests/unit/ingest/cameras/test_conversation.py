"""The conversation with a camera, in virtual time, with faults that real cameras have shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from arborcast.core.backoff import Backoff
from arborcast.ingest.cameras.conversation import (
    LEASE_S,
    PATIENCE_S,
    Broken,
    CameraOperation,
    Clock,
    Conversation,
    Done,
    Fault,
    Granted,
    Outcome,
    Request,
    Services,
    Silent,
    addresses,
)
from arborcast.topic_model.subscriptions import EndpointReference

URL = "http://camera.example:8080/onvif/device_service"
SERVICE = "http://camera.example:8080/onvif/event_service"
HOST = "http://camera.example:8080/"
HOUR, DAY = 3_600.0, 86_400.0

# The state of a camera must be correct after this time.
TRUE_WITHIN_S = 30.0

UNKNOWN = Fault("the subscription is not known")


@dataclass
class Queue:
    """A subscription at the camera, and its waiting events."""

    until: float
    push: bool
    waiting: list[int] = field(default_factory=list)


@dataclass
class VirtualCamera:
    """A camera with an event every `every_s` seconds, and the faults in its fields."""

    every_s: float = 7.0
    on: bool = True
    delay_s: float = 0.01
    clock_s: float = 0.0
    clock_window_s: float = 30.0
    clock_varies_s: float = 0.0  # by answers that take longer or shorter
    most: int = 10
    grants_s: float = LEASE_S
    base: str = SERVICE
    service: str = SERVICE
    denies: bool = False
    pulls: bool = True
    renews: bool = True
    reads_durations: bool = True
    ignores_wait: bool = False
    broken: int = 0
    only_at: str = ""
    events: int = 0
    lost: set[int] = field(default_factory=set)
    """Events that no client could receive: without a subscription, or dropped by the camera."""
    queues: dict[str, Queue] = field(default_factory=dict)
    pushed: list[int] = field(default_factory=list)
    requests: list[CameraOperation] = field(default_factory=list)
    created: int = 0

    def live(self, now: float) -> list[Queue]:
        for name in [name for name, each in self.queues.items() if each.until < now]:
            del self.queues[name]
        return list(self.queues.values())

    def tick(self, until: float) -> None:
        """Creates the events up to a time."""
        while (at := (self.events + 1) * self.every_s) <= until:
            self.events += 1
            live = self.live(at) if self.on else []
            if not live:
                self.lost.add(self.events)
            for each in live:
                if each.push:
                    self.pushed.append(self.events)
                else:
                    each.waiting.append(self.events)

    def forget(self) -> None:
        """The camera drops its subscriptions with their events."""
        for each in self.queues.values():
            self.lost.update(each.waiting)
        self.queues.clear()

    def answer(self, request: Request, offset_s: float, now: float) -> tuple[float, Outcome, list[int]]:
        """The time of the answer, the answer, and its events."""
        self.requests.append(request.operation)
        if not self.on or (self.only_at and not request.url.startswith(self.only_at)):
            return now + min(request.patience_s, 5.0), Silent("no answer"), []
        done, outcome, events = self._answer(request, offset_s, now)
        if done > now + request.patience_s:
            return now + request.patience_s, Silent("timed out"), []
        if self.broken and request.operation is CameraOperation.PULL:
            self.broken -= 1
            self.lost.update(events)
            return done, Broken("<broken"), []
        return done, outcome, events

    def _answer(self, request: Request, offset_s: float, now: float) -> tuple[float, Outcome, list[int]]:
        done = now + self.delay_s
        if request.operation is CameraOperation.CLOCK:
            return done, Clock(self.clock_s - self.clock_varies_s * (self.requests.count(request.operation) % 2)), []
        if self.denies or abs(offset_s - self.clock_s) > self.clock_window_s:
            return done, Fault("the sender is not authorized", denied=True), []
        if request.operation is CameraOperation.SERVICES:
            return done, Services(self.service), []
        if request.operation in (CameraOperation.CREATE, CameraOperation.SUBSCRIBE):
            push = request.operation is CameraOperation.SUBSCRIBE
            if not push and not self.pulls:
                return done, Fault("not implemented", unsupported=True), []
            if len(self.live(now)) >= self.most:
                return done, Fault("no more subscriptions"), []
            self.created += 1
            name = f"{self.base}/{self.created}"
            self.queues[name] = Queue(done + self.grants_s, push)
            return done, Granted(self._granted(request), EndpointReference(name)), []
        assert request.to is not None
        self.live(now)
        queue = self.queues.get(request.to.address)
        if queue is None:
            return done, UNKNOWN, []
        if request.operation is CameraOperation.RENEW:
            if not self.renews:
                return done, Fault("Renew fails"), []
            queue.until = done + self._granted(request)
            return done, Granted(self._granted(request)), []
        if request.operation is CameraOperation.SYNCHRONIZE:
            return done, Done(), []
        while not queue.waiting and done < now + self.delay_s + request.wait_s and not self.ignores_wait:
            done = min((self.events + 1) * self.every_s + self.delay_s, now + self.delay_s + request.wait_s)
            self.tick(done - self.delay_s)
        events, queue.waiting = queue.waiting, []
        return done, Done(len(events)), events

    def _granted(self, request: Request) -> float:
        return self.grants_s if self.reads_durations or request.absolute else 2.0


@dataclass
class Run:
    """A conversation with a camera, in virtual time."""

    camera: VirtualCamera
    conversation: Conversation = field(default_factory=lambda: Conversation(URL, pause=Backoff(1.0, 5.0).after))
    now: float = 0.0
    received: list[int] = field(default_factory=list)
    true_since: float = 0.0
    on: bool = True
    wrong_for_s: float = 0.0
    """The longest time with a wrong state, including changes of the camera."""
    states: list[str] = field(default_factory=list)
    hold: bool = False

    def until(self, end: float) -> None:
        while self.now < end:
            request = self.conversation.next(self.now, hold=self.hold)
            if isinstance(request, Request):
                done, outcome, events = self.camera.answer(request, self.conversation.offset_s, self.now)
                assert done > self.now, "an answer takes time"
                # A change of the camera during a request.
                if done > end and not self.camera.on:
                    done = max(done, end)
                self._passes(done)
                self.conversation.take(request, outcome, self.now)
                self.received += events
            else:
                assert request > self.now, "the conversation does not wait"
                self._passes(min(request, end))
            if self.conversation.status.state and self.states[-1:] != [self.conversation.status.state]:
                self.states.append(self.conversation.status.state)

    def _passes(self, at: float) -> None:
        if self.on != self.camera.on:
            self.on, self.true_since = self.camera.on, self.now
        if (self.conversation.status.state == "connected") != self.on:
            self.wrong_for_s = max(self.wrong_for_s, at - self.true_since)
        self.now = at
        self.camera.tick(at)

    def missed(self) -> set[int]:
        """Events that could have been received."""
        got = {*self.received, *self.camera.pushed}
        queued = {event for each in self.camera.queues.values() for event in each.waiting}
        return set(range(1, self.camera.events + 1)) - got - self.camera.lost - queued


def with_(**changes: object) -> Callable[[VirtualCamera], None]:
    def change(camera: VirtualCamera) -> None:
        for name, value in changes.items():
            assert hasattr(camera, name)
            setattr(camera, name, value)

    return change


forgets = VirtualCamera.forget


FAULTS: dict[str, tuple[dict[str, Any], Sequence[tuple[float, Callable[[VirtualCamera], None]]]]] = {
    "none": ({}, ()),
    "reboots": ({}, [(HOUR, with_(on=False)), (HOUR, forgets), (HOUR + 90, with_(on=True))]),
    "loses its clock": ({}, [(HOUR, with_(clock_s=-56 * 365 * DAY)), (2 * HOUR, with_(clock_s=4.0))]),
    "forgets subscriptions": ({}, [(number * HOUR + 3, forgets) for number in range(1, 20)]),
    "answers after 20 s": ({}, [(HOUR, with_(delay_s=20.0)), (5 * HOUR, with_(delay_s=0.01))]),
    "sends broken XML": ({}, [(number * HOUR, with_(broken=2)) for number in range(1, 20)]),
    "limits subscriptions to one": ({"most": 1}, [(HOUR, forgets)]),
    "changes its address": (
        {},
        [(HOUR, forgets), (HOUR, with_(service="http://10.0.0.9/e", base="http://10.0.0.9/e", only_at=HOST))],
    ),
    "gives 0.0.0.0": ({"base": "http://0.0.0.0/sub", "only_at": HOST}, ()),
    "leaves out its port": ({"base": "http://camera.example/sub", "only_at": HOST}, ()),
    "ends the lease early": ({}, [(number * HOUR, with_(grants_s=20.0)) for number in range(1, 3)]),
    "is off for a day": ({}, [(HOUR, with_(on=False)), (HOUR + 300, forgets), (HOUR + DAY, with_(on=True))]),
    "refuses renewals": ({"renews": False}, ()),
    "refuses renewals, with one subscription": ({"renews": False, "most": 1}, ()),
    "misreads durations": ({"reads_durations": False}, ()),
    "does not wait": ({"ignores_wait": True}, ()),
    "pushes only": ({"pulls": False}, [(HOUR, forgets), (2 * HOUR, with_(on=False)), (2 * HOUR + 90, with_(on=True))]),
}
"""The fields of a camera, and its changes with their times."""


@pytest.mark.parametrize("name", FAULTS)
def test_no_event_is_lost_and_the_state_is_soon_correct(name: str) -> None:
    fields, changes = FAULTS[name]
    run = Run(VirtualCamera(**fields))
    for at, change in changes:
        run.until(at)
        change(run.camera)
    end = run.now + 6 * HOUR
    run.until(end)
    assert run.conversation.status.state == "connected"
    assert not run.missed()
    assert run.camera.requests.count(CameraOperation.PULL) < end * (1 + 1 / 7), "polls in a loop"
    # Duplicates are only from an old subscription beside a new one.
    assert len(run.received) <= len(set(run.received)) * 1.2
    # With a slow camera a change is detected after some answers.
    assert run.wrong_for_s <= (TRUE_WITHIN_S if run.camera.delay_s < 1 else 4 * PATIENCE_S)
    down = {"reboots", "is off for a day", "pushes only"}
    assert run.states == (["connected", "away", "connected"] if name in down else ["connected"])


def test_the_number_of_requests_of_a_day() -> None:
    run = Run(VirtualCamera(every_s=DAY))
    run.until(DAY)
    requests = run.camera.requests
    assert requests.count(CameraOperation.PULL) <= DAY / 6
    assert requests.count(CameraOperation.RENEW) <= DAY / (LEASE_S / 2) + 1
    assert requests.count(CameraOperation.CREATE) == 1
    assert requests.count(CameraOperation.CLOCK) == 24


@pytest.mark.parametrize(("varies_s", "attempts"), [(0.0, 2), (5.0, 3)])
def test_refused_credentials_are_seldom_repeated(varies_s: float, attempts: int) -> None:
    run = Run(VirtualCamera(denies=True, clock_varies_s=varies_s, delay_s=varies_s or 0.01))
    run.until(HOUR)
    assert run.states == ["refused"]
    # The clock is read again each time.
    assert run.camera.requests.count(CameraOperation.SERVICES) <= attempts * (HOUR / 300 + 1)
    run.camera.denies = False
    run.until(2 * HOUR)
    assert run.conversation.status.state == "connected"


def test_the_lease_is_renewed_while_events_cannot_be_stored() -> None:
    run = Run(VirtualCamera())
    run.until(60)
    run.hold, pulls = True, run.camera.requests.count(CameraOperation.PULL)
    run.until(HOUR)
    assert run.camera.requests.count(CameraOperation.PULL) == pulls
    assert run.camera.requests.count(CameraOperation.CREATE) == 1
    run.hold = False
    run.until(2 * HOUR)
    assert not run.missed()
    assert run.states == ["connected"]


def test_a_known_subscription_is_continued() -> None:
    first = Run(VirtualCamera(most=1))
    first.until(60)
    known = first.conversation.subscription
    second = Run(first.camera, Conversation(URL, known), now=first.now + 10, received=first.received)
    second.until(300)
    assert second.camera.requests.count(CameraOperation.CREATE) == 1
    assert CameraOperation.SYNCHRONIZE in second.camera.requests
    assert not second.missed()


@dataclass
class Scripted:
    """A conversation whose requests have these outcomes."""

    conversation: Conversation = field(default_factory=lambda: Conversation(URL, pause=lambda _: 1.0))
    now: float = 0.0

    def get(self, *outcomes: Outcome, after_s: float = 0.0) -> Request:
        """The last request."""
        self.now += after_s
        for outcome in outcomes:
            request = self.next()
            self.now += 0.1
            self.conversation.take(request, outcome, self.now)
        return request

    def next(self) -> Request:
        while not isinstance(request := self.conversation.next(self.now), Request):
            self.now = request
        return request


def granted(number: int) -> Granted:
    return Granted(120.0, EndpointReference(f"{SERVICE}/{number}"))


def test_a_subscription_is_replaced_only_after_a_fault() -> None:
    scripted = Scripted()
    scripted.get(Clock(0.0), Services(SERVICE), granted(1), Done(1))
    for after_s, outcome in ((70, Silent("timed out")), (10, Broken("<")), (10, Granted(120.0))):
        assert scripted.get(outcome, after_s=after_s).operation is CameraOperation.RENEW
    assert scripted.conversation.subscription == granted(1).reference
    assert not scripted.get(Fault("no"), after_s=70).absolute
    # Repeated with a time instead of the duration; then there is a new subscription beside the old one.
    assert scripted.get(Fault("no")).absolute
    assert scripted.get(granted(2)).operation is CameraOperation.CREATE
    assert [scripted.get(Done(0)).to for _ in range(2)] == [granted(1).reference, granted(2).reference]


def test_push_instead_of_missing_or_failing_pull_points() -> None:
    run = Run(VirtualCamera(pulls=False))
    run.until(HOUR)
    assert run.conversation.by_push
    named = ("CLOCK", "SERVICES", "CREATE", "SUBSCRIBE", "RENEW")
    assert set(run.camera.requests) == {CameraOperation[name] for name in named}
    scripted = Scripted()
    scripted.get(Clock(0.0), Services(SERVICE))
    for number in (1, 2):
        scripted.get(granted(number), UNKNOWN, Clock(0.0))
    assert scripted.next().operation is CameraOperation.SUBSCRIBE


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://camera.example:8080/sub?id=1", ["http://camera.example:8080/sub?id=1"]),
        ("http://camera.example:99/s", ["http://camera.example:99/s", "http://camera.example:8080/s"]),
        ("http://camera.example/s", ["http://camera.example:8080/s", "http://camera.example/s"]),
        ("http://0.0.0.0:99/s", ["http://camera.example:8080/s", "http://camera.example:99/s"]),
        ("http://192.168.1.9/s", ["http://camera.example:8080/s", "http://camera.example/s"]),
        ("http://evil.example:8080/s", ["http://camera.example:8080/s"]),
        ("/s", ["http://camera.example:8080/s"]),
        ("http://[bad/s", [URL]),
        ("file:///etc/passwd", ["http://camera.example:8080/etc/passwd"]),
    ],
)
def test_only_the_host_of_the_camera_is_called(given: str, expected: list[str]) -> None:
    assert addresses(URL, given) == expected
