"""The fold over what was put into pull points and taken out of them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from arborcast.topic_model.projections.pull_store import PullLimits, PullPointStatus, PullStore, WaitingMessage
from arborcast.topic_model.records.pull import (
    ERASED,
    Claimed,
    PullRecord,
    Returned,
    Settled,
    StoredMessage,
)

ROOMY = PullLimits(messages=1_000, bytes=1_000_000, resident_bytes=1_000_000)


class Log:
    """A store with the log that it was folded from."""

    def __init__(self, limits: PullLimits = ROOMY) -> None:
        self.records: list[tuple[str, PullRecord]] = []
        self.woken: list[str] = []
        self.store = PullStore(limits, self.woken.append)

    def append(self, record: PullRecord, pull_point: str = "p") -> int:
        offset = len(self.records)
        self.records.append((pull_point, record))
        self.store.apply(pull_point, record, offset)
        return offset

    def put(self, *texts: str, pull_point: str = "p") -> list[int]:
        return [self.append(StoredMessage(text.encode()), pull_point) for text in texts]

    def claim(self, name: str, first: int, last: int, until_ms: int = 1_000) -> list[str]:
        self.append(Claimed(name, first, last, until_ms))
        return texts(self.store.claimed("p", name))

    def waiting(self, pull_point: str = "p") -> list[str]:
        return texts(self.store.head(pull_point, 1_000, 1_000_000))

    def replayed(self, beginning: int = 0, limits: PullLimits = ROOMY) -> PullStore:
        store = PullStore(limits)
        for offset, (pull_point, record) in enumerate(self.records):
            if offset >= beginning:
                store.apply(pull_point, record, offset)
        return store


def texts(messages: list[WaitingMessage]) -> list[str]:
    return [(message.element or b"?").decode() for message in messages]


def test_the_head_is_bounded_in_messages_and_bytes_but_never_empty() -> None:
    log = Log()
    log.put("aaaa", "bbbb", "c")
    assert texts(log.store.head("p", 2, 100)) == ["aaaa", "bbbb"]
    assert texts(log.store.head("p", 9, 8)) == ["aaaa", "bbbb"]
    assert texts(log.store.head("p", 9, 1)) == ["aaaa"]
    assert log.store.head("p", 0, 100) == []


def test_what_is_over_is_in_the_head_and_does_not_count() -> None:
    log = Log()
    for text, until_ms in (("a", 10), ("b", 0), ("c", 10), ("d", 30), ("e", 0)):
        log.append(StoredMessage(text.encode(), valid_until_ms=until_ms))
    assert texts(log.store.head("p", 2, 100, 9)) == ["a", "b"]
    assert texts(log.store.head("p", 2, 100, 10)) == ["a", "b", "c", "d"]
    assert texts(log.store.head("p", 9, 1, 10)) == ["a", "b", "c"]
    assert [message.is_over(10) for message in log.store.head("p", 9, 100)] == [True, False, True, False, False]


def test_no_two_with_the_same_xml_id_are_in_one_head() -> None:
    log = Log(PullLimits(messages=1_000, bytes=1_000_000, resident_bytes=10))
    log.put('<m xml:id="a"/>', "<m/>", '<m xml:id="b"/>', '<m xml:id="a"/>', "<m/>")
    assert [message.offset for message in log.store.head("p", 10, 1_000)] == [0, 1, 2]
    log.claim("c", 0, 2)
    assert [message.offset for message in log.store.head("p", 10, 1_000)] == [3, 4]


def test_nothing_that_was_handed_out_comes_back_whatever_is_cut_off() -> None:
    """A random history: a log that lost its beginning has waiting what it still holds of what waits, nothing else."""
    chance = random.Random(7)
    log = Log()
    open_claims: list[str] = []
    for number in range(300):
        match chance.randrange(4):
            case 0 | 1:
                log.append(StoredMessage(b"x" * chance.randrange(1, 9)))
            case 2:
                head = log.store.head("p", chance.randrange(1, 6), 1_000)
                if head:
                    log.claim(f"c{number}", head[0].offset, head[-1].offset)
                    open_claims.append(f"c{number}")
            case _ if open_claims:
                claim = open_claims.pop(chance.randrange(len(open_claims)))
                taken = [message.offset for message in log.store.claimed("p", claim) if chance.random() < 0.5]
                log.append(Settled(claim) if chance.random() < 0.6 else Returned(claim, tuple(taken)))
    waiting = [message.offset for message in log.store.head("p", 1_000, 1_000_000)]
    earliest = log.store.earliest()
    assert waiting
    assert earliest is not None
    for beginning in range(len(log.records)):
        store = log.replayed(beginning)
        replayed = [message.offset for message in store.head("p", 1_000, 1_000_000)]
        assert replayed == [offset for offset in waiting if offset >= beginning]
        if beginning <= earliest:
            assert store.earliest() == earliest


@dataclass
class Kept:
    """A message of the model, where it is, and whether its element is in memory."""

    point: str
    offset: int
    size: int
    resident: bool
    claim: str = ""
    until_ms: int = 0
    returned: int = 0


STEPS = st.tuples(
    st.sampled_from(("put", "put", "put", "claim", "claim", "settle", "return", "forget")),
    *(st.sampled_from("pq"), st.integers(0, 5), st.integers(0, 5), st.booleans()),
)


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=40), st.integers(1, 4), st.integers(4, 12))
def test_it_is_what_a_list_of_all_messages_would_be(
    steps: list[tuple[str, str, int, int, bool]], most: int, most_bytes: int
) -> None:
    log = Log(PullLimits(most, most_bytes, 10))
    kept: list[Kept] = []
    woken: list[str] = []
    for number, (what, point, one, other, each_second) in enumerate(steps):
        waiting = [each for each in kept if each.point == point and not each.claim]
        claims = sorted({each.claim for each in kept if each.point == point} - {""})
        claim = claims[one % len(claims)] if claims else "none"
        claimed = [each for each in kept if each.claim == claim]
        match what:
            case "put":
                offset = log.append(StoredMessage(b"x" * one), point)
                resident = sum(each.size for each in kept if each.resident) + one <= 10
                kept.append(Kept(point, offset, one, resident))
                woken.append(point)
            case "claim" if waiting:
                chosen = waiting[one % len(waiting) :][: other + 1]
                log.append(Claimed(f"c{number:02}", chosen[0].offset, chosen[-1].offset, other), point)
                for each in chosen:
                    each.claim, each.until_ms = f"c{number:02}", other
            case "settle" | "return":
                settled = claimed if what == "settle" else claimed[1::2] if each_second else []
                known = tuple(each.offset for each in settled)
                log.append(Settled(claim) if what == "settle" else Returned(claim, known), point)
                kept = [each for each in kept if each not in settled]
                for each in claimed:
                    each.claim, each.returned = "", each.returned + 1
                woken += [point] if claimed and what == "return" else []
            case "forget":
                log.store.forget(point)
                kept = [each for each in kept if each.point != point]
        if what in ("put", "return"):
            waiting = [each for each in kept if each.point == point and not each.claim]
            while len(waiting) > most or (len(waiting) > 1 and sum(each.size for each in waiting) > most_bytes):
                kept.remove(waiting.pop(0))
        for name in "pq":
            waits = [each for each in kept if each.point == name and not each.claim]
            found = log.store.head(name, 100, 1_000)
            assert [(each.offset, each.returned) for each in found] == [(each.offset, each.returned) for each in waits]
            assert [each.element is not None for each in found] == [each.resident for each in waits]
        assert log.store.resident_bytes == sum(each.size for each in kept if each.resident)
        assert log.store.earliest() == min((each.offset for each in kept), default=None)
        assert set(log.store.ids()) == {each.point for each in kept}
        assert set(log.store.overdue(3)) == {
            (each.point, each.claim) for each in kept if each.claim and each.until_ms <= 3
        }
        assert log.woken == woken


def test_the_status_of_a_pull_point_has_its_messages_and_the_last_fetch_also_when_it_is_empty() -> None:
    log = Log()
    assert log.store.status("p", 400) == PullPointStatus(0, 0, 0, 0, 0)
    for text, at_ms in (("aa", 5), ("bbb", 6), ("c", 7)):
        log.append(StoredMessage(text.encode(), accepted_ms=at_ms))
    assert log.store.status("p", 400) == PullPointStatus(3, 6, 5, 0, 0)
    log.claim("one", 0, 0, until_ms=1_000)
    assert log.store.status("p", 400) == log.replayed().status("p", 400) == PullPointStatus(2, 4, 6, 1, 600)
    log.append(Settled("one"))
    log.claim(f"{ERASED}1", 0, 9, until_ms=2_000)
    log.append(Settled(f"{ERASED}1"))
    assert log.store.status("p", 400) == PullPointStatus(0, 0, 0, 0, 600)
    log.store.forget("p")
    assert log.store.status("p", 400) == PullPointStatus(0, 0, 0, 0, 0)


def test_beyond_the_total_the_longest_queue_loses_its_oldest() -> None:
    log = Log(PullLimits(messages=1_000, bytes=1_000_000, resident_bytes=0, total=100))
    log.put("<a/>", pull_point="small")
    first = log.put(*["<b/>"] * 99)[0]
    log.claim("c", first, first + 9)
    log.put("<c/>", pull_point="small")
    assert (log.store.waiting("p"), log.store.waiting("small")) == (80, 2), "a tenth at once; claimed ones count"
    log.append(Settled("c"))
    log.put(*["<d/>"] * 18, pull_point="small")
    assert (log.store.waiting("p"), log.store.dropped) == (80, 9), "settled ones do not count"
    log.append(Claimed("all", 0, 1 << 20, 1_000))
    log.store.forget("small")
    log.put(*["<e/>"] * 20, pull_point="other")
    log.put(*["<f/>"] * 2, pull_point="other")
    assert (log.store.waiting("other"), log.store.total) == (19, 19), "only those that wait can be dropped"
