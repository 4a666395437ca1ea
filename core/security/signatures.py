"""Signed pushes by Standard Webhooks 1.0. Pure.

    webhook-id          the id of the message: the same on every attempt
    webhook-timestamp   the time of the signature, in seconds since the epoch
    webhook-signature   `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`; several are separated by spaces

A secret is written `whsec_` and base64. While a secret is being replaced, a push has a signature with each, so that the
receiver can change at any time.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from arborcast.core.errors import SecretError, SignatureError
from arborcast.core.security.uris import ascii_host

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def find_certificate(folder: str, name: str, url: str) -> str:
    """The file of the certificate `name`, if it may be used for this URL. Raises SecretError.

    NAME.pem     the certificate, its chain, and its key without a password
    NAME.hosts   host names, one per line: without it any subscriber could use the certificate at any server
    """
    if not folder:
        raise SecretError("there are no client certificates here (secrets.client_certificates is not set)")
    if not NAME.fullmatch(name):
        raise SecretError("a client certificate's name has up to 64 letters, digits, - and _")
    place = urlsplit(url)
    if place.scheme != "https":
        raise SecretError("a client certificate can only be used with an https address")
    file = Path(folder) / f"{name}.pem"
    try:
        hosts = [ascii_host(name) for name in file.with_suffix(".hosts").read_text(encoding="utf-8").lower().split()]
    except (OSError, UnicodeDecodeError):
        hosts = []
    if (place.hostname or "") not in hosts or not file.is_file():
        # The same message for both, so that names are not revealed.
        raise SecretError(f"there is no client certificate {name!r} for the host {place.hostname!r}")
    return str(file)


ID_HEADER = "webhook-id"

TIMESTAMP_HEADER = "webhook-timestamp"

SIGNATURE_HEADER = "webhook-signature"

PREFIX = "whsec_"

# Limits of the specification.
_MIN_BYTES, _MAX_BYTES = 24, 64

_NEW_BYTES = 32

TOLERANCE_S = 300.0
"""Maximum difference between the clocks of signer and receiver, and age of a replayed push."""

# Maximum number of signatures that a receiver compares; a longer list would only cost time.
_MAX_SIGNATURES = 10


def new_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(_NEW_BYTES)).decode()


def key_of(secret: str) -> bytes:
    """The key in a secret. Raises SecretError, which never quotes the secret."""
    try:
        key = base64.b64decode(secret.strip().removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise SecretError(f"a secret is written {PREFIX} and base64") from None
    if not _MIN_BYTES <= len(key) <= _MAX_BYTES:
        raise SecretError(f"a secret has {_MIN_BYTES} to {_MAX_BYTES} bytes, this one has {len(key)}")
    return key


def sign(keys: Iterable[bytes], message_id: str, timestamp: int, body: bytes) -> str:
    """The value of the signature header, with one signature for each key."""
    content = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    return " ".join(
        ["v1," + binascii.b2a_base64(hmac.digest(key, content, "sha256"), newline=False).decode() for key in keys]
    )


def check(
    keys: Sequence[bytes], headers: Mapping[str, str], body: bytes, now_s: float, tolerance_s: float = TOLERANCE_S
) -> None:
    """Raises SignatureError unless a signature in the headers is valid for one of the keys, the message id, the
    timestamp and the body; `headers` by names in lower case. All signatures are compared, in constant time."""
    message_id, given = headers.get(ID_HEADER, ""), headers.get(SIGNATURE_HEADER, "")
    if not message_id or not given:
        raise SignatureError(f"the push is not signed: {ID_HEADER} or {SIGNATURE_HEADER} is missing")
    timestamp = headers.get(TIMESTAMP_HEADER, "")
    # isdigit alone accepts digits of other scripts, and a number may be as long as a header.
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        raise SignatureError(f"{TIMESTAMP_HEADER} is missing, or not a number")
    apart_s = now_s - int(timestamp)
    if abs(apart_s) > tolerance_s:
        raise SignatureError(
            f"the push was signed {abs(apart_s):.0f} s {'ago' if apart_s > 0 else 'in the future'}, "
            f"{tolerance_s:.0f} s are allowed: it was delayed, or the clocks differ"
        )
    expected = sign(keys, message_id, int(timestamp), body).encode().split()
    signatures = [each.encode() for each in given.split()[:_MAX_SIGNATURES]]
    found = [hmac.compare_digest(ours, theirs) for ours in expected for theirs in signatures]
    if True not in found:
        raise SignatureError("none of the signatures was made with a known secret over this body")
