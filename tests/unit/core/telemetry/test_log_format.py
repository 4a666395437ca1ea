from __future__ import annotations

import json
import logging
import sys

import pytest

from arborcast.core.telemetry.log_format import Form, LineFormatter, message_of, write


def record(message: str = "no envelope could be made", **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("arborcast.dispatch.hot.pump", logging.ERROR, "pump.py", 1, message, None, None)
    made.created = 1_767_225_600.25
    made.__dict__.update(extra)
    return made


def test_a_line_for_people() -> None:
    line = LineFormatter("human", "dispatch").format(record(subscription="s1", notification="n1"))
    assert line == (
        "2026-01-01T00:00:00.250Z error   dispatch: no envelope could be made notification=n1 subscription=s1"
    )


def test_a_line_for_machines() -> None:
    line = LineFormatter("json", "dispatch").format(record(endpoint="http://e/"))
    assert json.loads(line) == {
        "at": "2026-01-01T00:00:00.250Z",
        "level": "error",
        "part": "dispatch",
        "message": "no envelope could be made",
        "endpoint": "http://e/",
        "logger": "arborcast.dispatch.hot.pump",
    }


@pytest.mark.parametrize("form", ["human", "json"])
def test_nothing_from_outside_can_begin_a_line_or_paint_the_terminal(form: Form) -> None:
    forged = "x\n2026-01-01T00:00:00.000Z error   gateway: forged\r\x1b[2J\x9b1m"
    line = LineFormatter(form, "gateway").format(record(forged, endpoint="http://e/\nforged"))
    assert all(rest.startswith("    ") for rest in line.split("\n")[1:])
    assert not any(character in line for character in "\r\x1b")
    assert form == "json" or "\x9b" not in line
    assert form == "human" or "\n" not in line


def test_a_stack_trace_stays_with_its_line() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        failed = record(subscription="s1", exc_info=sys.exc_info())
    human = LineFormatter("human", "dispatch").format(failed).split("\n")
    assert human[0].endswith("no envelope could be made subscription=s1")
    assert human[-1] == "    ValueError: broken"
    machine = json.loads(LineFormatter("json", "dispatch").format(failed))
    assert machine["trace"].endswith("ValueError: broken")


@pytest.mark.parametrize("form", ["human", "json"])
def test_what_was_said_can_be_read_back(form: Form) -> None:
    assert message_of(write(form, 0.0, "info", "supervisor", "kafka: ready (5.0 s)")) == "kafka: ready (5.0 s)"


@pytest.mark.parametrize("line", ["", "Traceback", "{}", "{broken", "2026-01-01 kafka: ready"])
def test_what_is_not_ours_is_nobodys(line: str) -> None:
    assert message_of(line) is None
