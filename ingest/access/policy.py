"""The policy file: rights to publish to, subscribe to, manage and serve topics.

    [namespaces]
    plant = "urn:plant"

    [[allow]]
    do = ["publish"]
    topics = ["plant:line1//."]
    users = ["press-17"]

    [[allow]]
    do = ["subscribe", "manage"]
    topics = ["//."]
    groups = ["operators"]

The right to manage topics includes the right to serve the queues among them. Rules only allow, in any order; anything
else is refused. A topic is written alone, or with `//.` behind it for its subtree; `//.` alone selects all. `users =
["*"]` selects all authenticated users.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Literal, get_args

from arborcast.core.errors import ConfigError, ExpressionError
from arborcast.core.files import WatchedFile
from arborcast.topic_model.expressions import XPathPattern, compile_normal, parse_friendly
from arborcast.topic_model.grants import ALL, NOTHING, Caller, Grant, Identity
from arborcast.topic_model.patterns.alternatives import Reach, is_virtual
from arborcast.topic_model.subscriptions import Subscription

Action = Literal["publish", "subscribe", "manage", "serve"]

_ACTIONS: tuple[Action, ...] = get_args(Action)

_KEYS = {"do", "topics", "users", "groups"}

_EVERYBODY = "*"

_PREFIX = re.compile(r"([^/|:\s]+):")


@dataclass(frozen=True)
class Rule:
    """One `[[allow]]`."""

    actions: frozenset[str]
    users: frozenset[str]
    groups: frozenset[str]
    grant: Grant

    def is_for(self, who: Identity) -> bool:
        """Whether the rule applies to this identity."""
        return _EVERYBODY in self.users or who.name in self.users or not self.groups.isdisjoint(who.groups)


@dataclass(frozen=True)
class AccessPolicy:
    """All rules. Without a file there is DEFAULT."""

    rules: tuple[Rule, ...]

    def caller(self, who: Identity) -> Caller:
        """An identity with its rights by the rules."""
        mine = [rule for rule in self.rules if rule.is_for(who)]

        def allowed(*actions: Action) -> Grant:
            return reduce(or_, (rule.grant for rule in mine if not rule.actions.isdisjoint(actions)), NOTHING)

        return Caller(
            who, allowed("publish"), allowed("subscribe"), allowed("manage"), serve=allowed("serve", "manage")
        )


DEFAULT = AccessPolicy((Rule(frozenset({"publish", "subscribe", "serve"}), frozenset({_EVERYBODY}), frozenset(), ALL),))
"""Every authenticated client may publish, subscribe and serve queues, and manage its own resources."""


def current_policy(file: str) -> Callable[[], AccessPolicy]:
    """The policy of this file in its current state; DEFAULT without a file. Raises ConfigError."""
    if not file:
        return lambda: DEFAULT
    watched = WatchedFile(Path(file), read_policy)
    return lambda: watched.value


def read_policy(text: str, name: str) -> AccessPolicy:
    """The policy of a file's text. Raises ConfigError with the wrong rule."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the policy file {name} is not valid TOML: {error}") from error
    for key in document:
        if key not in ("namespaces", "allow"):
            raise ConfigError(f"the policy file {name} has [{key}]; it may have [namespaces] and [[allow]]")
    namespaces, rules = document.get("namespaces", {}), document.get("allow", [])
    if not isinstance(namespaces, dict) or not all(isinstance(uri, str) for uri in namespaces.values()):
        raise ConfigError(f"the policy file {name}: [namespaces] must map prefixes to URIs")
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise ConfigError(f"the policy file {name}: rules are written [[allow]], with two brackets")
    return AccessPolicy(
        tuple(_rule(each, namespaces, f"{name}, [[allow]] number {n}") for n, each in enumerate(rules, start=1))
    )


def _rule(rule: Any, namespaces: Mapping[str, str], where: str) -> Rule:
    unknown = set(rule) - _KEYS
    if unknown:
        raise ConfigError(f"{where}: {sorted(unknown)[0]} is not known; there are {', '.join(sorted(_KEYS))}")
    actions = _words(rule, "do", where)
    for action in actions:
        if action not in _ACTIONS:
            raise ConfigError(f"{where}: do contains {action!r}; allowed are {', '.join(_ACTIONS)}")
    users, groups = _words(rule, "users", where), _words(rule, "groups", where)
    topics = _words(rule, "topics", where)
    for key, value in (("do", actions), ("topics", topics), ("users or groups", users | groups)):
        if not value:
            raise ConfigError(f"{where}: {key} is missing")
    return Rule(actions, users, groups, reduce(or_, (_grant(each, namespaces, where) for each in sorted(topics))))


def _words(rule: Any, key: str, where: str) -> frozenset[str]:
    value = rule.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise ConfigError(f'{where}: {key} must be a list of texts, for instance {key} = ["a"]')
    return frozenset(value)


def _grant(text: str, namespaces: Mapping[str, str], where: str) -> Grant:
    # With an undeclared prefix it would be a colon path, and so another topic.
    for prefix in () if "{" in text else _PREFIX.findall(text):
        if prefix not in namespaces:
            raise ConfigError(
                f"{where}: the topic {text!r} has the prefix {prefix!r}, which [namespaces] does not declare"
            )
    try:
        pattern = compile_normal(parse_friendly(text, namespaces).normal)
    except ExpressionError as error:
        raise ConfigError(f"{where}: the topic {text!r}: {error}") from error
    grant = NOTHING
    for one in () if isinstance(pattern, XPathPattern) else pattern.alternatives:
        if not one.rest and one.reach is Reach.SUBTREE:
            grant |= Grant(frozenset({one.anchor}))
        elif not one.rest and one.reach is Reach.SELF and not is_virtual(one.anchor):
            grant |= Grant(topics=frozenset({one.anchor}))
        else:
            raise ConfigError(
                f"{where}: the topic {text!r} has wildcards; a rule is for a topic (a/b), for one with everything "
                "below (a/b//.), or for everything (//.)"
            )
    return grant


@dataclass(frozen=True)
class ReviewFinding:
    """A subscription and its problem. `certain` is False if the owner's groups are unknown here."""

    subscription: Subscription
    reason: str
    certain: bool


def review(
    subscriptions: Iterable[Subscription],
    find: Callable[[str], Identity | None],
    policy: AccessPolicy,
    *,
    others_know_users: bool,
) -> Iterator[ReviewFinding]:
    """The subscriptions without a current right of their owners, including those without an owner.

    Rights are checked at creation; a check with each push would put users, groups and policy into every worker and
    every delivery. An operator or a timer reviews them instead. `find` has the local users; with `others_know_users`
    (bearer tokens, or certificates of unknown users) there are more, with unknown groups: rights by such groups are not
    certain.
    """
    callers: dict[str, tuple[Caller | None, bool]] = {}
    for subscription in subscriptions:
        owner = subscription.owner
        if subscription.peer is not None:
            continue  # it is the engine's own
        if not owner:
            yield ReviewFinding(subscription, "it was created while no authentication was required", certain=False)
            continue
        if owner not in callers:
            known = find(owner)
            identity = known or (Identity(owner) if others_know_users else None)
            # A token may add groups for a local user, too.
            callers[owner] = None if identity is None else policy.caller(identity), not others_know_users
        caller, certain = callers[owner]
        if caller is None:
            yield ReviewFinding(subscription, "its owner is no user", certain)
        elif not caller.subscribe.covers(subscription.topics):
            yield ReviewFinding(subscription, "its owner may not subscribe to all of that", certain)
        elif subscription.queue and not caller.serve.covers(subscription.topics):
            yield ReviewFinding(subscription, "its owner may not serve that queue", certain)
        elif subscription.trigger is not None and not caller.publish.holds(subscription.trigger.topic):
            yield ReviewFinding(subscription, f"its owner may not publish to {subscription.trigger.topic}", certain)
