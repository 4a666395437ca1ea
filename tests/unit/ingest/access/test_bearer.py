from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from arborcast.core.errors import ConfigError
from arborcast.ingest.access.bearer import Bearer, WrongToken, read_keys
from arborcast.ingest.access.gate import Authenticator, Gate
from arborcast.ingest.access.settings import AccessSettings
from arborcast.ingest.access.users import FailedLogins
from arborcast.topic_model.grants import Identity
from tests.support.gateway_parts import GatewayParts
from tests.support.guarded_gateway import users_in
from tests.support.soap_messages import envelope, notify

RSA = rsa.generate_private_key(65537, 2048)
OTHER = rsa.generate_private_key(65537, 2048)
SHORT = rsa.generate_private_key(65537, 1024)  # noqa: S505  # too short
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()


def public(key: Any, algorithm: str, **more: str) -> dict[str, Any]:
    made = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {**made, **more}


@pytest.fixture
def jwks(tmp_path: Path) -> Path:
    keys = [public(RSA, "RS256", kid="r"), public(EC, "ES256", kid="e"), public(ED, "EdDSA", kid="d", use="sig")]
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": keys}))
    return file


def settings(jwks: Path, **more: Any) -> AccessSettings:
    made = {"methods": "bearer", "jwks_file": str(jwks), "jwt_issuer": "https://id.example"}
    return AccessSettings(**{**made, "jwt_audience": "arborcast", "jwt_algorithms": "RS256, ES256, EdDSA", **more})


def claims(**changes: Any) -> dict[str, Any]:
    ends = time.time() + 86_400
    made = {"sub": "anna", "groups": ["g"], "iss": "https://id.example", "aud": "arborcast", "exp": ends}
    return {key: value for key, value in {**made, **changes}.items() if value is not None}


def token(key: Any = RSA, algorithm: str = "RS256", kid: str | None = "r", **changes: Any) -> str:
    return jwt.encode(claims(**changes), key, algorithm, headers={"kid": kid} if kid else None)


def with_header(key: Any = RSA, **header: Any) -> str:
    return jwt.encode(claims(), key, "RS256", headers={"kid": "r", **header})


def unsigned(header: dict[str, Any]) -> str:
    parts = (json.dumps(header).encode(), json.dumps(claims()).encode(), b"")
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def confused() -> str:
    """The public key, used as an HMAC secret."""
    secret = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    start = unsigned({"alg": "HS256", "kid": "r"}).rpartition(".")[0]
    return start + "." + base64.urlsafe_b64encode(hmac.new(secret, start.encode(), hashlib.sha256).digest()).decode()


EXTENSIONS: tuple[dict[str, Any], ...] = (
    *({"crit": ["urn:unknown"], "urn:unknown": 1}, {"crit": ["b64"], "b64": False}, {"b64": False}),
    *({"crit": []}, {"crit": "exp"}),
)
"""Headers that a recipient must understand."""

KEY_IDS: tuple[object, ...] = ("r", "", "../../etc/passwd", "r\x00", "x" * 5_000, 0, True, ["r"], {"r": 1})

GOOD = [token(EC, "ES256", "e"), token(ED, "EdDSA", "d"), token(kid=None), token(nbf=1), token(exp=1 << 40)]


@pytest.mark.parametrize("good", [*GOOD, token(), token(aud=["x", "arborcast"]), token(groups="g")])
def test_valid_tokens(jwks: Path, good: str) -> None:
    assert Bearer(settings(jwks)).check(good) == Identity("anna", frozenset({"g"}))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (token(exp=1), "expired"),
        (token(nbf=1 << 40), "not valid yet"),
        (token(aud="other"), "another audience"),
        (token(iss="https://other"), "another issuer"),
        *((text, "lacks a required claim") for text in (token(exp=None), token(aud=None), token(iss=None))),
        (token(sub=None), "not a user name"),
        (token(sub="a:b"), "not a user name"),
        (token(groups=[1]), "not a list"),
        # Signatures and algorithms.
        (token(OTHER), "is invalid"),
        (token()[:-4] + "AAAA", "is invalid"),
        (token(OTHER, kid="x"), "unknown"),
        (token(EC, "ES256", "r"), "unknown"),
        (token(RSA, "RS384"), "algorithm"),
        (token(RSA, "PS256"), "algorithm"),
        (confused(), "algorithm"),
        (unsigned({"kid": "r"}), "algorithm"),
        *((unsigned({"alg": alg, "kid": "r"}), "algorithm") for alg in ("none", "None", ["RS256"], {"RS256": 1})),
        *((unsigned({"alg": "RS256", "kid": kid}), "unknown|is invalid") for kid in KEY_IDS),
        # Extensions that a recipient must understand (`crit`).
        *((with_header(**extension), "is invalid") for extension in EXTENSIONS),
        # Keys in the token, and URLs of keys.
        (with_header(OTHER, jwk=public(OTHER, "RS256")), "is invalid"),
        (with_header(OTHER, x5c=["AAAA"]), "is invalid"),
        *((with_header(OTHER, **{name: "http://127.0.0.1:9/k"}), "is invalid") for name in ("jku", "x5u")),
        # No tokens.
        *((text, "is invalid") for text in ("", "a.b.c", token() + "=", token() + ".x")),
        (base64.urlsafe_b64encode(b"[" * 9_000).decode() + ".e30.", "is invalid"),
        ("x" * 20_000, "too long"),
    ],
)
def test_refused_tokens(jwks: Path, bad: str, words: str) -> None:
    with pytest.raises(WrongToken, match=words):
        Bearer(settings(jwks)).check(bad)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a JWKS"),
        ("[]", "not a JWKS"),
        ('{"keys": []}', "no signing key"),
        ('{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', "only public keys"),
        ('{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB", "d": "AQAB"}]}', "private key"),
        ('{"keys": [{"kty": "EC", "crv": "P-256"}]}', "number 1"),
        ('{"keys": [{"kty": "RSA", "alg": ["RS256"], "n": "AQAB", "e": "AQAB"}]}', "number 1 cannot be used"),
        (json.dumps({"keys": [public(SHORT, "RS256")]}), "1024 bits"),
    ],
)
def test_unusable_keys(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_keys(text, "jwks.json")


@pytest.mark.parametrize("key", ["jwt_algorithms", "jwks_file", "jwt_issuer", "jwt_audience"])
def test_settings_without_algorithm_issuer_or_audience(jwks: Path, key: str) -> None:
    for value in ("", "none", "HS256", "RS256, HS256") if key == "jwt_algorithms" else ("", " , "):
        with pytest.raises(ConfigError, match=rf"access\.{key}"):
            settings(jwks, **{key: value})


def test_valid_tokens_amid_wrong_ones_of_the_same_address(jwks: Path) -> None:
    users = users_in(jwks.parent, failed_logins=FailedLogins(3, 300))
    access = settings(jwks, cache_s=0)
    parts = GatewayParts()
    parts.gateway.gate = Gate(None, Authenticator(access, users, bearer=Bearer(access)))

    def sent(value: str) -> tuple[int, bytes]:
        answer = parts.post(envelope(notify()), authorization=value)
        return answer.status, answer.headers.get(b"www-authenticate", b"")

    expired = b'Bearer realm="arborcast", error="invalid_token", error_description="the token has expired"'
    assert sent(f"Bearer {token()}")[0] == 202
    assert sent(f"Bearer {token(exp=1)}") == (401, expired)
    assert sent("") == (401, b'Bearer realm="arborcast"')
    assert [sent(f"Bearer {text}")[0] for text in ("", "not.a.token", "x", "x")] == [401, 401, 429, 429]
    assert sent(f"Bearer {token()}")[0] == 202
    assert len(parts.notifications.accepted) == 2


def test_checked_tokens_are_cached_until_they_expire(jwks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arborcast.ingest.access.bearer._REMEMBERED", 3)
    wall, steady = [time.time()], [0.0]
    bearer = Bearer(settings(jwks, cache_s=60.0), lambda: wall[0], lambda: steady[0])
    checked: list[str] = []
    decode = jwt.decode

    def noted(text: str, *more: Any, **named: Any) -> dict[str, Any]:
        checked.append(text)
        return decode(text, *more, **named)

    monkeypatch.setattr(jwt, "decode", noted)
    long_lived, brief = token(), token(exp=int(wall[0]) + 5, sub="bert")

    def checks(of: str, name: str) -> int:
        assert bearer.check(of).name == name
        return checked.count(of)

    assert [checks(long_lived, "anna") for _ in range(3)] == [checks(brief, "bert") for _ in range(3)] == [1, 1, 1]
    with pytest.raises(WrongToken):
        bearer.check(long_lived[:-4] + ("AAAA" if not long_lived.endswith("AAAA") else "BBBB"))
    wall[0] += 6
    steady[0] += 6
    assert checks(brief, "bert") == 2, "expired, though within the leeway"
    wall[0] -= 3_600
    steady[0] += 53
    assert checks(long_lived, "anna") == 1
    steady[0] += 2
    assert checks(long_lived, "anna") == 2, "a wall clock that is set back does not extend it"
    for number in range(5):
        bearer.check(token(sub=f"user-{number}"))
    assert len(bearer._good) == 3
    assert checks(long_lived, "anna") == 3
    jwks.write_text(json.dumps({"keys": [public(OTHER, "RS256", kid="r")]}))
    monkeypatch.setattr(bearer._keys, "_next_check", 0.0)
    with pytest.raises(WrongToken):
        bearer.check(long_lived)
