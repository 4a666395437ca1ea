"""Passwords as they are kept: scrypt, with its parameters, so that they can be made harder later.

scrypt$<log2 N>$<r>$<p>$<salt>$<hash>      both in base64
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os

# About 60 ms and 32 MB for each guess, on one core of a machine of today.
_LOG_N, _R, _P = 15, 8, 1
_MAX_LOG_N, _MAX_R, _MAX_P = 20, 32, 16
_SALT_BYTES, _HASH_BYTES = 16, 32
_PARTS = 6

MAX_PASSWORD = 1_024
"""Longer ones are refused before anything is computed."""


def hash_password(password: str, *, log_n: int = _LOG_N) -> str:
    """What is kept instead of a password."""
    salt = os.urandom(_SALT_BYTES)
    parts = ("scrypt", str(log_n), str(_R), str(_P), _text(salt), _text(_scrypt(password, salt, log_n, _R, _P)))
    return "$".join(parts)


def password_matches(password: str, kept: str) -> bool:
    """Whether it is the password behind what is kept. Raises ValueError for what `hash_password` has not made."""
    parts = kept.split("$")
    if len(parts) != _PARTS or parts[0] != "scrypt" or not all(number.isdecimal() for number in parts[1:4]):
        raise ValueError("not a scrypt hash")
    log_n, r, p = (int(number) for number in parts[1:4])
    salt_text, hash_text = parts[4:]
    if not (1 <= log_n <= _MAX_LOG_N and 1 <= r <= _MAX_R and 1 <= p <= _MAX_P):
        raise ValueError("a scrypt hash with parameters out of range")
    try:
        salt, expected = base64.b64decode(salt_text, validate=True), base64.b64decode(hash_text, validate=True)
    except binascii.Error as error:
        raise ValueError("a scrypt hash that is not base64") from error
    # HMAC, which scrypt is made of, fills a short key up with zeros: `secret` and `secret\0` would be the same.
    if len(password) > MAX_PASSWORD or "\0" in password:
        return False
    return hmac.compare_digest(_scrypt(password, salt, log_n, r, p), expected)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _scrypt(password: str, salt: bytes, log_n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=1 << log_n, r=r, p=p, maxmem=256 * r * (1 << log_n), dklen=_HASH_BYTES
    )
