"""Keeps the subscriptions at publishers in step with demand, for registrations with Demand.

`ingest.demand.steps` decides the required subscriptions; the current ones are in the registrations' records, so another
process can continue. Each publisher is handled separately: one that hangs or refuses is retried with growing delays.

A process that dies between a publisher's answer to Subscribe and its record leaves an unknown subscription, which
expires after ten minutes without a renewal; likewise if the publisher was unreachable at the end of
the registration.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import msgspec

from arborcast.core.backoff import Backoff
from arborcast.core.errors import InfrastructureError
from arborcast.ingest.demand import steps
from arborcast.ingest.demand.calls import PAUSE, RESUME, UNSUBSCRIBE, PublisherCalls
from arborcast.ingest.demand.steps import ChangeUpstream, Step, SubscribeUpstream, UpstreamAction
from arborcast.ingest.operations.gateway import Gateway
from arborcast.ingest.operations.publisher_registration import consumer_address
from arborcast.topic_model.publishers import Registration, Upstream
from arborcast.topic_model.records.control import RegistrationRecord
from arborcast.topic_model.subscriptions import TopicFilter
from arborcast.wire import times
from arborcast.wire.errors import PublisherRefused, PublisherUnreachable

logger = logging.getLogger(__name__)

# Termination time requested from a publisher, renewed in time.
_TERMINATION_S = 600

# Interval of checks for changes of the control log, and in any case, for expired times.
_CHECK_S = 0.1
_ANYWAY_S = 1.0

# Topics with wildcards need a walk over all subscriptions, about 4 us for each pair: in slices, so that requests are
# served in between, and not again before four times the duration has passed.
_SLICE = 200
_SHARE = 4

# Registrations examined before requests are served.
_AT_ONCE = 100

_BACKOFF = Backoff(1.0, 60.0)

# Attempts of an Unsubscribe for an ended registration.
_LAST_TRIES = 3


@dataclass(frozen=True)
class _Wildcards:
    """The demand for topics with wildcards, by subscription, as of the last walk over all subscriptions."""

    position: int = -1
    next_at: float = 0.0
    topics: Set[str] = frozenset()
    wanted: Mapping[str, str] = field(default_factory=dict)


class DemandWorker:
    """Runs beside the requests in one gateway."""

    def __init__(self, gateway: Gateway, backoff: Backoff = _BACKOFF) -> None:
        self._gateway = gateway
        self._backoff = backoff
        self._calls = PublisherCalls(gateway.own, _TERMINATION_S, gateway.outbound, gateway.route)
        self._known: dict[str, Registration] = {}
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._troubles: dict[str, tuple[int, float]] = {}
        """The failures in a row of a registration, and the time of the next attempt."""
        self._wildcards = _Wildcards()

    async def run(self) -> None:
        """Run until cancelled."""
        looked_at, position, table = 0.0, -1, self._gateway.table
        try:
            while True:
                now = time.monotonic()
                if table.position != position or now >= looked_at + _ANYWAY_S:
                    looked_at, position = now, table.position
                    await self._round()
                await asyncio.sleep(_CHECK_S)
        finally:
            for task in self._busy.values():
                task.cancel()
            self._calls.close()

    async def _round(self) -> None:
        """Start the required steps."""
        gateway = self._gateway
        there = {one.id: one for one in gateway.registrations if one.demand}
        for removed in self._known.keys() - there.keys():
            if removed not in self._busy:
                self._start(removed, self._end_all(self._known.pop(removed)))
                self._troubles.pop(removed, None)
        self._known.update(there)
        if not there:
            return
        await self._look_for_wildcards(there.values())
        now_ms = times.to_ms(gateway.now())
        for number, registration in enumerate(there.values(), 1):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            _, until = self._troubles.get(registration.id, (0, 0.0))
            if registration.id in self._busy or until > time.monotonic():
                continue
            # Changes during the walk count, hence the current registration.
            current = gateway.registrations.get(registration.id)
            if current is not None and not current.expired(now_ms):
                consumer = consumer_address(gateway, current)
                planned = steps.steps(current, partial(self._is_wanted, now_ms), now_ms, consumer)
                if planned:
                    self._start(current.id, self._carry_out(current, planned))

    def _is_wanted(self, now_ms: int, topic: TopicFilter) -> bool:
        path = steps.single_topic(topic)
        if path is not None:
            return steps.is_wanted(path, self._gateway.table, now_ms)
        return topic.normal in self._wildcards.wanted

    async def _look_for_wildcards(self, registrations: Iterable[Registration]) -> None:
        topics = {
            topic.normal: topic for one in registrations for topic in one.topics if steps.single_topic(topic) is None
        }
        table = self._gateway.table
        seen, position, began = self._wildcards, table.position, time.monotonic()
        if not topics or began < seen.next_at or (seen.position == position and seen.topics == topics.keys()):
            return
        now_ms, wanted = times.to_ms(self._gateway.now()), dict[str, str]()
        for normal, topic in topics.items():
            # Usually the same subscription as before.
            before = table.get(seen.wanted.get(normal, ""))
            if before is not None and steps.may_need(before, topic, now_ms):
                wanted[normal] = before.id
        missing = {normal: topic for normal, topic in topics.items() if normal not in wanted}
        subscriptions = list(table.subscriptions()) if missing else []
        for number, subscription in enumerate(subscriptions, 1):
            for normal in [normal for normal, topic in missing.items() if steps.may_need(subscription, topic, now_ms)]:
                wanted[normal] = subscription.id
                del missing[normal]
            if not missing:
                break
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        took = time.monotonic() - began
        self._wildcards = _Wildcards(position, began + _SHARE * took, topics.keys(), wanted)

    def _start(self, registration_id: str, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"publisher {registration_id}")
        self._busy[registration_id] = task
        task.add_done_callback(partial(self._done, registration_id))

    def _done(self, registration_id: str, task: asyncio.Task[None]) -> None:
        del self._busy[registration_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a step of a publisher's registration failed", exc_info=error)
            if registration_id in self._known:  # otherwise its entry would stay for ever
                self._postpone(registration_id)

    def _postpone(self, registration_id: str) -> float:
        """Returns the seconds until the next attempt."""
        failures = self._troubles.get(registration_id, (0, 0.0))[0] + 1
        wait_s = self._backoff.jittered(failures)
        self._troubles[registration_id] = failures, time.monotonic() + wait_s
        return wait_s

    async def _carry_out(self, registration: Registration, planned: Sequence[Step]) -> None:
        try:
            for step in planned:
                match step:
                    case SubscribeUpstream(topic):
                        await self._subscribe(registration, topic)
                    case ChangeUpstream(action, upstream):
                        await self._change(registration, action, upstream)
        except (PublisherUnreachable, PublisherRefused, InfrastructureError) as error:
            wait_s = self._postpone(registration.id)
            logger.warning(
                "publisher of registration %s: %s; the next attempt is in %.0f s", registration.id, error, wait_s
            )
        else:
            self._troubles.pop(registration.id, None)

    async def _subscribe(self, registration: Registration, topic: TopicFilter) -> None:
        consumer = consumer_address(self._gateway, registration)
        reference, granted_ms = await self._calls.subscribe(registration, topic, consumer)
        logger.info("registration %s: subscribed at its publisher to %s", registration.id, topic.text)
        upstream = self._with_time(Upstream(topic.normal, reference, consumer=consumer), granted_ms)
        if not await self._replace(registration, None, upstream):
            # The registration ended meanwhile.
            await self._calls.change(registration, reference, UNSUBSCRIBE)

    async def _change(self, registration: Registration, action: UpstreamAction, upstream: Upstream) -> None:
        """A subscription that the publisher refuses to change is forgotten; with demand, the next round subscribes
        again."""
        calls, to, changes = self._calls, upstream.reference, dict[str, bool]()
        after: Upstream | None = None
        try:
            match action:
                case UpstreamAction.RENEW:
                    after = self._with_time(upstream, await calls.renew(registration, to))
                case UpstreamAction.RESUME:
                    await calls.change(registration, to, RESUME)
                    after = msgspec.structs.replace(upstream, paused=False)
                case UpstreamAction.PAUSE:
                    await calls.change(registration, to, PAUSE)
                    after = msgspec.structs.replace(upstream, paused=True)
                case UpstreamAction.END | UpstreamAction.LEAVE:
                    await calls.change(registration, to, UNSUBSCRIBE)
        except PublisherRefused as error:
            logger.info("registration %s: its subscription is forgotten (%s): %s", registration.id, action.value, error)
            if action is UpstreamAction.PAUSE:
                changes["pausable"] = False
                with suppress(PublisherRefused):
                    await calls.change(registration, to, UNSUBSCRIBE)
        await self._replace(registration, upstream, after, **changes)

    async def _end_all(self, registration: Registration) -> None:
        """Unsubscribe for an ended registration; failing that, the subscriptions expire."""
        for upstream in registration.upstream:
            for attempt in range(_LAST_TRIES):
                try:
                    await self._calls.change(registration, upstream.reference, UNSUBSCRIBE)
                except PublisherRefused:
                    break
                except PublisherUnreachable as error:
                    logger.info("registration %s is removed, its publisher too: %s", registration.id, error)
                    await asyncio.sleep(self._backoff.after(attempt + 1))
                else:
                    break

    async def _replace(
        self, registration: Registration, old: Upstream | None, new: Upstream | None, **changes: bool
    ) -> bool:
        """Record the state of a subscription at the publisher; False if the registration has ended."""
        gateway = self._gateway
        async with gateway.locks.hold(registration.id):
            current = gateway.registrations.get(registration.id)
            if current is None:
                return False
            others = [one for one in current.upstream if old is None or one.topic != old.topic]
            upstream = (*others, new) if new is not None else tuple(others)
            changed = msgspec.structs.replace(current, upstream=upstream, **changes)
            if changed != current:
                await gateway.changes.commit([RegistrationRecord(changed)])
                # The registration may end before the next round, which then ends this subscription.
                self._known[registration.id] = changed
            return True

    def _with_time(self, upstream: Upstream, granted_ms: int | None) -> Upstream:
        if granted_ms is None:
            return msgspec.structs.replace(upstream, terminates_ms=None, renew_ms=None)
        now_ms = times.to_ms(self._gateway.now())
        return msgspec.structs.replace(
            upstream, terminates_ms=now_ms + granted_ms, renew_ms=now_ms + granted_ms * 4 // 5
        )
