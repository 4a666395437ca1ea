"""Sealing, changes of keys, and ciphertexts that must not open."""

from __future__ import annotations

import base64
import logging
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.errors import SecretError
from arborcast.core.security.keyring import KeyFile, KeyRing, UnknownKey, add_key, parse_keys, remove_key

RING = KeyRing({"new": b"n" * 32, "old": b"o" * 32})


@given(st.binary(max_size=300), st.text(max_size=50))
def test_sealed_data_opens_again(plain: bytes, context: str) -> None:
    sealed = RING.seal(plain, context)
    assert sealed.startswith("new:")
    assert RING.open(sealed, context) == plain
    assert sealed != RING.seal(plain, context), "equal secrets have different ciphertexts"
    assert len(plain) < 8 or plain not in base64.b64decode(sealed.partition(":")[2])


def test_sealed_data_opens_only_unchanged_and_in_its_context() -> None:
    sealed = RING.seal(b"secret", "sub-1\nhttp://a/")
    with pytest.raises(SecretError, match="another context"):
        RING.open(sealed, "sub-1\nhttp://evil/")
    content = base64.b64decode(sealed.removeprefix("new:"))
    for position in range(len(content)):
        changed = bytes([*content[:position], content[position] ^ 1, *content[position + 1 :]])
        with pytest.raises(SecretError):
            RING.open("new:" + base64.b64encode(changed).decode(), "sub-1\nhttp://a/")
    for nothing in ("", "new", "new:", "new:AAAA", "new:é", "new:!!", "new:" + "A" * 40):
        with pytest.raises(SecretError):
            RING.open(nothing, "")


def test_old_keys_open_and_unknown_ones_are_named() -> None:
    old = KeyRing({"old": b"o" * 32})
    assert RING.open(old.seal(b"x", "c"), "c") == b"x"
    with pytest.raises(UnknownKey, match="'new'"):
        old.open(RING.seal(b"x", "c"), "c")
    with pytest.raises(SecretError, match="no key"):
        KeyRing({})


def test_a_key_file_is_created_and_changed_during_its_use(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    keys = KeyFile(path)
    with pytest.raises(SecretError, match="arborcast keys new"):
        keys.seal(b"x", "c")

    add_key(path, "k1")
    assert path.stat().st_mode & 0o777 == 0o600
    sealed = keys.seal(b"x", "c")
    assert sealed.startswith("k1:")
    reader = pickle.loads(pickle.dumps(keys))  # noqa: S301
    assert reader.open(sealed, "c") == b"x"

    add_key(path, "k2")
    newer = keys.seal(b"y", "c")
    assert newer.startswith("k2:"), "the writer uses a new key at once"
    assert reader.open(newer, "c") == b"y", "a reader when it reads one"
    assert reader.open(sealed, "c") == b"x"

    assert not caplog.records
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        KeyFile(path).open(newer, "c")
    assert "is accessible to other users" in caplog.text
    for line in path.read_text().splitlines():
        assert line.split()[1] not in pickle.dumps(keys).decode("latin-1"), "no key is pickled"


@pytest.mark.parametrize(
    "text",
    ["k1\n", "k1 AAAA\n", "k1 " + "!" * 44, "../k " + base64.b64encode(b"k" * 32).decode(), "k1 AAAA more words"],
)
def test_damaged_key_files(text: str) -> None:
    with pytest.raises(SecretError, match="line 2 of the key file"):
        parse_keys("# the keys\n" + text)


def test_an_id_is_used_once_and_the_sealing_key_stays(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    add_key(path, "k1")
    for wrong in ("k1", "", "a b", "a\nb"):
        with pytest.raises(SecretError):
            add_key(path, wrong)
    line = path.read_text()
    with pytest.raises(SecretError, match="line 2 of the key file has the id of an earlier line"):
        parse_keys(line + line)
    path.write_text("# k1 is the old one\n\n" + line)
    add_key(path, "k2")
    for wrong, says in (("k2", "the key that seals"), ("k3", "has no key 'k3'; it has k2, k1")):
        with pytest.raises(SecretError, match=says):
            remove_key(path, wrong)
    remove_key(path, "k1")
    assert list(parse_keys(path.read_text())) == ["k2"]
    assert "# k1 is the old one" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["keys"]
    with pytest.raises(SecretError, match="cannot be written"):
        remove_key(tmp_path / "none", "k1")


def test_a_new_key_is_advised_only_without_a_key_file(tmp_path: Path) -> None:
    """Beside the keys of the other machines a further one would seal secrets that they cannot open."""
    (tmp_path / "latin").write_bytes(b"k1 \xe9\n")
    for name, advised in (("missing", True), ("latin", False), (".", False)):
        with pytest.raises(SecretError, match="cannot be read") as refused:
            KeyFile(tmp_path / name).seal(b"secret", "of a test")
        assert ("arborcast keys new" in str(refused.value)) is advised


def test_an_unreadable_key_file_is_not_read_for_each_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each push has a MAC if there are keys, and looks for one if there are none."""
    moment = [100.0]
    monkeypatch.setattr("arborcast.core.security.keyring.time.monotonic", lambda: moment[0])
    keys = KeyFile(tmp_path / "keys")
    for later_s in (0.0, 0.9):
        moment[0] += later_s
        with pytest.raises(SecretError, match="cannot be read"):
            keys.mac(b"data", "of a test")
        if not later_s:
            add_key(tmp_path / "keys", "k1")
    moment[0] += 0.2
    assert keys.is_valid_mac(keys.mac(b"data", "of a test"), b"data", "of a test")
