"""RegisterPublisher, DestroyRegistration, and publications where registration is required."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from arborcast.ingest.operations.subscription_manager import end_expired_registrations
from arborcast.ingest.settings import GatewaySettings, TopicSettings
from arborcast.topic_model.publishers import Registration
from arborcast.topic_model.records.control import RegistrationEnded, RegistrationRecord, Tombstone, TopicRecord
from tests.support import legacy_messages as legacy
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer, only_subscription

REQUIRED = GatewaySettings(requires_registration=True)


def message(topic: str, **references: str) -> str:
    """A NotificationMessage with references, for instance ProducerReference."""
    written = "".join(
        f"<wsnt:{name}><wsa:Address>{url}</wsa:Address></wsnt:{name}>" for name, url in references.items()
    )
    return soap.message(topic).replace("<wsnt:Message>", f"{written}<wsnt:Message>")


def address(answer: HttpAnswer, name: str) -> str:
    assert answer.status == 200, answer.body
    (found,) = answer.root.iterfind(f".//{{{soap.WSN_BR}}}{name}/{{*}}Address")
    return found.text or ""


def path_of(answer: HttpAnswer) -> str:
    return urlsplit(address(answer, "PublisherRegistrationReference")).path


def destroy(inside: str = "") -> bytes:
    return soap.envelope(f'<b:DestroyRegistration xmlns:b="{soap.WSN_BR}">{inside}</b:DestroyRegistration>')


def only(parts: GatewayParts) -> Registration:
    (registration,) = parts.registrations
    return registration


def registered(parts: GatewayParts, *topics: str, **more: str) -> str:
    """The path of a new registration."""
    return path_of(parts.post(soap.envelope(soap.register(*topics, **more))))


def notify(parts: GatewayParts, *messages: str, path: str = "/wsn/NotificationBroker") -> HttpAnswer:
    return parts.post(soap.envelope(soap.notify(*messages)), path)


@pytest.mark.parametrize("version", ["1.1", "1.2"])
@pytest.mark.parametrize("path", ["/wsn/NotificationBroker", "/wsn/registrations", "/wsn/registrations/"])
def test_a_registration_is_recorded_and_answered(parts: GatewayParts, version: str, path: str) -> None:
    body = soap.register("t:a/b", "t:c//.", publisher="http://p:1/x", ends="2026-01-01T01:00:00Z")
    answer = parts.post(soap.envelope(body, version), path)
    assert answer.root.tag == f"{{{soap.NAMESPACES[version]}}}Envelope"
    assert address(answer, "ConsumerReference") == "http://127.0.0.1:8080/wsn/NotificationBroker"
    registration = only(parts)
    assert registration.address == address(answer, "PublisherRegistrationReference")
    assert registration.address == f"http://127.0.0.1:8080/wsn/registrations/{registration.id}"
    assert registration.publisher is not None
    assert (registration.publisher.address, registration.demand) == ("http://p:1/x", False)
    assert [topic.normal for topic in registration.topics] == ["{urn:t}a/b", "{urn:t}c//."]
    assert registration.terminates_ms == 1_767_229_200_000
    # An expression for one topic adds the topic.
    assert [type(record) for record in parts.control.records] == [TopicRecord, RegistrationRecord]
    assert "{urn:t}a/b" in parts.table.topics


REJECTED, EXPRESSION = "PublisherRegistrationRejectedFault", "InvalidTopicExpressionFault"
TIME = "UnacceptableInitialTerminationTimeFault"


@pytest.mark.parametrize(
    ("body", "fault", "words"),
    [
        (soap.register("t:a", demand="true"), REJECTED, "PublisherReference"),
        (soap.register(publisher="http://p/", demand="1"), REJECTED, "Topic"),
        (soap.register("t:a", publisher="file:///x", demand="true"), REJECTED, "http"),
        (soap.register("t:a", publisher="http://127.0.0.1:8080/wsn/x", demand="true"), REJECTED, "leads back"),
        (soap.register("t:a", publisher="http://u:p@p/", demand="true"), REJECTED, "password"),
        (soap.register(*(f"t:a{n}" for n in range(501))), REJECTED, "500"),
        (soap.register("t:a//"), EXPRESSION, ""),
        (soap.register("u:a"), EXPRESSION, "u"),
        (soap.register("t:a", dialect="Other"), EXPRESSION, "Other"),
        (soap.register(ends="PT1H"), TIME, "duration"),
        (soap.register(ends="2025-01-01T00:00:00Z"), TIME, "future"),
        (soap.register(ends="soon"), TIME, "soon"),
    ],
)
def test_refused_registrations(parts: GatewayParts, body: str, fault: str, words: str) -> None:
    answer = parts.post(soap.envelope(body))
    assert (answer.status, answer.fault) == (500, fault)
    assert words in answer.reason
    assert parts.control.records == []


def test_limits_of_registrations() -> None:
    fixed = GatewayParts(topics=TopicSettings(fixed=True))
    assert fixed.post(soap.envelope(soap.register("t:a"))).fault == "TopicNotSupportedFault"
    assert fixed.control.records == []
    parts = GatewayParts(GatewaySettings(registrations=1))
    path = registered(parts)
    assert parts.post(soap.envelope(soap.register())).fault == REJECTED
    assert len(parts.registrations) == 1
    parts.post(destroy(), path)
    assert registered(parts) != path


def test_the_end_of_a_registration(parts: GatewayParts) -> None:
    path = registered(parts)
    identifier = only(parts).id
    assert parts.post(destroy()).fault == "ResourceUnknownFault", "at the broker an address is required"
    answer = parts.post(destroy(), path)
    assert answer.root.find(f".//{{{soap.WSN_BR}}}DestroyRegistrationResponse") is not None
    assert parts.control.records[1:] == [
        RegistrationEnded(identifier, "destroyed", 1_767_225_600_000),
        Tombstone(f"pub:{identifier}"),
    ]
    assert parts.post(destroy(), path).fault == "ResourceUnknownFault"
    path = registered(parts)
    assert parts.post(destroy(f"<wsa:Address>http://proxy{path}</wsa:Address>")).status == 200
    parts.post(soap.envelope(soap.subscribe()))
    subscription = only_subscription(parts)
    assert parts.post(destroy(), f"/wsn/registrations/{subscription.id}").fault == "ResourceUnknownFault"
    assert only_subscription(parts) == subscription
    path = registered(parts, ends="2026-01-01T00:01:00Z")
    registered(parts)
    asyncio.run(end_expired_registrations(parts.gateway))
    assert len(parts.registrations) == 2
    parts.later(seconds=60)
    assert parts.post(destroy(), path).fault == "ResourceUnknownFault"
    asyncio.run(end_expired_registrations(parts.gateway))
    assert only(parts).terminates_ms is None
    ended = parts.control.records[-2]
    assert isinstance(ended, RegistrationEnded)
    assert ended.reason == "expired"


def test_the_log_is_read_before_a_registration_is_found(parts: GatewayParts, monkeypatch: pytest.MonkeyPatch) -> None:
    path, record = registered(parts), RegistrationRecord(only(parts))
    parts.registrations.apply(Tombstone(f"pub:{record.registration.id}"))  # as if of another gateway, and not read yet

    async def read() -> None:
        parts.registrations.apply(record)

    monkeypatch.setattr(parts.control, "catch_up", read)
    assert parts.post(destroy(f"<wsa:Address>http://proxy{path}</wsa:Address>")).status == 200


@pytest.mark.parametrize("reference", ["ProducerReference", "SubscriptionReference"])
def test_a_registered_publisher_is_recognized_by_its_reference(reference: str) -> None:
    parts = GatewayParts(REQUIRED)
    registered(parts, "t:a//.", publisher="http://p/")
    good = message("t:a/b", **{reference: "http://p/"})
    assert [notify(parts, good).status, notify(parts, good, good).status] == [202, 202]
    assert notify(parts, message("t:a/b", **{reference: "http://q/"})).fault == "Client"
    answer = notify(parts, good, message("t:b", **{reference: "http://p/"}))
    assert (answer.fault, "{urn:t}b" in answer.reason) == ("Client", True)
    assert len(parts.notifications.accepted) == 3


def test_a_registered_publisher_is_recognized_by_its_address() -> None:
    parts = GatewayParts(REQUIRED)
    answer = parts.post(soap.envelope(soap.register("t:a", ends="2026-01-01T00:01:00Z")))
    assert address(answer, "ConsumerReference") == address(answer, "PublisherRegistrationReference")
    path = path_of(answer)
    assert notify(parts, soap.message("t:a"), path=path).status == 202
    assert notify(parts, soap.message("t:b"), path=path).fault == "Client"
    parts.later(seconds=60)
    assert notify(parts, soap.message("t:a"), path=path).fault == "ResourceUnknownFault"
    assert len(parts.notifications.accepted) == 1
    # Also with the older envelope.
    path, body = registered(parts, "all//."), legacy.wsn_process(legacy.notify("all:alarm", "<x/>"))
    assert parts.post(body, "/wsnprocess").fault == "Client"
    assert parts.post(body, path).text("WsnProcessResponse") == "success!"
