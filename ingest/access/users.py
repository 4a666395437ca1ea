"""Password checks: a limited number at a time, in threads, with a cache of correct ones.

A check costs 60 ms of a core (scrypt) or a round trip (LDAP). For clients that send the password with each request, a
correct one is cached for a short time under a keyed hash with a key of this process, and concurrent equal checks share
one result.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Protocol

from arborcast.core.errors import ConfigError
from arborcast.core.files import WatchedFile
from arborcast.core.recent import BoundedDict
from arborcast.core.single_flight import SingleFlight
from arborcast.core.threads import pool
from arborcast.directory.settings import DirectorySettings
from arborcast.ingest.access.rates import Buckets
from arborcast.ingest.access.settings import AccessSettings
from arborcast.ingest.access.users_file import User, check_mode, hash_password, no_users, password_matches, read_users
from arborcast.topic_model.grants import Identity
from arborcast.wire.errors import IdentitiesUnavailable

_ADDRESSES = 10_000

_NAMES = 100_000

# No user has a longer name, and none is cached.
_MOST_OF_A_NAME = 200


class FailedLogins:
    """Failed logins of an address, per name and in total.

    Per name, since many people may share an address. In total, since one password may be tried with many names. The
    second limit is at least the first.
    """

    def __init__(self, per_minute: int, of_address: int, clock: Callable[[], float] = time.monotonic) -> None:
        of_address = max(per_minute, of_address)
        self._names = Buckets(per_minute / 60, per_minute, _NAMES)
        self._addresses = Buckets(of_address / 60, of_address, _ADDRESSES)
        self._per_minute, self._of_address = per_minute, of_address
        self._clock = clock

    def check(self, address: str, name: str = "") -> None:
        """Raises TooManyRequests when there were too many. Tokens have no name that could be trusted: empty."""
        now, names, addresses = self._clock(), self._per_minute, self._of_address
        self._names.check(_pair(address, name), now, f"more than {names} wrong credentials for one name in a minute")
        self._addresses.check(address, now, f"more than {addresses} wrong credentials from one address in a minute")

    def add(self, address: str, name: str = "") -> None:
        self._count(address, name, 1)

    def remove(self, address: str, name: str) -> None:
        """Remove a failure that was counted before the result of the check."""
        self._count(address, name, -1)

    def _count(self, address: str, name: str, number: int) -> None:
        now = self._clock()
        self._names.take(_pair(address, name), number, now)
        self._addresses.take(address, number, now)


def _pair(address: str, name: str) -> str:
    # No address has a blank.
    return f"{address} {name[:_MOST_OF_A_NAME]}"


# Two: each takes 32 MB and a core, and the event loop needs one too.
_THREADS = 2

_REMEMBERED = 10_000

# Checks waiting for the threads: three seconds of password checks. Strangers can cause no more, and cached users need
# none.
_WAITING = 100

# A directory that does not answer holds a thread for half a minute: clients do not wait for all earlier checks.
_LONGEST_S = 20.0


class UserSource(Protocol):
    """Where users are. Looking for users may block, and raise IdentitiesUnavailable."""

    def check(self, name: str, password: str) -> Identity | None:
        """The user, if that is the password."""
        ...

    def find(self, name: str) -> Identity | None:
        """The user, authenticated by another method."""
        ...

    def clear_password(self, name: str) -> str:
        """The password itself, empty if only its hash is stored. Does not block."""
        ...


class FileUsers:
    """Users in a local file, which is read again when it has changed. The constructor raises ConfigError."""

    def __init__(self, path: Path) -> None:
        def read(text: str, name: str) -> dict[str, User]:
            users = dict(read_users(text, name))
            check_mode(path, users)
            return users

        try:
            self._users = WatchedFile(path, read)
        except ConfigError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise ConfigError(no_users(path)) from error
            raise
        # An unknown user takes as long as a known one, so that the time does not reveal names.
        self._unknown_hash = hash_password("unknown")

    def check(self, name: str, password: str) -> Identity | None:
        user = self._users.value.get(name)
        stored = "" if user is None else user.password
        matches = password_matches(password, stored or self._unknown_hash)
        return user.identity if user is not None and stored and matches else None

    def find(self, name: str) -> Identity | None:
        user = self._users.value.get(name)
        return None if user is None else user.identity

    def clear_password(self, name: str) -> str:
        user = self._users.value.get(name)
        return "" if user is None else user.clear


def user_source(access: AccessSettings, directory: DirectorySettings) -> UserSource:
    """Where users are. Raises ConfigError for a file that cannot be read."""
    if access.users == "file":
        return FileUsers(Path(access.users_file))
    # Imported here, so that a users file does not load ldap3.
    from arborcast.ingest.access.ldap_users import LdapUsers

    return LdapUsers(access, directory)


class Users:
    """A source of users, queried without blocking the event loop, with a cache."""

    def __init__(
        self,
        source: UserSource,
        *,
        remember_s: float,
        failed_logins: FailedLogins,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._remember_s = remember_s
        self._clock = clock
        self._threads = pool("passwords", _THREADS)
        self._keyed = hashlib.blake2b(key=os.urandom(32), digest_size=32)
        # The key fills a block of the hash, which is computed once here.
        self._keyed.update(b";")
        self.failed_logins = failed_logins
        # By the keyed hash of the credentials; by name for other methods. Expired entries stay: they are checked again,
        # but their owner is not guessing.
        self._known: BoundedDict[bytes | str, tuple[float, Identity | None]] = BoundedDict(_REMEMBERED)
        self._checks: SingleFlight[bytes | str, Identity | None] = SingleFlight()

    def recall(self, sent: bytes) -> Identity | None:
        """The user recently authenticated by these bytes, given as `sent` to `check`."""
        return self._remembered(self._digest(b"=" + sent))

    async def check(self, name: str, password: str, address: str, sent: bytes = b"") -> Identity | None:
        """The user, if the password is correct. Raises TooManyRequests after too many failures; a password that was
        correct before does not count, so other clients' failures do not lock it out. `sent` are the credentials for
        `recall`."""
        # With the name's length, so that name and password cannot be split differently.
        secret_bytes = b"=" + sent if sent else f"{len(name)};{name}{password}".encode("utf-8", "surrogatepass")
        key = self._digest(secret_bytes)
        known = self._remembered(key)
        if known is not None:
            return known

        def begin() -> Coroutine[None, None, Identity | None]:
            if key not in self._known:
                self.failed_logins.check(address, name)
            check = self._begin_check(key, lambda: self._source.check(name, password))
            # Counted before the answer, since parallel connections would otherwise exceed the limit.
            self.failed_logins.add(address, name)
            return self._counted(check, address, name)

        return await self._in_time(key, begin)

    async def _counted(self, check: Awaitable[Identity | None], address: str, name: str) -> Identity | None:
        wrong = False
        try:
            identity = await check
            wrong = identity is None
            return identity
        finally:
            if not wrong:
                self.failed_logins.remove(address, name)

    async def find(self, name: str) -> Identity | None:
        """The user, authenticated by another method."""
        known = self._remembered(name)
        if known is not None:
            return known
        return await self._in_time(name, lambda: self._begin_check(name, lambda: self._source.find(name)))

    def clear_password(self, name: str) -> str:
        """The password itself, empty if only its hash is stored."""
        return self._source.clear_password(name)

    async def _in_time(
        self, key: bytes | str, begin: Callable[[], Coroutine[None, None, Identity | None]]
    ) -> Identity | None:
        try:
            async with asyncio.timeout(_LONGEST_S):
                return await self._checks.run(key, begin)
        except TimeoutError:
            raise IdentitiesUnavailable("users could not be looked up in time: try again later", 1.0) from None

    def _digest(self, secret_bytes: bytes) -> bytes:
        digest = self._keyed.copy()
        digest.update(secret_bytes)
        return digest.digest()

    def _remembered(self, key: bytes | str) -> Identity | None:
        found = self._known.get(key)
        if found is None or not self._remember_s or found[0] < self._clock():
            return None
        return found[1]

    def _begin_check(
        self, key: bytes | str, check: Callable[[], Identity | None]
    ) -> Coroutine[None, None, Identity | None]:
        if len(self._checks) >= _WAITING and key not in self._known:
            raise IdentitiesUnavailable(f"{_WAITING} users are being looked up already", 1.0)
        return self._stored(key, check)

    async def _stored(self, key: bytes | str, check: Callable[[], Identity | None]) -> Identity | None:
        identity = await asyncio.get_running_loop().run_in_executor(self._threads, check)
        if identity is None:
            self._known.pop(key, None)
        else:
            self._known[key] = (self._clock() + self._remember_s, identity)
        return identity


def users_of(access: AccessSettings, directory: DirectorySettings) -> Users:
    """The users of these settings. Raises as `user_source`."""
    failed_logins = FailedLogins(access.failures_per_minute, access.address_failures_per_minute)
    return Users(user_source(access, directory), remember_s=access.cache_s, failed_logins=failed_logins)
