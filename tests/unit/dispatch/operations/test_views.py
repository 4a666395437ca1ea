"""Views of waiting deliveries and dead letters. With Kafka: tests/integration/dispatch/test_waiting.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sized

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import parked
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.parked import Delivery, Parked, Place, Tries
from arborcast.dispatch.operations import dead_letters, views, waiting
from arborcast.dispatch.operations.dead_letters import _chunks
from arborcast.dispatch.operations.views import (
    DeliveryView,
    DeliveryViews,
    LettersView,
    PendingView,
    ViewEntry,
    ViewFilter,
    ViewGroup,
    letter_of,
    opened,
    pending_of,
)
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from tests.support.listed_logs import ListedLogs, cached_views
from tests.support.make import notification

KAFKA = KafkaSettings()


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> ListedLogs:
    return ListedLogs(monkeypatch)


@pytest.fixture
def kept() -> Iterator[DeliveryViews]:
    with cached_views() as views:
        yield views


def delivery(number: int, to: str = "s1") -> Delivery:
    return Delivery(to, Place(1, 0, number))


def message(number: int, topic: str = "a") -> Notification:
    return notification(f"n{number}", topic, b"<x/>" * 100, priority=number)


def letter(number: int, to: str = "s1", **more: object) -> DeadLetter:
    facts = {"state": "dead", "at_ms": number, "number": 6, "error": "server-error", "status": 500, **more}
    return DeadLetter(to, f"http://r/{to}", message(number), **facts)  # type: ignore[arg-type]


EVERYTHING = ViewFilter()


def names(
    view: DeliveryView, wanted: ViewFilter = EVERYTHING, limit: int = 9, skip: int = 0, *, newest_first: bool = False
) -> list[str]:
    entries = view.page(wanted, limit, skip, newest_first=newest_first).entries
    value = letter_of if isinstance(view, LettersView) else lambda entry: pending_of(entry.value)
    return [value(each).notification.id for each in entries]


def test_waiting_deliveries_by_time_without_their_messages(logs: ListedLogs) -> None:
    logs.park(delivery(2), message(2), at_ms=20)
    logs.park(delivery(1), message(1), Tries(1, 1, 9, 8), at_ms=10)
    logs.park(delivery(3), message(3), at_ms=30)
    logs.finished(delivery(3))
    logs.tried(delivery(9), Tries(1, 1, 9, 8))
    with opened(PendingView, KAFKA) as view:
        (first, second), counts = view.page(ViewFilter(), 9)
        assert names(view, newest_first=True) == ["n2", "n1"]
    entry = pending_of(first.value)
    assert (entry.notification.id, entry.notification.payload, entry.notification.priority) == ("n1", b"", 1)
    assert (first.at_ms, second.at_ms, entry.tries) == (10, 20, Tries(1, 1, 9, 8))
    assert counts == {ViewGroup("s1", "", TopicPath("a"), ""): 2}


def test_a_repeated_batch_and_a_requested_attempt(logs: ListedLogs) -> None:
    logs.park(delivery(1), message(1), Tries(1, 1, 90, 8), at_ms=10)
    logs.tried(delivery(1), Tries(2, 2, 99, 9))
    logs.park(delivery(1), message(1), Tries(1, 1, 90, 8), at_ms=70)
    with opened(PendingView, KAFKA) as view:
        (entry,), _ = view.page(ViewFilter(), 9)
        assert (entry.at_ms, pending_of(entry.value).tries) == (10, Tries(2, 2, 99, 9))
        logs.tried(delivery(1), Tries(2, 2, 50, 50))
        view.catch_up()
        (entry,), _ = view.page(ViewFilter(), 9)
        assert pending_of(entry.value).tries == Tries(2, 2, 50, 50)
        logs.records.clear()
        logs.park(delivery(3), message(3))
        view.catch_up()
        assert names(view) == ["n3"], "a log that was created again is read from its beginning"


def test_a_kept_view_reads_each_record_once(logs: ListedLogs, kept: DeliveryViews) -> None:

    def shown(kafka: KafkaSettings = KAFKA) -> tuple[list[str], int]:
        with opened(PendingView, kafka, kept) as view:
            return names(view, limit=2), logs.read

    for number in range(100):
        logs.park(delivery(number), message(number), at_ms=number)
    assert [shown() for _ in range(3)] == [(["n0", "n1"], 100)] * 3
    logs.finished(delivery(0))
    assert shown() == (["n1", "n2"], 102)
    assert [shown(each) for each in (KafkaSettings(prefix="other"), KAFKA)] == [
        (["n1", "n2"], 204),
        (["n1", "n2"], 306),
    ], "another Kafka: the view is read again"


def steps(view: PendingView, read: Callable[[], Sized]) -> int:
    """The database steps to read ten entries."""
    taken = 0

    def count() -> int:
        nonlocal taken
        taken += 1
        return 0

    view._db.set_progress_handler(count, 10)
    assert len(read()) == 10
    view._db.set_progress_handler(None, 0)
    return taken


def test_the_log_is_read_again_after_a_suspension_of_the_machine(
    logs: ListedLogs, kept: DeliveryViews, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nulls of deliveries that have ended meanwhile are compacted away. A monotonic clock does not count it."""
    logs.park(delivery(1), message(1))
    logs.park(delivery(2), message(2))
    with opened(PendingView, KAFKA, kept) as view:
        assert names(view) == ["n1", "n2"]
    before = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda clock: before(clock) + 3 * 86_400)
    logs.records["parked"][0].value = None  # its key is not in the log any more
    with opened(PendingView, KAFKA, kept) as view:
        assert names(view) == ["n2"]


def test_the_log_is_read_again_after_a_full_disk(logs: ListedLogs, kept: DeliveryViews) -> None:
    with kept.opened(PendingView, KAFKA) as view:
        view._db.execute("PRAGMA max_page_count = 30")
    for number in range(1_000):
        logs.park(delivery(number), message(number))
    with pytest.raises(InfrastructureError, match="disk is full"), kept.opened(PendingView, KAFKA):
        pass
    with kept.opened(PendingView, KAFKA) as view:
        assert view.count("s1") == 1_000


def test_the_cost_of_a_page_does_not_grow_with_the_log(logs: ListedLogs) -> None:
    one, within = ViewFilter(subscription="s3"), ViewFilter(since_ms=5, until_ms=3_990)

    def page(wanted: ViewFilter) -> int:
        return steps(view, lambda: view.page(wanted, 10).entries)

    def part(wanted: ViewFilter, after: int, newest_first: bool) -> int:
        return steps(view, lambda: view.following(wanted, 10, (after, 0, after), newest_first=newest_first))

    with opened(PendingView, KAFKA) as view:
        few: dict[ViewFilter, int] = {}
        for number in range(4_000):
            logs.park(delivery(number, f"s{number % 10}"), message(number), at_ms=number)
            if number == 199:
                view.catch_up()
                few = {wanted: page(wanted) for wanted in (EVERYTHING, one)}
        view.catch_up()
        assert view.page(EVERYTHING, 1).counts.total() == 4_000
        assert (view.count("s3"), view.count("none")) == (400, 0)
        for wanted in (EVERYTHING, one):
            assert page(wanted) <= 2 * few[wanted]
        for wanted in (EVERYTHING, within, one):
            assert part(wanted, 3_500, False) <= 2 * part(wanted, 10, False)
            assert part(wanted, 400, True) <= 2 * part(wanted, 3_900, True)


def test_attempts_are_requested_while_the_view_is_read(logs: ListedLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of a million waiting deliveries would need a gigabyte."""
    read, written, read_at_flush = 0, 0, []

    def counted(value: bytes) -> Parked:
        nonlocal read
        read += 1
        return pending_of(value)

    class Requests:
        def __init__(self, _kafka: KafkaSettings) -> None: ...

        def tried(self, _delivery: Delivery, _tries: Tries) -> None:
            nonlocal written
            written += 1

        def settle(self, _timeout_s: float) -> None:
            read_at_flush.append(read)

        def close(self) -> None: ...

    monkeypatch.setattr(waiting, "pending_of", counted)
    monkeypatch.setattr(waiting, "ParkingLog", Requests)
    for number in range(2_500):
        logs.park(delivery(number), message(number), at_ms=number)
    assert waiting.Waiting(KAFKA).request_attempts(EVERYTHING) == written == 2_500
    assert read_at_flush[0] < 2_500
    assert waiting.Waiting(KAFKA).request_attempts(EVERYTHING, 7) == 7


def test_pages_and_filters(logs: ListedLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(8):
        logs.park(delivery(number, f"s{number % 2}"), message(number, "ab"[number // 4]), at_ms=number)
    with opened(PendingView, KAFKA) as view:
        for merged in (0, 50):
            monkeypatch.setattr(views, "_MERGED", merged)
            assert names(view, limit=3, skip=2) == ["n2", "n3", "n4"]
            assert names(view, ViewFilter(subscription="s1")) == ["n1", "n3", "n5", "n7"]
            assert names(view, ViewFilter(group=lambda each: each.topic == "b")) == ["n4", "n5", "n6", "n7"]
            assert names(view, ViewFilter(group=lambda each: each.topic == "b", subscription="s0")) == ["n4", "n6"]
            assert names(view, ViewFilter(since_ms=2, until_ms=4)) == ["n2", "n3"]
            assert names(view, ViewFilter(notification="n5")) == ["n5"]
            assert names(view, ViewFilter(notification="n5", subscription="s0")) == []
        page = view.page(ViewFilter(test=lambda each: each.at_ms > 2), 2, 1)
        assert ([each.at_ms for each in page.entries], page.counts.total()) == ([4, 5], 5)


def test_dead_letters_have_groups_by_endpoint_and_reason(logs: ListedLogs) -> None:
    for number in (1, 2, 3):
        logs.bury(delivery(number), letter(number, response=b"no"))
    logs.bury(delivery(4, "s2"), letter(4, "s2", status=0, error="lifespan", state="expired"))
    logs.bury(delivery(2), None)
    logs.bury(delivery(3), letter(7, status=503))
    with opened(LettersView, KAFKA) as view:
        assert names(view, newest_first=True) == ["n7", "n4", "n1"]
        (newest, *_), counts = view.page(ViewFilter(), 9, newest_first=True)
        assert {(each.endpoint, each.reason): number for each, number in counts.items()} == {
            ("http://r/s1", "500"): 1,
            ("http://r/s1", "503"): 1,
            ("http://r/s2", "lifespan"): 1,
        }
        assert (letter_of(newest).notification.payload, letter_of(newest).response) == (b"", b"")
        assert view.count("s1") == 2


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("merged", [0, 50])
def test_concatenated_parts_equal_the_whole_list(
    logs: ListedLogs, monkeypatch: pytest.MonkeyPatch, newest_first: bool, merged: int
) -> None:
    """Also if entries of the same time, or of parts already read, are removed and added."""
    monkeypatch.setattr(views, "_MERGED", merged)

    def read(view: DeliveryView, wanted: ViewFilter) -> list[ViewEntry]:
        found: list[ViewEntry] = []
        while part := view.following(wanted, 2, found[-1].order if found else None, newest_first=newest_first):
            found += part
        return found

    for number in range(9):
        logs.park(delivery(number, f"s{number % 2}"), message(number, "ab"[number // 6]), at_ms=number // 4)
    some = ViewFilter(group=lambda each: each.topic == "a", test=lambda each: each.place != 3)
    with opened(PendingView, KAFKA) as view:
        for wanted in (EVERYTHING, some, ViewFilter(subscription="s1"), ViewFilter(since_ms=1, until_ms=2)):
            page = view.page(wanted, 9, newest_first=newest_first).entries
            assert read(view, wanted) == page
            assert len(page) in (9, 5, 4)
        first = view.following(EVERYTHING, 2, None, newest_first=newest_first)
        logs.finished(parked.decode_key(first[0].key)[0])
        logs.park(delivery(20), message(20), at_ms=99)
        view.catch_up()
        others = read(view, EVERYTHING)
        following = view.following(EVERYTHING, 99, first[1].order, newest_first=newest_first)
        assert following == others[1 if not newest_first else 2 :]


def test_chunks_of_dead_letters_by_number_and_by_bytes() -> None:
    def chunks(size: int, count: int) -> list[int]:
        one = DeadLetter("s", "http://s/", notification("n", payload=b"x" * size), "dead", 2, 3)
        return [len(each) for each in _chunks((delivery(number), one) for number in range(count))]

    assert chunks(10, 1_200) == [500, 500, 200]
    assert chunks(4 * 1024 * 1024, 10) == [4, 4, 2]
    assert chunks(2 * dead_letters._BYTES_AT_ONCE, 2) == [1, 1]
    assert chunks(1, 0) == []
