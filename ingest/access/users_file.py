"""The local file of users: TOML, one table for each.

    [users."anna"]
    password = "scrypt$15$8$1$…"
    groups = ["operators"]

`clear` is only for users who send WS-Security's PasswordDigest, whose check needs the password itself. Every reader of
the file has these passwords, so only its owner may read it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from arborcast.core.errors import ConfigError
from arborcast.core.files import readable_by_others, write_atomically
from arborcast.core.printable import as_json, is_printable
from arborcast.core.reasons import reason_of
from arborcast.topic_model.grants import Identity

# About 60 ms and 32 MB for each guess, on one core of a machine of today.
_LOG_N, _R, _P = 15, 8, 1

_MAX_LOG_N, _MAX_R, _MAX_P = 20, 32, 16

_SALT_BYTES, _HASH_BYTES = 16, 32

_PARTS = 6

MAX_PASSWORD = 1_024
"""Longer ones are refused before anything is computed."""


def hash_password(password: str, *, log_n: int = _LOG_N) -> str:
    """The stored form of a password, with the parameters of scrypt, so that they can be raised later.

    scrypt$<log2 N>$<r>$<p>$<salt>$<hash>      both in base64
    """
    salt = os.urandom(_SALT_BYTES)
    parts = ("scrypt", str(log_n), str(_R), str(_P), _text(salt), _text(_scrypt(password, salt, log_n, _R, _P)))
    return "$".join(parts)


def password_matches(password: str, stored: str) -> bool:
    """Whether it is the password of this hash. Raises ValueError for text that is not a result of `hash_password`."""
    parts = stored.split("$")
    if len(parts) != _PARTS or parts[0] != "scrypt" or not all(number.isdecimal() for number in parts[1:4]):
        raise ValueError("not a scrypt hash")
    log_n, r, p = (int(number) for number in parts[1:4])
    salt_text, hash_text = parts[4:]
    if not (1 <= log_n <= _MAX_LOG_N and 1 <= r <= _MAX_R and 1 <= p <= _MAX_P):
        raise ValueError("a scrypt hash with parameters out of range")
    try:
        salt, expected = base64.b64decode(salt_text, validate=True), base64.b64decode(hash_text, validate=True)
    except binascii.Error as error:
        raise ValueError("a scrypt hash that is not base64") from error
    # HMAC, used by scrypt, pads a short key with zeros: `secret` and `secret\0` would be equal.
    if len(password) > MAX_PASSWORD or "\0" in password:
        return False
    return hmac.compare_digest(_scrypt(password, salt, log_n, r, p), expected)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _scrypt(password: str, salt: bytes, log_n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=1 << log_n, r=r, p=p, maxmem=256 * r * (1 << log_n), dklen=_HASH_BYTES
    )


# Characters valid in HTTP Basic, a certificate and a log line. Basic ends the name at the first colon.
_NAME = re.compile(r"[^\s:@\x00-\x1f\x7f\"\\][^:\x00-\x1f\x7f\"\\]{0,199}")

_KEYS = {"password", "groups", "clear"}

_toml = partial(as_json, ensure_ascii=False)  # TOML's basic strings take JSON's escapes


@dataclass(frozen=True)
class User:
    """One user. `password` is a hash, empty for one with a certificate or bearer token only."""

    name: str
    password: str = field(default="", repr=False)
    groups: frozenset[str] = frozenset()
    clear: str = field(default="", repr=False)

    @property
    def identity(self) -> Identity:
        """The identity for other modules."""
        return Identity(self.name, self.groups)


ADD_ONE = "`arborcast users add NAME` adds one, with the same --config or --home"


def no_users(path: Path) -> str:
    """The message for a missing users file."""
    return f"access.methods needs users, and there are none: {path} does not exist; {ADD_ONE}"


def load_users(path: Path) -> Mapping[str, User]:
    """The users in a file. Raises FileNotFoundError, and ConfigError for one that cannot be read."""
    try:
        return read_users(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the users file {path} cannot be read: {reason_of(error)}") from error


def read_users(text: str, name: str) -> Mapping[str, User]:
    """The users in a file's text. Raises ConfigError, which never shows a password."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # Its message has the place, and quotes at most one character.
        raise ConfigError(f"the users file {name} is not valid TOML: {error}") from error
    users = document.pop("users", {})
    if document or not isinstance(users, dict):
        raise ConfigError(f"the users file {name} may contain only [users.…] tables")
    return {user: _user(user, facts, name) for user, facts in users.items()}


def _user(user: str, facts: object, name: str) -> User:
    where = f"the users file {name}, user {user!r}"
    check_name(user, where)
    if not isinstance(facts, dict) or set(facts) - _KEYS:
        raise ConfigError(f"{where}: there may be {', '.join(sorted(_KEYS))} and nothing else")
    password, clear, groups = facts.get("password", ""), facts.get("clear", ""), facts.get("groups", [])
    if not isinstance(password, str) or not isinstance(clear, str):
        raise ConfigError(f"{where}: password and clear must be texts")
    if not isinstance(groups, list) or not all(isinstance(group, str) and group for group in groups):
        raise ConfigError(f"{where}: groups must be a list of texts")
    if password:
        try:
            password_matches("x" * (MAX_PASSWORD + 1), password)  # without a computation
        except ValueError as error:
            raise ConfigError(f"{where}: password is {error}; create one with `arborcast users add`") from error
    return User(user, password, frozenset(groups), clear)


def may_be_name(user: str) -> bool:
    """Whether a user can have this name."""
    return _NAME.fullmatch(user) is not None and is_printable(user)


def check_name(user: str, where: str) -> None:
    """Raises ConfigError for a name that no user may have."""
    if not may_be_name(user):
        raise ConfigError(
            f"{where}: a user's name has 1 to 200 characters, none of them a colon, a quote, a backslash or a control "
            "character, and begins with neither @ nor a space"
        )


def write_users(users: Mapping[str, User], path: Path) -> None:
    """Replace the file in one step, readable for its owner only. Raises OSError."""
    lines = ["# Users of this gateway; `arborcast users` keeps it."]
    for user in sorted(users.values(), key=lambda each: each.name):
        lines += ["", f"[users.{_toml(user.name)}]"]
        if user.password:
            lines.append(f"password = {_toml(user.password)}")
        if user.groups:
            lines.append(f"groups = [{', '.join(_toml(group) for group in sorted(user.groups))}]")
        if user.clear:
            lines.append(f"clear = {_toml(user.clear)}")
    write_atomically(path, "\n".join(lines) + "\n", mode=0o600)


def made(name: str, password: str, groups: frozenset[str], *, keep_clear: bool) -> User:
    """A user with this password. Raises ConfigError for a name or a password that cannot be."""
    check_name(name, name)
    if not 8 <= len(password) <= MAX_PASSWORD:
        raise ConfigError(f"a password has 8 to {MAX_PASSWORD} characters")
    return User(name, hash_password(password), groups, password if keep_clear else "")


def check_mode(path: Path, users: Mapping[str, User]) -> None:
    """Raises ConfigError when others may read passwords in clear text."""
    if readable_by_others(path.stat()) and any(user.clear for user in users.values()):
        raise ConfigError(
            f"the users file {path} contains passwords in clear text and is readable by others: chmod 600 it"
        )
