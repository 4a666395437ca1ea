"""Summaries of interest: never too little, never too large, and no wider than they have to be."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.routing.interest import MAX_NODES, is_summary, merged, summary_of
from arborcast.topic_model.subscriptions import Peer, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.routing import make_subscription, normals, paths, subscriptions

_names = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=5)
_many = st.lists(_names.map(lambda steps: "/".join(steps)) | normals, max_size=60)


def _covers(summary: tuple[str, ...], path: TopicPath) -> bool:
    return bool(summary) and parse_normal("|".join(summary)).matches(path)


def _subscribed(texts: list[str]) -> list[Subscription]:
    return [make_subscription(f"s{number}", text) for number, text in enumerate(texts)]


@given(st.lists(subscriptions, max_size=8), paths, st.integers(1, 4))
def test_what_is_wanted_is_covered(found: list[Subscription], path: TopicPath, most: int) -> None:
    """XPath selects from the topics that are there, so it may want any of them."""
    summary = summary_of(found, most)
    for each in found:
        plain = [one.normal for one in each.topics if not one.normal.startswith("xpath:")]
        if each.receives and all(parse_normal(one).matches(path) for one in plain):
            assert _covers(summary, path)


@given(_many, paths | _names.map(lambda steps: TopicPath("/".join(steps))), st.integers(1, 40))
def test_a_summary_is_within_its_bound_and_covers_all(texts: list[str], path: TopicPath, most: int) -> None:
    found = _subscribed(texts)
    summary = summary_of(found, most)
    assert len(summary) <= most
    assert is_summary(summary)
    assert summary == tuple(sorted(set(summary)))
    if any(parse_normal(text).matches(path) for text in texts):
        assert _covers(summary, path)


@given(_many, _many, paths, st.integers(1, 10))
def test_summaries_together_cover_what_each_does(one: list[str], two: list[str], path: TopicPath, most: int) -> None:
    each = [summary_of(_subscribed(texts), most) for texts in (one, two)]
    both = merged(each, most)
    assert len(both) <= most
    if any(_covers(summary, path) for summary in each):
        assert _covers(both, path)


def test_many_siblings_are_widened_and_what_is_deep_elsewhere_is_not() -> None:
    found = _subscribed(["all/alarm/north/pump/p7", "x", *(f"x/room/r{number}" for number in range(1_000))])
    assert summary_of(found, 10) == ("all/alarm/north/pump/p7", "x", "x/room//.")


def test_at_worst_everything_is_wanted() -> None:
    assert summary_of(_subscribed(["a", "{urn:t}a"]), 1) == ("//.",)
    assert summary_of(_subscribed(["a", "b/c"]), 1) == ("{}//.",)


def test_links_and_those_who_get_nothing_want_nothing() -> None:
    link = Subscription("peer-b", make_subscription("s").consumer, form="peer", peer=Peer("G/a", "G/b"))
    assert summary_of([link, make_subscription("s1", "a", paused=True, form="legacy")]) == ()


def test_a_million_are_not_looked_through_one_by_one_twice() -> None:
    """Equal selectors are one."""
    assert (
        len(summary_of(_subscribed(["a/b"] * 10_000 + [f"c/n{number}" for number in range(MAX_NODES - 1)])))
        == MAX_NODES
    )


def test_a_filter_that_cannot_be_read_wants_nothing() -> None:
    assert summary_of(_subscribed(["a//", "b"])) == ("b",)


def test_what_is_no_summary() -> None:
    assert is_summary(("a", "{urn:t}a/b//.", "//.", "{}//."))
    for text in ("a/*", "a//*", "a|b", "xpath:a", "", "a b", "{}*", "a//b"):
        assert not is_summary((text,)), text
