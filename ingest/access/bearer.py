"""Bearer tokens: JWTs of an issuer, verified with the keys of a JWKS file (RFC 7519, 7517, 8725).

The algorithms are fixed by the settings, and only public-key ones are allowed: a token cannot choose `none`, nor use a
public key as an HMAC secret. Each key is used for its own algorithm only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jwt

from arborcast.core.errors import ArborcastError, ConfigError
from arborcast.core.files import WatchedFile
from arborcast.core.recent import BoundedDict
from arborcast.ingest.access.settings import AccessSettings
from arborcast.ingest.access.users_file import may_be_name
from arborcast.topic_model.grants import Identity

MAX_TOKEN = 16 * 1024

# Tokens that were good; a kilobyte each is usual.
_REMEMBERED = 2_000

# RFC 7518, 3.1; for elliptic curves the algorithm also sets the curve.
_KEY_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_MIN_RSA_BITS = 2048


_Key = dict[str, Any]
"""A public key, as the JWKS has it."""


class WrongToken(ArborcastError):
    """An invalid token. The message may be shown to its sender and quotes nothing of the token."""


class Bearer:
    """Tokens of one issuer. The constructor raises ConfigError for a JWKS file that cannot be used."""

    def __init__(
        self,
        settings: AccessSettings,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._steady = steady
        self._algorithms = settings.jwt_chosen()
        self._audience = [each.strip() for each in settings.jwt_audience.split(",") if each.strip()]
        self._keys = WatchedFile(Path(settings.jwks_file), read_keys)
        self._judged_by: tuple[_Key, ...] | None = None
        self._good: BoundedDict[str, tuple[float, int, Identity]] = BoundedDict(_REMEMBERED)

    def check(self, token: str) -> Identity:
        """The user of the token. Raises WrongToken. A valid one is cached for access.cache_s, at most until its end or
        a change of keys: a verification costs half as much as the rest of a request."""
        keys = self._keys.value
        if keys is not self._judged_by:
            self._judged_by = keys
            self._good.clear()
        known = self._good.get(token)
        # A token ends by the wall clock; the cache of its rights uses a clock that is never set.
        if known is not None and self._steady() < known[0] and self._clock() < known[1]:
            return known[2]
        identity, expires = self._checked(token)
        remembered = self._settings.cache_s
        if remembered:
            self._good[token] = self._steady() + remembered, expires, identity
        return identity

    def _checked(self, token: str) -> tuple[Identity, int]:
        if len(token) > MAX_TOKEN:
            raise WrongToken("the token is too long")
        try:
            header = jwt.get_unverified_header(token)
            key = self._key(header)
            claims = jwt.decode(
                token,
                key,
                algorithms=[header["alg"]],
                audience=self._audience,
                issuer=self._settings.jwt_issuer,
                leeway=self._settings.jwt_leeway_s,
                options={"require": ["exp"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            # PyJWT's messages quote claims of an unverified token; its classes are enough.
            raise WrongToken(_WORDS.get(type(error), "the token is invalid")) from error
        return self._identity(claims), int(claims["exp"])

    def _key(self, header: Mapping[str, Any]) -> jwt.PyJWK:
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in self._algorithms:
            raise WrongToken(f"the token's algorithm is not one of {', '.join(self._algorithms)}")
        fitting = [key for key in self._keys.value if _fits(key, algorithm) and key_id in (None, key.get("kid"))]
        if len(fitting) != 1:
            raise WrongToken("the key of the token is unknown")
        return jwt.PyJWK(fitting[0], algorithm)

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        name = claims.get(self._settings.jwt_user_claim)
        if not isinstance(name, str) or not may_be_name(name):
            raise WrongToken(f"the token's claim {self._settings.jwt_user_claim} is not a user name")
        groups = claims.get(self._settings.jwt_groups_claim, [])
        if isinstance(groups, str):
            groups = groups.split()
        if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
            raise WrongToken(f"the token's claim {self._settings.jwt_groups_claim} is not a list of names")
        return Identity(name, frozenset(groups))


_WORDS: Mapping[type[Exception], str] = {
    jwt.ExpiredSignatureError: "the token has expired",
    jwt.ImmatureSignatureError: "the token is not valid yet",
    jwt.InvalidAudienceError: "the token has another audience",
    jwt.InvalidIssuerError: "the token has another issuer",
    jwt.MissingRequiredClaimError: "the token lacks a required claim",
}


def _fits(key: _Key, algorithm: str) -> bool:
    """Whether it is made for signatures of this algorithm."""
    return (
        key["kty"] == _KEY_TYPES[algorithm[:2]]
        and key.get("alg", algorithm) == algorithm
        and _CURVES.get(algorithm, key.get("crv")) == key.get("crv")
    )


def read_keys(text: str, name: str) -> tuple[_Key, ...]:
    """The public keys of a JWKS. Raises ConfigError; private and symmetric keys have no place in it."""
    try:
        document = json.loads(text)
        keys = document["keys"]
        if not isinstance(keys, list):
            raise TypeError("keys is not a list")
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{name} is not a JWKS, a JSON object with a list of keys: {error}") from error
    found: list[_Key] = []
    for number, key in enumerate(keys, start=1):
        where = f"{name}, key number {number}"
        if not isinstance(key, dict) or key.get("kty") not in ("RSA", "EC", "OKP"):
            raise ConfigError(f"{where}: only public keys (RSA, EC, OKP) can check tokens of others")
        if "d" in key:
            raise ConfigError(f"{where} is a private key; every reader of the file could issue tokens")
        if key.get("use", "sig") != "sig":
            continue
        try:
            made = jwt.PyJWK(key)
        except (jwt.PyJWTError, TypeError) as error:  # TypeError: a list where there has to be a text
            raise ConfigError(f"{where} cannot be used: {error}") from error
        if key["kty"] == "RSA" and made.key.key_size < _MIN_RSA_BITS:
            raise ConfigError(f"{where} has {made.key.key_size} bits; {_MIN_RSA_BITS} are the least")
        found.append(key)
    if not found:
        raise ConfigError(f"{name} has no signing key")
    return tuple(found)
