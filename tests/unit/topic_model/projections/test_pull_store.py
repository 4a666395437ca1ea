"""The fold over messages stored in pull points and removed from them."""

from __future__ import annotations

import cProfile
import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from arborcast.topic_model.projections.pull_store import PullLimits, PullPointStatus, PullStore, WaitingMessage
from arborcast.topic_model.records.pull import ERASED, Claimed, PullRecord, Returned, Settled, StoredMessage

ROOMY = PullLimits(messages=1_000, bytes=1_000_000, resident_bytes=1_000_000)


class Log:
    """A store with the log from which it was folded."""

    def __init__(self, limits: PullLimits = ROOMY) -> None:
        self.records: list[tuple[str, PullRecord]] = []
        self.woken: list[str] = []
        self.store = PullStore(limits, self.woken.append)

    def append(self, record: PullRecord, pull_point: str = "p") -> int:
        offset = len(self.records)
        self.records.append((pull_point, record))
        self.store.apply(pull_point, record, offset)
        return offset

    def put(self, *elements: str, pull_point: str = "p") -> None:
        for each in elements:
            self.append(StoredMessage(each.encode()), pull_point)

    def waiting_offsets(self, most: int = 1_000) -> list[int]:
        return [message.offset for message in self.store.head("p", most, 1_000_000)]

    def replayed(self, beginning: int = 0) -> Log:
        again = Log()
        for offset, (pull_point, record) in list(enumerate(self.records))[beginning:]:
            again.store.apply(pull_point, record, offset)
        return again


def texts(messages: list[WaitingMessage]) -> list[str]:
    return [(message.element or b"?").decode() for message in messages]


def test_the_head_is_bounded_in_messages_and_bytes() -> None:
    log = Log()
    log.put("aaaa", "bbbb", "c")
    for most, most_bytes, head in ((2, 100, 2), (9, 8, 2), (9, 1, 1), (0, 100, 0)):
        assert texts(log.store.head("p", most, most_bytes)) == ["aaaa", "bbbb"][:head]


def test_expired_messages_in_the_head_do_not_count() -> None:
    log = Log()
    for text, until_ms in (("a", 10), ("b", 0), ("c", 10), ("d", 30), ("e", 0)):
        log.append(StoredMessage(text.encode(), valid_until_ms=until_ms))
    for most, most_bytes, now_ms, head in ((2, 100, 9, "ab"), (2, 100, 10, "abcd"), (9, 1, 10, "abc")):
        assert texts(log.store.head("p", most, most_bytes, now_ms)) == list(head)
    assert [message.is_over(10) for message in log.store.head("p", 9, 100)] == [True, False, True, False, False]


def test_messages_with_equal_xml_ids_are_in_different_heads() -> None:
    log = Log(PullLimits(messages=1_000, bytes=1_000_000, resident_bytes=10))
    log.put('<m xml:id="a"/>', "<m/>", '<m xml:id="b"/>', '<m xml:id="a"/>', "<m/>")
    assert log.waiting_offsets(10) == [0, 1, 2]
    log.append(Claimed("c", 0, 2, 1_000))
    assert log.waiting_offsets(10) == [3, 4]


def test_a_log_without_its_beginning_has_no_fetched_message() -> None:
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
                    log.append(Claimed(f"c{number}", head[0].offset, head[-1].offset, 1_000))
                    open_claims.append(f"c{number}")
            case _ if open_claims:
                claim = open_claims.pop(chance.randrange(len(open_claims)))
                taken = [message.offset for message in log.store.claimed("p", claim) if chance.random() < 0.5]
                log.append(Settled(claim) if chance.random() < 0.6 else Returned(claim, tuple(taken)))
    waiting, earliest = log.waiting_offsets(), log.store.first("p")
    assert waiting
    assert earliest is not None
    for beginning in range(len(log.records)):
        rest = log.replayed(beginning)
        assert rest.waiting_offsets() == [offset for offset in waiting if offset >= beginning]
        if beginning <= earliest:
            assert rest.store.first("p") == earliest


@dataclass
class Kept:
    """A message of the model, its position, and whether its element is in memory."""

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
def test_the_store_against_a_list_of_all_messages(
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
            found = log.store.head(name, 100, 1_000)
            assert [(each.offset, each.returned, each.element is not None) for each in found] == [
                (each.offset, each.returned, each.resident) for each in kept if each.point == name and not each.claim
            ]
        assert log.store.resident_bytes == sum(each.size for each in kept if each.resident)
        for name in "pq":
            assert log.store.first(name) == min((each.offset for each in kept if each.point == name), default=None)
        assert log.store.total == sum(not each.claim for each in kept)
        assert set(log.store.ids()) == {each.point for each in kept}
        assert set(log.store.open_claims()) == {(each.point, each.claim, each.until_ms) for each in kept if each.claim}
        assert log.woken == woken


def test_a_return_costs_no_more_with_what_waits() -> None:
    """A stream that ends returns a hundred claims."""
    calls: list[int] = []
    for waiting in (10, 900):
        log = Log()
        log.put(*["<a/>"] * (10 + waiting))
        log.append(Claimed("c", 0, 9, 0))
        profile = cProfile.Profile()
        profile.runcall(log.append, Returned("c"))
        calls.append(sum(each.callcount for each in profile.getstats()))
        assert log.waiting_offsets() == list(range(10 + waiting))
    assert calls[0] == calls[1]


def test_status_of_a_pull_point() -> None:
    log = Log()
    assert log.store.status("p", 400) == PullPointStatus(0, 0, 0, 0, 0)
    for text, at_ms in (("aa", 5), ("bbb", 6), ("c", 7)):
        log.append(StoredMessage(text.encode(), accepted_ms=at_ms))
    assert log.store.status("p", 400) == PullPointStatus(3, 6, 5, 0, 0)
    log.append(Claimed("one", 0, 0, 1_000))
    assert log.store.status("p", 400) == log.replayed().store.status("p", 400) == PullPointStatus(2, 4, 6, 1, 600)
    log.append(Settled("one"))
    log.append(Claimed(f"{ERASED}1", 0, 9, 2_000))
    log.append(Settled(f"{ERASED}1"))
    assert log.store.status("p", 400) == PullPointStatus(0, 0, 0, 0, 600), "the last fetch, even an empty one"
    log.store.forget("p")
    assert log.store.status("p", 400) == PullPointStatus(0, 0, 0, 0, 0)


def test_beyond_the_limit_the_longest_queue_loses_its_oldest() -> None:
    log = Log(PullLimits(messages=1_000, bytes=1_000_000, resident_bytes=0, total=100))
    log.put("<a/>", pull_point="small")
    log.put(*["<b/>"] * 99)
    log.append(Claimed("c", 1, 10, 1_000))
    log.put("<c/>", pull_point="small")
    assert (log.store.waiting("p"), log.store.waiting("small")) == (80, 2), "a tenth at once, with claimed ones"
    log.append(Settled("c"))
    log.put(*["<d/>"] * 18, pull_point="small")
    assert (log.store.waiting("p"), log.store.dropped) == (80, 9), "settled ones do not count"
    log.append(Claimed("all", 0, 1 << 20, 1_000))
    log.store.forget("small")
    log.put(*["<e/>"] * 20, pull_point="other")
    log.put(*["<f/>"] * 2, pull_point="other")
    assert (log.store.waiting("other"), log.store.total) == (19, 19), "only waiting ones can be dropped"


def test_one_search_shortens_several_of_many_short_queues() -> None:
    log = Log(PullLimits(messages=1_000, bytes=1_000_000, resident_bytes=0, total=5_000))
    for number in range(2_500):
        log.put("<a/>", "<b/>", pull_point=f"p{number}")
    for number in range(6):
        log.put("<c/>", pull_point=f"p{number}")
        assert log.store.dropped == (5 if number < 5 else 10)
    assert log.store.total == 4_996
