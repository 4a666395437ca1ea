"""p:Publication: the validity, type and priority of messages."""

from __future__ import annotations

import pytest

from arborcast.ingest.settings import TopicSettings
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.pull import StoredMessage
from tests.support import legacy_messages as legacy
from tests.support import pulling
from tests.support import soap_messages as soap
from tests.support.gateway_parts import START, GatewayParts, HttpAnswer
from tests.support.legacy_messages import wsn_process

NOW_MS = int(START.timestamp() * 1000)

POLICY = 'xmlns:p="urn:arborcast:policy"'


def publication(attributes: str) -> str:
    return f"<p:Publication {POLICY} {attributes}/>"


def notified(parts: GatewayParts, *publications: str, messages: int = 1, header: str = "") -> HttpAnswer:
    sent = [soap.message("t:a/b", f"<n>{number}</n>") for number in range(1, messages + 1)]
    return parts.post(soap.envelope(soap.notify(*sent, *publications), header=header))


def accepted(*publications: str, messages: int = 1, header: str = "") -> list[Notification]:
    parts = GatewayParts()
    answer = notified(parts, *publications, messages=messages, header=header)
    assert answer.status == 202, answer.body
    return parts.notifications.accepted


@pytest.mark.parametrize(
    ("attributes", "until_ms"),
    [
        ('ValidUntil="2026-01-01T00:00:10Z"', NOW_MS + 10_000),
        ('ValidUntil="2026-01-01T01:00:10.250+01:00"', NOW_MS + 10_250),
        ('ValidUntil="2026-01-01T00:00:10"', NOW_MS + 10_000),
        ('Lifespan="PT2S"', NOW_MS + 2_000),
        ('Lifespan="PT0.0001S"', NOW_MS + 1),
        ('Lifespan="PT2S" ValidUntil="2026-01-01T00:00:10Z"', NOW_MS + 2_000),
        ('Lifespan="PT1M" ValidUntil="2026-01-01T00:00:10Z"', NOW_MS + 10_000),
        ('ValidUntil="9999-12-31T23:59:59Z"', 0),
        ("", 0),
        # A past time is no error: the message was delayed.
        ('ValidUntil="2025-12-31T23:59:59Z"', NOW_MS - 1_000),
        ('ValidUntil="1960-01-01T00:00:00Z"', 1),
    ],
)
def test_validity_is_computed_at_acceptance(attributes: str, until_ms: int) -> None:
    (only,) = accepted(publication(attributes))
    assert only.valid_until_ms == until_ms


def test_publications_apply_to_messages_by_number() -> None:
    found = accepted(
        publication('Messages="1 3" Lifespan="PT2S" Reliable="true" Priority="-5"'),
        publication('Messages="2" Type="{urn:plant}alarm" Reliable=" 1 "'),
        publication('Messages="4" Reliable="false" Priority="5"'),
        messages=5,
    )
    assert [(each.valid_until_ms, each.type, each.reliable, each.priority) for each in found] == [
        (NOW_MS + 2_000, "n", True, -5),
        (0, "{urn:plant}alarm", True, 0),
        (NOW_MS + 2_000, "n", True, -5),
        (0, "n", False, 5),
        (0, "n", False, 0),
    ]


@pytest.mark.parametrize(("routing", "reliable"), [("reliable", True), ("x reliable y", True), ("unreliable", False)])
def test_a_topic_may_be_reliable(parts: GatewayParts, routing: str, reliable: bool) -> None:
    parts.have_topics("{urn:t}a/b", "a", routing=routing)
    assert notified(parts).status == 202
    assert parts.post(wsn_process(legacy.notify("a", "<k/>"))).status == 200
    assert parts.post(b"<k/>", "/publish/a", Content_Type="text/xml").status == 202
    assert parts.post(soap.envelope(soap.notify(soap.message("t:a/b/c")))).status == 202
    assert [each.reliable for each in parts.notifications.accepted] == [reliable] * 3 + [False]


def test_a_header_block_applies_to_requests_with_messages() -> None:
    soon_ms = NOW_MS + 2_000
    for must, until_ms in (("", soon_ms), (' s:mustUnderstand="1"', soon_ms), (' s:actor="urn:elsewhere"', 0)):
        block = f'<p:Publication {POLICY} Lifespan="PT2S" Messages="2"{must}/>'
        assert [each.valid_until_ms for each in accepted(messages=2, header=block)] == [0, until_ms]
    block = f'<p:Publication {POLICY} s:mustUnderstand="1"/>'
    answer = GatewayParts().post(soap.envelope(soap.subscribe(), header=block))
    assert "mandatory header" in answer.reason


NOTHING = "more than nothing"
WRONG = {
    "Validuntil": {"2026-01-01T00:00:10Z": "no Validuntil"},
    "priority": {"5": "no priority"},
    "Sturdy": {"true": "no Sturdy"},
    "xml:lang": {"en": "no {http://www.w3.org/XML/1998/namespace}lang"},
    "Priority": {
        "": "from -100 to 100",
        "high": "not high",
        "1.5": "not 1.5",
        "101": "not 101",
        "-101": "not -101",
        "+-1": "not +-1",
        "\u0661": "Priority is a whole number",
    },
    "Reliable": {"maybe": "Reliable is true or false, not maybe"},
    "ValidUntil": {"tomorrow": "tomorrow", "PT2S": "ValidUntil", "2026-02-31T00:00:00Z": "ValidUntil"},
    "Lifespan": {"2": "not a duration", "-PT2S": NOTHING, "PT0S": NOTHING, "P2Y": "at most a year"},
    "Type": {"q:alarm": "not declared", "": "not a QName"},
    "Messages": {
        "0": "from 1 to 2",
        "3": "from 1 to 2",
        "one": "one",
        "-1": "-1",
        " ": "no message",
        "99999999999999999999": "from 1 to 2",
        "1 1": "two p:Publication apply to message 1",
    },
}


@pytest.mark.parametrize(
    ("publications", "words"),
    [
        *((publication(f'{name}="{value}"'), words) for name, each in WRONG.items() for value, words in each.items()),
        (publication('Messages="1" Priority="1"') + publication('Messages="2" Priority="1000"'), "not 1000"),
        (publication('Messages="2"') + publication(""), "two p:Publication apply to message 2"),
        (f"<p:Publication {POLICY}>PT2S</p:Publication>", "nothing inside"),
        (f"<p:Publication {POLICY}><p:Lifespan/></p:Publication>", "nothing inside"),
    ],
)
def test_unreadable_publications(parts: GatewayParts, publications: str, words: str) -> None:
    answer = notified(parts, publications, messages=2)
    assert (answer.status, answer.fault) == (500, "Client")
    assert words in answer.reason
    assert (parts.notifications.accepted, parts.control.records) == ([], [])


def test_a_publication_inside_a_message_is_refused(parts: GatewayParts) -> None:
    message = soap.message().replace("</wsnt:NotificationMessage>", f"{publication('')}</wsnt:NotificationMessage>")
    assert 'Messages="1"' in parts.post(soap.envelope(soap.notify(message))).reason
    assert parts.notifications.accepted == []


@pytest.mark.parametrize(
    ("of_topic", "attributes", "priority"),
    [
        (0, 'Priority="5"', 5),
        (0, 'Priority=" -100 "', -100),
        (0, 'Priority="+100"', 100),
        (0, 'Lifespan="PT2S"', 0),
        (7, "", 7),
        (7, 'Lifespan="PT2S"', 7),
        (7, 'Priority="0"', 0),
        (7, 'Priority="-3"', -3),
        # Values from a directory may be out of range.
        (10**9, "", 100),
        (-(10**9), "", -100),
    ],
)
def test_priorities(parts: GatewayParts, of_topic: int, attributes: str, priority: int) -> None:
    parts.have_topics("{urn:t}a/b", retain=True, priority=of_topic)
    assert notified(parts, *[publication(attributes)] * bool(attributes)).status == 202
    assert [each.priority for each in parts.notifications.accepted] == [priority]
    assert [each.priority for each in parts.notifications.current.values()] == [priority]


def test_older_clients_and_post_publish(parts: GatewayParts) -> None:
    def publish(**headers: str) -> HttpAnswer:
        return parts.post(b"<k/>", "/publish/a", Content_Type="text/xml", **headers)

    parts.have_topics("a", priority=7)
    assert parts.post(wsn_process(legacy.notify("a", "<k/>"))).status == 200
    assert publish().status == 202
    assert publish(Arborcast_Priority="-1").status == 202
    assert [each.priority for each in parts.notifications.accepted] == [7, 7, -1]
    valid = {"Arborcast_Lifespan": "PT2S", "Arborcast_Valid_Until": "2026-01-01T00:00:10Z"}
    assert publish(Arborcast_Type="{urn:plant}reading", Arborcast_Reliable="true", **valid).status == 202
    last = parts.notifications.accepted[-1]
    assert (last.valid_until_ms, last.type, last.reliable) == (NOW_MS + 2_000, "{urn:plant}reading", True)
    for headers, name in (({"Arborcast_Priority": "101"}, b"Priority"), ({"Arborcast_Lifespan": "2"}, b"Lifespan")):
        answer = publish(**headers)
        assert (answer.status, b"the headers: " + name in answer.body) == (400, True)
    assert len(parts.notifications.accepted) == 4


def test_validity_of_messages_in_a_pull_point(parts: GatewayParts) -> None:
    point = pulling.create(parts)
    message = soap.notify(soap.message(), soap.message(), publication('Messages="2" Lifespan="PT2S"'))
    assert parts.post(soap.envelope(message), point).status == 202
    stored = [record for _, record in parts.pull_log.records if isinstance(record, StoredMessage)]
    assert [each.valid_until_ms for each in stored] == [0, NOW_MS + 2_000]


def test_types_of_topics() -> None:
    parts = GatewayParts(topics=TopicSettings(check_types=True))
    parts.have_topics("{urn:t}a/b", types=("{urn:plant}reading", "n"))
    assert notified(parts).status == 202
    answer = notified(parts, publication('Messages="2" Type="{urn:plant}alarm"'), messages=2)
    assert answer.fault == "Client"
    assert "message 2 is of the type {urn:plant}alarm" in answer.reason
    assert "{urn:plant}reading n" in answer.reason
    assert notified(parts, publication('Type="{urn:plant}reading"')).status == 202
    # A topic without types accepts all, also a new topic.
    assert parts.post(soap.envelope(soap.notify(soap.message("t:c", "<other/>")))).status == 202
    assert len(parts.notifications.accepted) == 3
