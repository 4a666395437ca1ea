"""Secrets resealed with another key: a map from old ciphertexts to new ones.

A subscription's record has several writers: clients renew, pause and end it through any gateway, and the job ends it. A
resealing process that rewrote a million subscriptions would undo concurrent changes. Resealed secrets therefore have a
separate key. The new ciphertext replaces the old one in the subscription's record, whichever was written first; the
next record of the subscription contains the new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from arborcast.core.security.keyring import KeyRing
from arborcast.topic_model.records.control import SecretsResealed
from arborcast.topic_model.subscriptions import Protection, Subscription


class Resealings:
    """The last resealing record of each subscription; a part of the routing table. Records of ended subscriptions are
    removed. Subscription ids are never reused, so the result does not depend on the order of records."""

    def __init__(self) -> None:
        self._records: dict[str, SecretsResealed] = {}
        self._written: dict[str, Protection] = {}

    def current(self, subscription: Subscription) -> Subscription:
        """The subscription with its current ciphertexts."""
        if subscription.id not in self._records:
            return subscription
        if subscription.protection is None:
            self._written.pop(subscription.id, None)
            return subscription
        self._written[subscription.id] = subscription.protection
        return _exchanged(subscription, subscription.protection, self._records[subscription.id].sealed)

    def put(self, record: SecretsResealed, known: Subscription | None) -> Subscription | None:
        """Apply a record; returns the changed subscription."""
        self._records[record.id] = record
        if known is None or known.protection is None:
            return known
        written = self._written.setdefault(known.id, known.protection)
        return _exchanged(known, written, record.sealed)

    def remove(self, subscription_id: str, known: Subscription | None) -> Subscription | None:
        """Apply the deletion of a record; returns the subscription with its original ciphertexts."""
        self._records.pop(subscription_id, None)
        written = self._written.pop(subscription_id, None)
        return known if known is None or written is None else msgspec.structs.replace(known, protection=written)

    def ended(self, subscription_id: str) -> None:
        self._records.pop(subscription_id, None)
        self._written.pop(subscription_id, None)

    def unreplaced(self, subscription_id: str) -> Mapping[str, str]:
        """Entries with an old ciphertext that is still in the subscription's record."""
        record, written = self._records.get(subscription_id), self._written.get(subscription_id)
        if record is None or written is None:
            return {}
        present = set(_of(written))
        return {old: new for old, new in record.sealed.items() if old in present}

    def __len__(self) -> int:
        return len(self._records)


def sealed_in(subscription: Subscription) -> Iterator[str]:
    """All ciphertexts of a subscription."""
    if subscription.protection is not None:
        yield from _of(subscription.protection)


def resealed(subscription: Subscription, keys: KeyRing, before: Mapping[str, str]) -> SecretsResealed | None:
    """The record that reseals all secrets of a subscription with the first key; None if they already are sealed with
    it. `before` is `Resealings.unreplaced`. Raises SecretError for a secret that cannot be opened."""
    context = subscription.sealing_context()
    fresh = {
        each: keys.seal(keys.open(each, context), context)
        for each in sealed_in(subscription)
        if key_id(each) != keys.current
    }
    if not fresh:
        return None
    return SecretsResealed(subscription.id, {old: fresh.get(new, new) for old, new in before.items()} | fresh)


def key_id(sealed: str) -> str:
    """The id of the key of a ciphertext."""
    return sealed.partition(":")[0]


def _of(protection: Protection) -> Iterator[str]:
    yield from (secret.sealed for secret in protection.secrets)
    if protection.authorization:
        yield protection.authorization


def _exchanged(subscription: Subscription, written: Protection, sealed: Mapping[str, str]) -> Subscription:
    secrets = tuple(
        [msgspec.structs.replace(each, sealed=sealed.get(each.sealed, each.sealed)) for each in written.secrets]
    )
    authorization = sealed.get(written.authorization, written.authorization)
    protection = msgspec.structs.replace(written, secrets=secrets, authorization=authorization)
    return msgspec.structs.replace(subscription, protection=protection)
