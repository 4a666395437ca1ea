"""The command of the job's pod: `deploy/run-job` becomes ready, and ends in order with the pod."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pyspark
import pytest

from arborcast.core.settings import KafkaSettings
from arborcast.engine.install import java
from arborcast.jobs import dispatch_stream
from tests.support.command import Engine
from tests.support.dispatch_job import logs, subscription
from tests.support.open_sockets import answers_to_stranger, listening
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

JOB = Path(dispatch_stream.__file__)

SCRIPT = Path(__file__).parents[2] / "deploy" / "run-job"


def test_the_pod_of_the_job_delivers_and_ends_in_order(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    config, ready = tmp_path / "arborcast.toml", tmp_path / "tmp" / "ready"
    ready.parent.mkdir()
    ready.write_text("of the container before this one")
    config.write_text(
        f'home = "{tmp_path}"\nkafka.bootstrap_servers = "{kafka_settings.bootstrap_servers}"\n'
        f'kafka.prefix = "{kafka_settings.prefix}"\noutbound.scope = "loopback"\ndispatch.task_slots = 2\n'
        # The file is missing: the job's pod has none.
        f'access.methods = "basic"\naccess.users_file = "{tmp_path}/users.toml"\n'
    )
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(Path.home()),
        "JAVA_HOME": str(java.find_java().executable.parent.parent),
        "TMPDIR": str(ready.parent),
        "ARBORCAST_READY_FILE": str(ready),
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

            def is_ready() -> bool:
                assert pod.poll() is None, (tmp_path / "log").read_text()[-3000:]
                return ready.exists() and not ready.read_text()

            wait_until(is_ready, lambda: (tmp_path / "log").read_text()[-3000:], timeout_s=500)
            check_ports(pod.pid)
            log.notify("a/b")
            receiver.wait_for(1)
            pod.send_signal(signal.SIGTERM)
            assert pod.wait(300) == 0, (tmp_path / "log").read_text()[-3000:]
        finally:
            for process in (each for each in psutil.process_iter(["pid"]) if _group(each.pid) == pod.pid):
                process.kill()


@pytest.mark.long
def test_properties_of_local_mode_are_refused_on_a_cluster(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    """They bind the driver to loopback, which executors of other hosts cannot reach."""
    config, file = tmp_path / "arborcast.toml", tmp_path / "spark.properties"
    config.write_text(
        f'home = "{tmp_path}"\nkafka.bootstrap_servers = "{kafka_settings.bootstrap_servers}"\n'
        f'kafka.prefix = "{kafka_settings.prefix}"\ndispatch.spark_secret = "geheim"\n'
    )
    file.write_text(Engine(tmp_path).run("config", "spark", "--config", str(config)).stdout)
    submitted = subprocess.run(
        [
            *(str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--properties-file", str(file)),
            *("--master", "spark://127.0.0.1:1", str(JOB), "--config", str(config)),
        ],
        env={**os.environ, "JAVA_HOME": str(java.find_java().executable.parent.parent)},
        capture_output=True,
        text=True,
        timeout=500,
        cwd=tmp_path,
    )
    assert submitted.returncode == 1
    assert "arborcast config spark --master spark://127.0.0.1:1" in submitted.stdout + submitted.stderr


def check_ports(group: int) -> None:
    """Spark's own ports are on loopback by default, and refuse clients without the secret."""
    of_job = [each for each in psutil.process_iter() if _group(each.pid) == group]
    found = [(process.name(), host, port) for process, host, port in listening(of_job)]
    assert {host for _, host, _ in found} == {"127.0.0.1"}
    for name, _, port in found:
        answers = answers_to_stranger(port)
        if name == "java":
            to_py4j, to_spark = answers
            assert b"Authentication error" in to_py4j or b"Unknown challenge message" in to_spark, answers
        else:
            assert b"Error code: 400" in answers[0] or answers == [b"", b""], f"py4j's calls to Python: {answers}"
    assert sum(name == "java" for name, *_ in found) == 3, "driver, block manager, py4j"


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
