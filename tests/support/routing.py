"""Topics, normal forms, subscriptions, triggers and control records for hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import hypothesis.strategies as st
import msgspec

from arborcast.topic_model.expressions import xpath
from arborcast.topic_model.patterns.patterns import XPATH_SCHEME, parse_normal
from arborcast.topic_model.records.control import (
    ControlRecord,
    SubscriptionEnded,
    SubscriptionRecord,
    Tombstone,
    TopicPolicy,
    TopicRecord,
    TopicRemoved,
    TriggerEnded,
    TriggerRecord,
)
from arborcast.topic_model.routing import History, RoutingTable
from arborcast.topic_model.subscriptions import EndpointReference, Subscription, TopicFilter, Trigger
from arborcast.topic_model.topics import Step, TopicPath
from arborcast.topic_model.tree.tree import TopicTree

# Few names, so that random patterns and random topics match; two namespaces, one of them with a slash.
_ROOTS = ["a", "b", "{urn:t}a", "{http://x/y}b"]
_STEPS = ["a", "b", "c", "{http://x/y}b"]


def _canonical(root: str, steps: Sequence[str]) -> TopicPath:
    # A step does not repeat an inherited namespace: that is not the canonical form of the topic.
    path, namespace = root, root.rpartition("}")[0]
    for step in steps:
        declared = step.rpartition("}")[0]
        path += "/" + (step.rpartition("}")[2] if declared == namespace else step)
        namespace = declared or namespace
    return TopicPath(path)


def topic_steps(names: Sequence[str], namespaces: Sequence[str], most: int) -> st.SearchStrategy[list[Step]]:
    """Steps of topics; an empty namespace is the parent's."""
    step = st.tuples(st.sampled_from(namespaces), st.sampled_from(names))
    return st.lists(step, min_size=1, max_size=most).map(
        lambda steps: list(accumulate(steps, lambda above, step: (step[0] or above[0], step[1])))
    )


paths = st.builds(_canonical, st.sampled_from(_ROOTS), st.lists(st.sampled_from(_STEPS), max_size=3))

_tails = st.sampled_from(["", "/*", "//*", "//."])
_below = st.sampled_from(["/b", "//b", "/*/b", "//{http://x/y}b", "/*/*", "//a//b", "//c"])
_alternatives = st.one_of(
    paths,
    st.builds("{}{}".format, paths, _tails),
    st.builds("{}{}{}".format, st.one_of(paths, st.sampled_from(_ROOTS)), _below, _tails),
    st.sampled_from(
        ["//.", "*", "{}*", "{}//.", "{urn:t}*", "{urn:t}//b", "//b", "//b//.", "{http://x/y}//.", "//b/*"]
    ),
)
normals = st.lists(_alternatives, min_size=1, max_size=3).map(lambda texts: parse_normal("|".join(texts)).normal)

# Two depend on the path alone, two on the topics below, one on both namespaces.
xpath_normals = st.sampled_from(
    [
        xpath.parse_xpath(text, {"t": "urn:t", "x": "http://x/y"}).normal
        for text in ("//b", "a/*[self::b]", "//*[b]", "t:a[count(*) > 1]", "//x:b | t:a")
    ]
)


def make_subscription(
    subscription_id: str, *topics: str, consumer: str = "http://consumer/", **facts: Any
) -> Subscription:
    """A subscription with these normal forms as its topic filters."""
    filters = tuple(TopicFilter("urn:test", normal, normal) for normal in topics)
    return Subscription(subscription_id, EndpointReference(consumer), topics=filters, **facts)


_ids = st.sampled_from([f"s{number}" for number in range(8)])
subscriptions = st.builds(
    lambda subscription_id, topics, **facts: make_subscription(subscription_id, *topics, **facts),
    _ids,
    st.lists(st.one_of(normals, normals, xpath_normals), max_size=2),
    consumer=st.sampled_from(["http://one/", "http://two/"]),
    created_ms=st.integers(0, 2),
    terminates_ms=st.one_of(st.none(), st.integers(0, 9)),
    paused=st.booleans(),
    form=st.sampled_from(["notify", "legacy"]),
)


def make_trigger(trigger_id: str, on: str, to: str, payload: str = "<x/>", **facts: object) -> Subscription:
    """A trigger with this normal form as its topic filter, that publishes to this topic; its name is its id."""
    trigger = Trigger(trigger_id, TopicPath(to), payload, "x" if payload else "")
    made = make_subscription(trigger_id, on, consumer=trigger.endpoint)
    return msgspec.structs.replace(made, trigger=trigger, **facts)


_trigger_ids = st.sampled_from([f"t{number}" for number in range(3)])
triggers = st.builds(make_trigger, _trigger_ids, normals, paths)
control_records: st.SearchStrategy[ControlRecord] = st.one_of(
    st.builds(SubscriptionRecord, subscriptions),
    st.builds(SubscriptionRecord, subscriptions),
    st.builds(SubscriptionEnded, _ids, st.just("unsubscribed"), st.just(0)),
    st.builds(TopicRecord, paths, code=st.sampled_from(["", "1"])),
    st.builds(TopicRecord, paths),
    st.builds(TopicRecord, paths, policy=st.builds(TopicPolicy, retain=st.booleans())),
    st.builds(TopicRecord, paths, policy=st.builds(TopicPolicy, routing=st.sampled_from(["local", "group", "split"]))),
    st.builds(TopicRemoved, paths),
    st.builds(TriggerRecord, triggers),
    st.builds(TriggerEnded, _trigger_ids, st.just("removed"), st.just(0)),
    st.builds(Tombstone.of, st.just("sub"), _ids),
    st.builds(Tombstone.of, st.just("topic"), paths),
    st.builds(Tombstone.of, st.just("trigger"), _trigger_ids),
)


def table_of(*records: ControlRecord, since: int = 0) -> RoutingTable:
    """The table after these records of a log, with the history since a position."""
    table = RoutingTable(history=History(since))
    for offset, record in enumerate(records):
        table.apply(record, offset)
    return table


def tree_of(*records: ControlRecord | str) -> TopicTree:
    """The tree after these records; a text is the path of a topic without properties."""
    tree = TopicTree()
    for each in records:
        tree.apply(TopicRecord(TopicPath(each)) if isinstance(each, str) else each)
    return tree


def naively_matches(subscription: Subscription, path: TopicPath, topics: TopicTree) -> bool:
    """All filters, one after the other; an XPath over all topics."""
    return all(
        path in xpath.parse_normal(each.normal).select(topics)
        if each.normal.startswith(XPATH_SCHEME)
        else parse_normal(each.normal).matches(path)
        for each in subscription.topics
    )
