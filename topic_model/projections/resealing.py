"""Secrets that were sealed again under another key: what their old ciphertexts have become.

A subscription's own record has many writers: whoever subscribed renews, pauses and ends it through any gateway, the job
ends it when its endpoint is gone. To change the ciphertexts in it, somebody who reads a million subscriptions, seals,
and writes would bring back what others have ended meanwhile, or undo what they have changed. So it has a key of its
own: old ciphertexts to new ones. Where an old one stands in the subscription's record, the new one counts, whichever of
the two records came first; when the subscription is written again, by anybody, the new ones go into its own record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from arborcast.core.security.keyring import KeyRing
from arborcast.topic_model.records.control import SecretsResealed
from arborcast.topic_model.subscriptions import Protection, Subscription


class Resealings:
    """What the last records say of ciphertexts; a part of the routing table. Those of ended subscriptions go with them.

    The ids of subscriptions are never used again, so what comes of an end does not depend on the order of the records.
    """

    def __init__(self) -> None:
        self._records: dict[str, SecretsResealed] = {}
        self._written: dict[str, Protection] = {}

    def current(self, subscription: Subscription) -> Subscription:
        """A subscription as its record has it, with the ciphertexts that count now."""
        if subscription.id not in self._records:
            return subscription
        if subscription.protection is None:
            self._written.pop(subscription.id, None)
            return subscription
        self._written[subscription.id] = subscription.protection
        return _exchanged(subscription, subscription.protection, self._records[subscription.id].sealed)

    def put(self, record: SecretsResealed, known: Subscription | None) -> Subscription | None:
        """Take a record; returns what becomes of `known`, the subscription as it was until now."""
        self._records[record.id] = record
        if known is None or known.protection is None:
            return known
        written = self._written.setdefault(known.id, known.protection)
        return _exchanged(known, written, record.sealed)

    def take_back(self, subscription_id: str, known: Subscription | None) -> Subscription | None:
        """The record is gone; what becomes of `known`: its own record holds again."""
        self._records.pop(subscription_id, None)
        written = self._written.pop(subscription_id, None)
        return known if known is None or written is None else msgspec.structs.replace(known, protection=written)

    def ended(self, subscription_id: str) -> None:
        """Its subscription is over."""
        self._records.pop(subscription_id, None)
        self._written.pop(subscription_id, None)

    def still_used(self, subscription_id: str) -> Mapping[str, str]:
        """Of what was sealed again before, that whose old ciphertext is still in the subscription's own record."""
        record, written = self._records.get(subscription_id), self._written.get(subscription_id)
        if record is None or written is None:
            return {}
        there = set(_of(written))
        return {old: new for old, new in record.sealed.items() if old in there}

    def __len__(self) -> int:
        return len(self._records)


def sealed_in(subscription: Subscription) -> Iterator[str]:
    """All ciphertexts of a subscription."""
    if subscription.protection is not None:
        yield from _of(subscription.protection)


def resealed(subscription: Subscription, keys: KeyRing, before: Mapping[str, str]) -> SecretsResealed | None:
    """The record that has all secrets of a subscription sealed with the first key; None where they are already.

    `before` is `Resealings.still_used`. Raises SecretError for a secret that cannot be opened.
    """
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
    """Which key a ciphertext was sealed with."""
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
