"""The type of a message: of its payload's element, or as somebody writes it."""

from __future__ import annotations

import pytest

from arborcast.topic_model.message_types import MAX_LENGTH, read_type, root_type
from arborcast.topic_model.records.notifications import Notification, type_of
from arborcast.topic_model.topics import TopicPath


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
def test_the_name_of_the_payload_element(payload: bytes, found: str) -> None:
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
def test_a_type_as_it_is_written(text: str, meant: str) -> None:
    assert read_type(text, {"p": "urn:plant", None: "urn:default"}) == meant
    assert read_type("reading", {}) == "reading"
    with pytest.raises(ValueError, match="longer than"):
        read_type("p:reading", {"p": "urn:" + "p" * MAX_LENGTH})


@pytest.mark.parametrize(
    "text", ["", "q:reading", "4", "a b", "{urn:x}", "{urn: x}a", "p:", ":a", "a" * (MAX_LENGTH + 1)]
)
def test_what_is_no_type(text: str) -> None:
    with pytest.raises(ValueError, match=r"QName|declared|longer"):
        read_type(text, {"p": "urn:plant"})
