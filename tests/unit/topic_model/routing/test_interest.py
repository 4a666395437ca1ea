"""Summaries of interest: complete, bounded, and no wider than necessary."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.routing import interest
from arborcast.topic_model.routing.interest import MAX_NODES, is_summary, merged, summary_of
from arborcast.topic_model.subscriptions import Peer, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.routing import make_subscription, normals, paths, subscriptions

_names = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=5)
_texts = _names.map(lambda steps: "/".join(steps)) | normals
_many = st.lists(subscriptions | _texts.map(lambda text: make_subscription("s", text)), max_size=60)


def _covers(summary: tuple[str, ...], path: TopicPath) -> bool:
    return bool(summary) and parse_normal("|".join(summary)).matches(path)


def _wants(subscription: Subscription, path: TopicPath) -> bool:
    """XPath selects from existing topics, so it may want any of them."""
    plain = [each.normal for each in subscription.topics if not each.normal.startswith("xpath:")]
    return subscription.receives and all(parse_normal(each).matches(path) for each in plain)


def _subscribed(texts: list[str]) -> list[Subscription]:
    return [make_subscription(f"s{number}", text) for number, text in enumerate(texts)]


@given(_many, _many, paths | _names.map(lambda steps: TopicPath("/".join(steps))), st.integers(1, 40))
def test_summaries_are_bounded_and_cover_all(
    one: list[Subscription], two: list[Subscription], path: TopicPath, most: int
) -> None:
    summaries = [summary_of(found, most) for found in (one, two)]
    for found, summary in zip((one, two), summaries, strict=True):
        assert len(summary) <= most
        assert is_summary(summary)
        assert summary == tuple(sorted(set(summary)))
        if any(_wants(each, path) for each in found):
            assert _covers(summary, path)
    both = merged(summaries, most)
    assert len(both) <= most
    if any(_covers(summary, path) for summary in summaries):
        assert _covers(both, path)


@pytest.mark.parametrize(
    ("texts", "most", "summary"),
    [
        (["a/b/c/d/p7", "x", *(f"x/room/r{number}" for number in range(1_000))], 10, ("a/b/c/d/p7", "x", "x/room//.")),
        (["a", "{urn:t}a"], 1, ("//.",)),
        (["a", "b/c"], 1, ("{}//.",)),
        (["a//", "b"], 9, ("b",)),
    ],
    ids=["siblings are widened", "all namespaces", "no namespace", "unreadable"],
)
def test_summaries_of_filters(texts: list[str], most: int, summary: tuple[str, ...]) -> None:
    assert summary_of(_subscribed(texts), most) == summary


def test_a_large_summary_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []

    def counted(nodes: Collection[Any]) -> int:
        measured.append(len(nodes))
        return sum(len(node.normal) + 1 for node in nodes)

    monkeypatch.setattr(interest, "_characters", counted)
    topics = [f"r{number % 3}/s{number % 300}/t{number}" for number in range(3_000)]
    assert len(merged([topics])) == 201
    assert sum(measured) < 4 * len(topics), "it took minutes for 100,000 topics"


def test_equal_selectors_count_once() -> None:
    many = ["a/b"] * 10_000 + [f"c/n{number}" for number in range(MAX_NODES - 1)]
    assert len(summary_of(_subscribed(many))) == MAX_NODES


def test_subscriptions_without_interest_in_other_engines() -> None:
    link = Subscription("peer-b", make_subscription("s").consumer, form="peer", peer=Peer("G/a", "G/b"))
    server = make_subscription("s2", "t", queue=1)
    assert summary_of([link, make_subscription("s1", "a", paused=True, form="legacy"), server]) == ()


def test_expressions_of_summaries() -> None:
    assert is_summary(("a", "{urn:t}a/b//.", "//.", "{}//."))
    for text in ("a/*", "a//*", "a|b", "xpath:a", "", "a b", "{}*", "a//b"):
        assert not is_summary((text,)), text
