"""Subscriptions with secrets, sealed with one key that the tests share."""

from __future__ import annotations

from typing import Any

import msgspec

from arborcast.core.security.keyring import KeyRing
from arborcast.core.settings import SecretSettings
from arborcast.dispatch.delivery.credentials import SecretOpener
from arborcast.topic_model.subscriptions import Protection, SigningSecret, Subscription

KEYS = KeyRing({"k": b"k" * 32})
SECRET_OPENER = SecretOpener(SecretSettings(), KEYS)


def protected(
    target: Subscription, *secrets: tuple[bytes, int | None], authorization: bytes = b"", **more: Any
) -> Subscription:
    """Signed with these keys, each until a time or without end, and with these credentials."""
    context = target.sealing_context()
    sealed = tuple(SigningSecret(KEYS.seal(key, context), until_ms) for key, until_ms in secrets)
    credentials = KEYS.seal(authorization, context) if authorization else ""
    return msgspec.structs.replace(target, protection=Protection(sealed, credentials, **more))
