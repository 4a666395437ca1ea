"""Replayed digests, sent to another worker or to the gateway after a restart."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from arborcast.core.errors import ConfigError
from arborcast.ingest.access.username_token import NonceMemory, UsernameToken
from arborcast.wire.errors import IdentitiesUnavailable, TokenRefused

NOW = 1_700_000_000.0

STEADY = [0.0]
"""The steady clock. It advances with the wall clock, except where a test sets that."""


def token(nonce: object = "n", name: str = "anna", created_s: float = NOW) -> UsernameToken:
    return UsernameToken(name, digest=b"d", nonce=str(nonce).encode(), created_s=created_s)


def memory(folder: Path, window_s: float = 300, maximum: int = 1_000) -> NonceMemory:
    return NonceMemory(window_s, maximum, folder, lambda: STEADY[0])


def taken(where: NonceMemory, one: UsernameToken, now_s: float = NOW, set_by_s: float = 0.0) -> bool:
    """Whether a gateway accepts it with its clock at `now_s`, after that was set by `set_by_s`."""
    STEADY[0] = now_s - set_by_s
    try:
        one.check_time(where._window_s, now_s)
        where.use(one, now_s)
    except TokenRefused:
        return False
    return True


def test_a_nonce_is_accepted_once_per_user(tmp_path: Path) -> None:
    one = memory(tmp_path)
    assert [taken(one, token()), taken(one, token()), taken(one, token(name="bert"))] == [True, False, True]
    # Name and nonce are not concatenated.
    assert taken(one, token("xn", "ann"))
    assert taken(one, token("n", "annx"))


def test_nonces_are_shared_by_workers_and_the_next_process(tmp_path: Path) -> None:
    workers = [memory(tmp_path) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        for number in range(50):
            found = list(threads.map(taken, workers, [token(number)] * 8))
            assert sum(found) == 1
    again = memory(tmp_path)  # without close, as after a kill
    assert [taken(again, token(number)) for number in (0, 49, 50)] == [False, False, True]


@pytest.mark.parametrize("window_s", [1, 300, 3_600])
@pytest.mark.parametrize("apart_s", [-1.0, -0.5, 0.0, 1.0])
def test_a_nonce_is_kept_while_its_time_is_valid(tmp_path: Path, window_s: float, apart_s: float) -> None:
    made = token(created_s=NOW + apart_s * window_s)
    one = memory(tmp_path, window_s)
    assert taken(one, made)
    for later in (0.0, window_s / 2, window_s, 2 * window_s, 3 * window_s):
        # Other nonces in between, so that old ones are removed.
        assert taken(one, token(later, created_s=NOW + later), NOW + later)
        assert not taken(one, made, NOW + later)
        assert not taken(memory(tmp_path, window_s), made, NOW + later)


def test_a_clock_that_is_set_ahead_and_back(tmp_path: Path) -> None:
    one, other = memory(tmp_path), memory(tmp_path)
    assert taken(one, token(1))
    assert taken(other, token(2))
    for minute in range(4):
        ahead_s = 3_600 + 300 * minute
        assert taken(one, token(3, created_s=NOW + ahead_s), NOW + ahead_s, set_by_s=ahead_s)
    assert not taken(one, token(1), NOW + 10)
    assert not taken(one, token(2), NOW + 10)
    assert not taken(memory(tmp_path), token(1), NOW + 20), "nor after a restart"


def test_a_full_memory_refuses_new_nonces(tmp_path: Path) -> None:
    one = memory(tmp_path, maximum=100)
    assert all(taken(one, token(number)) for number in range(100))
    with pytest.raises(TokenRefused, match="100 nonces were used within 600 s"):
        one.use(token("more"), NOW)
    assert not taken(one, token(0))
    assert taken(one, token("later", created_s=NOW + 1_000), NOW + 1_000)


def test_a_nonce_that_cannot_be_recorded_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = memory(tmp_path), memory(tmp_path)
    assert taken(one, token(1))
    write = os.write

    def fail(function: str, number: int) -> None:
        def failing(*_: Any) -> Any:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, function, failing)

    def refused(nonce: int, words: str) -> None:
        caplog.clear()
        with pytest.raises(IdentitiesUnavailable, match=words):
            one.use(token(nonce), NOW)
        assert words in caplog.text

    fail("write", errno.ENOSPC)
    refused(2, "No space left")
    monkeypatch.undo()
    fail("pread", errno.EIO)
    refused(3, "Input/output")
    monkeypatch.undo()
    # It was written: it is used, for other workers too.
    assert [taken(one, token(3)), taken(other, token(3)), taken(one, token(4))] == [False, False, True]
    # A partial write: later records are at wrong offsets.
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
    refused(5, "damaged")
    monkeypatch.undo()
    refused(6, "damaged")
    assert not taken(one, token(1))
    assert taken(one, token(7, created_s=NOW + 300), NOW + 300), "another time has another file"


def test_mode_and_errors_of_the_folder(tmp_path: Path) -> None:
    one = memory(tmp_path / "nonces")
    assert taken(one, token())
    one.close()
    (file,) = (tmp_path / "nonces").iterdir()
    assert not (file.stat().st_mode | file.parent.stat().st_mode) & 0o077
    with pytest.raises(ConfigError, match=f"{file.name} cannot store nonces"):
        memory(file)
