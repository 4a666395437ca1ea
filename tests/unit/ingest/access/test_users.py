from __future__ import annotations

import asyncio
import os
import stat
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from arborcast.core.errors import ConfigError
from arborcast.ingest.access.users import FileUsers, Guesses, Users
from arborcast.ingest.access.users_file import (
    MAX_PASSWORD,
    User,
    hash_password,
    made,
    password_matches,
    read_users,
    write_users,
)
from arborcast.topic_model.grants import Identity
from arborcast.wire.errors import IdentitiesAway, TooManyRequests
from tests.support.make import Clock


def quick(name: str, password: str, *groups: str, clear: str = "") -> User:
    return User(name, hash_password(password, log_n=4), frozenset(groups), clear)


def test_a_password_is_recognised_and_its_hash_is_salted() -> None:
    first, second = hash_password("geheim", log_n=4), hash_password("geheim", log_n=4)
    assert first != second
    assert "geheim" not in first
    assert password_matches("geheim", first)
    assert not password_matches("geheim ", first)
    assert not password_matches("", first)
    assert not password_matches("x" * (MAX_PASSWORD + 1), first)


@pytest.mark.parametrize("kept", ["", "geheim", "md5$1$2$3$x$y", "scrypt$99$8$1$YQ==$YQ==", "scrypt$4$8$1$?$YQ=="])
def test_what_is_no_hash_matches_nothing(kept: str) -> None:
    with pytest.raises(ValueError, match="scrypt hash"):
        password_matches("geheim", kept)


def test_users_survive_being_written_and_only_the_owner_may_read_them(tmp_path: Path) -> None:
    users = {each.name: each for each in (quick("anna", "a", "x", "y"), quick("b ö.c", "b", clear="ütf"))}
    file = tmp_path / "sub" / "users.toml"
    write_users(users, file)
    assert read_users(file.read_text(), "f") == users
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(file.parent) == ["users.toml"]


@pytest.mark.parametrize("name", ["", "a:b", "@a", " a", 'a"b', "a\nb", "a\\b", "x" * 201, "a\x9bb", "a\u202eb"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(ConfigError, match="a user's name"):
        made(name, "long enough", frozenset(), keep_clear=False)


@pytest.mark.parametrize(
    "text",
    [
        "users = 1",
        "[other]",
        '[users.a]\npassword = "geheim"',
        '[users.a]\ncolour = "x"',
        "[users.a]\ngroups = [1]",
        "[users.a]\nclear = 1",
        "[users",
    ],
)
def test_broken_files_are_refused_without_showing_what_is_in_them(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_users(text, "users.toml")
    assert "users.toml" in str(refused.value)
    assert "geheim" not in str(refused.value)


def test_a_file_that_is_not_there_or_shows_passwords_to_others_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    with pytest.raises(ConfigError, match=r"users\.toml"):
        FileUsers(file)
    write_users({"a": quick("a", "b", clear="b")}, file)
    FileUsers(file)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        FileUsers(file)


def test_a_file_of_users_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    write_users({"a": quick("a", "right", "g", clear="right"), "key-only": User("key-only")}, file)
    users = FileUsers(file)
    assert users.check("a", "right") == Identity("a", frozenset({"g"}))
    assert users.check("a", "wrong") is None
    assert users.check("b", "right") is None
    assert users.check("key-only", "") is None
    assert users.check("key-only", "nobody") is None
    assert users.find("key-only") == Identity("key-only")
    assert users.clear_password("a") == "right"
    assert users.clear_password("b") == ""


@dataclass
class Source:
    """One user, `a` with the password `right`; counts what it is asked and waits until it may answer."""

    asked: int = 0
    right: str = "right"
    may_answer: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_answer.set()

    def check(self, name: str, password: str) -> Identity | None:
        self.asked += 1
        self.may_answer.wait(120)
        return Identity(name) if (name, password) == ("a", self.right) else None

    def find(self, name: str) -> Identity | None:
        return Identity(name)

    def clear_password(self, name: str) -> str:
        return ""


async def test_what_was_sent_is_recalled_for_as_long_as_it_is_remembered() -> None:
    source, clock = Source(), Clock(0.0)
    users = Users(source, remember_s=60, guesses=Guesses(100, 300, clock), clock=clock)
    assert users.recall(b"a:right") is None
    assert await users.check("a", "wrong", "h", b"a:wrong") is None
    assert await users.check("a", "right", "h", b"a:right") == Identity("a")
    assert [users.recall(sent) for sent in (b"a:wrong", b"a:righ", b"a:right", b"")] == [
        None,
        None,
        Identity("a"),
        None,
    ]
    # What was said in another way is not recalled by how it is kept, nor the other way round.
    assert await users.check("a", "right", "h") == Identity("a")
    assert users.recall(b"1;aright") is None
    assert users.recall(b"a") is None
    asked = source.asked
    clock.now = 60
    assert users.recall(b"a:right") == Identity("a")
    clock.now = 60.1
    assert users.recall(b"a:right") is None
    assert await users.check("a", "right", "h", b"a:right") == Identity("a")
    assert source.asked == asked + 1


async def test_guesses_at_the_same_moment_are_counted_too() -> None:
    source = Source()
    source.may_answer.clear()
    users = Users(source, remember_s=0, guesses=Guesses(3, 300))
    guesses = [asyncio.create_task(users.check("a", str(number), "bad")) for number in range(50)]
    await asyncio.sleep(0)
    source.may_answer.set()
    answers = await asyncio.gather(*guesses, return_exceptions=True)
    assert answers[:3] == [None] * 3
    assert all(isinstance(answer, TooManyRequests) for answer in answers[3:])
    assert source.asked == 3


async def test_right_passwords_of_one_address_are_no_guesses() -> None:
    source, clock = Source(), Clock(0.0)
    users = Users(source, remember_s=0, guesses=Guesses(1, 300, clock), clock=clock)
    for _ in range(5):
        assert await users.check("a", "right", "h") == Identity("a")
    hung_up = asyncio.create_task(users.check("a", "right", "h"))
    await asyncio.sleep(0)
    hung_up.cancel()
    await asyncio.wait([hung_up])
    while users._checks:
        await asyncio.sleep(0)
    assert await users.check("a", "right", "h") == Identity("a")


async def test_so_many_questions_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arborcast.ingest.access.users._WAITING", 4)
    source = Source()
    source.may_answer.clear()
    users = Users(source, remember_s=60, guesses=Guesses(100, 300))
    waiting = [asyncio.create_task(users.check("a", str(number), f"h{number}")) for number in range(4)]
    await asyncio.sleep(0)
    for _ in range(3):
        with pytest.raises(IdentitiesAway):
            await users.check("a", "right", "h")
    source.may_answer.set()
    assert await asyncio.gather(*waiting) == [None] * 4
    assert await users.check("a", "right", "h") == Identity("a")


async def test_guessing_ends_after_some_tries_and_only_for_that_address_and_name() -> None:
    source, clock = Source(), Clock(0.0)
    for name in ("a", "b"):
        users = Users(source, remember_s=0, guesses=Guesses(3, 300, clock), clock=clock)
        for number in range(3):
            assert await users.check(name, str(number), "bad") is None
        with pytest.raises(TooManyRequests):
            await users.check(name, "right", "bad")
        assert await users.check("a", "right", "good" if name == "a" else "bad") == Identity("a")
        clock.now += 21
        assert await users.check("a", "right", "bad") == Identity("a")


async def test_one_password_for_many_names_is_guessing_too() -> None:
    source, clock = Source(), Clock(0.0)
    users = Users(source, remember_s=0, guesses=Guesses(3, 10, clock), clock=clock)
    for number in range(10):
        assert await users.check(f"b{number}", "123456", "h") is None
    with pytest.raises(TooManyRequests):
        await users.check("b10", "123456", "h")
    assert await users.check("b10", "123456", "i") is None
    assert source.asked == 11


@pytest.mark.parametrize("remember_s", [0, 60])
async def test_who_was_in_before_is_kept_out_by_nobodys_guesses(remember_s: int) -> None:
    """Also when what is remembered has to be asked about anew, and with the very name that is guessed."""
    source, clock = Source(), Clock(0.0)
    users = Users(source, remember_s=remember_s, guesses=Guesses(3, 3, clock), clock=clock)
    assert await users.check("a", "right", "h", b"a:right") == Identity("a")
    clock.now = 1_000
    for number in range(3):
        assert await users.check("a", str(number), "h") is None
    with pytest.raises(TooManyRequests):
        await users.check("a", "3", "h")
    asked = source.asked
    assert users.recall(b"a:right") is None
    assert await users.check("a", "right", "h", b"a:right") == Identity("a")
    assert source.asked == asked + 1, "it was asked, not believed"


async def test_a_password_that_is_right_no_more_is_a_guess_from_then_on() -> None:
    source, clock = Source(), Clock(0.0)
    users = Users(source, remember_s=1, guesses=Guesses(1, 1, clock), clock=clock)
    assert await users.check("a", "right", "h") == Identity("a")
    clock.now = 2
    source.right = "another"
    assert await users.check("a", "right", "h") is None
    with pytest.raises(TooManyRequests):
        await users.check("a", "right", "h")


async def test_who_was_in_before_gets_an_answer_while_strangers_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arborcast.ingest.access.users._WAITING", 2)
    source, clock = Source(), Clock(0.0)
    users = Users(source, remember_s=1, guesses=Guesses(100, 100, clock), clock=clock)
    assert await users.check("a", "right", "h") == Identity("a")
    clock.now = 2
    source.may_answer.clear()
    waiting = [asyncio.create_task(users.check("b", str(number), "h")) for number in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(IdentitiesAway):
        await users.check("c", "right", "h")
    again = asyncio.create_task(users.check("a", "right", "h"))
    await asyncio.sleep(0)
    source.may_answer.set()
    assert await again == Identity("a")
    assert await asyncio.gather(*waiting) == [None] * 2


def test_names_without_end_take_no_memory_without_end() -> None:
    guesses = Guesses(3, 3, Clock(0.0))
    guesses.wrong("h", "x" * 1_000_000)
    assert max(map(len, guesses._names._filled)) < 300
