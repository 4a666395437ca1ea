"""Passwords that LDAP cannot carry are wrong ones: no reason to say that the server is away. No server is needed."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from arborcast.directory.settings import DirectorySettings
from arborcast.ingest.access.ldap_users import LdapUsers
from arborcast.ingest.access.settings import AccessSettings
from arborcast.ingest.access.users import Guesses, Users
from arborcast.wire.errors import IdentitiesAway, TooManyRequests
from tests.support.waiting import TIMEOUT_S

# Nothing listens there, so whatever is asked of it raises IdentitiesAway.
USERS = LdapUsers(AccessSettings(users="ldap", ldap_user_base="o=x"), DirectorySettings(url="ldap://127.0.0.1:1"))

IMPOSSIBLE = ["p\x07a", "p\x85a", "p\ue000a", "pa\u05d0", "pa\udc80", "\u00ad\u2060", "p" * 2_000, ""]


async def test_a_password_that_cannot_be_sent_is_wrong_and_counts_as_a_guess() -> None:
    for password in IMPOSSIBLE:
        assert USERS.check("anna", password) is None
    users = Users(USERS, remember_s=0, guesses=Guesses(3, 300))
    for number in range(3):
        assert await users.check("anna", f"\x07{number}", "h") is None
    with pytest.raises(TooManyRequests):
        await users.check("anna", "pa", "h")


def test_why_the_server_is_away_is_for_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    users = LdapUsers(AccessSettings(users="ldap", ldap_user_base="o=x"), DirectorySettings(url="ldap://127.0.0.1:1"))
    for _ in range(3):
        with pytest.raises(IdentitiesAway) as away:
            users.check("anna", "pa")
        assert "127.0.0.1" not in str(away.value)
    (line,) = [each for each in caplog.messages if "ldap://127.0.0.1:1" in each]
    assert line.startswith("users cannot be looked up")


BIND_RESPONSE = bytes.fromhex("300c02010161070a010004000400")


def test_a_server_that_has_closed_the_connection_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"ldap://127.0.0.1:{listener.getsockname()[1]}"
        users = LdapUsers(AccessSettings(users="ldap", ldap_user_base="o=x"), DirectorySettings(url=url))
        closed = threading.Event()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(BIND_RESPONSE)
                # A reset: what the client sends from now on fails.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            closed.set()

        thread = threading.Thread(target=serve)
        thread.start()

        def search() -> None:
            with users._reaching(), users._bound() as connection:
                assert closed.wait(TIMEOUT_S)
                users._entry(connection, "anna")

        with pytest.raises(IdentitiesAway):
            search()
        thread.join(TIMEOUT_S)
