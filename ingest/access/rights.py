"""What operations ask of a caller. A caller of None means that nobody has to say who it is: then all is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ingest.access.errors import Forbidden
from ingest.access.grants import ALL, Grant
from ingest.access.visitor import Caller
from topic_model.records import PullPointRecord
from topic_model.subscriptions import TopicFilter
from topic_model.topics import TopicPath
from topic_model.tree import TopicTree

GROUP: Final = "group:"
"""Before the name of a group where a topic says who may publish to it; no user's name holds a colon."""


def check_publish(caller: Caller | None, topics: Iterable[TopicPath], tree: TopicTree) -> None:
    """Raises Forbidden unless the caller may publish to all of these: by the policy, and by each topic's own facts.

    A topic that names its publishers takes from nobody else, whatever the policy allows; it allows nobody more.
    """
    if caller is None:
        return
    everywhere = caller.publish.everything
    for topic in topics:
        if not everywhere and not caller.publish.holds(topic):
            raise Forbidden(f"{caller.name} may not publish to {topic[:200]}")
        publishers = tree.policy(topic).publishers
        if publishers and not _is_one_of(caller, publishers):
            raise Forbidden(f"{caller.name} is none of the publishers of {topic[:200]}")


def _is_one_of(caller: Caller, publishers: tuple[str, ...]) -> bool:
    return caller.name in publishers or any(f"{GROUP}{group}" in publishers for group in caller.identity.groups)


def check_offer(caller: Caller | None, topics: Sequence[TopicFilter]) -> None:
    """Raises Forbidden unless the caller may publish to all that it wants to register for.

    To register for nothing in particular is to register for what one may publish to: each Notify is asked anyway.
    """
    if caller is None:
        return
    for topic in topics:
        if not caller.publish.covers([topic]):
            raise Forbidden(
                f"{caller.name} may not publish to all of {topic.text[:200]!r}", "PublisherRegistrationRejectedFault"
            )


def check_subscribe(caller: Caller | None, topics: Sequence[TopicFilter]) -> None:
    """Raises Forbidden unless the caller may see all that these filters together select now or later."""
    if caller is None or caller.subscribe.covers(topics):
        return
    wanted = " and ".join(repr(each.text[:200]) for each in topics) or "every topic"
    raise Forbidden(
        f"{caller.name} may not subscribe to all of {wanted}; a subscription must lie within topics that are allowed",
        "SubscribeCreationFailedFault",
    )


def check_fill(caller: Caller | None, point: PullPointRecord) -> None:
    """Raises Forbidden unless the caller may have messages put into this pull point."""
    if not may_manage(caller, point.owner):
        # As for one that is not there.
        raise Forbidden(
            f"the ConsumerReference is a pull point that is not there: {point.id!r}", "SubscribeCreationFailedFault"
        )


def check_read(caller: Caller | None, topic: TopicPath) -> None:
    """Raises Forbidden unless the caller may see messages of this topic."""
    if caller is not None and not caller.subscribe.holds(topic):
        raise Forbidden(f"{caller.name} may not subscribe to {topic[:200]}")


def may_manage(caller: Caller | None, owner: str, topics: Sequence[TopicFilter] = ()) -> bool:
    """Whether the caller may see, change and end what belongs to `owner` and is about these topics (none: all)."""
    return caller is None or owner == caller.name or caller.manage.covers(topics)


def owner_of(caller: Caller | None) -> str:
    """Whom what is made in this request belongs to; empty where nobody has to say who it is."""
    return "" if caller is None else caller.name


def known_to(caller: Caller | None) -> Grant:
    """The topics that the caller may know to be there: those that it may use in some way."""
    if caller is None:
        return ALL
    known = caller.subscribe | caller.publish | caller.manage
    return ALL if known.everything else known
