"""Records of operators' changes: contents for each control record, and their limits."""

from __future__ import annotations

import json

import msgspec
import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.topic_model.records.control import (
    ControlRecord,
    SubscriptionEnded,
    SubscriptionRecord,
    Tombstone,
    TopicPlaces,
    TopicRecord,
    TopicRemoved,
)
from arborcast.topic_model.records.operations import (
    MAX_CHANGES,
    OperationBegun,
    OperationEnded,
    Operator,
    RecordedChange,
    begun,
    change,
    control_changes,
    decode,
    encode,
    ended,
    failed,
    pieces_of,
)
from arborcast.topic_model.subscriptions import Protection, SigningSecret
from arborcast.topic_model.topics import TopicPath
from tests.support.routing import make_subscription

BY = Operator("command", "anna@here")


def test_changes_of_topics_have_their_facts_before_and_after() -> None:
    before = {"a/b": TopicRecord(TopicPath("a/b"), code="1.1"), "c": TopicRecord(TopicPath("c"))}
    records: list[ControlRecord] = [
        TopicRecord(TopicPath("a/b"), code="1.2", prefixes="t"),
        TopicRemoved(TopicPath("c")),
        TopicPlaces(TopicPath("a")),  # this one and the next change no topic
        Tombstone.of("sub", "s1"),
    ]
    (changed, removed), more = control_changes(records, before.get)
    assert (changed.subject, removed.subject, more) == ("a/b", "c", 0)
    facts = json.loads(changed.before), json.loads(changed.after)
    assert [each.get("code") for each in facts] == ["1.1", "1.2"]
    assert not any("path" in each or "prefixes" in each for each in facts)
    assert (bool(removed.before), removed.after) == (True, "")


def test_changes_of_subscriptions_have_no_secrets() -> None:
    protection = Protection(secrets=(SigningSecret("k:sealed"),), authorization="k:token")
    made = make_subscription("s1", "a", consumer="http://r/", protection=protection)
    paused = msgspec.structs.replace(made, paused=True)
    (pausing, ending, resumed), _ = control_changes(
        [SubscriptionRecord(paused), SubscriptionEnded("s1", "removed", 1), Tombstone.of("susp", "s1")],
        {"s1": made}.get,
    )
    assert (json.loads(pausing.before)["paused"], json.loads(pausing.after)["paused"]) == (False, True)
    assert (ending.subject, ending.after) == ("s1", "")
    assert resumed == RecordedChange("s1", '"suspended"', '"resumed"')
    shown = pausing.before + pausing.after + ending.before
    assert ("sealed" in shown, "token" in shown) == (False, False)


def test_of_many_changes_the_first_are_recorded_the_rest_counted() -> None:
    records = [TopicRecord(TopicPath(f"t{number}")) for number in range(MAX_CHANGES + 5)]
    found, more = control_changes(records, lambda _: None)
    assert (len(found), more) == (MAX_CHANGES, 5)
    pieces = list(pieces_of(begun(BY, "topics import", found, more)))
    assert [each for piece in pieces for each in piece.changes] == found
    assert [piece.first for piece in pieces] == list(range(0, MAX_CHANGES, len(pieces[0].changes)))
    assert (sum(piece.more for piece in pieces), len({piece.id for piece in pieces})) == (5, 1)

    large = [change("ü" * 100_000, "ü" * 100_000, "ü" * 100_000) for _ in range(100)]
    assert max(len(encode(each)[1]) for each in pieces_of(begun(BY, "x", large))) < 1_000_000
    assert large[0].after.endswith("…")


def test_records_are_read_as_they_were_written() -> None:
    operation = begun(BY, "users add", [change("anna", None, {"groups": ["a"]})], 3)
    assert isinstance(operation, OperationBegun)
    away = failed(operation, InfrastructureError("Kafka is away"))
    for record in (operation, ended(operation, "done"), away):
        assert decode(encode(record)[1]) == record
    assert away == OperationEnded(operation.id, "failed: Kafka is away", 1)
    assert failed(operation, KeyboardInterrupt()).result == "failed: KeyboardInterrupt"
    with pytest.raises(InfrastructureError):
        decode(b"damaged")
