"""The format of parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topic_model.records.fragments import (
    Fragment,
    ranges,
    read_fragment,
    read_package,
    write_package,
)


@given(st.booleans(), st.booleans(), st.integers(0, 99_999), st.text(st.characters(codec="ascii"), max_size=20))
def test_what_is_written_is_read(more: bool, alone: bool, number: int, identification: str) -> None:
    fragment = Fragment(True, more, alone, number)
    assert read_fragment(str(fragment)) == fragment
    assert read_package(write_package(fragment, identification)) == (fragment, identification)


@pytest.mark.parametrize("text", ["", "1-1-1", "1-1-1-", "1-1-1-0 ", "1-1-1-100000", "0-1-0-0", "0-0-0-1", "1-1-1--1"])
def test_what_is_no_fragment(text: str) -> None:
    with pytest.raises(ValueError, match="Fragment"):
        read_fragment(text)


def test_numbers_for_people() -> None:
    assert ranges([]) == ""
    assert ranges([0]) == "0"
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2 5 7-8"
    assert ranges(range(100_000)) == "0-99999"
    assert ranges(range(0, 1_000, 2)).endswith("98 …")
