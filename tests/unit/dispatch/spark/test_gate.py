from __future__ import annotations

import threading

import pytest

from arborcast.dispatch.spark.query_supervisor import StopGate, StopRequested


def test_no_batch_begins_once_it_is_closed() -> None:
    gate = StopGate()
    with gate.batch():
        pass
    gate.close()

    with pytest.raises(StopRequested), gate.batch():
        pytest.fail("a batch began behind a closed gate")


def test_waits_for_the_batch_under_way() -> None:
    gate = StopGate()
    inside, leave = threading.Event(), threading.Event()

    def batch() -> None:
        with gate.batch():
            inside.set()
            leave.wait(120)

    thread = threading.Thread(target=batch)
    thread.start()
    assert inside.wait(120)
    gate.close()
    assert not gate.wait_empty(0.05)
    leave.set()
    assert gate.wait_empty(10)
    thread.join(120)


def test_failed_batch_is_out_too() -> None:
    gate = StopGate()
    with pytest.raises(ZeroDivisionError), gate.batch():
        _ = 1 / 0

    assert gate.wait_empty(0)
