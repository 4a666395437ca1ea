"""WS-Security's UsernameToken, in clear text and as a digest (UsernameToken Profile 1.1).

Without a memory of nonces an eavesdropper could replay a digest. So a digest needs a nonce, which is accepted once, and
a time of creation within a window around the present; older nonces are forgotten.
"""

from __future__ import annotations

import binascii
import contextlib
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from lxml import etree

from arborcast.core.errors import ConfigError
from arborcast.topic_model.namespaces import WSSE
from arborcast.wire.errors import IdentitiesUnavailable, TokenRefused

logger = logging.getLogger(__name__)

WSU = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-utility-1.0.xsd"
_PROFILE = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-username-token-profile-1.0"
_TEXT, DIGEST = f"{_PROFILE}#PasswordText", f"{_PROFILE}#PasswordDigest"
BASE64 = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-soap-message-security-1.0#Base64Binary"
_MAX_NONCE = 256
_SECURITY, _TOKEN = f"{{{WSSE}}}Security", f"{{{WSSE}}}UsernameToken"
_USERNAME, _PASSWORD, _NONCE = f"{{{WSSE}}}Username", f"{{{WSSE}}}Password", f"{{{WSSE}}}Nonce"
_CREATED = f"{{{WSU}}}Created"
_MOMENT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})?"
)


@dataclass(slots=True)
class UsernameToken:
    """The contents of a token. Of `password` and `digest` one is empty."""

    name: str
    password: str = field(default="", repr=False)
    digest: bytes = field(default=b"", repr=False)
    nonce: bytes = b""
    created: str = ""
    created_s: float = 0.0

    def check_time(self, window_s: float, now_s: float) -> None:
        """Raises TokenRefused for a token from another time."""
        if not abs(now_s - self.created_s) <= window_s:
            raise TokenRefused(
                f"wsu:Created is more than {window_s:g} s from the gateway's clock: create a new token, and set the "
                "clock",
                "MessageExpired",
            )


def find_token(root: etree._Element) -> UsernameToken | None:
    """The token in an envelope's header, None when there is none. Raises TokenRefused."""
    header_tag = f"{str(root.tag).rpartition('}')[0]}}}Header"
    # Children by their tags: lxml takes three times as long to find them by a path, and this is for each request.
    tokens = [
        token
        for header in root
        if header.tag == header_tag
        for security in header
        if security.tag == _SECURITY
        for token in security
        if token.tag == _TOKEN
    ]
    if not tokens:
        return None
    if len(tokens) > 1:
        raise TokenRefused("there is more than one wsse:UsernameToken", "InvalidSecurity")
    return _read(tokens[0])


def expected_digest(token: UsernameToken, password: str) -> bytes:
    """The digest that the owner of this password would have sent."""
    # The profile uses SHA-1. As a keyed hash over a nonce it is still sound; it protects the password.
    return hashlib.sha1(token.nonce + token.created.encode() + password.encode(), usedforsecurity=False).digest()


def _read(token: etree._Element) -> UsernameToken:
    parts: dict[str, etree._Element] = {}
    for part in token:
        parts.setdefault(str(part.tag), part)
    name, password = _text(parts.get(_USERNAME)), parts.get(_PASSWORD)
    if not name or password is None:
        raise TokenRefused("a wsse:UsernameToken needs a wsse:Username and a wsse:Password", "InvalidSecurityToken")
    kind = password.get("Type", _TEXT)
    if kind not in (_TEXT, DIGEST):
        raise TokenRefused(f"passwords of the type {kind[:200]!r} are not supported", "UnsupportedSecurityToken")
    nonce, created = _nonce(parts.get(_NONCE)), _text(parts.get(_CREATED))
    created_s = _moment(created) if created else 0.0
    text = password.text or ""
    if kind == _TEXT:
        return UsernameToken(name, password=text, nonce=nonce, created=created, created_s=created_s)
    if not nonce or not created:
        raise TokenRefused("a PasswordDigest needs a wsse:Nonce and a wsu:Created", "InvalidSecurityToken")
    return UsernameToken(name, digest=_decoded(text), nonce=nonce, created=created, created_s=created_s)


def _text(element: etree._Element | None) -> str:
    return "" if element is None else (element.text or "").strip()


def _nonce(element: etree._Element | None) -> bytes:
    if element is None:
        return b""
    if element.get("EncodingType", BASE64) != BASE64:
        raise TokenRefused("a wsse:Nonce must be Base64Binary", "InvalidSecurityToken")
    nonce = _decoded(element.text or "")
    if not nonce or len(nonce) > _MAX_NONCE:
        raise TokenRefused(f"a wsse:Nonce has 1 to {_MAX_NONCE} bytes", "InvalidSecurityToken")
    return nonce


def _decoded(text: str) -> bytes:
    try:
        return binascii.a2b_base64("".join(text.split()), strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise TokenRefused("the wsse:UsernameToken is not base64 where it has to be", "InvalidSecurityToken") from error


def _moment(text: str) -> float:
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise TokenRefused(f"wsu:Created {text[:60]!r} is no time", "InvalidSecurityToken")
    day, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(day + ("+00:00" if zone in (None, "Z") else zone))
    except ValueError as error:
        raise TokenRefused(f"wsu:Created {text[:60]!r} is no time", "InvalidSecurityToken") from error
    return moment.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)


_SPAN_S = 300
_FINGERPRINT, _MARK = 16, 8
_ENTRY = _FINGERPRINT + _MARK
_AT_ONCE = 2_730 * _ENTRY


class NonceMemory:
    """Used nonces, for as long as their time of creation is within the window. Bounded.

    All workers of a gateway share them by a folder, also across restarts. The order of a file decides: a process
    appends the nonce with a mark of its own, reads the new entries, and has it if its mark is the first. No locks, no
    server, two system calls. There is a file for every few minutes of creation times, deleted as a whole when they are
    over.

    When it is full, new tokens are refused rather than old nonces forgotten: that would allow a replay, and only users
    with a password can fill it. The constructor raises ConfigError for an unusable folder.
    """

    def __init__(
        self, window_s: float, maximum: int, folder: Path, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._window_s = window_s
        self._steady = steady
        self._maximum = maximum
        self._folder = folder
        self._spans: dict[int, _Span] = {}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Each process removes expired files of its own; here, those of earlier processes.
            for file in folder.iterdir():
                if file.name.isdecimal():
                    self._spans[int(file.name)] = _Span(file, steady())
        except OSError as error:
            raise ConfigError(f"{folder} cannot store nonces: {error.strerror}") from error

    def use(self, token: UsernameToken, now_s: float) -> None:
        """Use the nonce of a valid token, whose time was checked.

        Raises TokenRefused if it was used before, and IdentitiesUnavailable if it cannot be stored.
        """
        number = int(token.created_s // _SPAN_S)
        span = self._spans.get(number)
        try:
            if span is None:
                self._forget(now_s)
                span = self._spans[number] = _Span(self._folder / str(number), self._steady())
            if len(self) >= self._maximum:
                self._forget(now_s)
                if len(self) >= self._maximum:
                    raise TokenRefused(
                        f"{self._maximum} nonces were used within {2 * self._window_s:g} s, no more are accepted"
                    )
            taken = span.take(_fingerprint(token), self._steady())
        except OSError as error:
            logger.error("no password digest can be accepted, since nonces cannot be stored: %s", error.strerror)
            raise IdentitiesUnavailable(f"nonces cannot be stored now: {error.strerror}", 1.0) from error
        if not taken:
            raise TokenRefused("the wsse:Nonce was used before")

    def close(self) -> None:
        """Close the files, which stay."""
        for span in self._spans.values():
            span.close()
        self._spans.clear()

    def _forget(self, now_s: float) -> None:
        """Forget nonces that are expired by the wall clock and were last used longer ago than a nonce can be valid: a
        clock set forward and back would make them valid again."""
        steady_s = self._steady()
        for number in [each for each in self._spans if (each + 1) * _SPAN_S + self._window_s < now_s]:
            if steady_s - self._spans[number].used(steady_s) >= 2 * self._window_s:
                self._spans.pop(number).remove()

    def __len__(self) -> int:
        return sum(len(span.known) for span in self._spans.values())


class _Span:
    """The nonces of tokens that were made within a few minutes."""

    def __init__(self, file: Path, now: float) -> None:
        self.known: set[bytes] = set()
        self._used = now
        self._file = file
        self._read = 0
        # Marks are counted on from a random beginning: another worker's is as unlikely to be the same as if each were
        # drawn, and that would be one more call of the system.
        self._mark = int.from_bytes(os.urandom(_MARK))
        self._descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
        self._catch_up()

    def used(self, now: float) -> float:
        """When one was taken last, here or, as far as we have noticed, by another worker. Raises OSError."""
        before = self._read
        self._catch_up()
        if self._read > before:
            self._used = now
        return self._used

    def take(self, fingerprint: bytes, now: float) -> bool:
        """Whether it is the first time. Raises OSError when that cannot be found out."""
        if fingerprint in self.known:
            return False
        self._used = now
        self._mark = (self._mark + 1) % (1 << 8 * _MARK)
        entry = fingerprint + self._mark.to_bytes(_MARK)
        # A power cut loses the last seconds; a kill loses nothing.
        os.write(self._descriptor, entry)
        first = self._catch_up(fingerprint)
        if not first:
            # The disk is full, and took a part: from here on no entry of this file is where it should be.
            raise OSError(None, f"{self._file} is damaged")
        return first == entry

    def close(self) -> None:
        os.close(self._descriptor)

    def remove(self) -> None:
        self.close()
        with contextlib.suppress(OSError):
            self._file.unlink()

    def _catch_up(self, wanted: bytes = b"") -> bytes:
        """Read the new entries; returns the first one with this fingerprint, empty for none. Later entries may be left
        for the next call."""
        first = b""
        while not first and len(data := os.pread(self._descriptor, _AT_ONCE, self._read)) >= _ENTRY:
            end = len(data) - len(data) % _ENTRY
            for start in range(0, end, _ENTRY):
                known = data[start : start + _FINGERPRINT]
                if not first and known == wanted:
                    first = data[start : start + _ENTRY]
                self.known.add(known)
            self._read += end
        return first


def _fingerprint(token: UsernameToken) -> bytes:
    name = token.name.encode()
    # With its length, so that a name and a nonce cannot be split differently.
    return hashlib.blake2b(b"%d;%s%s" % (len(name), name, token.nonce), digest_size=_FINGERPRINT).digest()
