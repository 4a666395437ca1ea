from __future__ import annotations

import json
import time

import pytest
from typer.testing import CliRunner

import arborcast.dispatch.operations.audit
from arborcast.cli import app
from arborcast.core.errors import InfrastructureError, RecordVersionError
from arborcast.dispatch.operations.audit import Problem, Report, Tally


def answering(monkeypatch: pytest.MonkeyPatch, answer: Report | Exception) -> list[dict[str, object]]:
    """Let the audit give this answer; what it was asked."""
    asked: list[dict[str, object]] = []

    def audit(_kafka: object, since_ms: int, until_ms: int | None, **options: object) -> Report:
        asked.append({"since_ms": since_ms, "until_ms": until_ms, **options})
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(arborcast.dispatch.operations.audit, "audit", audit)
    monkeypatch.setattr("arborcast.engine.embedded.questions.unreachable_reason", lambda _: "")
    monkeypatch.setenv("ARBORCAST_KAFKA_BOOTSTRAP_SERVERS", "broker.example:9092")
    return asked


@pytest.fixture
def report() -> Report:
    tally = Tally(delivered=2, pending=1)
    return Report(0, 1_000, notifications=2, matches=3, totals=tally, subscriptions={"s1": tally, "s2": Tally()})


def test_what_balances_ends_with_0(monkeypatch: pytest.MonkeyPatch, report: Report) -> None:
    asked = answering(monkeypatch, report)
    result = CliRunner().invoke(app, ["audit", "--since", "2h", "--deep"])
    assert result.exit_code == 0
    assert "all accounted for" in result.output
    assert asked[0]["deep"] is True
    assert abs(int(str(asked[0]["since_ms"])) - (time.time() - 7_200) * 1000) < 60_000


def test_it_says_what_it_does_not_look_at(monkeypatch: pytest.MonkeyPatch, report: Report) -> None:
    answering(monkeypatch, report)
    assert "not checked: whether each notification was matched" in CliRunner().invoke(app, ["audit"]).output
    assert len(json.loads(CliRunner().invoke(app, ["audit", "--json"]).output)["not_looked_at"]) == 3
    report.deep = True
    assert CliRunner().invoke(app, ["audit", "--deep"]).output.count("not checked") == 1
    report.order, report.first_attempts = True, 1_200
    output = CliRunner().invoke(app, ["audit", "--deep", "--order"]).output
    assert "not checked" not in output
    assert "order of 1,200 first attempts: none out of order" in output


def test_what_does_not_ends_with_1_and_names_it(monkeypatch: pytest.MonkeyPatch, report: Report) -> None:
    report.add_problems([Problem("missing", "n7", matched=3, found=2, topic="a/b", partition=1, offset=9)])
    answering(monkeypatch, report)
    result = CliRunner().invoke(app, ["audit"])
    assert result.exit_code == 1
    assert "n7: 2 of 3 a/b (partition 1, offset 9)" in result.output
    document = json.loads(CliRunner().invoke(app, ["audit", "--json", "--subscription", "s1"]).output)
    assert (document["balanced"], document["unbalanced"]) == (False, 1)
    assert document["problems"][0]["kind"] == "missing"
    assert document["totals"]["matches"] == 3
    assert list(document["subscriptions"]) == ["s1"]


@pytest.mark.parametrize("failure", [InfrastructureError("Kafka is away"), RecordVersionError("version 99")])
def test_what_cannot_be_told_ends_with_2(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    answering(monkeypatch, failure)
    result = CliRunner().invoke(app, ["audit"])
    assert result.exit_code == 2
    assert str(failure) in result.output
