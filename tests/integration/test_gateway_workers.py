"""Several gateway processes on one port, and repeated requests, over a real broker."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest
import requests

from arborcast.client import Client, ClientError
from arborcast.client.framed import ConnectionFactory, published
from arborcast.core.settings import KafkaSettings
from tests.support import soap_messages as soap
from tests.support.broker import notifications_in
from tests.support.gateway_process import ROOT, GatewayRun, gateway_run
from tests.support.held_port import HeldPort

pytestmark = pytest.mark.kafka


def post(gateway: GatewayRun, message_id: str, payload: str = "<n/>") -> int:
    """One Notify of two messages on a new connection."""
    messages = (soap.message("a", payload), soap.message("b", payload))
    body = soap.envelope(soap.notify(*messages), header=soap.addressing("urn:a", message_id))
    return requests.post(gateway.broker, body, timeout=60).status_code


@pytest.fixture(scope="module")
def settings(kafka: KafkaSettings) -> KafkaSettings:
    return dataclasses.replace(kafka, prefix="two-workers.")


@pytest.fixture(scope="module")
def framed() -> HeldPort:
    """The framed port of the two workers."""
    return HeldPort()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, settings: KafkaSettings, framed: HeldPort) -> Iterator[GatewayRun]:
    more = f"[framed]\nport = {framed.number}\n"
    with gateway_run(tmp_path_factory.mktemp("two"), settings, workers=2, more=more) as run:
        yield run


def workers(gateway: GatewayRun) -> list[psutil.Process]:
    return psutil.Process(gateway.pid).children()


def stored(settings: KafkaSettings, payload: str) -> int:
    return sum(each.payload == payload.encode() for each in notifications_in(settings))


def test_both_take_requests_and_serve_the_metrics_of_all(two: GatewayRun) -> None:
    def shares() -> dict[str, int]:
        lines = requests.get(f"{two.base}/metrics", timeout=60).text.splitlines()
        found = [line for line in lines if line.startswith("arborcast_gateway_notify_seconds_count")]
        return {line.partition('worker="')[2][0]: int(line.rpartition(" ")[2]) for line in found}

    for number in range(40):
        assert post(two, f"urn:share{number}") == 202

    def both_shown() -> bool:
        # In one answer: each worker has the other's figures, up to a second old, and any of them answers.
        counts = shares().values()
        return len(counts) == 2 and min(counts) > 0 and sum(counts) == 40

    two.wait_for(both_shown, "shown in the metrics")


def test_a_repetition_is_recognized_by_all_workers(two: GatewayRun, settings: KafkaSettings) -> None:
    # Of forty connections both workers get some with near certainty.
    assert {post(two, "urn:1", "<repeated/>") for _ in range(40)} == {202}
    assert stored(settings, "<repeated/>") == 2


def test_workers_share_the_framed_port(two: GatewayRun, framed: HeldPort) -> None:
    factory = ConnectionFactory(f"framed://127.0.0.1:{framed.number}", timeout_s=120)
    with ExitStack() as connections:
        opened = [connections.enter_context(factory.connection()) for _ in range(20)]
        begun = [each.session().producer("a").begin("<x/>") for each in opened for _ in range(20)]
        assert len({published(each, 120) for each in begun}) == 400


def test_a_second_gateway_does_not_share_the_port(two: GatewayRun) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "arborcast.engine.gateway", "--config", str(two.config)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        check=False,
    )
    assert run.returncode == 2
    assert f"port {two.port}" in run.stderr


@pytest.mark.chaos
def test_a_dead_worker_is_replaced_and_others_continue(two: GatewayRun, settings: KafkaSettings) -> None:
    first = workers(two)
    assert len(first) == 2
    first[0].kill()
    accepted = 0
    for number in range(50):
        with contextlib.suppress(ClientError), Client(two.base) as client:
            client.notify("a", f"<went-on>{number}</went-on>")
            accepted += 1
    assert accepted == 50  # requests queued for the dead worker were answered by its successor
    two.wait_for(lambda: len(workers(two)) == 2, "complete again")
    assert first[1] in workers(two)
    payloads = {each.payload.decode() for each in notifications_in(settings)}
    assert payloads >= {f"<went-on>{number}</went-on>" for number in range(50)}

    # No worker outlives its parent.
    left = workers(two)
    os.kill(two.pid, signal.SIGKILL)
    ended, alive = psutil.wait_procs(left, timeout=120)
    assert (len(ended), alive) == (2, [])

    # The next process has the requests of the one before.
    two.kill()
    two.start()
    assert {post(two, message_id, "<repeated/>") for message_id in ("urn:1", "urn:2")} == {202}
    assert stored(settings, "<repeated/>") == 4
