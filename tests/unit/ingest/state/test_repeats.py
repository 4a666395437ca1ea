"""Repeated requests with the same message id."""

from __future__ import annotations

import asyncio

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.ingest.state import repeats
from arborcast.ingest.state.repeats import TABLE_BYTES, RepeatMemory, Repeats, fingerprint, steady_now
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from tests.support import make
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts


def notification(topic: str = "a", payload: bytes = b"<n/>", message_id: str = "urn:1", id: str = "x") -> Notification:
    return make.notification(id, topic, payload, message_id=message_id)


def key(number: int) -> bytes:
    return fingerprint([notification(message_id=f"urn:{number}")])


def test_fingerprints_of_requests() -> None:
    one = [notification(), notification("b")]
    assert fingerprint(one) == fingerprint([notification(id="y"), notification("b", id="z")])
    others = [
        [notification()],
        [notification("b"), notification()],
        [notification(), notification("c")],
        [notification(), notification("b", b"<m/>")],
        [notification(message_id="urn:2"), notification("b")],
        [notification("a", b"<n/>b"), notification("", b"<n/>")],
    ]
    assert len({fingerprint(each) for each in [one, *others]}) == 7


def test_the_wall_clock_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set back by an hour, it would make a deliberate repetition, much later, a duplicate."""
    up_s = 5.0  # just after the start of the machine
    monkeypatch.setattr("time.monotonic", lambda: up_s)
    monkeypatch.setattr("time.time", lambda: pytest.fail("read"))
    memory = RepeatMemory(600)
    memory.add(key(1), steady_now())
    memory.add(key(2), steady_now() - 590)  # accepted before the start of the machine
    assert [memory.has(key(number), steady_now()) for number in (1, 2)] == [True, True]
    up_s += 20
    assert not memory.has(key(2), steady_now())
    up_s += 590
    assert not memory.has(key(1), steady_now())
    assert Repeats(memory)._clock is steady_now


def test_the_memory_is_bounded_in_time_and_size() -> None:
    memory = RepeatMemory(60)
    memory.add(key(1), 1_000)
    times = [(1, 1_060, True), (1, 1_061, False), (2, 1_000, False)]
    assert [memory.has(key(number), now) for number, now, _ in times] == [known for *_, known in times]
    memory.add(key(1), 1_100)
    assert memory.has(key(1), 1_160)
    memory = RepeatMemory(60)
    for number in range(20_000):
        memory.add(key(number), 5)
    assert len(memory._memory) == TABLE_BYTES
    assert all(memory.has(key(number), 5) for number in range(20_000))


async def test_a_repetition_shares_the_outcome_of_a_request_in_flight() -> None:
    repeats = Repeats(RepeatMemory(60), lambda: 5.0)
    gate = asyncio.Event()
    stored = []

    async def store() -> None:
        stored.append(1)
        await gate.wait()
        if len(stored) == 1:
            raise InfrastructureError("away", 1)

    both = [asyncio.create_task(repeats.once(key(1), store)) for _ in range(2)]
    await asyncio.sleep(0)
    gate.set()
    results = await asyncio.gather(*both, return_exceptions=True)
    assert [type(one) for one in results] == [InfrastructureError] * 2
    # Nothing was acknowledged: the next request is stored, and recorded.
    await repeats.once(key(1), store)
    await repeats.once(key(1), store)
    assert len(stored) == 2
    assert repeats.count == 2


def test_only_complete_requests_in_the_log_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    def stored(number: int, size: int) -> tuple[Notification, float]:
        return Notification("n", TopicPath("a"), b"<n/>", 1, request=key(number), request_size=size), steady_now()

    log = [stored(1, 2), stored(2, 2), stored(1, 2), stored(3, 1)]
    monkeypatch.setattr(repeats, "accepted_lately", lambda *_: log)
    memory = RepeatMemory(60)
    assert repeats.remember_history(KafkaSettings(), memory) == 2
    assert [memory.has(key(number), steady_now()) for number in (1, 2, 3)] == [True, False, True], "2 is incomplete"


def test_a_repeated_notify_is_accepted_once_if_it_was_stored(parts: GatewayParts) -> None:
    parts.gateway.repeats = Repeats(RepeatMemory(60))
    notify = soap.envelope(soap.notify(soap.message(), soap.message("t:c")), header=soap.addressing("urn:a"))
    parts.notifications.error = InfrastructureError("away", 1)
    assert parts.post(notify).status == 503
    parts.notifications.error = None
    answers = [parts.post(notify) for _ in range(3)]
    assert [each.status for each in answers] == [202] * 3
    # The ids of the repetitions are not stored.
    assert [b"arborcast-notification-id" in each.headers for each in answers] == [True, False, False]
    assert (len(parts.notifications.accepted), parts.gateway.repeats.count) == (2, 2)
    first = parts.notifications.accepted[0]
    assert (len(first.request), first.request_size) == (16, 2)
