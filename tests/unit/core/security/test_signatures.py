"""Signing, and what a receiver must refuse."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.errors import SecretError, SignatureError
from arborcast.core.security.signatures import PREFIX, check, key_of, new_secret, sign

KEY, OTHER = b"k" * 32, b"o" * 24
NOW = 1_800_000_000


def headers(keys: list[bytes], body: bytes, message_id: str = "msg_1", at: int = NOW) -> dict[str, str]:
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(at),
        "webhook-signature": sign(keys, message_id, at, body),
    }


def test_the_signature_is_what_the_specification_says() -> None:
    expected = base64.b64encode(hmac.new(KEY, b"msg_1.1800000000.<a/>", hashlib.sha256).digest()).decode()
    assert sign([KEY], "msg_1", NOW, b"<a/>") == f"v1,{expected}"


def test_the_example_of_other_implementations() -> None:
    # From the test vectors that the libraries of Standard Webhooks share.
    key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signature = sign([key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@given(st.binary(max_size=200), st.sampled_from([[KEY], [KEY, OTHER], [OTHER, KEY]]), st.integers(-300, 300))
def test_what_was_signed_is_accepted_by_any_of_its_keys(body: bytes, keys: list[bytes], apart: int) -> None:
    given_headers = headers(keys, body)
    for key in keys:
        check([key], given_headers, body, NOW + apart)
    check([b"x" * 24, KEY], given_headers, body, NOW)


@pytest.mark.parametrize(
    ("changed", "body", "now", "why"),
    [
        ({}, b"<b/>", NOW, "none of the signatures"),
        ({"webhook-id": "msg_2"}, b"<a/>", NOW, "none of the signatures"),
        ({"webhook-timestamp": str(NOW + 1)}, b"<a/>", NOW, "none of the signatures"),
        ({"webhook-signature": ""}, b"<a/>", NOW, "not signed"),
        ({"webhook-id": ""}, b"<a/>", NOW, "not signed"),
        ({"webhook-timestamp": ""}, b"<a/>", NOW, "not a number"),
        ({"webhook-timestamp": "-5"}, b"<a/>", NOW, "not a number"),
        ({"webhook-timestamp": "١٢"}, b"<a/>", NOW, "not a number"),
        ({"webhook-timestamp": "9" * 5_000}, b"<a/>", NOW, "not a number"),
        ({"webhook-signature": "v1,AAAA"}, b"<a/>", NOW, "none of the signatures"),
        ({"webhook-signature": "v1,é ü"}, b"<a/>", NOW, "none of the signatures"),
        ({}, b"<a/>", NOW + 301, "301 s ago"),
        ({}, b"<a/>", NOW - 301, "in the future"),
    ],
)
def test_what_is_refused(changed: dict[str, str], body: bytes, now: int, why: str) -> None:
    with pytest.raises(SignatureError, match=why):
        check([KEY], {**headers([KEY], b"<a/>"), **changed}, body, now)


def test_a_signature_of_another_scheme_is_none_of_ours() -> None:
    forged = headers([KEY], b"<a/>")
    forged["webhook-signature"] = forged["webhook-signature"].replace("v1,", "v1a,")
    with pytest.raises(SignatureError):
        check([KEY], forged, b"<a/>", NOW)


def test_a_thousand_signatures_are_not_compared() -> None:
    flooded = headers([KEY], b"<a/>")
    flooded["webhook-signature"] = "v1,x " * 1_000 + flooded["webhook-signature"]
    with pytest.raises(SignatureError):
        check([KEY], flooded, b"<a/>", NOW)


def test_secrets() -> None:
    assert new_secret() != new_secret()
    assert len(key_of(new_secret())) == 32
    written = base64.b64encode(KEY).decode()
    assert key_of(PREFIX + written) == key_of(written) == KEY


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_AAAA", "whsec_hello!", "é" * 40, "A" * 200])
def test_what_is_no_secret(secret: str) -> None:
    with pytest.raises(SecretError) as caught:
        key_of(secret)
    assert len(secret) < 8 or secret not in str(caught.value)
