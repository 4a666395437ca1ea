"""Messages in parts: assembled once, by any gateway, or given up with a record."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.ingest.operations.legacy import parts as legacy_parts
from arborcast.ingest.settings import FragmentSettings, GatewaySettings, TopicSettings
from arborcast.topic_model.legacy_content import unwrap
from arborcast.topic_model.records.fragments import Assembled, GivenUp, StoredPart
from arborcast.wire import limits
from tests.support import legacy_messages as legacy
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer

CONTENT = "<alarm>" + "".join(f"<n v='{number}'>R&amp;D é告</n>" for number in range(8)) + "</alarm>"
TEXTS = legacy.in_parts("a", CONTENT, 100)
AWAY = InfrastructureError("Kafka is unavailable", 1)


def send(parts: GatewayParts, text: str) -> HttpAnswer:
    return parts.post(legacy.wsn_process(text), "/wsnprocess/", Content_Type="text/xml")


def taken(parts: GatewayParts, *texts: str) -> None:
    for text in texts:
        answer = send(parts, text)
        assert answer.status == 200, answer.body
        assert answer.text("WsnProcessResponse") == "success!"


def refused(parts: GatewayParts, text: str, words: str, fault: str = "Client") -> None:
    before = len(parts.parts.records)
    answer = send(parts, text)
    assert (answer.status, answer.fault, words in answer.reason) == (500, fault, True), answer.reason
    assert not any(isinstance(each, StoredPart) for each in parts.parts.records[before:]), "nothing is stored"


def stored(parts: GatewayParts) -> list[bytes]:
    return [each.payload for each in parts.notifications.accepted]


def look(parts: GatewayParts, after_s: float = 0) -> None:
    """The duty of the gateway with the lease, after this time."""
    parts.parts.clock += after_s
    parts.later(seconds=after_s)
    asyncio.run(legacy_parts.maintain(parts.gateway))


def given_up(parts: GatewayParts) -> list[GivenUp]:
    return [each for each in parts.parts.records if isinstance(each, GivenUp)]


@pytest.mark.parametrize("size", [2, 7, 50, 150, 400])
def test_parts_in_any_order_and_repeated(parts: GatewayParts, size: int) -> None:
    """Split between any characters: also in a tag or a reference."""
    texts = legacy.in_parts("all:alarm", CONTENT, size)
    random.Random(size).shuffle(texts)
    for number, text in enumerate(texts):
        taken(parts, text, texts[number // 2])
    assert stored(parts) == [CONTENT.encode()]
    (message,) = parts.notifications.accepted
    assert (message.topic, message.type, message.package) == ("all/alarm", "alarm", "")
    assert isinstance(parts.parts.records[-1], Assembled)
    taken(parts, *texts)
    assert stored(parts) == [CONTENT.encode()], "repetitions are ignored"
    assert (len(parts.parts.messages.open), parts.parts.messages.bytes) == (0, 0)
    parts.later(minutes=3)
    taken(parts, *texts)
    assert stored(parts) == [CONTENT.encode()] * 2, "later it is a new message"


def test_text_prefixes_and_parts_as_elements(parts: GatewayParts) -> None:
    taken(parts, *legacy.in_parts("a", "1 < 2 & more ", 4))
    for text in legacy.in_parts("b", "<o:a><o:b/></o:a>", 6, identification="i:2"):
        taken(parts, text.replace("xmlns:wsnt", 'xmlns:o="urn:o" xmlns:wsnt'))
    for text in legacy.in_parts("c", "tea &amp; cake", 10, identification="i:3"):
        body = soap.envelope(f'<o:WsnProcess xmlns:o="{legacy.SERVICE}">{text}</o:WsnProcess>')
        assert parts.post(body, "/wsnprocess").status == 200
    loose, element, other = stored(parts)
    assert (unwrap(loose), unwrap(other)) == (b"1 &lt; 2 &amp; more", b"tea &amp; cake")
    assert element == b'<o:a xmlns:o="urn:o"><o:b/></o:a>'


def test_namespaces_of_parts_are_bounded_and_those_of_the_first_are_stored(parts: GatewayParts) -> None:
    """Otherwise parts without content would fill the memory of the gateway that joins them, and of the next one."""

    def declaring(text: str, uri: str) -> str:
        return text.replace("<wsnt:Message>", f'<wsnt:Message xmlns:o="{uri}">')

    first, second = legacy.in_parts("a", "<o:a><o:b/></o:a>", 9)
    large = "x" * limits.AROUND_BYTES
    answer = send(parts, declaring(first, large))
    assert (answer.status, "namespaces declared around a message are too large" in answer.reason) == (413, True)
    taken(parts, declaring(first, "urn:1"), declaring(second, "urn:2"))
    kept = [each.namespaces for each in parts.parts.records if isinstance(each, StoredPart)]
    assert (kept[0]["o"], kept[1]) == ("urn:1", {})
    assert b'xmlns:o="urn:1"' in stored(parts)[0]


def test_ids_are_deterministic_and_sort_by_time() -> None:
    ids = []
    for _ in range(2):
        parts = GatewayParts()
        taken(parts, *TEXTS, legacy.notify("a", "<x/>"))
        first, second = parts.notifications.accepted
        ids.append(first.id)
        assert (len(first.id), first.id[12], first.id[16] in "89ab") == (32, "7", True)
        assert first.id < second.id, "the clock of the test is in 2026"
    assert ids[0] == ids[1]


def test_parts_that_may_be_delivered_alone_are_notifications(parts: GatewayParts) -> None:
    taken(parts, *legacy.in_parts("a", "<a>cut off</a>", 5, alone=True, identification="me:7"))
    assert "".join(unwrap(each).decode() for each in stored(parts)).count("&lt;") == 2
    assert [each.package for each in parts.notifications.accepted] == ["1-1-1-0 me:7", "1-1-1-1 me:7", "1-0-1-2 me:7"]
    assert not parts.parts.records


@pytest.mark.parametrize(
    ("before", "part", "words"),
    [
        *(("1-0-0-2", part, "part 2 was the last one") for part in ("1-0-0-3", "1-1-0-3", "1-0-0-1")),
        ("1-1-0-5", "1-0-0-3", "part 5 arrived before"),
        ("1-0-0-2", "1-1-0-2", "part 2 arrived before, as the last one"),
        ("1-1-0-0", "1-1-1-1", "may not be delivered alone"),
    ],
)
def test_contradictory_parts(parts: GatewayParts, before: str, part: str, words: str) -> None:
    taken(parts, legacy.notify("a", "same", before))
    refused(parts, legacy.notify("a", "same", part), words)
    assert not parts.notifications.accepted


def test_fixed_topics_and_the_number_of_open_messages() -> None:
    parts = GatewayParts(topics=TopicSettings(fixed=True))
    refused(parts, legacy.notify("a", "x", "1-1-0-0"), "topic set is fixed", "TopicNotSupportedFault")
    parts = GatewayParts(fragments=FragmentSettings(open=2))
    taken(parts, *(legacy.notify("a", "x", "1-1-0-0", name) for name in ("i:1", "i:2", "i:2")))
    refused(parts, legacy.notify("a", "x", "1-1-0-0", "i:3"), "fragments.open is 2")
    taken(parts, legacy.notify("a", "y", "1-0-0-1", "i:1"), legacy.notify("a", "x", "1-1-0-0", "i:3"))


@pytest.mark.parametrize(("max_bytes", "names"), [(2_000, "fragments.max_bytes"), (0, "gateway.max_body_bytes")])
def test_too_large_messages_are_given_up(max_bytes: int, names: str) -> None:
    parts = GatewayParts(GatewaySettings(max_body_bytes=2_048), fragments=FragmentSettings(max_bytes=max_bytes))
    taken(parts, *(legacy.notify("a", "x" * 600, f"1-1-0-{number}") for number in range(3)))
    refused(parts, legacy.notify("a", "x" * 600, "1-0-0-3"), f"{names} is 20")
    (record,) = given_up(parts)
    assert (record.reason, record.had, record.missing, record.bytes) == ("size", "0-2", "3-", 1_800)
    assert not parts.parts.messages.open


def test_messages_that_lack_parts_are_given_up() -> None:
    parts = GatewayParts(fragments=FragmentSettings(timeout_s=30))
    for number in (0, 1, 4, 7):
        taken(parts, legacy.notify("all:alarm", "x", f"1-1-0-{number}", "me:9"))
        look(parts, after_s=20)
    assert not given_up(parts), "each part restarts the time-out"
    look(parts, after_s=10)
    (record,) = given_up(parts)
    assert (record.identification, record.topic, record.reason) == ("me:9", "all/alarm", "time")
    assert (record.had, record.missing, record.bytes) == ("0-1 4 7", "2-3 5-6 8-", 4)
    look(parts)
    assert len(given_up(parts)) == 1
    taken(parts, *(legacy.notify("all:alarm", "x", f"1-{number < 1:d}-0-{number}", "me:9") for number in range(2)))
    assert len(parts.notifications.accepted) == 1, "the publisher may repeat the message"
    # Parts are kept for an hour: an older message is given up, though parts arrive.
    taken(parts, legacy.notify("a", "x", "1-1-0-0"))
    parts.later(minutes=51)
    taken(parts, legacy.notify("a", "x", "1-1-0-2"))
    look(parts)
    assert [each.reason for each in given_up(parts)] == ["time", "time"]


def test_another_gateway_assembles_after_a_crash(parts: GatewayParts, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: Any) -> None:
        raise AWAY

    taken(parts, *TEXTS[:-1])
    at = parts.now
    with monkeypatch.context() as patch:
        patch.setattr(legacy_parts, "assemble", fails)
        assert send(parts, TEXTS[-1]).status == 503
    look(parts, after_s=4)
    assert not stored(parts), "left to the gateway with the last part"
    look(parts, after_s=1)
    look(parts)
    assert stored(parts) == [CONTENT.encode()]
    assert parts.notifications.accepted[0].accepted_ms == at.timestamp() * 1000, "accepted with the last part"


def test_the_id_after_a_crash_before_the_record(parts: GatewayParts, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = parts.parts.commit

    async def fails(records: Sequence[Any]) -> int:
        if isinstance(records[0], Assembled):
            raise AWAY
        return await commit(records)

    taken(parts, *TEXTS[:-1])
    with monkeypatch.context() as patch:
        patch.setattr(parts.parts, "commit", fails)
        assert send(parts, TEXTS[-1]).status == 503
    look(parts, after_s=5)
    first, second = parts.notifications.accepted
    assert (first.id, first.payload) == (second.id, second.payload)


def test_storing_is_repeated_until_parts_are_lost(parts: GatewayParts) -> None:
    parts.notifications.error = AWAY
    taken(parts, *TEXTS[:-1])
    assert send(parts, TEXTS[-1]).status == 503
    parts.notifications.error = None
    taken(parts, TEXTS[0])
    assert stored(parts) == [CONTENT.encode()], "after a repeated part"
    parts.notifications.error = AWAY
    for text in legacy.in_parts("a", CONTENT, 100, identification="i:2"):
        send(parts, text)
    look(parts, after_s=49 * 60)
    assert len(parts.parts.messages.complete) == 1
    look(parts, after_s=2 * 60)
    assert [each.reason for each in given_up(parts)] == ["lost"]
    assert not parts.parts.messages.complete


def test_an_invalid_assembled_message_is_given_up() -> None:
    parts = GatewayParts(GatewaySettings(max_elements=1_000))
    texts = legacy.in_parts("a", "<r>" + "<x/>" * 1_100 + "</r>", 900)
    taken(parts, *texts[:-1])
    answer = send(parts, texts[-1])
    assert (answer.status >= 400, "elements" in answer.reason) == (True, True)
    (record,) = given_up(parts)
    assert (record.reason, record.missing, "elements" in record.detail) == ("content", "", True)
    look(parts)
    assert not stored(parts)


def test_a_message_with_expired_parts_is_given_up(parts: GatewayParts, monkeypatch: pytest.MonkeyPatch) -> None:
    async def half(message: Any) -> list[StoredPart]:
        return [each for each in parts.parts.records[:1] if isinstance(each, StoredPart)]

    monkeypatch.setattr(parts.parts, "parts", half)
    texts = legacy.in_parts("a", "<x/>", 2)
    taken(parts, texts[0])
    assert "not in the log any more" in send(parts, texts[1]).reason
    assert [each.reason for each in given_up(parts)] == ["lost"]
