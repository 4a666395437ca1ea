"""What to do at publishers on demand."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.ingest.demand.steps import (
    Act,
    ChangeUpstream,
    Step,
    SubscribeUpstream,
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
PAUSED = msgspec.structs.replace(HELD, paused=True)
AHEAD = msgspec.structs.replace(HELD, terminates_ms=86_401_000, renew_ms=86_400_800)


@pytest.mark.parametrize(
    ("upstream", "wanted", "now_ms", "pausable", "expected"),
    [
        ([], set(), 0, True, []),
        ([], {"a"}, 0, True, [SubscribeUpstream(A)]),
        ([], {"a", "b"}, 0, True, [SubscribeUpstream(A), SubscribeUpstream(B)]),
        ([HELD], {"a"}, 0, True, []),
        ([HELD], {"a"}, 800, True, [ChangeUpstream(Act.RENEW, HELD)]),
        ([AHEAD], {"a"}, 86_400_000, True, []),
        ([AHEAD], {"a"}, 86_395_001, True, []),
        ([AHEAD], {"a"}, 0, True, [ChangeUpstream(Act.RENEW, AHEAD)]),  # the clock was put back
        ([HELD], {"a"}, 1_000, True, [ChangeUpstream(Act.FORGET, HELD), SubscribeUpstream(A)]),
        ([HELD], {"b"}, 0, True, [ChangeUpstream(Act.PAUSE, HELD), SubscribeUpstream(B)]),
        ([HELD], set(), 0, True, [ChangeUpstream(Act.PAUSE, HELD)]),
        ([HELD], set(), 0, False, [ChangeUpstream(Act.END, HELD)]),
        ([HELD], set(), 900, True, [ChangeUpstream(Act.PAUSE, HELD)]),
        ([HELD], set(), 1_000, True, [ChangeUpstream(Act.FORGET, HELD)]),
        ([PAUSED], set(), 900, True, []),  # a paused one is not renewed
        ([PAUSED], set(), 1_000, True, [ChangeUpstream(Act.FORGET, PAUSED)]),
        ([PAUSED], {"a"}, 900, True, [ChangeUpstream(Act.RESUME, PAUSED)]),
        ([PAUSED], {"a"}, 1_000, True, [ChangeUpstream(Act.FORGET, PAUSED), SubscribeUpstream(A)]),
    ],
)
def test_steps(upstream: list[Upstream], wanted: set[str], now_ms: int, pausable: bool, expected: list[Step]) -> None:
    registration = Registration("r", "", topics=(A, B), demand=True, upstream=tuple(upstream), pausable=pausable)
    assert steps(registration, lambda topic: topic.normal in wanted, now_ms) == expected


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
        ("a//.", subscription(topic="a/x/y"), True),  # a topic that is not there yet
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
    ("one", "other", "meet"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a//.", "a/b/c", True),
        ("a//.", "ab", False),
        ("a//*", "a", False),
        ("a/*", "a/b/c", False),
        ("{urn:t}//.", "{urn:t}a/b", True),
        ("{urn:t}//.", "{urn:u}a/b", False),
        ("a|b//.", "b/c", True),
        ("a//.", "a/b//*", True),
        ("a/b/*", "a//*", True),
        ("a//*", "ab//*", False),
        ("{}*", "a", True),
        ("{}*", "a/b", False),
        ("{urn:t}*", "{urn:t}a", True),
        ("{http://x/y}a/*", "{http://x/y}a/b", True),
        ("{http://x/y}a/*", "{http://x/y}a/{http://z/}b", True),
        ("{http://x/y}//.", "{http://x/y/z}a", False),
        ("//.", "{urn:t}a", True),
        ('xpath:{"text":"//a","namespaces":{}}', "b", True),
    ],
)
def test_overlap(one: str, other: str, meet: bool) -> None:
    assert overlap(one, other) is overlap(other, one) is meet


_PATHS = ["a", "a/b", "a/b/c", "b", "b/a", "{urn:t}a", "{urn:t}a/b", "a/{urn:t}b"]
_WILD = [
    "a/*",
    "a//.",
    "a//*",
    "a//b",
    "a/*/c",
    "{}*",
    "{}//b",
    "{urn:t}//.",
    "{urn:t}*",
    "//.",
    "//a",
    "a/b//.|b",
    "b/*",
]
_NORMALS = st.sampled_from([*_PATHS, *_WILD])


@given(_NORMALS, _NORMALS, st.sampled_from(_PATHS))
def test_expressions_that_match_one_topic_overlap(one: str, other: str, path: str) -> None:
    if parse_normal(one).matches(TopicPath(path)) and parse_normal(other).matches(TopicPath(path)):
        assert overlap(one, other)
