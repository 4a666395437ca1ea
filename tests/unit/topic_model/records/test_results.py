from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.errors import SecretError
from arborcast.core.security.keyring import KeyRing
from arborcast.topic_model.records.results import Promise, read_promise, write_promise

KEYS = KeyRing({"new": b"n" * 32, "old": b"o" * 32})
PROMISE = Promise("sub-1", "0123456789abcdef-7", 1_700_000_000_000, 1_700_000_600_000, 3)


@given(
    st.builds(Promise, st.text(), st.text(), st.integers(0, 1 << 62), st.integers(0, 1 << 62), st.integers(1, 1_000))
)
def test_a_promise_is_read_from_its_address(promise: Promise) -> None:
    written = write_promise(promise, KEYS)
    assert read_promise(written, KEYS) == promise
    assert written.isascii()
    assert not set(written) & set("/?#&+% "), "it needs no escapes in a URL"


def test_forged_and_changed_addresses() -> None:
    written = write_promise(PROMISE, KEYS)
    encoded, _, mac = written.partition(".")
    other, _, _ = write_promise(PROMISE._replace(push="another"), KEYS).partition(".")
    stranger = write_promise(PROMISE, KeyRing({"new": b"x" * 32}))
    texts = ("", ".", encoded, f".{mac}", f"{other}.{mac}", stranger, written[:-1], f"{written}A", "\u00e9.new.x")
    for text in texts:
        with pytest.raises(SecretError):
            read_promise(text, KEYS)


def test_addresses_with_earlier_keys_are_valid() -> None:
    before = KeyRing({"old": b"o" * 32})
    assert read_promise(write_promise(PROMISE, before), KEYS) == PROMISE
    with pytest.raises(SecretError, match="not in the key file"):
        read_promise(write_promise(PROMISE, KEYS), before)


def test_a_mark_is_valid_for_one_use() -> None:
    mac = KEYS.mac(b"data", "one")
    assert (KEYS.is_valid_mac(mac, b"data", "one"), KEYS.is_valid_mac(mac, b"data", "another")) == (True, False)
