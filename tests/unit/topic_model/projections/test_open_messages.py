"""The fold over the parts of messages: equal for all readers of the log, from any beginning."""

from __future__ import annotations

import random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from arborcast.topic_model.projections.open_messages import OpenMessages
from arborcast.topic_model.records.fragments import FragmentRecord, GivenUp, StoredPart
from arborcast.topic_model.topics import TopicPath


def part(number: int, of: int, name: str = "i", content: bytes | None = None, owner: str = "") -> StoredPart:
    text = b"%d" % number if content is None else content
    return StoredPart(owner, TopicPath("a"), name, number, number == of - 1, text, 1_000 + number)


def folded(*records: FragmentRecord, resident_bytes: int = 0) -> OpenMessages:
    messages = OpenMessages(resident_bytes)
    for offset, record in enumerate(records):
        messages.apply(record, offset, float(offset))
    return messages


@given(st.integers(1, 30), st.integers(0, 2**32), st.integers(0, 40_000))
def test_a_message_is_complete_with_its_last_missing_part(count: int, seed: int, resident_bytes: int) -> None:
    chance = random.Random(seed)
    numbers = [*range(count), *(chance.randrange(count) for _ in range(count))]
    chance.shuffle(numbers)
    messages = folded(*(part(number, count) for number in numbers), resident_bytes=resident_bytes)
    completed_at = max(numbers.index(number) for number in range(count))
    (message,) = messages.complete.values()
    assert (message.at, message.first, list(messages.complete)) == (completed_at, 0, [completed_at])
    assert dict(message.offsets()) == {number: numbers.index(number) for number in range(count)}
    assert message.bytes == messages.bytes == sum(len(str(number)) for number in range(count))
    assert messages.resident_bytes <= resident_bytes
    assert not messages.open
    messages.apply(message.assembled(), len(numbers), 0.0)
    assert (messages.bytes, messages.resident_bytes, len(messages.complete)) == (0, 0, 0)
    for number in range(count):
        messages.apply(part(number, count), len(numbers) + number + 1, 0.0)
    assert not messages.open
    assert not messages.complete


def test_the_log_orders_the_last_part_and_the_abandonment() -> None:
    two = [part(0, 3), part(1, 3)]
    given_up = folded(*two).open["", "i"].given_up("time", 5_000)
    late, in_time = folded(*two, part(2, 3), given_up), folded(*two, given_up, part(2, 3))
    assert (len(late.complete), late.given_up, bool(late.refused(3))) == (1, 0, True)
    assert (in_time.given_up, len(in_time.open), len(in_time.complete)) == (1, 1, 0)


def test_a_fold_from_the_middle_of_the_log() -> None:
    records: list[FragmentRecord] = [part(0, 3), part(1, 3), part(2, 3)]
    (message,) = folded(*records).complete.values()
    records += [message.assembled(), part(0, 2, "j"), part(0, 4, "k")]
    records.append(GivenUp("", TopicPath("a"), "k", 5, 5, "time", 0, 0))
    for begin in range(4):
        messages = OpenMessages()
        for offset, record in list(enumerate(records))[begin:]:
            messages.apply(record, offset, 0.0)
        assert ([name for _, name in messages.open], messages.complete, messages.bytes) == (["j"], {}, 1)


def test_parts_of_one_owner_complete_no_message_of_another() -> None:
    messages = folded(part(0, 2, owner="x"), part(1, 2, owner="y"), part(0, 2, "j", owner="y"))
    assert (messages.per_owner, messages.complete) == ({"x": 1, "y": 2}, {})


def test_contradicting_parts_change_nothing() -> None:
    messages = folded(part(0, 3), part(0, 3, content=b"else"), part(1, 2), part(5, 9))
    assert messages.refused(1) == "part 0 arrived before, with other content"
    assert not messages.refused(2)
    (done,) = messages.complete.values()
    assert len(done.parts) == 2
    assert list(messages.open["", "i"].parts) == [5], "a new message after the complete one"


def test_the_limit_of_parts_in_memory_includes_their_namespaces_and_objects() -> None:
    def held(*parts: StoredPart) -> int:
        messages = folded(*parts, resident_bytes=100_000)
        assert (messages.bytes, messages.resident_bytes <= 100_000) == (0, True)
        return sum(len(each.resident) for each in messages.open.values())

    declared = {"q": "urn:" + "x" * 40_000}
    assert held(*(msgspec.structs.replace(part(n, 9, content=b""), namespaces=declared) for n in range(8))) == 2
    assert 50 < held(*(part(n, 2_000, content=b"") for n in range(1_000))) <= 100


def test_memory_of_a_hundred_thousand_parts() -> None:
    messages = folded(*(part(number, 200_000) for number in range(100_000)))
    (message,) = messages.open.values()
    assert message.parts[99_999].__sizeof__() < 64
    assert not message.resident
    assert message.given_up("time", 0).missing == "100000-"


def test_memory_of_completed_messages_ends_with_their_time() -> None:
    messages, offset = OpenMessages(), 0
    for number in range(1_000):
        single = msgspec.structs.replace(part(0, 1, f"i{number}"), accepted_ms=number * 1_000)
        messages.apply(single, offset, 0.0)
        messages.apply(messages.complete[offset].assembled(), offset + 1, 0.0)
        offset += 2
    assert messages.assembled == 1_000
    assert len(messages._done) <= 181
    for accepted_ms, is_known in {1_000_000: True, 100_000: False}.items():  # the latter after the clock was put back
        again = messages.again(msgspec.structs.replace(part(0, 1, "i900"), accepted_ms=accepted_ms))
        assert (again is not None) is is_known
