"""Protection of pushes: signatures, credentials, client certificates.

Secrets are opened once per prepared envelope; then a push costs some microseconds, without protection nothing.
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path

from arborcast.core.errors import SecretError
from arborcast.core.security.keyring import KeyFile, Keys
from arborcast.core.security.signatures import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, find_certificate, sign
from arborcast.core.settings import SecretSettings
from arborcast.topic_model.subscriptions import Protection, Subscription

AUTHORIZATION = "Authorization"

# A line break in a stored value would begin another header.
_HEADER_VALUE = re.compile(rb"[\x21-\x7e]+(?: [\x21-\x7e]+)*")

HIDDEN = b"********"

# A shorter part of a credential at the end of a stored answer reveals nothing.
_SHORTEST_SECRET = 4


class SecretOpener:
    """Opens the protection of pushes with the configured keys and certificates."""

    def __init__(self, settings: SecretSettings, keys: Keys | None = None) -> None:
        self._certificates = settings.client_certificates
        self.keys = keys or KeyFile(Path(settings.key_file))

    def open(self, subscription: Subscription) -> PushSecrets | None:
        """For the pushes of a subscription; None without protection. Raises SecretError."""
        protection = subscription.protection
        if protection is None:
            return None
        context = subscription.sealing_context()
        signing = [(self.keys.open(each.sealed, context), each.until_ms) for each in protection.secrets]
        return PushSecrets(
            signing, self._authorization(protection, context), self._certificate(protection, subscription)
        )

    def _authorization(self, protection: Protection, context: str) -> bytes:
        if not protection.authorization:
            return b""
        value = self.keys.open(protection.authorization, context)
        if not _HEADER_VALUE.fullmatch(value):
            raise SecretError("the stored credentials are not a valid value of an HTTP header")
        return value

    def _certificate(self, protection: Protection, subscription: Subscription) -> str:
        if not protection.certificate:
            return ""
        return find_certificate(self._certificates, protection.certificate, subscription.consumer.address)


class PushSecrets:
    """The opened secrets of one subscription. Its repr does not contain them."""

    def __init__(self, signing: list[tuple[bytes, int | None]], authorization: bytes, certificate: str) -> None:
        self._signing = signing
        self.certificate = certificate
        self.fixed = ((AUTHORIZATION, authorization.decode()),) if authorization else ()
        # Values that a receiver might echo: the whole, and the secret part.
        self._secrets = {authorization, authorization.rpartition(b" ")[2], *_basic_password(authorization)} - {b""}

    def signature(self, message_id: str, body: bytes, now_s: float) -> tuple[tuple[str, str], ...]:
        """The headers with the signature of this body, () without a secret. `now_s`: seconds since the epoch."""
        if not self._signing:
            return ()
        now_ms = now_s * 1000
        keys = [key for key, until_ms in self._signing if until_ms is None or now_ms < until_ms]
        timestamp = int(now_s)
        return (
            (ID_HEADER, message_id),
            (TIMESTAMP_HEADER, str(timestamp)),
            (SIGNATURE_HEADER, sign(keys, message_id, timestamp, body)),
        )

    def redact(self, answer: bytes) -> bytes:
        """A receiver's answer with echoed credentials removed."""
        for value in sorted(self._secrets, key=len, reverse=True):
            answer = answer.replace(value, HIDDEN)
            for size in range(min(len(value) - 1, len(answer)), _SHORTEST_SECRET - 1, -1):
                if answer.endswith(value[:size]):  # cut off in the middle of it
                    answer = answer[:-size] + HIDDEN
                    break
        return answer


def _basic_password(authorization: bytes) -> tuple[bytes, ...]:
    """The password in a value of HTTP Basic, which a receiver may quote in clear. A very short one is left out: it
    occurs in ordinary text."""
    scheme, _, encoded = authorization.partition(b" ")
    if scheme != b"Basic":
        return ()
    try:
        password = base64.b64decode(encoded, validate=True).partition(b":")[2]
    except binascii.Error:
        return ()
    return (password,) if len(password) >= _SHORTEST_SECRET else ()
