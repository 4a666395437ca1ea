"""Unsubscribing frees memory: many rounds at different addresses leave none in use."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType, ModuleType
from unittest.mock import Mock

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.recent import Recent
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.delivery.capacity import InFlightLimiter, scopes_of
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.health import Sign
from arborcast.dispatch.delivery.transport.contract import UrlPolicyCache
from arborcast.dispatch.hot.lanes import Lanes
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.matching.view import ControlState
from arborcast.dispatch.redelivery import redeliverer as module
from arborcast.dispatch.redelivery.endpoints import Endpoints, HealthMemory
from arborcast.dispatch.redelivery.parked_store import ParkedStore
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.dispatch.redelivery.redeliverer import Redeliverer
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.records.control import (
    ControlRecord,
    SubscriptionRecord,
    SubscriptionSuspended,
    Tombstone,
    ending,
    key_of,
)
from arborcast.topic_model.routing import sharing
from arborcast.topic_model.snapshot import Snapshot, SnapshotView
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.hot import limits
from tests.support.make import known_to_redelivery, notification, subscription
from tests.support.outbound import THIS_MACHINE

pytestmark = pytest.mark.slow

ROUNDS = 2_000
NOW_MS = 1_700_000_000_000


def objects_held_by(*roots: object) -> int:
    """The number of objects reachable from these, without code."""
    found = {id(root): root for root in roots}
    waiting = list(roots)
    while waiting:
        for each in gc.get_referents(waiting.pop()):
            if id(each) not in found and not isinstance(each, type | ModuleType | FunctionType):
                found[id(each)] = each
                waiting.append(each)
    return len(found)


class FakeControlLog:
    """A control log whose records are applied to the state at once."""

    def __init__(self, state: ControlState) -> None:
        self._state = state
        self.live: dict[str, ControlRecord] = {}

    def append(self, batch: Iterable[ControlRecord]) -> int:
        for record in batch:
            self._state.apply(record)
            self.live[key_of(record)] = record
            if isinstance(record, Tombstone):
                del self.live[key_of(record)]
        return 0

    def close(self) -> None: ...


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> ControlState:
    monkeypatch.setattr(sharing, "_LIMIT", 10_000)  # before the first cache is made
    return ControlState()


@pytest.fixture
def log(state: ControlState, monkeypatch: pytest.MonkeyPatch) -> FakeControlLog:
    opened = FakeControlLog(state)
    monkeypatch.setattr(module, "ControlLog", lambda kafka: opened)
    return opened


@pytest.fixture
def redeliverer(state: ControlState, log: FakeControlLog, tmp_path: Path) -> Redeliverer:
    retry, known = RetrySettings(breaker_failures=1), known_to_redelivery(state)
    return Redeliverer(KafkaSettings(), PushSettings(), retry, THIS_MACHINE, known, tmp_path / "parked.sqlite")


def numbered(number: int) -> Subscription:
    return subscription(f"s{number}", f"plant/line{number}", f"http://host{number}.example/{number}")


def test_rounds_of_subscribe_fail_unsubscribe_leave_no_memory(
    state: ControlState, log: FakeControlLog, redeliverer: Redeliverer, request: pytest.FixtureRequest
) -> None:
    """In the memory of driver and worker, in the data sent with each batch, and in the data kept for the next start."""
    health = redeliverer.health
    store = ParkedStore(None)
    request.addfinalizer(store.close)
    memory = HealthMemory(store, health)
    endpoints = Endpoints(health, 1.0, 256, lambda event: None)
    waiting = InFlightLimiter(limits(per_endpoint=1, per_host=1))
    lanes = Lanes(limits())
    urls = UrlPolicyCache(THIS_MACHINE)
    envelopes: Recent[str, tuple[Subscription, Envelope]] = Recent(32 * 1024)
    checkpoint = state.table.checkpoint()
    snapshot = Snapshot.build(checkpoint)
    message = notification("n", "plant", accepted_ms=NOW_MS)
    roots = (state, log, redeliverer, store, memory, endpoints, waiting, lanes, urls, envelopes, checkpoint, snapshot)

    def rounds(first: int, count: int) -> None:
        for number in range(first, first + count):
            one = numbered(number)
            endpoint = one.consumer.address
            log.append([SubscriptionRecord(one)])
            # A batch cannot connect; the redelivery waits for a free slot, then for the probe.
            lanes.add(Received(message, 0, number), one)
            lanes.take()
            lanes.settle(one.id, message.topic)
            failed = PartitionReport(reach={one.id: (0, number)}, signs=[(endpoint, Sign("unreachable", "n"))])
            redeliverer.batch_done([failed])
            waiting.enter(scopes_of(endpoint))
            assert waiting.wait(one.id, scopes_of(endpoint))
            endpoints.block(one.id, endpoint, 0)
            redeliverer.lanes.for_workers()[0]
            if number % 100 == 0:
                assert health.degraded() == health.watched() == {endpoint}
                assert redeliverer.lanes.for_workers()[0] == {one.id}
                urls.refusal(endpoint)
                envelopes.put(one.id, (one, Envelope(one)), 2_000)
                # The workers receive the exclusions; health is saved.
                view = SnapshotView(snapshot, checkpoint.overlay())
                assert view.match(TopicPath(f"plant/line{number}")) == state.table.match(
                    TopicPath(f"plant/line{number}")
                )
                memory.save()
                log.append([SubscriptionSuspended(one.id, "refused", NOW_MS, NOW_MS)])
            log.append(ending(one.id, "unsubscribed", NOW_MS))
            # The redelivery's steps for an ended subscription; and the late result of a push in flight.
            waiting.forget(one.id)
            endpoints.forget(one.id, endpoint)
            waiting.leave(scopes_of(endpoint))
            redeliverer.lanes.applied(0, number + 1)
            redeliverer.batch_done([PartitionReport(signs=failed.signs)])

    rounds(0, 1_000)
    gc.collect()
    before = objects_held_by(*roots)
    rounds(1_000, ROUNDS)
    memory.save()

    assert health.everything() == {}
    assert not (health.degraded() | health.watched() | redeliverer.lanes.for_workers()[0])
    assert redeliverer.statistics().breakers == {}
    assert (len(state.suspensions), log.live) == (0, {})
    assert len(store.recall("health") or b"") < 10
    assert checkpoint.overlay().size == 0
    # Bounded caches may grow a little; one object for each round would be four times this limit.
    assert objects_held_by(*roots) - before < ROUNDS / 4


def test_the_end_of_a_subscription_removes_its_suspension(
    log: FakeControlLog, redeliverer: Redeliverer, state: ControlState, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append([SubscriptionRecord(numbered(1)), SubscriptionSuspended("s1", "refused", NOW_MS, NOW_MS)])
    with monkeypatch.context() as away:
        away.setattr(log, "append", Mock(side_effect=InfrastructureError("no answer in time")))
        with pytest.raises(InfrastructureError):
            redeliverer.batch_done([PartitionReport(gone={"s1", "never"})])
    redeliverer._parts.end_subscriptions(())
    assert log.live == {}, "also after a failure"

    log.append([SubscriptionRecord(numbered(1)), SubscriptionRecord(numbered(2))])
    log.append(ending("s1", "unsubscribed", NOW_MS))
    redeliverer._parts.suspend_subscriptions({"s1": NOW_MS, "s2": NOW_MS})
    assert state.suspensions.ids() == {"s2"}
    assert set(log.live) == {"sub:s2", "susp:s2"}
