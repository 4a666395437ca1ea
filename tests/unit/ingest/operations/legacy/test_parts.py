"""Messages that come in parts: put together once, whichever gateway does it, or given up and told."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.ingest.operations.legacy import parts as legacy_parts
from arborcast.ingest.settings import FragmentSettings, GatewaySettings, TopicSettings
from arborcast.topic_model.legacy_content import unwrap
from arborcast.topic_model.records.fragments import Assembled, GivenUp, StoredPart
from tests.support import legacy_messages as legacy
from tests.support.gateway_parts import GatewayParts, HttpAnswer

CONTENT = "<alarm>" + "".join(f"<n v='{number}'>R&amp;D é告</n>" for number in range(8)) + "</alarm>"


def send(parts: GatewayParts, text: str) -> HttpAnswer:
    return parts.post(legacy.wsn_process(text), "/wsnprocess/", Content_Type="text/xml")


def taken(parts: GatewayParts, *texts: str) -> None:
    for text in texts:
        answer = send(parts, text)
        assert answer.status == 200, answer.body
        assert answer.text("WsnProcessResponse") == "success!"


def refused(parts: GatewayParts, text: str, says: str, fault: str = "Client") -> None:
    before = len(parts.parts.records)
    answer = send(parts, text)
    assert answer.status == 500
    assert (answer.fault, says in answer.reason) == (fault, True), answer.reason
    assert not any(isinstance(each, StoredPart) for each in parts.parts.records[before:]), "nothing is stored"


def stored(parts: GatewayParts) -> list[bytes]:
    return [each.payload for each in parts.notifications.accepted]


def look(parts: GatewayParts) -> None:
    asyncio.run(legacy_parts.look_after(parts.gateway))


def given_up(parts: GatewayParts) -> list[GivenUp]:
    return [each for each in parts.parts.records if isinstance(each, GivenUp)]


@pytest.mark.parametrize("size", [2, 7, 50, 150, 400])
def test_parts_in_any_order_and_repeated_make_the_message_once(size: int) -> None:
    """Cut anywhere between characters: in a tag, in a reference."""
    parts = GatewayParts()
    texts = legacy.in_parts("all:alarm", CONTENT, size)
    random.Random(size).shuffle(texts)
    for number, text in enumerate(texts):
        taken(parts, text)
        taken(parts, texts[number // 2])
    assert stored(parts) == [CONTENT.encode()]
    (message,) = parts.notifications.accepted
    assert (message.topic, message.type, message.package) == ("all/alarm", "alarm", "")
    assert isinstance(parts.parts.records[-1], Assembled)
    assert (len(parts.parts.messages.open), parts.parts.messages.bytes) == (0, 0)
    taken(parts, *texts)
    assert stored(parts) == [CONTENT.encode()], "what is repeated when all is over begins nothing new"
    assert not parts.parts.messages.open


def test_content_that_is_no_element_is_joined_as_text() -> None:
    parts = GatewayParts()
    taken(parts, *legacy.in_parts("a", "1 < 2 & more ", 4))
    assert [unwrap(each) for each in stored(parts)] == [b"1 &lt; 2 &amp; more"]


def test_prefixes_declared_around_the_parts_are_those_of_the_message() -> None:
    parts = GatewayParts()
    for text in legacy.in_parts("a", "<o:a><o:b/></o:a>", 6):
        taken(parts, text.replace("xmlns:wsnt", 'xmlns:o="urn:o" xmlns:wsnt'))
    assert stored(parts) == [b'<o:a xmlns:o="urn:o"><o:b/></o:a>']


def test_parts_as_elements() -> None:
    parts = GatewayParts()
    for text in legacy.in_parts("a", "tea &amp; cake", 10):
        body = f'<o:WsnProcess xmlns:o="{legacy.SERVICE}">{text}</o:WsnProcess>'
        envelope = (
            f'<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body>{body}</s:Body></s:Envelope>'
        )
        assert parts.post(envelope.encode(), "/wsnprocess").status == 200
    assert [unwrap(each) for each in stored(parts)] == [b"tea &amp; cake"]


def test_the_id_is_the_same_whoever_assembles_and_sorts_by_time() -> None:
    ids = []
    for _ in range(2):
        parts = GatewayParts()
        taken(parts, *legacy.in_parts("a", CONTENT, 100))
        taken(parts, legacy.notify("a", "<x/>"))
        first, second = parts.notifications.accepted
        ids.append(first.id)
        assert (len(first.id), first.id[12], first.id[16] in "89ab") == (32, "7", True)
        assert first.id < second.id, "made by a clock that stands in 2026"
    assert ids[0] == ids[1]


def test_parts_that_may_be_delivered_alone_are_notifications_at_once() -> None:
    parts = GatewayParts()
    texts = legacy.in_parts("a", "<a>cut off</a>", 5, alone=True, identification="me:7")
    taken(parts, *texts)
    assert "".join(unwrap(each).decode() for each in stored(parts)).count("&lt;") == 2
    assert [each.package for each in parts.notifications.accepted] == ["1-1-1-0 me:7", "1-1-1-1 me:7", "1-0-1-2 me:7"]
    assert not parts.parts.records


def test_the_same_is_a_new_message_after_a_while() -> None:
    parts = GatewayParts()
    texts = legacy.in_parts("a", "<same/>", 4)
    taken(parts, *texts)
    parts.later(minutes=3)
    taken(parts, *texts)
    assert stored(parts) == [b"<same/>"] * 2


@pytest.mark.parametrize(
    ("before", "part", "says"),
    [
        (["1-0-0-2"], "1-0-0-3", "part 2 was the last one"),
        (["1-0-0-2"], "1-1-0-3", "part 2 was the last one"),
        (["1-0-0-2"], "1-0-0-1", "part 2 was the last one"),
        (["1-1-0-5"], "1-0-0-3", "part 5 came before"),
        (["1-0-0-2"], "1-1-0-2", "part 2 came before, as the last one"),
        (["1-1-0-0"], "1-1-1-1", "may not be delivered alone"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(before: list[str], part: str, says: str) -> None:
    parts = GatewayParts()
    for fragment in before:
        taken(parts, legacy.notify("a", "same", fragment))
    refused(parts, legacy.notify("a", "same", part), says)
    assert not parts.notifications.accepted


def test_a_topic_that_there_may_not_be_is_refused_with_the_first_part() -> None:
    parts = GatewayParts(topics=TopicSettings(fixed=True))
    refused(parts, legacy.notify("a", "x", "1-1-0-0"), "topic set is fixed", "TopicNotSupportedFault")


def test_a_client_may_have_so_many_open_messages() -> None:
    parts = GatewayParts(fragments=FragmentSettings(open=2))
    taken(parts, *(legacy.notify("a", "x", "1-1-0-0", name) for name in ("i:1", "i:2", "i:2")))
    refused(parts, legacy.notify("a", "x", "1-1-0-0", "i:3"), "fragments.open is 2")
    taken(parts, legacy.notify("a", "y", "1-0-0-1", "i:1"), legacy.notify("a", "x", "1-1-0-0", "i:3"))


@pytest.mark.parametrize(
    ("fragments", "names"),
    [(FragmentSettings(max_bytes=2_000), "fragments.max_bytes is 2000"), (None, "gateway.max_body_bytes is 2048")],
)
def test_a_message_that_gets_too_large_is_given_up(fragments: FragmentSettings | None, names: str) -> None:
    parts = GatewayParts(GatewaySettings(max_body_bytes=2_048), fragments=fragments)
    taken(parts, *(legacy.notify("a", "x" * 600, f"1-1-0-{number}") for number in range(3)))
    refused(parts, legacy.notify("a", "x" * 600, "1-0-0-3"), names)
    (told,) = given_up(parts)
    assert (told.reason, told.had, told.missing, told.bytes) == ("size", "0-2", "3-", 1_800)
    assert not parts.parts.messages.open


def test_without_a_further_part_a_message_is_given_up_and_told() -> None:
    parts = GatewayParts(fragments=FragmentSettings(timeout_s=30))
    for number in (0, 1, 4, 7):
        taken(parts, legacy.notify("all:alarm", "x", f"1-1-0-{number}", "me:9"))
        parts.parts.clock += 20
        look(parts)
    assert not given_up(parts), "each part began it anew"
    parts.parts.clock += 10
    look(parts)
    (told,) = given_up(parts)
    assert (told.identification, told.topic, told.reason) == ("me:9", "all/alarm", "time")
    assert (told.had, told.missing, told.bytes) == ("0-1 4 7", "2-3 5-6 8-", 4)
    look(parts)
    assert len(given_up(parts)) == 1
    taken(parts, *(legacy.notify("all:alarm", "x", f"1-{number < 1:d}-0-{number}", "me:9") for number in range(2)))
    assert len(parts.notifications.accepted) == 1, "the publisher may begin again"


def test_one_that_lacks_parts_for_longer_than_they_are_kept_is_given_up_though_parts_come() -> None:
    parts = GatewayParts()
    taken(parts, legacy.notify("a", "x", "1-1-0-0"))
    parts.later(minutes=51)
    taken(parts, legacy.notify("a", "x", "1-1-0-2"))
    look(parts)
    assert [each.reason for each in given_up(parts)] == ["time"]


def test_who_dies_before_assembling_has_it_done_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = GatewayParts()
    real = legacy_parts.assemble

    async def dies(*_: Any) -> None:
        raise InfrastructureError("the gateway stops", 1)

    monkeypatch.setattr(legacy_parts, "assemble", dies)
    texts = legacy.in_parts("a", CONTENT, 100)
    taken(parts, *texts[:-1])
    at = parts.now
    assert send(parts, texts[-1]).status == 503
    monkeypatch.setattr(legacy_parts, "assemble", real)
    parts.later(seconds=4)
    parts.parts.clock += 4
    look(parts)
    assert not stored(parts), "it is left to who has completed it"
    parts.parts.clock += 1
    look(parts)
    look(parts)
    assert stored(parts) == [CONTENT.encode()]
    assert parts.notifications.accepted[0].accepted_ms == at.timestamp() * 1000, "the age counts from the last part"


def test_when_the_whole_cannot_be_stored_a_repeated_part_has_it_done() -> None:
    parts = GatewayParts()
    texts = legacy.in_parts("a", CONTENT, 100)
    taken(parts, *texts[:-1])
    parts.notifications.error = InfrastructureError("Kafka is away", 1)
    assert send(parts, texts[-1]).status == 503
    parts.notifications.error = None
    taken(parts, texts[0])
    assert stored(parts) == [CONTENT.encode()]


def test_what_cannot_be_stored_for_as_long_as_it_is_kept_is_given_up() -> None:
    parts = GatewayParts()
    parts.notifications.error = InfrastructureError("Kafka is away", 1)
    for text in legacy.in_parts("a", CONTENT, 100):
        send(parts, text)
    parts.later(minutes=49)
    parts.parts.clock += 49 * 60
    look(parts)
    assert len(parts.parts.messages.complete) == 1, "it is tried again and again"
    parts.later(minutes=2)
    look(parts)
    assert [each.reason for each in given_up(parts)] == ["lost"]
    assert not parts.parts.messages.complete


def test_what_is_stored_by_one_that_dies_before_it_says_so_has_the_same_id(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = GatewayParts()
    texts = legacy.in_parts("a", CONTENT, 100)
    taken(parts, *texts[:-1])
    commit = parts.parts.commit

    async def dies(records: Any) -> int:
        if isinstance(records[0], Assembled):
            raise InfrastructureError("the gateway stops", 1)
        return await commit(records)

    monkeypatch.setattr(parts.parts, "commit", dies)
    assert send(parts, texts[-1]).status == 503
    monkeypatch.setattr(parts.parts, "commit", commit)
    parts.parts.clock += 5
    look(parts)
    first, second = parts.notifications.accepted
    assert (first.id, first.payload) == (second.id, second.payload)


def test_a_whole_that_is_not_taken_is_told_to_who_sent_the_last_part_and_given_up() -> None:
    parts = GatewayParts(GatewaySettings(max_elements=1_000))
    texts = legacy.in_parts("a", "<r>" + "<x/>" * 1_100 + "</r>", 900)
    taken(parts, *texts[:-1])
    answer = send(parts, texts[-1])
    assert (answer.status >= 400, "elements" in answer.reason) == (True, True)
    (told,) = given_up(parts)
    assert (told.reason, told.missing, "elements" in told.detail) == ("content", "", True)
    look(parts)
    assert not stored(parts)


def test_a_message_of_which_parts_are_no_longer_in_the_log_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = GatewayParts()

    async def half(message: Any) -> list[StoredPart]:
        return [each for each in parts.parts.records[:1] if isinstance(each, StoredPart)]

    monkeypatch.setattr(parts.parts, "parts", half)
    texts = legacy.in_parts("a", "<x/>", 2)
    taken(parts, texts[0])
    assert "not in the log any more" in send(parts, texts[1]).reason
    assert [each.reason for each in given_up(parts)] == ["lost"]
