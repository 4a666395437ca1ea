from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from arborcast.ingest.operations import current_message
from arborcast.ingest.settings import TopicSettings
from arborcast.topic_model.records.control import ControlRecord, TopicPolicy, TopicRecord, TopicRemoved
from arborcast.topic_model.topics import TopicPath
from tests.support import oasis
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer

WANTED = '<wsnt:SubscriptionPolicy><p:CurrentMessage xmlns:p="urn:arborcast:policy"/></wsnt:SubscriptionPolicy>'


def parts_with(*retaining: str, topics: TopicSettings | None = None) -> GatewayParts:
    parts = GatewayParts(topics=topics)
    for path in retaining:
        parts.table.apply(TopicRecord(TopicPath(path), policy=TopicPolicy(retain=True)))
    return parts


def publish(parts: GatewayParts, *messages: tuple[str, str]) -> None:
    content = [soap.message(topic, f'<n xmlns="urn:n">{payload}</n>') for topic, payload in messages]
    assert parts.post(soap.envelope(soap.notify(*content))).status == 202


def ask(parts: GatewayParts, topic: str = "t:a", version: str = "1.1") -> HttpAnswer:
    body = f"<wsnt:GetCurrentMessage>{soap.topic(topic)}</wsnt:GetCurrentMessage>"
    return parts.post(soap.envelope(body, version))


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_the_last_message_of_a_topic_that_retains_it(version: str) -> None:
    parts = parts_with("{urn:t}a")
    publish(parts, ("t:a", "1"), ("t:b", "other"), ("t:a", "2"))
    publish(parts, ("t:b", "other"))
    answer = ask(parts, version=version)
    response = oasis.validate(answer.body)
    assert response.tag == f"{{{soap.WSNT}}}GetCurrentMessageResponse"
    assert [child.text for child in response] == ["2"]


def test_one_that_is_valid_no_more_is_nobodys_current_message() -> None:
    parts = parts_with("{urn:t}a", "{urn:t}b")
    short = '<p:Publication xmlns:p="urn:arborcast:policy" Messages="1" Lifespan="PT2S"/>'
    parts.post(soap.envelope(soap.notify(soap.message("t:a", "<n/>"), soap.message("t:b", "<n/>"), short)))
    assert ask(parts).status == 200
    parts.later(seconds=2)
    answer = ask(parts)
    assert (answer.fault, ask(parts, "t:b").status) == ("NoCurrentMessageOnTopicFault", 200)
    assert "over" in answer.reason
    parts.post(soap.envelope(soap.subscribe(more=WANTED)))
    assert [each.topic for each in parts.notifications.accepted[2:]] == ["{urn:t}b"]


def test_no_message_yet() -> None:
    answer = ask(parts_with("{urn:t}a"))
    assert answer.fault == "NoCurrentMessageOnTopicFault"
    assert "no message" in answer.reason
    oasis.validate(answer.body)


def test_a_topic_that_no_longer_retains_has_none() -> None:
    parts = parts_with("{urn:t}a")
    publish(parts, ("t:a", "1"))
    parts.table.apply(TopicRecord(TopicPath("{urn:t}a")))
    assert ask(parts).fault == "NoCurrentMessageOnTopicFault"


def test_a_topic_outside_the_fixed_set_is_not_supported() -> None:
    parts = parts_with("{urn:t}a", topics=TopicSettings(fixed=True))
    assert ask(parts, "t:b").fault == "TopicNotSupportedFault"
    assert ask(parts, "t:a").fault == "NoCurrentMessageOnTopicFault"


def test_a_new_subscriber_gets_the_current_messages_that_it_asked_for() -> None:
    parts = parts_with("{urn:t}a", "{urn:t}a/b", "{urn:t}c")
    parts.table.apply(TopicRecord(TopicPath("{urn:t}a/b"), policy=TopicPolicy(retain=True, priority=5)))
    publish(parts, ("t:a", "1"), ("t:a/b", "2"), ("t:c", "3"), ("t:a/plain", "4"))
    before = len(parts.notifications.accepted)
    answer = parts.post(soap.envelope(soap.subscribe(filters=soap.topic_expression("t:a//."), more=WANTED)))
    assert answer.status == 200
    (subscription,) = parts.table.subscriptions()
    sent = parts.notifications.accepted[before:]
    assert {(each.topic, each.payload, each.priority) for each in sent} == {
        ("{urn:t}a", b'<n xmlns="urn:n">1</n>', 0),
        ("{urn:t}a/b", b'<n xmlns="urn:n">2</n>', 5),
    }
    assert {each.only for each in sent} == {subscription.id}
    assert {each.id for each in sent} <= {each.id for each in parts.notifications.accepted[:before]}


def test_who_subscribes_again_gets_them_again() -> None:
    parts = parts_with("{urn:t}a")
    publish(parts, ("t:a", "1"))
    for _ in range(2):
        parts.post(soap.envelope(soap.subscribe(more=WANTED)))
    assert len(list(parts.table.subscriptions())) == 1
    assert len([each for each in parts.notifications.accepted if each.only]) == 2


def test_too_many_current_messages_are_refused_before_anything_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arborcast.wire.limits.CURRENT_MESSAGES", 1)
    parts = parts_with("{urn:t}a", "{urn:t}b")
    publish(parts, ("t:a", "1"), ("t:b", "2"))
    answer = parts.post(soap.envelope(soap.subscribe(more=WANTED)))
    assert answer.fault == "UnsupportedPolicyRequestFault"
    assert "2 topics" in answer.reason
    oasis.validate(answer.body)
    assert list(parts.table.subscriptions()) == []
    filters = soap.topic_expression("t:a")
    assert parts.post(soap.envelope(soap.subscribe(filters=filters, more=WANTED))).status == 200


def test_messages_are_handed_over_in_small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_message, "_AT_A_TIME", 2)
    parts = parts_with(*(f"{{urn:t}}a{number}" for number in range(5)))
    publish(parts, *((f"t:a{number}", str(number)) for number in range(5)))
    asked: list[int] = []
    latest = parts.gateway.retained.latest

    async def counted(paths: list[TopicPath]) -> object:
        asked.append(len(paths))
        await asyncio.sleep(0)
        return await latest(paths)

    parts.gateway.retained.latest = counted  # type: ignore[method-assign, assignment]
    parts.post(soap.envelope(soap.subscribe(more=WANTED)))
    assert asked == [2, 2, 1]
    assert len([each for each in parts.notifications.accepted if each.only]) == 5


def test_what_reaches_a_new_subscriber_anyway_is_not_sent_to_it_as_a_current_message() -> None:
    """Accepted between the record of the subscription and the look at the current messages, here or by a gateway whose
    view was behind; and one that was restored, whose stamp is of another control log."""
    parts = parts_with("{urn:t}a", "{urn:t}b", "{urn:t}c", "{urn:t}d")
    publish(parts, ("t:a", "1"), ("t:b", "2"), ("t:c", "3"), ("t:d", "4"))
    commit = parts.control.commit

    async def commit_and_publish(records: Sequence[ControlRecord]) -> int:
        before_ms = round(parts.now.timestamp() * 1000)
        offset = await commit(records)
        current = parts.notifications.current
        for topic, changes in {
            "{urn:t}a": {"control": offset + 1},
            "{urn:t}b": {"control": offset, "accepted_ms": before_ms + 1},
            "{urn:t}c": {"control": offset},
            "{urn:t}d": {"control": offset + 1_000, "accepted_ms": before_ms - 1},
        }.items():
            current[TopicPath(topic)] = msgspec.structs.replace(current[TopicPath(topic)], **changes)
        return offset

    parts.control.commit = commit_and_publish  # type: ignore[method-assign]
    parts.post(soap.envelope(soap.subscribe(more=WANTED)))
    sent = [each for each in parts.notifications.accepted if each.only]
    assert [each.topic for each in sent] == ["{urn:t}c", "{urn:t}d"]
    assert {each.control for each in sent} == {parts.table.position}, "for those who are there now"


def test_what_is_on_its_way_into_the_log_is_waited_for() -> None:
    parts = parts_with("{urn:t}a")
    publish(parts, ("t:a", "1"))
    under_way = parts.notifications.current.pop(TopicPath("{urn:t}a"))

    async def settled() -> None:
        parts.notifications.current[under_way.topic] = under_way

    parts.notifications.settled = settled  # type: ignore[method-assign]
    parts.post(soap.envelope(soap.subscribe(more=WANTED)))
    assert [each.id for each in parts.notifications.accepted if each.only] == [under_way.id]


def test_all_topics_keep_their_last_message_but_those_that_say_no() -> None:
    parts = GatewayParts(topics=TopicSettings(retain_all=True))
    for name, retain in (("said", True), ("unsaid", None), ("no", False)):
        parts.table.apply(TopicRecord(TopicPath(f"{{urn:t}}{name}"), policy=TopicPolicy(retain=retain)))
    publish(parts, ("t:said", "1"), ("t:unsaid", "2"), ("t:no", "3"), ("t:new", "4"))
    assert set(parts.notifications.current) == {"{urn:t}said", "{urn:t}unsaid", "{urn:t}new"}
    for name, payload in (("said", "1"), ("unsaid", "2"), ("new", "4")):
        assert [child.text for child in oasis.validate(ask(parts, f"t:{name}").body)] == [payload]
    refused = ask(parts, "t:no")
    assert (refused.fault, "does not keep" in refused.reason) == ("NoCurrentMessageOnTopicFault", True)
    before = len(parts.notifications.accepted)
    parts.post(soap.envelope(soap.subscribe(more=WANTED)))
    assert {each.payload for each in parts.notifications.accepted[before:]} == {
        f'<n xmlns="urn:n">{payload}</n>'.encode() for payload in (1, 2, 4)
    }


def test_a_topic_that_was_removed_has_none_though_all_retain() -> None:
    parts = GatewayParts(topics=TopicSettings(retain_all=True))
    publish(parts, ("t:a", "1"))
    parts.table.apply(TopicRemoved(TopicPath("{urn:t}a")))
    answer = ask(parts)
    assert (answer.fault, "no message" in answer.reason) == ("NoCurrentMessageOnTopicFault", True)
    parts.post(soap.envelope(soap.subscribe(more=WANTED)))
    assert len(parts.notifications.accepted) == 1
