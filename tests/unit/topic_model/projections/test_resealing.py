"""Ciphertexts that are exchanged beside the records that they stand in, whoever writes those meanwhile."""

from __future__ import annotations

import msgspec
import pytest

from arborcast.admin.resealing import SealedSecrets
from arborcast.core.errors import SecretError
from arborcast.core.security.keyring import KeyRing
from arborcast.topic_model.projections.resealing import key_id, resealed, sealed_in
from arborcast.topic_model.records.control import (
    ControlRecord,
    SecretsResealed,
    SubscriptionEnded,
    SubscriptionRecord,
    Tombstone,
    resealing_key,
    subscription_key,
)
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.subscriptions import EndpointReference, Protection, SigningSecret, Subscription, TopicFilter

OLD = KeyRing({"old": b"o" * 32})
BOTH = KeyRing({"new": b"n" * 32, "old": b"o" * 32})
NEW = KeyRing({"new": b"n" * 32})
THIRD = KeyRing({"third": b"t" * 32, "new": b"n" * 32})


def subscription(name: str = "s", protection: Protection | None = None) -> Subscription:
    return Subscription(
        name, EndpointReference("http://c/"), topics=(TopicFilter("urn:d", "a", "a"),), protection=protection
    )


def protected(name: str = "s", keys: KeyRing = OLD) -> Subscription:
    """With two signing secrets, one of them on its way out, and credentials."""
    context = subscription(name).sealing_context()
    secrets = (SigningSecret(keys.seal(b"1" * 24, context)), SigningSecret(keys.seal(b"2" * 24, context), 99))
    return subscription(name, Protection(secrets, keys.seal(b"Basic x", context), "plant"))


def opened(found: Subscription, keys: KeyRing) -> list[bytes]:
    return [keys.open(each, found.sealing_context()) for each in sealed_in(found)]


def fold(*records: ControlRecord) -> RoutingTable:
    table = RoutingTable()
    for record in records:
        table.apply(record)
    return table


def the_one(table: RoutingTable) -> Subscription:
    (found,) = table.subscriptions()
    return found


def exchange(table: RoutingTable, keys: KeyRing = BOTH) -> SecretsResealed:
    found = the_one(table)
    record = resealed(found, keys, table.resealings.unreplaced(found.id))
    assert record is not None
    return record


def test_all_secrets_open_with_the_new_key_alone_and_nothing_else_changes() -> None:
    before = protected()
    table = fold(SubscriptionRecord(before))
    table.apply(exchange(table))
    after = the_one(table)
    assert opened(after, NEW) == opened(before, OLD)
    assert {key_id(each) for each in sealed_in(after)} == {"new"}
    assert before.protection is not None
    assert after.protection is not None
    assert [each.until_ms for each in after.protection.secrets] == [None, 99]
    assert msgspec.structs.replace(after, protection=before.protection) == before
    assert resealed(after, BOTH, table.resealings.unreplaced("s")) is None, "there is nothing left to do"


def test_what_was_written_by_somebody_who_did_not_know_is_exchanged_too() -> None:
    before = protected()
    table = fold(SubscriptionRecord(before))
    record = exchange(table)
    late = msgspec.structs.replace(before, paused=True, terminates_ms=7)
    orders: list[list[ControlRecord]] = [[record, SubscriptionRecord(late)], [SubscriptionRecord(late), record]]
    for order in orders:
        found = the_one(fold(SubscriptionRecord(before), *order))
        assert (found.paused, found.terminates_ms) == (True, 7), "nobody's change is undone"
        assert opened(found, NEW) == opened(before, OLD)


def test_what_has_ended_does_not_come_back() -> None:
    before = protected()
    record = exchange(fold(SubscriptionRecord(before)))
    for end in (SubscriptionEnded("s", "unsubscribed", 1), Tombstone(subscription_key("s"))):
        table = fold(SubscriptionRecord(before), end, record)
        assert list(table.subscriptions()) == []
        table = fold(SubscriptionRecord(before), record, end)
        assert list(table.subscriptions()) == []
        assert len(table.resealings) == 0, "and nothing of it stays in memory"


def test_keys_are_changed_again_before_anybody_has_written_the_subscription() -> None:
    before = protected()
    table = fold(SubscriptionRecord(before))
    first = exchange(table)
    table.apply(first)
    second = exchange(table, THIRD)
    assert set(second.sealed) == set(sealed_in(before)) | set(first.sealed.values())
    only_third = KeyRing({"third": b"t" * 32})
    for records in ([first, second], [second]):
        assert opened(the_one(fold(SubscriptionRecord(before), *records)), only_third) == opened(before, OLD)
    # Somebody writes it with what the first change gave it.
    late = SubscriptionRecord(the_one(fold(SubscriptionRecord(before), first)))
    assert opened(the_one(fold(SubscriptionRecord(before), second, late)), only_third) == opened(before, OLD)
    # Once it is written with the newest, what was before is not carried on.
    table = fold(
        SubscriptionRecord(before), second, SubscriptionRecord(the_one(fold(SubscriptionRecord(before), second)))
    )
    fourth = exchange(table, KeyRing({"fourth": b"f" * 32, "third": b"t" * 32}))
    assert len(fourth.sealed) == 3


def test_taken_back_the_subscriptions_own_record_holds() -> None:
    before = protected()
    table = fold(SubscriptionRecord(before))
    table.apply(exchange(table))
    table.apply(Tombstone(resealing_key("s")))
    assert the_one(table) == before
    table.apply(SubscriptionRecord(subscription()))
    assert the_one(table).protection is None


def test_protection_that_was_given_up_stays_given_up() -> None:
    table = fold(SubscriptionRecord(protected()))
    record = exchange(table)
    table.apply(record)
    table.apply(SubscriptionRecord(subscription()))
    for more in (record, Tombstone(resealing_key("s"))):
        table.apply(more)
        assert the_one(table).protection is None


def log_of(*records: ControlRecord) -> SealedSecrets:
    secrets = SealedSecrets()
    for record in records:
        secrets.apply(record)
    return secrets


def test_a_look_counts_and_leaves_what_cannot_be_opened() -> None:
    strange = protected("strange", KeyRing({"lost": b"l" * 32}))
    moved = protected("moved")
    moved = msgspec.structs.replace(moved, consumer=EndpointReference("http://evil/"))
    done = protected("done", NEW)
    plain = subscription("plain")
    known = [SubscriptionRecord(each) for each in (protected(), strange, moved, done, plain)]
    records, report = log_of(*known).plan(BOTH)
    assert [record.id for record in records if isinstance(record, SecretsResealed)] == ["s"]
    assert (len(records), report.subscriptions, report.secrets) == (1, 1, 3)
    assert report.sealed == {"old": 6, "lost": 3, "new": 3}
    assert report.stuck.keys() == {"strange", "moved"}
    assert "'lost', which is not in the key file" in report.stuck["strange"]
    again, report = log_of(*known, *records).plan(BOTH)
    assert (again, report.secrets, report.sealed) == ([], 0, {"new": 6, "lost": 3, "old": 3})


def test_what_is_left_in_the_log_of_ended_subscriptions_is_taken_away() -> None:
    record = exchange(fold(SubscriptionRecord(protected())))
    history: list[ControlRecord] = [SubscriptionRecord(protected()), record, Tombstone(subscription_key("s"))]
    records, report = log_of(*history).plan(BOTH)
    assert (records, report.secrets) == ([Tombstone(resealing_key("s"))], 0)
    assert log_of(*history, *records).plan(BOTH)[0] == []


def test_a_secret_that_cannot_be_opened_is_never_written() -> None:
    with pytest.raises(SecretError):
        resealed(protected(), NEW, {})
