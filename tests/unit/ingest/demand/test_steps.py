"""The next steps at publishers on demand."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest

from arborcast.ingest.demand.steps import (
    ChangeUpstream,
    Step,
    SubscribeUpstream,
    UpstreamAction,
    is_wanted,
    may_need,
    overlap,
    single_topic,
    steps,
)
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.publishers import Registration, Upstream
from arborcast.topic_model.records.control import SubscriptionRecord, TopicRecord
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.subscriptions import EndpointReference, Subscription, TopicFilter
from arborcast.topic_model.topics import TopicPath
from tests.support.make import subscription

A, B = TopicFilter("", "a", "a"), TopicFilter("", "b", "b")
HELD = Upstream("a", EndpointReference("http://p/1"), terminates_ms=1_000, renew_ms=800)
HERE, ELSEWHERE = (msgspec.structs.replace(HELD, consumer=each) for each in ("http://here", "http://elsewhere"))
PAUSED = msgspec.structs.replace(HELD, paused=True)
AHEAD = msgspec.structs.replace(HELD, terminates_ms=86_401_000, renew_ms=86_400_800)


@pytest.mark.parametrize(
    ("upstream", "wanted", "now_ms", "pausable", "expected"),
    [
        ([], set(), 0, True, []),
        ([], {"a"}, 0, True, [SubscribeUpstream(A)]),
        ([], {"a", "b"}, 0, True, [SubscribeUpstream(A), SubscribeUpstream(B)]),
        ([HELD], {"a"}, 0, True, []),
        ([HELD], {"a"}, 800, True, [ChangeUpstream(UpstreamAction.RENEW, HELD)]),
        ([AHEAD], {"a"}, 86_400_000, True, []),
        ([AHEAD], {"a"}, 86_395_001, True, []),
        ([AHEAD], {"a"}, 0, True, [ChangeUpstream(UpstreamAction.RENEW, AHEAD)]),  # the clock was set back
        ([HELD], {"a"}, 1_000, True, [ChangeUpstream(UpstreamAction.FORGET, HELD), SubscribeUpstream(A)]),
        ([HELD], {"b"}, 0, True, [ChangeUpstream(UpstreamAction.PAUSE, HELD), SubscribeUpstream(B)]),
        ([HELD], set(), 0, True, [ChangeUpstream(UpstreamAction.PAUSE, HELD)]),
        ([HELD], set(), 0, False, [ChangeUpstream(UpstreamAction.END, HELD)]),
        ([HELD], set(), 900, True, [ChangeUpstream(UpstreamAction.PAUSE, HELD)]),
        ([HELD], set(), 1_000, True, [ChangeUpstream(UpstreamAction.FORGET, HELD)]),
        ([HERE], {"a"}, 0, True, []),
        ([ELSEWHERE], {"a"}, 0, True, [ChangeUpstream(UpstreamAction.LEAVE, ELSEWHERE), SubscribeUpstream(A)]),
        ([ELSEWHERE], set(), 0, True, [ChangeUpstream(UpstreamAction.LEAVE, ELSEWHERE)]),
        ([ELSEWHERE], {"a"}, 1_000, True, [ChangeUpstream(UpstreamAction.FORGET, ELSEWHERE), SubscribeUpstream(A)]),
        ([PAUSED], set(), 900, True, []),  # paused: no renewal
        ([PAUSED], set(), 1_000, True, [ChangeUpstream(UpstreamAction.FORGET, PAUSED)]),
        ([PAUSED], {"a"}, 900, True, [ChangeUpstream(UpstreamAction.RESUME, PAUSED)]),
        ([PAUSED], {"a"}, 1_000, True, [ChangeUpstream(UpstreamAction.FORGET, PAUSED), SubscribeUpstream(A)]),
    ],
)
def test_steps(upstream: list[Upstream], wanted: set[str], now_ms: int, pausable: bool, expected: list[Step]) -> None:
    registration = Registration("r", "", topics=(A, B), demand=True, upstream=tuple(upstream), pausable=pausable)
    assert steps(registration, lambda topic: topic.normal in wanted, now_ms, "http://here") == expected


@pytest.mark.parametrize(
    ("registered", "subscribed", "wanted"),
    [
        ("a/b", subscription(topic="a/b"), True),
        ("a/b", subscription(topic="a//."), True),
        ("a/b", subscription(topic=""), True),
        ("a/b", subscription(topic="a"), False),
        ("a/b", subscription(topic="a/b/c"), False),
        ("a/b", subscription(topic="a/b", paused=True), False),
        ("a/b", subscription(topic="a/b", terminates_ms=100), False),
        ("a//.", subscription(topic="a/x/y"), True),  # a topic that does not exist yet
        ("a//.", subscription(topic="b"), False),
        ("a//.", subscription(topic="", paused=True), False),
        ("a/*", subscription(topic="a/b", terminates_ms=101), True),
        ("a/*", subscription(topic="a/b", terminates_ms=100), False),
    ],
)
def test_subscriptions_that_need_a_registered_topic(registered: str, subscribed: Subscription, wanted: bool) -> None:
    table = RoutingTable()
    table.apply(TopicRecord(TopicPath("a/b")))
    table.apply(SubscriptionRecord(subscribed))
    topic = TopicFilter("", registered, registered)
    path = single_topic(topic)
    if path is not None:
        assert is_wanted(path, table, 100) is wanted
    else:
        assert any(may_need(one, topic, 100) for one in table.subscriptions()) is wanted


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("a", "b"), ("a//.", "ab"), ("a//*", "a"), ("a/*", "a/b/c"), ("a//*", "ab//*"), ("{}*", "a/b")),
        *(("{urn:t}//.", "{urn:u}a/b"), ("{http://x/y}//.", "{http://x/y/z}a")),
    ],
)
def test_expressions_without_a_common_topic(one: str, other: str) -> None:
    assert not overlap(one, other)
    assert not overlap(other, one)


PATHS = ["a", "a/b", "a/b/c", "b", "b/a", "b/c", "{urn:t}a", "{urn:t}a/b", "a/{urn:t}b"]
LONG = ["{http://x/y}a/b", "{http://x/y}a/{http://z/}b"]
WILD = ["a/*", "a//.", "a//*", "a//b", "a/*/c", "{}*", "{}//b", "{urn:t}//.", "{urn:t}*", "//.", "//a", "b/*"]
EXPRESSIONS = [*PATHS, *WILD, *LONG, "a|b//.", "a/b//*", "a/b/*", "a/b//.|b", "{http://x/y}a/*"]


def test_expressions_with_a_common_topic() -> None:
    patterns = {text: parse_normal(text) for text in EXPRESSIONS}
    for path in map(TopicPath, [*PATHS, *LONG]):
        matching = [text for text, pattern in patterns.items() if pattern.matches(path)]
        for one, other in product(matching, matching):
            assert overlap(one, other), (one, other, path)
    assert overlap('xpath:{"text":"//a","namespaces":{}}', "b")
    assert overlap("b", 'xpath:{"text":"//a","namespaces":{}}')
