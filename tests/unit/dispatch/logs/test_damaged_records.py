"""Readers of the logs of parked deliveries and dead letters skip damaged records, which remain in a compacted log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from arborcast.admin import backup
from arborcast.admin.archive import read_log
from arborcast.core.errors import RecordVersionError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.hot import recovered
from arborcast.dispatch.hot.recovered import OutcomeEnds, parked_in_batch
from arborcast.dispatch.logs import parked
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.parked import Delivery, Place
from arborcast.dispatch.operations import dead_letters, erasure
from arborcast.dispatch.operations.dead_letters import LetterConditions
from arborcast.dispatch.operations.erasure import Eraser
from arborcast.dispatch.operations.views import DeliveryView, LettersView, PendingView, ViewFilter, opened
from arborcast.topic_model.projections.pull_store import PullLimits
from arborcast.topic_model.records.control import ErasureScope
from tests.support.listed_logs import ListedLogs
from tests.support.make import notification

KAFKA = KafkaSettings()
MESSAGE = notification("n1", "a")
DELIVERY = Delivery("s", Place(1, 0, 1))
LETTER = DeadLetter("s", "http://r/", MESSAGE, "dead", 1_000, 6)
GARBAGE = b"\xc1 no record"


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> ListedLogs:
    """A delivery and a letter between damaged records, one of which has the key of the delivery."""
    logs = ListedLogs(monkeypatch)
    logs.scanned(monkeypatch, recovered, dead_letters, erasure, backup)
    for log in ("parked", "dead"):
        logs.write(log, b"no key", GARBAGE)
        logs.write(log, b"\xff\t1.2.3", None)
    logs.park(DELIVERY, MESSAGE)
    logs.bury(DELIVERY, LETTER)
    for log in ("parked", "dead"):
        logs.write(log, DELIVERY.key(), GARBAGE)
        logs.write(log, b"s\t1.0.2", parked.encode(parked.Tried(parked.Tries()))[:-3])
    return logs


@pytest.mark.parametrize("kind", [PendingView, LettersView])
def test_views(logs: ListedLogs, kind: type[DeliveryView]) -> None:
    with opened(kind, KAFKA) as view:
        assert [each.key for each in view.page(ViewFilter(), 9).entries] == [DELIVERY.key()]
        newer = msgspec.msgpack.encode({"v": parked.VERSION + 1, "record": {}})
        logs.write(kind.log, DELIVERY.key(), newer)
        with pytest.raises(RecordVersionError):
            view.catch_up()


def test_letters_to_redrive_and_purge(logs: ListedLogs) -> None:
    assert list(dead_letters.letters(KAFKA, LetterConditions().includes)) == [(DELIVERY, LETTER)]


def test_deliveries_of_a_repeated_task(logs: ListedLogs) -> None:
    assert parked_in_batch(KAFKA, 1, OutcomeEnds(), 1.0) == [("s", "n1", DELIVERY.place)]
    assert parked_in_batch(KAFKA, 2, OutcomeEnds(), 1.0) == []
    assert parked_in_batch(KAFKA, 2, OutcomeEnds(), 1.0, {1}) == [("s", "n1", DELIVERY.place)]


def test_erasures(logs: ListedLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bytes] = []

    class Recording(Eraser):
        def _end(self, waiting: Mapping[bytes, Any]) -> None:
            ended.extend(waiting)

    class View:
        def subscription(self, _subscription_id: str) -> None:
            return None

    eraser = Recording(KAFKA, cast(Any, View()), dict, list, str, archive=False, unused_files_hours=1)
    assert eraser._waiting([ErasureScope("e", 1 << 42)]) == Counter({"e": 1})
    assert ended == [DELIVERY.key()]


def test_backups(logs: ListedLogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "read_progress", lambda _kafka: {})
    backup.backup(KAFKA, tmp_path, PullLimits(1, 1, 1))
    assert [each.value for each in read_log(tmp_path, "dead")] == [logs.records["dead"][2].value]
