"""From a notification to the lanes of its recipients, in both modes."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from arborcast.core.recent import BoundedDict, Recent
from arborcast.dispatch.hot.batch_outcomes import NEWER, BatchOutcomes, cancelled, waits
from arborcast.dispatch.hot.hold_buffer import HoldBuffer
from arborcast.dispatch.hot.intervals import Intervals
from arborcast.dispatch.hot.lanes import Lanes
from arborcast.dispatch.hot.recovered import NOTHING, RecoveredDeliveries
from arborcast.dispatch.hot.sink_journal import SinkJournal
from arborcast.dispatch.hot.triggers import OwnerRates, Refused, is_retained, published, shares
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.logs.attempts import Matched, erased_by
from arborcast.dispatch.matching.filters import TOO_MUCH, FilterEvaluator
from arborcast.dispatch.settings import TopicRules
from arborcast.topic_model.projections.erasures import covering, scopes_of
from arborcast.topic_model.records.notifications import UNSTAMPED, Notification
from arborcast.topic_model.routing import Found
from arborcast.topic_model.subscriptions import Subscription, Trigger, queue_topic

logger = logging.getLogger(__name__)

# Triggers whose loops were logged by this process in the last hour or two.
_logged: Recent[str, bool] = Recent(256 * 1024, age_s=3_600.0)

_rates = OwnerRates()

HELD = "earlier messages are parked, or the subscription is suspended"

SICK = "its endpoint is degraded"

STRICT = "strict order: each message waits for the one before it"

# A notification for more subscriptions joins their lanes as there is room.
_FAN_OUT = 64

# Notifications of which it is known whether an open erasure covers them: more than have deliveries that join later.
_SEARCHED = 64

QUEUED = "it waits for a server of its queue"


class Exclusions(NamedTuple):
    """Deliveries that workers must not push, as set by the driver: they are parked, or dropped if timely. `held` lanes
    have parked messages that must not be overtaken, with the `parked` log read to the offsets `read`; `degraded`
    endpoints get no first attempts, except timely ones if `on_trial`. Successes of `watched` endpoints are reported.
    Conditions of `unjudged` subscriptions are not evaluated: possible matches are parked. Notifications in the scopes
    `erased`, of erasures that are not done (`Erasures.for_workers`), are not pushed."""

    held: frozenset[str] = frozenset()
    read: Mapping[int, int] = {}
    degraded: frozenset[str] = frozenset()
    watched: frozenset[str] = frozenset()
    unjudged: frozenset[str] = frozenset()
    on_trial: frozenset[str] = frozenset()
    erased: frozenset[str] = frozenset()

    def reason(self, subscription: Subscription, held: Container[str]) -> str:
        """Why a message for this subscription is parked rather than pushed; empty if it is pushed. `held` are the lanes
        that the worker holds."""
        if subscription.paused:
            return "the subscription is paused"
        if subscription.policy.strict and not subscription.in_turn:
            return STRICT
        if subscription.id in held:
            return HELD
        return SICK if self.is_sick(subscription) else ""

    def is_sick(self, subscription: Subscription) -> bool:
        """Whether its endpoint is not pushed to. A timely subscription has no parked message that could show the
        recovery of its endpoint, so it is pushed to during trials."""
        endpoint = subscription.consumer.address
        if endpoint not in self.degraded:
            return False
        return not (subscription.policy.reliability == "timely" and endpoint in self.on_trial)


def _keeps_order_by_topic(subscription: Subscription) -> bool:
    """Whether a subscription is pushed to, and may get a later notification of another topic first."""
    return subscription.pushed and subscription.peer is None and not subscription.policy.strict


@dataclass
class Intake:
    """Matches notifications. `recovered` are deliveries of earlier runs; `intervals` has the last passed messages.
    `matched` collects the number of recipients of each notification, by partition. `control` is the position in the
    control log, with which publications of triggers are stamped, by the `rules`. `buffer` is the hold buffer of real
    time."""

    journal: SinkJournal
    lanes: Lanes
    outcomes: BatchOutcomes
    evaluator: FilterEvaluator
    exclusions: Exclusions
    held: Container[str] = frozenset()
    recovered: RecoveredDeliveries = NOTHING
    intervals: Intervals = field(default_factory=Intervals)
    matched: defaultdict[int, list[Matched]] = field(default_factory=lambda: defaultdict(list))
    rules: TopicRules = field(default_factory=TopicRules)
    control: int = UNSTAMPED
    now: Callable[[], float] = time.time
    buffer: HoldBuffer = field(default_factory=lambda: HoldBuffer(room=0))
    clock: Callable[[], float] = time.monotonic
    shared: tuple[Notification | None, Mapping[str, int]] = (None, {})
    searched: BoundedDict[tuple[frozenset[str], str], str] = field(default_factory=lambda: BoundedDict(_SEARCHED))

    def take(self, received: Received, found: Found) -> int:
        """Match a notification; returns its number of recipients. A subscription that has ended since gets a row
        without a push."""
        notification = received.notification
        ended = {subscription.id for subscription in found.ended}
        recipients = self.evaluator.recipients(notification, [*found.existing, *found.ended])
        passed: list[str] = []
        thinned = 0
        unjudged: Received | None = None
        fans_out = len(recipients) > _FAN_OUT or notification.topic in self.lanes.fan_outs
        later: list[Subscription] = []
        erased = self.exclusions.erased and self._erased(notification)
        for subscription, is_match in recipients:
            policy = subscription.policy
            if policy.deadline_ms is not None and not notification.only:
                # Clocks of gateways differ, so the last in the log is not always the newest.
                matched, key = self.outcomes.report.matched, (subscription.id, notification.topic)
                matched[key] = max(matched.get(key, 0), notification.accepted_ms)
            if policy.interval_ms and not notification.only:
                if not self.intervals.passes(
                    subscription, received.partition, notification.topic, notification.accepted_ms, is_match
                ):
                    thinned += 1
                    continue
                if is_match:
                    passed.append(subscription.id)
            if self.recovered.settled and (subscription.id, notification.id) in self.recovered.settled:
                continue
            if self.recovered.unwritten and (subscription.id, notification.id) in self.recovered.unwritten:
                self.outcomes.was_parked(subscription, received)
            elif erased:
                self.outcomes.write_unpushed(subscription, (received,), cancelled(erased_by(erased), "erased"))
            elif (
                self.recovered.newest
                and policy.drops(notification.reliable)
                and self.recovered.has_newer(subscription.id, notification.topic, received.partition, received.offset)
            ):
                self.outcomes.write_unpushed(subscription, (received,), waits(NEWER))
            elif subscription.id in ended:
                self.outcomes.write_unpushed(subscription, (received,), cancelled("it ended before this was matched"))
            elif is_match:
                if fans_out and subscription.trigger is None and _keeps_order_by_topic(subscription):
                    later.append(subscription)
                else:
                    self._queue(subscription, received, recipients)
            else:
                unjudged = unjudged or received._replace(
                    notification=msgspec.structs.replace(notification, unjudged=True)
                )
                self._keep_unjudged(subscription, unjudged)
        self.lanes.fan_outs.add(received, reversed(later))
        count = len(recipients) - thinned
        self.matched[received.partition].append(
            Matched(
                notification.id,
                notification.topic,
                notification.accepted_ms,
                received.offset,
                count,
                tuple(passed),
                thinned,
                bool(notification.cause),
                notification.priority,
            )
        )
        return count

    def fill(self, most: int) -> None:
        """Add this number of deliveries, of notifications with many recipients, to their lanes."""
        fan_outs = self.lanes.fan_outs
        for _ in range(min(most, fan_outs.size)):
            subscription, received = fan_outs.take()
            notification = received.notification
            drops = subscription.policy.drops(notification.reliable) and self.outcomes.is_stale(notification)
            if self.exclusions.erased and (erased := self._erased(notification)):
                self.outcomes.write_unpushed(subscription, (received,), cancelled(erased_by(erased), "erased"))
            elif drops and fan_outs.has_newer(notification.topic, subscription.id):
                self.outcomes.write_unpushed(subscription, (received,), waits(NEWER))
            else:
                self._queue(subscription, received, ())

    def write_evaluations(self) -> None:
        """Write the numbers of recipients. They precede the outcomes."""
        report = self.outcomes.report
        for partition, counts in self.matched.items():
            self.journal.matched(partition, self.control, counts)
            report.notifications += len(counts)
            report.deliveries += sum(each.subscriptions for each in counts)
            report.thinned += sum(each.thinned for each in counts)
        self.matched.clear()
        report.costly |= self.evaluator.take_costly()
        self.journal.write_due()

    def _erased(self, notification: Notification) -> str:
        """The id of an open erasure that covers a notification; empty for none. It is computed once, not for each of
        many recipients: a search in megabytes."""
        key = self.exclusions.erased, notification.id
        if key not in self.searched:
            self.searched[key] = covering(scopes_of(key[0]), notification)
        return self.searched[key]

    def _keep_unjudged(self, subscription: Subscription, received: Received) -> None:
        """Park a message whose conditions were not evaluated, until the subscription is resumed."""
        if not subscription.pushed:
            # Pull points and triggers get evaluated matches only.
            self.outcomes.write_unpushed(subscription, (received,), cancelled(TOO_MUCH, "skipped"))
        elif not self.outcomes.expired(subscription, received):
            self.outcomes.write_unpushed(subscription, (received,), waits(TOO_MUCH))

    def _queue(
        self, subscription: Subscription, received: Received, recipients: Sequence[tuple[Subscription, bool]]
    ) -> None:
        if received.notification.queue and queue_topic(subscription.id) is not None:
            # Of any age: the client that waits for the answer must get a fault.
            self.outcomes.write_unpushed(subscription, (received,), waits(QUEUED))
            return
        if self.outcomes.expired(subscription, received):
            return
        if subscription.pull_point:
            self.journal.store(subscription, received.notification)
        elif subscription.trigger is not None:
            self._publish(subscription, subscription.trigger, received, recipients)
        elif why := self.exclusions.reason(subscription, self.held):
            # Pushes in flight and queued messages come first.
            if self.lanes.is_busy(subscription.id):
                self.lanes.add(received, subscription)
                self.lanes.defer(subscription.id, waits(why))
                return
            before = self.lanes.drain(subscription.id)
            urgent = received.notification.priority > 0
            if not before and not urgent and self._is_buffered(subscription, received, why):
                return
            # Deferred messages are not urgent and delay none: order applies per priority.
            if before or not urgent:
                before = [*self.buffer.drain(subscription.id), *before]
            before.append(received)
            self.outcomes.write_unpushed(subscription, before, waits(why))
        else:
            if self.buffer.size:  # the lane may be free since the last release
                for earlier in self.buffer.drain(subscription.id):
                    self.lanes.add(earlier, subscription)
            self.lanes.add(received, subscription)

    def _is_buffered(self, subscription: Subscription, received: Received, why: str) -> bool:
        policy = subscription.policy
        may_be = why == HELD and not (policy.strict or policy.reliability == "timely")
        return may_be and self.buffer.add(subscription, received, self.clock())

    def _publish(
        self,
        subscription: Subscription,
        trigger: Trigger,
        received: Received,
        recipients: Sequence[tuple[Subscription, bool]],
    ) -> None:
        """Let a trigger publish, or write the reason against it. All matching triggers share the remaining number of
        publications of the notification."""
        cause, per_minute = received.notification, self.rules.per_minute
        if self.shared[0] is not cause:
            found = (each.id for each, is_match in recipients if is_match and each.trigger is not None)
            self.shared = cause, shares(cause.triggers_left, found)
        left = self.shared[1].get(subscription.id)
        made = published(subscription.id, trigger, cause, self.control, int(self.now() * 1000), self.rules, left)
        if isinstance(made, Notification):
            if per_minute and not _rates.may_publish(subscription.owner, per_minute, self.clock()):
                made = Refused("skipped", f"its owner's triggers publish more than {per_minute} times a minute")
            elif self.journal.publish(cause, subscription, made, is_retained(trigger, self.rules)):
                return
            else:
                made = Refused("skipped", "kafka.max_record_bytes has no room for it")
        if made.error == "hops" and not _logged.get(subscription.id):
            _logged.put(subscription.id, True, len(subscription.id))
            logger.warning("the trigger %s publishes nothing because of %s: %s", trigger.name, cause.id, made.detail)
        self.outcomes.write_unpushed(subscription, (received,), cancelled(made.detail, made.error))
