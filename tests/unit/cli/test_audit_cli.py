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


def test_it_says_what_it_counts_in_words_that_need_no_manual(monkeypatch: pytest.MonkeyPatch, report: Report) -> None:
    report.notifications, report.system_notices, report.replays = 18, 11, 0
    answering(monkeypatch, report)
    text = " ".join(CliRunner().invoke(app, ["audit"], env={"COLUMNS": "200"}).output.split())
    assert "7 notifications and 11 system notices accepted between" in text
    assert "system notices are the engine's own notifications, below the topic {urn:arborcast}system" in text
    assert "subscription deliveries delivered failed expired cancelled dropped pending" in text
    report.replays, report.duplicates = 2, 1
    text = " ".join(CliRunner().invoke(app, ["audit"], env={"COLUMNS": "200"}).output.split())
    assert "5 notifications, 2 replayed ones and 11 system notices accepted" in text
    assert "1 delivery was accepted more than once" in text
    report.triggered = 1
    assert "4 notifications, 1 of triggers, 2 replayed ones and 11 system notices accepted" in " ".join(
        CliRunner().invoke(app, ["audit"], env={"COLUMNS": "200"}).output.split()
    )
    report.system_notices = 0
    assert "system notices" not in CliRunner().invoke(app, ["audit"]).output


@pytest.mark.parametrize("width", [None, "20", "80"])
def test_every_column_is_shown_on_any_terminal_and_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, report: Report, width: str | None
) -> None:
    report.subscriptions = {"PPAkdgTZEiaSQ-MbIjL6U-0a" * 2: report.totals}
    answering(monkeypatch, report)
    lines = CliRunner().invoke(app, ["audit"], env={"COLUMNS": width}).output.splitlines()
    (heads,) = (line.split() for line in lines if line.startswith("subscription "))
    (totals,) = (line.split() for line in lines if line.startswith("all  "))
    assert heads[-1] == "pending"
    assert len(totals) == 8


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
