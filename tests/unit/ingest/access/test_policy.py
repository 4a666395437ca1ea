from __future__ import annotations

import json

import msgspec
import pytest

from arborcast.core.errors import ConfigError
from arborcast.ingest.access.grants import known_to
from arborcast.ingest.access.policy import DEFAULT, AccessPolicy, read_policy, review
from arborcast.topic_model.expressions import XPATH, parse, parse_friendly
from arborcast.topic_model.grants import Identity
from arborcast.topic_model.subscriptions import Peer, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.make import subscription
from tests.support.routing import make_trigger


def allow(do: str, *topics: str, users: str = "", groups: str = "") -> str:
    """A rule in the file's syntax."""
    holders = f'users = ["{users}"]' if users else f'groups = ["{groups}"]'
    return f"[[allow]]\ndo = {json.dumps(do.split())}\ntopics = {json.dumps(topics)}\n{holders}\n"


POLICY = read_policy(
    '[namespaces]\np = "urn:p"\n'
    + allow("publish", "p:line1//.", "p:status", users="press")
    + allow("subscribe", "p:line1//.", users="*")
    + allow("subscribe manage", "//.", groups="operators")
    + allow("subscribe", "{urn:q}//.", users="press"),
    "policy",
)
OPERATOR = Identity("x", frozenset({"operators"}))


def subscribing(identity: Identity, *expressions: str) -> bool:
    parsed = [parse_friendly(each, {"p": "urn:p", "q": "urn:q"}) for each in expressions]
    return POLICY.caller(identity).subscribe.covers(parsed)


@pytest.mark.parametrize(
    ("expressions", "allowed"),
    [
        *(([text], True) for text in ("p:line1", "p:line1//.", "p:line1/*", "p:line1//alarm", "p:line1/a|p:line1/b")),
        *(([text], True) for text in ("{urn:q}x", "{urn:q}//.", "{urn:q}*")),
        *(([text], False) for text in ("p:line10", "p:line1/a|p:line2/a", "p:*", "p:*/press", "//.", "{urn:qq}x")),
        ([], False),
        # An intersection: the second expression keeps it within the allowed topics.
        (["//.", "p:line1//."], True),
    ],
)
def test_a_subscription_is_within_the_allowed_topics(expressions: list[str], allowed: bool) -> None:
    assert subscribing(Identity("press"), *expressions) is allowed


def test_publishing_groups_xpath_and_an_empty_policy() -> None:
    press, stranger = POLICY.caller(Identity("press")), POLICY.caller(Identity("stranger"))
    for path, allowed in {
        "{urn:p}line1": True,
        "{urn:p}line1/{urn:q}deep/er": True,
        "{urn:p}status": True,
        "{urn:p}status/below": False,
        "{urn:p}line11": False,
        "{urn:q}line1": False,
        "line1": False,
    }.items():
        assert press.publish.holds(TopicPath(path)) is allowed, path
    assert subscribing(Identity("stranger"), "p:line1/a")
    assert not subscribing(Identity("stranger"), "p:line2/a")
    assert subscribing(OPERATOR)
    xpath = parse("/*/line1", XPATH, {})
    assert not press.subscribe.covers([xpath]), "requires a right to all topics"
    assert POLICY.caller(OPERATOR).subscribe.covers([xpath])
    empty = read_policy("", "policy").caller(Identity("x"))
    assert not empty.publish.holds(TopicPath("a"))
    assert not empty.subscribe.covers([parse_friendly("a")])
    paths = [TopicPath(f"{{urn:p}}{name}") for name in ("line1/a", "status")]
    known = [known_to(identity).holds(path) for identity in (stranger, None) for path in paths]
    assert known == [True, False, True, True]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((f"allow = {wrong}", "two brackets") for wrong in ("3", "[3]", '["do"]')),
        ("[[deny]]", "[deny]"),
        ("[[allow]", "not valid TOML"),
        ('[[allow]]\nusres = ["a"]', "usres is not known"),
        ('[[allow]]\ndo = ["publish"]\ntopics = ["a"]', "users or groups is missing"),
        ('[[allow]]\ndo = ["publish"]\nusers = ["a"]', "topics is missing"),
        (allow("read", "a", users="a"), "'read'"),
        ('[[allow]]\ndo = "publish"\ntopics = ["a"]\nusers = ["a"]', "do must be a list"),
        (allow("publish", "p:a", users="a"), "number 1"),
        *((allow("publish", topic, users="a"), "has wildcards") for topic in ("a/*", "a//b", "a//b//.")),
    ],
)
def test_errors_in_a_policy(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_policy(text, "policy.toml")
    assert words in str(refused.value)
    assert "policy.toml" in str(refused.value)


# Existing subscriptions that the policy does not allow.

REVIEWED = read_policy(
    allow("subscribe", "a//.", users="anna")
    + allow("subscribe", "b//.", groups="readers")
    + allow("publish", "//.", users="*"),
    "policy",
)
USERS = {"anna": Identity("anna"), "bert": Identity("bert", frozenset({"readers"}))}


def found(one: Subscription, policy: AccessPolicy = REVIEWED, others: bool = False) -> list[tuple[str, bool]]:
    return [(each.reason, each.certain) for each in review([one], USERS.get, policy, others_know_users=others)]


NOT_ALL = "its owner may not subscribe to all of that"


@pytest.mark.parametrize(
    ("owner", "topic", "findings", "others"),
    [
        *(
            (owner, topic, [], others)
            for owner, topic in (("anna", "a//."), ("anna", "a/b"), ("bert", "b/*"))
            for others in (True, False)
        ),
        ("anna", "b/c", [(NOT_ALL, True)], False),
        ("anna", "*/c", [(NOT_ALL, True)], False),
        ("bert", "a", [(NOT_ALL, True)], False),
        ("carl", "a", [("its owner is no user", True)], False),
        ("carl", "b", [(NOT_ALL, False)], True),
        # Bert's token may have groups that the file does not have.
        ("bert", "a", [(NOT_ALL, False)], True),
        ("", "a", [("it was created while no authentication was required", False)], False),
    ],
)
def test_review_of_subscriptions(owner: str, topic: str, findings: list[tuple[str, bool]], others: bool) -> None:
    one = subscription(topic=parse_friendly(topic, {}).normal, owner=owner)
    assert found(one, others=others) == findings


def test_review_of_queues_triggers_and_links() -> None:
    server = subscription(topic="a/b", owner="anna", queue=1)
    assert found(server) == [("its owner may not serve that queue", True)]
    trigger = make_trigger("t", "a//.", "b", owner="anna")
    assert found(trigger) == []
    narrow = read_policy(allow("subscribe publish", "a//.", users="*"), "policy")
    assert found(trigger, narrow) == [("its owner may not publish to b", True)]
    link = msgspec.structs.replace(subscription("peer-b", "a"), form="peer", peer=Peer("G/a", "G/b"))
    assert found(link) == []
    assert [found(one, DEFAULT) for one in (server, trigger, link)] == [[], [], []]
