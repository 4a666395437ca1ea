"""From the text to what is asked."""

from __future__ import annotations

import pytest

from arborcast.ingest.operations.legacy.messages import (
    MessagePart,
    Notify,
    read,
)
from arborcast.topic_model.legacy_content import wrap
from arborcast.topic_model.records.packages import Fragment
from arborcast.wire.errors import InvalidRequest
from tests.support import legacy_messages as legacy


@pytest.mark.parametrize(
    ("content", "payload"),
    [
        ("<x a='1'><!-- c --></x>", b"<x a='1'><!-- c --></x>"),
        (" \n<x/> ", b"<x/>"),
        ("plain text", wrap("plain text", {})),
        (" a & b &lt; c ", wrap("a &amp; b &lt; c", {})),
        ("1 < 2", wrap("1 &lt; 2", {})),
        ("", wrap("", {})),
        ("<topic>t</topic><message>m</message>", wrap("<topic>t</topic><message>m</message>", {})),
        ("text <wsnt:x/>", wrap("text <wsnt:x/>", {"wsnt": legacy.WSNT})),
        ("<cut off", wrap("&lt;cut off", {})),
        ("<cut &#0; &#xD800; &#x110000; &#65;", wrap("&lt;cut &amp;#0; &amp;#xD800; &amp;#x110000; &#65;", {})),
    ],
)
def test_content_becomes_one_element(content: str, payload: bytes) -> None:
    asked = read(legacy.notify("a", content))
    assert isinstance(asked, Notify)
    assert asked.messages[0].payload == payload


@pytest.mark.parametrize(
    ("fragment", "says"),
    [
        ("0-0-0-1", "an unsplit message has 0-0-0-0"),
        ("0-1-1-0", "an unsplit message has 0-0-0-0"),
        ("1-1-0-100000", "below 100000"),
        ("1-1-1-100000", "below 100000"),
        ("2-0-0-0", "not of the form"),
        ("0-0-1", "not of the form"),
        ("0-0-1-\u0660", "not of the form"),
        ("x", "not of the form"),
    ],
)
def test_fragments_that_mean_nothing_are_refused(fragment: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        read(legacy.notify("a", "<x/>", fragment))


@pytest.mark.parametrize("alone", [0, 1])
def test_a_part_says_of_what_message_it_is(alone: int) -> None:
    with pytest.raises(InvalidRequest, match="no Identification"):
        read(legacy.notify("a", "<x/>", f"1-1-{alone}-0", ""))
    with pytest.raises(InvalidRequest, match="200 are allowed"):
        read(legacy.notify("a", "<x/>", f"1-1-{alone}-0", "i" * 201))


@pytest.mark.parametrize("content", ["<a>cut off", "</a> & <", "R&am", "p;D ", "<![CDATA[ x", "", "<whole/>", " \n"])
def test_a_part_is_what_stood_there_whatever_it_was(content: str) -> None:
    scope = {"wsnt": legacy.WSNT}
    for text in (legacy.notify("a", content, "1-1-0-4"), wrapped_in_notify(legacy.notify("a", content, "1-1-0-4"))):
        asked = read(text)
        assert isinstance(asked, MessagePart)
        assert (asked.topic, asked.identification) == ("a", "10481519:1")
        assert (asked.fragment, asked.content) == (Fragment(part=True, more=True, number=4), content)
        assert asked.namespaces.items() >= scope.items()


def test_a_part_among_other_messages_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="by itself"):
        read(wrapped_in_notify(legacy.notify("a", "<x/>", "1-1-0-0"), legacy.notify("a", "<x/>")))


def wrapped_in_notify(*messages: str) -> str:
    return f'<n:Notify xmlns:n="{legacy.WSNT}">{"".join(messages)}</n:Notify>'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<Subscribe/>", "not Subscribe"),
        (f'<w:Renew xmlns:w="{legacy.WSNT}"/>', "Renew"),
        (f'<w:Notify xmlns:w="{legacy.WSNT}"/>', "no NotificationMessage"),
        (f'<w:NotificationMessage xmlns:w="{legacy.WSNT}"><w:Topic>a</w:Topic></w:NotificationMessage>', "no Message"),
    ],
)
def test_incomplete_requests_say_what_is_missing(text: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        read(text)
