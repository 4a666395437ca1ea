"""The progress of long commands."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

import arborcast.admin.control_log
import arborcast.admin.topic_documents
import arborcast.engine.terminal
from arborcast.core.settings import KafkaSettings
from arborcast.engine.terminal import ProgressShown
from arborcast.topic_model.records.control import ControlRecord
from arborcast.topic_model.tree.tree import TopicTree
from tests.support.command import Shell
from tests.support.waiting import wait_until


def standard_error(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> io.StringIO:
    """From now on. Not a fixture: pytest sets its own before the test begins."""
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return screen


@pytest.mark.parametrize("terminal", [False, True])
def test_quick_work_shows_nothing(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    screen = standard_error(monkeypatch, terminal=terminal)
    with ProgressShown() as progress:
        progress("reading", 1, 2)
    assert screen.getvalue() == ""


def test_without_a_terminal_lines_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = standard_error(monkeypatch, terminal=False)
    with ProgressShown(quiet_s=0, line_every_s=0.01) as progress:
        progress("reading the control log", 1_200, 4_000)
        wait_until(lambda: screen.getvalue().count("\n") >= 2, "two lines")
    assert screen.getvalue().splitlines()[0] == "reading the control log: 1,200 of 4,000 (30 %) after 0 s"
    assert "\x1b" not in screen.getvalue()


def test_on_a_terminal_a_bar_is_drawn_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = standard_error(monkeypatch, terminal=True)
    monkeypatch.setattr(arborcast.engine.terminal, "_DRAWN_EVERY_S", 0.01)
    results = sys.stdout
    with ProgressShown(quiet_s=0) as progress:
        progress("reading \x1b[8mthe log", 1_200, 4_000)
        wait_until(lambda: "1,200 of 4,000 (30 %)" in screen.getvalue(), "a bar")
        progress("writing")
        wait_until(lambda: "writing" in screen.getvalue(), "the next stage")
        assert sys.stdout is results, "they may go into a file"
    assert "━" in screen.getvalue()
    assert "\\x1b[8mthe log" in screen.getvalue()
    assert "\x1b[2K" in screen.getvalue().rpartition("writing")[2], "the line is cleared"


def test_a_large_import_is_written_in_batches_with_progress(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written: list[int] = []

    class Log:
        def __init__(self, _kafka: KafkaSettings) -> None: ...

        def append(self, batch: list[ControlRecord]) -> int:
            written.append(len(batch))
            return 0

        def close(self) -> None: ...

    shown: list[tuple[str, int, int]] = []
    monkeypatch.setattr(arborcast.admin.topic_documents, "ControlLog", Log)
    monkeypatch.setattr(arborcast.admin.control_log, "read_tree", lambda _kafka: TopicTree())
    monkeypatch.setattr("arborcast.engine.embedded.questions.unreachable_reason", lambda _: "")
    monkeypatch.setenv("ARBORCAST_KAFKA_BOOTSTRAP_SERVERS", "broker.example:9092")
    monkeypatch.setattr(ProgressShown, "__call__", lambda _self, *stage: shown.append(stage))
    file = tmp_path / "topics.json"
    file.write_text(json.dumps({"version": 1, "topics": [{"path": f"a/t{number}"} for number in range(5_000)]}))
    assert Shell()("topics", "import", str(file)) == "5000 added, 0 changed, 0 removed, 0 skipped\n"
    assert written == [2_000, 2_000, 1_000]
    assert ("comparing topics", 4_999, 5_000) in shown
    assert shown[-3:] == [("writing topics", start, 5_000) for start in (0, 2_000, 4_000)]
