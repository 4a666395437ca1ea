"""Payloads of the archive are emptied file by file; rows, and what no erasure covers, stay."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from deltalake import DeltaTable

from arborcast.admin import erasures
from arborcast.admin.erasures import ErasureRequest
from arborcast.admin.filters import TopicTest
from arborcast.core.errors import ArborcastError, ConfigError, ExpressionError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.operations import erasure
from arborcast.dispatch.operations.erasure import Eraser
from arborcast.dispatch.tables import NOTIFICATIONS
from arborcast.dispatch.tables.delta_table import DeltaTableWriter
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.projections.erasures import Erasures
from arborcast.topic_model.records.control import ErasureScope
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
    """The payloads that are there, by notification; all rows are."""
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


def test_two_erasures_are_carried_out_together(table: Path, tmp_path: Path) -> None:
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
