from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jobs.gateway.lease import (
    HOLD_S,
    LEASE_S,
    RENEW_S,
    Lease,
    LeaseRecord,
    decode,
    encode,
)


class Group:
    """Candidates on one log, with one clock."""

    def __init__(self, *names: str) -> None:
        self.log: list[LeaseRecord] = []
        self.candidates = {name: Lease(name) for name in names}
        self.read = dict.fromkeys(names, 0)
        self.now = 0.0

    def follow(self, name: str) -> None:
        for record in self.log[self.read[name] :]:
            self.candidates[name].apply(record, self.now)
        self.read[name] = len(self.log)

    def look(self, name: str) -> None:
        """What a process does again and again: read to the end, append, read that too."""
        self.follow(name)
        record = self.candidates[name].next(self.now)
        if record is not None:
            self.log.append(record)
            self.follow(name)

    def holders(self) -> list[str]:
        return [name for name, candidate in self.candidates.items() if candidate.mine]


def test_the_first_takes_it_and_the_second_waits() -> None:
    group = Group("a", "b")
    group.look("a")
    group.look("b")

    assert group.holders() == ["a"]
    assert len(group.log) == 1, "who waits writes nothing"


def test_of_two_claims_at_the_same_moment_the_first_in_the_log_counts() -> None:
    group = Group("a", "b")
    claims = [group.candidates[name].next(0.0) for name in ("b", "a")]
    group.log += [claim for claim in claims if claim]
    group.follow("a")
    group.follow("b")

    assert group.holders() == ["b"]


def test_a_silent_holder_loses_it_within_ten_seconds_and_not_before_its_time() -> None:
    group = Group("a", "b")
    group.look("a")
    group.look("b")
    while not group.candidates["b"].mine and group.now < 20:  # a is dead: it neither reads nor writes
        group.now += RENEW_S
        group.look("b")

    assert group.candidates["b"].mine
    assert HOLD_S < LEASE_S < group.now < 10


def test_a_holder_that_wakes_up_late_sees_that_it_has_lost() -> None:
    group = Group("a", "b")
    group.look("a")
    group.look("b")
    group.now = LEASE_S + 1
    group.look("b")
    late = group.candidates["a"].next(group.now)
    assert late is not None
    assert late.kind == "renewal"
    group.log.append(late)
    group.follow("a")
    group.follow("b")

    assert group.holders() == ["b"], "a renewal of a past term is nothing"


def test_what_is_released_is_free_at_once() -> None:
    group = Group("a", "b")
    group.look("a")
    group.look("b")
    word = group.candidates["a"].release()
    assert word is not None
    group.log.append(word)
    group.follow("a")
    group.look("b")

    assert group.holders() == ["b"]
    assert group.candidates["a"].release() is None


def test_a_restarted_process_takes_up_its_own_lease_at_once() -> None:
    group = Group("host/8080#1", "host/8080#2", "host/8081#3")
    former, again, other = group.candidates
    group.look(former)
    group.look(other)
    assert group.holders() == [former]
    group.look(again)
    group.follow(former)

    assert group.holders() == [again]
    assert group.candidates[again].term == 2


def test_one_who_sees_only_a_claim_that_came_second_learns_the_holder_from_its_renewal() -> None:
    late = Lease("c")
    late.apply(LeaseRecord(kind="claim", holder="b", term=7), 0.0)  # the first claim is no longer in the log
    late.apply(LeaseRecord(kind="renewal", holder="a", term=7), 1.0)

    assert late.holder == "a"
    assert late.next(2.0) is None


def test_records_come_back_as_they_were() -> None:
    record = LeaseRecord(kind="renewal", holder="host/8080", term=3)

    assert decode(*encode(record)) == record


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["look", "follow", "wait", "long"])), max_size=60))
def test_never_two_who_have_read_everything(steps: list[tuple[str, str]]) -> None:
    group = Group("a", "b", "c")
    for name, step in steps:
        match step:
            case "look":
                group.look(name)
            case "follow":
                group.follow(name)
            case _:
                group.now += RENEW_S if step == "wait" else LEASE_S + 1
    for name in group.candidates:
        group.follow(name)

    assert len(group.holders()) <= 1
