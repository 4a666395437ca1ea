from __future__ import annotations

import gc
from types import ModuleType

from arborcast.topic_model.routing.sharing import Sharing
from arborcast.topic_model.subscriptions import DeliveryPolicy, EndpointReference, Subscription, TopicFilter


def subscription(name: str, consumer: EndpointReference, namespace: str, owner: str) -> Subscription:
    topics = (TopicFilter("urn:" + name[:1], "a", "a", {"p": namespace}),)
    return Subscription(name, consumer, topics=topics, policy=DeliveryPolicy(order="strict"), owner=owner)


def characters_held_by(root: object) -> int:
    """The total length of all texts reachable from an object."""
    found = {id(root): root}
    waiting = [root]
    while waiting:
        for each in gc.get_referents(waiting.pop()):
            if id(each) not in found and not isinstance(each, type | ModuleType):
                found[id(each)] = each
                waiting.append(each)
    return sum(len(each) for each in found.values() if isinstance(each, str))


def test_equal_parts_are_one_object() -> None:
    sharing = Sharing()
    one, other = (
        sharing.compact(subscription(name, EndpointReference("http://" + "consumer/"), "urn:p", "an " + name[:1]))
        for name in ("s1", "s2")
    )
    assert one.consumer is other.consumer
    assert one.policy is other.policy
    assert one.owner is other.owner
    assert one.topics[0].namespaces is other.topics[0].namespaces


def test_long_parts_of_ended_subscriptions_are_not_kept() -> None:
    sharing = Sharing()
    for number in range(1_000):
        long = f"{number}" + "x" * 60_000
        consumer = EndpointReference(f"http://{number}/", (f"<a>{long}</a>",), (f"<m>{long}</m>",))
        sharing.compact(subscription(f"s{number}", consumer, f"urn:{long}", f"owner {number}"))
    assert characters_held_by(sharing) < 4 * 4 * 1024 * 1024
