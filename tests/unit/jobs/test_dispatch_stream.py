"""The script of the dispatch job, without Spark."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future

import pytest

from arborcast.jobs import dispatch_stream


def test_a_refused_job_ends_after_the_start_of_spark(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opening: Future[None] = Future()
    ended: list[tuple[int, bool]] = []
    monkeypatch.setattr(dispatch_stream, "_opening", opening)
    monkeypatch.setattr(os, "_exit", lambda status: ended.append((status, opening.done())))
    start = threading.Timer(0.2, opening.set_result, (None,))
    start.start()
    dispatch_stream._end_at_once("another dispatch job works on these logs")
    start.join()
    dispatch_stream._end_at_once("another has taken over")
    monkeypatch.setattr(dispatch_stream, "_opening", None)
    dispatch_stream._end_at_once("not by spark-submit")
    assert ended == 3 * [(75, True)]
    assert "another dispatch job works on these logs" in caplog.text
