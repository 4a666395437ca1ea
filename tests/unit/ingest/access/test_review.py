from __future__ import annotations

import msgspec
import pytest

from arborcast.ingest.access.policy import DEFAULT, read_policy, review
from arborcast.topic_model.expressions import parse_friendly
from arborcast.topic_model.grants import Identity
from arborcast.topic_model.subscriptions import Peer
from tests.support.routing import make_subscription, make_trigger

POLICY = read_policy(
    """
[[allow]]
do = ["subscribe"]
topics = ["a//."]
users = ["anna"]
[[allow]]
do = ["subscribe"]
topics = ["b//."]
groups = ["readers"]
[[allow]]
do = ["publish"]
topics = ["//."]
users = ["*"]
""",
    "policy",
)
USERS = {"anna": Identity("anna"), "bert": Identity("bert", frozenset({"readers"}))}


def found(owner: str, topic: str, *, others: bool = False) -> list[tuple[str, bool]]:
    one = msgspec.structs.replace(make_subscription("s", parse_friendly(topic, {}).normal), owner=owner)
    return [(each.reason, each.certain) for each in review([one], USERS.get, POLICY, others_know_users=others)]


NOT_ALL = "its owner may not subscribe to all of that"


@pytest.mark.parametrize(
    ("owner", "topic", "others", "findings"),
    [
        *(
            (*each, others, [])
            for each in (("anna", "a//."), ("anna", "a/b"), ("bert", "b/*"))
            for others in (True, False)
        ),
        ("anna", "b/c", False, [(NOT_ALL, True)]),
        ("anna", "*/c", False, [(NOT_ALL, True)]),
        ("bert", "a", False, [(NOT_ALL, True)]),
        ("carl", "a", False, [("its owner is no user", True)]),
        ("carl", "b", True, [(NOT_ALL, False)]),
        # Bert's token may have groups that our file does not.
        ("bert", "a", True, [(NOT_ALL, False)]),
        ("", "a", False, [("it was made while no authentication was required", False)]),
    ],
)
def test_what_may_not_be_is_found(owner: str, topic: str, others: bool, findings: list[tuple[str, bool]]) -> None:
    assert found(owner, topic, others=others) == findings


def test_a_server_is_found_whose_owner_may_not_serve_its_queue() -> None:
    one = msgspec.structs.replace(make_subscription("s", parse_friendly("a/b", {}).normal), owner="anna", queue=1)
    (finding,) = review([one], USERS.get, POLICY, others_know_users=False)
    assert (finding.reason, finding.certain) == ("its owner may not serve that queue", True)
    assert list(review([one], USERS.get, DEFAULT, others_know_users=False)) == []


def test_a_trigger_is_found_whose_owner_may_not_publish_what_it_does() -> None:
    one = make_trigger("t", parse_friendly("a//.", {}).normal, "b", owner="anna")
    assert list(review([one], USERS.get, POLICY, others_know_users=False)) == []
    policy = read_policy('[[allow]]\ndo = ["subscribe", "publish"]\ntopics = ["a//."]\nusers = ["*"]\n', "policy")
    (finding,) = review([one], USERS.get, policy, others_know_users=False)
    assert (finding.reason, finding.certain) == ("its owner may not publish to b", True)


def test_without_a_policy_and_on_links_to_other_engines_nothing_is_found() -> None:
    one = msgspec.structs.replace(make_subscription("s", "a"), owner="anna")
    link = msgspec.structs.replace(make_subscription("peer-b", "a"), form="peer", peer=Peer("G/a", "G/b"))
    assert list(review([one], USERS.get, DEFAULT, others_know_users=False)) == []
    assert list(review([link], USERS.get, POLICY, others_know_users=False)) == []
