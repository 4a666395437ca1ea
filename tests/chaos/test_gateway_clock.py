"""A gateway whose clock is set forward and back by more than an hour, under load."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from arborcast.client import Client
from arborcast.core.settings import KafkaSettings
from tests.chaos.test_disasters import Publishing, assert_told_and_kept
from tests.support.gateway_process import gateway_run
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.kafka]

# Kafka refuses timestamps of writers that are more than an hour ahead.
STEP_S = 3_900

# Shifts the clock of a Python process with this on its path by the current number in the file.
_SHIFTED = """
import os, time
_file = os.path.join(os.path.dirname(__file__), "shift")
_time, _time_ns = time.time, time.time_ns

def _shift():
    with open(_file) as file:
        return int(file.read() or 0)

time.time = lambda: _time() + _shift()
time.time_ns = lambda: _time_ns() + _shift() * 1_000_000_000
"""


class Clock:
    """The clock of processes with `path` on their PYTHONPATH."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.path = path
        self.put(0)
        (path / "sitecustomize.py").write_text(_SHIFTED)

    def put(self, shift_s: int) -> None:
        """Set the difference from the right time."""
        draft = self.path / "draft"
        draft.write_text(str(shift_s))
        draft.replace(self.path / "shift")


def test_a_clock_that_is_put_ahead_and_back_stops_nothing_and_ends_nothing(
    tmp_path: Path, kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(tmp_path / "clock")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(clock.path), os.environ.get("PYTHONPATH", "")]))
    with (
        # Longer than the step; by default it is an hour.
        gateway_run(tmp_path / "gateway", kafka_settings, forked=False, expiry_grace_s=7_200) as gateway,
        Client(gateway.base, timeout_s=(10.0, 60.0)) as client,
        Publishing(gateway.broker) as publishing,
    ):
        pull_point = client.create_pull_point()
        subscription = client.subscribe("other//.", to=pull_point, lasts=timedelta(minutes=30))
        for step, shift in enumerate((0, STEP_S, 0, -STEP_S, 0)):
            clock.put(shift)
            before = len(publishing.accepted)
            wait_until(lambda: len(publishing.accepted) > before + 50, f"fifty are accepted at {shift} s")  # noqa: B023  # called at once
            assert gateway.health("ready") == 200
            # Store it in the pull point, claim it, hand it out, settle it.
            client.notify("other/x", f"<n>{step}</n>", to=pull_point)
            (pulled,) = client.get_messages(pull_point, wait_s=30.0)
            assert f">{step}<".encode() in pulled.payload
        client.renew(subscription, timedelta(hours=1))
    assert not publishing.refused, publishing.refused[0].text
    assert_told_and_kept(publishing, kafka_settings)
