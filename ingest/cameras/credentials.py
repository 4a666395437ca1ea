"""Credentials for cameras: WS-UsernameToken with a digest, and HTTP digest where a camera requires it."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import urlsplit

from arborcast.ingest.access.username_token import BASE64, DIGEST, WSU, UsernameToken, expected_digest
from arborcast.topic_model.namespaces import WSSE
from arborcast.wire import answers, times

_PARAMETER = re.compile(r'(?<![A-Za-z-])([A-Za-z-]++)\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)"|([^\s,"]++))')

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Credentials:
    """A user and its password; no user means no credentials."""

    user: str = ""
    password: str = field(default="", repr=False)

    def header(self, created: datetime) -> str:
        """The header block wsse:Security for a message made at this time of the camera's clock; empty for no user."""
        if not self.user:
            return ""
        nonce = os.urandom(16)
        token = UsernameToken(self.user, nonce=nonce, created=times.written(created), created_s=0)
        return (
            f'<wsse:Security xmlns:wsse="{WSSE}" xmlns:wsu="{WSU}"><wsse:UsernameToken>'
            f"<wsse:Username>{answers.text(self.user)}</wsse:Username>"
            f'<wsse:Password Type="{DIGEST}">{_base64(expected_digest(token, self.password))}</wsse:Password>'
            f'<wsse:Nonce EncodingType="{BASE64}">{_base64(nonce)}</wsse:Nonce>'
            f"<wsu:Created>{token.created}</wsu:Created></wsse:UsernameToken></wsse:Security>"
        )


class DigestAccess:
    """HTTP digest (RFC 7616) of one client: the last challenge, used until the next one."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._challenge: Mapping[str, str] = {}
        self._count = 0

    def challenged(self, header: str) -> bool:
        """Whether to send the request again: it was not authorised by this challenge yet."""
        scheme, _, rest = header.strip().partition(" ")
        found = {name.lower(): quoted or plain for name, quoted, plain in _PARAMETER.findall(rest)}
        if scheme.lower() != "digest" or not self._credentials.user or _algorithm(found) not in _HASHES:
            return False
        again = found.get("stale", "").lower() == "true" or found.get("nonce") != self._challenge.get("nonce")
        self._challenge, self._count = found, 0
        return again

    def authorization(self, method: str, url: str, nonce: str | None = None) -> str:
        """The header Authorization of a request; empty before the first challenge."""
        if not self._challenge:
            return ""
        challenge, user = self._challenge, self._credentials.user
        hashed = _HASHES[_algorithm(challenge)]
        parts = urlsplit(url)
        uri = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        realm, server_nonce = challenge.get("realm", ""), challenge.get("nonce", "")
        secret = hashed(f"{user}:{realm}:{self._credentials.password}")
        method_hash = hashed(f"{method}:{uri}")
        fields = {"username": user, "realm": realm, "nonce": server_nonce, "uri": uri}
        more = ""
        if "auth" in challenge.get("qop", "").replace(" ", "").split(","):
            self._count += 1
            count, own = f"{self._count:08x}", nonce or os.urandom(8).hex()
            fields["response"] = hashed(f"{secret}:{server_nonce}:{count}:{own}:auth:{method_hash}")
            more = f', qop=auth, nc={count}, cnonce="{own}"'
        else:
            fields["response"] = hashed(f"{secret}:{server_nonce}:{method_hash}")
        fields |= {name: challenge[name] for name in ("opaque",) if name in challenge}
        if "algorithm" in challenge:
            more += f", algorithm={challenge['algorithm']}"
        return "Digest " + ", ".join(f'{name}="{_quoted(value)}"' for name, value in fields.items()) + more


def _hash(name: str) -> Callable[[str], str]:
    return lambda text: hashlib.new(name, text.encode(), usedforsecurity=False).hexdigest()


def _algorithm(challenge: Mapping[str, str]) -> str:
    return challenge.get("algorithm", "MD5").upper()


_HASHES = {"MD5": _hash("md5"), "SHA-256": _hash("sha256")}


def _quoted(value: str) -> str:
    return _CONTROL.sub("", value).replace("\\", "\\\\").replace('"', '\\"')


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
