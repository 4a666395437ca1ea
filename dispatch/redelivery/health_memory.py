"""What is known of sick endpoints, kept beside what waits for them: a restart costs no batch the time-outs once more,
and days of failing are still days."""

from __future__ import annotations

import logging

import msgspec

from dispatch.health import Health
from dispatch.health_book import HealthBook
from dispatch.redelivery.parked_store import ParkedStore

logger = logging.getLogger(__name__)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(dict[str, Health])


class HealthMemory:
    """Used by one thread. The store's errors are raised."""

    def __init__(self, store: ParkedStore, health: HealthBook) -> None:
        self._store = store
        self._health = health
        self._kept: dict[str, Health] = {}

    def keep(self) -> bool:
        """Have the store remember what is known now; whether that is anything new."""
        known = self._health.everything()
        if known == self._kept:
            return False
        self._store.remember("health", _encoder.encode(known))
        self._kept = known
        return True

    def restore(self) -> None:
        """Take in what an earlier process knew."""
        kept = self._store.recall("health")
        try:
            self._health.restore({} if kept is None else _decoder.decode(kept))
        except msgspec.DecodeError as error:
            logger.info("what was known of sick endpoints cannot be read, it will be learned again: %s", error)
