"""Pure parts of the client: encoded requests, decoded answers, repetitions, batches."""

from __future__ import annotations

import inspect
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from lxml import etree

from arborcast.client import (
    Batching,
    BrokerUnavailable,
    Client,
    ClientError,
    FaultReceived,
    FuturesClient,
    LegacyClient,
    LegacyFuturesClient,
    RemotePullPoint,
    RemoteRegistration,
    RemoteSubscription,
    Retries,
    UnreadableAnswer,
)
from arborcast.client.calls import Call, Calls, notification_message
from arborcast.client.futures import BatchAccumulator
from arborcast.client.legacy import LegacyCalls
from arborcast.client.received import (
    ReceivedMessage,
    current_message,
    messages,
    pull_point,
    read_reply,
    registration,
    subscription,
)
from arborcast.core.errors import ConfigError
from arborcast.topic_model.namespaces import WSNT
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.envelope import parse
from tests.support import soap_messages as soap

CALLS = Calls("http://b:1/")
BR = "http://docs.oasis-open.org/wsn/br-2"


def sent(call: Call[Any]) -> etree._Element:
    """The operation's element as a broker reads it."""
    body, _ = call.encode("1.1", "urn:uuid:1")
    return parse(body).operation


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://b:1", "http://b:1/wsn/NotificationBroker"),
        ("http://b:1/", "http://b:1/wsn/NotificationBroker"),
        ("http://b:1/any/where", "http://b:1/any/where"),
    ],
)
def test_address_of_the_broker(url: str, address: str) -> None:
    assert Calls(url).broker.address == address


@pytest.mark.parametrize(
    ("calls", "waiting", "futures", "other"),
    [(Calls, Client, FuturesClient, {"notify"}), (LegacyCalls, LegacyClient, LegacyFuturesClient, {"parts"})],
)
def test_all_clients_have_all_operations(calls: type, waiting: type, futures: type, other: set[str]) -> None:
    operations = {name for name in vars(calls) if not name.startswith("_")} - other
    assert {"subscribe", "create_pull_point"} <= operations
    for name in operations:
        made = inspect.signature(getattr(calls, name))
        result = made.return_annotation.removeprefix("Call[").removesuffix("]")
        assert inspect.signature(getattr(waiting, name)) == made.replace(return_annotation=result)
        assert inspect.signature(getattr(futures, name)) == made.replace(return_annotation=f"Future[{result}]")


def test_topics_are_sent_with_their_prefixes() -> None:
    message = notification_message("on:a/b", "<n/>", {"on": "urn:on", "no": "urn:no"})
    topic = etree.fromstring(f'<m xmlns:wsnt="{WSNT}">{message}</m>').find(".//{*}Topic")
    assert topic is not None
    assert (topic.text, topic.nsmap.get("on"), "no" in topic.nsmap) == ("on:a/b", "urn:on", False)


def test_registrations_end_at_a_time() -> None:
    """The schema permits no duration there."""
    call = CALLS.register_publisher(
        "a", "p:b", publisher="http://p/", demand=True, until=timedelta(hours=1), namespaces={"p": "urn:p"}
    )
    *others, end = ((etree.QName(child).localname, child.text) for child in sent(call))
    assert [name for name, _ in others] == ["PublisherReference", "Topic", "Topic", "Demand"]
    assert (others[-1][1], end[0]) == ("true", "InitialTerminationTime")
    assert timedelta(minutes=59) < datetime.fromisoformat(end[1] or "") - datetime.now(UTC) < timedelta(minutes=61)


def reply(body: str, status: int = 200, version: str = "1.1"):  # type: ignore[no-untyped-def]
    return read_reply("http://b/", status, "", "", soap.envelope(body, version))


EPR = "<wsa:Address> http://b/1 </wsa:Address><wsa:ReferenceParameters><k xmlns='urn:k'>v</k></wsa:ReferenceParameters>"
PARAMETERS = ("<k xmlns='urn:k'>v</k>",)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2029-12-31T24:00:00Z", datetime(2030, 1, 1, tzinfo=UTC)),
        ("2030-01-01T00:00:00.5+00:00", datetime(2030, 1, 1, 0, 0, 0, 500_000, UTC)),
        ("9999-12-31T24:00:00Z", None),
        ("9999-12-31T23:59:59.9999999", None),
        ("12000-01-01T00:00:00Z", None),
    ],
)
def test_termination_times_of_xml_schema(text: str, at: datetime | None) -> None:
    ends = f"<wsnt:TerminationTime>{text}</wsnt:TerminationTime>"
    body = f"<wsnt:R><wsnt:SubscriptionReference>{EPR}</wsnt:SubscriptionReference>{ends}</wsnt:R>"
    assert subscription(reply(body)).terminates == at


def test_references_are_kept_unchanged() -> None:
    ends = "<wsnt:TerminationTime>2030-01-01T00:00:00Z</wsnt:TerminationTime>"
    body = f"<wsnt:R><wsnt:SubscriptionReference>{EPR}</wsnt:SubscriptionReference>{ends}</wsnt:R>"
    assert subscription(reply(body)) == RemoteSubscription("http://b/1", PARAMETERS, datetime(2030, 1, 1, tzinfo=UTC))
    point = f"<wsnt:R><wsnt:PullPoint>{EPR}</wsnt:PullPoint></wsnt:R>"
    assert pull_point(reply(point)) == RemotePullPoint("http://b/1", PARAMETERS)
    body = f'<b:R xmlns:b="{BR}"><b:PublisherRegistrationReference>{EPR}</b:PublisherRegistrationReference>'
    body += "<b:ConsumerReference><wsa:Address>http://b/c</wsa:Address></b:ConsumerReference></b:R>"
    assert registration(reply(body)) == RemoteRegistration("http://b/1", PARAMETERS, "http://b/c")


def test_messages_of_a_pull_point_and_the_current_one() -> None:
    body = f"<wsnt:R>{soap.message(payload='<a/>')}<x/>{soap.message('t:c')}</wsnt:R>"
    for version in ("1.1", "1.2"):
        assert messages(reply(body, version=version)) == [
            ReceivedMessage(b"<a/>", TopicPath("{urn:t}a/b")),
            ReceivedMessage(b'<o:order xmlns:o="urn:o">1</o:order>', TopicPath("{urn:t}c")),
        ]
    assert current_message(reply('<wsnt:R xmlns:o="urn:o"><o:n>1</o:n></wsnt:R>')) == b'<o:n xmlns:o="urn:o">1</o:n>'


FAULT = "<s:Fault><faultcode>s:Client</faultcode><faultstring>why</faultstring></s:Fault>"


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (soap.envelope("<wsnt:SubscribeResponse/>"), UnreadableAnswer, "."),
        (soap.envelope("<wsnt:R><wsnt:SubscriptionReference/></wsnt:R>"), UnreadableAnswer, "."),
        (b"<p>welcome", UnreadableAnswer, "welcome"),
        (soap.envelope(FAULT), FaultReceived, "why"),
    ],
)
def test_an_unreadable_answer_is_an_error(answer: bytes, error: type[ClientError], words: str) -> None:
    with pytest.raises(error, match=words):
        subscription(read_reply("http://b/", 200, "", "text/html", answer))


@pytest.mark.parametrize(
    ("header", "seconds"), [("4", 4), *dict.fromkeys(["", "soon", "-1", "1.5", "\u0664", "\xb2"]).items()]
)
def test_retry_after_of_a_503(header: str, seconds: int | None) -> None:
    with pytest.raises(BrokerUnavailable) as caught:
        read_reply("http://b/", 503, header, "text/html", b"<p>busy")
    assert caught.value.retry_after == seconds


def test_pauses_between_repetitions() -> None:
    pauses: list[float] = []
    while (pause := Retries().pause_after(len(pauses) + 1)) is not None:
        pauses.append(pause)
    assert 30 <= sum(pauses) < 60, "longer than the restart of a gateway"
    retries = Retries(attempts=3, first_s=1, longest_s=5)
    assert [retries.pause_after(1, 3), retries.pause_after(2, 1), retries.pause_after(1, 6)] == [3, 2, None]
    for wrong in (lambda: Retries(attempts=0), lambda: Retries(first_s=9), lambda: Batching(messages=0)):
        with pytest.raises(ConfigError):
            wrong()


def test_batches_by_number_size_and_time() -> None:
    accumulator = BatchAccumulator(Batching(messages=2, bytes=10, linger_s=1))

    def add(message: str, now: float) -> list[list[str]]:
        return [each.messages for each in accumulator.add(message, Future(), now)]

    def due() -> float | None:
        return accumulator.due

    assert due() is None
    assert (add("a", 5.0), due()) == ([], 6.0)
    assert (add("b", 5.5), due()) == ([["a", "b"]], None)
    assert add("1234567", 7.0) == []
    assert add("12345", 7.0) == [["1234567"]], "too large together"
    assert [each.messages for each in accumulator.take()] == [["12345"]]
    (large,) = accumulator.add("x" * 11, Future(), 8.0)
    assert large.size == 11
    assert accumulator.take() == []


def test_types_are_written_with_their_namespaces() -> None:
    call = CALLS.subscribe("a", to="http://h/", types=["p:reading", "{urn:x}alarm", "plain"], namespaces={"p": "urn:p"})
    assert sent(call).findtext(".//{urn:arborcast:policy}MessageType") == "{urn:p}reading {urn:x}alarm {}plain"
    assert len(sent(CALLS.subscribe(None, to="http://h/", types=["plain"])).findall(f"{{{WSNT}}}Filter")) == 1
    assert sent(CALLS.subscribe(None, to="http://h/")).find(f"{{{WSNT}}}Filter") is None
    with pytest.raises(ClientError, match="not declared"):
        CALLS.subscribe("a", to="http://h/", types=["q:reading"])


@pytest.mark.parametrize(
    ("lasts", "written"),
    [
        (3600, "PT3600.000S"),
        (0.5, "PT0.500S"),
        ("PT1H", "PT1H"),
        (timedelta(minutes=1), "PT60.000S"),
        (datetime(2030, 1, 31, 12, tzinfo=UTC), "2030-01-31T12:00:00Z"),
        *dict.fromkeys((True, float("inf"), b"PT1H", (1,))).items(),
    ],
)
def test_lasts_is_a_duration_seconds_a_time_or_iso_8601(lasts: Any, written: str | None) -> None:
    if written is None:
        with pytest.raises(TypeError, match="lasts must be a timedelta, a number of seconds"):
            CALLS.subscribe("a/b", to="http://h/", lasts=lasts)
        return
    subscribed = sent(CALLS.subscribe("a/b", to="http://h/", lasts=lasts))
    assert subscribed.findtext(f"{{{WSNT}}}InitialTerminationTime") == written
    assert sent(CALLS.renew("http://b:1/s", lasts)).findtext(f"{{{WSNT}}}TerminationTime") == written
