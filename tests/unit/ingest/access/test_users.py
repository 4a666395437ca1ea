from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
import struct
import threading
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import Mock

import pytest

from arborcast.core.errors import ConfigError
from arborcast.directory.settings import DirectorySettings
from arborcast.directory.stores.ldap_connection import translated
from arborcast.ingest.access import ldap_users
from arborcast.ingest.access import users as users_module
from arborcast.ingest.access.ldap_users import LdapUsers
from arborcast.ingest.access.settings import AccessSettings
from arborcast.ingest.access.users import FailedLogins, FileUsers, Users, UserSource
from arborcast.ingest.access.users_file import MAX_PASSWORD, User, made, password_matches, read_users, write_users
from arborcast.topic_model.grants import Identity
from arborcast.wire.errors import IdentitiesUnavailable, TooManyRequests
from tests.support.guarded_gateway import quick_hash
from tests.support.make import Clock
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import wait_until


def test_password_hashes() -> None:
    first, second = quick_hash("geheim"), quick_hash("geheim")
    assert first != second, "salted"
    assert "geheim" not in first
    assert password_matches("geheim", first)
    for wrong in ("geheim ", "", "x" * (MAX_PASSWORD + 1)):
        assert not password_matches(wrong, first)
    for no_hash in ("", "geheim", "md5$1$2$3$x$y", "scrypt$99$8$1$YQ==$YQ==", "scrypt$4$8$1$?$YQ=="):
        with pytest.raises(ValueError, match="scrypt hash"):
            password_matches("geheim", no_hash)


@pytest.mark.parametrize("name", ["", "a:b", "@a", " a", 'a"b', "a\nb", "a\\b", "x" * 201, "a\x9bb", "a\u202eb"])
def test_invalid_names(name: str) -> None:
    with pytest.raises(ConfigError, match="a user's name"):
        made(name, "long enough", frozenset(), keep_clear=False)


@pytest.mark.parametrize(
    "text",
    [
        "users = 1",
        "[other]",
        "[users",
        *(f"[users.a]\n{line}" for line in ('password = "geheim"', 'colour = "x"', "groups = [1]", "clear = 1")),
    ],
)
def test_errors_do_not_show_the_content_of_the_file(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_users(text, "users.toml")
    assert "users.toml" in str(refused.value)
    assert "geheim" not in str(refused.value)


def test_users_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_module, "hash_password", quick_hash)
    file = tmp_path / "sub" / "users.toml"
    with pytest.raises(ConfigError, match=r"users\.toml"):
        FileUsers(file)
    users = {
        "a": User("a", quick_hash("right"), frozenset({"x", "y"}), clear="right"),
        "b ö.c": User("b ö.c", quick_hash("b"), clear="ütf"),
        "key-only": User("key-only"),
    }
    file.parent.mkdir()
    write_users(users, file)
    assert read_users(file.read_text(), "f") == users
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(file.parent) == ["users.toml"]
    source = FileUsers(file)
    assert source.check("a", "right") == Identity("a", frozenset({"x", "y"}))
    for name, password in (("a", "wrong"), ("b", "right"), ("key-only", ""), ("key-only", "nobody")):
        assert source.check(name, password) is None
    assert source.find("key-only") == Identity("key-only")
    assert (source.clear_password("a"), source.clear_password("b")) == ("right", "")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        FileUsers(file)


@dataclass
class Source:
    """One user, `a`. Counts its checks, which wait for `may_answer`."""

    checks: int = 0
    right: str = "right"
    may_answer: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_answer.set()

    def check(self, name: str, password: str) -> Identity | None:
        self.checks += 1
        self.may_answer.wait(120)
        return Identity(name) if (name, password) == ("a", self.right) else None

    def find(self, name: str) -> Identity | None:
        return Identity(name)

    def clear_password(self, name: str) -> str:
        return ""


A = Identity("a")


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def clock() -> Clock:
    return Clock(0.0)


def users_of(source: UserSource, clock: Clock, name: int, address: int = 300, remember_s: float = 0) -> Users:
    """Users with these limits of failed logins per name and per address."""
    return Users(source, remember_s=remember_s, failed_logins=FailedLogins(name, address, clock), clock=clock)


async def test_right_credentials_are_cached(source: Source, clock: Clock) -> None:
    users = users_of(source, clock, 100, remember_s=60)
    assert users.recall(b"a:right") is None
    assert await users.check("a", "wrong", "h", b"a:wrong") is None
    assert await users.check("a", "right", "h", b"a:right") == A
    assert [users.recall(sent) for sent in (b"a:wrong", b"a:righ", b"a:right", b"")] == [None, None, A, None]
    # Cache keys of other credentials are not recalled.
    assert await users.check("a", "right", "h") == A
    assert [users.recall(sent) for sent in (b"1;aright", b"a")] == [None, None]
    checks = source.checks
    clock.now = 60
    assert users.recall(b"a:right") == A
    clock.now = 60.1
    assert users.recall(b"a:right") is None
    assert await users.check("a", "right", "h", b"a:right") == A
    assert source.checks == checks + 1


async def test_concurrent_guesses_are_counted(source: Source, clock: Clock) -> None:
    source.may_answer.clear()
    users = users_of(source, clock, 3)
    attempts = [asyncio.create_task(users.check("a", str(number), "bad")) for number in range(50)]
    await asyncio.sleep(0)
    source.may_answer.set()
    answers = await asyncio.gather(*attempts, return_exceptions=True)
    assert answers[:3] == [None] * 3
    assert all(isinstance(answer, TooManyRequests) for answer in answers[3:])
    assert source.checks == 3


async def test_right_passwords_are_not_counted_as_guesses(source: Source, clock: Clock) -> None:
    users = users_of(source, clock, 1)
    assert [await users.check("a", "right", "h") for _ in range(5)] == [A] * 5
    hung_up = asyncio.create_task(users.check("a", "right", "h"))
    await asyncio.sleep(0)
    hung_up.cancel()
    await asyncio.wait([hung_up])
    while users._checks:
        await asyncio.sleep(0)
    assert await users.check("a", "right", "h") == A
    source.right = "another"
    clock.now = 1
    assert await users.check("a", "right", "h") is None
    with pytest.raises(TooManyRequests):
        await users.check("a", "right", "h")


async def test_guesses_count_for_their_address_and_name(source: Source, clock: Clock) -> None:
    for name in ("a", "b"):
        users = users_of(source, clock, 3)
        assert [await users.check(name, str(number), "bad") for number in range(3)] == [None] * 3
        with pytest.raises(TooManyRequests):
            await users.check(name, "right", "bad")
        assert await users.check("a", "right", "good" if name == "a" else "bad") == A
        clock.now += 21
        assert await users.check("a", "right", "bad") == A
    users = users_of(source, clock, 3, 10)
    assert [await users.check(f"b{number}", "123456", "h") for number in range(10)] == [None] * 10
    with pytest.raises(TooManyRequests):  # one password for many names
        await users.check("b10", "123456", "h")
    assert await users.check("b10", "123456", "i") is None
    users.failed_logins.add("h", "x" * 1_000_000)
    assert max(map(len, users.failed_logins._names._filled)) < 300


@pytest.mark.parametrize("remember_s", [0, 60])
async def test_guesses_from_an_address_do_not_lock_its_users_out(source: Source, clock: Clock, remember_s: int) -> None:
    """Also when the cached password is checked again, for the guessed name."""
    users = users_of(source, clock, 3, 3, remember_s)
    assert await users.check("a", "right", "h", b"a:right") == A
    clock.now = 1_000
    assert [await users.check("a", str(number), "h") for number in range(3)] == [None] * 3
    with pytest.raises(TooManyRequests):
        await users.check("a", "3", "h")
    checks = source.checks
    assert users.recall(b"a:right") is None
    assert await users.check("a", "right", "h", b"a:right") == A
    assert source.checks == checks + 1, "not from the cache"


async def test_waiting_checks_are_bounded(source: Source, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_module, "_WAITING", 4)
    users = users_of(source, clock, 100, remember_s=1)
    assert await users.check("a", "right", "h") == A
    clock.now = 2
    source.may_answer.clear()
    waiting = [asyncio.create_task(users.check("b", str(number), f"h{number}")) for number in range(4)]
    await asyncio.sleep(0)
    for _ in range(3):
        with pytest.raises(IdentitiesUnavailable):
            await users.check("c", "right", "h")
    again = asyncio.create_task(users.check("a", "right", "h"))
    await asyncio.sleep(0)
    source.may_answer.set()
    assert await again == A, "a known user does not wait for unknown ones"
    assert await asyncio.gather(*waiting) == [None] * 4
    assert await users.check("a", "right", "new") == A


async def test_clients_do_not_wait_for_a_directory_that_hangs(
    source: Source, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users_module, "_LONGEST_S", 0.01)
    users = users_of(source, clock, 100, remember_s=60)
    source.may_answer.clear()
    for _ in range(3):
        with pytest.raises(IdentitiesUnavailable, match="in time"):
            await users.check("a", "right", "h", b"a:right")
    source.may_answer.set()
    while users.recall(b"a:right") != A:  # the check goes on, and its result is cached
        await asyncio.sleep(0.01)
    assert source.checks == 1


# Users in LDAP, without a server.


def in_ldap(port: int = 1) -> LdapUsers:
    access = AccessSettings(users="ldap", ldap_user_base="o=x")
    return LdapUsers(access, DirectorySettings(url=f"ldap://127.0.0.1:{port}"))


async def test_passwords_that_ldap_cannot_transmit_are_wrong(clock: Clock) -> None:
    source = in_ldap()  # no server: a request raises IdentitiesUnavailable
    for password in ("p\x07a", "p\x85a", "p\ue000a", "pa\u05d0", "pa\udc80", "\u00ad\u2060", "p" * 2_000, ""):
        assert source.check("anna", password) is None
    users = users_of(source, clock, 3)
    assert [await users.check("anna", f"\x07{number}", "h") for number in range(3)] == [None] * 3
    with pytest.raises(TooManyRequests):
        await users.check("anna", "pa", "h")


def test_an_unreachable_ldap_server_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    users = in_ldap()
    for _ in range(3):
        with pytest.raises(IdentitiesUnavailable) as away:
            users.check("anna", "pa")
        assert "127.0.0.1" not in str(away.value), "the address is in the log only"
    (line,) = [each for each in caplog.messages if "ldap://127.0.0.1:1" in each]
    assert line.startswith("users cannot be looked up")


def test_a_failed_tls_handshake_is_not_a_wrong_password(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of several servers behind one name, one may have an expired certificate, or end."""
    found = {"type": "searchResEntry", "dn": "uid=anna,o=x", "attributes": {"uid": ["anna"]}}

    def connect(settings: DirectorySettings) -> Mock:
        if settings.bind == "simple":
            with translated(settings):
                raise ssl.SSLEOFError(8, "EOF occurred in violation of protocol")
        return Mock(result={"result": 0}, response=[found])

    monkeypatch.setattr(ldap_users, "connect", connect)
    with pytest.raises(IdentitiesUnavailable):
        in_ldap().check("anna", "pa")
    assert "no secure connection" in caplog.text


@pytest.mark.parametrize("user_filter", ["(uid={user})", "(|(uid={user})(mail={user}))", "(uid~={user})"])
def test_spellings_that_ldap_finds_equal_are_one_user(monkeypatch: pytest.MonkeyPatch, user_filter: str) -> None:
    found = {"type": "searchResEntry", "dn": "uid=r,o=x", "attributes": {"uid": ["Ren\u00e9 B"]}}
    connection = Mock(result={"result": 0}, response=[found])
    monkeypatch.setattr(ldap_users, "connect", Mock(return_value=connection))
    users = LdapUsers(
        AccessSettings(users="ldap", ldap_user_base="o=x", ldap_user_filter=user_filter), DirectorySettings()
    )
    identities = {users.find(name) for name in ("Ren\u00e9 B", "REN\u00c9  b", "Rene\u0301 B")}
    assert len(identities) == 1
    assert None not in identities
    assert users.find("\uff20admins") is None, "it begins with @ as LDAP compares it"


BIND_RESPONSE = bytes.fromhex("300c02010161070a010004000400")


def test_a_connection_closed_by_the_ldap_server() -> None:
    def reset(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(BIND_RESPONSE)
        # A reset: further requests fail.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with ScriptedServer(reset) as server:
        users = in_ldap(server.port)

        def search() -> None:
            with users._reaching(), users._bound() as connection:
                wait_until(lambda: server.ended)
                users._entry(connection, "anna")

        with pytest.raises(IdentitiesUnavailable):
            search()
