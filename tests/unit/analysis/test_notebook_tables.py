from __future__ import annotations

import ast
import atexit
import dataclasses
import os
import shutil
import socket
import tempfile
import time
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import arborcast.analysis
from arborcast.analysis import Tables, reader, tables
from arborcast.analysis.reader import NoSuchTable
from arborcast.cli.reference import EXAMPLES
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.operations.audit import Problem, Report, Tally
from arborcast.dispatch.settings import TableSettings
from arborcast.dispatch.tables import DEAD_LETTERS, RETRIES, ROUTES, SUBSCRIPTIONS, TABLES, TOPICS
from arborcast.dispatch.tables.delta_table import DeltaTableWriter
from arborcast.engine.install import jars, java
from arborcast.engine.settings.loading import load_settings
from arborcast.topic_model.topics import TopicPath
from tests.support.table_rows import NOON, NOON_MS, attempt, fill, neutral, record

COUNTS = ("begun", "delivered", "dead", "expired", "cancelled", "dropped", "waiting", "missing", "twice")
NONE = dict.fromkeys(COUNTS, 0)


@pytest.fixture
def engine(tmp_path: Path) -> Tables:
    # A port without a listener.
    return Tables(load_settings(home=tmp_path, environ={"ARBORCAST_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}))


def test_every_table_is_an_attribute_of_the_engine(
    engine: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for spec in TABLES:
        spec.ensure(spec.location(engine.settings.tables, tmp_path))
        assert len(getattr(engine, spec.name)) == 0
        assert [*getattr(engine, spec.name).columns.index] == [column.name for column in spec.columns]
    monkeypatch.setenv("ARBORCAST_HOME", str(tmp_path / "other"))
    assert Tables().attempts.location == str(tmp_path / "other" / "tables" / "attempts")
    assert "tables" in repr(tables.attempts)


def test_spans_of_time_have_each_row_once(engine: Tables, tmp_path: Path) -> None:
    record(tmp_path, *(attempt(f"n{hour}", "s", "delivered", hour * 3_600_000) for hour in range(0, 48, 6)))
    days = [NOON + timedelta(days=number) for number in range(-1, 4)]

    found = [engine.attempts.pandas(["notification"], since=day, until=day + timedelta(days=1)) for day in days]

    assert [len(frame) for frame in found] == [0, 4, 4, 0, 0]
    assert pd.concat(found).notification.is_unique
    assert len(engine.attempts.pandas(where=ds.field("notification") == "n6")) == 1
    assert len(engine.attempts.pandas(since=NOON)) == len(engine.attempts) == 8
    assert len(engine.attempts.pandas(since=timedelta(seconds=1))) == 0


def test_errors_of_questions_name_their_reason(engine: Tables, tmp_path: Path) -> None:
    with pytest.raises(NoSuchTable, match="there is no table at"):
        engine.attempts.pandas()
    fill(tmp_path, TOPICS, [])
    with pytest.raises(NoSuchTable, match="no column of time"):
        engine.topics.pandas(since=NOON)
    with pytest.raises(ValueError, match="no time zone"):
        engine.attempts.pandas(since=datetime(2026, 1, 1))  # noqa: DTZ001  # that is the point


def test_an_audit_of_the_tables_counts_missing_deliveries(engine: Tables, tmp_path: Path) -> None:
    ended = [attempt("n1", "s", "delivered"), attempt("n2", "s", "parked"), attempt("n2", "s", "dead", 60, number=2)]
    open_ = [attempt("n3", "s", "parked"), attempt("n4", "s", "parked")]
    record(tmp_path, *ended, *open_)
    fill(tmp_path, RETRIES, [{"delivery": "1", "notification": "n3", "subscription": "s"}])

    found = engine.audit()
    assert found.name == "audit of the tables", "without Kafka"
    assert found.to_dict() == NONE | {"begun": 4, "delivered": 1, "dead": 1, "waiting": 1, "missing": 1}


def test_the_audit_reads_the_logs_if_kafka_answers(engine: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def audit(kafka: object, since_ms: int, until_ms: int | None) -> Report:
        asked.append((since_ms, until_ms))
        report = Report(since_ms, 0, matches=9, totals=Tally(delivered=5, pending=2), notes=["cut"])
        report.add_problems([Problem("surplus", "n1"), Problem("missing", "n2"), Problem("missing", "n3")])
        report.surplus = 1
        return report

    monkeypatch.setattr("arborcast.dispatch.operations.audit.audit", audit)
    with socket.create_server(("127.0.0.1", 0)) as broker:
        servers = f"127.0.0.1:1, 127.0.0.1:{broker.getsockname()[1]}"
        kafka = dataclasses.replace(engine.settings.kafka, bootstrap_servers=servers)
        found = Tables(dataclasses.replace(engine.settings, kafka=kafka)).audit(since=NOON)

    assert asked == [(NOON_MS, None)]
    assert (found.name, found.attrs["notes"]) == ("audit of the logs", ["cut"])
    assert found.to_dict() == NONE | {"begun": 9, "delivered": 5, "waiting": 2, "missing": 2, "twice": 1}


def test_without_a_period_questions_are_about_the_last_hour_of_the_tables(engine: Tables, tmp_path: Path) -> None:
    later = 3 * 3_600_000
    fill(tmp_path, RETRIES, [])
    record(
        tmp_path,
        attempt("n1", "s", "dead", error="connect"),
        attempt("n2", "s", "dead", later, error="timeout"),
        # Long after the end of its delivery.
        attempt("n1", "s", "dead", later, error="purged", push="", number=0),
        attempt("r1", "queue:jobs", "delivered"),
        attempt("r2", "queue:jobs", "delivered", later),
    )
    assert engine.failures().error.tolist() == ["timeout"]
    assert sorted(engine.failures(NOON).error) == ["connect", "timeout"]
    assert engine.audit(of="tables").to_dict() == NONE | {"begun": 2, "delivered": 1, "dead": 1}
    assert engine.audit(NOON, of="tables")["begun"] == 4
    assert [engine.queues(since).done.sum() for since in (None, NOON)] == [1, 2]


def test_the_backlog_and_the_latest_dead_letters(engine: Tables, tmp_path: Path) -> None:
    waits = [("s", 1, 5), ("t", 2, 0), ("s", 3, 9)]
    fill(
        tmp_path,
        RETRIES,
        [
            {
                "delivery": str(number),
                "subscription": name,
                "tries": tries,
                "accepted_at": NOON + timedelta(minutes=number),
                "due_at": NOON + timedelta(hours=number) if tries else None,
            }
            for name, number, tries in waits
        ],
    )
    found = engine.backlog()
    assert [*found.index] == ["s", "t"]
    assert found.waiting.tolist() == [2, 1]
    assert found.most_tries.tolist() == [9, 0]
    assert found.loc["s", ["oldest", "next_try"]].tolist() == [NOON + timedelta(minutes=1), NOON + timedelta(hours=1)]
    assert pd.isna(found.loc["t", "next_try"])
    letters = [
        {"delivery": str(each), "ended_at": NOON + timedelta(days=each), "notification": str(each)} for each in range(5)
    ]
    fill(tmp_path, DEAD_LETTERS, letters)
    assert engine.latest_dead_letters().notification.tolist() == ["4", "3", "2", "1", "0"]
    assert engine.latest_dead_letters(NOON + timedelta(days=3)).notification.tolist() == ["4", "3"]
    assert engine.latest_dead_letters(count=1).ended_at.tolist() == [NOON + timedelta(days=4)]


def test_ended_subscriptions(engine: Tables, tmp_path: Path) -> None:
    ended = ["expired", "gone", "expired", "removed"]
    rows = [{"subscription": str(number), "state": "ended", "reason": each} for number, each in enumerate(ended)]
    fill(tmp_path, SUBSCRIPTIONS, [*rows, {"subscription": "s", "state": "paused"}])
    fill(tmp_path, ROUTES, [])
    assert [*engine.end_reasons().subscriptions.to_dict().items()] == [("expired", 2), ("gone", 1), ("removed", 1)]
    assert engine.suspended_or_paused().subscription.tolist() == ["s"]
    assert engine.subscriptions_without_topics().subscription.tolist() == ["s"]


def test_work_of_the_servers_of_queues(engine: Tables, tmp_path: Path) -> None:
    def sent(name: str, server: str, state: str = "delivered", **more: object) -> Attempt:
        more |= {"topic": TopicPath("jobs"), "endpoint": f"http://{server}/"}
        return attempt(name, "queue:jobs", state, 50, **more)

    record(
        tmp_path,
        sent("r1", "one", duration_ms=10.0),
        sent("r2", "one", error="merged", duration_ms=10.0),
        sent("r3", "two", "parked", error="server-error", duration_ms=30.0),
        sent("r3", "two", duration_ms=50.0, number=2),
        sent("r4", "", "parked", push="", number=0),
        attempt("n1", "plain", "delivered"),
    )
    found = engine.queues()
    assert [*found.columns] == ["queue", "endpoint", "done", "merged", "unanswered", "p50_ms"]
    assert found.to_numpy().tolist() == [["jobs", "http://one/", 1, 1, 0, 10.0], ["jobs", "http://two/", 1, 0, 1, 40.0]]


def test_slowest_endpoints_count_pushes_not_notifications(engine: Tables, tmp_path: Path) -> None:
    together = [attempt(f"n{number}", "slow", "delivered", push="one", duration_ms=900.0) for number in range(3)]
    quick = [attempt(f"n{number}", "quick", "delivered", duration_ms=10.0 + number) for number in range(4)]
    failed = attempt("n9", "slow", "parked", duration_ms=100.0, error="server-error")
    untried = attempt("n8", "slow", "parked", push="", number=0)
    record(tmp_path, *together, *quick, failed, untried)

    found = engine.slowest_endpoints(since=None)

    assert [*found.index] == ["http://slow/", "http://quick/"]
    assert found.loc["http://slow/", ["pushes", "failed", "p50_ms", "longest_ms"]].tolist() == [2, 1, 500.0, 900.0]
    assert found.loc["http://quick/", "pushes"] == 4
    assert len(engine.slowest_endpoints(1, since=None)) == 1


EXPECTED = {"delivered": 3, "parked": 2, "dead": 1}

without_duckdb = pytest.mark.skipif(find_spec("duckdb") is None, reason="duckdb is not installed")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An engine's data directory at the default path: below the current folder."""
    now_ms = int(time.time() * 1000)
    made = [
        attempt(f"n{number}", "s", state, accepted_ms=now_ms, started_ms=now_ms)
        for state, count in EXPECTED.items()
        for number in range(count)
    ]
    home = tmp_path / ".arborcast"
    record(home, *made)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(arborcast.analysis.tables, "_settings", None)
    return home


def result_of(code: str) -> Any:
    """The value of the last expression, as in a notebook."""
    tree = ast.parse(code)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr)
    names: dict[str, Any] = {}
    exec(compile(tree, "docs/tables.md", "exec"), names)  # noqa: S102  # the very lines of the documentation
    return eval(compile(ast.Expression(last.value), "docs/tables.md", "eval"), names)  # noqa: S307


def by_state(result: Any) -> dict[str, int]:
    if isinstance(result, pd.Series):
        return dict(result)
    frame = result if isinstance(result, pd.DataFrame) else pa.table(result).to_pandas()
    if len(frame.columns) > 2:
        return dict(frame.groupby("state").size())
    return dict(zip(*(frame[column] for column in frame.columns), strict=True))


@pytest.mark.parametrize(
    "title",
    [
        pytest.param(title, marks=[without_duckdb] if "DuckDB" in title else [])
        for title in EXAMPLES
        if "Spark" not in title
    ],
)
def test_an_example_of_the_documentation(home: Path, title: str) -> None:
    assert by_state(result_of(EXAMPLES[title])) == EXPECTED


@without_duckdb
def test_duckdb_reads_every_type_of_column_and_merged_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times with their zone, bytes, days and nulls; rows of a merge, found by their texts."""
    import duckdb
    from deltalake import DeltaTable

    for spec in TABLES:
        fill(tmp_path, spec, [{}])
        there = DeltaTable(spec.location(TableSettings(), tmp_path)).to_pyarrow_dataset()
        answer = duckdb.sql("select * from there")
        assert answer is not None
        found = pa.table(answer.arrow())
        expected = spec.arrow_schema()
        assert found.column_names == expected.names
        assert found.cast(expected).equals(there.to_table().cast(expected))

    row = neutral(TOPICS, topic="b")
    DeltaTableWriter(TOPICS, TOPICS.location(TableSettings(), tmp_path)).change(["b"], lambda _: [row], {"w": 1})
    monkeypatch.setenv("ARBORCAST_HOME", str(tmp_path))
    topics = arborcast.analysis.Tables().topics.dataset()  # noqa: F841  # named in the query
    answer = duckdb.sql("select topic from topics where topic >= 'b' and topic in ('b', 'c')")
    assert answer is not None
    assert answer.fetchall() == [("b",)]


def test_a_session_has_the_java_of_the_engine_and_leaves_no_folder(
    engine: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = Mock()
    builder.appName.return_value = builder.config.return_value = builder
    monkeypatch.setattr("pyspark.sql.SparkSession.builder", builder)
    monkeypatch.setattr(jars, "jar_paths", lambda _: [])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("ARBORCAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", "/opt/java-8")
    reduced = tmp_path / "java"
    reduced.mkdir()
    (reduced / "release").write_text('MODULES="java.base"')
    monkeypatch.setattr(java, "find_java", lambda: java.JavaRuntime(reduced / "bin" / "java", "17", "the test"))
    at_exit: list[tuple[Any, ...]] = []
    monkeypatch.setattr(atexit, "register", lambda *call, **named: at_exit.append((*call, named)))

    assert reader._new_session(engine.settings) is builder.getOrCreate.return_value

    # This Java lacks a module that Spark requires.
    assert Path(os.environ["JAVA_HOME"]).parent == tmp_path / "cache" / "java"
    (folder,) = tmp_path.glob("arborcast-notebook-*")
    assert at_exit == [(shutil.rmtree, folder, {"ignore_errors": True})]
