"""Judging pushes that should be signed, as Standard Webhooks describes it.

secret = new_secret()
with Listener(received, verify=SignedWith(secret)) as listener:
    client.subscribe("plant//.", to=listener.url, secret=secret)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from topic_model.signatures import TOLERANCE_S, check, key_of, new_secret

__all__ = ["SignedWith", "new_secret"]


class SignedWith:
    """Raises SignatureError for a push that none of these secrets has signed, or too long ago; a `verify` of listeners.

    While a secret is being replaced give both. Raises SecretError for what is no secret.
    """

    def __init__(self, *secrets: str, tolerance_s: float = TOLERANCE_S, now: Callable[[], float] = time.time) -> None:
        self._keys = tuple(key_of(secret) for secret in secrets)
        self._tolerance_s = tolerance_s
        self._now = now

    def trust(self, *secrets: str) -> None:
        """Accept these and no others from now on."""
        self._keys = tuple(key_of(secret) for secret in secrets)

    def __call__(self, headers: Mapping[str, str], body: bytes) -> None:
        check(self._keys, headers, body, self._now(), self._tolerance_s)
