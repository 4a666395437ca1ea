"""A gateway whose clock is set forward and back by more than an hour, under load."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from arborcast.client import Client
from arborcast.core.settings import KafkaSettings
from tests.chaos.test_disasters import Publishing, assert_told_and_kept
from tests.support.gateway_process import gateway_run
from tests.support.shifted_clock import Clock
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.kafka]

# Kafka refuses timestamps of writers that are more than an hour ahead.
STEP_S = 3_900


def test_a_clock_that_is_put_ahead_and_back_stops_nothing_and_ends_nothing(
    tmp_path: Path, kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(tmp_path / "clock", monkeypatch)
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
