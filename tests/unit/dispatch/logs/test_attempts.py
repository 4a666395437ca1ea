from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.errors import RecordVersionError
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.logs.attempts import RECORD_BYTES, Attempt, Evaluation, Matched
from arborcast.topic_model.topics import TopicPath


def attempt(number: int = 1) -> Attempt:
    return Attempt(
        notification=f"n{number}",
        subscription="s",
        topic=TopicPath("{urn:t}a"),
        endpoint="http://example.org/",
        number=1,
        push="p",
        state="dead",
        accepted_ms=1,
        started_ms=2,
        duration_ms=0.5,
        error="server-error",
        detail="HTTP 500",
        status=500,
        response=b"\x00\xff",
    )


@given(st.integers(0, 2_000))
def test_attempts_come_back_in_order_however_many(count: int) -> None:
    written = [attempt(number) for number in range(count)]

    values = list(attempts.encode(written))

    assert [each for value in values for each in attempts.decode(value)] == written
    assert all(len(value) >= RECORD_BYTES for value in values[:-1])
    assert all(len(value) < RECORD_BYTES + 1_000 for value in values)


def test_readers_leave_out_a_record_that_cannot_be_read_and_no_newer_one(caplog: pytest.LogCaptureFixture) -> None:
    assert attempts.readable(b"\xc1") == ([], None)
    assert "left out" in caplog.text
    with pytest.raises(RecordVersionError):
        attempts.readable(msgspec.msgpack.encode({"v": attempts.VERSION + 1, "attempts": []}))


@given(st.text(), st.integers(1, 64))
def test_all_attempts_of_a_subscription_go_to_one_partition(subscription: str, partitions: int) -> None:
    chosen = attempts.partition_of_subscription(subscription, partitions)

    assert 0 <= chosen < partitions
    assert chosen == attempts.partition_of_subscription(subscription, partitions)


def read_back(evaluation: Evaluation) -> list[Matched]:
    values = list(attempts.encode_evaluation(evaluation))
    assert all(len(value) < 2 * RECORD_BYTES for value in values)
    read = [attempts.decode_all(value)[1] for value in values]
    assert all(each is not None for each in read)
    assert {(each.partition, each.batch, each.control) for each in read if each} == {(1, 7, 9)}
    return [matched for each in read if each for matched in each.matched]


def test_an_evaluation_fits_into_records_however_many_have_an_interval() -> None:
    names = tuple(f"0190c2a4-7f7e-7b3c-9d2e-{number:012}" for number in range(700))
    matched = [Matched(f"n{number}", TopicPath("a"), 1, number, 700, names, 3) for number in range(500)]

    assert read_back(Evaluation(1, 7, 9, matched)) == matched


def test_one_notification_may_take_several_records() -> None:
    names = tuple(f"0190c2a4-7f7e-7b3c-9d2e-{number:012}" for number in range(350_000))
    whole = Matched("n", TopicPath("a"), 1, 5, 350_000, names, 3, caused=True)

    pieces = read_back(Evaluation(1, 7, 9, [whole]))

    assert {msgspec.structs.replace(each, passed=()) for each in pieces} == {msgspec.structs.replace(whole, passed=())}
    assert tuple(name for each in pieces for name in each.passed) == names
