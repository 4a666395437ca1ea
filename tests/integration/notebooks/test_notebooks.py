"""The notebooks, executed over tables whose answers are known."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from dispatch.tables import DEAD_LETTERS, ENDPOINT_HEALTH, NOTIFICATIONS, RETRIES, ROUTES, SUBSCRIPTIONS, TOPICS
from jobs.processes import processes
from tests.support.table_rows import NOON, attempt, fill, record

NBFORMAT: Any = nbformat  # typed in parts only
FOLDER = Path(__file__).parents[3] / "notebooks"

# What matplotlib takes for a formula, and finds to be a wrong one.
BAD = "http://bad/?$_$"

NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An engine that is at rest: `good` got nine notifications, `bad` got one at the second attempt, has given up
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
    fill(tmp_path, DEAD_LETTERS, [{"delivery": "1", "notification": "n2", "subscription": "bad", "payload": b"<x/>"}])
    changes = [(0, "open", True), (30, "closed", True), (40, "closed", False)]
    fill(
        tmp_path,
        ENDPOINT_HEALTH,
        [
            {"at": NOON + timedelta(minutes=after), "endpoint": BAD, "breaker": breaker, "sick": sick}
            for after, breaker, sick in changes
        ],
    )
    # What is above the last one is no topic itself.
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
    # No Kafka: the tables alone are looked at, and the notebook says so.
    monkeypatch.setenv("ARBORCAST_KAFKA_BOOTSTRAP_SERVERS", f"127.0.0.1:{processes.free_port()}")
    monkeypatch.setenv("ARBORCAST_KAFKA_REQUEST_TIMEOUT_S", "1")
    monkeypatch.setenv("MPLBACKEND", "agg")
    return tmp_path


def answers(name: str, folder: Path, questions: dict[str, str]) -> dict[str, object]:
    """Runs a notebook, and gives what these expressions come to at its end."""
    notebook = NBFORMAT.read(FOLDER / f"{name}.ipynb", as_version=4)
    asked = ", ".join(f"{key!r}: {expression}" for key, expression in questions.items())
    notebook.cells.append(NBFORMAT.v4.new_code_cell(f"import json\nprint(json.dumps({{{asked}}}, default=str))"))
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(folder)}}).execute()
    found: dict[str, object] = json.loads(notebook.cells[-1].outputs[0]["text"])
    return found


def test_tour(engine: Path) -> None:
    found = answers(
        "tour",
        engine,
        {
            "rows": "overview.rows.to_dict()",
            "good": 'by_subscription.loc["good"].to_dict("records")',
            "bad": 'by_subscription.loc["bad"].to_dict("records")',
            "failures": 'failures[["endpoint", "error", "attempts", "detail"]].to_dict("records")',
            "waiting": "len(waiting)",
            "audit": "audit.to_dict()",
        },
    )

    assert found["rows"] == {
        "topics": 4,
        "subscriptions": 4,
        "routes": 3,
        "notifications": 9,
        "attempts": 14,
        "deliveries": 11,
        "retries": 2,
        "dead_letters": 1,
        "endpoint_health": 3,
    }
    assert (found["good"], found["bad"]) == ([{"dead": 0, "delivered": 9}], [{"dead": 1, "delivered": 1}])
    assert found["failures"] == [
        {"endpoint": BAD, "error": "connect", "attempts": 2, "detail": "refused"},
        {"endpoint": BAD, "error": "server-error", "attempts": 1, "detail": "HTTP 503"},
    ]
    assert found["waiting"] == 2
    assert found["audit"] == {
        "begun": 13,
        "delivered": 10,
        "dead": 1,
        "expired": 0,
        "cancelled": 0,
        "waiting": 2,
        "missing": 0,
        "twice": 0,
    }


def test_one_notification(engine: Path) -> None:
    found = answers(
        "one_notification",
        engine,
        {
            "chosen": "chosen",
            "outcomes": "{each.subscription: each.outcome for each in story.deliveries}",
            "steps": 'steps[steps.subscription == "bad"].what.tolist()',
            "payload": "story.payload",
            "notes": "len(story.notes)",
            "lines": "names",
        },
    )

    assert found == {
        "chosen": "n1",
        "outcomes": {"good": "delivered", "bad": "delivered"},
        "steps": [
            "matched by",
            "attempt 1: HTTP 503 after 10 ms",
            "attempt 2: HTTP 202 after 10 ms",
            "delivered",
        ],
        "payload": "<x/>",
        "notes": 1,
        "lines": ["bad", "good"],
    }


def test_subscriber_health(engine: Path) -> None:
    found = answers(
        "subscriber_health",
        engine,
        {
            "slowest": "slowest[['pushes', 'failed', 'longest_ms']].to_dict('index')",
            "latency": "latency.p50.to_dict()",
            "errors": "errors.to_dict('index')",
            "open": "open_minutes.to_dict()",
            "held": "held.subscription.tolist()",
        },
    )

    assert found == {
        "slowest": {
            BAD: {"pushes": 4, "failed": 3, "longest_ms": 10.0},
            "http://good/": {"pushes": 9, "failed": 0, "longest_ms": 10.0},
        },
        # 1 to 9 ms until the push began, and 10 ms for it; the other one at the second attempt.
        "latency": {"good": 15.0, "bad": 1020.0},
        "errors": {BAD: {"connect": 2, "server-error": 1}},
        "open": {BAD: 30.0},
        "held": ["bad"],
    }


def test_capacity(engine: Path) -> None:
    found = answers(
        "capacity",
        engine,
        {
            "throughput": "throughput.tolist()",
            "where": "where.p50.to_dict()",
            "batches": "[len(batches), batches.duration_ms.max()]",
            "lag": "lag.max()",
            "together": "travel['notifications per push']",
        },
    )

    assert found == {
        "throughput": [0.9, 1.0],
        "where": {"stored": 0.0, "waiting for its push": 5.0, "push": 10.0},
        # In batch 3 from 3 ms to 40 ms after noon.
        "batches": [9, 37.0],
        "lag": 0.009,
        "together": 1.0,
    }


def test_topics(engine: Path) -> None:
    found = answers(
        "topics",
        engine,
        {
            "drawn": "drawn",
            "widest": "widest.to_dict()",
            "unwanted": "unwanted",
            "idle": "idle.subscription.tolist()",
            "ended": "ended.to_dict()",
        },
    )

    assert found == {
        "drawn": ["a  (1)", "    b  (2)", "c  (0)", "d", "    e  (0)"],
        "widest": {"a/b": 2, "a": 1},
        "unwanted": ["c", "d/e"],
        "idle": ["typo"],
        "ended": {"expired": 1},
    }


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_are_kept_without_outputs(name: str) -> None:
    cells = [cell for cell in NBFORMAT.read(FOLDER / name, as_version=4).cells if cell.cell_type == "code"]

    assert cells
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)
