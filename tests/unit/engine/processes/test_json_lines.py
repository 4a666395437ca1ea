from __future__ import annotations

import json
import os
from pathlib import Path

from arborcast.engine.processes.logfiles import JsonLines, follow

NOW = 1_767_225_600.0


def lines(*printed: str) -> list[dict[str, str]]:
    made = JsonLines("kafka")
    complete = [line for one in printed for line in made.take(one, NOW)]
    return [json.loads(line) for line in (*complete, *made.finish())]


def test_our_own_lines_stay_as_they_are() -> None:
    own = '{"at": "2026-01-01T00:00:00.000Z", "level": "info", "part": "gateway", "message": "é ready"}'
    assert lines(own) == [json.loads(own)]


def test_lines_of_virtual_machines_have_their_time_and_level() -> None:
    spark = '2026-01-01T00:00:01.000Z warn dispatch: BlockManager: a block is "away"'
    kafka = "2026-01-01T01:00:02.000+01 ERROR kafka.server.KafkaServer - cannot write"
    assert lines(spark, kafka) == [
        {
            "at": "2026-01-01T00:00:01.000Z",
            "level": "warning",
            "part": "kafka",
            "message": 'a block is "away"',
            "logger": "BlockManager",
        },
        {
            "at": "2026-01-01T01:00:02.000+01",
            "level": "error",
            "part": "kafka",
            "message": "cannot write",
            "logger": "kafka.server.KafkaServer",
        },
    ]


def test_a_stack_trace_belongs_to_its_line() -> None:
    found = lines(
        "2026-01-01T00:00:01.000Z error dispatch: Utils: failed",
        "java.io.IOException: No space left on device",
        "\tat java.base/java.io.File.write(File.java:1)",
        "Caused by: java.lang.Error",
        "WARNING: Using incubator modules: jdk.incubator.vector",
        "",
        "{not json",
    )
    assert [one["message"] for one in found] == [
        "failed",
        "WARNING: Using incubator modules: jdk.incubator.vector",
        "{not json",
    ]
    assert found[0]["trace"].splitlines()[0] == "java.io.IOException: No space left on device"
    assert len(found[0]["trace"].splitlines()) == 3
    assert found[1]["at"] == "2026-01-01T00:00:00.000Z"


def test_an_endless_trace_is_bounded() -> None:
    (found,) = lines("2026-01-01T00:00:01.000Z error dispatch: A: deep", *["\tat a.b"] * 100_000)
    assert len(found["trace"]) < 10_000


def test_what_comes_through_a_pipe_is_in_the_file_to_its_last_word(tmp_path: Path) -> None:
    log = tmp_path / "log" / "part.log"
    log.parent.mkdir()
    source, sink = os.pipe()
    thread = follow(source, log, "part")
    with os.fdopen(sink, "wb") as pipe:
        pipe.write(b"one\ntw")
        pipe.flush()
        pipe.write("o \u00e9 \n\tdeeper\n".encode() + b"\xff\nlast, without an end")
    thread.join(120)
    assert not thread.is_alive()
    found = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(one["message"], one.get("trace")) for one in found] == [
        ("one", None),
        ("two \u00e9 ", "\tdeeper"),
        ("\ufffd", None),
        ("last, without an end", None),
    ]


def test_a_log_that_cannot_be_written_does_not_stop_the_part(tmp_path: Path) -> None:
    source, sink = os.pipe()
    thread = follow(source, tmp_path / "none" / "part.log", "part")
    with os.fdopen(sink, "wb") as pipe:
        pipe.write(b"a line\n" * 20_000)  # more than a pipe holds
    thread.join(30)
    assert not thread.is_alive()
