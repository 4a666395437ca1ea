from __future__ import annotations

import pytest

from arborcast.core.errors import ConfigError
from arborcast.ingest.access.grants import known_to
from arborcast.ingest.access.policy import read_policy
from arborcast.topic_model.expressions import XPATH, parse, parse_friendly
from arborcast.topic_model.grants import Identity
from arborcast.topic_model.topics import TopicPath

POLICY = """
[namespaces]
p = "urn:p"

[[allow]]
do = ["publish"]
topics = ["p:line1//.", "p:status"]
users = ["press"]

[[allow]]
do = ["subscribe"]
topics = ["p:line1//."]
users = ["*"]

[[allow]]
do = ["subscribe", "manage"]
topics = ["//."]
groups = ["operators"]

[[allow]]
do = ["subscribe"]
topics = ["{urn:q}//."]
users = ["press"]
"""


def subscribing(who: str, *expressions: str, groups: frozenset[str] = frozenset()) -> bool:
    caller = read_policy(POLICY, "policy").caller(Identity(who, groups))
    return caller.subscribe.covers([parse_friendly(each, {"p": "urn:p", "q": "urn:q"}) for each in expressions])


@pytest.mark.parametrize(
    ("expressions", "allowed"),
    [
        (["p:line1"], True),
        (["p:line1/press"], True),
        (["p:line1//."], True),
        (["p:line1/*"], True),
        (["p:line1//alarm"], True),
        (["p:line1/a|p:line1/b"], True),
        (["p:line10"], False),
        (["p:line1/a|p:line2/a"], False),
        (["p:*"], False),
        (["p:*/press"], False),
        (["//."], False),
        ([], False),
        (["p:line2//."], False),
        # Both must select: the second keeps it within what is allowed.
        (["//.", "p:line1//."], True),
        (["{urn:q}x"], True),
        (["{urn:q}//."], True),
        (["{urn:q}*"], True),
        (["{urn:qq}x"], False),
    ],
)
def test_all_that_is_selected_now_or_later_must_be_allowed(expressions: list[str], allowed: bool) -> None:
    assert subscribing("press", *expressions) is allowed


def test_xpath_groups_everybody_and_an_empty_policy() -> None:
    policy, xpath = read_policy(POLICY, "policy"), parse("/*/line1", XPATH, {})
    assert not policy.caller(Identity("press")).subscribe.covers([xpath]), "it is for those who may see everything"
    assert policy.caller(Identity("x", frozenset({"operators"}))).subscribe.covers([xpath])
    assert subscribing("nobody", "p:line1/a")
    assert not subscribing("nobody", "p:line2/a")
    assert subscribing("somebody", groups=frozenset({"operators"}))
    empty, nobody = read_policy("", "policy").caller(Identity("x")), policy.caller(Identity("nobody"))
    assert not empty.publish.holds(TopicPath("a"))
    assert not empty.subscribe.covers([parse_friendly("a")])
    shown = [
        (known_to(who).holds(TopicPath(f"{{urn:p}}{path}"))) for who in (nobody, None) for path in ("line1/a", "status")
    ]
    assert shown == [True, False, True, True]


def test_what_one_may_publish() -> None:
    press = read_policy(POLICY, "policy").caller(Identity("press")).publish
    for path in ("{urn:p}line1", "{urn:p}line1/{urn:q}deep/er", "{urn:p}status"):
        assert press.holds(TopicPath(path))
    for path in ("{urn:p}status/below", "{urn:p}line11", "{urn:q}line1", "line1"):
        assert not press.holds(TopicPath(path))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("allow = 3", "two brackets"),
        ("[[deny]]", "[deny]"),
        ("[[allow]", "not valid TOML"),
        ('[[allow]]\ndo = ["publish"]\ntopics = ["a"]', "users or groups is missing"),
        ('[[allow]]\ndo = ["publish"]\nusers = ["a"]', "topics is missing"),
        ('[[allow]]\ndo = ["read"]\ntopics = ["a"]\nusers = ["a"]', "'read'"),
        ('[[allow]]\ndo = "publish"\ntopics = ["a"]\nusers = ["a"]', "do must be a list"),
        ('[[allow]]\ndo = ["publish"]\ntopics = ["a/*"]\nusers = ["a"]', "has wildcards"),
        ('[[allow]]\ndo = ["publish"]\ntopics = ["a//b"]\nusers = ["a"]', "has wildcards"),
        ('[[allow]]\ndo = ["publish"]\ntopics = ["a//b//."]\nusers = ["a"]', "has wildcards"),
        ('[[allow]]\ndo = ["publish"]\ntopics = ["p:a"]\nusers = ["a"]', "number 1"),
        ('[[allow]]\nusres = ["a"]', "usres is not known"),
    ],
)
def test_what_is_wrong_in_a_policy_is_said(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_policy(text, "policy.toml")
    assert says in str(refused.value)
    assert "policy.toml" in str(refused.value)
