"""The dispatch job as its own process, started by spark-submit exactly as the engine starts it; for chaos tests and
measurements, which want to kill it or to look at its processes."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.settings import DispatchSettings
from arborcast.dispatch.spark.properties import properties, write_properties
from arborcast.engine.embedded.engine import find_tools
from arborcast.engine.install import jars, java

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Bundle:
    """What `arborcast bundle` has written, and the Python of the cluster."""

    script: Path
    properties: Path
    python: Path


class DispatchProcess:
    """spark-submit, the JVM, the Python driver and its workers: one process group."""

    def __init__(
        self,
        home: Path,
        kafka: KafkaSettings,
        settings: Mapping[str, str | int | float] | None = None,
        bundle: Bundle | None = None,
        archive: bool = True,
    ) -> None:
        """With `archive` its JVM reads its classes from the archive of this machine, if there is one."""
        self.home = home
        self._script = bundle.script if bundle else ROOT / "jobs" / "dispatch_stream.py"
        self._python = bundle.python if bundle else Path(sys.executable)
        self._log = home / "dispatch.log"
        self._ready = home / "ready.json"
        self._properties = home / "spark.properties"
        self._process: subprocess.Popen[bytes] | None = None
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
        if bundle is not None:
            self._properties = bundle.properties
            return
        write_properties(
            self._properties,
            properties(
                dispatch,
                jars=jars.jar_paths("spark"),
                master="local",
                local_dir=home / "spark",
                classes=find_tools().classes if archive else None,
            ),
        )

    def start(self, timeout: float = 600.0) -> DispatchProcess:
        """Start and wait until it is ready. Raises RuntimeError with the end of its log when it is not."""
        self._ready.unlink(missing_ok=True)
        runtime = java.find_java()
        environment = {
            **os.environ,
            "JAVA_HOME": str(runtime.executable.parent.parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "ARBORCAST_READY_FILE": str(self._ready),
            "PYSPARK_PYTHON": str(self._python),
            "SPARK_LAUNCHER_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData",
            "MALLOC_ARENA_MAX": "2",
        }
        submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(submit),
                    "--properties-file",
                    str(self._properties),
                    str(self._script),
                    "--config",
                    str(self.home / "arborcast.toml"),
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.home,
            )
        deadline = time.monotonic() + timeout
        while not self._ready.exists():
            if self._process.poll() is not None:
                raise RuntimeError(f"the job ended with {self._process.returncode} before it was ready\n{self.log()}")
            if time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the job was not ready within {timeout} s\n{self.log()}")
            time.sleep(0.05)
        return self

    def log(self, characters: int = 6000) -> str:
        """The end of what it has printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-characters:]

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Its processes by role: jvm, driver, daemon, worker. RuntimeError with the end of its log when it is gone."""
        assert self._process is not None
        try:
            jvm = psutil.Process(self._process.pid)
            driver = psutil.Process(json.loads(self._ready.read_text(encoding="utf-8"))["pid"])
        except psutil.NoSuchProcess as error:
            raise RuntimeError(f"the job is gone, its status is {self._process.poll()}\n{self.log()}") from error
        roles: dict[str, list[psutil.Process]] = {"jvm": [jvm], "driver": [driver], "daemon": [], "worker": []}
        for child in jvm.children():
            try:
                # The JVM also starts short-lived programs, chmod for instance.
                if child.pid != driver.pid and "python" in child.name():
                    roles["worker"] += child.children()
                    roles["daemon"].append(child)
            except psutil.NoSuchProcess:
                continue
        return roles

    def terminate(self, timeout: float = 120.0) -> int:
        """SIGTERM to spark-submit's process, as a supervisor does; the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout)

    def wait(self, timeout: float = 120.0) -> int:
        """Wait for it to end; the exit status."""
        assert self._process is not None
        return self._process.wait(timeout)

    def kill(self) -> None:
        """kill -9 of everything that is left of it."""
        if self._process is not None:
            for process in self._everything():
                with_suppressed_kill(process)
            self._process.wait(120)
            self._process = None

    def _everything(self) -> Sequence[psutil.Process]:
        assert self._process is not None
        try:
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def with_suppressed_kill(process: psutil.Process) -> None:
    """kill -9; being dead already is fine."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


@contextmanager
def running_job(
    home: Path,
    kafka: KafkaSettings,
    settings: Mapping[str, str | int | float] | None = None,
    bundle: Bundle | None = None,
) -> Iterator[DispatchProcess]:
    """A started job, killed in the end. With a bundle it is what that says, on the cluster that it names."""
    job = DispatchProcess(home, kafka, settings, bundle)
    try:
        yield job.start()
    finally:
        job.kill()
