"""The notebooks, executed over tables with known rows."""

from __future__ import annotations

import importlib
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from arborcast.dispatch.settings import TableSettings
from arborcast.dispatch.tables import (
    DEAD_LETTERS,
    ENDPOINT_HEALTH,
    NOTIFICATIONS,
    RETRIES,
    ROUTES,
    SUBSCRIPTIONS,
    TABLES,
    TOPICS,
)
from tests.support.table_rows import NOON, attempt, fill, record


def notebooks() -> Any:
    """nbformat, imported by these tests alone: its validator takes seconds in each process of a run."""
    return importlib.import_module("nbformat")


def kernel(notebook: Any, folder: Path) -> Any:
    """A client that executes the cells in this folder."""
    resources = {"metadata": {"path": str(folder)}}
    return importlib.import_module("nbclient").NotebookClient(notebook, timeout=300, resources=resources)


FOLDER = Path(__file__).parents[3] / "notebooks"

# Text that matplotlib parses as an invalid formula.
BAD = "http://bad/?$_$"

NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))

# It starts a JVM, and has a separate test.
SPARK = "spark.ipynb"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An idle engine: `good` got nine notifications, `bad` got one at the second attempt, has given up
    another, and waits for a third."""
    good = [attempt(f"n{number}", "good", "delivered", number, batch=number) for number in range(1, 10)]
    bad: dict[str, Any] = {"endpoint": BAD}
    error = bad | {"error": "server-error", "detail": "HTTP 503", "status": 503}
    refused = bad | {"error": "connect", "detail": "refused"}
    record(
        tmp_path,
        *good,
        attempt("n1", "bad", "parked", 10, batch=1, **error),
        attempt("n1", "bad", "delivered", 1_010, number=2, batch=-1, **bad),
        attempt("n2", "bad", "dead", 20, number=3, batch=-1, **refused),
        attempt("n3", "bad", "parked", 30, batch=3, **refused),
        attempt("n4", "bad", "parked", 40, batch=4, number=0, push="", **bad, error="waiting", detail="its lane waits"),
    )
    fill(
        tmp_path,
        NOTIFICATIONS,
        [
            {"notification": f"n{number}", "topic": "a/b", "logged_at": NOON, "payload": b"<x/>", "payload_bytes": 4}
            for number in range(1, 10)
        ],
    )
    fill(tmp_path, RETRIES, [{"delivery": str(n), "notification": f"n{n}", "subscription": "bad"} for n in (3, 4)])
    fill(tmp_path, DEAD_LETTERS, [{"delivery": "1", "notification": "n2", "subscription": "bad"}])
    changes = [(0, "open", True), (30, "closed", True), (40, "closed", False)]
    fill(
        tmp_path,
        ENDPOINT_HEALTH,
        [
            {"at": NOON + timedelta(minutes=after), "endpoint": BAD, "breaker": breaker, "sick": sick}
            for after, breaker, sick in changes
        ],
    )
    # Everything above the last one is a node, but no topic.
    tree = [("a", "", "a", 1), ("a/b", "a", "b", 2), ("c", "", "c", 1), ("d/e", "d", "e", 2)]
    fill(tmp_path, TOPICS, [{"topic": t, "parent": parent, "name": n, "depth": depth} for t, parent, n, depth in tree])
    fill(
        tmp_path,
        SUBSCRIPTIONS,
        [
            {"subscription": "good", "state": "active", "expression": "a//."},
            {"subscription": "bad", "state": "active", "expression": "a/b", "suspended_at": NOON},
            {"subscription": "typo", "state": "active", "expression": "aa"},
            {"subscription": "old", "state": "ended", "reason": "expired"},
        ],
    )
    routes = [("a", "good"), ("a/b", "good"), ("a/b", "bad")]
    fill(tmp_path, ROUTES, [{"topic": topic, "subscription": name, "state": "active"} for topic, name in routes])
    monkeypatch.setenv("ARBORCAST_HOME", str(tmp_path))
    # No Kafka: the notebook reads only the tables, and prints that.
    monkeypatch.setenv("ARBORCAST_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("ARBORCAST_KAFKA_REQUEST_TIMEOUT_S", "1")
    monkeypatch.setenv("MPLBACKEND", "agg")
    return tmp_path


DRAWN = "[each.figure is not None for each in ({})]".format

# The values of expressions at the end of a notebook.
SHOWN: dict[str, dict[str, object]] = {
    "tour": {
        "' '.join(f'{name} {count}' for name, count in tables.overview().rows.to_dict().items())": (
            "topics 4 subscriptions 4 routes 3 notifications 9 attempts 14 deliveries 11 retries 2 dead_letters 1 "
            "endpoint_health 3"
        ),
        "ended.table.values.tolist()": [[9, 0], [1, 1]],
        "failures[['endpoint', 'error', 'attempts', 'detail']].values.tolist()": [
            [BAD, "connect", 2, "refused"],
            [BAD, "server-error", 1, "HTTP 503"],
        ],
        "waiting.waiting.to_dict()": {"bad": 2},
        "{name: count for name, count in audit.to_dict().items() if count}": {
            "begun": 13,
            "delivered": 10,
            "dead": 1,
            "waiting": 2,
        },
    },
    "one_notification": {
        "life.explanation.notification": "n1",
        "life.outcomes.outcome.to_dict()": {"good": "delivered", "bad": "delivered"},
        "life.outcomes.attempts.to_dict()": {"good": 1, "bad": 2},
        "life.table[life.table.subscription == 'bad'].what.tolist()": [
            "attempt 1: HTTP 503 after 10 ms",
            "attempt 2: HTTP 202 after 10 ms",
        ],
        "[len(life.png()) > 1_000, int(life.table['at'].isna().sum()), len(life.explanation.notes)]": [True, 0, 1],
        "life.payload": "<x/>",
    },
    "subscriber_health": {
        # Neither has ten pushes, so both are shown.
        "slow.table[['count', 'p50']].to_dict('index')": {
            BAD: {"count": 4, "p50": 10.0},
            "http://good/": {"count": 9, "p50": 10.0},
        },
        # 11 to 19 ms, and one at the second attempt.
        "arrivals.table.ms.tolist()": [15.5, 119.1, 929.9, 1020.0],
        "failures.table.to_dict('index')": {BAD: {"connect": 2, "server-error": 1}},
        "breakers.table['open'].to_dict()": {BAD: 30.0},
        "stopped.subscription.tolist()": ["bad"],
        DRAWN("slow, arrivals, failures, breakers"): [True] * 4,
    },
    "capacity": {
        "throughput.table.max().tolist()": [9.0, 9.0],  # all of them in the same second
        "stages.table.p50.tolist()": [0.0, 5.0, 10.0, 15.0],
        "[len(batches.table), batches.table.duration_ms.max()]": [9, 37.0],  # in batch 3 from 3 ms to 40 ms after noon
        "lag.table.max().item()": 0.03,
        "sizes.value['notifications per push, mean']": 1.0,
        DRAWN("throughput, stages, batches, lag"): [True] * 4,
    },
    "topics": {
        # The node above d/e is no topic and has no other children.
        "tree.table[['topic', 'level', 'topics', 'notifications', 'subscriptions']].values.tolist()": [
            ["a", 1, 2, 9, 2],
            ["a/b", 2, 1, 9, 2],
            ["c", 1, 1, 0, 0],
            ["d/e", 1, 1, 0, 0],
        ],
        "recipients.table.subscriptions.to_dict()": {"a/b": 2, "a": 1},
        "[without_subscriptions.topic.tolist(), without_topics.subscription.tolist()]": [["c", "d/e"], ["typo"]],
        "reasons.subscriptions.to_dict()": {"expired": 1},
    },
}


def executed(cells: list[Any], folder: Path) -> list[Any]:
    """The cells in one kernel, with their outputs."""
    notebook = notebooks().v4.new_notebook(cells=cells)
    kernel(notebook, folder).execute()
    return list(notebook.cells)


def cells_of(name: str) -> list[Any]:
    return list(notebooks().read(FOLDER / name, as_version=4).cells)


def test_notebooks_show_the_contents_of_the_tables(engine: Path) -> None:
    """One after the other, each without the names of its predecessors."""
    cells, places = list[Any](), dict[str, int]()
    for name, expected in SHOWN.items():
        asked = ", ".join(f"{each!r}: {each}" for each in expected)
        own = [each.source for each in cells_of(f"{name}.ipynb") if each.cell_type == "code"]
        answer = f"import json\nprint(json.dumps({{{asked}}}, default=str))"
        cells += [notebooks().v4.new_code_cell(each) for each in ("%reset -f", *own, answer)]
        places[name] = len(cells) - 1
    done = executed(cells, engine)
    assert {name: json.loads(done[at].outputs[0]["text"]) for name, at in places.items()} == SHOWN


def test_an_engine_that_has_done_nothing(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text in place of plots and empty tables, and no error; all notebooks in one kernel."""
    home = engine / "new"
    for spec in TABLES:
        spec.ensure(spec.location(TableSettings(), home))
    monkeypatch.setenv("ARBORCAST_HOME", str(home))

    done = executed([cell for name in NAMES if name != SPARK for cell in cells_of(name)], engine)

    shown = [output["data"] for cell in done for output in cell.get("outputs", []) if "data" in output]
    assert not any("image/png" in data for data in shown)
    said = " ".join(data.get("text/html", "") for data in shown)
    for words in (
        "no notifications yet",
        "there are no pushes",
        "no topics yet",
        "there are no routes",
        "no delivery waits",
    ):
        assert words in said


@pytest.mark.spark
@pytest.mark.long
def test_spark(engine: Path) -> None:
    """The engine delivers a further notification while the stream is read."""
    notebook = notebooks().read(FOLDER / SPARK, as_version=4)
    asked = """
        'month': month[['topic', 'deliveries', 'failed']].values.tolist(),
        'first commit': history.operation.iloc[-1],
        'versions': [int(versions.earlier[0]) < 11, int(versions.current[0])],
        'grown': [len(batches) > 1, float(grown().sum(axis=1).iloc[-1])],
        'chart': type(chart()).__name__,
    """
    asks = notebooks().v4.new_code_cell(f"import json\nprint(json.dumps({{{asked}}}))")
    notebook.cells.append(asks)
    client = kernel(notebook, engine)
    with client.setup_kernel():
        for number, cell in enumerate(notebook.cells):
            if "processAllAvailable" in cell.source:
                record(engine, attempt("n10", "good", "delivered", 50, batch=10), offset=1_000)
            client.execute_cell(cell, number)

    assert json.loads(asks.outputs[0]["text"]) == {
        "month": [["a/b", 11, 1]],
        "first commit": "CREATE TABLE",
        "versions": [True, 11],
        "grown": [True, 12.0],
        "chart": "Figure",
    }


def test_notebooks_are_kept_without_outputs() -> None:
    for name in NAMES:
        cells = [cell for cell in notebooks().read(FOLDER / name, as_version=4).cells if cell.cell_type == "code"]
        assert cells
        assert all(cell.outputs == [] and cell.execution_count is None for cell in cells), name
