"""Notify: stored notifications, and refusals."""

from __future__ import annotations

import asyncio

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.ingest.settings import GatewaySettings, TopicSettings
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import TopicPath
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts


def test_a_notify_is_stored_in_order_and_answered_with_202(parts: GatewayParts) -> None:
    messages = [soap.message("t:a/b", f"<n>{number}</n>") for number in range(3)]
    answer = parts.post(soap.envelope(soap.notify(*messages), header=soap.addressing("urn:any", "urn:uuid:7")))
    assert (answer.status, answer.body) == (202, b"")
    accepted = parts.notifications.accepted
    assert [one.payload for one in accepted] == [b"<n>0</n>", b"<n>1</n>", b"<n>2</n>"]
    assert {one.topic for one in accepted} == {"{urn:t}a/b"}
    assert {one.message_id for one in accepted} == {"urn:uuid:7"}
    assert {one.accepted_ms for one in accepted} == {1_767_225_600_000}
    assert [one.id for one in accepted] == sorted({one.id for one in accepted})


def test_ids_in_the_answer_and_the_producer_reference(parts: GatewayParts) -> None:
    reference = "<wsnt:ProducerReference><wsa:Address>urn:oid:1</wsa:Address></wsnt:ProducerReference>"
    message = soap.message().replace("<wsnt:Message>", reference + "<wsnt:Message>")
    answer = parts.post(soap.envelope(soap.notify(message, soap.message())))
    kept = parts.notifications.accepted
    assert answer.headers[b"arborcast-notification-id"].decode().split(",") == [one.id for one in kept]
    assert kept[0].producer.endswith(b"<wsa:Address>urn:oid:1</wsa:Address></wsnt:ProducerReference>")
    # Proxies accept a few kB of headers.
    many = parts.post(soap.envelope(soap.notify(*[soap.message() for _ in range(101)])))
    assert (many.status, many.headers.get(b"arborcast-notification-id")) == (202, None)


async def test_new_topics_are_recorded_once_before_the_notifications(parts: GatewayParts) -> None:
    async def together(count: int) -> list[int]:
        body = soap.envelope(soap.notify())
        answers = await asyncio.gather(*(parts.request("POST", "/wsn/NotificationBroker", body) for _ in range(count)))
        return [answer.status for answer in answers]

    parts.control.error = InfrastructureError("no broker", retry_after=3)
    assert await together(1) == [503]
    assert parts.notifications.accepted == []
    parts.control.error = None
    assert await together(5) == [202] * 5
    assert parts.control.records == [TopicRecord(TopicPath("{urn:t}a/b"), prefixes="t")]
    assert len(parts.notifications.accepted) == 5


_TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.mark.parametrize(("header", "kept"), [(_TRACE, _TRACE), ("", ""), ("not one", "")])
def test_valid_trace_contexts_are_stored(parts: GatewayParts, header: str, kept: str) -> None:
    answer = parts.post(soap.envelope(soap.notify(soap.message(), soap.message())), traceparent=header)
    assert answer.status == 202
    assert [each.traceparent for each in parts.notifications.accepted] == [kept, kept]


def test_messages_have_positions_of_the_view(parts: GatewayParts) -> None:
    """The position of the view at acceptance, and the position after the last change that concerns the topic."""
    parts.post(soap.envelope(soap.notify(soap.message("t:one"))))
    parts.post(soap.envelope(soap.subscribe(filters=soap.topic_expression("t:two"))))
    parts.post(soap.envelope(soap.notify(soap.message("t:one"), soap.message("t:two"))))
    assert [(each.topic, each.control, each.unchanged) for each in parts.notifications.accepted[1:]] == [
        ("{urn:t}one", 3, 1),
        ("{urn:t}two", 3, 3),
    ]
    assert parts.notifications.accepted[0].control == 1, "behind the record of its topic"


WITHOUT_TOPIC = "<wsnt:NotificationMessage><wsnt:Message><n/></wsnt:Message></wsnt:NotificationMessage>"


@pytest.mark.parametrize("path", ["plant/other", "{urn:t}a/b"])
def test_the_default_topic(path: str) -> None:
    parts = GatewayParts(topics=TopicSettings(default=path))
    assert parts.post(soap.envelope(soap.notify(soap.message("t:x"), WITHOUT_TOPIC))).status == 202
    assert [each.topic for each in parts.notifications.accepted] == ["{urn:t}x", path]
    assert parts.table.topics.get(TopicPath(path)) is not None


def test_rules_of_topics_apply_to_the_default_topic() -> None:
    parts = GatewayParts(GatewaySettings(requires_registration=True), TopicSettings(default="a"))
    assert "only registered publishers" in parts.post(soap.envelope(soap.notify(WITHOUT_TOPIC))).reason
    parts = GatewayParts(topics=TopicSettings(default="a", fixed=True))
    assert parts.post(soap.envelope(soap.notify(WITHOUT_TOPIC))).fault == "TopicNotSupportedFault"


def producer(size: int) -> str:
    return f"<wsnt:ProducerReference><wsa:Address>urn:{'p' * size}</wsa:Address></wsnt:ProducerReference>"


def merged(key: str) -> str:
    publication = f'<p:Publication xmlns:p="urn:arborcast:policy" Merge="{key}"/>'
    return soap.notify().replace("</wsnt:Notify>", publication + "</wsnt:Notify>")


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (soap.envelope(soap.notify(), header=soap.addressing("urn:any", "u" * 2_049)), "MessageID"),
        (soap.envelope(soap.notify(soap.message().replace("<wsnt:Me", producer(16_384) + "<wsnt:Me", 1))), "Producer"),
        (soap.envelope(merged("k" * 1_001)), "Merge"),
    ],
)
def test_values_stored_with_each_message_are_bounded(parts: GatewayParts, request_: bytes, words: str) -> None:
    answer = parts.post(request_)
    assert (answer.status >= 400, words in answer.reason) == (True, True), answer.reason
    assert parts.notifications.accepted == []
