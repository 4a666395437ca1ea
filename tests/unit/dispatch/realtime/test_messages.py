"""Messages of the driver and of its workers."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.errors import InfrastructureError, RecordVersionError
from arborcast.core.eventlog.topics import PROGRESS_LOG
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.delivery.health import Sign
from arborcast.dispatch.hot.intake import Exclusions
from arborcast.dispatch.logs.held_lanes import HeldLanes
from arborcast.dispatch.realtime import driver, messages
from arborcast.dispatch.realtime.driver import ProgressListener, exclusion_changes
from arborcast.dispatch.realtime.messages import (
    VERSION,
    ExclusionChange,
    FeedPieces,
    WorkerProgress,
    WorkerUpdate,
    decode_feed,
    decode_progress,
    encode_feed,
    encode_feeds,
    encode_progress,
    progress_in_records,
    read_progress,
)
from arborcast.dispatch.realtime.task import changed_exclusions
from arborcast.dispatch.realtime.workers import LocalWorkers
from arborcast.dispatch.redelivery.events import NewLetters
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.topic_model.routing import Overlay, ViewStep
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from tests.support.listed_logs import ListedLogs

LANES = st.frozensets(st.sampled_from([f"lane{number}" for number in range(12)]))


def test_messages_round_trip() -> None:
    feed = WorkerUpdate(
        3, -1, 2, 17, base=b"/somewhere/x.base", step=ViewStep(17, Overlay("x")), complete=False, stop=True
    )
    assert decode_feed(*encode_feed(feed)) == feed
    progress = WorkerProgress(3, 1, 99, 3, signs=(("http://e/", Sign("slow")),), gone=frozenset({"s"}), stopped=True)
    assert decode_progress(*encode_progress(progress)) == progress
    with pytest.raises(InfrastructureError):
        decode_feed(b"3", b"nonsense")


def apply_change(held: HeldLanes, message: ExclusionChange) -> None:
    held.change(message.held, message.freed, message.read)


SETS = st.frozensets(st.sampled_from([f"http://e{number}/" for number in range(6)]))


@given(
    st.lists(
        st.builds(
            Exclusions, LANES, st.just({0: 1}), degraded=SETS, watched=SETS, unjudged=SETS, on_trial=SETS, erased=SETS
        ),
        max_size=5,
    ),
    st.integers(1, 5),
)
def test_changes_add_up_to_the_exclusions_of_the_driver(states: list[Exclusions], at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_NAMES_AT_ONCE", 5 * at_once)
        held, known, before = HeldLanes(), Exclusions(), Exclusions()
        for now in states:
            for each in exclusion_changes(before, now):
                apply_change(held, each)
                known = changed_exclusions(known, each)
            before = now
            assert known[2:] == now[2:]
            assert held.for_workers()[0] == now.held


def test_a_task_waits_until_the_driver_has_read_the_parked_log() -> None:
    held = HeldLanes()
    assert held.has_read({0: 0, 1: 0}), "nothing is parked"
    assert not held.has_read({0: 4, 1: 2})
    apply_change(held, ExclusionChange(read={0: 4, 1: 1}))
    assert not held.has_read({0: 4, 1: 2})
    apply_change(held, ExclusionChange(read={1: 2}))
    assert held.has_read({0: 4, 1: 2})


def sick(count: int) -> Exclusions:
    endpoints = frozenset(f"http://host-{number:06}.example/a/receiver/with/a/path" for number in range(count))
    return Exclusions(degraded=endpoints, watched=endpoints, on_trial=endpoints)


def test_sizes_of_changes_of_exclusions() -> None:
    now = sick(1_000)._replace(read={0: 1})
    trial = now._replace(on_trial=now.on_trial - {min(now.on_trial)}, read={0: 2})
    for change, most in ((trial, 1_000), (now._replace(read={0: 2}), 100)):
        (message,) = exclusion_changes(now, change)
        assert len(encode_feed(WorkerUpdate(3, 0, 0, 17, exclusions=message))[1]) < most

    messages = [WorkerUpdate(3, -1, 0, 17, exclusions=each) for each in exclusion_changes(Exclusions(), sick(100_000))]
    sizes = [len(encode_feed(each)[1]) for each in messages]
    assert len(sizes) > 10
    assert max(sizes) < 1024 * 1024


MOST = 512 * 1024


def test_large_messages_are_split_and_joined() -> None:
    large = Subscription("s", EndpointReference("http://e/", ("<x>" + "y" * 3_000_000 + "</x>",)))
    step = ViewStep(17, Overlay("x"), now=(large, large, large))
    feeds = [
        WorkerUpdate(3, -1, 0, 17, b"base"),
        WorkerUpdate(3, -1, 0, 17, step=step),
        WorkerUpdate(3, -1, 0, 17, stop=True),
    ]
    records = list(encode_feeds(feeds, MOST))
    assert max(len(value) for _, value in records) < MOST + 100
    read = [decode_feed(*each) for each in records]
    assert [each.back for each in read] == list(range(len(records))), "the distance from the first record"
    pieces = FeedPieces()
    whole = [found for each in read if (found := pieces.whole(each)) is not None]
    assert [msgspec.structs.replace(each, back=0) for each in whole] == feeds


def test_pieces_of_a_failed_append_are_dropped() -> None:
    records = [decode_feed(*each) for each in encode_feeds([WorkerUpdate(3, -1, 0, 1, b"x" * 1_000)], 500)]
    pieces, following = FeedPieces(), WorkerUpdate(3, -1, 0, 17, b"base")
    assert [pieces.whole(each) for each in (*records[:-1], following)] == [None] * (len(records) - 1) + [following]
    assert [pieces.whole(each) for each in records][-1] == WorkerUpdate(3, -1, 0, 1, b"x" * 1_000)


def test_progress_may_take_several_records() -> None:
    whole = WorkerProgress(
        3,
        1,
        99,
        3,
        notifications=7,
        deliveries=8,
        signs=tuple((f"http://host-{number}.example/", Sign("slow")) for number in range(10_000)),
        gone=frozenset(f"subscription-{number}" for number in range(10_000)),
        costly=frozenset({"s"}),
        matched=tuple((f"subscription-{number}", "a/topic", number) for number in range(20_000)),
        thinned=9,
        stopped=True,
        new_letters=NewLetters(4, "s", "http://receiver.example/", "HTTP 400"),
    )
    records = list(progress_in_records(whole))
    assert max(len(encode_progress(each)[1]) for each in records) < 64 * 1024
    assert [each.is_newer_than(None) for each in records] == [False] * (len(records) - 1) + [True]
    assert [each.stopped for each in records] == [False] * (len(records) - 1) + [True]
    for field in ("notifications", "deliveries", "thinned"):
        assert sum(getattr(each, field) for each in records) == getattr(whole, field)
    assert tuple(one for each in records for one in each.signs) == whole.signs
    assert tuple(one for each in records for one in each.matched) == whole.matched
    assert frozenset().union(*(each.gone for each in records)) == whole.gone
    assert [each.new_letters for each in records if each.new_letters.number] == [whole.new_letters]
    assert frozenset().union(*(each.costly for each in records)) == whole.costly
    assert list(progress_in_records(WorkerProgress(3, 1, 99, 3))) == [WorkerProgress(3, 1, 99, 3)]


def test_damaged_progress_is_skipped_and_ends_clean_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start reads no rows behind a clean position, and the damaged record may be of a later run."""
    logs = ListedLogs(monkeypatch)
    logs.scanned(monkeypatch, messages)
    written = [
        encode_progress(WorkerProgress(1, 0, 5, 1, clean=True)),
        (b"0", b"\xc1 no record"),
        encode_progress(WorkerProgress(2, 1, 7, 2, clean=True)),
    ]
    reports: list[PartitionReport] = []
    listener = ProgressListener(KafkaSettings(), reports.append, LocalWorkers())
    for offset, record in enumerate(written):
        logs.write(PROGRESS_LOG, *record)
        listener._read(record, offset)

    assert listener.damaged
    assert listener.known == {0: WorkerProgress(1, 0, 5, 1), 1: WorkerProgress(2, 1, 7, 2, clean=True)}
    assert {number: each.position for number, each in read_progress(KafkaSettings()).items()} == {0: 5, 1: 7}
    with pytest.raises(RecordVersionError):
        listener._read((b"0", msgspec.msgpack.encode({"v": VERSION + 1, "progress": {}})), 3)


def test_all_matches_with_a_valid_position_are_reported() -> None:
    """A record may have matches without a number of notifications, and may be read after the end of its worker."""
    reports: list[PartitionReport] = []
    listener = ProgressListener(KafkaSettings(), reports.append, LocalWorkers())
    listener.begin(2, 1)
    listener._apply(WorkerProgress(2, 0, 5, 2, taken=6, matched=(("s", "t", 1_000),)))
    listener.end_workers()
    listener._apply(WorkerProgress(2, 0, 8, 2, notifications=2, taken=8, matched=(("s", "t", 2_000),)))
    listener._apply(WorkerProgress(1, 0, 4, 1, notifications=1, taken=4, matched=(("s", "t", 500),)))
    assert listener.known[0].position == 8
    assert [report.matched for report in reports] == [{("s", "t"): 1_000}, {("s", "t"): 2_000}]
