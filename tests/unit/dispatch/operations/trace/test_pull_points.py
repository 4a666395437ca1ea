"""What a trace shows of a message in a pull point: whether it was fetched, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from arborcast.core.eventlog.client import ConsumerRecord
from arborcast.dispatch.operations.trace.explain import explain
from arborcast.dispatch.operations.trace.gathering import in_pull_points
from arborcast.dispatch.operations.trace.story import Step, utc
from arborcast.topic_model.records.pull import (
    ERASED,
    Claimed,
    PullRecord,
    Returned,
    Settled,
    StoredMessage,
    encode,
)
from tests.support.listed_logs import Listed
from tests.unit.dispatch.operations.trace.test_explain import ACCEPTED, attempt, evidence, history, subscription

WAITS = Step(None, "not fetched yet")

MINE = StoredMessage(b"<m/>", "n", "s", ACCEPTED)

OTHER = StoredMessage(b"<m/>", "n2", "s", ACCEPTED)


def log(*records: PullRecord, point: str = "p") -> list[ConsumerRecord]:
    """The records at the offsets from 0 and the times from 1,000 on."""
    made = (encode(point, each) for each in records)
    return [cast(Any, Listed(*each, offset, 1_000 + offset)) for offset, each in enumerate(made)]


@pytest.mark.parametrize(
    ("records", "step"),
    [
        ((OTHER, MINE, Claimed("c", 0, 0, 9), Settled("c")), WAITS),
        ((MINE, OTHER, Claimed("c", 1, 1, 9)), Step(None, "dropped there: the pull point was full")),
        ((MINE, OTHER, Claimed(ERASED + "c", 1, 1, 9), Settled(ERASED + "c")), WAITS),
        ((MINE, OTHER, Claimed("c", 1, 1, 9), Claimed("d", 0, 0, 9), Settled("d")), Step(utc(1_004), "fetched")),
        ((MINE, Claimed("c", 0, 0, 9)), Step(utc(1_001), "handed out, not confirmed yet")),
        ((MINE, Claimed("c", 0, 0, 9), Settled("c")), Step(utc(1_002), "fetched")),
        ((MINE, Claimed("c", 0, 0, 9), Returned("c")), WAITS),
        ((MINE, OTHER, Claimed("c", 0, 1, 9), Returned("c", (0,))), Step(utc(1_003), "fetched")),
        (
            (MINE, Claimed("c", 0, 0, 9), Returned("c"), Claimed("d", 0, 5, 9), Settled("d")),
            Step(utc(1_004), "fetched"),
        ),
        ((MINE, Claimed(ERASED + "c", 0, 0, 9), Settled(ERASED + "c")), Step(utc(1_002), "erased")),
    ],
)
def test_the_claims_of_its_pull_point_show_its_fetch(records: tuple[PullRecord, ...], step: Step) -> None:
    assert in_pull_points(log(*records), "n", until_ms=60_000) == {"s": step}


def test_a_message_that_is_over_is_not_fetched() -> None:
    over = StoredMessage(b"<m/>", "n", "s", ACCEPTED, valid_until_ms=1_001)
    found = in_pull_points(log(over, Claimed("c", 0, 0, 9), Settled("c")), "n", until_ms=60_000)
    assert found == {"s": Step(utc(1_002), "expired there")}


def test_claims_of_other_pull_points_do_not_count() -> None:
    claims = log(OTHER, Claimed("c", 0, 9, 9), Settled("c"), point="other")
    assert in_pull_points([*log(MINE), *claims], "n", until_ms=60_000) == {"s": WAITS}


def test_the_rest_of_the_log_is_not_read_without_an_open_step() -> None:
    def records() -> Iterator[ConsumerRecord]:
        yield from log(*stored, *[OTHER] * 5)
        raise AssertionError("read to the end")

    stored: tuple[PullRecord, ...] = ()
    assert in_pull_points(records(), "n", until_ms=1_002) == {}
    stored = (MINE, Claimed("c", 0, 0, 9), Settled("c"))
    assert in_pull_points(records(), "n", until_ms=1_002) == {"s": Step(utc(1_002), "fetched")}


def test_the_story_has_the_time_of_the_fetch() -> None:
    fetched = Step(utc(200_000), "fetched")
    found = evidence(
        history(subscription("s", pull_point="p"), subscription("t", pull_point="q")),
        attempt("s", 1, "delivered", ACCEPTED + 5),
        attempt("t", 1, "delivered", ACCEPTED + 5),
        pulled={"s": fetched, "t": WAITS},
    )
    one, two = explain(found).deliveries
    assert one.steps[1:] == [replace(fetched, where="http://s/")]
    assert one.why == "stored in the pull point of the subscription; fetched"
    assert two.why == "stored in the pull point of the subscription; not fetched yet"
