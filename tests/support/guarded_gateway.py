"""A gateway with authentication, its users, and headers with their credentials."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from unittest.mock import patch

from arborcast.ingest.access.gate import Authenticator, Gate
from arborcast.ingest.access.policy import read_policy
from arborcast.ingest.access.settings import AccessSettings
from arborcast.ingest.access.username_token import NonceMemory
from arborcast.ingest.access.users import FailedLogins, FileUsers, Users
from arborcast.ingest.access.users_file import User, hash_password, write_users
from tests.support import make
from tests.support.gateway_parts import GatewayParts

WSSE = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-secext-1.0.xsd"
WSU = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-utility-1.0.xsd"
PROFILE = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-username-token-profile-1.0"


POLICY = """
[namespaces]
t = "urn:t"
[[allow]]
do = ["publish", "subscribe"]
topics = ["t:a//."]
users = ["anna", "bert"]
[[allow]]
do = ["manage"]
topics = ["//."]
groups = ["operators"]
"""
NOW = 1_700_000_000.0


@dataclass
class Clock(make.Clock):
    """A clock at the time of these tokens."""

    now: float = NOW


quick_hash = partial(hash_password, log_n=4)


def users_in(folder: Path, *users: User, remember_s: float = 60, failed_logins: FailedLogins | None = None) -> Users:
    """These users, in a file in the folder."""
    write_users({user.name: user for user in users}, folder / "users.toml")
    # The hash for unknown users is cheap, too.
    with patch("arborcast.ingest.access.users.hash_password", quick_hash):
        source = FileUsers(folder / "users.toml")
    return Users(source, remember_s=remember_s, failed_logins=failed_logins or FailedLogins(50, 1_000))


def guarded(folder: Path, clock: Callable[[], float], policy: str = POLICY) -> GatewayParts:
    """A gateway with three users, one of them an operator; its files are in the folder."""
    users = users_in(
        folder,
        User("anna", quick_hash("pa"), clear="pa"),
        User("bert", quick_hash("pb")),
        User("olga", quick_hash("po"), frozenset({"operators"})),
    )
    nonces = NonceMemory(300, 1_000, folder / "nonces")
    authenticator = Authenticator(AccessSettings(methods="basic, token"), users, clock, nonces=nonces)
    rights = read_policy(policy, "policy")
    made = GatewayParts()
    made.gateway.gate = Gate(None, authenticator, lambda: rights)
    return made


def basic(name: str, password: str) -> str:
    """The Authorization header of HTTP Basic authentication."""
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


ANNA, BERT, OLGA = basic("anna", "pa"), basic("bert", "pb"), basic("olga", "po")


def nothing_happened(parts: GatewayParts) -> bool:
    """Whether the gateway has accepted and changed nothing."""
    return not parts.notifications.accepted and not parts.control.records


def token(name: str, password: str, *, nonce: str = "", created: str = "", kind: str = "Text", more: str = "") -> str:
    """A WS-Security header with a UsernameToken."""
    return (
        f'<w:Security xmlns:w="{WSSE}" xmlns:u="{WSU}" s:mustUnderstand="1"><w:UsernameToken>'
        f'<w:Username>{name}</w:Username><w:Password Type="{PROFILE}#Password{kind}">{password}</w:Password>'
        f"{f'<w:Nonce>{nonce}</w:Nonce>' if nonce else ''}{f'<u:Created>{created}</u:Created>' if created else ''}"
        f"{more}</w:UsernameToken></w:Security>"
    )


def at(seconds: float, now: float = NOW) -> str:
    """The time this many seconds from `now`, as xsd:dateTime."""
    return (datetime.fromtimestamp(now, UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def digest(name: str, password: str, *, nonce: bytes = b"n1", seconds: float = 0.0, now: float = NOW) -> str:
    """A WS-Security header with a UsernameToken's digest, created at that time."""
    created = at(seconds, now)
    value = hashlib.sha1(nonce + created.encode() + password.encode()).digest()  # noqa: S324  # the profile's
    encoded = base64.b64encode(value).decode()
    return token(name, encoded, nonce=base64.b64encode(nonce).decode(), created=created, kind="Digest")
