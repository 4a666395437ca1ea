from __future__ import annotations

import json
import logging
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from kafka.net.connection import KafkaConnection

from arborcast.core.telemetry.log_format import Form, LineFormatter, configure, message_of, write


def record(message: str = "no envelope could be made", **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("arborcast.dispatch.hot.pump", logging.ERROR, "pump.py", 1, message, None, None)
    made.created = 1_767_225_600.25
    made.__dict__.update(extra)
    return made


def test_a_line_with_its_fields_and_its_stack_trace() -> None:
    human, machine = LineFormatter("human", "dispatch"), LineFormatter("json", "dispatch")
    assert human.format(record(subscription="s1", notification="n1")) == (
        "2026-01-01T00:00:00.250Z error   dispatch: no envelope could be made notification=n1 subscription=s1"
    )
    assert json.loads(machine.format(record(endpoint="http://e/"))) == {
        "at": "2026-01-01T00:00:00.250Z",
        "level": "error",
        "part": "dispatch",
        "message": "no envelope could be made",
        "endpoint": "http://e/",
        "logger": "arborcast.dispatch.hot.pump",
    }
    try:
        raise ValueError("broken")
    except ValueError:
        failed = record(subscription="s1", exc_info=sys.exc_info())
    first, *_, last = human.format(failed).split("\n")
    assert first.endswith("no envelope could be made subscription=s1")
    assert last == "    ValueError: broken"
    assert json.loads(machine.format(failed))["trace"].endswith("ValueError: broken")


@pytest.mark.parametrize("form", ["human", "json"])
def test_untrusted_text_begins_no_line_and_has_no_escape_codes(form: Form) -> None:
    forged = "x\n2026-01-01T00:00:00.000Z error   gateway: forged\r\x1b[2J\x9b1m"
    line = LineFormatter(form, "gateway").format(record(forged, endpoint="http://e/\nforged"))
    assert all(rest.startswith("    ") for rest in line.split("\n")[1:])
    assert not any(character in line for character in "\r\x1b")
    assert form == "json" or "\x9b" not in line
    assert form == "human" or "\n" not in line


@pytest.mark.parametrize("form", ["human", "json"])
def test_messages_are_read_back_from_lines(form: Form) -> None:
    assert message_of(write(form, 0.0, "info", "supervisor", "kafka: ready (5.0 s)")) == "kafka: ready (5.0 s)"
    for line in ("", "Traceback", "{}", "{broken", '{"a":' * 100_000, "2026-01-01 kafka: ready"):
        assert message_of(line) is None


def configure_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process of its own, until the end of the test."""
    for logger in (logging.root, logging.getLogger("kafka"), logging.getLogger("kafka.net.connection")):
        for attribute in ("handlers", "filters"):
            monkeypatch.setattr(logger, attribute, [])
        monkeypatch.setattr(logger, "level", logger.level)
    configure("human", "gateway")


def test_of_the_kafka_client_only_delays_by_a_quota_are_logged(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    configure_here(monkeypatch)
    connection = KafkaConnection(Mock(), node_id=1)
    connection._maybe_throttle(SimpleNamespace(throttle_time_ms=250))
    logging.getLogger("kafka.net.connection").error("the connection was refused")
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith("throttled by broker (250 ms)")


def test_repeated_lines_are_bounded(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    configure_here(monkeypatch)
    for _ in range(1_000):
        logging.getLogger("arborcast.ingest").warning("refused")
    logging.getLogger("arborcast.ingest").error("another call")
    written = capfd.readouterr().err
    assert 0 < written.count("refused") < 200
    assert "another call" in written


def test_a_long_message_and_a_long_trace_are_cut() -> None:
    formatter = LineFormatter("human", "gateway")
    try:
        raise ValueError("y" * 100_000 + "end")
    except ValueError:
        failed = record("x" * 100_000, exc_info=sys.exc_info(), omitted=7)
    text = formatter.format(failed)
    assert len(text) < 50_000
    assert "(and 7 more lines like it since the last)" in text
    assert "Traceback" in text
    assert text.endswith("yend")
