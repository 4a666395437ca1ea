"""What multipart messages of ZeroMQ say, and what a prefix asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.ingest.zeromq.edge import _Publication, _Retries
from arborcast.ingest.zeromq.messages import Form, MessageError, expression_of, read_publication, written_topic
from arborcast.topic_model.expressions import parse_friendly
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.frames import LOOSE, PublishBody


@pytest.mark.parametrize(
    ("parts", "body", "flags"),
    [
        ([b"a/b", b"<x/>"], PublishBody("a/b", b"<x/>"), 0),
        ([b"ALL:ALARM", b" <?xml"], PublishBody("ALL:ALARM", b" <?xml"), 0),
        ([b"a", b"4 < 5"], PublishBody("a", b"4 < 5"), LOOSE),
        ([b"a", b"< 5"], PublishBody("a", b"< 5"), LOOSE),
        ([b"a", b""], PublishBody("a", b""), LOOSE),
        ([b"a", b"<x/>", b'{"unit": "bar"}'], PublishBody("a", b"<x/>", {"unit": "bar"}), 0),
        ([b"a", b"<x/>", b""], PublishBody("a", b"<x/>"), 0),
    ],
)
def test_publications(parts: list[bytes], body: PublishBody, flags: int) -> None:
    assert read_publication(parts) == (body, flags)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([], "parts"),
        ([b"a"], "parts"),
        ([b"a", b"<x/>", b"{}", b""], "parts"),
        ([b"", b"<x/>"], "topic"),
        ([b" ", b"<x/>"], "topic"),
        ([b"\xff", b"<x/>"], "topic"),
        ([b"a", b"<x/>", b"no"], "properties"),
        ([b"a", b"<x/>", b'{"a": 1}'], "properties"),
        ([b"a", b"<x/>", b"[" * 100_000], "properties"),
    ],
)
def test_what_is_none(parts: list[bytes], reason: str) -> None:
    with pytest.raises(MessageError) as wrong:
        read_publication(parts)
    assert wrong.value.reason == reason


@pytest.mark.parametrize(
    ("prefix", "expression"),
    [
        (b"", ""),
        (b"ALL", ""),
        (b"ALL:ALARM", "ALL//."),
        (b"ALL:ALARM:", "ALL/ALARM//."),
        (b"ALL/ALARM/x", "ALL/ALARM//."),
        (b"{urn:t}a", ""),
        (b"{urn:t}a/b", "{urn:t}a//."),
        (b"a*/b", ""),
        (b"a|b/c", ""),
        (b"/a/", ""),
        (b"\xff/", ""),
    ],
)
def test_what_a_prefix_asks_for(prefix: bytes, expression: str) -> None:
    assert expression_of(prefix) == expression


NAMES = st.lists(st.sampled_from(["a", "b", "ab", "ALARM", "ALARM2"]), min_size=1, max_size=4)


@given(NAMES, st.sampled_from(["slash", "colon"]), st.integers(0, 20))
def test_whatever_has_the_prefix_comes(names: list[str], form: Form, length: int) -> None:
    path = TopicPath("/".join(names))
    prefix = written_topic(path, form)[:length]
    expression = expression_of(prefix)
    assert not expression or parse_normal(parse_friendly(expression).normal).matches(path)


@given(st.binary(max_size=30))
def test_any_prefix_asks_for_something_that_can_be_subscribed_to(prefix: bytes) -> None:
    expression = expression_of(prefix)
    assert not expression or parse_friendly(expression)


def publication(name: str, lost: int = 0) -> _Publication:
    return _Publication("pipeline", PublishBody(name, b""), 0, "", lost)


def test_what_the_gateway_could_not_store_is_sent_again_in_order() -> None:
    retries = _Retries()
    for number in range(3):
        retries.add(publication(f"n{number}"), 10.0)
    assert (len(retries), retries.due(10.4)) == (3, [])
    assert [each.body.topic for each in retries.due(10.5)] == ["n0", "n1", "n2"]
    assert not retries


def test_one_that_may_end_each_connection_is_sent_by_itself() -> None:
    retries = _Retries()
    for number in range(3):
        retries.add(publication(f"n{number}", lost=3 * (number == 1)), 10.0)
    assert [each.body.topic for each in retries.due(10.5)] == ["n0"]
    assert retries.due(99.0) == [], "one is under way"
    retries.answered(None)
    assert [each.body.topic for each in retries.due(10.6)] == ["n1"], "at once after a success"
    retries.answered(MessageError("x", "lost again"))
    assert retries.due(11.0) == []
    assert [each.body.topic for each in retries.due(11.1)] == ["n2"]
