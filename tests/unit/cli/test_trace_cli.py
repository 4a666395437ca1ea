from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from arborcast.admin.trace import UnknownNotification
from arborcast.cli import app
from arborcast.dispatch.tables import NOTIFICATIONS, RETRIES
from arborcast.engine.processes import processes
from tests.support.table_rows import NOON, attempt, fill, record

pytestmark = pytest.mark.slow

TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
SAID = {"publisher": "http://me/", "traceparent": TRACE, "priority": 5}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An engine that does not run: `good` got the notification, `bad` waits for it."""
    error = {"error": "server-error", "detail": "HTTP 503", "status": 503}
    record(tmp_path, attempt("n1", "good", "delivered", 40), attempt("n1", "bad", "parked", 60, **error))
    fill(
        tmp_path,
        NOTIFICATIONS,
        [{"notification": "n1", "topic": "a/b", "logged_at": NOON, "payload": b"<x/>", **SAID}],
    )
    fill(tmp_path, RETRIES, [{"delivery": "1", "notification": "n1", "subscription": "bad"}])
    monkeypatch.setenv("ARBORCAST_KAFKA_BOOTSTRAP_SERVERS", f"127.0.0.1:{processes.free_port()}")
    monkeypatch.setenv("ARBORCAST_KAFKA_REQUEST_TIMEOUT_S", "1")
    return tmp_path


def test_trace_tells_every_step_with_its_time(home: Path) -> None:
    result = CliRunner().invoke(app, ["trace", "n1", "--home", str(home)], env={"COLUMNS": "200"})

    assert result.exit_code == 0, result.output
    bad, good = "pending bad", "delivered good"
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    for expected in (
        "topic a/b",
        "payload <x/>",
        f"trace {'a' * 32} {TRACE}",
        "2026-01-02 12:00:00.000 +0 ms accepted by the gateway from http://me/, with priority 5",
        "2026-01-02 12:00:00.000 +0 ms stored in the log partition 0, offset 0",
        "1 delivered, 1 pending",
        "time after step where detail",
        "2026-01-02 12:00:00.060 +60 ms attempt 1: HTTP 503 after 10 ms http://bad/ (server-error)",
        f"{bad} queued after earlier messages: HTTP 503",
        "2026-01-02 12:00:00.040 +40 ms attempt 1: HTTP 202 after 10 ms http://good/",
        f"{good} delivered on attempt 1",
    ):
        assert expected in lines
    assert [line.startswith(bad) for line in lines if line.startswith((bad, good))] == [True, False], "trouble first"
    assert any(line.startswith("note: the logs could not be read") for line in lines)


def test_why_is_about_one_subscription_named_by_its_address_too(home: Path) -> None:
    for name in ("good", "http://broker.example/wsn/subscriptions/good"):
        arguments = ["why", "--subscription", name, "--notification", "n1", "--home", str(home), "--json"]
        result = CliRunner().invoke(app, arguments)

        assert result.exit_code == 0, result.output
        (delivery,) = json.loads(result.output)["deliveries"]
        assert (delivery["subscription"], delivery["outcome"]) == ("good", "delivered")
        assert delivery["why"] == "delivered on attempt 1"
        assert delivery["steps"][0]["at"] == "2026-01-02T12:00:00.040000+00:00"


def test_unknown_notification_is_an_error_that_says_what_was_looked_at(home: Path) -> None:
    result = CliRunner().invoke(app, ["trace", "n2", "--home", str(home)])

    assert isinstance(result.exception, UnknownNotification)
    assert "there is no record of a notification n2" in str(result.exception)
    assert "32 hexadecimal digits" in str(result.exception)
    old = CliRunner().invoke(app, ["trace", "018bcfe5687b7000b000000000000000", "--home", str(home)])
    assert "the id was made at 2023-11-14 22:13:20 UTC" in str(old.exception)


def test_the_tables_are_read_without_what_takes_longer_to_load_than_the_question(home: Path) -> None:
    code = (
        "import sys\nfrom arborcast.cli import app\napp(standalone_mode=False)\n"
        "print(*sorted({'numpy', 'pandas', 'pyarrow', 'pyspark'} & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "trace", "n1", "--home", str(home)], capture_output=True, text=True, check=True
    )
    assert "1 delivered, 1 pending" in done.stdout
    assert done.stderr.split() == []


def test_a_narrow_terminal_shows_whole_times(home: Path) -> None:
    result = CliRunner().invoke(app, ["trace", "n1", "--home", str(home)], env={"COLUMNS": "80"})
    assert "2026-01-02 12:00:00.060  +60 ms" in result.output
    assert "…" not in result.output
