"""Settles the deliveries of a task after their push: rows, parking, dead letters, signs of endpoint health.

A batch waits for no receiver. An undelivered message is parked; if the next one would probably fail, too, all messages
behind it in its lane are parked untried, so that none overtakes. Timely messages are dropped.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from arborcast.core.recent import BoundedDict
from arborcast.dispatch.delivery.capacity import scopes_of
from arborcast.dispatch.delivery.health import Sign, quick_s, sign_of
from arborcast.dispatch.delivery.journal import Journal
from arborcast.dispatch.delivery.outcomes import Outcome, failed
from arborcast.dispatch.delivery.settlement import (
    Decision,
    Deferral,
    at_once,
    attempt,
    expired,
    settle,
    unpushed,
    untried,
)
from arborcast.dispatch.delivery.verdict import RESULT_TRANSIT_MS, Push, Verdict, lifespan_ms, policy_of
from arborcast.dispatch.hot.lanes import Lane
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.logs.attempts import Attempt, ErrorClass
from arborcast.dispatch.logs.parked import UNANSWERED_PUSH, Tries
from arborcast.dispatch.redelivery.events import NewLetters
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.results import Promise, Result, State
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import is_system

# A host is unreachable after this many of its endpoints did not answer, and none did.
_SILENT_ENDPOINTS = 4

NEWER = "a newer message of its topic is pushed instead"

WORKER_ENDED = "its worker was ended when it had parked this"

UNANSWERED = failed("waiting", "no answer yet: the push is in progress")
"""The outcome of a push whose lane does not wait for it any longer."""

# Longer than any lifespan.
_NEVER_MS = 1 << 62

# Lanes with known failures: in real time a task runs for months, and gets no notice of ended subscriptions.
_LANES = 50_000

# Added to the time of the answer to a push in parts, so that not each part needs a record.
_PARTS_MS = 5_000

# Retry policies in the cache: subscriptions have few different ones.
_POLICIES = 1_024


def waits(detail: str) -> Deferral:
    """Deferral until the lane is free."""
    return Deferral(Verdict("parked"), failed("waiting", detail))


def cancelled(detail: str, error: ErrorClass = "ended") -> Deferral:
    """Deferral without a later attempt, mostly because the subscription has ended."""
    return Deferral(Verdict("cancelled"), failed(error, detail))


class BatchOutcomes:
    """The outcomes of one partition. `report` is for the driver."""

    def __init__(
        self,
        journal: Journal,
        push: PushSettings,
        retry: RetrySettings,
        watched: frozenset[str] = frozenset(),
        now: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.report = PartitionReport()
        self.journal = journal
        self._answer_ms = int(push.total_timeout_s * 1000) + RESULT_TRANSIT_MS
        self._retry = retry
        self._quick_s = quick_s(retry)
        self.watched = watched
        self._now = now
        self._chance = chance
        self._policy_of = lru_cache(_POLICIES)(lambda policy, link: policy_of(policy, retry, link=link))
        self._failures: BoundedDict[str, int] = BoundedDict(_LANES)  # in a row, by lane
        self._answer_by: dict[str, int] = {}  # of unanswered pushes
        self._unreachable: set[str] = set()
        self._unreachable_before: set[str] = set()
        self._silent: dict[str, set[str]] = {}  # endpoints without an answer, by host
        self._answering: set[str] = set()  # hosts

    def settle(
        self, subscription: Subscription, taken: Sequence[Received], push: Push, outcome: Outcome
    ) -> Deferral | None:
        """Write the outcome of the push of messages of a lane; returns the deferral of its other messages, None if it
        continues."""
        cut_off = outcome is UNANSWERED
        if cut_off:
            self._answer_by[push.id] = answer_by_ms = self._now_ms() + self._answer_ms
            push = push._replace(answer_by_ms=answer_by_ms)
        decisions = self._settle(subscription, taken, push, outcome)
        holds = subscription.in_turn and any(decision.waits for decision in decisions)
        endpoint = subscription.consumer.address
        if outcome.taken:
            self._note_success(subscription, endpoint, push, outcome)
            return None
        self._note_failure(endpoint, push, outcome, cut_off)
        if decisions[-1].verdict.state == "cancelled":
            self.report.gone.add(subscription.id)
            return cancelled("its receiver is gone (410)")
        if cut_off:
            return waits("the previous push is in progress")
        if outcome.endpoint_unreachable:
            return waits(f"the push before it ended with {outcome.error!r}")
        failures = self._failures[subscription.id] = self._failures.get(subscription.id, 0) + 1
        if failures >= self._retry.breaker_failures:
            return waits(f"the {failures} pushes before it failed, the last with {outcome.error!r}")
        return waits(f"an earlier notification waits for a retry after {outcome.error!r}") if holds else None

    def answered(self, subscription: Subscription, taken: Sequence[Received], push: Push, outcome: Outcome) -> None:
        """The outcome of a push that was `UNANSWERED` when it was settled: the redelivery continues with it."""
        self._answer_by.pop(push.id, None)
        parked = [each for each in taken if not subscription.policy.drops(each.notification.reliable)]
        if outcome.taken and not outcome.delivered:
            self._settle(subscription, parked, push, outcome)
        elif parked:
            now_ms = self._now_ms()
            promise = Promise(subscription.id, UNANSWERED_PUSH + push.id, push.started_ms, now_ms, len(parked))
            state: State = "refused" if outcome.hopeless else "failed" if outcome.error else "delivered"
            facts = outcome.detail[:500], outcome.error, outcome.status, push.result.retry_after_s
            self.journal.answered(Result(promise, state, now_ms, *facts))

    def still_in_flight(self, subscription: Subscription, taken: Sequence[Received], push: Push) -> None:
        """A part of an unanswered push was accepted, and the next one begins. Without a later time for its answer the
        redelivery would push the message a second time."""
        now_ms = self._now_ms()
        if now_ms + self._answer_ms <= self._answer_by[push.id]:
            return
        self._answer_by[push.id] = by_ms = now_ms + self._answer_ms + _PARTS_MS
        for received in taken:
            if not subscription.policy.drops(received.notification.reliable):
                tries = Tries(1, 0, by_ms, now_ms, UNANSWERED_PUSH + push.id)
                self.journal.still_in_flight(received.delivery(subscription.id), tries)

    def drop_older(self, lane: Lane) -> None:
        """Drop stale timely messages of a lane that have a newer one of their topic behind them."""
        if lane.subscription.policy.reliability == "timely" and self.is_stale(lane.waiting.first().notification):
            self.write_unpushed(lane.subscription, lane.drop_older(), waits(NEWER))

    def is_stale(self, notification: Notification) -> bool:
        """Whether it has waited too long to be pushed before a newer message of its topic."""
        return notification.accepted_ms + self._retry.batch_wait_s * 1000 < self._now_ms()

    def unreachable(self, subscription: Subscription) -> Deferral | None:
        """The deferral for an endpoint that this task has found unreachable; None if it may be tried."""
        endpoint = subscription.consumer.address
        if endpoint in self._unreachable or endpoint in self._unreachable_before:
            return waits("its endpoint did not answer another push of the same batch")
        if self._silent:
            host = scopes_of(endpoint)[1][1]
            if host not in self._answering and len(self._silent.get(host, ())) >= _SILENT_ENDPOINTS:
                return waits("its host did not answer other pushes of the same batch")
        return None

    def take_report(self) -> PartitionReport:
        """The report since the last call."""
        report, self.report = self.report, PartitionReport()
        return report

    def forget(self) -> None:
        """Allow endpoints again that failed before the last call but one: since then the driver excludes them."""
        self._unreachable_before, self._unreachable = self._unreachable, set()
        self._silent.clear()
        self._answering.clear()

    def resume(self, endpoints: Iterable[str]) -> None:
        """Allow pushes to these again."""
        self._unreachable.difference_update(endpoints)
        self._unreachable_before.difference_update(endpoints)

    def write_unpushed(self, subscription: Subscription, waiting: Iterable[Received], what: Deferral) -> None:
        """Write the rows of messages that were not pushed."""
        for received in waiting:
            drops, lifespan = subscription.policy.drops(received.notification.reliable), self._lifespan_ms(subscription)
            self._write_untried(subscription, received, unpushed(received, *what, lifespan, drops=drops))

    def was_parked(self, subscription: Subscription, received: Received) -> None:
        """Write the row of a delivery that another worker had parked when it died."""
        what = waits(WORKER_ENDED)
        self.journal.record(self._untried(subscription, received, unpushed(received, *what)))

    def expired(self, subscription: Subscription, received: Received, otherwise: str = "too old when read") -> bool:
        """Whether a notification is too old for a first attempt; then its row is written. A delivery by appending to a
        log is too old only after its publisher's validity."""
        notification, now_ms = received.notification, self._now_ms()
        lifespan = self._lifespan_ms(subscription)
        if notification.accepted_ms + lifespan > now_ms and not notification.is_over(now_ms):
            return False
        self._write_untried(subscription, received, expired(received, lifespan, otherwise))
        return True

    def in_time(self, subscription: Subscription, taken: Sequence[Received]) -> Sequence[Received]:
        """The messages that may be pushed now. For the others, which expired while they waited, rows are written."""
        return [each for each in taken if not self.expired(subscription, each, "too old at its turn")]

    def _lifespan_ms(self, subscription: Subscription) -> int:
        return lifespan_ms(subscription.policy, self._retry) if subscription.pushed else _NEVER_MS

    def _settle(
        self, subscription: Subscription, taken: Sequence[Received], push: Push, outcome: Outcome
    ) -> list[Decision]:
        same, decisions = at_once(outcome), []
        name, endpoint = subscription.id, subscription.consumer.address
        for received in taken:
            decision = same or self._decide(subscription, received, push, outcome)
            row = attempt(name, endpoint, received.notification, decision, push, received.batch)
            self._write(subscription, received, decision, row)
            decisions.append(decision)
        return decisions

    def _decide(self, subscription: Subscription, received: Received, push: Push, outcome: Outcome) -> Decision:
        policy = self._policy_of(subscription.policy, subscription.peer is not None)
        drops = subscription.policy.drops(received.notification.reliable)
        return settle(received, push, outcome, policy, self._now_ms(), self._chance(), drops=drops)

    def _untried(self, subscription: Subscription, received: Received, decision: Decision) -> Attempt:
        endpoint, notification = subscription.consumer.address, received.notification
        return untried(subscription.id, endpoint, notification, decision, self._now_ms(), received.batch)

    def _write_untried(self, subscription: Subscription, received: Received, decision: Decision) -> None:
        self._write(subscription, received, decision, self._untried(subscription, received, decision))

    def _write(self, subscription: Subscription, received: Received, decision: Decision, row: Attempt) -> None:
        self.journal.write(decision, row, received.notification, received.delivery, subscription.in_turn)
        if decision.letter and not is_system(row.topic):
            self.report.new_letters = NewLetters(
                self.report.new_letters.number + 1, row.subscription, row.endpoint, row.detail[:500]
            )

    def _note_success(self, subscription: Subscription, endpoint: str, push: Push, outcome: Outcome) -> None:
        if self._failures:
            self._failures.pop(subscription.id, None)
        if self._silent:
            self._answering.add(scopes_of(endpoint)[1][1])
        if push.result.duration_s > self._quick_s or endpoint in self.watched:
            self.report.signs.append((endpoint, sign_of("", outcome, push.result, self._quick_s)))

    def _note_failure(self, endpoint: str, push: Push, outcome: Outcome, cut_off: bool) -> None:
        is_unreachable = cut_off or outcome.endpoint_unreachable
        if is_unreachable and endpoint in self._unreachable:
            return  # the push began before another one failed
        message = push.notifications[0].id
        sign = Sign("slow", late=True) if cut_off else sign_of(message, outcome, push.result, self._quick_s)
        self.report.signs.append((endpoint, sign))
        if is_unreachable:
            self._unreachable.add(endpoint)
            if not outcome.status:
                self._silent.setdefault(scopes_of(endpoint)[1][1], set()).add(endpoint)

    def _now_ms(self) -> int:
        return int(self._now() * 1000)
