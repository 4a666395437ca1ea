"""What must hold for every history, however records come and whatever was compacted away."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from arborcast.topic_model.patterns.alternatives import Reach
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.records.control import ControlRecord, SubscriptionEnded, TopicRemoved
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.routing.selectors import is_one_topic, is_simple
from arborcast.topic_model.topics import TopicPath
from tests.support.routing import NaiveTable, compacted, histories, normals, paths


def fold(history: list[ControlRecord], table: RoutingTable | None = None) -> RoutingTable:
    table = RoutingTable() if table is None else table
    for record in history:
        table.apply(record)
    return table


def everything(table: RoutingTable, asked: list[TopicPath]) -> list[object]:
    """All that can be seen from outside, derived structures included."""
    return [
        {path: table.match(path) for path in asked},
        {path: table.who(path) for path in asked},
        sorted(table.expansion()),
        table.due(5),
        table.next_due_ms(),
        {each.id: each for each in table.subscriptions()},
    ]


@given(histories, st.lists(paths, min_size=1, max_size=12))
def test_matches_are_those_of_the_naive_model(history: list[ControlRecord], asked: list[TopicPath]) -> None:
    table, model = RoutingTable(), NaiveTable()
    for record in history:
        table.apply(record)
        model.apply(record)
        # After every record, so that answers remembered from before have to be forgotten where they changed.
        now = model.now()
        for path in asked:
            assert {each.id: each for each in table.match(path)} == {found: now[found] for found in model.match(path)}
    now = model.now()
    for path in asked:
        assert table.fan_out(path) == len(model.match(path))
        assert {route.subscription_id for route in table.who(path)} == model.who(path)
        assert all(route.subscription == now[route.subscription_id] for route in table.who(path))
    routes = {(route.topic, route.subscription_id) for route in table.routes()}
    assert routes == {(path, found) for path in model.topics.paths() for found in model.who(path)}
    assert {each.id: each for each in table.subscriptions()} == now


@given(histories, st.lists(paths, max_size=8))
def test_a_compacted_log_folds_to_the_same_table(history: list[ControlRecord], asked: list[TopicPath]) -> None:
    whole, rest = fold(history), fold(compacted(history))
    assert whole == rest
    assert everything(whole, asked) == everything(rest, asked)


@given(histories, st.randoms(use_true_random=False), st.lists(paths, max_size=8))
def test_keys_may_be_applied_in_any_order(history: list[ControlRecord], random: object, asked: list[TopicPath]) -> None:
    left = compacted(history)
    shuffled = list(left)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert everything(fold(left), asked) == everything(fold(shuffled), asked)


@given(histories, st.lists(paths, max_size=8))
def test_applying_the_last_record_of_each_key_again_changes_nothing(
    history: list[ControlRecord], asked: list[TopicPath]
) -> None:
    table = fold(history)
    before = everything(table, asked)
    sizes = table.statistics()
    assert everything(fold(compacted(history), table), asked) == before
    assert table.statistics() == sizes


@given(histories, st.lists(paths, max_size=8), st.integers(1, 4))
def test_forgetting_answers_early_changes_no_answer(
    history: list[ControlRecord], asked: list[TopicPath], capacity: int
) -> None:
    generous, tight = fold(history), fold(history, RoutingTable(remembered_answers=capacity))
    for path in (*asked, *asked):
        assert tight.match(path) == generous.match(path)
    assert tight.remembered <= 2 * capacity


@given(histories, st.lists(paths, min_size=1, max_size=8))
def test_a_view_behind_the_last_change_of_a_topic_has_its_answer_of_now(
    history: list[ControlRecord], asked: list[TopicPath]
) -> None:
    table = RoutingTable()
    answers = [{path: table.match(path) for path in asked}]  # by position
    for offset, record in enumerate(history):
        table.apply(record, offset)
        answers.append({path: table.match(path) for path in asked})
        for path in asked:
            assert all(seen[path] == answers[-1][path] for seen in answers[table.changed_before(path) :])


@given(histories)
def test_ending_everything_leaves_an_empty_table(history: list[ControlRecord]) -> None:
    table = fold(history)
    for subscription in list(table.subscriptions()):
        table.apply(SubscriptionEnded(subscription.id, "unsubscribed", 0))
    for path in list(table.topics.paths()):
        table.apply(TopicRemoved(path))
    assert table == RoutingTable()
    assert list(table.expansion()) == []
    sizes = table.statistics()
    assert (sizes.subscriptions, sizes.selectors, sizes.links, sizes.steps) == (0, 0, 0, 0)


@given(normals)
def test_simple_selectors_are_told_by_their_text(normal: str) -> None:
    alternatives = parse_normal(normal).alternatives
    simple = len(alternatives) == 1 and not alternatives[0].rest
    assert is_simple(normal) == simple
    if simple:
        assert is_one_topic(normal) == (alternatives[0].reach is Reach.SELF)
