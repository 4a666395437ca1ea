"""The disaster recovery drill, on a running engine with completed and parked deliveries."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import requests

from arborcast.engine.processes import processes
from tests.support.command import COMMAND, Engine
from tests.support.receiver import Receiver
from tests.support.soap_messages import MEDIA_TYPES, envelope, message, subscribe, topic_expression
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.stack]

COUNT = 40


def post(engine: Engine, body: str) -> None:
    headers = {"Content-Type": MEDIA_TYPES["1.1"]}
    assert requests.post(engine.broker, data=envelope(body), headers=headers, timeout=120).ok


def test_a_lost_data_directory_comes_back(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "home")
    # The restored engine has the same addresses.
    environment = {
        "ARBORCAST_GATEWAY_PORT": str(processes.free_port()),
        "ARBORCAST_STACK_KAFKA_PORT": str(processes.free_port()),
    }
    environment["ARBORCAST_OUTBOUND_SCOPE"] = "loopback"
    away = processes.free_port()
    with Receiver() as receiver:
        try:
            engine.run("up", "--detach", env=environment)
            for target in (receiver.url("/well"), f"http://127.0.0.1:{away}/away"):
                post(engine, subscribe(target, topic_expression("t:drill//.")))
            for number in range(COUNT):
                post(engine, f"<wsnt:Notify>{message('t:drill/a', f'<x>{number}</x>')}</wsnt:Notify>")
            wait_until(lambda: len(receiver.received("/well")) > 0, "something is delivered")

            drill = subprocess.run(
                [COMMAND, "backup", "--drill", str(tmp_path / "backup"), "--home", str(engine.home)],
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                timeout=1200,
            )

            assert drill.returncode == 0, drill.stderr
            assert "nothing is lost" in drill.stdout
            assert [each.name for each in tmp_path.glob("home*")] == ["home"], "what was moved away is gone"
            report = json.loads(engine.run("audit", "--deep", "--json", "--since", "1h", env=environment).stdout)
            assert report["balanced"]
            assert report["notifications"] >= COUNT
            # The restored engine delivers the parked messages.
            with Receiver(port=away) as back:
                wait_until(lambda: len(back.requests) > 0, "what waited is tried again")
        finally:
            engine.down()
