"""The rights of a caller for each kind of request. Sets of topics are in `topic_model.grants`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from arborcast.topic_model.expressions import XPathPattern, compile_normal
from arborcast.topic_model.grants import ALL, Caller, Grant, Identity
from arborcast.topic_model.records.control import PullPointRecord
from arborcast.topic_model.subscriptions import TopicFilter
from arborcast.topic_model.topics import SYSTEM, TopicPath, is_system
from arborcast.topic_model.tree.tree import TopicTree
from arborcast.wire.errors import Forbidden


@dataclass(slots=True)
class ClientRequest:
    """The client of a request, as far as known."""

    address: str
    identity: Identity | None = None

    @property
    def client(self) -> str:
        """The key for rates. No address begins with `@`, so users and addresses do not collide."""
        return self.address if self.identity is None else f"@{self.identity.name}"


GROUP: Final = "group:"
"""Prefix of a group among the publishers of a topic; no user's name contains a colon."""


def check_reserved(topics: Iterable[TopicPath]) -> None:
    """Raises Forbidden for a topic of operator events, on which only the engine publishes."""
    for topic in topics:
        if is_system(topic):
            raise Forbidden(f"only the engine publishes to {topic[:200]}: topics below {SYSTEM} are for its own events")


def check_publish(caller: Caller | None, topics: Iterable[TopicPath], tree: TopicTree) -> None:
    """Raises Forbidden unless the caller may publish to all of these: by the policy, and by each topic's own facts. No
    caller publishes operator events.

    A topic that names its publishers accepts only them, whatever the policy allows; it grants no further right.
    """
    topics = tuple(topics)
    check_reserved(topics)
    if caller is None:
        return
    everywhere = caller.publish.everything
    for topic in topics:
        if not everywhere and not caller.publish.holds(topic):
            raise Forbidden(f"{caller.name} may not publish to {topic[:200]}")
        publishers = tree.policy(topic).publishers
        if publishers and not _is_one_of(caller, publishers):
            raise Forbidden(f"{caller.name} is not among the publishers of {topic[:200]}")


def _is_one_of(caller: Caller, publishers: tuple[str, ...]) -> bool:
    return caller.name in publishers or any(f"{GROUP}{group}" in publishers for group in caller.identity.groups)


def check_offer(caller: Caller | None, topics: Sequence[TopicFilter]) -> None:
    """Raises Forbidden unless the caller may publish to all topics of the registration. A registration without topics
    covers those of the caller's rights: each Notify is checked anyway."""
    for topic in topics:
        pattern = compile_normal(topic.normal)
        if not isinstance(pattern, XPathPattern) and any(is_system(each.anchor) for each in pattern.alternatives):
            raise Forbidden(
                f"only the engine publishes to {topic.text[:200]!r}: topics below {SYSTEM} are for its own events",
                "PublisherRegistrationRejectedFault",
            )
        if caller is not None and not caller.publish.covers([topic]):
            raise Forbidden(
                f"{caller.name} may not publish to all of {topic.text[:200]!r}", "PublisherRegistrationRejectedFault"
            )


def check_subscribe(caller: Caller | None, topics: Sequence[TopicFilter]) -> None:
    """Raises Forbidden unless the caller may see all that these filters together select now or later."""
    if caller is None or caller.subscribe.covers(topics):
        return
    names = " and ".join(repr(each.text[:200]) for each in topics) or "every topic"
    raise Forbidden(
        f"{caller.name} may not subscribe to all of {names}; a subscription must lie within topics that are allowed",
        "SubscribeCreationFailedFault",
    )


def check_serve(caller: Caller | None, topics: Sequence[TopicFilter]) -> None:
    """Raises Forbidden unless the caller has the right to receive and answer requests of this queue."""
    if caller is not None and not caller.serve.covers(topics):
        names = " and ".join(repr(each.text[:200]) for each in topics) or "every topic"
        raise Forbidden(
            f"{caller.name} may not serve {names}: a rule of the policy has to allow serve, or manage, there",
            "SubscribeCreationFailedFault",
        )


def check_fill(caller: Caller | None, point: PullPointRecord) -> None:
    """Raises Forbidden unless the caller may subscribe with this pull point as the consumer."""
    if not may_manage(caller, point.owner):
        # As for a missing one.
        raise Forbidden(
            f"the ConsumerReference names a pull point that does not exist: {point.id!r}",
            "SubscribeCreationFailedFault",
        )


def check_read(caller: Caller | None, topic: TopicPath) -> None:
    """Raises Forbidden unless the caller may see messages of this topic."""
    if caller is not None and not caller.subscribe.holds(topic):
        raise Forbidden(f"{caller.name} may not subscribe to {topic[:200]}")


def may_manage(caller: Caller | None, owner: str, topics: Sequence[TopicFilter] = ()) -> bool:
    """Whether the caller may see, change and end a resource of `owner` on these topics (none: all)."""
    return caller is None or owner == caller.name or caller.manage.covers(topics)


def owner_of(caller: Caller | None) -> str:
    """The owner of the resources created by this request; empty without authentication."""
    return "" if caller is None else caller.name


def known_to(caller: Caller | None) -> Grant:
    """The topics whose existence the caller may see: those for which it has any right."""
    if caller is None:
        return ALL
    known = caller.subscribe | caller.publish | caller.manage | caller.serve
    return ALL if known.everything else known
