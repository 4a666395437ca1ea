"""Expiry compared with a scan of all subscriptions."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from arborcast.topic_model.routing.expiry import Expiry
from arborcast.topic_model.subscriptions import Subscription
from tests.support.routing import make_subscription

# At the edges of buckets, and far apart.
_times = st.one_of(
    st.none(),
    st.builds(lambda minute, offset: (minute << 16) + offset, st.integers(0, 3), st.integers(-2, 2)),
    st.integers(0, 10**14),
)
_steps = st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans(), _times), max_size=60)


@given(_steps, st.lists(st.integers(0, 5 << 16), min_size=1, max_size=4))
def test_due_subscriptions_against_a_scan(steps: list[tuple[str, bool, int | None]], asked: list[int]) -> None:
    subscriptions: dict[str, Subscription] = {}
    expiry = Expiry(subscriptions)
    for subscription_id, ends, time in steps:
        old = subscriptions.pop(subscription_id, None)
        if not ends:
            subscriptions[subscription_id] = make_subscription(subscription_id, "a", terminates_ms=time)
            expiry.added(subscriptions[subscription_id])
        if old is not None:
            expiry.removed(old)
        times = {each.id: each.terminates_ms for each in subscriptions.values() if each.terminates_ms is not None}
        for now in asked:
            expected = sorted((at, each) for each, at in times.items() if at <= now)
            for limit in (0, 1, 2, 7):
                assert expiry.due(now, limit) == tuple(each for _, each in expected[:limit])


def test_a_look_reads_only_what_is_due() -> None:
    class Counting(dict[str, Subscription]):
        reads = 0

        def get(self, *key: Any) -> Any:
            self.reads += 1
            return super().get(*key)

    subscriptions = Counting()
    expiry = Expiry(subscriptions)
    for number in range(1_000):
        made = make_subscription(str(number), "a", terminates_ms=65_000 + number // 10)
        subscriptions[made.id] = made
        expiry.added(made)
    expiry.due(0, 7)
    subscriptions.reads = 0
    assert len(expiry.due(65_000, 1_000)) == 10
    assert subscriptions.reads == 10
    assert len(expiry.due(70_000, 7)) == 7
    assert subscriptions.reads == 17


def test_ends_and_renewals_are_swept() -> None:
    subscriptions: dict[str, Subscription] = {}
    expiry = Expiry(subscriptions)
    for number in range(20_000):
        old = subscriptions.get("s")
        subscriptions["s"] = make_subscription("s", "a", terminates_ms=number << 14)
        expiry.added(subscriptions["s"])
        if old is not None:
            expiry.removed(old)
    assert len(expiry) < 1_100
    assert expiry.due(1 << 62, 7) == ("s",)
    expiry.removed(subscriptions.pop("s"))
    assert expiry.due(1 << 62, 7) == ()
    assert len(expiry) == 0
