"""The pushes of the redelivery and their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from arborcast.core.eventlog.topics import PULL_LOG
from arborcast.core.eventlog.writers import DurableWriter
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import WatchedClock
from arborcast.dispatch.delivery.capacity import LARGE, InFlightLimiter, scopes_of, scopes_of_push
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.journal import Journal
from arborcast.dispatch.delivery.outcomes import Outcome, failed
from arborcast.dispatch.delivery.pushes import Pusher, payload_bytes
from arborcast.dispatch.delivery.settlement import Decision, attempt, expired, settle, unpushed, untried
from arborcast.dispatch.delivery.transport.contract import NO_REQUEST, PushResult
from arborcast.dispatch.delivery.verdict import Push, RetryPolicy, Verdict
from arborcast.dispatch.logs.attempts import Attempt, AttemptsLog
from arborcast.dispatch.logs.parked import DeadLetterLog, Delivery, ParkingLog, Tries
from arborcast.dispatch.matching.view import RoutingView
from arborcast.dispatch.redelivery.amounts import Amounts
from arborcast.dispatch.redelivery.endpoints import Endpoints
from arborcast.dispatch.redelivery.events import DeadLetterAlarm, EventListener, OperatorEvent
from arborcast.dispatch.redelivery.lanes import RetryLane, RetryLanes
from arborcast.dispatch.redelivery.parked_store import ParkedStore, WaitingDelivery
from arborcast.topic_model.records import pull
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.pull import StoredMessage
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import is_system

# How long outcomes may wait for Kafka; after it their pushes are repeated.
_SETTLE_S = 600.0


def journal_for(kafka: KafkaSettings, is_displaced: Callable[[Delivery], bool]) -> RedeliveryJournal:
    """The journal in the logs of an engine, connected. Raises InfrastructureError."""
    attempts, dead, parking = AttemptsLog(kafka), DeadLetterLog(kafka), ParkingLog(kafka)
    journal = RedeliveryJournal(attempts, dead, parking, DurableWriter(kafka, PULL_LOG), is_displaced)
    try:
        journal.connect()
    except BaseException:
        journal.close()
        raise
    return journal


class RedeliveryJournal(Journal):
    """Dead letters, then attempts, then parked deliveries: the record that finishes a delivery is sent when its outcome
    is in the log, so a failure in between repeats a push, and loses no delivery."""

    def __init__(
        self,
        attempts: AttemptsLog,
        dead: DeadLetterLog,
        parking: ParkingLog,
        pulled: DurableWriter,
        is_displaced: Callable[[Delivery], bool],
    ) -> None:
        """For `is_displaced` see `ParkedStore`."""
        super().__init__(attempts, dead, parking, _SETTLE_S, [pulled])
        self._pulled = pulled
        self._later: list[Callable[[], None]] = []
        self.gone: set[str] = set()
        """Subscriptions to end: their receivers answered 410."""
        self.suspended: dict[str, int] = {}
        """Subscriptions to suspend, with the time since which their endpoints have failed."""
        self._is_displaced = is_displaced

    @property
    def dirty(self) -> bool:
        """Whether records are not yet in the logs. Each is followed by the tries or the end of its delivery."""
        return bool(self._later or self.gone or self.suspended)

    def put(self, pull_point: str, message: StoredMessage) -> None:
        key, value = pull.encode(pull_point, message)
        self._pulled.send(0, value, key)  # the log has one partition

    def park(
        self, delivery: Delivery, notification: Notification, tries: Tries, attempt: Attempt, in_turn: bool = False
    ) -> None:
        """Park a delivery again: the log has its message, so only its tries are written."""
        self.record(attempt)
        self.tried(delivery, tries)

    def tried(self, delivery: Delivery, tries: Tries) -> None:
        everywhere = self._is_displaced(delivery)
        self._later.append(lambda: self._parking.tried(delivery, tries, everywhere))

    def finished(self, delivery: Delivery, tried: bool) -> None:
        """A delivery, which the store still has, is finished; `tried`: it was attempted."""
        everywhere = self._is_displaced(delivery)
        self._later.append(lambda: self._parking.finished(delivery, tried, everywhere))

    def catch_up(self) -> None:
        super().catch_up()
        later, self._later = self._later, []
        for write in later:
            write()
        self._parking.settle(self._timeout_s)


# Deliveries ended without a push before the next lane has its turn, and before outcomes are written.
ENDED_AT_ONCE = 500

# Later than every acceptance.
_EVER_MS = 1 << 62

# The outcome of a push, at this time, and whether it was a probe.
Ended = Callable[[Push, Outcome, int, bool], None]


class SubscriptionStops:
    """Ends subscriptions after a 410 of their receivers, and suspends those whose endpoints have failed for longer than
    `after_ms`. Used by one thread."""

    def __init__(
        self,
        subscriptions: RoutingView,
        lanes: RetryLanes,
        endpoints: Endpoints,
        journal: RedeliveryJournal,
        after_ms: int,
        publish: EventListener,
    ) -> None:
        self._subscriptions = subscriptions
        self._lanes = lanes
        self._endpoints = endpoints
        self._journal = journal
        self._after_ms = after_ms
        self._publish = publish
        # Suspended, and not yet written to the control log.
        self._unwritten: set[str] = set()
        self.gone: set[str] = set()
        """Subscriptions whose receivers answered 410, until the next record about them is read."""

    def receiver_gone(self, name: str, endpoint: str, now_ms: int) -> None:
        self._journal.gone.add(name)
        self.gone.add(name)
        self._publish(OperatorEvent("subscription-gone", now_ms, endpoint, name))

    def push_failed(self, name: str, endpoint: str, now_ms: int) -> None:
        """Suspend a subscription, and all lanes that wait for the same endpoint, when it has failed for too long. Then
        the endpoint's time starts again, since a resume may happen while the job is down."""
        health = self._endpoints.health.get(endpoint)
        since_ms = health.failing_since_ms
        if health.breaker == "closed" or not since_ms or now_ms - since_ms < self._after_ms:
            return
        for each in {name, *self._endpoints.blocked(endpoint)}:
            lane = self._lanes.get(each)
            if lane is None or not lane.suspended:
                if lane is not None:
                    lane.suspended = True
                self._unwritten.add(each)
                self._journal.suspended[each] = since_ms
                self._publish(OperatorEvent("subscription-suspended", now_ms, endpoint, each))
        self._endpoints.health.resume(endpoint, now_ms)

    def take_written(self) -> set[str]:
        """All suspensions are written; returns the lanes of those written since the last call."""
        written, self._unwritten = self._unwritten, set()
        return written

    def holds(self, lane: RetryLane, now_ms: int) -> bool:
        suspended = lane.name in self._unwritten or self._subscriptions.suspended(lane.name)
        if lane.suspended and not suspended:
            # After a resume the endpoint is probed at once.
            self._endpoints.health.resume(lane.endpoint, now_ms)
        lane.suspended = suspended
        return suspended


class RedeliveryOutcomes:
    """Writes the outcome of a push, or the decision not to push, for each delivery: rows to the journal, tries and ends
    to the store and the journal. Used by one thread."""

    def __init__(
        self, store: ParkedStore, journal: RedeliveryJournal, chance: Callable[[], float], alarm: DeadLetterAlarm
    ) -> None:
        self._store = store
        self._journal = journal
        self._chance = chance
        self.alarm = alarm
        self.ended = 0
        """The number of deliveries that were read to end without a push."""
        self.unanswered: Callable[[Notification, Attempt], None] = lambda _, __: None
        """Called when a request has ended without an answer to a client that waits for one."""

    def settle(
        self,
        subscription: Subscription,
        policy: RetryPolicy,
        taken: Sequence[WaitingDelivery],
        push: Push,
        outcome: Outcome,
        now_ms: int,
        probe: bool,
    ) -> bool:
        """Settle a push; returns whether the receiver has ended the subscription with it. `probe`: as in
        `settlement.settle`."""
        gone = False
        for waiting in taken:
            decision = settle(waiting, push, outcome, policy, now_ms, self._chance(), probe=probe)
            row = attempt(subscription.id, subscription.consumer.address, waiting.notification, decision, push)
            self.write(waiting, decision, row)
            gone = gone or row.state == "cancelled"
        return gone

    def resolve(
        self,
        lane: RetryLane,
        policy: RetryPolicy,
        waiting: WaitingDelivery,
        outcome: Outcome,
        now_ms: int,
        messages: int = 1,
        retry_after_s: float = 0.0,
    ) -> None:
        """The later result of a delivery, or its absence in time; its push had this number of messages."""
        lane.expires_ms = 0  # while a result was awaited, the validity did not end the delivery
        answer = PushResult(0, retry_after_s=retry_after_s)
        push = Push(waiting.tries.awaits, (waiting.notification,) * messages, NO_REQUEST, answer, now_ms)
        decision = settle(waiting, push, outcome, policy, now_ms, self._chance())
        self.write_untried(lane, waiting, decision, now_ms)

    def lost(self, lane: RetryLane, taken: Sequence[WaitingDelivery], now_ms: int) -> None:
        """The worker with the push has ended: its deliveries are due, unless they expire."""
        lane.expires_ms = 0
        for waiting in taken:
            self._store.lost(waiting.delivery, now_ms)

    def cancel(self, lane: RetryLane, now_ms: int) -> bool:
        """End the deliveries of a lane whose subscription has ended; returns whether there may be more."""
        why = failed("ended", "the subscription is over")
        ended = self._store.accepted_before(lane.name, _EVER_MS, ENDED_AT_ONCE, lane.flight)
        for waiting in self._each(ended):
            self.write_untried(lane, waiting, unpushed(waiting, Verdict("cancelled"), why), now_ms)
        return len(ended) == ENDED_AT_ONCE

    def expire(self, lane: RetryLane, policy: RetryPolicy, now_ms: int) -> bool:
        """End the expired deliveries, by lifespan or validity; returns whether there may be more."""
        if lane.expires_ms > now_ms:
            return False
        more, lifespan_ms = False, policy.lifespan_ms
        # One after the other: a delivery that is expired by both is ended once.
        for find, by_ms in ((self._store.valid_until, now_ms), (self._store.accepted_before, now_ms - lifespan_ms)):
            ended = find(lane.name, by_ms, ENDED_AT_ONCE, lane.flight)
            for waiting in self._each(ended):
                decision = expired(waiting, lifespan_ms, "it was not delivered within its lifespan")
                self.write_untried(lane, waiting, decision, now_ms)
            more = more or len(ended) == ENDED_AT_ONCE
        if not more:
            expires_ms = self._store.expires_ms(lane.name, lifespan_ms)
            lane.expires_ms = _EVER_MS if expires_ms is None else expires_ms
        return more

    def drop_excess(self, lane: RetryLane, amounts: Amounts, now_ms: int) -> bool:
        """Drop the oldest untried deliveries while the lane exceeds its limit; returns whether there may be more."""
        oldest = self._store.oldest_untried(lane.name, ENDED_AT_ONCE) if amounts.too_much(lane.name) else []
        for delivery in oldest:
            too_much = amounts.too_much(lane.name)
            if not too_much:
                return False
            if delivery not in lane.flight:
                for waiting in self._each([delivery]):
                    decision = unpushed(waiting, Verdict("dropped"), failed("resources", too_much))
                    self.write_untried(lane, waiting, decision, now_ms)
        return len(oldest) == ENDED_AT_ONCE

    def _each(self, deliveries: Iterable[Delivery]) -> Iterator[WaitingDelivery]:
        """Read one by one: only one message is in memory at a time."""
        for delivery in deliveries:
            waiting = self._store.get(delivery)
            if waiting is not None:
                self.ended += 1
                yield waiting

    def end_unmatched(self, lane: RetryLane, waiting: WaitingDelivery, now_ms: int) -> None:
        """End a delivery that was parked unjudged, and does not match the subscription's conditions."""
        why = failed("skipped", "its conditions do not select it, or exceed their budget")
        self.write_untried(lane, waiting, unpushed(waiting, Verdict("cancelled"), why), now_ms)

    def write_untried(self, lane: RetryLane, waiting: WaitingDelivery, decision: Decision, now_ms: int) -> None:
        self.write(waiting, decision, untried(lane.name, lane.endpoint, waiting.notification, decision, now_ms))

    def write(self, waiting: WaitingDelivery, decision: Decision, row: Attempt) -> bool:
        """Write a decision and its row; returns whether the delivery waits again."""
        delivery, notification = waiting.delivery, waiting.notification
        waits = row.state == "parked"
        if waits and not self._store.tried(delivery, decision.tries):
            return False  # its end is in the log
        if decision.letter and not self._store.has(delivery):
            return False  # an erasure leaves no letter
        self._journal.write(decision, row, notification, lambda _: delivery)
        if waits:
            return True
        # A dead letter of an operator event would cause the next event.
        if decision.letter and not is_system(row.topic):
            self.alarm.died(row.subscription, row.endpoint, row.detail)
        if notification.reply_to is not None and row.state != "delivered":
            self.unanswered(notification, row)
        # An operator's request has a record of tries, too.
        self._journal.finished(delivery, tried=waiting.tries.due_ms > 0)
        self._store.finish(delivery)
        return False


class Pushes:
    """The pushes of lanes and of queues, within the limits of endpoints and hosts. Used by one thread. `wake` gives a
    turn to the lanes, and the servers of queues, whose slot or endpoint is free."""

    def __init__(
        self,
        pusher: Pusher,
        endpoints: Endpoints,
        capacity: InFlightLimiter,
        clock: WatchedClock,
        wake: Callable[[Iterable[str], int], None],
    ) -> None:
        self.pusher = pusher
        self.capacity = capacity
        self.unpushed_bytes = 0
        """Bytes of messages that were read for lanes that wait; a round resets it."""
        self._endpoints = endpoints
        self._clock = clock
        self._wake = wake

    def begin(
        self,
        lane: RetryLane,
        subscription: Subscription,
        taken: Sequence[WaitingDelivery],
        tries: Tries,
        envelope_of: Callable[[Subscription], Envelope],
        ended: Ended,
        sequence: int | None = None,
    ) -> None:
        """Push these deliveries of a lane after these `tries`, to an endpoint that permits it and has a free slot.
        `ended` is called with the outcome: by a later `drive`, or at once if no message could be made. `sequence` as
        for `Envelope.request`."""
        endpoint, now_ms, probe = subscription.consumer.address, self._clock.now_ms(), False
        notifications = [waiting.notification for waiting in taken]
        scopes = scopes_of_push(endpoint, payload_bytes(notifications))

        def before_send(_: Push) -> None:
            nonlocal probe
            probe = self._endpoints.begin_push(endpoint)
            lane.flight.update(waiting.delivery for waiting in taken)
            self.capacity.enter(scopes)

        def finished(push: Push, outcome: Outcome) -> None:
            ended_ms = self._clock.now_ms()
            lane.flight.difference_update(waiting.delivery for waiting in taken)
            self._wake(self.capacity.leave(scopes), ended_ms)
            freed = self._endpoints.push_ended(endpoint, notifications[0].id, outcome, push.result, probe, ended_ms)
            self._wake(freed, ended_ms)
            ended(push, outcome, ended_ms, probe)

        number = tries.number + 1  # of this try
        unmade = self.pusher.begin(
            subscription, notifications, number, now_ms, envelope_of, finished, before_send, sequence
        )
        if unmade is not None:
            ended(*unmade, now_ms, False)

    def must_wait(self, name: str, endpoint: str, taken: Sequence[WaitingDelivery], priority: int = 0) -> bool:
        """Whether no push of these may begin; the lane or server with this name is then woken when it may."""
        size = payload_bytes(each.notification for each in taken)
        waits = self.capacity.wait(name, scopes_of_push(endpoint, size), priority)
        self.unpushed_bytes += size if waits else 0
        return waits

    def pass_on(self, endpoint: str, now_ms: int) -> None:
        """Free the slot reserved for a lane or server that does not use it."""
        self._wake(self.capacity.pass_on((*scopes_of(endpoint), LARGE)), now_ms)
