from __future__ import annotations

import asyncio
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
from arborcast.ingest.access.users import Guesses, Users
from arborcast.topic_model.grants import Identity
from arborcast.wire.errors import NotAuthenticated, TooManyRequests
from tests.support.gateway_parts import GatewayParts
from tests.support.soap_messages import envelope, notify

RSA = rsa.generate_private_key(65537, 2048)
OTHER = rsa.generate_private_key(65537, 2048)
SHORT = rsa.generate_private_key(65537, 1024)  # noqa: S505  # to be refused
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
    return AccessSettings(
        **{
            "methods": "bearer",
            "jwks_file": str(jwks),
            "jwt_issuer": "https://id.example",
            "jwt_audience": "arborcast",
            "jwt_algorithms": "RS256, ES256, EdDSA",
            **more,
        }
    )


def claims(**changes: Any) -> dict[str, Any]:
    import time

    now = time.time()
    made = {"sub": "anna", "groups": ["g"], "iss": "https://id.example", "aud": "arborcast", "exp": now + 86_400}
    return {key: value for key, value in {**made, **changes}.items() if value is not None}


def token(key: Any = RSA, algorithm: str = "RS256", kid: str | None = "r", **changes: Any) -> str:
    return jwt.encode(claims(**changes), key, algorithm, headers={"kid": kid} if kid else None)


@pytest.mark.parametrize(
    "good",
    [
        token(),
        token(EC, "ES256", "e"),
        token(ED, "EdDSA", "d"),
        token(kid=None),
        token(aud=["x", "arborcast"]),
        token(groups="g"),
        token(exp=1 << 40),
        token(nbf=1),
    ],
)
def test_tokens_that_say_who_it_is(jwks: Path, good: str) -> None:
    assert Bearer(settings(jwks)).check(good) == Identity("anna", frozenset({"g"}))


def unsigned(header: dict[str, Any], signature: bytes = b"") -> str:
    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    return ".".join((part(json.dumps(header).encode()), part(json.dumps(claims()).encode()), part(signature)))


def confused() -> str:
    """The public key, which everybody has, used as an HMAC secret."""
    secret = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    start = unsigned({"alg": "HS256", "kid": "r"}).rpartition(".")[0]
    return start + "." + base64.urlsafe_b64encode(hmac.new(secret, start.encode(), hashlib.sha256).digest()).decode()


# Headers that say what else a reader has to understand.
CRITICAL: tuple[dict[str, Any], ...] = (
    {"crit": ["urn:unknown"], "urn:unknown": 1},
    {"crit": []},
    {"crit": "exp"},
    {"crit": ["b64"], "b64": False},
    {"b64": False},
)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (token(exp=1), "expired"),
        (token(exp=None), "lacks a required claim"),
        (token(nbf=1 << 40), "not valid yet"),
        (token(aud="other"), "another audience"),
        (token(aud=None), "lacks a required claim"),
        (token(iss="https://other"), "another issuer"),
        (token(iss=None), "lacks a required claim"),
        (token(OTHER), "is invalid"),
        (token(OTHER, kid="x"), "unknown"),
        (token(EC, "ES256", "r"), "unknown"),
        (token(RSA, "RS384"), "algorithm"),
        (token(RSA, "PS256"), "algorithm"),
        (unsigned({"alg": "none"}), "algorithm"),
        (unsigned({"alg": "None", "kid": "r"}), "algorithm"),
        (unsigned({"alg": "RS256", "kid": "r"}), "is invalid"),
        (unsigned({"kid": "r"}), "algorithm"),
        (confused(), "algorithm"),
        *((jwt.encode(claims(), RSA, "RS256", headers={"kid": "r", **more}), "is invalid") for more in CRITICAL),
        *(
            (unsigned({"alg": "RS256", "kid": kid}), "unknown|is invalid")
            for kid in ("../../etc/passwd", "/dev/null", "r\x00", "' OR 1=1", "x" * 5_000, "", 0, True, ["r"], {"r": 1})
        ),
        # Keys that the token brings along, or says where to fetch.
        *(
            (jwt.encode(claims(), OTHER, "RS256", headers={"kid": "r", **more}), "is invalid")
            for more in (
                {"jwk": public(OTHER, "RS256")},
                {"jku": "http://127.0.0.1:9/jwks.json"},
                {"x5u": "http://127.0.0.1:9/x.pem"},
                {"x5c": ["AAAA"]},
            )
        ),
        (unsigned({"alg": ["RS256"], "kid": "r"}), "algorithm"),
        (unsigned({"alg": {"RS256": 1}, "kid": "r"}), "algorithm"),
        (token() + "=", "is invalid"),
        (token() + ".x", "is invalid"),
        (token(sub=None), "not a user name"),
        (token(sub="a:b"), "not a user name"),
        (token(groups=[1]), "not a list"),
        ("", "is invalid"),
        ("a.b.c", "is invalid"),
        ("x" * 20_000, "too long"),
        (base64.urlsafe_b64encode(b"[" * 9_000).decode() + ".e30.", "is invalid"),
        (token()[:-4] + "AAAA", "is invalid"),
    ],
)
def test_tokens_that_prove_nothing(jwks: Path, bad: str, says: str) -> None:
    with pytest.raises(WrongToken, match=says):
        Bearer(settings(jwks)).check(bad)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a JWKS"),
        ("[]", "not a JWKS"),
        ('{"keys": []}', "no key that signs"),
        ('{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', "only public keys"),
        ('{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB", "d": "AQAB"}]}', "private key"),
        ('{"keys": [{"kty": "EC", "crv": "P-256"}]}', "number 1"),
        (json.dumps({"keys": [public(SHORT, "RS256")]}), "1024 bits"),
    ],
)
def test_keys_that_are_not_used(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_keys(text, "jwks.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("jwt_algorithms", each) for each in ("", "none", "HS256", "RS256, HS256")),
        *((each, "") for each in ("jwks_file", "jwt_issuer", "jwt_audience")),
    ],
)
def test_algorithms_are_those_of_public_keys_and_whose_tokens_for_whom_is_set(jwks: Path, key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"access\.{key}"):
        settings(jwks, **{key: value})


class Nobody:
    def check(self, _name: str, _password: str) -> Identity | None:
        return None

    def find(self, _name: str) -> Identity | None:
        return None

    def clear_password(self, _name: str) -> str:
        return ""


def test_through_the_gateway(jwks: Path) -> None:
    users = Users(Nobody(), remember_s=60, guesses=Guesses(3, 300))
    parts = GatewayParts()
    access = settings(jwks)
    parts.gateway.gate = Gate(None, Authenticator(access, users, bearer=Bearer(access)))

    def sent(value: str) -> tuple[int, bytes]:
        headers = {"authorization": value}
        answer = asyncio.run(parts.request("POST", "/wsn/NotificationBroker", envelope(notify()), headers))
        return answer.status, answer.headers.get(b"www-authenticate", b"")

    assert sent(f"Bearer {token()}")[0] == 202
    status, challenge = sent(f"Bearer {token(exp=1)}")
    assert status == 401
    assert challenge == b'Bearer realm="arborcast", error="invalid_token", error_description="the token has expired"'
    assert sent("Bearer ")[0] == 401
    assert sent("")[1] == b'Bearer realm="arborcast"'
    assert len(parts.notifications.accepted) == 1


async def test_a_good_token_gets_in_whatever_strangers_send_from_there(jwks: Path) -> None:
    users = Users(Nobody(), remember_s=60, guesses=Guesses(3, 3))
    access = settings(jwks, cache_s=0)
    asks = Authenticator(access, users, bearer=Bearer(access))

    async def sent(value: str) -> Identity | None:
        return await asks.of_head({"headers": [(b"authorization", f"Bearer {value}".encode())]}, "192.0.2.1")

    for number in range(6):
        with pytest.raises(NotAuthenticated if number < 3 else TooManyRequests):
            await sent("not.a.token")
    assert await sent(token()) is not None


def tokens_checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Will hold each token that is checked from now on."""
    checked: list[str] = []
    decode = jwt.decode

    def noted(text: str, *more: Any, **named: Any) -> dict[str, Any]:
        checked.append(text)
        return decode(text, *more, **named)

    monkeypatch.setattr(jwt, "decode", noted)
    return checked


def test_a_clock_that_is_put_back_does_not_make_a_token_remembered_for_longer(
    jwks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, steady = [time.time()], [0.0]
    bearer = Bearer(settings(jwks, cache_s=60.0), lambda: now[0], lambda: steady[0])
    checked = tokens_checked(monkeypatch)
    one = token()
    bearer.check(one)
    now[0] -= 3_600
    steady[0] += 59
    bearer.check(one)
    assert len(checked) == 1
    steady[0] += 2
    bearer.check(one)
    assert len(checked) == 2


def test_a_good_token_is_checked_once_until_its_end_or_other_keys(jwks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [time.time()]
    bearer = Bearer(settings(jwks, cache_s=60.0), lambda: now[0], lambda: now[0] - 1e9)
    checked = tokens_checked(monkeypatch)
    long_lived, brief = token(), token(exp=int(now[0]) + 5, sub="bert")
    for _ in range(3):
        assert bearer.check(long_lived).name == "anna"
        assert bearer.check(brief).name == "bert"
    assert checked == [long_lived, brief]
    # A changed signature is another token.
    with pytest.raises(WrongToken):
        bearer.check(long_lived[:-4] + ("AAAA" if not long_lived.endswith("AAAA") else "BBBB"))
    now[0] += 6
    bearer.check(brief)  # within the leeway still, but it was asked again
    assert checked.count(brief) == 2
    assert checked.count(long_lived) == 1
    now[0] += 60
    bearer.check(long_lived)
    assert checked.count(long_lived) == 2
    # Its key is taken back: nothing is remembered.
    jwks.write_text(json.dumps({"keys": [public(OTHER, "RS256", kid="r")]}))
    monkeypatch.setattr(bearer._keys, "_next_check", 0.0)
    with pytest.raises(WrongToken):
        bearer.check(long_lived)


def test_so_many_good_tokens_are_remembered(jwks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arborcast.ingest.access.bearer._REMEMBERED", 3)
    bearer = Bearer(settings(jwks))
    for number in range(5):
        bearer.check(token(sub=f"user-{number}"))
    assert len(bearer._good) == 3
