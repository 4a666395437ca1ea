"""Secrets at rest: sealed with a key from a file, so that logs, tables and backups contain ciphertexts only.

The key file has a line `ID BASE64` for each key of 32 bytes; lines that begin with `#` are comments. The first key
seals, all open: to rotate, insert a new first line, reseal, and remove the old line.

AES-256-GCM. A sealed secret is bound to its context, for instance the subscription and its address, so a writer of the
log cannot redirect it.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hmac
import logging
import os
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from arborcast.core.errors import SecretError
from arborcast.core.files import Stamp, readable_by_others, stamp_of, write_atomically
from arborcast.core.reasons import reason_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

logger = logging.getLogger(__name__)

_PRIVATE = 0o600

KEY_BYTES = 32
_NONCE_BYTES = 12
_TAG_BYTES = 16
_MAC_BYTES = 16

# Interval of checks for a changed key file, for MACs.
_CHECK_INTERVAL_S = 1.0

_KEY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


class KeyRing:
    """Keys by id; the first one seals. Raises SecretError without any."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        if not keys:
            raise SecretError("there is no key to seal secrets with")
        self._keys = dict(keys)
        self._ciphers: dict[str, AESGCM] = {}
        self._marking: dict[tuple[str, str], bytes] = {}
        self.current = next(iter(keys))

    def seal(self, plain: bytes, context: str) -> str:
        """The ciphertext with the id of its key, different each time."""
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._cipher(self.current).encrypt(nonce, plain, context.encode())
        return f"{self.current}:{base64.b64encode(nonce + sealed).decode()}"

    def open(self, sealed: str, context: str) -> bytes:
        """The plain text. Raises UnknownKey, or SecretError for a changed ciphertext or another context."""
        from cryptography.exceptions import InvalidTag

        key_id, _, text = sealed.partition(":")
        if key_id not in self._keys:
            # Other text may be a secret that was stored unsealed.
            shown = repr(key_id) if _KEY_ID.fullmatch(key_id) else "of no id"
            raise UnknownKey(f"a secret was sealed with the key {shown}, which is not in the key file")
        try:
            data = base64.b64decode(text, validate=True)
            if len(data) < _NONCE_BYTES + _TAG_BYTES:
                raise SecretError("a sealed secret is truncated")
            return self._cipher(key_id).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], context.encode())
        except (InvalidTag, binascii.Error, ValueError):
            raise SecretError(
                f"a secret sealed with the key {key_id!r} was changed, or sealed for another context"
            ) from None

    def mac(self, data: bytes, context: str) -> str:
        """The MAC of this data, with the id of its key. Deterministic, without a nonce."""
        return f"{self.current}.{self._mark(self.current, data, context)}"

    def is_valid_mac(self, mac: str, data: bytes, context: str) -> bool:
        """Whether the MAC is valid. Raises UnknownKey for one with another key's id."""
        key_id, _, given = mac.partition(".")
        if key_id not in self._keys:
            if _KEY_ID.fullmatch(key_id):
                raise UnknownKey(f"it was marked with the key {key_id!r}, which is not in the key file")
            return False
        return hmac.compare_digest(given.encode(), self._mark(key_id, data, context).encode())

    def _mark(self, key_id: str, data: bytes, context: str) -> str:
        derived = self._marking.get((key_id, context))
        if derived is None:
            # One derived key for each context.
            derived = hmac.digest(self._keys[key_id], f"mark\n{context}".encode(), "sha256")
            self._marking[key_id, context] = derived
        made = hmac.digest(derived, data, "sha256")[:_MAC_BYTES]
        return base64.urlsafe_b64encode(made).decode().rstrip("=")

    def _cipher(self, key_id: str) -> AESGCM:
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            # Imported here, since most processes use no secrets, and it takes 30 ms and 5 MB.
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            cipher = self._ciphers[key_id] = AESGCM(self._keys[key_id])
        return cipher


class UnknownKey(SecretError):
    """A secret is sealed with a key that the key file does not have."""


class KeyFile:
    """A key file, read on the first use and after changes. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._next_mark_check = 0.0
        self._unreadable = ""
        self._lock = threading.Lock()
        self._ring: KeyRing | None = None
        self._seen: Stamp | None = None

    def __reduce__(self) -> tuple[type[KeyFile], tuple[Path]]:
        # Spark's workers get the path, not the keys.
        return KeyFile, (self._path,)

    def seal(self, plain: bytes, context: str) -> str:
        """See KeyRing.seal; with the file's current first key. Raises SecretError."""
        return self._current(fresh=True).seal(plain, context)

    def open(self, sealed: str, context: str) -> bytes:
        """See KeyRing.open. Raises SecretError."""
        try:
            return self._current(fresh=False).open(sealed, context)
        except UnknownKey:
            return self._current(fresh=True).open(sealed, context)

    def mac(self, data: bytes, context: str) -> str:
        """See KeyRing.mac; with the file's recent first key, since the file is not checked for each push. Raises
        SecretError."""
        now = time.monotonic()
        if now < self._next_mark_check:
            if self._unreadable:
                raise SecretError(self._unreadable)
            return self._current(fresh=False).mac(data, context)
        self._next_mark_check = now + _CHECK_INTERVAL_S
        try:
            ring, self._unreadable = self._current(fresh=True), ""
        except SecretError as error:
            # A missing file is not checked for each push either.
            self._unreadable = str(error)
            raise
        return ring.mac(data, context)

    def is_valid_mac(self, mac: str, data: bytes, context: str) -> bool:
        """See KeyRing.is_valid_mac. Raises SecretError."""
        try:
            return self._current(fresh=False).is_valid_mac(mac, data, context)
        except UnknownKey:
            return self._current(fresh=True).is_valid_mac(mac, data, context)

    def _current(self, *, fresh: bool) -> KeyRing:
        with self._lock:
            if self._ring is None or fresh:
                try:
                    facts = self._path.stat()
                    seen = stamp_of(facts)
                    if seen != self._seen:
                        if readable_by_others(facts):
                            logger.warning("the key file %s is accessible to other users: chmod 600", self._path)
                        self._ring, self._seen = KeyRing(parse_keys(self._path.read_text(encoding="utf-8"))), seen
                except (OSError, UnicodeDecodeError) as error:
                    # Not for an unreadable file: a further key would be missing on the other machines.
                    advice = (
                        "; copy that of another machine, or create the first one with: arborcast keys new"
                        if isinstance(error, FileNotFoundError)
                        else ""
                    )
                    raise SecretError(
                        f"the key file {self._path} (secrets.key_file) cannot be read: {reason_of(error)}{advice}"
                    ) from error
            assert self._ring is not None  # noqa: S101 -- for the type checker: read above
            return self._ring


Keys = KeyRing | KeyFile


def parse_keys(text: str) -> dict[str, bytes]:
    """The keys of a key file, in order. Raises SecretError, which never quotes a key."""
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        if not parts or line.lstrip().startswith("#"):
            continue
        key = b""
        if len(parts) == 2:
            with contextlib.suppress(binascii.Error, ValueError):
                key = base64.b64decode(parts[1], validate=True)
        if len(key) != KEY_BYTES or not _KEY_ID.fullmatch(parts[0]):
            raise SecretError(f"line {number} of the key file is not an id and {KEY_BYTES} bytes in base64")
        if parts[0] in keys:
            raise SecretError(f"line {number} of the key file has the id of an earlier line")
        keys[parts[0]] = key
    return keys


def remove_key(path: Path, key_id: str) -> None:
    """Remove a key from a file, except the last one and the first one, which seals. Raises SecretError."""
    try:
        text = path.read_text(encoding="utf-8")
        keys = list(parse_keys(text))
        if key_id not in keys:
            raise SecretError(f"{path} has no key {key_id[:64]!r}; it has {', '.join(keys) or 'none'}")
        if key_id == keys[0]:
            raise SecretError(f"{key_id!r} is the key that seals: put a newer one before it (arborcast keys new)")
        left = (line for line in text.splitlines(keepends=True) if line.split()[:1] != [key_id])
        write_atomically(path, "".join(left), mode=_PRIVATE)
    except (OSError, UnicodeDecodeError) as error:
        raise SecretError(f"the key file {path} cannot be written: {reason_of(error)}") from error


def new_id() -> str:
    """The id of a new key: k and the time, so that keys of different files can be joined."""
    return time.strftime("k%Y%m%dT%H%M%S", time.gmtime())


def add_key(path: Path, key_id: str) -> None:
    """Insert a new first key into a file, created readable by its owner alone. Raises SecretError."""
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if not _KEY_ID.fullmatch(key_id):
            raise SecretError(f"a key's id has up to 32 letters, digits, - and _, unlike {key_id[:64]!r}")
        if key_id in parse_keys(text):
            raise SecretError(f"{path} has a key {key_id!r} already")
        line = f"{key_id} {base64.b64encode(os.urandom(KEY_BYTES)).decode()}\n"
        write_atomically(path, line + text, mode=_PRIVATE)
    except (OSError, UnicodeDecodeError) as error:
        raise SecretError(f"the key file {path} cannot be written: {reason_of(error)}") from error
