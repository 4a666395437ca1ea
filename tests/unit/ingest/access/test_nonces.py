"""Digests that somebody overheard: sent to another worker, or to the gateway that was started again."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from arborcast.core.errors import ConfigError
from arborcast.ingest.access.username_token import NonceMemory, UsernameToken
from arborcast.wire.errors import IdentitiesAway, TokenRefused

NOW = 1_700_000_000.0

STEADY = [0.0]
"""The clock that nobody sets; it goes with the other one, where a test does not part them."""


def token(nonce: bytes = b"n", name: str = "anna", created_s: float = NOW) -> UsernameToken:
    return UsernameToken(name, digest=b"d", nonce=nonce, created_s=created_s)


def memory(folder: Path | None = None, window_s: float = 300, maximum: int = 1_000) -> NonceMemory:
    return NonceMemory(window_s, maximum, folder, lambda: STEADY[0])


def taken(where: NonceMemory, one: UsernameToken, now_s: float = NOW, set_by_s: float = 0.0) -> bool:
    """Whether it is taken by a gateway whose clock shows `now_s`, `set_by_s` of which somebody has set it by."""
    STEADY[0] = now_s - set_by_s
    try:
        where.check_time(one, now_s)
        where.use(one, now_s)
    except TokenRefused:
        return False
    return True


@pytest.mark.parametrize("shared", [True, False])
def test_a_nonce_is_taken_once_for_each_user(tmp_path: Path, shared: bool) -> None:
    one = memory(tmp_path if shared else None)
    assert [taken(one, token()), taken(one, token()), taken(one, token(name="bert"))] == [True, False, True]
    # What stands at the end of a name does not count as the nonce's beginning.
    assert taken(one, token(b"xn", "ann"))
    assert taken(one, token(b"n", "annx"))


def test_another_worker_and_the_next_process_know_it(tmp_path: Path) -> None:
    first, second = memory(tmp_path), memory(tmp_path)
    assert taken(first, token(b"1"))
    assert not taken(second, token(b"1"))
    assert taken(second, token(b"2"))
    assert not taken(first, token(b"2"))
    # No close: it was killed.
    again = memory(tmp_path)
    assert [taken(again, token(b"1")), taken(again, token(b"2")), taken(again, token(b"3"))] == [False, False, True]


def test_of_many_at_the_same_moment_one_has_it(tmp_path: Path) -> None:
    workers = [memory(tmp_path) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        for number in range(200):
            asked = token(str(number).encode())
            found = list(threads.map(lambda worker, asked=asked: taken(worker, asked), workers))
            assert sum(found) == 1


@pytest.mark.parametrize("window_s", [1, 300, 3_600])
@pytest.mark.parametrize("apart_s", [-1.0, -0.5, 0.0, 1.0])
def test_it_is_known_for_as_long_as_its_time_is_good(tmp_path: Path, window_s: float, apart_s: float) -> None:
    made = token(created_s=NOW + apart_s * window_s)
    one = memory(tmp_path, window_s)
    assert taken(one, made)
    for later in (0.0, window_s / 2, window_s, 2 * window_s, 3 * window_s):
        # Others come in between, so that what is over is forgotten.
        assert taken(one, token(f"{later}".encode(), created_s=NOW + later), NOW + later)
        assert not taken(one, made, NOW + later)
        assert not taken(memory(tmp_path, window_s), made, NOW + later)


def test_a_clock_that_is_put_ahead_and_back_opens_no_door(tmp_path: Path) -> None:
    one, other = memory(tmp_path), memory(tmp_path)
    overheard = token(b"1")
    assert taken(one, overheard)
    assert taken(other, token(b"2"))
    for minute in range(4):
        ahead = NOW + 3_600 + 300 * minute
        assert taken(one, token(b"3", created_s=ahead), ahead, set_by_s=3_600 + 300 * minute)
    assert not taken(one, overheard, NOW + 10)
    assert not taken(one, token(b"2"), NOW + 10)
    assert not taken(memory(tmp_path), overheard, NOW + 20), "and the file is there for whoever starts"


def test_a_full_memory_refuses_and_forgets_nothing(tmp_path: Path) -> None:
    one = memory(tmp_path, maximum=100)
    assert all(taken(one, token(str(number).encode())) for number in range(100))
    with pytest.raises(TokenRefused, match="100 nonces were used within 600 s"):
        one.use(token(b"more"), NOW)
    assert not taken(one, token(b"0"))
    later = NOW + 1_000
    assert taken(one, token(b"later", created_s=later), later)


def test_nobody_comes_in_when_it_cannot_be_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = memory(tmp_path)
    assert taken(one, token(b"1"))

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    write = os.write
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(IdentitiesAway, match="No space left"):
        one.use(token(b"2"), NOW)
    # Less than the whole is written; what comes behind it is not where it should be.
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
    with pytest.raises(IdentitiesAway, match="damaged"):
        one.use(token(b"3"), NOW)
    monkeypatch.undo()
    with pytest.raises(IdentitiesAway, match="damaged"):
        one.use(token(b"4"), NOW)
    assert not taken(one, token(b"1"))
    # Tokens of another time go to another file.
    assert taken(one, token(b"5", created_s=NOW + 300), NOW + 300)


def test_what_was_written_and_not_read_back_is_used_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = memory(tmp_path), memory(tmp_path)
    assert taken(one, token(b"1"))

    def broken(descriptor: int, size: int, offset: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", broken)
        with pytest.raises(IdentitiesAway, match="Input/output"):
            one.use(token(b"2"), NOW)
    assert not taken(one, token(b"2"))
    assert not taken(other, token(b"2"))
    assert taken(one, token(b"3"))


def test_the_folder_is_for_its_owner_and_one_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    one = memory(tmp_path / "nonces")
    assert taken(one, token())
    one.close()
    (file,) = (tmp_path / "nonces").iterdir()
    assert not (file.stat().st_mode | file.parent.stat().st_mode) & 0o077
    with pytest.raises(ConfigError, match=f"{file.name} cannot store nonces"):
        memory(file)
