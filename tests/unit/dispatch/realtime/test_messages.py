"""What driver and workers tell each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InfrastructureError
from dispatch.delivery.health import Sign
from dispatch.realtime import driver
from dispatch.realtime.driver import Told, changes_of_told
from dispatch.realtime.held_here import HeldHere
from dispatch.realtime.messages import (
    Diverted,
    Feed,
    WorkerProgress,
    decode_feed,
    decode_progress,
    encode_feed,
    encode_progress,
)
from topic_model.routing import Overlay, ViewStep

LANES = st.frozensets(st.sampled_from([f"lane{number}" for number in range(12)]))


def test_messages_come_out_as_they_went_in() -> None:
    feed = Feed(3, -1, 2, 17, base=b"/somewhere/x.base", step=ViewStep(17, Overlay("x")), complete=False, stop=True)
    assert decode_feed(*encode_feed(feed)) == feed
    progress = WorkerProgress(3, 1, 99, 3, signs=(("http://e/", Sign("slow")),), gone=frozenset({"s"}), stopped=True)
    assert decode_progress(*encode_progress(progress)) == progress
    with pytest.raises(InfrastructureError):
        decode_feed(b"3", b"nonsense")


def test_where_a_run_of_an_earlier_version_was_is_known() -> None:
    first = msgspec.msgpack.encode({"v": 1, "progress": [30, 1, 99, 2, False, 2, 4, [], ["s"], [], 0, True, 7_200_000]})
    assert decode_progress(b"1", first) == WorkerProgress(30, 1, 99, 30, task=-1)
    clean = msgspec.msgpack.encode({"v": 1, "progress": [30, 1, 99, 2, True]})
    assert decode_progress(b"1", clean) == WorkerProgress(30, 1, 99, 30, clean=True, task=-1)
    second = msgspec.msgpack.encode({"v": 2, "progress": [30, 1, 99, 20, 7_200_000, False, 2, 4, [], ["s"], [], 0]})
    assert decode_progress(b"1", second) == WorkerProgress(30, 1, 99, 20, task=-1)
    clean = msgspec.msgpack.encode({"v": 2, "progress": [30, 1, 99, 20, 7_200_000, True]})
    assert decode_progress(b"1", clean) == WorkerProgress(30, 1, 99, 20, clean=True, task=-1)


class Parked:
    """What a worker's own parking log says: lanes, each with its offset in partition 0."""

    def __init__(self) -> None:
        self.lanes: dict[str, int] = {}

    def __contains__(self, lane: object) -> bool:
        return lane in self.lanes

    def forget_read(self, positions: Mapping[int, int]) -> None:
        self.lanes = {lane: at for lane, at in self.lanes.items() if positions.get(0, 0) <= at}


@given(st.lists(LANES, min_size=1, max_size=6), st.integers(1, 5))
def test_workers_hold_what_the_driver_holds(states: list[frozenset[str]], at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_LANES_AT_ONCE", at_once)
        parked = Parked()
        held, before = HeldHere(parked, parked.forget_read), Told()
        for number, state in enumerate(states):
            now = Told(state, {0: number}, degraded=frozenset({f"http://{number}/"}))
            for message in changes_of_told(before, now):
                held.hear(message)
            before = now
            assert {name for name in (f"lane{each}" for each in range(12)) if name in held} == state


def test_what_was_parked_here_is_held_until_the_driver_has_read_it() -> None:
    parked = Parked()
    held, before = HeldHere(parked, parked.forget_read), Told()
    parked.lanes["a"] = 10

    def hears(now: Told) -> bool:
        nonlocal before
        for message in changes_of_told(before, now):
            held.hear(message)
        before = now
        return "a" in held

    assert hears(Told(read={0: 10})), "the driver has not read it"
    assert hears(Told(frozenset({"a"}), {0: 11})), "it has, and has something to be tried"
    assert not hears(Told(frozenset(), {0: 11})), "it was tried"
    parked.lanes["a"] = 20
    assert hears(Told(frozenset(), {0: 15}))


def test_a_task_begins_when_the_driver_knows_what_the_one_before_has_parked() -> None:
    parked = Parked()
    held = HeldHere(parked, parked.forget_read)
    assert held.knows({0: 0, 1: 0}), "nothing was ever parked"
    assert not held.knows({0: 4, 1: 2})
    held.hear(Diverted(read={0: 4, 1: 1}))
    assert not held.knows({0: 4, 1: 2})
    held.hear(Diverted(read={1: 2}))
    assert held.knows({0: 4, 1: 2})


def test_changes_in_pieces_free_nothing_too_early(tmp_path: Path) -> None:
    many = frozenset(f"s{number}" for number in range(5_000))
    messages = list(changes_of_told(Told(), Told(many, {0: 9})))
    assert [message.read for message in messages] == [{}, {}, {0: 9}], "offsets count when all is said"
    assert frozenset().union(*(message.held for message in messages)) == many
