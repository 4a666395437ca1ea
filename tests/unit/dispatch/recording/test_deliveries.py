from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from arborcast.dispatch.logs import attempts
from arborcast.dispatch.logs.attempts import RUN_NUMBERS, Attempt
from arborcast.dispatch.recording.attempts_tables import EndedDeliveries, delivery_rows
from arborcast.dispatch.tables.delta_table import rows_of
from arborcast.topic_model.topics import TopicPath


def attempt(notification: str, state: str, **more: object) -> Attempt:
    values: dict[str, object] = {"batch": 1, "number": 1, "accepted_ms": 1_000, "started_ms": 1_200, **more}
    return Attempt(
        notification=notification,
        subscription=str(values.pop("subscription", "s")),
        topic=TopicPath("a"),
        endpoint="http://e/",
        push="p",
        state=state,  # type: ignore[arg-type]
        duration_ms=30.5,
        **values,  # type: ignore[arg-type]
    )


def rows(*made: Attempt) -> pa.Table:
    return rows_of(attempts.encode(made))


def states(location: Path) -> list[tuple[str, str, str, int]]:
    found = DeltaTable(str(location)).to_pyarrow_table().to_pylist()
    return sorted((row["notification"], row["subscription"], row["state"], row["attempts"]) for row in found)


def test_delivery_has_its_latencies() -> None:
    (row,) = delivery_rows(rows(attempt("n", "delivered"))).to_pylist()

    assert row == {
        "day": date(1970, 1, 1),
        "notification": "n",
        "subscription": "s",
        "topic": "a",
        "endpoint": "http://e/",
        "state": "delivered",
        "error": "",
        "attempts": 1,
        "accepted_at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "ended_at": datetime(1970, 1, 1, 0, 0, 1, 230_500, UTC),
        "waited_ms": 200.0,
        "push_ms": 30.5,
        "latency_ms": 230.5,
        "batch": 1,
    }


def test_gateway_whose_clock_is_ahead_makes_no_negative_wait() -> None:
    (row,) = delivery_rows(rows(attempt("n", "delivered", accepted_ms=1_300))).to_pylist()

    assert (row["waited_ms"], row["latency_ms"]) == (0.0, 30.5)


def test_only_what_has_ended_is_a_row_and_the_last_word_counts() -> None:
    made = rows(
        attempt("waits", "parked"),
        attempt("tried-again", "parked"),
        attempt("tried-again", "delivered", number=2),
        attempt("sent-again", "dead"),
        attempt("sent-again", "delivered", number=2),
    )

    found = {row["notification"]: (row["state"], row["attempts"]) for row in delivery_rows(made).to_pylist()}
    assert found == {"tried-again": ("delivered", 2), "sent-again": ("delivered", 2)}


def test_batch_that_spark_pushed_again_after_a_crash_makes_no_second_row(tmp_path: Path) -> None:
    location = tmp_path / "deliveries"
    table = EndedDeliveries(str(location))
    table.append(rows(attempt("n1", "delivered", batch=6), attempt("n2", "delivered", batch=7)), {})

    # Batch 7 was cut short: what it had pushed comes again, in a later batch of the record query.
    again = rows(
        attempt("n2", "delivered", batch=7),
        attempt("n2", "delivered", batch=7, subscription="t"),
        attempt("n3", "delivered", batch=7),
        attempt("n4", "delivered", batch=8),
    )
    EndedDeliveries(str(location)).append(again, {})

    assert states(location) == [
        ("n1", "s", "delivered", 1),
        ("n2", "s", "delivered", 1),
        ("n2", "t", "delivered", 1),
        ("n3", "s", "delivered", 1),
        ("n4", "s", "delivered", 1),
    ]


def test_dead_letter_that_was_sent_again_is_one_delivery(tmp_path: Path) -> None:
    location = tmp_path / "deliveries"
    table = EndedDeliveries(str(location))
    table.append(rows(attempt("n1", "dead", batch=1, number=5), attempt("o'n2", "dead", batch=1)), {})

    table.append(rows(attempt("n1", "delivered", batch=-1, number=6), attempt("n3", "expired", batch=-1, number=0)), {})

    assert states(location) == [("n1", "s", "delivered", 6), ("n3", "s", "expired", 0), ("o'n2", "s", "dead", 1)]


def test_compaction_that_comes_between_does_not_stop_the_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = tmp_path / "deliveries"
    table = EndedDeliveries(str(location))
    for number in range(4):
        table.append(rows(attempt(f"n{number}", "dead", batch=number, number=5)), {})
    times = 0
    merge = DeltaTable.merge

    def raced(delta: DeltaTable, *given: Any, **named: Any) -> Any:
        """Upkeep joins files after the merge has looked at the table, and before it commits."""
        nonlocal times
        merger = merge(delta, *given, **named)
        if times:
            times -= 1
            upkeep = DeltaTable(str(location))
            upkeep.optimize.compact()
            # The next time there has to be something to join again.
            write_deltalake(upkeep, delivery_rows(rows(attempt(f"x{times}", "delivered"))), mode="append")
        return merger

    monkeypatch.setattr(DeltaTable, "merge", raced)
    again = rows(attempt("n1", "delivered", batch=-1, number=6))

    times = 99
    with pytest.raises(CommitFailedError):
        table.append(again, {"reached": 1})
    assert ("n1", "s", "dead", 5) in states(location), "a race that is lost for good changes nothing"

    times = 2
    table.append(again, {"reached": 1})

    assert [row for row in states(location) if row[0].startswith("n")] == [
        ("n0", "s", "dead", 5),
        ("n1", "s", "delivered", 6),
        ("n2", "s", "dead", 5),
        ("n3", "s", "dead", 5),
    ]
    assert table.table.progress("reached") == 1


def test_new_checkpoint_that_begins_at_the_beginning_of_the_log_makes_no_second_rows(tmp_path: Path) -> None:
    location = tmp_path / "deliveries"
    hour_ms = 3_600_000
    table = EndedDeliveries(str(location))
    table.append(rows(attempt("n1", "delivered", batch=6), attempt("n2", "dead", batch=7)), {})

    # What it comes to first, and later ones: all that was accepted before it began may be in the table.
    later = {"accepted_ms": 2 * hour_ms, "started_ms": 2 * hour_ms}
    again = rows(
        attempt("n1", "delivered", batch=RUN_NUMBERS, started_ms=hour_ms),
        attempt("n3", "delivered", batch=RUN_NUMBERS, started_ms=hour_ms),
    )
    table.append(again, {})
    second = rows(
        attempt("n2", "delivered", batch=RUN_NUMBERS + 1, number=2, started_ms=hour_ms),
        attempt("n3", "delivered", batch=RUN_NUMBERS + 1, started_ms=hour_ms),
        attempt("n4", "delivered", batch=RUN_NUMBERS + 1, **later),
    )
    EndedDeliveries(str(location)).append(second, {})

    assert states(location) == [
        ("n1", "s", "delivered", 1),
        ("n2", "s", "delivered", 2),
        ("n3", "s", "delivered", 1),
        ("n4", "s", "delivered", 1),
    ]

    asked: list[object] = []
    table._states = lambda keys: asked.extend(keys) or {}  # type: ignore[method-assign,func-returns-value]
    table.append(rows(attempt("n5", "delivered", batch=RUN_NUMBERS + 2, **later)), {})
    assert not asked, "what was accepted since is looked up as little as ever"
