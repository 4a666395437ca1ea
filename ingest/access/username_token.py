"""WS-Security's UsernameToken, in clear text and as a digest (UsernameToken Profile 1.1).

A digest is worth nothing without a memory: whoever hears one can send it again. So it needs a nonce, which is taken
once, and a time of creation, which may lie only so far from now: what is older needs no remembering.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache

from lxml import etree

from ingest.access.errors import TokenRefused
from topic_model.namespaces import WSSE

WSU = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-utility-1.0.xsd"
_PROFILE = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-username-token-profile-1.0"
_TEXT, _DIGEST = f"{_PROFILE}#PasswordText", f"{_PROFILE}#PasswordDigest"
_BASE64 = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-soap-message-security-1.0#Base64Binary"
_MAX_NONCE = 256
_MOMENTS = 128
_SECURITY, _TOKEN = f"{{{WSSE}}}Security", f"{{{WSSE}}}UsernameToken"
_USERNAME, _PASSWORD, _NONCE = f"{{{WSSE}}}Username", f"{{{WSSE}}}Password", f"{{{WSSE}}}Nonce"
_CREATED = f"{{{WSU}}}Created"
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?")


@dataclass(slots=True)
class UsernameToken:
    """What a token says. Of `password` and `digest` one is empty."""

    name: str
    password: str = field(default="", repr=False)
    digest: bytes = field(default=b"", repr=False)
    nonce: bytes = b""
    created: str = ""
    created_s: float = 0.0


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
        raise TokenRefused("there is more than one wsse:UsernameToken; whose request is it?", "InvalidSecurity")
    return _read(tokens[0])


def expected_digest(token: UsernameToken, password: str) -> bytes:
    """The digest that the owner of this password would have sent."""
    # SHA-1 is what the profile has. As a keyed hash over a nonce it still holds; what it protects is the password.
    return hashlib.sha1(token.nonce + token.created.encode() + password.encode(), usedforsecurity=False).digest()


def digest_matches(token: UsernameToken, password: str) -> bool:
    """Whether the token was made with this password, compared in constant time."""
    return hmac.compare_digest(expected_digest(token, password), token.digest)


def _read(token: etree._Element) -> UsernameToken:
    parts: dict[str, etree._Element] = {}
    for part in token:
        parts.setdefault(str(part.tag), part)
    name, password = _text(parts.get(_USERNAME)), parts.get(_PASSWORD)
    if not name or password is None:
        raise TokenRefused("a wsse:UsernameToken needs a wsse:Username and a wsse:Password", "InvalidSecurityToken")
    kind = password.get("Type", _TEXT)
    if kind not in (_TEXT, _DIGEST):
        raise TokenRefused(f"passwords of the type {kind[:200]!r} are not taken", "UnsupportedSecurityToken")
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
    if element.get("EncodingType", _BASE64) != _BASE64:
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


# Clients that write whole seconds say each of them many times.
@lru_cache(_MOMENTS)
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
