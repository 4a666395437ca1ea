"""What becomes of the deliveries of a batch once their push has an outcome: rows, parking, dead letters, signs.

A batch waits for nobody. What a receiver did not take is parked; when it looks as if the next message would fare no
better, all that waits behind it in its lane is parked with it, untried, so that nothing overtakes anything. What is
timely is dropped instead.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from arborcast.dispatch.delivery.capacity import scopes_of
from arborcast.dispatch.delivery.health import Sign, quick_s
from arborcast.dispatch.delivery.journal import Journal
from arborcast.dispatch.delivery.outcomes import Outcome, failed
from arborcast.dispatch.delivery.verdict import (
    DELIVERED,
    ON_ITS_WAY_MS,
    Push,
    Verdict,
    attempt,
    dropped,
    judge,
    judge_timely,
    leaves_letter,
    lifespan_ms,
    policy_of,
    too_old,
    untried,
    without_letter,
)
from arborcast.dispatch.hot.lanes import Lane
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.logs.parked import UNDER_WAY, Tries
from arborcast.dispatch.redelivery.held_lanes import PartitionReport
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.results import Promise, Result, State
from arborcast.topic_model.subscriptions import Subscription

# So many endpoints of one host that do not answer, and none that does: the host is unreachable.
_SILENT_ENDPOINTS = 4

UNTRIED = Tries()

NEWER = "a newer message of its topic is pushed instead"

UNANSWERED = failed("waiting", "no answer yet: the push is still under way")
"""The outcome of a push whose lane does not wait for it any longer."""

# Longer than anything lives.
_NEVER_MS = 1 << 62


class PutOff(NamedTuple):
    """What is done with what was not tried: parked, or cancelled; and why."""

    verdict: Verdict
    why: Outcome


def waits(detail: str) -> PutOff:
    """To be tried as soon as its lane's turn comes."""
    return PutOff(Verdict("parked"), failed("waiting", detail))


def cancelled(detail: str) -> PutOff:
    """Not to be tried any more: the subscription is over."""
    return PutOff(Verdict("cancelled"), failed("ended", detail))


class BatchOutcomes:
    """One partition of one batch. `report` is what it has learned."""

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
        self._journal = journal
        self._answer_ms = int(push.total_timeout_s * 1000) + ON_ITS_WAY_MS
        self._retry = retry
        self.watched = watched
        self._now = now
        self._chance = chance
        self._failures: dict[str, int] = {}  # in a row, by lane
        self._unreachable: set[str] = set()
        self._unreachable_before: set[str] = set()
        self._silent: dict[str, set[str]] = {}  # endpoints without an answer, by host
        self._answering: set[str] = set()  # hosts

    def settle(
        self, subscription: Subscription, taken: Sequence[Received], push: Push, outcome: Outcome
    ) -> PutOff | None:
        """Write down what became of the push of what was taken from a lane; what is to be done with the rest of it,
        None when it goes on."""
        cut_off = outcome is UNANSWERED
        verdict, holds = DELIVERED, False
        for received in taken:
            verdict = self._judged(subscription, received, push, outcome, cut_off)
            holds = holds or (subscription.in_turn and verdict.state == "parked")
        endpoint = subscription.consumer.address
        if outcome.taken:
            self._note_success(subscription, endpoint, push)
            return None
        self._note_failure(endpoint, push, outcome, cut_off)
        if verdict.state == "cancelled":
            self.report.gone.add(subscription.id)
            return cancelled("its receiver is gone (410)")
        if cut_off:
            return waits("the push before it is still under way")
        if outcome.endpoint_unreachable:
            return waits(f"the push before it ended with {outcome.error!r}")
        failures = self._failures[subscription.id] = self._failures.get(subscription.id, 0) + 1
        if failures >= self._retry.breaker_failures:
            return waits(f"the {failures} pushes before it failed, the last with {outcome.error!r}")
        return waits(f"what was before it waits for another try after {outcome.error!r}") if holds else None

    def answered(self, subscription: Subscription, taken: Sequence[Received], push: Push, outcome: Outcome) -> None:
        """A push has its outcome that was `UNANSWERED` when it was settled: the redelivery goes on with it."""
        parked = [each for each in taken if not subscription.policy.drops(each.notification.reliable)]
        if outcome.taken and not outcome.delivered:
            for received in parked:
                self._judged(subscription, received, push, outcome, cut_off=False)
        elif parked:
            now_ms = self._now_ms()
            promise = Promise(subscription.id, UNDER_WAY + push.id, push.started_ms, now_ms, len(parked))
            state: State = "refused" if outcome.hopeless else "failed" if outcome.error else "delivered"
            self._journal.answered(Result(promise, state, now_ms, outcome.detail[:500], outcome.error, outcome.status))

    def drop_older(self, lane: Lane) -> None:
        """Drop what is timely and has waited for too long, where something newer of its topic waits in its lane."""
        if lane.subscription.policy.reliability == "timely" and self.is_stale(lane.waiting.first().notification):
            self.put_off(lane.subscription, lane.drop_older(), waits(NEWER))

    def is_stale(self, notification: Notification) -> bool:
        """Whether it has waited for too long to be pushed where something newer of its topic waits."""
        return notification.accepted_ms + self._retry.batch_wait_s * 1000 < self._now_ms()

    def unreachable(self, subscription: Subscription) -> PutOff | None:
        """Whether this batch has found out that nothing need be tried there, and what is done instead."""
        endpoint = subscription.consumer.address
        if endpoint in self._unreachable or endpoint in self._unreachable_before:
            return waits("its endpoint did not answer another push of the same batch")
        if self._silent:
            host = scopes_of(endpoint)[1][1]
            if host not in self._answering and len(self._silent.get(host, ())) >= _SILENT_ENDPOINTS:
                return waits("its host did not answer other pushes of the same batch")
        return None

    def take_report(self) -> PartitionReport:
        """What was learned since it was last taken."""
        report, self.report = self.report, PartitionReport()
        return report

    def forget(self) -> None:
        """Try again what did not answer when this was asked the last time but one: by now the driver knows of it, and
        has said what is to be left alone."""
        self._unreachable_before, self._unreachable = self._unreachable, set()
        self._silent.clear()
        self._answering.clear()

    def forgive(self, endpoints: Iterable[str]) -> None:
        """Try these again."""
        self._unreachable.difference_update(endpoints)
        self._unreachable_before.difference_update(endpoints)

    def write_due(self) -> bool:
        """Have written down what is due, without waiting; False when no more should follow before it is."""
        return self._journal.write_due()

    def catch_up(self) -> None:
        """Return when everything is written down. Raises InfrastructureError when that takes too long."""
        self._journal.catch_up()

    def put_off(self, subscription: Subscription, waiting: Iterable[Received], what: PutOff) -> None:
        """Write down that these were not tried."""
        endpoint, now_ms = subscription.consumer.address, self._now_ms()
        for received in waiting:
            verdict, why = what
            if verdict.state == "parked" and subscription.policy.drops(received.notification.reliable):
                verdict, why = Verdict("dropped"), dropped(why)
            row = untried(subscription.id, endpoint, received.notification, 0, verdict, why, now_ms, received.batch)
            self._write(subscription, received, row, UNTRIED)

    def was_parked(self, subscription: Subscription, received: Received) -> None:
        """Write the row of what was parked by a worker that could not write it any more."""
        what = waits("its worker was ended when it had parked this")
        endpoint, batch = subscription.consumer.address, received.batch
        self._journal.record(
            untried(subscription.id, endpoint, received.notification, 0, what.verdict, what.why, self._now_ms(), batch)
        )

    def expired(self, subscription: Subscription, received: Received, otherwise: str = "too old when read") -> bool:
        """Whether a notification has lived too long to be tried at all; then that is written down. What is not
        pushed, but goes into a log, is too old when its publisher says so, and not before."""
        notification, now_ms = received.notification, self._now_ms()
        lifespan = self._lifespan_ms(subscription)
        if notification.accepted_ms + lifespan > now_ms and not notification.is_over(now_ms):
            return False
        why = failed("lifespan", too_old(notification, lifespan, otherwise))
        self.put_off(subscription, (received,), PutOff(Verdict("expired"), why))
        return True

    def in_time(self, subscription: Subscription, taken: Sequence[Received]) -> Sequence[Received]:
        """Those of what is to be pushed now that have not grown too old since they were read; of the others that is
        written down."""
        return [each for each in taken if not self.expired(subscription, each, "too old when its turn came")]

    def _lifespan_ms(self, subscription: Subscription) -> int:
        return lifespan_ms(subscription.policy, self._retry) if subscription.pushed else _NEVER_MS

    def _judged(
        self, subscription: Subscription, received: Received, push: Push, outcome: Outcome, cut_off: bool
    ) -> Verdict:
        now_ms, counted, verdict, awaits = self._now_ms(), 1, DELIVERED, ""
        if subscription.policy.drops(received.notification.reliable):
            verdict = judge_timely(outcome)
            outcome = dropped(outcome) if verdict.state == "dropped" else outcome
        elif cut_off:
            # It counts with its answer. Without one, because its worker has ended, it is tried again after this time.
            verdict, counted, awaits = Verdict("parked", now_ms + self._answer_ms), 0, UNDER_WAY + push.id
        elif not outcome.delivered:
            policy = policy_of(subscription.policy, self._retry, link=subscription.peer is not None)
            verdict = judge(outcome, policy, received.notification, counted, push, now_ms, self._chance())
        if outcome.taken and not outcome.delivered:
            awaits, counted = push.id, 0  # it counts with its result
        row = attempt(subscription, received.notification, 1, verdict, outcome, push, received.batch)
        self._write(subscription, received, row, Tries(1, counted, verdict.next_ms, now_ms, awaits))
        return verdict

    def _write(self, subscription: Subscription, received: Received, row: Attempt, tries: Tries) -> None:
        if row.state == "parked":
            delivery = received.delivery(row.subscription)
            self._journal.park(delivery, received.notification, tries, row, subscription.in_turn)
        elif leaves_letter(row.state, received.notification, self._lifespan_ms(subscription)):
            delivery = received.delivery(row.subscription)
            self._journal.write_dead_letter(delivery, received.notification, row)
        else:
            self._journal.record(without_letter(row))

    def _note_success(self, subscription: Subscription, endpoint: str, push: Push) -> None:
        if self._failures:
            self._failures.pop(subscription.id, None)
        if self._silent:
            self._answering.add(scopes_of(endpoint)[1][1])
        if push.result.duration_s > quick_s(self._retry):
            self.report.signs.append((endpoint, Sign("slow")))
        elif endpoint in self.watched:
            self.report.signs.append((endpoint, Sign("quick")))

    def _note_failure(self, endpoint: str, push: Push, outcome: Outcome, cut_off: bool) -> None:
        away = cut_off or outcome.endpoint_unreachable
        if away and endpoint in self._unreachable:
            return  # it was under way when another one found that out
        message, late = push.notifications[0].id, push.result.duration_s > quick_s(self._retry)
        if cut_off:
            self.report.signs.append((endpoint, Sign("slow", late=True)))
        elif outcome.endpoint_unreachable:
            wait_ms = int(push.result.retry_after_s * 1000)
            self.report.signs.append((endpoint, Sign("unreachable", message, wait_ms, late)))
        else:
            self.report.signs.append((endpoint, Sign("quick" if outcome.blames_message else "failing", message)))
        if away:
            self._unreachable.add(endpoint)
            if not outcome.status:
                self._silent.setdefault(scopes_of(endpoint)[1][1], set()).add(endpoint)

    def _now_ms(self) -> int:
        return int(self._now() * 1000)
