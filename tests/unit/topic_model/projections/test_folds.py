"""Folds over control records: pull points, registrations of publishers, owners, suspensions, erasures."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, TypeVar
from unittest.mock import Mock, call

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.projections import registrations
from arborcast.topic_model.projections.erasures import covering, covers, mentions, scopes_of
from arborcast.topic_model.projections.owners import Owners
from arborcast.topic_model.projections.pull_points import PullPoints
from arborcast.topic_model.projections.registrations import Registrations
from arborcast.topic_model.projections.suspensions import Suspensions
from arborcast.topic_model.publishers import Registration, Upstream
from arborcast.topic_model.records.control import (
    ControlRecord,
    Erasure,
    ErasureScope,
    PullPointEnded,
    PullPointRecord,
    RegistrationEnded,
    RegistrationRecord,
    SubscriptionEnded,
    SubscriptionRecord,
    SubscriptionSuspended,
    Tombstone,
    TopicRecord,
    decode,
    encode,
)
from arborcast.topic_model.records.notifications import Notification, replayed
from arborcast.topic_model.subscriptions import EndpointReference, TopicFilter
from arborcast.topic_model.topics import TopicPath
from tests.support.make import subscription

Fold = TypeVar("Fold", PullPoints, Registrations, Owners, Suspensions)


def folded(fold: Fold, *records: ControlRecord) -> Fold:
    for record in records:
        fold.apply(record)
    return fold


def test_pull_points_by_id_and_by_name() -> None:
    older, newer = PullPointRecord("b", "http://h/b", "orders", 1), PullPointRecord("a", "http://h/a", "orders", 2)
    for order in itertools.permutations((older, newer)):
        points = folded(PullPoints(), *order)
        assert (points.get("b"), points.exists("b"), points.exists("c")) == (older, True, False)
        assert points.named("orders") == older, "of equal names the oldest counts"
        folded(points, PullPointEnded("b", "destroyed", 1), Tombstone("pull:b"))
        assert (points.get("b"), points.exists("b"), points.named("orders")) == (None, False, newer)
        folded(points, msgspec.structs.replace(newer, name="other"))
        assert (points.named("orders"), points.named("other"), len(points)) == (None, points.get("a"), 1)
        folded(points, Tombstone("pull:a"))
        assert (points.named("other"), len(points)) == (None, 0)


@given(st.lists(st.tuples(st.sampled_from("PESXT"), st.sampled_from("abc"), st.sampled_from(["", "a", "b", "c"]))))
def test_pull_points_and_the_subscriptions_that_fill_them(steps: list[tuple[str, str, str]]) -> None:
    points, provisional, fills = PullPoints(), dict[str, bool](), dict[str, str]()
    for kind, name, other in steps:
        match kind:
            case "P":
                points.apply(PullPointRecord(name, f"http://h/{name}", until_ms=5 if other else 0))
                provisional[name] = bool(other)
            case "E" | "T":
                points.apply(PullPointEnded(name, "destroyed", 1) if kind == "E" else Tombstone(f"pull:{name}"))
                provisional.pop(name, None)
            case "S":
                points.apply(SubscriptionRecord(subscription(name, pull_point=other)))
                fills[name] = other
            case _:
                points.apply(SubscriptionEnded(name, "unsubscribed", 1) if other else Tombstone(f"sub:{name}"))
                fills.pop(name, None)
        unused = {each for each, ends in provisional.items() if ends and each not in fills.values()}
        assert (set(points.unused(5)), points.unused(4)) == (unused, [])
        assert {each for each in "abc" if points.is_provisional(each)} == unused
        missing = [each for each, to in fills.items() if to and to not in provisional and fills.get(to) != to]
        assert sorted(points.orphans()) == sorted(missing)
        for each in "abc":
            assert points.subscriptions_of(each) == {filling for filling, to in fills.items() if to == each}


def registration(name: str, publisher: str = "", **more: object) -> Registration:
    at = EndpointReference(publisher) if publisher else None
    return Registration(name, f"http://broker/wsn/registrations/{name}", at, **more)  # type: ignore[arg-type]


def topics(*normals: str) -> tuple[TopicFilter, ...]:
    return tuple(TopicFilter("", normal, normal) for normal in normals)


def is_empty(fold: Registrations) -> bool:
    """Whether nothing is left of ended registrations, except stale times, which are swept."""
    return vars(fold) | {"_expiry": None} == vars(Registrations()) | {"_expiry": None}


def test_registrations_and_the_addresses_of_their_publishers() -> None:
    first = registration("r1", "http://p/", upstream=(Upstream("a", EndpointReference("http://p/s1"), 5, 4, True),))
    fold = folded(Registrations(), RegistrationRecord(first), TopicRecord(TopicPath("a")), Tombstone("sub:r1"))
    assert (list(fold), fold.get("r1")) == ([first], first)
    known_as = partial(fold.known_as, topic=TopicPath("a/b"))
    assert list(known_as("http://p/")) == list(known_as("http://p/s1")) == [first]
    second = registration("r2", "http://p/")
    folded(fold, RegistrationRecord(second))
    assert {each.id for each in known_as("http://p/")} == {"r1", "r2"}

    moved = registration("r1", "http://é.example/é")
    folded(fold, RegistrationRecord(moved))
    assert (list(known_as("http://p/")), fold.is_known("http://p/s1")) == ([second], False)
    for spelling in ("http://é.example/é", "http://xn--9ca.example/%C3%A9"):
        assert list(known_as(spelling)) == [moved]

    folded(fold, RegistrationEnded("r1", "expired", 1), Tombstone("pub:r1"), Tombstone("pub:r2"))
    assert is_empty(fold)


@pytest.mark.parametrize(
    ("normal", "found"),
    [
        ("a/b/c", True),
        ("a/b//.|x", True),
        ("a/*", True),
        ("a//c", True),
        ("{}//c", True),
        ("*//c", True),
        ("a/b/c/d", False),
        ("a/b/d//.", False),
        ("{urn:t}//.", False),
        ("a/b/", False),
    ],
)
def test_only_registrations_with_an_anchor_above_a_topic_are_read_for_it(normal: str, found: bool) -> None:
    of_publisher = RegistrationRecord(registration("r", "http://p/", topics=topics(normal)))
    fold = folded(Registrations(), of_publisher)
    assert ([each.id for each in fold.known_as("http://p/", TopicPath("a/b/c"))] == ["r"]) is found
    assert fold.is_known("http://p/")
    folded(fold, of_publisher, Tombstone("pub:r"))
    assert is_empty(fold)


def test_of_many_patterns_only_those_with_the_name_of_the_topic_are_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher with thousands of patterns must not delay the other requests of its gateway."""
    of_publisher = [registration(f"r{each}", "http://p/", topics=topics(f"{{}}//x{each}")) for each in range(5)]
    one = registration("all", topics=topics(*(f"a/b/x{each}|a//y{each}" for each in range(5))))
    fold = folded(Registrations(), *map(RegistrationRecord, [*of_publisher, one]))
    assert [each.id for each in fold.known_as("http://p/", TopicPath("a/x3"))] == ["r3"]
    parse = Mock(wraps=parse_normal)
    monkeypatch.setattr(registrations, "parse_normal", parse)
    assert fold.permits(one, TopicPath("a/b/x3"), 0)
    assert fold.permits(one, TopicPath("a/y2"), 0)
    assert parse.call_args_list == [call("a/b/x3|a//y3"), call("a/b/x2|a//y2")]


def test_due_registrations() -> None:
    ends = {"over": 10, "now": 20, "later": 21, "never": None}
    made = [RegistrationRecord(registration(name, terminates_ms=at)) for name, at in ends.items()]
    fold = folded(Registrations(), *made)
    assert [fold.due(20, most) for most in (1, 10)] == [("over",), ("over", "now")]
    fold.apply(RegistrationEnded("over", "expired", 20))
    assert fold.due(20, 10) == ("now",)


@pytest.mark.parametrize(
    ("registered", "topic", "permitted"),
    [
        ((), "any/thing", True),
        (("a/b",), "a/b", True),
        (("a/b",), "a/b/c", False),
        (("a//.", "x"), "a/b/c", True),
        (("a//.", "x"), "x", True),
        (("a/*|b",), "b", True),
        (("a//{urn:t}c", "a//b"), "a/x/{urn:t}c", True),
        (("a//{urn:t}c",), "a/x/c", False),
        (("a//{urn:t}c//*",), "a/{urn:t}c/d/e", True),
    ],
)
def test_a_registration_permits_its_topics_until_it_expires(
    registered: tuple[str, ...], topic: str, permitted: bool
) -> None:
    made = registration("r", topics=topics(*registered), terminates_ms=10)
    fold = folded(Registrations(), RegistrationRecord(made))
    assert fold.permits(made, TopicPath(topic), 9) is permitted
    assert not fold.permits(made, TopicPath(topic), 10)


def test_owners_have_each_subscription_once() -> None:
    def record(name: str, owner: str = "anna", **more: Any) -> SubscriptionRecord:
        return SubscriptionRecord(subscription(name, owner=owner, **more))

    owners = folded(Owners(), record("1"), record("2"), record("1", paused=True), record("3", "bert"), record("4", ""))
    assert [owners.subscriptions(name) for name in ("anna", "bert", "", "carl")] == [2, 1, 0, 0]

    def filtered(name: str, *normals: str) -> SubscriptionRecord:
        changed = msgspec.structs.replace(subscription(name, owner="anna"), topics=topics(*normals))
        return SubscriptionRecord(changed)

    folded(owners, filtered("1", "xpath:1"), filtered("2", "xpath:1", "a"), filtered("5", "xpath:1"))
    assert [owners.xpath_expressions(name) for name in ("anna", "bert", "")] == [2, 0, 0], "5 has the expression of 1"
    folded(owners, record("1"), Tombstone.of("sub", "5"))
    assert owners.xpath_expressions("anna") == 1
    folded(owners, record("2", "bert"))
    assert [owners.subscriptions(name) for name in ("anna", "bert")] == [1, 2]
    folded(owners, SubscriptionEnded("1", "unsubscribed", 0), *(Tombstone.of("sub", name) for name in "12345"))
    assert owners.subscriptions("anna") == 0
    assert vars(owners) == vars(Owners())


def test_suspensions() -> None:
    suspended = SubscriptionSuspended("s", "connect: refused", 10, 99)
    active, paused = subscription("s"), subscription("s", paused=True, terminates_ms=1_000)
    none, one = Suspensions(), folded(Suspensions(), suspended, SubscriptionRecord(active))
    assert ("s" in one, set(one.ids()), one.get("s"), list(one)) == (True, {"s"}, suspended, [suspended])
    assert [none.state_of(each, 999) for each in (active, paused)] == ["active", "paused"]
    assert [one.state_of(each, 999) for each in (active, paused)] == ["suspended", "suspended"]
    assert [fold.state_of(each, 1_000) for fold in (none, one) for each in (active, paused)] == [
        *("active", "expired", "suspended", "expired")
    ]
    for over in (
        Tombstone.of("susp", "s"),
        SubscriptionEnded("s", "unsubscribed", 5),
        Tombstone.of("sub", "s"),
    ):
        ended = folded(Suspensions(), suspended, over, over)
        assert ("s" in ended, ended.get("s"), len(ended)) == (False, None, 0)
    assert (one.ids() is one.ids(), one.unjudged() is one.unjudged()) == (True, True), "cached: thousands take time"
    folded(one, SubscriptionSuspended("t", "costly", 10, 99, "conditions"))
    assert (set(one.ids()), set(one.unjudged())) == ({"s", "t"}, {"t"})
    assert folded(one, SubscriptionEnded("t", "unsubscribed", 5)).unjudged() == frozenset()


OLD = Notification("n1", TopicPath("wards/a"), b'<p id="4711">Smith</p>', 1_000)


@pytest.mark.parametrize(
    ("before_ms", "facts", "covered"),
    [
        (1_001, {}, True),
        (1_000, {}, False),
        (2_000, {"topic": "wards//."}, True),
        (2_000, {"topic": "wards"}, False),
        (2_000, {"notification": "n1"}, True),
        (2_000, {"notification": "n2"}, False),
        (2_000, {"subject": "4711"}, True),
        (2_000, {"subject": "Smith"}, True),
        (2_000, {"subject": "471"}, False),
        (2_000, {"topic": "other", "subject": "4711"}, False),
    ],
)
def test_notifications_that_an_erasure_covers(before_ms: int, facts: dict[str, str], covered: bool) -> None:
    scope = ErasureScope("e", before_ms, **facts)
    assert covers(scope, OLD) is covered
    assert covering([ErasureScope("no", 0), scope], OLD) == ("e" if covered else "")


def test_a_replay_is_covered_as_its_notification() -> None:
    assert covers(ErasureScope("e", 10_000, notification="n1"), replayed(OLD, "r1", "s1", 9_000, 5))
    made = "0196f0a0b3c07abc8def0123456789ab"  # the id has the time before its redrive
    at_ms = int(made[:12], 16)
    assert covers(ErasureScope("e", at_ms + 1), Notification(made, TopicPath("a"), b"", at_ms + 60_000))


@pytest.mark.parametrize(
    ("fragment", "there"),
    [
        ("<a>M&#252;ller</a>", True),
        ("<a>Müller</a>", True),
        ('<a><b c=" Müller "/></a>', True),
        ("<a>Herr Müller</a>", False),
        ("<a><!-- Müller --></a>", False),
        ("Müller <", True),
        ("<a/>", False),
    ],
)
def test_a_subject_is_a_whole_text_or_value(fragment: str, there: bool) -> None:
    assert mentions("Müller", fragment.encode()) is there


def test_erasures_are_open_until_they_are_done() -> None:
    control = ControlView()
    asked = Erasure(ErasureScope("e1", 5, topic="a"), "ann", 7)
    done = Erasure(asked.scope, "ann", 7, {"waiting": 2}, 9, {"x": 11})
    for offset, each in enumerate((asked, done)):
        assert decode(*encode(each)) == each
        control.apply(each, offset)
        texts = control.erasures.for_workers
        assert scopes_of(texts) == tuple(one.scope for one in control.erasures.open)
        assert bool(texts) is not bool(each.done_ms)
    assert (control.erasures.all(), control.erasures.scopes) == ([done], (asked.scope,))
    control.apply(Tombstone.of("erase", "e1"), 2)
    assert not control.erasures.all()
    assert not control.erasures.scopes
