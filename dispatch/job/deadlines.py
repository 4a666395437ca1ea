"""Deadlines: subscribers are notified when no message has matched for a time, and when one matches again.

Workers report the newest match of subscriptions with a deadline. A silence is reported only after all notifications
accepted before its end are matched, so a late job, or one without workers, reports none. A restart restarts the times.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from arborcast.core.backoff import Backoff
from arborcast.core.eventlog.consumer import LogConsumer
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import Service
from arborcast.core.timer_queue import TimerQueue
from arborcast.core.wall_clock import WatchedClock, time_ms
from arborcast.dispatch.matching.view import RoutingView, SubscriptionListener
from arborcast.dispatch.redelivery.events import EventListener, OperatorEvent
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.topic_model.subscriptions import Subscription

_Kind = Literal["deadline-missed", "deadline-met"]

# Maximum number of topics of a subscription with a deadline per topic.
_MOST_TOPICS = 10_000

# The maximum of all such subscriptions together.
_MOST = 100_000

_CHECK_S = 0.1

# Interval of checks without deadlines.
_IDLE_S = 1.0

_PAUSE_S = 5.0


class DeadlineKey(NamedTuple):
    """Identifies a silence: of a subscription, or of one of its topics if it has a deadline per topic."""

    subscription: str
    topic: str = ""


class _Deadline(NamedTuple):
    """The deadline of a subscription, and the newest match by topic ("" for all of them)."""

    deadline_ms: int
    per_topic: bool
    since_ms: dict[str, int]


class Deadlines:
    """Subscriptions past their deadline. Pure; times are milliseconds since the epoch."""

    def __init__(self) -> None:
        self._watched: dict[str, _Deadline] = {}
        self._turns: TimerQueue[DeadlineKey] = TimerQueue()
        self._missed: set[DeadlineKey] = set()
        self._topics = 0  # of subscriptions with a deadline per topic

    def __len__(self) -> int:
        return len(self._watched)

    def watch(self, subscription: Subscription, since_ms: int) -> None:
        """Add or change a subscription; the time of an unchanged deadline continues."""
        policy = subscription.policy
        if policy.deadline_ms is None:
            self.forget(subscription.id)
            return
        per_topic = policy.deadline_per == "topic"
        known = self._watched.get(subscription.id)
        if known is not None and known[:2] == (policy.deadline_ms, per_topic):
            return
        self.forget(subscription.id)
        self._watched[subscription.id] = _Deadline(policy.deadline_ms, per_topic, {})
        if not per_topic:
            self._restart(DeadlineKey(subscription.id), since_ms)

    def forget(self, subscription: str) -> None:
        """Remove a subscription that has ended, or is paused or suspended."""
        known = self._watched.pop(subscription, None)
        if known is not None and known.per_topic:
            self._topics -= len(known.since_ms)
        for topic in known.since_ms if known is not None else ():
            silence = DeadlineKey(subscription, topic)
            self._turns.cancel(silence)
            self._missed.discard(silence)

    def matched(self, subscription: str, topic: str, accepted_ms: int, now_ms: int) -> DeadlineKey | None:
        """Apply a match; returns the reported silence that it ends. Whether one accepted longer ago than the deadline
        ends it is the result of the next `checked`: by a gateway whose clock is behind, all are."""
        known = self._watched.get(subscription)
        if known is None:
            return None
        silence = DeadlineKey(subscription, topic if known.per_topic else "")
        last_ms = known.since_ms.get(silence.topic)
        if last_ms is None:
            if len(known.since_ms) >= _MOST_TOPICS or self._topics >= _MOST:
                return None
            self._topics += 1
        if last_ms is not None and accepted_ms <= last_ms:
            return None
        self._restart(silence, accepted_ms)
        if silence not in self._missed or accepted_ms + known.deadline_ms <= now_ms:
            return None
        self._missed.remove(silence)
        return silence

    def put_back(self, now_ms: int) -> None:
        """The clock was put back to this time: silences that began later begin now."""
        for name, known in self._watched.items():
            for topic, since_ms in known.since_ms.items():
                if since_ms > now_ms:
                    self._restart(DeadlineKey(name, topic), now_ms)

    def over(self, now_ms: int) -> Iterator[DeadlineKey]:
        """The silences past their deadline, each once until `checked` is called for it."""
        while (silence := self._turns.pop(now_ms)) is not None:
            yield silence

    def checked(self, silence: DeadlineKey, at_ms: int) -> tuple[_Kind, int] | None:
        """Check a deadline, after all matches of messages accepted until `at_ms`; returns the notice, with the time of
        the last match, if there is one to send."""
        known = self._watched.get(silence.subscription)
        since_ms = None if known is None else known.since_ms.get(silence.topic)
        if known is None or since_ms is None:
            return None
        before, now = silence in self._missed, since_ms + known.deadline_ms <= at_ms
        if not now:
            self._turns.set(silence, since_ms + known.deadline_ms)
        if before == now:
            return None
        if now:
            self._missed.add(silence)
            return "deadline-missed", since_ms
        self._missed.remove(silence)
        return "deadline-met", since_ms

    def _restart(self, silence: DeadlineKey, at_ms: int) -> None:
        known = self._watched[silence.subscription]
        known.since_ms[silence.topic] = at_ms
        self._turns.set(silence, at_ms + known.deadline_ms)


class _PendingChecks:
    """Silences that are checked once everything before the ends of the log at a time is matched; later ones have higher
    ends."""

    def __init__(self) -> None:
        self._checks: deque[tuple[int, Mapping[int, int], Collection[DeadlineKey]]] = deque()
        self._silences: set[DeadlineKey] = set()

    def __bool__(self) -> bool:
        return bool(self._checks)

    def __contains__(self, silence: DeadlineKey) -> bool:
        return silence in self._silences

    def add(self, at_ms: int, ends: Mapping[int, int], silences: Collection[DeadlineKey]) -> None:
        self._checks.append((at_ms, ends, silences))
        self._silences.update(silences)

    def take(self, positions: Mapping[int, int]) -> Iterator[tuple[DeadlineKey, int]]:
        """Remove and return those before these positions, with the times of their ends."""
        while self._checks:
            at_ms, ends, silences = self._checks[0]
            if any(positions.get(number, 0) < end for number, end in ends.items()):
                return
            self._checks.popleft()
            self._silences.difference_update(silences)
            for silence in silences:
                yield silence, at_ms


class _NewestMatches:
    """The newest matches since the last `take`, by subscription and topic: while notices are published, thousands of
    reports may arrive. Thread-safe."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def add(self, matched: Mapping[tuple[str, str], int]) -> None:
        with self._lock:
            for key, at_ms in matched.items():
                self._newest[key] = max(self._newest.get(key, at_ms), at_ms)

    def take(self) -> dict[tuple[str, str], int]:
        with self._lock:
            taken, self._newest = self._newest, {}
        return taken


class DeadlineWatch(SubscriptionListener):
    """Checks deadlines in a thread. `positions` are the offsets of the `notifications` log before which everything is
    matched and reported, by partition; `follows`: another thread reads the control log as it grows."""

    def __init__(
        self,
        kafka: KafkaSettings,
        view: RoutingView,
        positions: Callable[[], Mapping[int, int]],
        follows: Callable[[], bool],
        publish: EventListener,
    ) -> None:
        self._kafka = kafka
        self._view = view
        self._positions = positions
        self._follows = follows
        self._publish = publish
        self._deadlines = Deadlines()
        self._clock = WatchedClock(lambda: time_ms())
        self._known: set[str] = set()  # subscriptions with a deadline, active or not
        self._changed: deque[str] = deque()
        self._reports = _NewestMatches()
        self._over: dict[DeadlineKey, None] = {}  # silences whose log ends are to be queried
        self._pending = _PendingChecks()
        self._log = LogConsumer(kafka, "notifications")
        self._caught_up = 0.0  # when the control log was last read here, by the monotonic clock
        self._service = Service(
            "deadlines", self._step, delay_s=_IDLE_S, backoff=Backoff(_PAUSE_S, _PAUSE_S), close=self._log.close
        )
        view.listen(self)

    def start(self) -> None:
        """Start; every silence begins now."""
        self._service.start()

    def stop(self) -> None:
        self._service.stop(2 * _IDLE_S)

    def apply(self, reports: Iterable[PartitionReport]) -> None:
        """Apply the newest matches. Thread-safe."""
        for report in reports:
            self._reports.add(report.matched)

    def subscription_changed(self, subscription_id: str) -> None:
        subscription = self._view.subscription(subscription_id)
        has_deadline = subscription is not None and subscription.policy.deadline_ms is not None
        if has_deadline or subscription_id in self._known:
            self._known.add(subscription_id)
            self._changed.append(subscription_id)

    def _step(self) -> float:
        try:
            self._watch()
        except BaseException:
            self._log.close()
            raise
        return _CHECK_S if self._deadlines else _IDLE_S

    def _watch(self) -> None:
        if not self._follows() and time.monotonic() - self._caught_up > _IDLE_S:
            self._caught_up = time.monotonic()
            self._view.catch_up(self._kafka.request_timeout_s)
        if self._clock.put_back_ms():
            self._deadlines.put_back(time_ms())
        self._apply_changes()
        self._apply_reports()
        now_ms = self._clock.now_ms()
        self._over.update(dict.fromkeys(each for each in self._deadlines.over(now_ms) if each not in self._pending))
        if self._over:
            self._pending.add(now_ms, self._log.ends(), self._over)
            self._over = {}
        if self._pending:
            self._check(now_ms)

    def _apply_changes(self) -> None:
        while self._changed:
            name = self._changed.popleft()
            subscription = self._view.subscription(name)
            if subscription is None or subscription.policy.deadline_ms is None:
                self._known.discard(name)
                self._deadlines.forget(name)
            elif subscription.paused or self._view.suspended(name):
                self._deadlines.forget(name)
            else:
                self._deadlines.watch(subscription, time_ms())

    def _apply_reports(self) -> None:
        now_ms = time_ms()
        for (subscription, topic), at_ms in self._reports.take().items():
            accepted_ms = min(at_ms, now_ms)  # the clock of a gateway may be ahead
            ended = self._deadlines.matched(subscription, topic, accepted_ms, now_ms)
            if ended is not None:
                self._publish_event("deadline-met", ended, accepted_ms)

    def _check(self, now_ms: int) -> None:
        """Report the silences past their deadline for which everything accepted before is matched."""
        at = self._positions()
        # Matches are reported before, or with, the position: apply them now.
        self._apply_reports()
        for silence, at_ms in self._pending.take(at):
            subscription = self._view.subscription(silence.subscription)
            if subscription is None or subscription.expired(now_ms):
                self._deadlines.forget(silence.subscription)
            elif (notice := self._deadlines.checked(silence, at_ms)) is not None:
                kind, since_ms = notice
                self._publish_event(kind, silence, since_ms)

    def _publish_event(self, kind: _Kind, silence: DeadlineKey, since_ms: int) -> None:
        self._publish(
            OperatorEvent(kind, time_ms(), subscription=silence.subscription, topic=silence.topic, since_ms=since_ms)
        )
