"""Minimum intervals of subscriptions.

A message passes if it was accepted at least an interval after the last message that passed: of its topic, or of all
topics of its partition. A message that does not pass counts as not matched.

The decision depends on the previous one, so a repetition must begin with the state at its position. It is in the
`attempts` log, with the numbers of recipients.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.progress import LoggedProgress
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import CLOCKS_APART_MS, time_ms
from arborcast.dispatch.hot.recovered import appended_ms
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.logs.attempts import Evaluation
from arborcast.dispatch.matching.view import RoutingView, SubscriptionListener
from arborcast.topic_model.subscriptions import DeliveryPolicy, Subscription
from arborcast.topic_model.topics import TopicPath

logger = logging.getLogger(__name__)

Lane = tuple[str, str]
"""A subscription and a topic, or "" for all of them."""

Passed = Mapping[int, bytes]
"""For each partition, the times before which messages do not pass, encoded: all tasks get all of it in each round, and
each decodes only that of its own partitions."""

# Clocks of gateways differ by less: an interval that ended this long ago has no effect.
_ENDED_MS = 10_000

_FEWEST = 1_000

# Stored intervals of all partitions, in a worker or during recovery: some tens of megabytes. Beyond it those that end
# first are forgotten, so one more message passes.
_MOST = 100_000

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[Lane, int]).decode


class Intervals:
    """The intervals of a task. `passed` is its state for the partitions that it has read."""

    def __init__(self, before: Passed | None = None) -> None:
        self._before = before or {}
        self._room = _FEWEST
        self.passed: dict[int, dict[Lane, int]] = {}

    def passes(
        self, subscription: Subscription, partition: int, topic: TopicPath, accepted_ms: int, judged: bool = True
    ) -> bool:
        """Whether this message passes. If its conditions were not `judged` it may not match, and does not start an
        interval."""
        known = self.passed.get(partition)
        if known is None:
            known = self.passed[partition] = decoded(self._before, partition)
        lane, interval_ms = lane_of(subscription.id, subscription.policy, topic), subscription.policy.interval_ms
        # A message from long before the last one that passed: the clock was put back, and the interval is over.
        if -CLOCKS_APART_MS <= accepted_ms - (known.get(lane, 0) - interval_ms) < interval_ms:
            return False
        if judged:
            known[lane] = accepted_ms + interval_ms
            if len(known) > self._room:
                self._remove_ended(known, accepted_ms)
        return True

    def _remove_ended(self, known: dict[Lane, int], now_ms: int) -> None:
        for lane in [lane for lane, until_ms in known.items() if until_ms < now_ms - _ENDED_MS]:
            del known[lane]
        most = _MOST // len(self.passed)
        _remove_first(known, most)
        self._room = max(_FEWEST, min(2 * len(known), most))


def _remove_first(known: dict[Lane, int], most: int) -> None:
    """With more than `most` intervals, keep the half of the room that ends last: not every call should sort."""
    if len(known) > most:
        for lane in sorted(known, key=known.__getitem__)[: len(known) - most // 2]:
            del known[lane]


def encoded(passed: Mapping[int, Mapping[Lane, int]]) -> dict[int, bytes]:
    return {partition: _encode(known) for partition, known in passed.items()}


def decoded(passed: Passed, partition: int) -> dict[Lane, int]:
    known = passed.get(partition)
    return {} if known is None else _decode(known)


def lane_of(subscription_id: str, policy: DeliveryPolicy, topic: TopicPath) -> Lane:
    """The subscription and topic of a minimum interval."""
    return subscription_id, topic if policy.interval_per == "topic" else ""


class IntervalPolicies(SubscriptionListener):
    """The subscriptions with a minimum interval."""

    def __init__(self, view: RoutingView) -> None:
        self._view = view
        self._policies: dict[str, DeliveryPolicy] = {}
        view.listen(self)

    def subscription_changed(self, subscription_id: str) -> None:
        subscription = self._view.subscription(subscription_id)
        if subscription is not None and subscription.policy.interval_ms:
            self._policies[subscription_id] = subscription.policy
        elif self._policies:
            self._policies.pop(subscription_id, None)

    def policies(self) -> dict[str, DeliveryPolicy]:
        return self._policies.copy()


def fold(
    passed: dict[int, dict[Lane, int]],
    evaluations: Iterable[Evaluation],
    positions: Mapping[int, int],
    policies: Mapping[str, DeliveryPolicy],
) -> None:
    """Apply intervals that began before these positions; a partition without a position has no limit. In any order,
    idempotent."""
    for evaluation in evaluations:
        known = passed.setdefault(evaluation.partition, {})
        end = positions.get(evaluation.partition)
        for each in evaluation.matched:
            if end is not None and each.offset >= end:
                continue
            for name in each.passed:
                if (policy := policies.get(name)) is not None:
                    lane = lane_of(name, policy, each.topic)
                    known[lane] = max(known.get(lane, 0), each.accepted_ms + policy.interval_ms)
        _remove_first(known, _MOST // len(passed))


# Intervals that began within this time are always read back; older ones within a limited time, so that an interval of a
# day does not delay a start.
_AT_LEAST_MS = 600_000
_OLDER_S = 30.0


def read_passed(kafka: KafkaSettings, policies: Mapping[str, DeliveryPolicy], positions: Mapping[int, int]) -> Passed:
    """The intervals that began before these positions of the `notifications` log, from the `attempts` log. Raises
    InfrastructureError if its last minutes cannot be read."""
    longest_ms = max((each.interval_ms for each in policies.values()), default=0)
    passed: dict[int, dict[Lane, int]] = {}
    if not longest_ms:
        return {}
    since_ms = _accepted_ms(kafka, positions) - CLOCKS_APART_MS
    near_ms = min(longest_ms, _AT_LEAST_MS)
    with LogScan(kafka, "attempts", progress=LoggedProgress(logger)) as log:
        firsts = log.at(since_ms - near_ms)
        fold(passed, _evaluations(log, firsts, log.ends()), positions, policies)
    try:
        # The nearest first: they matter most if the time is too short for all.
        with LogScan(kafka, "attempts", _OLDER_S) as log:
            while near_ms < longest_ms:
                near_ms = min(longest_ms, 2 * near_ms)
                ends, firsts = firsts, log.at(since_ms - near_ms)
                fold(passed, _evaluations(log, firsts, ends), positions, policies)
    except InfrastructureError as error:
        logger.warning("minimum intervals of more than %d s start again: %s", near_ms // 2_000, error)
    return encoded(passed)


def _evaluations(log: LogScan, firsts: Mapping[int, int], ends: Mapping[int, int]) -> Iterator[Evaluation]:
    for record in log.read_from(firsts, ends):
        evaluation = attempts.evaluation_in(record.value)
        if evaluation is not None:
            yield evaluation


def _accepted_ms(kafka: KafkaSettings, positions: Mapping[int, int]) -> int:
    """The time at which the first message behind these positions was accepted; without one, now."""
    return min([time_ms(), *appended_ms(kafka, positions).values()])
