"""Where a receiver may say later how a push ended: an address of the gateway, named in the push.

The gateway is where the subscription is managed, so it needs no setting. The address carries all that is to be known
of the push (`topic_model.records.results`); nothing is kept of it here.
"""

from __future__ import annotations

import logging

from core.errors import SecretError
from core.security.keyring import Marks
from topic_model.records.results import PATH, Promise, write_promise
from topic_model.subscriptions import Subscription

logger = logging.getLogger(__name__)

CALLBACK_HEADER = "Arborcast-Callback"
PUSH_HEADER = "Arborcast-Push"

_MANAGER = "/wsn/subscriptions/"


class Callback:
    """Names addresses for the pushes of one subscription."""

    def __init__(self, subscription: str, base: str, keys: Marks, wait_ms: int) -> None:
        self._subscription = subscription
        self._base = base
        self._keys = keys
        self._wait_ms = wait_ms

    def headers(self, push: str, started_ms: int, messages: int) -> tuple[tuple[tuple[str, str], ...], int]:
        """The headers of a push that leaves now, and until when its result is taken; neither without keys."""
        promise = Promise(self._subscription, push, started_ms, started_ms + self._wait_ms, messages)
        try:
            address = self._base + write_promise(promise, self._keys)
        except SecretError as error:
            # Such a push can be answered as ever.
            logger.debug("no address for a result: %s", error)
            return (), 0
        return ((PUSH_HEADER, push), (CALLBACK_HEADER, address)), promise.until_ms


def callback_of(subscription: Subscription, keys: Marks, wait_s: float) -> Callback | None:
    """For the pushes of a subscription; None where receivers cannot say later how they ended. For what is timely nobody
    waits: who has taken it has it."""
    base, manager, _ = subscription.address.rpartition(_MANAGER)
    if not (wait_s and base and manager) or subscription.policy.reliability == "timely":
        return None
    return Callback(subscription.id, base + PATH, keys, int(wait_s * 1000))
