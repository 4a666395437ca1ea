from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from arborcast.admin import operations
from arborcast.admin.operations import OperationFilter, Recorded
from arborcast.cli import app
from arborcast.cli import operations as command

MADE = [
    Recorded(1_000, "console", "anna", "topics save", "a/b", '{"code":"1"}', "", 2, "done"),
    Recorded(0, "command", "bert@host", "restore", "", "", "", 0, ""),
]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[OperationFilter]:
    """What was asked for; the answer is above."""
    found: list[OperationFilter] = []

    def listed(_kafka: object, wanted: OperationFilter, limit: int) -> tuple[list[Recorded], int]:
        found.append(wanted)
        return MADE[:limit], len(MADE) - limit

    monkeypatch.setattr(operations, "listed", listed)
    monkeypatch.setattr(command, "kafka_of", lambda *_: None)
    return found


def test_each_change_is_a_line_with_its_values_and_its_result(asked: list[OperationFilter]) -> None:
    done = CliRunner().invoke(app, ["operations", "--who", "anna", "--what", "topics", "--subject", "a"])
    first, second, *_ = done.output.splitlines()
    assert first.endswith('anna (console)  topics save  a/b: {"code":"1"} -> nothing; and 2 more  [done]')
    assert second.endswith("bert@host (command)  restore  [without a result]")
    assert asked[0][1:] == ("anna", "topics", "a")


def test_as_json_and_how_many_there_are_beside(asked: list[OperationFilter]) -> None:
    document = json.loads(CliRunner().invoke(app, ["operations", "--json", "--limit", "1"]).output)
    assert (document["operations"][0]["subject"], document["more"]) == ("a/b", 1)
    assert "1 more" in CliRunner().invoke(app, ["operations", "--limit", "1"]).output
    assert asked


def test_a_time_that_is_none_is_refused(asked: list[OperationFilter]) -> None:
    assert CliRunner().invoke(app, ["operations", "--since", "yesterday"]).exception is not None
    assert not asked
