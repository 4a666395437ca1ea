"""The lines with spark-submit in docs/operations.md and docs/cluster.md, run as they are printed."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from arborcast.client import Client
from arborcast.core.settings import KafkaSettings
from tests.cluster.spark_cluster import running_cluster
from tests.support.bare_python import bare_python
from tests.support.command import COMMAND, Engine
from tests.support.dispatch_job import logs, subscription
from tests.support.process import ROOT, LoggedProcess
from tests.support.receiver import Receiver

pytestmark = [pytest.mark.long, pytest.mark.stack, pytest.mark.timeout(900)]


class Shell:
    """Runs the block of commands with spark-submit in a document, in a folder."""

    def __init__(self, document: str, folder: Path, environment: dict[str, str]) -> None:
        blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)
        (block,) = [each for each in blocks if "spark-submit" in each]
        *self.before, self.submit = block.splitlines()
        self._folder = folder
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", **environment}

    def run(self, line: str) -> None:
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=450,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"

    def set(self, **values: str | int) -> None:
        """Set values in arborcast.toml: SECTION__NAME=VALUE."""
        file = self._folder / "arborcast.toml"
        text = file.read_text()
        for key, value in values.items():
            section, name = key.split("__")
            line = f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"
            text, count = re.subn(rf"(?ms)(^\[{section}\]$.*?)^#{name} = [^\n]*$", rf"\g<1>{line}", text, count=1)
            assert count == 1, key
        file.write_text(text)

    @contextmanager
    def job(self) -> Iterator[None]:
        """The job of the last line: it becomes ready, and Ctrl-C stops it with status 0."""
        job = LoggedProcess(shlex.split(self.submit), self._folder / "job.log", cwd=self._folder, env=self._environment)
        job.start()
        try:
            job.wait_for(lambda: "ready to deliver" in job.text(), "the job is ready", 500)
            yield
            os.killpg(job.pid, signal.SIGINT)
            assert job.wait(300) == 0, job.text()[-3000:]
        finally:
            for each in psutil.process_iter():
                if _session(each.pid) == job.pid:
                    each.kill()


def test_those_for_an_embedded_engine(tmp_path: Path) -> None:
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    shell = Shell("docs/operations.md", tmp_path, {"ARBORCAST_GATEWAY_PORT": "0", "ARBORCAST_STACK_KAFKA_PORT": "0"})
    init, *more = shell.before
    shell.run(init)
    shell.set(outbound__scope="loopback")
    try:
        for line in more:
            shell.run(line)
        broker = Engine(tmp_path / ".arborcast").broker
        with Receiver() as receiver, shell.job(), Client(broker) as client:
            client.subscribe("documented//.", to=receiver.url("/s"))
            client.notify("documented/a", "<x/>")
            receiver.wait_for(1)
    finally:
        shell.run(f"{COMMAND} down")


@pytest.mark.kafka
@pytest.mark.spark
def test_those_for_a_cluster_with_the_bundle(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    python = bare_python(tmp_path / "python")
    with (
        running_cluster(tmp_path / "spark-cluster") as cluster,
        Receiver() as receiver,
        logs(kafka_settings) as log,
    ):
        shell = Shell("docs/cluster.md", tmp_path, {})
        init, bundle = shell.before
        shell.run(init)
        shell.set(
            kafka__bootstrap_servers=kafka_settings.bootstrap_servers,
            kafka__prefix=kafka_settings.prefix,
            kafka__partitions=kafka_settings.partitions,
            outbound__scope="loopback",
        )
        for printed, ours in (("spark://host:7077", cluster.url), ("/opt/arborcast/bin/python", str(python))):
            assert printed in bundle
            bundle = bundle.replace(printed, ours)
        shell.run(bundle)
        log.subscribe(subscription("s", receiver.url("/s"), "a//."))
        with shell.job():
            assert cluster.executors()
            log.notify("a/b")
            receiver.wait_for(1)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0
