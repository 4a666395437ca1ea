"""Unsubscribing frees everything: many rounds at different addresses leave no memory behind."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from types import FunctionType, ModuleType

import pytest

from arborcast.core.recent import Recent
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.delivery import capacity
from arborcast.dispatch.delivery.capacity import InFlightLimiter, Limits, scopes_of
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.health import Sign
from arborcast.dispatch.delivery.transport.contract import UrlJudge
from arborcast.dispatch.hot.lanes import LaneLimits, Lanes
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.matching.view import ControlState
from arborcast.dispatch.redelivery import redeliverer as module
from arborcast.dispatch.redelivery.endpoints import Endpoints, HealthMemory
from arborcast.dispatch.redelivery.parked_store import ParkedStore
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.dispatch.redelivery.redeliverer import Redeliverer
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.expressions import CONCRETE
from arborcast.topic_model.records.control import (
    ControlRecord,
    SubscriptionRecord,
    SubscriptionSuspended,
    Tombstone,
    ending,
    key_of,
)
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.routing import sharing
from arborcast.topic_model.snapshot import Snapshot, SnapshotView
from arborcast.topic_model.subscriptions import EndpointReference, Subscription, TopicFilter
from arborcast.topic_model.topics import TopicPath
from tests.support.make import known_to_redelivery
from tests.support.outbound import THIS_MACHINE
from tests.support.redelivery_world import REFUSED, World

pytestmark = pytest.mark.slow

ROUNDS = 20_000
NOW_MS = 1_700_000_000_000


def objects_held_by(*roots: object) -> int:
    """How many objects these lead to, without code."""
    found = {id(root): root for root in roots}
    waiting = list(roots)
    while waiting:
        for each in gc.get_referents(waiting.pop()):
            if id(each) not in found and not isinstance(each, type | ModuleType | FunctionType):
                found[id(each)] = each
                waiting.append(each)
    return len(found)


class ControlLogOf:
    """The control log of a state: what is appended is applied at once, as if everybody read along."""

    def __init__(self, state: ControlState) -> None:
        self._state = state
        self.live: dict[str, ControlRecord] = {}

    def append(self, batch: Iterable[ControlRecord]) -> int:
        for record in batch:
            self._state.apply(record)
            if isinstance(record, Tombstone):
                self.live.pop(key_of(record), None)
            else:
                self.live[key_of(record)] = record
        return 0

    def close(self) -> None:
        pass


@pytest.fixture
def state() -> ControlState:
    return ControlState()


@pytest.fixture
def log(state: ControlState, monkeypatch: pytest.MonkeyPatch) -> ControlLogOf:
    opened = ControlLogOf(state)
    monkeypatch.setattr(module, "ControlLog", lambda kafka: opened)
    return opened


@pytest.fixture
def redeliverer(state: ControlState, log: ControlLogOf, tmp_path_factory: pytest.TempPathFactory) -> Redeliverer:
    return Redeliverer(
        KafkaSettings(),
        PushSettings(),
        RetrySettings(breaker_failures=1),
        THIS_MACHINE,
        known_to_redelivery(state),
        tmp_path_factory.mktemp("parked") / "parked.sqlite",
    )


def subscription(number: int) -> Subscription:
    name = f"s{number}"
    address = f"http://host{number}.example/{number}"
    topic = TopicFilter(CONCRETE, f"plant/line{number}", f"plant/line{number}", {})
    return Subscription(name, EndpointReference(address), f"http://gateway/subscriptions/{name}", (topic,))


def test_of_many_rounds_of_subscribe_fail_and_unsubscribe_nothing_stays(
    state: ControlState, log: ControlLogOf, redeliverer: Redeliverer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's and a worker's memory, and what would travel with each batch and be kept for the next start."""
    monkeypatch.setattr(capacity, "_known", Recent(64 * 1024))
    monkeypatch.setattr(sharing, "_LIMIT", 10_000)
    health = redeliverer.health
    store = ParkedStore(None)
    memory = HealthMemory(store, health)
    endpoints = Endpoints(health, 1.0, 256, lambda event: None)
    waiting = InFlightLimiter(Limits(per_endpoint=1, per_host=1))
    lanes = Lanes(LaneLimits(10, 10_000))
    urls = UrlJudge(THIS_MACHINE)
    envelopes: Recent[str, tuple[Subscription, Envelope]] = Recent(256 * 1024)
    checkpoint = state.table.checkpoint()
    snapshot = Snapshot.build(checkpoint)
    message = Notification("n", TopicPath("plant"), b"<x/>", NOW_MS)
    roots = (state, log, redeliverer, store, memory, endpoints, waiting, lanes, urls, envelopes, checkpoint, snapshot)

    def rounds(first: int, count: int) -> None:
        for number in range(first, first + count):
            one = subscription(number)
            endpoint = one.consumer.address
            log.append([SubscriptionRecord(one)])
            # A batch finds it away; the redelivery waits for room, then for the probe.
            lanes.add(Received(message, 0, number), one)
            lanes.take()
            lanes.settle(one.id, message.topic)
            failed = PartitionReport(reach={one.id: (0, number)}, signs=[(endpoint, Sign("unreachable", "n"))])
            redeliverer.batch_done([failed])
            waiting.enter(scopes_of(endpoint))
            assert waiting.wait(one.id, scopes_of(endpoint))
            endpoints.block(one.id, endpoint)
            redeliverer.lanes.for_workers()[0]
            if number % 100 == 0:
                assert health.degraded() == health.watched() == {endpoint}
                assert redeliverer.lanes.for_workers()[0] == {one.id}
                urls.refusal(endpoint)
                envelopes.put(one.id, (one, Envelope(one)), 2_000)
                # The workers are told, and what is known is kept.
                view = SnapshotView(snapshot, checkpoint.overlay())
                assert view.match(TopicPath(f"plant/line{number}")) == state.table.match(
                    TopicPath(f"plant/line{number}")
                )
                memory.save()
                log.append([SubscriptionSuspended(one.id, "refused", NOW_MS, NOW_MS)])
            log.append(ending(one.id, "unsubscribed", NOW_MS))
            # What the redelivery does when it reads of that; and a push that was under way comes back too late.
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
    assert (state.endpoints, len(state.suspensions), log.live) == (0, 0, {})
    assert len(store.recall("health") or b"") < 10
    assert checkpoint.overlay().size == 0
    # Bounded caches may be fuller than before; one object for each round would be four times this growth.
    assert objects_held_by(*roots) - before < ROUNDS / 4


def test_a_receiver_that_ends_its_subscription_leaves_no_key_in_the_control_log(
    log: ControlLogOf, redeliverer: Redeliverer
) -> None:
    log.append([SubscriptionRecord(subscription(1)), SubscriptionSuspended("s1", "refused", NOW_MS, NOW_MS)])

    redeliverer.batch_done([PartitionReport(gone={"s1", "never"})])

    assert log.live == {}


def test_a_suspension_that_comes_behind_the_end_of_its_subscription_is_taken_back(
    log: ControlLogOf, redeliverer: Redeliverer, state: ControlState
) -> None:
    log.append([SubscriptionRecord(subscription(1)), SubscriptionRecord(subscription(2))])
    log.append(ending("s1", "unsubscribed", NOW_MS))

    redeliverer._parts.suspend_subscriptions({"s1": NOW_MS, "s2": NOW_MS})

    assert state.suspensions.ids() == {"s2"}
    assert set(log.live) == {"sub:s2", "susp:s2"}


def test_what_waits_for_an_endpoint_that_failed_is_gone_with_the_subscription() -> None:
    world = World()
    for number in range(50):
        name = f"s{number}"
        world.subscribe(name)
        world.endpoint(name).answer = lambda ids: REFUSED
        for each in range(3):
            world.park(name, f"{name}-{each}")
        world.run(20_000)
        del world.subscriptions[name]
        world.hear()
        world.run(1)

    assert set(world.states().values()) == {"cancelled"}
    assert (world.log, world.store.count, world.redelivery.lanes, world.redelivery.statistics().due) == ({}, 0, 0, 0)
    assert world.redelivery.next_turn_ms() is None
    assert (world.health.everything(), world.lanes.for_workers()[0]) == ({}, frozenset())
