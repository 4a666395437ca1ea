"""Ciphertexts exchanged in separate records, with concurrent changes of the subscriptions."""

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
)
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.subscriptions import EndpointReference, Protection, SigningSecret, Subscription
from tests.support.make import subscription
from tests.support.routing import table_of

OLD = KeyRing({"old": b"o" * 32})
BOTH = KeyRing({"new": b"n" * 32, "old": b"o" * 32})
NEW = KeyRing({"new": b"n" * 32})
THIRD = KeyRing({"third": b"t" * 32, "new": b"n" * 32})


def protected(name: str = "s", keys: KeyRing = OLD) -> Subscription:
    """With two signing secrets, one of them expiring, and credentials."""
    context = subscription(name).sealing_context()
    secrets = (SigningSecret(keys.seal(b"1" * 24, context)), SigningSecret(keys.seal(b"2" * 24, context), 99))
    return subscription(name, protection=Protection(secrets, keys.seal(b"Basic x", context), "plant"))


def opened(found: Subscription, keys: KeyRing) -> list[bytes]:
    return [keys.open(each, found.sealing_context()) for each in sealed_in(found)]


def the_one(table: RoutingTable) -> Subscription:
    (found,) = table.subscriptions()
    return found


def exchange(table: RoutingTable, keys: KeyRing = BOTH) -> SecretsResealed:
    found = the_one(table)
    record = resealed(found, keys, table.resealings.unreplaced(found.id))
    assert record is not None
    return record


def test_secrets_open_with_the_new_key_alone() -> None:
    before = protected()
    table = table_of(SubscriptionRecord(before))
    table.apply(exchange(table))
    after = the_one(table)
    assert opened(after, NEW) == opened(before, OLD)
    assert {key_id(each) for each in sealed_in(after)} == {"new"}
    assert before.protection is not None
    assert after.protection is not None
    assert [each.until_ms for each in after.protection.secrets] == [None, 99]
    assert msgspec.structs.replace(after, protection=before.protection) == before
    assert resealed(after, BOTH, table.resealings.unreplaced("s")) is None, "nothing left to exchange"
    with pytest.raises(SecretError):
        resealed(before, NEW, {})


def test_a_concurrent_change_with_old_secrets_is_exchanged_too() -> None:
    before = SubscriptionRecord(protected())
    record = exchange(table_of(before))
    late = SubscriptionRecord(msgspec.structs.replace(before.subscription, paused=True, terminates_ms=7))
    for table in (table_of(before, record, late), table_of(before, late, record)):
        found = the_one(table)
        assert (found.paused, found.terminates_ms) == (True, 7)
        assert opened(found, NEW) == opened(before.subscription, OLD)


@pytest.mark.parametrize("end", [SubscriptionEnded("s", "unsubscribed", 1), Tombstone.of("sub", "s")], ids=repr)
def test_an_ended_subscription_stays_ended(end: ControlRecord) -> None:
    before = SubscriptionRecord(protected())
    record = exchange(table_of(before))
    assert list(table_of(before, end, record).subscriptions()) == []
    table = table_of(before, record, end)
    assert (list(table.subscriptions()), len(table.resealings)) == ([], 0), "nothing of it in memory"


def test_a_second_exchange_before_the_subscription_is_written() -> None:
    made = protected()
    before, only_third = SubscriptionRecord(made), KeyRing({"third": b"t" * 32})
    table = table_of(before)
    first = exchange(table)
    table.apply(first)
    second = exchange(table, THIRD)
    assert set(second.sealed) == set(sealed_in(made)) | set(first.sealed.values())
    # Written with the secrets of the first exchange.
    late = SubscriptionRecord(the_one(table_of(before, first)))
    for records in ([first, second], [second], [second, late]):
        assert opened(the_one(table_of(before, *records)), only_third) == opened(made, OLD)
    # After a record with the newest secrets, earlier ones are dropped.
    table = table_of(before, second, SubscriptionRecord(the_one(table_of(before, second))))
    assert len(exchange(table, KeyRing({"fourth": b"f" * 32, "third": b"t" * 32})).sealed) == 3


def test_a_reverted_exchange_and_removed_protection() -> None:
    before = protected()
    table = table_of(SubscriptionRecord(before))
    record, undone = exchange(table), Tombstone.of("seal", "s")
    table.apply(record)
    table.apply(undone)
    assert the_one(table) == before
    for each in (record, SubscriptionRecord(subscription()), record, undone):
        table.apply(each)
    assert the_one(table).protection is None
    assert the_one(table_of(SubscriptionRecord(before), record, SubscriptionRecord(subscription()))).protection is None


def test_a_plan_excludes_secrets_that_cannot_be_opened() -> None:
    strange = protected("strange", KeyRing({"lost": b"l" * 32}))
    moved = msgspec.structs.replace(protected("moved"), consumer=EndpointReference("http://evil/"))
    known = map(SubscriptionRecord, (protected(), strange, moved, protected("done", NEW), subscription("plain")))
    secrets = SealedSecrets()
    for each in known:
        secrets.apply(each)
    (record,), report = secrets.plan(BOTH)
    assert isinstance(record, SecretsResealed)
    assert (record.id, report.subscriptions, report.secrets) == ("s", 1, 3)
    assert report.sealed == {"old": 6, "lost": 3, "new": 3}
    assert report.stuck.keys() == {"strange", "moved"}
    assert "'lost', which is not in the key file" in report.stuck["strange"]
    secrets.apply(record)
    again, report = secrets.plan(BOTH)
    assert (again, report.secrets, report.sealed) == ([], 0, {"new": 6, "lost": 3, "old": 3})
    # The exchange of an ended subscription is removed from the log.
    secrets.apply(Tombstone.of("sub", "s"))
    records, report = secrets.plan(BOTH)
    assert (records, report.secrets) == ([Tombstone.of("seal", "s")], 0)
    secrets.apply(*records)
    assert secrets.plan(BOTH)[0] == []


def test_resealed_secrets_of_a_removed_camera_remain_until_their_own_null() -> None:
    secrets = SealedSecrets()
    for each in (SecretsResealed("camera:gate", {"old:1": "new:1"}), Tombstone.of("camera", "gate")):
        secrets.apply(each)
    assert secrets.plan(NEW)[0] == [Tombstone.of("seal", "camera:gate")]
