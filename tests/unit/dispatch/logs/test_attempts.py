from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InfrastructureError, RecordVersionError
from dispatch.logs import attempts
from dispatch.logs.attempts import RECORD_BYTES, Attempt
from topic_model.topics import TopicPath


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


def test_only_records_with_something_dropped_need_a_reader_that_knows_of_it() -> None:
    dropped = msgspec.structs.replace(attempt(), state="dropped")
    (plain,), (mixed,) = attempts.encode([attempt()]), attempts.encode([attempt(), dropped, attempt()])
    versions = [msgspec.msgpack.decode(value)["v"] for value in (plain, mixed, attempts.NOTHING)]
    assert versions == [1, 2, 1]


def test_record_without_attempts_can_be_read() -> None:
    assert attempts.decode(attempts.NOTHING) == []


def test_newer_record_is_refused() -> None:
    value = msgspec.msgpack.encode({"v": attempts.VERSION + 1, "attempts": []})

    with pytest.raises(RecordVersionError, match="upgrade"):
        attempts.decode(value)


@pytest.mark.parametrize("value", [b"", b"nonsense", b"\xc1", msgspec.msgpack.encode({"attempts": []})])
def test_unreadable_record_is_an_error_of_ours(value: bytes) -> None:
    with pytest.raises(InfrastructureError):
        attempts.decode(value)


@given(st.text(), st.integers(1, 64))
def test_all_attempts_of_a_subscription_go_to_one_partition(subscription: str, partitions: int) -> None:
    chosen = attempts.partition_of_subscription(subscription, partitions)

    assert 0 <= chosen < partitions
    assert chosen == attempts.partition_of_subscription(subscription, partitions)


def test_subscriptions_are_spread_over_the_partitions() -> None:
    assert {attempts.partition_of_subscription(f"s{number}", 4) for number in range(100)} == {0, 1, 2, 3}
