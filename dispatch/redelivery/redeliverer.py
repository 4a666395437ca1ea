"""The redelivery as a thread of the driver: it pushes the deliveries that workers have parked.

A failure (Kafka unavailable, a full disk) ends a session, not the thread: the next session begins at the last commit.
Batches get the held lanes and degraded endpoints from it, and report signs of endpoint health.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from arborcast.core import liveness
from arborcast.core.backoff import Backoff
from arborcast.core.errors import InfrastructureError
from arborcast.core.mqtt.settings import NO_MQTT, MqttSettings
from arborcast.core.security.outbound import AddressPolicy
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import Service
from arborcast.core.wall_clock import time_ms
from arborcast.dispatch.delivery.credentials import SecretOpener
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.health import EndpointHealthRegistry
from arborcast.dispatch.delivery.pushes import PushSpans
from arborcast.dispatch.delivery.transport import make_transport
from arborcast.dispatch.logs.held_lanes import HeldLanes
from arborcast.dispatch.logs.parked import Place
from arborcast.dispatch.matching.view import RoutingView, SubscriptionListener
from arborcast.dispatch.redelivery.events import DeadLetterAlarm, EventListener, OperatorEvent
from arborcast.dispatch.redelivery.parked_store import newest_batch, parked_behind
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.dispatch.redelivery.scheduler import RedeliveryContext, RedeliveryStatistics
from arborcast.dispatch.redelivery.session import RedeliverySession, SessionParts, opened_session
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.records.control import SubscriptionSuspended, Tombstone, ending
from arborcast.topic_model.subscriptions import Subscription

# Pause between two sessions.
_PAUSE_S = 1.0

# Share of the stop's timeout for pushes in flight; the rest is for writing their outcomes.
_PUSHES_SHARE = 3 / 4

_COSTLY = "its content or producer conditions cost more than push.conditions_ms, or push.owner_conditions_ms, allows"


class SubscriptionEnds:
    """Writes ends and suspensions of subscriptions to the control log. Every method raises InfrastructureError."""

    def __init__(self, kafka: KafkaSettings, subscriptions: RoutingView, publish: EventListener) -> None:
        self._timeout_s = kafka.request_timeout_s
        self._subscriptions = subscriptions
        self._publish = publish
        self._control = ControlLog(kafka)
        self._unwritten: set[str] = set()

    def end(self, ids: Iterable[str]) -> list[Subscription]:
        """The receivers of these have answered 410; returns those that existed. After a failure the next call ends
        them."""
        self._unwritten.update(ids)
        ended = [*self._unwritten]
        found = self._existing(ended)
        if found:
            self._control.append([record for each in found for record in ending(each.id, "gone", time_ms())])
        self._unwritten.difference_update(ended)
        return found

    def suspend(self, since_ms: Mapping[str, int]) -> None:
        """The endpoints of these have failed since then: nothing is pushed until they are resumed."""
        at_ms = time_ms()
        self._control.append(
            [
                SubscriptionSuspended(each, "its endpoint accepts no message", since, at_ms)
                for each, since in sorted(since_ms.items())
            ]
        )
        # If a subscription has ended meanwhile, no record removes its suspension.
        self._subscriptions.catch_up(self._timeout_s)
        over = [each for each in sorted(since_ms) if self._subscriptions.subscription(each) is None]
        if over:
            self._control.append([Tombstone.of("susp", each) for each in over])

    def suspend_costly(self, ids: Iterable[str], at_ms: int) -> None:
        """The conditions of these exceed their budget: they are not evaluated until the subscriptions are resumed."""
        found = [each for each in self._existing(ids) if not self._subscriptions.suspended(each.id)]
        if not found:
            return
        self._control.append([SubscriptionSuspended(each.id, _COSTLY, at_ms, at_ms, "conditions") for each in found])
        for each in found:
            self._publish(
                OperatorEvent("subscription-suspended", at_ms, each.consumer.address, each.id, detail=_COSTLY)
            )

    def close(self) -> None:
        self._control.close()

    def _existing(self, ids: Iterable[str]) -> list[Subscription]:
        return [each for each in map(self._subscriptions.subscription, sorted(ids)) if each is not None]


class Redeliverer(SubscriptionListener):
    """Runs until `stop`. Batches use `lanes` and `health`; `publish` is called with events for operators, in any thread
    and without locks."""

    def __init__(
        self,
        kafka: KafkaSettings,
        push: PushSettings,
        retry: RetrySettings,
        outbound: AddressPolicy,
        subscriptions: RoutingView,
        file: Path,
        opener: SecretOpener | None = None,
        publish: EventListener = lambda event: None,
        spans: PushSpans | None = None,
        mqtt: MqttSettings = NO_MQTT,
    ) -> None:
        self.lanes = HeldLanes()
        self.health = EndpointHealthRegistry(retry, subscriptions.is_pushed_to)
        self._publish = publish
        self._alarm = DeadLetterAlarm(publish)
        self._ends = SubscriptionEnds(kafka, subscriptions, publish)
        context = RedeliveryContext(
            push=push,
            retry=retry,
            health=self.health,
            subscriptions=subscriptions,
            held=self.lanes,
            envelope_of=lambda subscription: Envelope(subscription, opener, push.callback_s, retry.lifespan_s),
            publish=publish,
            spans=spans,
            alarm=self._alarm,
        )
        self._parts = SessionParts(
            kafka=kafka,
            file=file,
            context=context,
            make_transport=lambda: make_transport(push, outbound, mqtt),
            end_subscriptions=self._ends.end,
            suspend_subscriptions=self._ends.suspend,
        )
        self._pushes_until = 0.0
        self._read = threading.Condition()
        self._reads_requested = self._reads_done = 0  # reads of the log to its end, for `catch_up`
        self._session: RedeliverySession | None = None
        self._figures = RedeliveryStatistics()  # of the last session
        self._restored = False
        self.rounds = 0
        """Rounds of the loop since the start."""
        self._service = Service("redeliverer", self._step, backoff=Backoff(_PAUSE_S, _PAUSE_S), what="the redelivery")
        subscriptions.listen(self)

    def start(self, timeout_s: float) -> None:
        """Start, and wait until all parked deliveries are read: before that no batch may begin. Raises
        InfrastructureError if none is read for `timeout_s`."""
        self._service.start()
        try:
            self.catch_up(timeout_s)
        except InfrastructureError:
            self.stop(1.0)
            raise

    def begin_stop(self, timeout_s: float) -> None:
        """Begin no more pushes; outcomes of those in flight are processed for three quarters of the time. Returns at
        once."""
        if not self._service.stopping:
            self._pushes_until = time.monotonic() + timeout_s * _PUSHES_SHARE
            self._service.stop()
            with self._read:
                self._read.notify_all()

    def stop(self, timeout_s: float) -> None:
        """Stop as `begin_stop`. Returns when all settled deliveries are written, or after the time."""
        self.begin_stop(timeout_s)
        self._service.stop(timeout_s)
        self._ends.close()
        if (spans := self._parts.context.spans) is not None:
            spans.close()

    def catch_up(self, timeout_s: float) -> None:
        """Wait until all currently parked deliveries, of workers and operators, are read: minutes if these are
        gigabytes. Raises InfrastructureError if none is read for `timeout_s`."""
        before = self.lanes.offsets_read()
        with self._read:
            self._reads_requested += 1
            requested = self._reads_requested
            while not self._read.wait_for(lambda: self._reads_done >= requested or self._service.stopping, timeout_s):
                now = self.lanes.offsets_read()
                if now == before:
                    raise InfrastructureError(f"no record of the parked log was read for {timeout_s:g} s", 5.0)
                before = now
            if self._reads_done < requested:
                raise InfrastructureError("the redelivery stops")

    def newest_batch(self, redriven: bool) -> int:
        """The highest batch number of the parked deliveries, also of `redriven` ones, NO_BATCH without any; after the
        start. Raises InfrastructureError."""
        return newest_batch(self._parts.file, redriven)

    def parked_behind(self, positions: Mapping[int, int]) -> Iterator[tuple[str, str, Place]]:
        """Subscription, notification and place of the parked deliveries of notifications behind these offsets; after
        `catch_up`. Raises InfrastructureError."""
        return parked_behind(self._parts.file, positions)

    def batch_done(self, reports: Iterable[PartitionReport]) -> None:
        """Apply the reports of a batch. Raises InfrastructureError if the end or suspension of a subscription cannot be
        written."""
        at_ms = time_ms()
        gone: set[str] = set()
        costly: set[str] = set()
        for report in reports:
            self.lanes.parked(report.reach)
            gone |= report.gone
            costly |= report.costly
            if (new := report.new_letters).number:
                self._alarm.died(new.subscription, new.endpoint, new.detail, new.number)
            for endpoint, sign in report.signs:
                known = self.health.get(endpoint)
                before = known.breaker
                if before != "closed" and sign.kind in ("unreachable", "failing") and not known.on_trial(at_ms):
                    continue  # the push began before the breaker opened
                after = self.health.note(endpoint, sign, at_ms).breaker
                if before == "closed" and after != "closed":
                    self._publish(OperatorEvent("breaker-opened", at_ms, endpoint))
                elif before != "closed" and after == "closed":
                    self._publish(OperatorEvent("breaker-closed", at_ms, endpoint))
        for each in self._ends.end(gone):
            self._publish(OperatorEvent("subscription-gone", at_ms, each.consumer.address, each.id))
        self._ends.suspend_costly(costly - gone, at_ms)

    def subscription_changed(self, subscription_id: str) -> None:
        session = self._session
        if session is not None:
            session.redelivery.subscription_changed(subscription_id)

    def endpoint_released(self, endpoint: str) -> None:
        self.health.forget(endpoint)

    @property
    def unread(self) -> int:
        """The number of parked records that are not read yet; thousands if workers park faster than this reads."""
        session = self._session
        return 0 if session is None else session.figures.unread

    def statistics(self) -> RedeliveryStatistics:
        breakers = Counter(str(each.breaker) for each in self.health.everything().values())
        del breakers["closed"]
        session = self._session
        current = self._figures if session is None else session.figures
        return dataclasses.replace(current, breakers=breakers, failures=self._figures.failures)

    def _step(self) -> None:
        """A session: until the stop, or a failure."""
        liveness.listen(self._count_round)
        liveness.beat()
        try:
            with opened_session(self._parts) as session:
                self._work(session)
        except Exception:
            self._figures = dataclasses.replace(self._figures, failures=self._figures.failures + 1)
            raise

    def _count_round(self) -> None:
        self.rounds += 1

    def _work(self, session: RedeliverySession) -> None:
        stopping = self._is_stopping
        session.begin(stopping, restore=not self._restored)
        self._service.succeeded()
        self._restored = True
        self._session = session
        try:
            while not stopping():
                self._read_to_end(session)
                session.run(stopping, lambda: self._reads_requested > self._reads_done)
            session.end(self._pushes_until)
        finally:
            failures, self._session = self._figures.failures, None
            self._figures = dataclasses.replace(session.figures, in_flight=0, failures=failures)

    def _read_to_end(self, session: RedeliverySession) -> None:
        """Read the log for waiting threads, if there are any. After a failure they continue to wait."""
        requested = self._reads_requested
        if requested > self._reads_done:
            session.read_to_end(self._is_stopping)
            if not self._service.stopping:
                with self._read:
                    self._reads_done = requested
                    self._read.notify_all()

    def _is_stopping(self) -> bool:
        return self._service.stopping
