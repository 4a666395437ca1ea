"""Forwarding of a topic's messages to other engines: words of the topic's routing policy.

    local         not forwarded
    group         to the engines of the group
    everywhere    to other groups too; the default
    to:G1,G2      to the engines of the group, and to these groups

    fast          to the engines of the group as datagrams, without confirmation

A topic without any of the first four inherits the word of the nearest topic above. `fast` is inherited too, up to a
topic with `reliable`. Otherwise `reliable` and `split` apply to the topic itself and are not inherited.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from arborcast.core.errors import TopicError
from arborcast.core.security.signatures import NAME
from arborcast.topic_model.records.control import FAST, RELIABLE, SPLIT

LOCAL, GROUP, EVERYWHERE = "local", "group", "everywhere"

TO: Final = "to:"

_PLAIN = frozenset({LOCAL, GROUP, EVERYWHERE})


def check_routing(routing: str) -> None:
    """Raises TopicError for an invalid routing policy."""
    found: list[str] = []
    for word in routing.split():
        if is_distribution(word):
            found.append(word)
        elif word.startswith(TO):
            raise TopicError(
                f"the routing word {word[:80]!r} has no valid groups: write to:G1,G2, with letters, digits, - and _"
            )
        elif word not in (RELIABLE, SPLIT, FAST):
            raise TopicError(
                f"unknown routing word {word[:80]!r}: the known ones are {LOCAL}, {GROUP}, {EVERYWHERE}, to:G1,G2, "
                f"{RELIABLE}, {FAST} and {SPLIT}"
            )
    if len(found) > 1:
        raise TopicError(f"a topic can have only one of {found[0][:80]} and {found[1][:80]}")
    words = routing.split()
    if FAST in words and (RELIABLE in words or LOCAL in words):
        other = RELIABLE if RELIABLE in words else LOCAL
        why = "a reliable topic is always confirmed" if other == RELIABLE else "a local topic is not forwarded"
        raise TopicError(f"a topic cannot be {FAST} and {other}: {why}")


def distribution_of(routings: Iterable[str]) -> str:
    """The effective distribution of a topic, from its own routing policy and those above, nearest first; empty for
    everywhere. Other words are ignored."""
    for routing in routings:
        for word in routing.split():
            if is_distribution(word):
                return "" if word == EVERYWHERE else word
    return ""


def goes_to(distribution: str, group: str) -> bool:
    """Whether messages with this distribution are forwarded to this other group."""
    return not distribution or (distribution.startswith(TO) and group in distribution.removeprefix(TO).split(","))


def is_distribution(word: str) -> bool:
    """Whether the word is a distribution: local, group, everywhere or to:."""
    if word in _PLAIN:
        return True
    return word.startswith(TO) and all(NAME.fullmatch(name) for name in word.removeprefix(TO).split(","))
