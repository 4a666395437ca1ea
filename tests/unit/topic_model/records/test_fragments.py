"""The format of parts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.topic_model.records.fragments import ranges
from arborcast.topic_model.records.packages import (
    MAX_PARTS,
    Fragment,
    read_content,
    read_fragment,
    read_package,
    split,
    unwrap_part,
    wrapped,
    write_package,
)
from arborcast.topic_model.topics import TopicPath


@given(st.booleans(), st.booleans(), st.integers(0, 99_999), st.text(st.characters(codec="ascii"), max_size=20))
def test_fragments_and_packages_round_trip(more: bool, alone: bool, number: int, identification: str) -> None:
    fragment = Fragment(True, more, alone, number)
    assert read_fragment(str(fragment)) == fragment
    assert read_package(write_package(fragment, identification)) == (fragment, identification)


@pytest.mark.parametrize("text", ["", "1-1-1", "1-1-1-", "1-1-1-0 ", "1-1-1-100000", "0-1-0-0", "0-0-0-1", "1-1-1--1"])
def test_texts_that_are_no_fragment(text: str) -> None:
    with pytest.raises(ValueError, match="Fragment"):
        read_fragment(text)


def test_ranges_of_numbers() -> None:
    for numbers, text in (([], ""), ([0], "0"), ([0, 1, 2, 5, 7, 8], "0-2 5 7-8"), (range(100_000), "0-99999")):
        assert ranges(numbers) == text
    assert ranges(range(0, 1_000, 2)).endswith("98 …")


TOPIC = TopicPath("all/alarm")
AROUND = len(wrapped("", TOPIC, "me:1", Fragment(True, True, False, MAX_PARTS - 1)).encode())


@given(
    st.text(st.characters(codec="utf-8"), min_size=60, max_size=400), st.integers(64, 120), st.booleans(), st.randoms()
)
def test_split_shuffle_and_join(content: str, room: int, alone: bool, chance: random.Random) -> None:
    pieces = list(split(content, TOPIC, "me:1", AROUND + room, alone=alone))
    if not pieces:
        assert len(content.encode()) <= room
        return
    chance.shuffle(pieces)
    found: dict[int, str] = {}
    for fragment, identification, text in pieces:
        if alone:
            found[fragment.number] = text
            continue
        assert len(text.encode()) <= AROUND + room
        read = unwrap_part(text)
        assert read is not None
        assert read[:2] == (fragment, identification)
        found[fragment.number] = read[2]
    assert "".join(found[number] for number in range(len(found))) == content
    assert [piece.fragment.number for piece in pieces if not piece.fragment.more] == [len(pieces) - 1]


@pytest.mark.parametrize(("length", "parts"), [(100, 0), (101, 2), (200, 2), (201, 3), (1_000, 10)])
def test_parts_are_as_large_as_possible(length: int, parts: int) -> None:
    assert len(list(split("x" * length, TOPIC, "me:1", AROUND + 100, alone=False))) == parts


@pytest.mark.parametrize(
    ("length", "room", "why"), [(100, 63, "the wrapper of a part has"), (640_001, 64, "more than 10000 parts")]
)
def test_limits_of_parts(length: int, room: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        list(split("x" * length, TOPIC, "me:1", AROUND + room, alone=True))


def test_unwrapping_of_a_part() -> None:
    part = wrapped("half", TOPIC, "a & <b>", Fragment(True, True, False, 3))
    assert unwrap_part(part) == (Fragment(True, True, False, 3), "a & <b>", "half")
    assert unwrap_part(wrapped("whole", TOPIC, "a", Fragment())) is None
    for text in ("", "text", "<x/>", part[1:], part.replace("</wsnt:Message>", ""), part.replace("1-1-0-3", "1-1-0")):
        assert unwrap_part(text) is None


def test_content_is_read_once() -> None:
    assert read_content("<x>a &amp;amp; b &#233;&#xE9;&quot;&#xD800;</x>") == '<x>a &amp; b éé"&#xD800;</x>'
