"""Several gateway processes on one port, and requests that come again: over a real broker."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests

from arborcast.client import Client, ClientError
from arborcast.core.settings import KafkaSettings
from tests.support import soap_messages as soap
from tests.support.broker import notifications_in
from tests.support.gateway_process import ROOT, GatewayRun, gateway_run

pytestmark = pytest.mark.kafka


def post(gateway: GatewayRun, message_id: str, payload: str = "<n/>") -> int:
    """One Notify of two messages on a connection of its own."""
    messages = (soap.message("a", payload), soap.message("b", payload))
    body = soap.envelope(soap.notify(*messages), header=soap.addressing("urn:a", message_id))
    return requests.post(gateway.broker, body, timeout=60).status_code


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, kafka: KafkaSettings) -> Iterator[GatewayRun]:
    """For tests that stop nothing."""
    settings = dataclasses.replace(kafka, prefix="two-workers.")
    with gateway_run(tmp_path_factory.mktemp("shared"), settings, workers=2) as run:
        yield run


@pytest.fixture
def two(tmp_path: Path, kafka_settings: KafkaSettings) -> Iterator[GatewayRun]:
    # A connection that is not used may stay for longer than we wait for the end.
    with gateway_run(tmp_path, kafka_settings, workers=2, request_timeout_s=600) as run:
        yield run


def workers(gateway: GatewayRun) -> list[psutil.Process]:
    return psutil.Process(gateway.pid).children()


def test_a_repetition_is_known_after_a_restart(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    with gateway_run(tmp_path, kafka_settings) as gateway:
        assert post(gateway, "urn:1") == 202
        gateway.kill()
        gateway.start()
        assert post(gateway, "urn:1") == 202
        assert post(gateway, "urn:2") == 202
        assert gateway.metric("arborcast_gateway_repeated_requests") == 1
    assert len(notifications_in(kafka_settings)) == 4


def test_a_repetition_is_known_to_all_workers(shared: GatewayRun, kafka: KafkaSettings) -> None:
    # Over forty connections it is certain enough that both workers get some.
    assert {post(shared, "urn:1", "<repeated/>") for _ in range(40)} == {202}
    stored = notifications_in(dataclasses.replace(kafka, prefix="two-workers."))
    assert sum(each.payload == b"<repeated/>" for each in stored) == 2


def test_both_take_their_share_and_show_the_metrics_of_all(shared: GatewayRun) -> None:
    def shares() -> dict[str, int]:
        lines = requests.get(f"{shared.base}/metrics", timeout=60).text.splitlines()
        found = [line for line in lines if line.startswith("arborcast_gateway_notify_seconds_count")]
        return {line.partition('worker="')[2][0]: int(line.rpartition(" ")[2]) for line in found}

    before = sum(shares().values())
    for number in range(40):
        assert post(shared, f"urn:share{number}") == 202

    def both_shown() -> bool:
        # In one answer: each worker knows the other's figures as of a second ago, and any of them answers.
        counts = shares().values()
        return len(counts) == 2 and min(counts) > 0 and sum(counts) >= before + 40

    shared.wait_for(both_shown, "shown in the metrics")


@pytest.mark.chaos
def test_a_worker_that_dies_is_replaced_and_others_go_on(two: GatewayRun, kafka_settings: KafkaSettings) -> None:
    first = workers(two)
    assert len(first) == 2
    first[0].kill()
    accepted = 0
    for number in range(50):
        with contextlib.suppress(ClientError), Client(two.base) as client:
            client.notify("a", f"<n>{number}</n>")
            accepted += 1
    assert accepted == 50  # what waited for the dead worker was answered by its successor
    two.wait_for(lambda: len(workers(two)) == 2, "complete again")
    assert first[1] in workers(two)
    stored = {each.payload.decode() for each in notifications_in(kafka_settings)}
    assert stored == {f"<n>{number}</n>" for number in range(50)}

    # No worker outlives its parent.
    left = workers(two)
    os.kill(two.pid, signal.SIGKILL)
    gone, alive = psutil.wait_procs(left, timeout=120)
    assert (len(gone), alive) == (2, [])


def test_a_second_one_does_not_share_the_port(shared: GatewayRun) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "arborcast.engine.gateway", "--config", str(shared.config)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        check=False,
    )
    assert run.returncode == 2
    assert f"port {shared.port}" in run.stderr
