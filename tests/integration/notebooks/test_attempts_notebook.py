"""The notebook about attempts, executed over a table whose answers are known."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from dispatch import attempts
from dispatch.attempts import Attempt
from dispatch.record import AttemptsTable, rows_of
from dispatch.settings import TableSettings
from dispatch.tables import ATTEMPTS
from topic_model.topics import TopicPath

NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "attempts.ipynb"

QUESTIONS = """
import json
print(json.dumps({
    "attempts": len(attempts),
    "good": by_subscription.loc["good"].to_dict("records"),
    "failures": failures[["endpoint", "error", "status", "attempts", "detail"]].to_dict("records"),
    "latency": latency.round(3).to_dict("index"),
    "story": story.subscription.tolist(),
}))
"""


def attempt(number: int, subscription: str, **more: object) -> Attempt:
    values: dict[str, object] = {"state": "delivered", "status": 202, **more}
    return Attempt(
        notification=f"n{number}",
        subscription=subscription,
        topic=TopicPath("a"),
        endpoint=f"http://{subscription}/",
        number=1,
        push=f"p{number}-{subscription}",
        accepted_ms=1_000_000 + number,
        started_ms=1_000_000 + number + 50,
        duration_ms=float(number),
        **values,  # type: ignore[arg-type]
    )


def test_notebook_answers_rightly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [attempt(number, "good") for number in range(1, 10)]
    rows += [
        attempt(1, "bad", state="failed", status=503, error="server-error", detail="HTTP 503"),
        attempt(9, "bad", state="failed", status=0, error="connect", detail="refused, early"),
        attempt(10, "bad", state="failed", status=0, error="connect", detail="refused, late"),
    ]
    table = AttemptsTable(ATTEMPTS.location(TableSettings(), tmp_path))
    table.append(rows_of(attempts.encode(rows)), "test", 0)
    monkeypatch.setenv("ARBORCAST_HOME", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(QUESTIONS))

    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()

    answers = json.loads(notebook.cells[-1].outputs[0]["text"])
    assert answers == {
        "attempts": 12,
        "good": [{"delivered": 9, "failed": 0}],
        "failures": [
            {"endpoint": "http://bad/", "error": "connect", "status": 0, "attempts": 2, "detail": "refused, late"},
            {"endpoint": "http://bad/", "error": "server-error", "status": 503, "attempts": 1, "detail": "HTTP 503"},
        ],
        # 50 ms until the push began, and then 1 to 9 ms.
        "latency": {"good": {"p50": 55.0, "p90": 58.2, "p99": 58.92}},
        "story": ["bad"],
    }


def test_notebook_is_kept_without_outputs() -> None:
    cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]

    assert cells
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)
