"""From a notification to the lanes of those who want it. Both gears take their notifications in here."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from arborcast.dispatch.hot.batch_outcomes import NEWER, BatchOutcomes, cancelled, waits
from arborcast.dispatch.hot.hold_buffer import HoldBuffer
from arborcast.dispatch.hot.intervals import Intervals
from arborcast.dispatch.hot.lanes import Lanes
from arborcast.dispatch.hot.recovered import NOTHING, RecoveredDeliveries
from arborcast.dispatch.hot.sink_journal import SinkJournal
from arborcast.dispatch.hot.triggers import OwnerRates, Refused, is_kept, published, shares
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.logs.attempts import Matched
from arborcast.dispatch.matching.filters import TOO_MUCH, Judge
from arborcast.dispatch.settings import TopicRules
from arborcast.topic_model.records.notifications import UNSTAMPED, Notification
from arborcast.topic_model.routing import Found
from arborcast.topic_model.subscriptions import Subscription, Trigger, queue_topic

logger = logging.getLogger(__name__)

# Triggers of which this process has said that too many are in a row.
_told: set[str] = set()

_rates = OwnerRates()

HELD = "earlier messages are parked, or the subscription is suspended"

SICK = "its endpoint is sick"

# A notification for more subscriptions joins their lanes as there is room.
_FAN_OUT = 64

QUEUED = "it waits for a server of its queue"


class Exclusions(NamedTuple):
    """What the driver excludes from pushes; it is parked, or dropped where it is timely: for `held` subscriptions,
    which have something parked that must not be overtaken, with the `parked` log read to the offsets `read`; and for
    `degraded` endpoints. To those of them that are `on_trial` timely subscriptions are pushed to all the same. Of
    `watched` endpoints successes are reported. The conditions of those that are `unjudged` are not asked: what they
    might want is parked as it is."""

    held: frozenset[str] = frozenset()
    read: Mapping[int, int] = {}
    degraded: frozenset[str] = frozenset()
    watched: frozenset[str] = frozenset()
    unjudged: frozenset[str] = frozenset()
    on_trial: frozenset[str] = frozenset()

    def reason(self, subscription: Subscription, held: Container[str]) -> str:
        """Why a message for this subscription is parked rather than pushed; empty when it is pushed. `held` are the
        lanes that are held in the worker."""
        if subscription.paused:
            return "the subscription is paused"
        if subscription.policy.strict and not subscription.in_turn:
            return "strict order: each message waits for the one before it"
        if subscription.id in held:
            return HELD
        return SICK if self.is_sick(subscription) else ""

    def is_sick(self, subscription: Subscription) -> bool:
        """Whether its endpoint is not pushed to. For a timely subscription nothing waits that would show that the
        endpoint is well again, so it is tried now and then."""
        endpoint = subscription.consumer.address
        if endpoint not in self.degraded:
            return False
        return not (subscription.policy.reliability == "timely" and endpoint in self.on_trial)


def _keeps_order_by_topic(subscription: Subscription) -> bool:
    """Whether it is pushed to, and may get a later notification on another topic first."""
    return subscription.pushed and subscription.peer is None and not subscription.policy.strict


@dataclass
class Intake:
    """`earlier` is what an earlier run came to; `intervals` know what has passed before. `matched` gathers, by
    partition, how many each notification was for. `control` is how far the control log was read; what triggers publish
    is stamped with it, and is by the `rules`. `kept` has room where no batch ends, see there."""

    journal: SinkJournal
    lanes: Lanes
    outcomes: BatchOutcomes
    judge: Judge
    exclusions: Exclusions
    held: Container[str] = frozenset()
    earlier: RecoveredDeliveries = NOTHING
    intervals: Intervals = field(default_factory=Intervals)
    matched: defaultdict[int, list[Matched]] = field(default_factory=lambda: defaultdict(list))
    rules: TopicRules = field(default_factory=TopicRules)
    control: int = UNSTAMPED
    now: Callable[[], float] = time.time
    kept: HoldBuffer = field(default_factory=lambda: HoldBuffer(room=0))
    clock: Callable[[], float] = time.monotonic
    shared: tuple[Notification | None, Mapping[str, int]] = (None, {})

    def take(self, received: Received, found: Found) -> int:
        """Take in a notification for those whom it belongs to; how many want it. Who has ended since it was accepted
        gets nothing any more, and a row says so."""
        notification = received.notification
        ended = {subscription.id for subscription in found.ended}
        wanted = self.judge.wanted(notification, [*found.there, *found.ended])
        passed: list[str] = []
        thinned = 0
        unjudged: Received | None = None
        fans_out = len(wanted) > _FAN_OUT or notification.topic in self.lanes.fan_outs
        later: list[Subscription] = []
        for subscription, asked in wanted:
            policy = subscription.policy
            if policy.deadline_ms is not None and not notification.only:
                lane, last_ms = (subscription.id, notification.topic), self.outcomes.report.matched
                last_ms[lane] = max(last_ms.get(lane, 0), notification.accepted_ms)
            if policy.interval_ms and not notification.only:
                if not self.intervals.passes(
                    subscription, received.partition, notification.topic, notification.accepted_ms, asked
                ):
                    thinned += 1
                    continue
                if asked:
                    passed.append(subscription.id)
            if self.earlier.settled and (subscription.id, notification.id) in self.earlier.settled:
                continue
            if self.earlier.unwritten and (subscription.id, notification.id) in self.earlier.unwritten:
                self.outcomes.was_parked(subscription, received)
            elif (
                self.earlier.newest
                and policy.drops(notification.reliable)
                and self.earlier.has_newer(subscription.id, notification.topic, received.partition, received.offset)
            ):
                self.outcomes.put_off(subscription, (received,), waits(NEWER))
            elif subscription.id in ended:
                self.outcomes.put_off(subscription, (received,), cancelled("it ended before this was matched"))
            elif asked:
                if fans_out and subscription.trigger is None and _keeps_order_by_topic(subscription):
                    later.append(subscription)
                else:
                    self._hand_over(subscription, received, wanted)
            else:
                unjudged = unjudged or received._replace(
                    notification=msgspec.structs.replace(notification, unjudged=True)
                )
                self._keep_unjudged(subscription, unjudged)
        self.lanes.fan_outs.add(received, reversed(later))
        count = len(wanted) - thinned
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
            )
        )
        return count

    def fill(self, most: int) -> None:
        """Have so many deliveries of notifications for many subscriptions join their lanes."""
        fan_outs = self.lanes.fan_outs
        for _ in range(min(most, fan_outs.size)):
            subscription, received = fan_outs.take()
            notification = received.notification
            drops = subscription.policy.drops(notification.reliable) and self.outcomes.is_stale(notification)
            if drops and fan_outs.has_newer(notification.topic, subscription.id):
                self.outcomes.put_off(subscription, (received,), waits(NEWER))
            else:
                self._hand_over(subscription, received, ())

    def tell_matched(self) -> None:
        """Write down how many subscriptions each notification was for, which comes before what became of it."""
        report = self.outcomes.report
        for partition, counts in self.matched.items():
            self.journal.matched(partition, self.control, counts)
            report.notifications += len(counts)
            report.deliveries += sum(each.subscriptions for each in counts)
            report.thinned += sum(each.thinned for each in counts)
        self.matched.clear()
        report.costly |= self.judge.take_costly()
        self.outcomes.write_due()

    def _keep_unjudged(self, subscription: Subscription, received: Received) -> None:
        """Its conditions were not evaluated: it waits until the subscription is resumed."""
        if not subscription.pushed:
            # A pull point holds what may be fetched now, and nothing that is still to be judged; nor is such published.
            self.outcomes.put_off(subscription, (received,), cancelled(TOO_MUCH, "skipped"))
        elif not self.outcomes.expired(subscription, received):
            self.outcomes.put_off(subscription, (received,), waits(TOO_MUCH))

    def _hand_over(
        self, subscription: Subscription, received: Received, wanted: Sequence[tuple[Subscription, bool]]
    ) -> None:
        if received.notification.queue and queue_topic(subscription.id) is not None:
            # However old it is: whoever waits for an answer has to hear of it.
            self.outcomes.put_off(subscription, (received,), waits(QUEUED))
            return
        if self.outcomes.expired(subscription, received):
            return
        if subscription.pull_point:
            self.journal.store(subscription, received.notification)
        elif subscription.trigger is not None:
            self._publish(subscription, subscription.trigger, received, wanted)
        elif why := self.exclusions.reason(subscription, self.held):
            # What is under way, or queued, comes first, and would be overtaken.
            if self.lanes.is_busy(subscription.id):
                self.lanes.add(received, subscription)
                self.lanes.defer(subscription.id, waits(why))
                return
            before = self.lanes.drain(subscription.id)
            urgent = received.notification.priority > 0
            if not before and not urgent and self._is_kept(subscription, received, why):
                return
            # What is kept is not urgent, and is in nobody's way: order holds for each priority.
            if before or not urgent:
                before = [*self.kept.drain(subscription.id), *before]
            before.append(received)
            self.outcomes.put_off(subscription, before, waits(why))
        else:
            self.lanes.add(received, subscription)

    def _is_kept(self, subscription: Subscription, received: Received, why: str) -> bool:
        policy = subscription.policy
        may_be = why == HELD and not (policy.strict or policy.reliability == "timely")
        return may_be and self.kept.keep(subscription, received, self.clock())

    def _publish(
        self,
        subscription: Subscription,
        trigger: Trigger,
        received: Received,
        wanted: Sequence[tuple[Subscription, bool]],
    ) -> None:
        """Have a trigger publish, or say why it does not. Of all that want the notification each trigger has a share of
        what may be published because of it."""
        cause, per_minute = received.notification, self.rules.per_minute
        if self.shared[0] is not cause:
            found = (each.id for each, asked in wanted if asked and each.trigger is not None)
            self.shared = cause, shares(cause.triggers_left, found)
        left = self.shared[1].get(subscription.id)
        made = published(subscription.id, trigger, cause, self.control, int(self.now() * 1000), self.rules, left)
        counted = per_minute and not isinstance(made, Refused)
        if counted and not _rates.may_publish(subscription.owner, per_minute, self.clock()):
            made = Refused("skipped", f"its owner's triggers publish more than {per_minute} times a minute")
        if not isinstance(made, Refused):
            if self.journal.publish(cause, subscription, made, is_kept(trigger, self.rules)):
                return
            made = Refused("skipped", "kafka.max_record_bytes has no room for it")
        if made.error == "hops" and subscription.id not in _told:
            _told.add(subscription.id)
            logger.warning("the trigger %s publishes nothing because of %s: %s", trigger.name, cause.id, made.detail)
        self.outcomes.put_off(subscription, (received,), cancelled(made.detail, made.error))
