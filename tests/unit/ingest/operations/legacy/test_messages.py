"""From the text to what is asked."""

from __future__ import annotations

import pytest

from core.errors import ExpressionError
from ingest.errors import InvalidRequest
from ingest.operations.legacy.messages import CreatePullPoint, Message, Notify, Subscribe, Unsubscribe, read
from tests.support import legacy_messages as legacy
from topic_model.legacy_content import TYPE, unwrap, wrap
from topic_model.topics import TopicPath

ADDRESS = "http://host:9002/wsn-subscribe"


def test_each_kind_of_request() -> None:
    assert read(legacy.subscribe("all:alarm", ADDRESS)) == Subscribe(ADDRESS, "all:alarm", "endpoint:null")
    assert read(legacy.unsubscribe("all:alarm", ADDRESS)) == Unsubscribe(ADDRESS, "all:alarm")
    assert read(legacy.notify("all:alarm", "<x/>")) == Notify((Message(TopicPath("all/alarm"), b"<x/>", "x"),))
    assert read(legacy.create_pull_point()) == CreatePullPoint()
    assert read(legacy.create_pull_point(" a name\n")) == CreatePullPoint("a name")


def test_the_other_namespace_and_any_prefix() -> None:
    text = legacy.subscribe("all:alarm", ADDRESS).replace("wsn/b-2", "wsnMgr/b-2").replace("wsnt:", "w:")
    assert read(text.replace("xmlns:wsnt", "xmlns:w")) == Subscribe(ADDRESS, "all:alarm", "endpoint:null")


def test_only_the_root_says_what_it_is() -> None:
    """The old server searched for names anywhere in the text."""
    asked = read(legacy.notify("all:alarm", "<wsnt:Unsubscribe/>"))
    assert isinstance(asked, Notify)
    assert asked.messages[0].payload == b'<wsnt:Unsubscribe xmlns:wsnt="http://docs.oasis-open.org/wsn/b-2"/>'


def test_a_notify_around_several_messages() -> None:
    text = f'<n:Notify xmlns:n="{legacy.WSNT}">{legacy.notify("a", "<x/>")}{legacy.notify("a:b", "<y/>")}</n:Notify>'
    assert read(text) == Notify((Message(TopicPath("a"), b"<x/>", "x"), Message(TopicPath("a/b"), b"<y/>", "y")))


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
    ],
)
def test_content_becomes_one_element(content: str, payload: bytes) -> None:
    asked = read(legacy.notify("a", content))
    assert isinstance(asked, Notify)
    assert asked.messages[0].payload == payload


def test_an_empty_message_element() -> None:
    asked = read(legacy.notify("a", "").replace("<wsnt:Message></wsnt:Message>", "<wsnt:Message/>"))
    assert asked == Notify((Message(TopicPath("a"), wrap("", {}), TYPE),))


def test_loose_content_comes_out_again() -> None:
    for content in ("", "text", "a &gt; b", "<a/>x<b/>"):
        assert unwrap(wrap(content, {"p": "urn:a>b", "": 'urn:"'})) == content.encode()
    assert unwrap(b"<x>ac:Content</x>") == b"<x>ac:Content</x>"


@pytest.mark.parametrize("fragment", [None, "", "0-0-1-0", "0-0-0-0", "1-1-1-0", "1-0-1-7"])
def test_whole_messages_and_parts_that_may_go_alone_pass(fragment: str | None) -> None:
    assert isinstance(read(legacy.notify("a", "<x/>", fragment)), Notify)


@pytest.mark.parametrize("fragment", ["1-1-0-0", "1-0-0-3", "0-0-0-1", "2-0-0-0", "0-0-1", "0-0-1-\u0660", "x"])
def test_parts_to_be_put_together_are_refused(fragment: str) -> None:
    with pytest.raises(InvalidRequest, match=fragment):
        read(legacy.notify("a", "<x/>", fragment))


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


@pytest.mark.parametrize("topic", ["", "a::b", "a/b", "1a", "a b"])
def test_topics_that_are_no_colon_paths(topic: str) -> None:
    with pytest.raises(ExpressionError):
        read(legacy.notify(topic, "<x/>"))
