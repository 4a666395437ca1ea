"""Signing, and signatures that a receiver must refuse."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.errors import SecretError, SignatureError
from arborcast.core.security.signatures import PREFIX, check, key_of, new_secret, sign

KEY, OTHER = b"k" * 32, b"o" * 24
NOW = 1_800_000_000


def headers(keys: list[bytes], body: bytes) -> dict[str, str]:
    signature = sign(keys, "msg_1", NOW, body)
    return {"webhook-id": "msg_1", "webhook-timestamp": str(NOW), "webhook-signature": signature}


SIGNED = headers([KEY], b"<a/>")


def test_the_vector_of_other_implementations() -> None:
    # From the test vectors that the libraries of Standard Webhooks share.
    key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signature = sign([key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@given(st.binary(max_size=200), st.sampled_from([[KEY], [KEY, OTHER], [OTHER, KEY]]), st.integers(-300, 300))
def test_signatures_are_accepted_by_any_of_their_keys(body: bytes, keys: list[bytes], apart: int) -> None:
    given_headers = headers(keys, body)
    for key in keys:
        check([key], given_headers, body, NOW + apart)
    check([b"x" * 24, KEY], given_headers, body, NOW)


@pytest.mark.parametrize(
    ("changed", "body", "now", "why"),
    [
        ({}, b"<b/>", NOW, "none of the signatures"),
        ({"id": "msg_2"}, b"<a/>", NOW, "none of the signatures"),
        ({"timestamp": str(NOW + 1)}, b"<a/>", NOW, "none of the signatures"),
        ({"signature": "v1,AAAA"}, b"<a/>", NOW, "none of the signatures"),
        ({"signature": "v1,é ü"}, b"<a/>", NOW, "none of the signatures"),
        ({"signature": SIGNED["webhook-signature"].replace("v1,", "v1a,")}, b"<a/>", NOW, "none of the signatures"),
        # The number of compared signatures is limited.
        ({"signature": "v1,x " * 1_000 + SIGNED["webhook-signature"]}, b"<a/>", NOW, "none of the signatures"),
        ({"signature": ""}, b"<a/>", NOW, "not signed"),
        ({"id": ""}, b"<a/>", NOW, "not signed"),
        ({"timestamp": ""}, b"<a/>", NOW, "not a number"),
        ({"timestamp": "-5"}, b"<a/>", NOW, "not a number"),
        ({"timestamp": "١٢"}, b"<a/>", NOW, "not a number"),
        ({"timestamp": "9" * 5_000}, b"<a/>", NOW, "not a number"),
        ({}, b"<a/>", NOW + 301, "301 s ago"),
        ({}, b"<a/>", NOW - 301, "in the future"),
    ],
)
def test_refused_signatures(changed: dict[str, str], body: bytes, now: int, why: str) -> None:
    with pytest.raises(SignatureError, match=why):
        check([KEY], SIGNED | {f"webhook-{name}": value for name, value in changed.items()}, body, now)


def test_secrets() -> None:
    assert new_secret() != new_secret()
    assert len(key_of(new_secret())) == 32
    written = base64.b64encode(KEY).decode()
    assert key_of(PREFIX + written) == key_of(written) == KEY
    for wrong in ("", "whsec_", "whsec_AAAA", "whsec_hello!", "é" * 40, "A" * 200):
        with pytest.raises(SecretError) as caught:
            key_of(wrong)
        assert len(wrong) < 8 or wrong not in str(caught.value)
