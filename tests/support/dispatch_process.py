"""The dispatch job as a process, started by spark-submit as the engine starts it; for chaos tests and
measurements, which kill or inspect its processes."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.settings import DispatchSettings
from arborcast.dispatch.spark.properties import properties, write_properties
from arborcast.engine.embedded.engine import find_tools
from arborcast.engine.install import jars, java
from tests.support.process import ROOT as ROOT
from tests.support.process import LoggedProcess, running


@dataclass(frozen=True)
class Bundle:
    """The output of `arborcast bundle`, and the Python of the cluster."""

    script: Path
    properties: Path
    python: Path


class DispatchProcess:
    """spark-submit, the JVM, the Python driver and its workers: one process group. With a bundle: from the bundle, on
    its cluster."""

    def __init__(
        self,
        home: Path,
        kafka: KafkaSettings,
        settings: Mapping[str, str | int | float] | None = None,
        bundle: Bundle | None = None,
    ) -> None:
        self.home = home
        self._ready = home / "ready"
        home.mkdir(parents=True, exist_ok=True)
        chosen = {
            "kafka.bootstrap_servers": kafka.bootstrap_servers,
            "kafka.prefix": kafka.prefix,
            "kafka.partitions": kafka.partitions,
            "kafka.replication": kafka.replication,
            "tables.interval_s": 1.0,
            "outbound.scope": "loopback",
            **(settings or {}),
        }
        lines = [f'home = "{home}"'] + [f"{key} = {json.dumps(value)}" for key, value in sorted(chosen.items())]
        (home / "arborcast.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        given = {key.partition(".")[2]: value for key, value in chosen.items() if key.startswith("dispatch.")}
        dispatch = dataclasses.replace(DispatchSettings(), **given)  # type: ignore[arg-type]
        (home / "spark").mkdir(exist_ok=True)
        script = bundle.script if bundle else ROOT / "jobs" / "dispatch_stream.py"
        chosen_properties = bundle.properties if bundle else home / "spark.properties"
        environment = {
            "JAVA_HOME": str(java.find_java().executable.parent.parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "ARBORCAST_READY_FILE": str(self._ready),
            "PYSPARK_PYTHON": str(bundle.python if bundle else sys.executable),
            "SPARK_LAUNCHER_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData",
            "MALLOC_ARENA_MAX": "2",
        }
        submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
        command = [
            submit,
            "--properties-file",
            str(chosen_properties),
            str(script),
            "--config",
            f"{home}/arborcast.toml",
        ]
        self._submitted = LoggedProcess(command, home / "dispatch.log", cwd=home, env=environment)
        if bundle is None:
            classes = find_tools().classes.get("dispatch")
            spark_jars, local_dir = jars.jar_paths("spark"), home / "spark"
            values = properties(dispatch, jars=spark_jars, master="local", local_dir=local_dir, classes=classes)
            write_properties(chosen_properties, values)

    def start(self, timeout: float = 600.0) -> DispatchProcess:
        """Start and wait until ready. Fails with its output otherwise."""
        self._ready.unlink(missing_ok=True)
        self._submitted.start()
        self._submitted.wait_for(self._ready.exists, "the job is ready", timeout)
        return self

    def log(self, characters: int = 6000) -> str:
        """The end of its output."""
        return self._submitted.text()[-characters:]

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Its processes by role: jvm, driver, daemon, worker. RuntimeError with the end of the log after its exit."""
        roles: dict[str, list[psutil.Process]] = {"jvm": [], "driver": [], "daemon": [], "worker": []}
        with suppress(psutil.NoSuchProcess):
            roles["jvm"].append(psutil.Process(self._submitted.pid))
            for child in roles["jvm"][0].children():
                # The JVM also starts short-lived programs, chmod for instance.
                with suppress(psutil.NoSuchProcess):
                    if any("dispatch_stream" in each for each in child.cmdline()):
                        roles["driver"].append(child)
                    elif "python" in child.name():
                        roles["worker"] += child.children()
                        roles["daemon"].append(child)
        if not roles["driver"]:
            raise RuntimeError(f"the job has exited with status {self._submitted.ended}\n{self.log()}")
        return roles

    def terminate(self, timeout: float = 120.0) -> int:
        """SIGTERM to the spark-submit process, as a supervisor sends it; returns the exit status."""
        os.kill(self._submitted.pid, signal.SIGTERM)
        return self.wait(timeout)

    def wait(self, timeout: float = 120.0) -> int:
        """Wait for its exit; returns the exit status."""
        return self._submitted.wait(timeout)

    def kill_part(self, role: str) -> None:
        """kill -9 of the process of this role; the others end by themselves."""
        roles = self.processes()
        with_suppressed_kill(roles[role][0])
        self.wait()
        _, alive = psutil.wait_procs([each for processes in roles.values() for each in processes], timeout=60)
        assert not alive

    def kill(self) -> None:
        """kill -9 of all remaining processes."""
        self._submitted.kill()


def with_suppressed_kill(process: psutil.Process) -> None:
    """kill -9, also of a process that has exited."""
    with suppress(psutil.NoSuchProcess):
        process.kill()


running_job = running(DispatchProcess)
