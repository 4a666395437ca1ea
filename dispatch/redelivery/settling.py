"""From the outcome of a push, or the decision not to push, to what is written down of each delivery in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dispatch.attempts import Attempt
from dispatch.outcomes import Outcome, failed
from dispatch.redelivery.events import SYSTEM, DeadLetterAlarm
from dispatch.redelivery.journal import Journal
from dispatch.redelivery.lane import Lane
from dispatch.redelivery.parked import Tries
from dispatch.redelivery.parked_store import ParkedStore, Waiting
from dispatch.retry import History, RetryPolicy
from dispatch.verdict import Push, Verdict, attempt, judge, untried
from topic_model.subscriptions import Subscription

# Attempts made here belong to no batch.
NO_BATCH = -1

# How many deliveries that are over (too old, not wanted any more) are ended before another lane has its turn.
_ENDED_AT_ONCE = 500

# Later than any notification was accepted.
_EVER_MS = 1 << 62


class Settling:
    """Rows to the journal, tries and ends to the store and the journal. Used by one thread."""

    def __init__(
        self, store: ParkedStore, journal: Journal, chance: Callable[[], float], alarm: DeadLetterAlarm
    ) -> None:
        self._store = store
        self._journal = journal
        self._chance = chance
        self._alarm = alarm
        self.delivered = 0
        self.dead = 0

    def settle(
        self,
        subscription: Subscription,
        policy: RetryPolicy,
        taken: Sequence[Waiting],
        push: Push,
        outcome: Outcome,
        now_ms: int,
        probe: bool,
    ) -> bool:
        """A push has an outcome; whether the receiver has ended the subscription with it.

        A push that only probed whether its endpoint is back does not count against the message when it is not; when
        the endpoint answers, and refuses the message, it does, or what it always fails at would be tried for ever.
        """
        gone = False
        excused = probe and outcome.endpoint_away
        for waiting in taken:
            number, counted = waiting.tries.number + 1, waiting.tries.counted + (not excused)
            history = History(waiting.notification.accepted_ms, counted, len(taken) - 1)
            verdict = judge(outcome, policy, history, now_ms, self._chance(), push.result.retry_after_s)
            tries = Tries(number, counted, verdict.next_ms, now_ms)
            if verdict.state == "parked" and not self._store.tried(waiting.delivery, tries):
                continue  # the log says meanwhile that it is finished; then this was one push too many
            row = attempt(subscription, waiting.notification, number, verdict, outcome, push, NO_BATCH)
            self._journal.record(row)
            if verdict.state == "parked":
                self._journal.tried(waiting.delivery, tries)
            else:
                self._end(waiting, row)
            self.delivered += verdict.state == "delivered"
            gone = gone or verdict.state == "cancelled"
        return gone

    def cancel(self, lane: Lane, now_ms: int) -> bool:
        """End what waits in a lane, because nobody wants it any more; whether there may be more of it."""
        why = failed("ended", "the subscription is over")
        return self._end_untried(lane, _EVER_MS, Verdict("cancelled"), why, now_ms)

    def unwanted(self, lane: Lane, waiting: Waiting, now_ms: int) -> None:
        """End what was parked unjudged, because the subscription's conditions do not want it."""
        why = failed("skipped", "its conditions do not select it, or would cost more than they may")
        verdict, number = Verdict("cancelled"), waiting.tries.number
        row = untried(lane.name, lane.endpoint, waiting.notification, number, verdict, why, now_ms, NO_BATCH)
        self._journal.record(row)
        self._end(waiting, row)

    def expire(self, lane: Lane, accepted_ms: int, now_ms: int) -> bool:
        """End what was accepted by then, because it is too old; whether there may be more of it."""
        why = failed("lifespan", "it was not delivered within its lifespan")
        return self._end_untried(lane, accepted_ms, Verdict("expired"), why, now_ms)

    def _end_untried(self, lane: Lane, accepted_ms: int, verdict: Verdict, why: Outcome, now_ms: int) -> bool:
        ended = self._store.accepted_before(lane.name, accepted_ms, _ENDED_AT_ONCE, lane.flight)
        for waiting in ended:
            number = waiting.tries.number
            row = untried(lane.name, lane.endpoint, waiting.notification, number, verdict, why, now_ms, NO_BATCH)
            self._journal.record(row)
            self._end(waiting, row)
        return len(ended) == _ENDED_AT_ONCE

    def _end(self, waiting: Waiting, row: Attempt) -> None:
        if row.state in ("dead", "expired"):
            self._journal.bury(waiting.delivery, waiting.notification, row)
            # A dead subscriber of these events would hear of itself, once a minute and for ever.
            if not row.topic.startswith(SYSTEM):
                self._alarm.died(row.subscription, row.endpoint, row.detail)
            self.dead += 1
        self._store.finish(waiting.delivery)
        self._journal.finished(waiting.delivery, tried=waiting.tries.number > 0)
