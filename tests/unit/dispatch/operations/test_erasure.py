"""Payloads in the archive are emptied file by file; rows and other payloads stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from deltalake import DeltaTable

from arborcast.admin import erasures
from arborcast.admin.erasures import ErasureRequest
from arborcast.admin.filters import TopicTest
from arborcast.core.errors import ArborcastError, ConfigError, ExpressionError
from arborcast.core.eventlog.topics import PULL_LOG
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.parked import Delivery, Place
from arborcast.dispatch.operations import erasure
from arborcast.dispatch.operations.erasure import Eraser
from arborcast.dispatch.tables import NOTIFICATIONS
from arborcast.dispatch.tables.delta_table import DeltaTableWriter
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.projections.erasures import Erasures
from arborcast.topic_model.projections.pull_store import PullLimits, PullStore
from arborcast.topic_model.records import notifications, pull
from arborcast.topic_model.records.control import Erasure, ErasureScope, Tombstone
from arborcast.topic_model.records.pull import Claimed, PullRecord, Returned, Settled, StoredMessage
from tests.support.listed_logs import ListedLogs
from tests.support.make import notification
from tests.support.table_rows import neutral
from tests.support.written_operations import WrittenOperations

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
EVER_MS = 1 << 42


def row(number: int, topic: str, payload: bytes, days_ago: int = 0) -> dict[str, object]:
    at = NOW - timedelta(days=days_ago)
    times = {"day": at.date(), "accepted_at": at, "logged_at": at, "recorded_at": at}
    own = {"notification": f"n{number:03}", "topic": topic, "payload": payload, "payload_bytes": len(payload)}
    return neutral(NOTIFICATIONS, **times, **own)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two days, in several files."""
    writer = DeltaTableWriter(NOTIFICATIONS, str(tmp_path / "notifications"))
    for commit in range(4):
        numbers = range(commit * 10, commit * 10 + 10)
        rows = [row(each, "a" if each % 2 else "b", b'<p id="%d"/>' % (each % 10), each % 2) for each in numbers]
        writer.extend(NOTIFICATIONS.arrow(rows), {"notifications-0": commit})
    return tmp_path


def erase(folder: Path, *scopes: ErasureScope) -> dict[str, int]:
    made = Eraser(
        KafkaSettings(),
        cast(Any, Erasures()),
        dict,
        list,
        lambda spec: str(folder / spec.name),
        archive=True,
        unused_files_hours=1,
    )
    return dict(made._archived(scopes))


def left(folder: Path) -> dict[str, bytes]:
    """The remaining payloads, by notification; checks that no row is missing."""
    rows = NOTIFICATIONS.read(DeltaTable(str(folder / "notifications"))).to_pylist()
    assert len(rows) == 40
    assert all(bool(each["payload"]) is (each["erased"] is None) for each in rows)
    return {each["notification"]: each["payload"] for each in rows if each["payload"]}


SMALL, LARGE = 1, 1 << 25
ODD = {each for each in range(40) if each % 2}


@pytest.mark.parametrize(
    ("file_bytes", "scope", "emptied"),
    [
        (SMALL, ErasureScope("e", EVER_MS, topic="a"), ODD),
        (LARGE, ErasureScope("e", EVER_MS, topic="a"), ODD),
        (SMALL, ErasureScope("e", EVER_MS, subject="7"), {7, 17, 27, 37}),
        (LARGE, ErasureScope("e", EVER_MS, notification="n013"), {13}),
        (SMALL, ErasureScope("e", int((NOW - timedelta(hours=1)).timestamp() * 1000)), ODD),
        (LARGE, ErasureScope("e", EVER_MS, topic="a", subject="8"), set()),
        (SMALL, ErasureScope("e", 0), set()),
    ],
)
def test_payloads_of_an_erasure_are_emptied(
    table: Path, monkeypatch: pytest.MonkeyPatch, file_bytes: int, scope: ErasureScope, emptied: set[int]
) -> None:
    monkeypatch.setattr(erasure, "_FILE_BYTES", file_bytes)
    monkeypatch.setattr(erasure, "_ROWS_AT_ONCE", 3)
    assert erase(table, scope) == ({"e": len(emptied)} if emptied else {})
    assert left(table).keys() == {f"n{each:03}" for each in range(40) if each not in emptied}
    assert erase(table, scope) == {}, "a second pass finds nothing"


def test_a_replay_is_erased_by_the_time_of_the_first_acceptance(tmp_path: Path) -> None:
    old, new = (f"{int((NOW - timedelta(days=days)).timestamp() * 1000):012x}7{0:019x}" for days in (9, 2))
    writer = DeltaTableWriter(NOTIFICATIONS, str(tmp_path / "notifications"))
    for number, name in enumerate((f"{old}~r1", new, f"{new}~r1")):
        archived = row(number, "a", b"<p>4711</p>", days_ago=1) | {"notification": name}
        writer.extend(NOTIFICATIONS.arrow([archived]), {"notifications-0": number})
    before_ms = int((NOW - timedelta(days=7)).timestamp() * 1000)
    assert erase(tmp_path, ErasureScope("e", before_ms, subject="4711")) == {"e": 1}
    rows = NOTIFICATIONS.read(DeltaTable(str(tmp_path / "notifications"))).to_pylist()
    assert {each["notification"] for each in rows if each["payload"]} == {new, f"{new}~r1"}
    assert erase(tmp_path, ErasureScope("e", before_ms)) == {}


class Pass:
    """An eraser over logs in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.logs = ListedLogs(monkeypatch)
        self.logs.scanned(monkeypatch, erasure)
        self.cuts: list[int] = []
        self.appended: list[int] = []
        monkeypatch.setattr(erasure, "LogWriter", lambda _kafka, log: self)
        monkeypatch.setattr(erasure, "Admin", lambda _kafka: self)
        settled = {0: 1_000}
        self.eraser = Eraser(
            KafkaSettings(), cast(Any, Erasures()), lambda: settled, list, str, archive=False, unused_files_hours=1
        )

    def append_encoded(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        self.appended.append(len(records))
        for key, value in records:
            self.logs.write(PULL_LOG, key, value)

    def delete_before(self, _topic: str, _partition: int, offset: int) -> None:
        self.cuts.append(offset)

    def close(self) -> None:
        """No connection."""

    def pull(self, point: str, record: PullRecord) -> None:
        self.append_encoded([pull.encode(point, record)])

    def pullable(self) -> list[bytes]:
        store, messages = PullStore(PullLimits(100, 1 << 20, 0)), {}
        for each in self.logs.records[PULL_LOG]:
            if each.value is not None and each.key:
                point, record = pull.decode(each.key, each.value)
                store.apply(point, record, each.offset)
                messages[each.offset] = record
        left = [messages[each] for each in sorted(store.unsettled())]
        return [each.element for each in left if isinstance(each, StoredMessage)]


def test_an_erasure_keeps_few_messages_of_pull_points_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasure, "_AT_ONCE", 2)
    passes = Pass(monkeypatch)
    for number in range(8):
        element = b"<e>n%d<p>%s</p></e>" % (number, b"7" if number < 7 else b"8")
        passes.pull("pq"[number % 2], StoredMessage(element, accepted_ms=1))
    for claim, offset in (("settled", 0), ("kept", 2), ("returned", 4)):
        passes.pull("p", Claimed(claim, offset, offset, 1))
    passes.pull("p", Settled("settled"))
    passes.pull("p", Returned("returned"))
    scopes = [ErasureScope("e", EVER_MS, subject="7")]
    assert passes.eraser._pull_points(scopes) == Counter({"e": 5})
    assert passes.eraser._pull_points(scopes) == {"e": 0}, "a client has claimed a message"
    passes.pull("p", Settled("kept"))
    assert passes.eraser._pull_points(scopes) == {}
    assert max(passes.appended) == 2 * 2, "a claim and a settlement for each message"
    assert passes.pullable() == [b"<e>n7<p>8</p></e>"]


@pytest.mark.parametrize("over", range(8))
def test_an_erasure_ends_all_waiting_deliveries_with_few_in_memory(monkeypatch: pytest.MonkeyPatch, over: int) -> None:
    """Also behind others that have ended: their records are in the log, too."""
    monkeypatch.setattr(erasure, "_AT_ONCE", 2)
    passes, ended = Pass(monkeypatch), list[list[bytes]]()
    monkeypatch.setattr(passes.eraser, "_row", lambda *_: None)
    monkeypatch.setattr(passes.eraser, "_end", lambda waiting: ended.append(list(waiting)))
    deliveries = [Delivery("s", Place(1, 0, number)) for number in range(7)]
    for each in deliveries:
        passes.logs.park(each, notification("n"))
    for each in deliveries[:over]:
        passes.logs.finished(each)
    assert passes.eraser._waiting([ErasureScope("e", EVER_MS)]) == Counter(e=7 - over)
    assert [key for some in ended for key in some] == [each.key() for each in deliveries[over:]]
    assert max(map(len, ended), default=0) <= 2


def test_erasure_with_a_gateway_clock_off_by_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway's times differ from Kafka's, as with a wrong time zone."""
    passes, hour_ms = Pass(monkeypatch), 3_600_000
    before_ms = 100 * hour_ms
    for number, accepted_ms in enumerate((90, 95, 101, 96, 105)):
        made = notification(f"n{number}", "a", accepted_ms=accepted_ms * hour_ms)
        passes.logs.write("notifications", *notifications.encode(made), (90 + number) * hour_ms)
    assert not passes.eraser._cut(ErasureScope("e", before_ms)), "a covered record is behind an uncovered one"
    assert passes.cuts == [2]


def test_an_erasure_that_is_requested_during_a_step_is_not_forgotten() -> None:
    state, appended = Erasures(), list[object]()
    state.apply(Erasure(ErasureScope("new", EVER_MS), "ann", 1))
    state.apply(Erasure(ErasureScope("old", 1), "ann", 1, done_ms=2, kept_until_ms={"tables": 3}))
    view = cast(Any, SimpleNamespace(erasures=state))
    Eraser(KafkaSettings(), view, dict, appended.extend, str, archive=False, unused_files_hours=1)._forget()
    assert appended == [Tombstone.of("erase", "old")]


def test_two_erasures_in_one_pass(table: Path, tmp_path: Path) -> None:
    both = ErasureScope("e1", EVER_MS, subject="1"), ErasureScope("e2", EVER_MS, topic="b")
    assert erase(table, *both) == {"e1": 4, "e2": 20}
    assert len(left(table)) == 16
    assert erase(tmp_path / "without an archive", ErasureScope("e", EVER_MS)) == {}


@pytest.mark.parametrize(
    ("refused", "error", "why"),
    [
        (ErasureRequest(), ConfigError, "name what to erase"),
        (ErasureRequest(before="soon"), ConfigError, "write a span"),
        (ErasureRequest(before="2099-01-01"), ConfigError, "in the future"),
        (ErasureRequest(topic=TopicTest("a/*[")), ExpressionError, "."),
    ],
)
def test_bad_requests_change_nothing(
    refused: ErasureRequest, error: type[ArborcastError], why: str, written_operations: WrittenOperations
) -> None:
    with pytest.raises(error, match=why):
        erasures.erase(KafkaSettings(), refused, control=ControlView())
    assert written_operations.records == []
