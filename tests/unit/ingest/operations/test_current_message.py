from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog import follower
from arborcast.core.settings import KafkaSettings
from arborcast.ingest.elements.filters import Filters, SubscriptionPolicy
from arborcast.ingest.operations import current_message
from arborcast.ingest.operations.current_message import RetainedMessages
from arborcast.ingest.operations.subscribing import SubscriptionRequest, create_subscription
from arborcast.ingest.settings import TopicSettings
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.control import ControlRecord, TopicRecord, TopicRemoved
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.errors import TooLarge
from tests.support import oasis
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer, only_subscription
from tests.support.listed_logs import Listed, ListedConsumer
from tests.support.make import notification

NONE = "NoCurrentMessageOnTopicFault"


def parts_with(*names: str, topics: TopicSettings | None = None, retain: bool | None = True) -> GatewayParts:
    """A gateway with these topics in urn:t."""
    parts = GatewayParts(topics=topics)
    parts.have_topics(*(f"{{urn:t}}{name}" for name in names), retain=retain)
    return parts


def publish(parts: GatewayParts, **payloads: str) -> None:
    """Publishes one message to each topic."""
    content = [soap.message(f"t:{name}", f'<n xmlns="urn:n">{text}</n>') for name, text in payloads.items()]
    assert parts.post(soap.envelope(soap.notify(*content))).status == 202


def get_current(parts: GatewayParts, topic: str = "t:a", version: str = "1.1") -> HttpAnswer:
    body = f"<wsnt:GetCurrentMessage>{soap.topic(topic)}</wsnt:GetCurrentMessage>"
    return parts.post(soap.envelope(body, version))


def subscribe(parts: GatewayParts, topic: str = "") -> HttpAnswer:
    """A Subscribe that requests the current messages."""
    filters = soap.topic_expression(topic) if topic else None
    return parts.post(soap.envelope(soap.subscribe(filters=filters, policy="<p:CurrentMessage/>")))


def sent(parts: GatewayParts) -> list[Notification]:
    """The notifications sent as current messages."""
    return [each for each in parts.notifications.accepted if each.only]


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_the_last_message_of_a_topic_while_it_is_retained(version: str) -> None:
    parts = parts_with("a")
    answer = get_current(parts, version=version)
    assert (answer.fault, "no message" in answer.reason) == (NONE, True)
    oasis.validate(answer.body)
    publish(parts, a="1", b="other")
    publish(parts, b="other", a="2")
    publish(parts, b="other")
    response = oasis.validate(get_current(parts, version=version).body)
    assert response.tag == f"{{{soap.WSNT}}}GetCurrentMessageResponse"
    assert [child.text for child in response] == ["2"]
    parts.table.apply(TopicRecord(TopicPath("{urn:t}a")))
    assert get_current(parts).fault == NONE


def test_an_expired_message_is_no_current_message() -> None:
    parts = parts_with("a", "b")
    short = '<p:Publication xmlns:p="urn:arborcast:policy" Messages="1" Lifespan="PT2S"/>'
    parts.post(soap.envelope(soap.notify(soap.message("t:a", "<n/>"), soap.message("t:b", "<n/>"), short)))
    assert get_current(parts).status == 200
    parts.later(seconds=2)
    answer = get_current(parts)
    assert (answer.fault, "over" in answer.reason, get_current(parts, "t:b").status) == (NONE, True, 200)
    subscribe(parts)
    assert [each.topic for each in sent(parts)] == ["{urn:t}b"]


def test_topics_of_a_fixed_set() -> None:
    parts = parts_with("a", topics=TopicSettings(fixed=True))
    assert [get_current(parts, topic).fault for topic in ("t:b", "t:a")] == ["TopicNotSupportedFault", NONE]


def test_each_subscribe_sends_the_current_messages() -> None:
    parts = parts_with("a", "a/b", "c")
    parts.have_topics("{urn:t}a/b", retain=True, priority=5)
    publish(parts, **{"a": "1", "a/b": "2", "c": "3", "a/plain": "4"})
    published = {each.id for each in parts.notifications.accepted}
    for times in (1, 2):
        assert subscribe(parts, "t:a//.").status == 200
        assert len(sent(parts)) == 2 * times
    assert {(each.topic, each.payload, each.priority) for each in sent(parts)} == {
        ("{urn:t}a", b'<n xmlns="urn:n">1</n>', 0),
        ("{urn:t}a/b", b'<n xmlns="urn:n">2</n>', 5),
    }
    assert {each.only for each in sent(parts)} == {only_subscription(parts).id}
    assert {each.id for each in sent(parts)} <= published


def test_a_durable_subscription_gets_current_messages_that_could_not_be_stored_with_it() -> None:
    parts = parts_with("a")
    publish(parts, a="1")
    wanted = SubscriptionRequest(Filters(()), None, policy=SubscriptionPolicy(current_message=True), id="durable")
    parts.notifications.error = InfrastructureError("away")
    with pytest.raises(InfrastructureError):
        asyncio.run(create_subscription(parts.gateway, wanted))
    assert only_subscription(parts).id == "durable"
    parts.notifications.error = None
    for _ in range(2):
        asyncio.run(create_subscription(parts.gateway, wanted))
        assert [each.only for each in sent(parts)] == ["durable"]


def test_too_many_current_messages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arborcast.wire.limits.CURRENT_MESSAGES", 1)
    parts = parts_with("a", "b")
    publish(parts, a="1", b="2")
    answer = subscribe(parts)
    assert (answer.fault, "2 topics" in answer.reason) == ("UnsupportedPolicyRequestFault", True)
    oasis.validate(answer.body)
    assert list(parts.table.subscriptions()) == []
    assert subscribe(parts, "t:a").status == 200


def test_current_messages_are_sent_in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_message, "_AT_A_TIME", 2)
    names = [f"a{number}" for number in range(5)]
    parts = parts_with(*names)
    publish(parts, **dict.fromkeys(names, "x"))
    sizes: list[int] = []
    latest = parts.gateway.retained.latest

    async def counted(paths: list[TopicPath]) -> object:
        sizes.append(len(paths))
        await asyncio.sleep(0)
        return await latest(paths)

    parts.gateway.retained.latest = counted  # type: ignore[method-assign, assignment]
    subscribe(parts)
    assert (sizes, len(sent(parts))) == ([2, 2, 1], 5)


def test_current_messages_that_are_too_large_together_are_stored_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = parts_with("a", "b")
    publish(parts, a="1", b="2")
    append = parts.notifications.append

    def limited(notifications: Sequence[Notification], retained: Sequence[Notification] = ()) -> asyncio.Future[None]:
        if len(notifications) > 1:
            raise TooLarge("the records of this request have more than 1 bytes together")
        return append(notifications, retained)

    monkeypatch.setattr(parts.notifications, "append", limited)
    assert subscribe(parts).status == 200
    assert [each.topic for each in sent(parts)] == ["{urn:t}a", "{urn:t}b"]


@pytest.mark.parametrize(("expression", "examined"), [("t:a1", 1), ("t:a1//.", 2), ("t:a1/b|t:a2", 2), ("", 6)])
def test_a_narrow_subscription_costs_no_more_with_other_topics(
    monkeypatch: pytest.MonkeyPatch, expression: str, examined: int
) -> None:
    parts = parts_with(*(f"a{number}" for number in range(5)), "a1/b")
    publish(parts, **{f"a{number}": "x" for number in range(5)}, **{"a1/b": "x"})
    monkeypatch.setattr(current_message, "_FEW", 3)
    matcher, seen = current_message.topic_matcher, set[TopicPath]()

    def noted(*arguments: Any) -> Callable[[TopicPath], bool]:
        matches = matcher(*arguments)

        def matching(path: TopicPath) -> bool:
            seen.add(path)
            return matches(path)

        return matching

    monkeypatch.setattr(current_message, "topic_matcher", noted)
    assert subscribe(parts, expression).status == 200
    assert len(seen) == len(sent(parts)) == examined


def test_matched_notifications_are_not_sent_as_current_messages() -> None:
    """Notifications accepted between the record of the subscription and the read of the current messages, by this
    gateway or by one with an older view; and a restored one, with a position of another control log."""
    parts = parts_with("a", "b", "c", "d")
    publish(parts, a="1", b="2", c="3", d="4")
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
    subscribe(parts)
    assert [each.topic for each in sent(parts)] == ["{urn:t}c", "{urn:t}d"]
    assert {each.control for each in sent(parts)} == {parts.table.position}, "for the current subscriptions"


def test_appends_in_flight_are_awaited() -> None:
    parts = parts_with("a")
    publish(parts, a="1")
    in_flight = parts.notifications.current.pop(TopicPath("{urn:t}a"))

    async def settled() -> None:
        parts.notifications.current[in_flight.topic] = in_flight

    parts.notifications.settled = settled  # type: ignore[method-assign]
    subscribe(parts)
    assert [each.id for each in sent(parts)] == [in_flight.id]


def test_retain_all_and_topics_without_retain() -> None:
    parts = parts_with("retained", topics=TopicSettings(retain_all=True))
    parts.have_topics("{urn:t}unset", retain=None)
    parts.have_topics("{urn:t}no", retain=False)
    publish(parts, retained="1", unset="2", no="3", new="4")
    assert set(parts.notifications.current) == {"{urn:t}retained", "{urn:t}unset", "{urn:t}new"}
    for name, payload in (("retained", "1"), ("unset", "2"), ("new", "4")):
        assert [child.text for child in oasis.validate(get_current(parts, f"t:{name}").body)] == [payload]
    refused = get_current(parts, "t:no")
    assert (refused.fault, "does not keep" in refused.reason) == (NONE, True)
    subscribe(parts)
    assert {each.topic for each in sent(parts)} == {"{urn:t}retained", "{urn:t}unset", "{urn:t}new"}
    # A removed topic has no current message.
    for name in ("retained", "unset", "new"):
        parts.table.apply(TopicRemoved(TopicPath(f"{{urn:t}}{name}")))
    assert (get_current(parts, "t:new").fault, "no message" in get_current(parts, "t:new").reason) == (NONE, True)
    subscribe(parts)
    assert len(sent(parts)) == 3


def test_the_message_of_a_removed_topic_is_removed_unless_the_topic_returns() -> None:
    parts = parts_with("a", "gone", "moved")
    publish(parts, a="1", gone="2", moved="3")
    for name in ("gone", "moved"):
        parts.table.apply(TopicRemoved(TopicPath(f"{{urn:t}}{name}")))
    missing = set[TopicPath]()
    asyncio.run(current_message.remove_orphans(parts.gateway, missing))
    assert len(parts.notifications.current) == 3
    parts.have_topics("{urn:t}moved", retain=True)
    asyncio.run(current_message.remove_orphans(parts.gateway, missing))
    assert set(parts.notifications.current) == {"{urn:t}a", "{urn:t}moved"}


def test_concurrent_requests_while_kafka_is_unavailable() -> None:
    settings = KafkaSettings(bootstrap_servers="127.0.0.1:1", request_timeout_s=0.5)

    async def run() -> list[object]:
        retained = RetainedMessages(settings)
        try:
            # One after the other they would exceed the time limit of a test.
            sizes = [retained.latest([TopicPath("a")]) for _ in range(2_000)]
            return list(await asyncio.gather(*sizes, return_exceptions=True))
        finally:
            retained.close()

    for outcome in asyncio.run(run()):
        assert isinstance(outcome, InfrastructureError)
        assert outcome.retry_after is not None


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[Listed]:
    """The records of the log `retained`."""
    records: list[Listed] = []
    for module, name in ((follower, "LogConsumer"), (current_message, "LogReader")):
        monkeypatch.setattr(module, name, lambda *_, **__: ListedConsumer("retained", records))
    return records


def retain(log: list[Listed], offset: int, topic: str, name: str = "n") -> None:
    log.append(Listed(*notifications.encode(notification(name, topic)), offset))


async def test_an_erased_message_whose_null_was_compacted_away_is_not_current(log: list[Listed]) -> None:
    """The gateway has answered no request for days."""
    topics = [TopicPath(each) for each in "abc"]
    retained = RetainedMessages(KafkaSettings())
    retain(log, 0, "a")
    retain(log, 1, "b")
    assert [each.topic for each in await retained.latest(topics[::-1])] == ["a", "b"], "in the order of acceptance"
    del log[0]
    retain(log, 4, "c")
    assert [each.topic for each in await retained.latest(topics)] == ["b", "c"]
    assert set(await retained.topics(lambda _: True)) == {"b", "c"}
    retained.close()


async def test_an_expensive_search_does_not_delay_others(log: list[Listed], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_message, "_MATCHED_AT_ONCE", 2)
    done = list[str]()
    for offset, topic in enumerate("abcde"):
        retain(log, offset, topic, "read")

    def matches(path: TopicPath) -> bool:
        done.append(path)
        return path != "d"

    async def latest() -> None:
        done.append((await retained.latest([TopicPath("a")]))[0].id)

    retained = RetainedMessages(KafkaSettings())
    found, _ = await asyncio.gather(retained.topics(matches), latest())
    assert found == ["a", "b", "c", "e"]
    assert done.index("read") < done.index("e")
    retained.close()
