"""Users of the gateway, and subscriptions whose owners lost the right to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from arborcast.admin.operations import commit
from arborcast.core.errors import ConfigError, NotFound
from arborcast.core.files import exclusive
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import time_ms
from arborcast.engine.settings.loading import Settings
from arborcast.ingest.access.policy import AccessPolicy, current_policy, review
from arborcast.ingest.access.users import FileUsers, user_source
from arborcast.ingest.access.users_file import User, check_name, load_users, made, write_users
from arborcast.topic_model.grants import Identity
from arborcast.topic_model.records.control import ControlRecord, ending, ending_trigger
from arborcast.topic_model.routing import RoutingTable


class ListedUser(msgspec.Struct, frozen=True):
    """A user; `clear` if the password is also stored in clear text."""

    name: str
    groups: tuple[str, ...]
    clear: bool


class CheckedUser(NamedTuple):
    """Whether a password is right, and if so the groups of its user."""

    name: str
    right: bool
    groups: tuple[str, ...]


class Finding(msgspec.Struct, frozen=True):
    """A subscription or trigger whose owner has no right to make it now. `certain` is False if the owner may be known
    only elsewhere."""

    id: str
    owner: str
    topics: tuple[str, ...]
    endpoint: str
    reason: str
    certain: bool
    ended: bool = False


class Rights(NamedTuple):
    """The search for users, the policy, and whether there may be users `elsewhere`, which cannot be looked up."""

    find: Callable[[str], Identity | None]
    policy: AccessPolicy
    elsewhere: bool


def add(path: Path, name: str, password: Callable[[], str], groups: Iterable[str], *, keep_clear: bool = False) -> None:
    """Add a user, or replace the password and groups of an existing one. The password is prompted for after the file
    and the name are validated. Raises ConfigError."""
    _read(path)
    check_name(name, name)
    user = made(name, password(), frozenset(groups), keep_clear=keep_clear)
    # Read again: other users may have been added during the prompt.
    with exclusive(path):
        write_users({**_read(path), name: user}, path)


def remove(path: Path, name: str) -> None:
    """Remove a user. Raises NotFound without one of this name."""
    if name not in _read(path):
        raise NotFound(f"there is no user {name} in {path}")
    with exclusive(path):
        write_users({each: user for each, user in _read(path).items() if each != name}, path)


def listed(path: Path) -> list[ListedUser]:
    """All users, by name. Raises ConfigError."""
    users = sorted(_read(path).values(), key=lambda user: user.name)
    return [ListedUser(user.name, tuple(sorted(user.groups)), bool(user.clear)) for user in users]


def one(path: Path, name: str) -> ListedUser | None:
    """The user of this name; None without one. Raises ConfigError."""
    return next((each for each in listed(path) if each.name == name), None)


def check_password(path: Path, name: str, password: str) -> CheckedUser:
    """Whether this is the password of the user. Raises ConfigError for an invalid file."""
    identity = FileUsers(path).check(name, password)
    return CheckedUser(name, identity is not None, tuple(sorted(identity.groups)) if identity else ())


def rights_of(settings: Settings) -> Rights:
    """Raises ConfigError, also without authentication."""
    access = settings.access
    methods = access.chosen()
    if not methods:
        raise ConfigError("access.methods is not set: there is no authentication, and every client may do everything")
    policy = current_policy(access.policy_file)()
    elsewhere = "bearer" in methods or ("certificate" in methods and access.certificate_users == "any")
    # With bearer tokens only, the issuer manages all users, and there is no user file.
    only_elsewhere = set(methods) == {"bearer"}
    find = (lambda _name: None) if only_elsewhere else user_source(access, settings.directory).find
    return Rights(find, policy, elsewhere)


def lost_rights(rights: Rights, table: RoutingTable) -> list[Finding]:
    """The subscriptions and triggers whose owners have no right to make them now."""
    return [
        Finding(
            id=each.subscription.id,
            owner=each.subscription.owner,
            topics=tuple(topic.text for topic in each.subscription.topics),
            endpoint=each.subscription.consumer.address,
            reason=each.reason,
            certain=each.certain,
        )
        for each in review(table.subscriptions(), rights.find, rights.policy, others_know_users=rights.elsewhere)
    ]


def end(kafka: KafkaSettings, table: RoutingTable, findings: Iterable[Finding]) -> list[Finding]:
    """End the subscriptions and triggers of certain findings; returns all findings. Raises InfrastructureError."""
    after = [msgspec.structs.replace(each, ended=each.certain) for each in findings]
    at_ms = time_ms()
    records: list[ControlRecord] = []
    for each in after:
        subscription = table.get(each.id)
        if each.ended and subscription is not None:
            records += (ending if subscription.trigger is None else ending_trigger)(each.id, "removed", at_ms)
    commit(kafka, "access check --end", records, table.get)
    return after


def _read(path: Path) -> Mapping[str, User]:
    try:
        return load_users(path)
    except FileNotFoundError:
        return {}
