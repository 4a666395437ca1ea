"""What goes over which link, and what engines say to each other."""

from __future__ import annotations

import itertools

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
    goes_over,
    is_datagram,
    is_engine,
)
from arborcast.topic_model.routing.interest import summary_of
from arborcast.topic_model.subscriptions import EndpointReference, Peer, Subscription, TopicFilter
from arborcast.topic_model.topics import TopicPath

INSIDE, ACROSS = Peer("G/a", "G/b"), Peer("G/a", "H/")


def notification(*path: str, distribution: str = "", topic: str = "t") -> Notification:
    return Notification("n", TopicPath(topic), b"<x/>", 1, path=path, distribution=distribution)


@pytest.mark.parametrize(
    ("path", "inside", "across"),
    [
        ((), True, True),
        (("G/c",), False, True),  # all of us have it from c
        (("H/x",), True, False),  # to our own members, and no further
        (("H/x", "G/c"), False, False),
        (("G/b", "H/x"), False, False),
        (tuple(f"H/e{number}" for number in range(MAX_ENGINES)), False, False),
    ],
)
def test_rules_of_groups(path: tuple[str, ...], inside: bool, across: bool) -> None:
    assert goes_over(notification(*path), INSIDE) is inside
    assert goes_over(notification(*path), ACROSS) is across


@pytest.mark.parametrize(
    ("word", "inside", "across"),
    [("local", False, False), ("group", True, False), ("to:H,I", True, True), ("to:I", True, False)],
)
def test_words_of_topics(word: str, inside: bool, across: bool) -> None:
    assert goes_over(notification(distribution=word), INSIDE) is inside
    assert goes_over(notification(distribution=word), ACROSS) is across
    assert not goes_over(notification("G/c", distribution=word), INSIDE)


def test_events_of_the_engine_and_requests_of_a_queue_stay_here() -> None:
    assert not goes_over(notification(topic="{urn:arborcast}system/breaker/opened"), INSIDE)
    asked = Notification("n", TopicPath("t"), b"<x/>", 1, queue=True)
    assert not goes_over(asked, INSIDE)
    assert not goes_over(asked, ACROSS)
    served = TopicFilter("", "t", "t")
    server = Subscription("s", EndpointReference("http://s/"), topics=(served,), queue=1)
    assert summary_of([server]) == ()


def test_everybody_gets_it_once_whoever_represents_whom() -> None:
    """Three groups of three: each notification is flooded by the rules alone, from each of them."""
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
                    if goes_over(found, peer):
                        (sent,) = decode_push(encode_push([found], peer)).notifications
                        assert drop_reason(sent, to) == ""
                        arrived.append(to)
                        waiting.append((to, notification(*sent.path)))
            assert sorted(arrived) == sorted(members), (origin, of)


def test_what_is_dropped_where_it_arrives() -> None:
    sent = Forwarded("n", TopicPath("t"), b"<x/>", ("H/x", "G/a"))
    assert drop_reason(sent, "G/a") == "loop"
    assert drop_reason(sent, "G/b") == ""
    long = Forwarded("n", TopicPath("t"), b"<x/>", tuple(f"H/e{number}" for number in range(MAX_ENGINES + 1)))
    assert drop_reason(long, "G/a") == "hops"


def test_all_that_others_have_to_know_travels() -> None:
    sent = Notification(
        "n~r",
        TopicPath("{urn:t}a"),
        b"<x/>",
        7,
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
    said = decode_interest(encode_interest("G/a", "H/", 3, ["a", "b//."]))
    assert (said.sender, said.to, said.version, said.topics) == ("G/a", "H/", 3, ("a", "b//."))


@pytest.mark.parametrize("body", [b"", b"{}", b"\x81\xa1v\x01", b"\xff" * 40])
def test_what_is_no_message_of_an_engine(body: bytes) -> None:
    for decode in (decode_push, decode_interest):
        with pytest.raises(InfrastructureError):
            decode(body)


def test_a_newer_engine_is_told_from_a_broken_one() -> None:
    with pytest.raises(RecordVersionError):
        decode_push(encode_push([], INSIDE).replace(b"\xa1v\x01", b"\xa1v\x7f"))
    with pytest.raises(RecordVersionError):
        decode_interest(encode_interest("G/a", "G/b", 1, []).replace(b'"v":1', b'"v":99'))


def test_names_of_engines() -> None:
    assert is_engine("G-1/a_b")
    for text in ("G", "G/", "/a", "G/a/b", "G/ä", "G/a b", ""):
        assert not is_engine(text)


ONLY, WITHOUT = Peer("G/a", "G/b", "only"), Peer("G/a", "G/b", "without")


@pytest.mark.parametrize(
    ("changes", "leaves"),
    [
        ({}, True),
        ({"fast": False}, False),
        ({"reliable": True}, False),
        ({"only": "peer-b"}, False),
        ({"payload": b"<x>" + b"1" * 8_000 + b"</x>"}, False),
    ],
)
def test_one_of_two_links_carries_it(changes: dict[str, object], leaves: bool) -> None:
    found = msgspec.structs.replace(notification(), **{"fast": True, **changes})
    assert (goes_over(found, ONLY), goes_over(found, WITHOUT), goes_over(found, INSIDE)) == (leaves, not leaves, True)
    assert goes_over(found, ACROSS), "other groups have it confirmed"


def test_a_word_that_keeps_it_here_counts_for_datagrams_too() -> None:
    found = msgspec.structs.replace(notification(distribution="local"), fast=True)
    assert not goes_over(found, ONLY)
    assert not goes_over(found, WITHOUT)


@given(
    payload=st.binary(max_size=7_500),
    texts=st.lists(st.text(max_size=600), min_size=6, max_size=6),
    path=st.lists(st.just(f"{'G' * 64}/{'n' * 64}"), max_size=MAX_ENGINES - 1),
)
def test_what_leaves_as_a_datagram_fits_into_one(payload: bytes, texts: list[str], path: list[str]) -> None:
    topic, publisher, kind, package, prefixes, cause = texts
    found = Notification(
        "i" * 200,
        TopicPath(topic),
        payload,
        1,
        publisher=publisher,
        type=kind,
        package=package,
        prefixes=prefixes,
        cause=cause,
        path=tuple(path),
        traceparent="t" * 55,
        priority=-100,
        valid_until_ms=1 << 60,
        fast=True,
    )
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
        b"",
        b"ACD1",
        b"ACD1a\nb\nc",
        b"ACD1\xff\nb\nc\nbody",
        b"HTTP",
        b"ACD1" + b"\n" * 9_000,
        b"ACD1" + b"a" * 2_000 + b"\nb\nc\n",
    ],
)
def test_what_is_no_datagram(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"datagram|codec"):
        decode_datagram(data)


def test_only_what_is_signed_leaves() -> None:
    with pytest.raises(ValueError, match="must be signed"):
        encode_datagram({}, b"body")
    with pytest.raises(ValueError, match="at most"):
        encode_datagram(dict.fromkeys((ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER), "x"), bytes(MAX_DATAGRAM))
