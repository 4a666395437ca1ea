"""Federation: the links of a notification, and messages between engines."""

from __future__ import annotations

import itertools
from bisect import bisect
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.errors import InfrastructureError, RecordVersionError
from arborcast.core.security.signatures import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.peers import (
    MAX_DATAGRAM,
    MAX_ENGINES,
    Forwarded,
    decode_datagram,
    decode_interest,
    decode_push,
    drop_reason,
    encode_datagram,
    encode_interest,
    encode_push,
    is_datagram,
    is_engine,
    is_forwarded,
)
from arborcast.topic_model.subscriptions import Peer
from arborcast.topic_model.topics import TopicPath
from tests.support.make import notification

INSIDE, ACROSS = Peer("G/a", "G/b"), Peer("G/a", "H/")
ONLY, WITHOUT = Peer("G/a", "G/b", "only"), Peer("G/a", "G/b", "without")
LONG = tuple(f"H/e{number}" for number in range(MAX_ENGINES))


@pytest.mark.parametrize(
    ("facts", "inside", "across"),
    [
        ({}, True, True),
        ({"path": ("G/c",)}, False, True),  # already sent to this group by c
        ({"path": ("H/x",)}, True, False),  # to the members of this group only
        ({"path": ("H/x", "G/c")}, False, False),
        ({"path": ("G/b", "H/x")}, False, False),
        ({"path": LONG}, False, False),
        ({"distribution": "local"}, False, False),
        ({"distribution": "group"}, True, False),
        ({"distribution": "to:H,I"}, True, True),
        ({"distribution": "to:I"}, True, False),
        ({"distribution": "group", "path": ("G/c",)}, False, False),
        ({"distribution": "to:H", "path": ("G/c",)}, False, True),
        ({"topic": "{urn:arborcast}system/breaker/opened"}, False, False),
        ({"queue": True}, False, False),
    ],
)
def test_links_of_a_notification(facts: dict[str, Any], inside: bool, across: bool) -> None:
    assert (is_forwarded(notification(**facts), INSIDE), is_forwarded(notification(**facts), ACROSS)) == (
        inside,
        across,
    )


@pytest.mark.parametrize(
    ("facts", "only", "without"),
    [
        ({}, True, False),
        ({"fast": False}, False, True),
        ({"reliable": True}, False, True),
        ({"only": "peer-b"}, False, True),
        ({"payload": b"<x>" + b"1" * 8_000 + b"</x>"}, False, True),
        ({"distribution": "local"}, False, False),
    ],
)
def test_one_of_two_links_carries_it(facts: dict[str, Any], only: bool, without: bool) -> None:
    found = notification(**{"fast": True, **facts})
    assert (is_forwarded(found, ONLY), is_forwarded(found, WITHOUT)) == (only, without)
    # The link without datagrams, and other groups, get confirmed pushes for all.
    assert is_forwarded(found, INSIDE) is is_forwarded(found, ACROSS) is (only or without)


def test_each_engine_gets_a_notification_once() -> None:
    """Three groups of three: each notification is flooded by these rules alone, from each engine."""
    members = [f"{group}/{name}" for group in "GHI" for name in "abc"]
    for representatives in itertools.product("abc", repeat=3):
        of = dict(zip("GHI", representatives, strict=True))
        for origin in members:
            arrived = [origin]
            waiting = [(origin, notification())]
            while waiting:
                here, found = waiting.pop()
                group, name = here.split("/")
                links = [(each, Peer(here, each)) for each in members if each.startswith(f"{group}/") and each != here]
                if of[group] == name:
                    links += [(f"{each}/{of[each]}", Peer(here, f"{each}/")) for each in "GHI" if each != group]
                for to, peer in links:
                    if is_forwarded(found, peer):
                        (sent,) = decode_push(encode_push([found], peer)).notifications
                        assert drop_reason(sent, to) == ""
                        arrived.append(to)
                        waiting.append((to, notification(path=sent.path)))
            assert sorted(arrived) == sorted(members), (origin, of)


def test_reasons_to_drop_at_the_receiver() -> None:
    sent = Forwarded("n", TopicPath("t"), b"<x/>", ("H/x", "G/a"))
    assert (drop_reason(sent, "G/a"), drop_reason(sent, "G/b")) == ("loop", "")
    assert drop_reason(Forwarded("n", TopicPath("t"), b"<x/>", (*LONG, "H/x")), "G/a") == "hops"


def test_fields_of_messages_between_engines() -> None:
    sent = notification(
        *("n~r", "{urn:t}a"),
        accepted_ms=7,
        producer=b"<p/>",
        publisher="me",
        path=("G/z",),
        replay="r",
        traceparent="t",
        prefixes="t",
        subject=b"<s/>",
        valid_until_ms=9,
        type="x",
        priority=-3,
        reliable=True,
        cause="c",
        hops=2,
        package="1-1-1-0 me:1",
        distribution="to:H",
    )
    push = decode_push(encode_push([sent], INSIDE))
    assert (push.sender, push.to) == ("G/a", "G/b")
    assert push.notifications == [
        Forwarded(
            *("n", TopicPath("{urn:t}a"), b"<x/>", ("G/z", "G/a"), b"<p/>", "me", -3, 9, "x", True, "t", "t", b"<s/>"),
            *("1-1-1-0 me:1", "c", 2, "to:H"),
        )
    ]
    interest = decode_interest(encode_interest("G/a", "H/", 3, ["a", "b//."]))
    assert (interest.sender, interest.to, interest.version, interest.topics) == ("G/a", "H/", 3, ("a", "b//."))
    with pytest.raises(RecordVersionError):
        decode_push(encode_push([], INSIDE).replace(b"\xa1v\x01", b"\xa1v\x7f"))
    with pytest.raises(RecordVersionError):
        decode_interest(encode_interest("G/a", "G/b", 1, []).replace(b'"v":1', b'"v":99'))
    for body in (b"", b"{}", b"\x81\xa1v\x01", b"\xff" * 40):
        with pytest.raises(InfrastructureError):
            decode_push(body)
        with pytest.raises(InfrastructureError):
            decode_interest(body)


def test_names_of_engines() -> None:
    assert [text for text in ("G-1/a_b", "G", "G/", "/a", "G/a/b", "G/ä", "G/a b", "") if is_engine(text)] == [
        "G-1/a_b"
    ]


@given(
    texts=st.lists(st.builds(str.__mul__, st.sampled_from("aé\0"), st.integers(0, 600)), min_size=6, max_size=6),
    path=st.lists(st.just(f"{'G' * 64}/{'n' * 64}"), max_size=MAX_ENGINES - 1),
)
def test_the_largest_notification_for_a_datagram_fits_into_it(texts: list[str], path: list[str]) -> None:
    topic, *others = texts
    more: dict[str, Any] = dict(zip(("publisher", "type", "package", "prefixes", "cause"), others, strict=True))
    more |= {"path": tuple(path), "traceparent": "t" * 55, "priority": -100, "valid_until_ms": 1 << 60, "fast": True}
    empty = Notification("i" * 200, TopicPath(topic), b"", 1, **more)
    sizes = range(MAX_DATAGRAM)
    size = bisect(sizes, 0, key=lambda size: not is_datagram(msgspec.structs.replace(empty, payload=bytes(size))))
    found = msgspec.structs.replace(empty, payload=bytes(size - 1 if size else 0))
    body = encode_push([found], Peer(f"{'G' * 64}/{'a' * 64}", f"{'G' * 64}/{'b' * 64}", "only"))
    signatures = sign([b"1" * 32, b"2" * 32], "msg_" + "0" * 32, 1_700_000_000, body)
    signed = {ID_HEADER: "msg_" + "0" * 32, TIMESTAMP_HEADER: "1700000000", SIGNATURE_HEADER: signatures}
    if is_datagram(found):
        data = encode_datagram(signed, body)
        assert len(data) <= MAX_DATAGRAM
        assert decode_datagram(data) == (signed, body)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"ACD1", b"ACD1a\nb\nc", b"ACD1\xff\nb\nc\nbody", b"HTTP"),
        pytest.param(b"ACD1" + b"\n" * 9_000, id="long"),
        pytest.param(b"ACD1" + b"a" * 2_000 + b"\nb\nc\n", id="long header"),
    ],
)
def test_invalid_datagrams(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"datagram|codec"):
        decode_datagram(data)


def test_datagrams_are_signed_and_bounded() -> None:
    with pytest.raises(ValueError, match="must be signed"):
        encode_datagram({}, b"body")
    with pytest.raises(ValueError, match="at most"):
        encode_datagram(dict.fromkeys((ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER), "x"), bytes(MAX_DATAGRAM))
