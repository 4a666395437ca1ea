"""Records of the notifications log, replays, and types of messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from arborcast.core.errors import RecordVersionError
from arborcast.topic_model.message_types import MAX_LENGTH, read_type, root_type
from arborcast.topic_model.records.notifications import Notification, encode, notification_in, replayed, type_of
from arborcast.topic_model.topics import TopicPath

ONE = Notification("id", TopicPath("{urn:t}a"), b"<n/>", 1, b"<p/>", "urn:uuid:1", "pub", priority=5)
STORED = encode(ONE)[1]


@pytest.mark.parametrize(("value", "found"), [(STORED, ONE), *dict.fromkeys((None, b"", b"\xc1", STORED[:-1])).items()])
def test_a_damaged_record_is_read_as_none(value: bytes | None, found: Notification | None) -> None:
    assert notification_in(SimpleNamespace(value=value)) == found


def test_a_record_of_a_newer_version_is_not_skipped() -> None:
    newer: Any = SimpleNamespace(value=msgspec.msgpack.encode({"v": 99, "notification": "in another form"}))
    with pytest.raises(RecordVersionError, match="version 99"):
        notification_in(newer)


def test_a_replay_is_another_notification_of_the_same_content() -> None:
    again = replayed(msgspec.structs.replace(ONE, request=b"fingerprint", request_size=4), "r1", "sub", 99, 7)
    assert again == msgspec.structs.replace(
        again, topic=ONE.topic, payload=b"<n/>", producer=b"<p/>", message_id="urn:uuid:1", priority=5
    )
    assert (again.id, again.original_id, again.replay, again.only, again.accepted_ms) == (
        "id~r1",
        "id",
        "r1",
        "sub",
        99,
    )
    assert (again.request, again.request_size) == (b"", 1), "not part of a publisher's request"
    assert ONE.original_id == "id"
    assert replayed(again, "r2", "sub", 100, 7).id == "id~r2"


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        (b"<reading/>", "reading"),
        (b"<p:reading xmlns:p='urn:plant' xmlns='urn:other'>4</p:reading>", "{urn:plant}reading"),
        (b"<reading xmlns='urn:a&amp;b' a='>'><x/></reading>", "{urn:a&b}reading"),
        ("<m:\u00e9 xmlns:m='urn:\u00e9'/>".encode(), "{urn:\u00e9}\u00e9"),
        (b"<reading><broken", "reading"),
        (b"", ""),
        (b"no XML", ""),
    ],
)
def test_the_type_of_a_payload_element(payload: bytes, found: str) -> None:
    assert root_type(payload) == found
    assert type_of(Notification("n", TopicPath("a"), payload, 1)) == found
    assert type_of(Notification("n", TopicPath("a"), payload, 1, type="{urn:x}said")) == "{urn:x}said"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("p:reading", "{urn:plant}reading"),
        ("{urn:plant}reading", "{urn:plant}reading"),
        ("reading", "{urn:default}reading"),
        ("{}reading", "reading"),
    ],
)
def test_the_notation_of_a_type(text: str, meant: str) -> None:
    assert read_type(text, {"p": "urn:plant", None: "urn:default"}) == meant
    assert read_type("reading", {}) == "reading"


@pytest.mark.parametrize(
    "text", ["", "q:reading", "4", "a b", "{urn:x}", "{urn: x}a", "p:", ":a", "a" * (MAX_LENGTH + 1), "l:reading"]
)
def test_texts_that_are_no_type(text: str) -> None:
    with pytest.raises(ValueError, match=r"QName|declared|longer"):
        read_type(text, {"p": "urn:plant", "l": "urn:" + "p" * MAX_LENGTH})
