from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arborcast.topic_model.records.control import SubscriptionRecord, ending
from arborcast.topic_model.routing import members
from arborcast.topic_model.routing.groups import Group
from arborcast.topic_model.routing.members import PIECE, Answer, Members, answer_of, joined, order, replaced
from arborcast.topic_model.routing.selectors import selector_of
from arborcast.topic_model.snapshot import Snapshot, SnapshotView
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.routing import table_of

MANY = 8_000
A = TopicPath("a")


def subscription(number: int, created_ms: int = 0, paused: bool = False) -> Subscription:
    return Subscription(
        f"s{number:06}",
        EndpointReference(f"http://{number}/"),
        created_ms=created_ms or number,
        paused=paused,
        pull_point="p" if paused else "",  # a paused pushed subscription still receives: messages are parked
    )


def many(count: int = MANY) -> list[Subscription]:
    return [subscription(number) for number in range(1, count + 1)]


def new_members(before: Answer, after: Answer) -> int:
    """The number of members in pieces that `before` does not have."""
    assert isinstance(before, Members)
    assert isinstance(after, Members)
    known = {id(piece) for piece in before.pieces}
    return sum(len(piece) for piece in after.pieces if id(piece) not in known)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "PIECE", 4)
    monkeypatch.setattr("arborcast.topic_model.routing.groups.PIECE", 4)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 5), st.sampled_from(["there", "paused", "gone"]))))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("small_pieces")
def test_a_group_against_a_sorted_list(history: list[tuple[int, int, str]]) -> None:
    known: dict[str, Subscription] = {}
    group = Group(())
    for number, created_ms, what in history:
        old = known.pop(f"s{number:06}", None)
        if old is not None:
            group.remove(old)
        if what != "gone":
            new = subscription(number, created_ms, paused=what == "paused")
            known[new.id] = new
            group.add(new)
        expected = sorted(known.values(), key=order)
        assert (len(group), list(group)) == (len(expected), expected)
        assert group.active() == tuple(each for each in expected if each.receives)
    with pytest.raises(ValueError, match="not a member"):
        group.remove(subscription(999))


@given(
    st.sets(st.integers(1, 60)),
    st.dictionaries(st.integers(1, 60), st.tuples(st.integers(1, 60), st.sampled_from(["there", "gone"]))),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("small_pieces")
def test_replacing_against_sorting(numbers: set[int], changes: dict[int, tuple[int, str]]) -> None:
    known = [subscription(number) for number in sorted(numbers)]
    present = [subscription(number, created_ms) for number, (created_ms, what) in changes.items() if what == "there"]
    touched = {f"s{number:06}" for number in changes}
    after = replaced(answer_of(tuple(sorted(known, key=order))), touched, present)
    kept = [each for each in known if each.id not in touched]
    assert after == tuple(sorted((*kept, *present), key=order))


def test_members_are_a_sequence_like_the_tuple_of_all() -> None:
    everybody = tuple(many(3 * PIECE))
    found = answer_of(everybody)
    assert isinstance(found, Members)
    assert (len(found), tuple(found), found[0], found[-1]) == (len(everybody), everybody, everybody[0], everybody[-1])
    assert [found[PIECE - 1], found[PIECE], found[5:7]] == [everybody[PIECE - 1], everybody[PIECE], everybody[5:7]]
    assert found == everybody
    assert found != everybody[1:]
    for index in (len(everybody), -len(everybody) - 1):
        with pytest.raises(IndexError):
            found[index]
    assert joined([found, (everybody[0],)]) == (*everybody, everybody[0])


def test_a_change_of_one_member_copies_a_few_pieces() -> None:
    table = table_of(*map(SubscriptionRecord, many()))
    checkpoint = table.checkpoint()
    snapshot = Snapshot.build(checkpoint)
    before = SnapshotView(snapshot, checkpoint.overlay()).match(A)
    assert before == table.match(A)
    for record in (
        SubscriptionRecord(subscription(MANY + 1)),
        SubscriptionRecord(msgspec.structs.replace(subscription(7), paused=True)),
        *ending(subscription(MANY // 2).id, "unsubscribed", 1),
    ):
        table.apply(record)
        after = SnapshotView(snapshot, checkpoint.overlay()).match(A)
        assert after == table.match(A)
        assert new_members(before, after) <= 3 * 2 * PIECE
    assert len(after) == MANY
    assert new_members(after, joined([after, (subscription(1),)])) == 1


def test_a_popular_topic_is_unpacked_once() -> None:
    table = table_of(*map(SubscriptionRecord, many()))
    snapshot = Snapshot.build(table.checkpoint())
    (selector,) = {selector_of(each) for each in table.subscriptions()}
    popular = snapshot.members(selector)
    for _ in range(10):
        assert snapshot.members("nobody") == ()
        assert snapshot.members(selector) is popular
