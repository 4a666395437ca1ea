"""Where the messages of a topic go beside their own engine: words in a topic's routing policy.

    local         nowhere else
    group         to the engines of our group
    everywhere    to other groups, too, which is so where nothing is said
    to:G1,G2      to the engines of our group, and to these groups

    fast          to the engines of our group as datagrams, without confirmation

A topic that has none of the first four has that of the nearest topic above it. `fast` holds for the topics below, too,
but for those from one on that says `reliable`. Beside that `reliable` and `split` are about the topic itself, and are
not passed down.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from arborcast.core.errors import TopicError
from arborcast.core.security.signatures import NAME
from arborcast.topic_model.records.control import FAST, RELIABLE, SPLIT, TopicPolicy

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
                f"the routing word {word[:80]!r} names no groups: to:G1,G2 does, with letters, digits, - and _"
            )
        elif word not in (RELIABLE, SPLIT, FAST):
            raise TopicError(
                f"there is no routing word {word[:80]!r}: there are {LOCAL}, {GROUP}, {EVERYWHERE}, to:G1,G2, "
                f"{RELIABLE}, {FAST} and {SPLIT}"
            )
    if len(found) > 1:
        raise TopicError(f"a topic goes one way, not {found[0][:80]} and {found[1][:80]}")
    words = routing.split()
    if FAST in words and (RELIABLE in words or LOCAL in words):
        other = RELIABLE if RELIABLE in words else LOCAL
        why = "a reliable topic is always confirmed" if other == RELIABLE else "a local topic goes to no other engine"
        raise TopicError(f"a topic is not {FAST} and {other}: {why}")


def distribution_of(routings: Iterable[str]) -> str:
    """What holds for a topic, of its own routing policy and those above, nearest first: one of the words, empty for
    everywhere. Words that are none say nothing."""
    for routing in routings:
        for word in routing.split():
            if is_distribution(word):
                return "" if word == EVERYWHERE else word
    return ""


def is_fast(policies: Iterable[TopicPolicy], otherwise: bool) -> bool:
    """Whether messages of a topic leave as datagrams where they can, of its own policy and those above, nearest first;
    `otherwise` where none says."""
    return next((each.fast for each in policies if each.fast or each.reliable), otherwise)


def goes_to(distribution: str, group: str) -> bool:
    """Whether messages with this word, empty for everywhere, go to this other group."""
    return not distribution or (distribution.startswith(TO) and group in distribution.removeprefix(TO).split(","))


def is_distribution(word: str) -> bool:
    """Whether it is one of these words."""
    if word in _PLAIN:
        return True
    return word.startswith(TO) and all(NAME.fullmatch(name) for name in word.removeprefix(TO).split(","))
