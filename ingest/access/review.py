"""Which subscriptions are there whose owners might not make them today: people leave, groups and policies change.

Rights are asked when a subscription is made. To ask again with each push would put users, groups and policy into every
worker, and on the path of every delivery; so an operator has them reviewed, or a timer does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ingest.access.policy import Policy
from ingest.access.visitor import Caller, Identity
from topic_model.subscriptions import Subscription


@dataclass(frozen=True)
class Finding:
    """A subscription, and what is wrong. `certain` is False where this place cannot know all about its owner."""

    subscription: Subscription
    reason: str
    certain: bool


def review(
    subscriptions: Iterable[Subscription],
    find: Callable[[str], Identity | None],
    policy: Policy,
    *,
    others_know_users: bool,
) -> Iterator[Finding]:
    """The subscriptions that their owners may not have (any more), those with no owner included.

    `find` knows the users that are here; with `others_know_users` (bearer tokens, or certificates that count for
    themselves) there are more, and their groups are not known: what only such a group may allow is not certain.
    """
    callers: dict[str, tuple[Caller | None, bool]] = {}
    for subscription in subscriptions:
        owner = subscription.owner
        if not owner:
            yield Finding(subscription, "it was made while nobody had to say who it is", certain=False)
            continue
        if owner not in callers:
            known = find(owner)
            identity = known or (Identity(owner) if others_know_users else None)
            # Groups may be in a token even for somebody who is here, too.
            callers[owner] = None if identity is None else policy.caller(identity), not others_know_users
        caller, certain = callers[owner]
        if caller is None:
            yield Finding(subscription, "its owner is no user", certain)
        elif not caller.subscribe.covers(subscription.topics):
            yield Finding(subscription, "its owner may not subscribe to all of that", certain)
