"""The rules of the bridge, a TOML file:

[in.sensors]
mqtt = "plant/+/temperature"
topic = "plant/{1}/temperature"

[out.alarms]
topic = "alarms//."
mqtt = "arborcast/{topic}"
retain = true
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

import msgspec

from arborcast.core.errors import ArborcastError, ConfigError, PeerError
from arborcast.core.reasons import reason_of
from arborcast.topic_model.expressions import parse_friendly
from arborcast.topic_model.mqtt_names import TopicsIn, TopicsOut, address_of
from arborcast.topic_model.patterns.patterns import EVERYTHING, parse_normal
from arborcast.topic_model.subscriptions import DeliveryPolicy, TopicFilter
from arborcast.topic_model.topics import TopicPath

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

# Samples for wildcards in the check of rules.
_SAMPLE = "sample"


class _InRule(msgspec.Struct, forbid_unknown_fields=True):
    mqtt: str
    topic: str


class _OutRule(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    mqtt: str
    retain: bool = False
    order: Literal["acceptance", "strict"] = "acceptance"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    in_: dict[str, _InRule] = msgspec.field(name="in", default_factory=dict)
    out: dict[str, _OutRule] = msgspec.field(default_factory=dict)


@dataclass(frozen=True)
class OutRule:
    """Notifications of these topics go to `address`; the current ones of the topics at once, if `retain`."""

    name: str
    topics: tuple[TopicFilter, ...]
    address: str
    retain: bool
    policy: DeliveryPolicy


@dataclass(frozen=True)
class Rules:
    """The rules by their names."""

    incoming: dict[str, TopicsIn]
    outgoing: tuple[OutRule, ...]

    def topic(self, mqtt: str) -> TopicPath | None:
        """The topic for that of an incoming message; None where no rule selects it. Raises TopicError."""
        for rule in self.incoming.values():
            found = rule.topic(mqtt)
            if found is not None:
                return found
        return None


def read_rules(file: Path, base: str) -> Rules:
    """The rules for the broker at `base`. Raises ConfigError, which names the rule."""
    try:
        read = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8-sig")), _File)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"mqtt.rules_file = {str(file)!r} cannot be read: {reason_of(error)}") from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"mqtt.rules_file = {str(file)!r}: {error}") from error
    incoming: dict[str, TopicsIn] = {}
    outgoing = []
    for name, entry in read.in_.items():
        try:
            incoming[_checked(name)] = TopicsIn(entry.mqtt, entry.topic)
        except ArborcastError as error:
            raise ConfigError(f"{file}: [in.{name}]: {error}") from error
    for name, rule in read.out.items():
        try:
            filters = parse_friendly(rule.topic)
            address = address_of(base, rule.mqtt, retain=rule.retain)
            TopicsOut(address)
            topics = () if filters.normal == EVERYTHING else (filters,)
            # A retry of an earlier message must not replace a later retained one.
            policy = DeliveryPolicy(order="strict" if rule.retain else rule.order)
            outgoing.append(OutRule(_checked(name), topics, address, rule.retain, policy))
        except ArborcastError as error:
            raise ConfigError(f"{file}: [out.{name}]: {error}") from error
    rules = Rules(incoming, tuple(outgoing))
    _check_together(file, rules)
    return rules


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError("the name of a rule is 1 to 64 letters, digits, - and _")
    return name


def _check_together(file: Path, rules: Rules) -> None:
    """Each incoming message has one rule, and no message returns to the topic of its origin."""
    for (one, first), (other, second) in combinations(rules.incoming.items(), 2):
        if first.overlaps(second):
            raise ConfigError(
                f"{file}: [in.{one}] and [in.{other}] select the same MQTT topics: a message would arrive twice"
            )
    for name, rule in rules.incoming.items():
        mqtt = rule.filter.replace("+", _SAMPLE).replace("#", f"{_SAMPLE}/{_SAMPLE}")
        path = rule.topic(mqtt)
        for out in rules.outgoing:
            if (
                path is not None
                and all(parse_normal(each.normal).matches(path) for each in out.topics)
                and _sends(out, path) == mqtt
            ):
                raise ConfigError(
                    f"{file}: [out.{out.name}] sends back to {mqtt!r} the messages that [in.{name}] takes from there"
                )


def _sends(rule: OutRule, path: TopicPath) -> str:
    try:
        return TopicsOut(rule.address).topic(path)
    except PeerError:
        return ""
