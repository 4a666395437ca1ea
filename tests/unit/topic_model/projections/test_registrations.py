"""The fold of publisher registrations, and what a registration permits."""

from __future__ import annotations

import itertools

import pytest

from arborcast.topic_model.projections.registrations import Registrations, permits
from arborcast.topic_model.publishers import Registration, Upstream
from arborcast.topic_model.records.control import (
    ControlRecord,
    RegistrationEnded,
    RegistrationRecord,
    Tombstone,
    TopicRecord,
)
from arborcast.topic_model.subscriptions import EndpointReference, TopicFilter
from arborcast.topic_model.topics import TopicPath


def registration(name: str, **more: object) -> Registration:
    return Registration(name, f"http://broker/wsn/registrations/{name}", **more)  # type: ignore[arg-type]


def test_publishers_are_known_by_every_spelling_of_their_address() -> None:
    registrations = Registrations()
    registrations.apply(RegistrationRecord(registration("r1", publisher=EndpointReference("http://é.example/é"))))
    for spelling in ("http://é.example/é", "http://xn--9ca.example/%C3%A9"):
        assert [one.id for one in registrations.known_as(spelling)] == ["r1"]
    registrations.apply(RegistrationEnded("r1", "destroyed", 7))
    assert registrations.known_as("http://é.example/é") == []


def topics(*normals: str) -> tuple[TopicFilter, ...]:
    return tuple(TopicFilter("", normal, normal) for normal in normals)


FULL = registration(
    "r1",
    publisher=EndpointReference("http://p/", ("<k xmlns='urn:k'/>",)),
    topics=(TopicFilter("urn:d", "t:a", "{urn:t}a", {"t": "urn:t"}),),
    demand=True,
    soap="1.2",
    addressing=True,
    created_ms=1,
    terminates_ms=2,
    upstream=(Upstream("{urn:t}a", EndpointReference("http://p/s1"), 5, 4, True),),
    pausable=False,
)


def test_registrations_come_change_and_go() -> None:
    fold = Registrations()
    for record in (RegistrationRecord(FULL), TopicRecord(TopicPath("a")), Tombstone("sub:r1")):
        fold.apply(record)
    assert list(fold) == [FULL]
    assert fold.get("r1") == FULL
    assert fold.known_as("http://p/") == fold.known_as("http://p/s1") == [FULL]

    moved = registration("r1", publisher=EndpointReference("http://q/"))
    fold.apply(RegistrationRecord(moved))
    assert fold.known_as("http://p/") == fold.known_as("http://p/s1") == []
    assert fold.known_as("http://q/") == [moved]

    fold.apply(RegistrationEnded("r1", "expired", 1))
    fold.apply(Tombstone("pub:r1"))
    assert fold.get("r1") is None
    assert fold.known_as("http://q/") == []
    assert len(fold) == 0


def test_two_registrations_of_one_publisher() -> None:
    fold = Registrations()
    publisher = EndpointReference("http://p/")
    for name in ("r1", "r2"):
        fold.apply(RegistrationRecord(registration(name, publisher=publisher)))
    assert {one.id for one in fold.known_as("http://p/")} == {"r1", "r2"}
    fold.apply(Tombstone("pub:r1"))
    assert [one.id for one in fold.known_as("http://p/")] == ["r2"]


def test_any_suffix_that_compaction_leaves_gives_the_same() -> None:
    """Only the last record of a key counts, whatever came before it was taken away or not."""
    records: list[ControlRecord] = [
        RegistrationRecord(registration("r1", publisher=EndpointReference("http://p/"))),
        RegistrationRecord(registration("r1", publisher=EndpointReference("http://q/"))),
        RegistrationEnded("r2", "destroyed", 1),
        RegistrationRecord(registration("r3")),
    ]
    expected = {"r1": "http://q/", "r3": None}
    for kept in itertools.product([True, False], repeat=2):
        fold = Registrations()
        for record, keep in zip(records, [kept[0], True, kept[1], True], strict=True):
            if keep:
                fold.apply(record)
        assert {one.id: one.publisher.address if one.publisher else None for one in fold} == expected
        assert fold.known_as("http://p/") == []


def test_due_are_those_whose_time_is_over() -> None:
    fold = Registrations()
    for name, ends in (("over", 10), ("now", 20), ("later", 21), ("never", None)):
        fold.apply(RegistrationRecord(registration(name, terminates_ms=ends)))
    assert set(fold.due(20)) == {"over", "now"}


@pytest.mark.parametrize(
    ("registered", "topic", "permitted"),
    [
        ((), "any/thing", True),
        (("a/b",), "a/b", True),
        (("a/b",), "a/b/c", False),
        (("a//.", "x"), "a/b/c", True),
        (("a//.", "x"), "x", True),
        (("a/*|b",), "b", True),
    ],
)
def test_a_registration_permits_its_topics(registered: tuple[str, ...], topic: str, permitted: bool) -> None:
    assert permits(registration("r", topics=topics(*registered)), TopicPath(topic), 0) is permitted


def test_an_expired_registration_permits_nothing() -> None:
    assert permits(registration("r", terminates_ms=10), TopicPath("a"), 9)
    assert not permits(registration("r", terminates_ms=10), TopicPath("a"), 10)
