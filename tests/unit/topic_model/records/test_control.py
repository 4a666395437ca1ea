"""Control records: they survive the log, newer ones are refused, and compaction leaves what matters."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.errors import InfrastructureError
from arborcast.topic_model.records.control import (
    ControlRecord,
    SecretsResealed,
    SubscriptionEnded,
    SubscriptionRecord,
    SubscriptionSuspended,
    Tombstone,
    TopicPolicy,
    TopicRecord,
    TopicRemoved,
    decode,
    encode,
    key_of,
)
from arborcast.topic_model.subscriptions import (
    DeliveryPolicy,
    EndpointReference,
    Subscription,
    TopicFilter,
)
from arborcast.topic_model.topics import TopicPath

A = TopicPath("{http://example.org/t}Überwachung/b")

RECORDS: list[tuple[ControlRecord, str]] = [
    (TopicRecord(A), f"topic:{A}"),
    (TopicRecord(A, "C1", ("{urn:m}M",), True, TopicPolicy(True, 3, "local", ("p1", "p2"))), f"topic:{A}"),
    (TopicRemoved(A), f"topic:{A}"),
    (SubscriptionRecord(Subscription("s1", EndpointReference("http://c/"))), "sub:s1"),
    (
        SubscriptionRecord(
            Subscription(
                "s1",
                EndpointReference("http://c/", ("<p xmlns='urn:p'>1</p>",), ("<m/>",)),
                topics=(TopicFilter("urn:d", "t:a", "{urn:t}a", {"t": "urn:t"}),),
                policy=DeliveryPolicy("strict", maximum_attempts=3),
                terminates_ms=1_700_000_000_000,
                paused=True,
            )
        ),
        "sub:s1",
    ),
    (SubscriptionEnded("s1", "expired", 5), "sub:s1"),
    (SubscriptionSuspended("s1", "connect", 3, 5), "susp:s1"),
    (SecretsResealed("s1", {"k1:AAAA": "k2:BBBB"}), "seal:s1"),
    (Tombstone("sub:s1"), "sub:s1"),
]


@pytest.mark.parametrize(("record", "key"), RECORDS)
def test_round_trip_under_the_key_of_the_entity(record: ControlRecord, key: str) -> None:
    assert key_of(record) == key
    encoded_key, value = encode(record)
    assert encoded_key == key.encode()
    assert (value is None) == isinstance(record, Tombstone)
    assert decode(encoded_key, value) == record


def test_values_can_be_read_with_any_tool() -> None:
    _, value = encode(TopicRecord(A, code="C1"))
    assert value is not None
    assert json.loads(value) == {"v": 1, "record": {"type": "topic", "path": A, "code": "C1"}}


def test_keys_that_are_no_text() -> None:
    with pytest.raises(InfrastructureError, match="not UTF-8"):
        decode(b"\xff", None)
    with pytest.raises(InfrastructureError):
        decode(b"\xff", b"broken")


_topics = st.sampled_from([TopicPath("a"), TopicPath("a/b"), TopicPath("{urn:t}c")])
_histories = st.lists(
    st.one_of(
        st.builds(TopicRecord, _topics, st.sampled_from(["", "x"])),
        st.builds(TopicRemoved, _topics),
        st.builds(SubscriptionEnded, st.sampled_from(["s", "t"]), st.just("gone"), st.integers(0, 9)),
        st.builds(Tombstone, st.sampled_from(["topic:a", "topic:a/b", "sub:s"])),
    ),
    max_size=20,
)


def _fold(log: list[tuple[bytes, bytes | None]]) -> dict[str, ControlRecord]:
    state: dict[str, ControlRecord] = {}
    for key, value in log:
        record = decode(key, value)
        if isinstance(record, TopicRecord | SubscriptionRecord):
            state[key_of(record)] = record
        else:
            state.pop(key_of(record), None)
    return state


@given(_histories, st.integers(0, 20), st.booleans())
def test_what_compaction_leaves_folds_to_the_same(
    history: list[ControlRecord], cleaned: int, tombstones_expired: bool
) -> None:
    log = [encode(record) for record in history]
    # Of the cleaned part Kafka keeps the last record of each key, and of those the null values only for a while.
    last = {key: offset for offset, (key, _) in enumerate(log[:cleaned])}
    kept = [log[offset] for offset in sorted(last.values()) if not (tombstones_expired and log[offset][1] is None)]
    assert _fold(kept + log[cleaned:]) == _fold(log)
