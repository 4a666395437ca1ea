"""What the job's pod runs: `deploy/run-job`, which has to become ready, and to end in order when the pod is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from core.settings import KafkaSettings
from jobs.install import java
from tests.support.dispatch_job import logs, subscription
from tests.support.receiver import Receiver

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

SCRIPT = Path(__file__).parents[2] / "deploy" / "run-job"


def test_it_delivers_and_ends_in_order(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    config, ready = tmp_path / "arborcast.toml", tmp_path / "tmp" / "ready"
    ready.parent.mkdir()
    ready.write_text("of the container before this one")
    config.write_text(
        f'home = "{tmp_path}"\nkafka.bootstrap_servers = "{kafka_settings.bootstrap_servers}"\n'
        f'kafka.prefix = "{kafka_settings.prefix}"\noutbound.scope = "loopback"\ndispatch.task_slots = 2\n'
    )
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(Path.home()),
        "JAVA_HOME": str(java.find_java().executable.parent.parent),
        "TMPDIR": str(ready.parent),
        "ARBORCAST_READY_FILE": str(ready),
        "SPARK_LOCAL_IP": "127.0.0.1",
    } | {name: value for name, value in os.environ.items() if name == "ARBORCAST_CACHE"}
    with Receiver() as receiver, logs(kafka_settings) as log, (tmp_path / "log").open("wb") as output:
        log.subscribe(subscription("s", receiver.url("/s"), "a//."))
        pod = subprocess.Popen(
            ["/bin/sh", str(SCRIPT), str(config)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=tmp_path,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + 500
            while not (ready.exists() and ready.read_text().startswith("{")):
                assert pod.poll() is None, (tmp_path / "log").read_text()[-3000:]
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-3000:]
                time.sleep(0.1)
            log.notify("a/b")
            receiver.wait_for(1)
            pod.send_signal(signal.SIGTERM)
            assert pod.wait(300) == 0, (tmp_path / "log").read_text()[-3000:]
        finally:
            for process in (each for each in psutil.process_iter(["pid"]) if _group(each.pid) == pod.pid):
                process.kill()


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
