from __future__ import annotations

import gc

from arborcast.topic_model.routing.sharing import Sharing
from arborcast.topic_model.subscriptions import DeliveryPolicy, EndpointReference, Subscription, TopicFilter


def characters_held_by(root: object) -> int:
    """The length of all texts that an object leads to."""
    found = {id(root): root}
    waiting = [root]
    while waiting:
        for each in gc.get_referents(waiting.pop()):
            if id(each) not in found and not isinstance(each, type):
                found[id(each)] = each
                waiting.append(each)
    return sum(len(each) for each in found.values() if isinstance(each, str))


def test_equal_parts_are_one_object() -> None:
    sharing = Sharing()
    one, other = (
        sharing.compact(
            Subscription(
                name,
                EndpointReference("http://" + "consumer/"),
                topics=(TopicFilter("urn:" + name[:1], "a", "a", {"p": "urn:p"}),),
                policy=DeliveryPolicy(order="strict"),
                owner="an " + name[:1],
            )
        )
        for name in ("s1", "s2")
    )

    assert one.consumer is other.consumer
    assert one.policy is other.policy
    assert one.owner is other.owner
    assert one.topics[0].namespaces is other.topics[0].namespaces


def test_what_was_long_and_is_over_is_not_kept() -> None:
    sharing = Sharing()
    for number in range(1_000):
        long = f"{number}" + "x" * 60_000
        sharing.compact(
            Subscription(
                f"s{number}",
                EndpointReference(f"http://{number}/", (f"<a>{long}</a>",), (f"<m>{long}</m>",)),
                topics=(TopicFilter("urn:d", "a", "a", {"p": f"urn:{long}"}),),
                owner=f"owner {number}",
            )
        )

    assert characters_held_by(sharing) < 4 * 4 * 1024 * 1024
