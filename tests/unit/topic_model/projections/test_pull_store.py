"""The fold over what was put into pull points and taken out of them."""

from __future__ import annotations

import random

from arborcast.topic_model.projections.pull_store import PullLimits, PullStore, WaitingMessage
from arborcast.topic_model.records.pull import (
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


def test_messages_wait_in_the_order_of_the_log() -> None:
    log = Log()
    log.put("a", "b")
    log.put("other", pull_point="q")
    log.put("c")
    assert log.waiting() == ["a", "b", "c"]
    assert log.waiting("q") == ["other"]
    assert log.store.waiting("p") == 3
    assert log.store.head("unknown", 5, 100) == []
    assert log.woken == ["p", "p", "q", "p"]


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


def test_of_two_claims_for_the_same_messages_the_first_in_the_log_gets_them() -> None:
    log = Log()
    first, _, last = log.put("a", "b", "c")
    assert log.claim("one", first, last) == ["a", "b", "c"]
    assert log.claim("two", first, last) == []
    assert log.waiting() == []


def test_settled_is_gone_and_returned_waits_again_in_its_place() -> None:
    log = Log()
    a, b, c, _ = log.put("a", "b", "c", "d")
    log.claim("one", a, a)
    log.claim("two", b, c)
    log.append(Returned("two"))
    assert log.waiting() == ["b", "c", "d"]
    log.append(Settled("one"))
    log.append(Returned("one"))
    assert log.waiting() == ["b", "c", "d"]
    assert log.store.claimed("p", "one") == []


def test_a_claim_may_be_settled_for_some_of_its_messages() -> None:
    log = Log()
    a, b, c, _ = log.put("a", "b", "c", "d")
    log.claim("one", a, c)
    log.append(Returned("one", (a, c)))
    assert log.waiting() == ["b", "d"]
    assert [message.returned for message in log.store.head("p", 9, 99)] == [1, 0]
    assert log.store.resident_bytes == 2
    log.claim("two", b, b)
    log.append(Returned("two", (b,)))
    assert log.waiting() == ["d"]
    assert log.store.earliest() == 3


def test_claims_are_overdue_from_their_time_on() -> None:
    log = Log()
    (a,) = log.put("a")
    log.claim("one", a, a, until_ms=1_000)
    assert log.store.overdue(999) == []
    assert log.store.overdue(1_000) == [("p", "one")]
    log.append(Settled("one"))
    assert log.store.overdue(2_000) == []


def test_the_oldest_go_when_they_are_too_large_but_one_may_stay() -> None:
    log = Log(PullLimits(messages=10, bytes=5, resident_bytes=1_000))
    log.put("aaa", "bb")
    assert log.waiting() == ["aaa", "bb"]
    log.put("c")
    assert log.waiting() == ["bb", "c"]
    log.put("far too large")
    assert log.waiting() == ["far too large"]


def test_what_comes_back_counts_again() -> None:
    log = Log(PullLimits(messages=2, bytes=1_000, resident_bytes=1_000))
    a, _ = log.put("a", "b")
    log.claim("one", a, a)
    log.put("c")
    log.append(Returned("one"))
    assert log.waiting() == ["b", "c"]


def test_elements_beyond_the_memory_stay_in_the_log() -> None:
    log = Log(PullLimits(messages=10, bytes=1_000, resident_bytes=4))
    a, *_ = log.put("aaa", "bbb")
    assert log.waiting() == ["aaa", "?"]
    assert log.store.resident_bytes == 3
    log.claim("one", a, a)
    log.append(Settled("one"))
    assert log.store.resident_bytes == 0
    log.put("ccc")
    assert log.waiting() == ["?", "ccc"]


def test_forgetting_a_pull_point_frees_all_of_it() -> None:
    log = Log()
    a, _ = log.put("a", "b")
    log.claim("one", a, a)
    log.store.forget("p")
    assert (log.store.resident_bytes, log.store.ids(), log.store.earliest()) == (0, [], None)
    log.append(Settled("one"))
    log.append(Returned("one"))
    assert log.waiting() == []


def test_the_earliest_offset_needed_counts_claimed_messages() -> None:
    log = Log()
    a, b, _ = log.put("a", "b", "c")
    log.claim("one", a, a)
    assert log.store.earliest() == a
    log.append(Settled("one"))
    assert log.store.earliest() == b


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
