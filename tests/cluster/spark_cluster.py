"""A standalone Spark cluster on loopback, from the pip-installed pyspark: a master and workers that can be killed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import psutil
import pyspark

from arborcast.dispatch.settings import DispatchSettings
from arborcast.dispatch.spark.properties import DAEMONS, guarded, write_properties
from arborcast.engine.install import java
from arborcast.engine.processes import processes
from tests.support.process import LoggedProcess

SPARK_HOME = Path(pyspark.__file__).parent

_HOST = "127.0.0.1"
_SECRET = "ARBORCAST_DISPATCH_SPARK_SECRET"  # noqa: S105  # the name of a variable


class _Daemon(LoggedProcess):
    """A JVM of the cluster."""

    def __init__(self, folder: Path, name: str, main: str, arguments: list[str], properties: Path) -> None:
        executable = java.find_java().executable
        environment = {
            "JAVA_HOME": str(executable.parent.parent),
            "SPARK_HOME": str(SPARK_HOME),
            # spark-class sets it; plain java needs it.
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_IP": _HOST,
            "SPARK_WORKER_DIR": str(folder / name),
        }
        command = [str(executable), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *_OPENED]
        command += ["-cp", f"{SPARK_HOME}/jars/*", f"org.apache.spark.deploy.{main}"]
        command += ["--properties-file", str(properties), *arguments]
        super().__init__(command, folder / f"{name}.log", cwd=folder, env=environment)

    def start_until(self, pattern: str) -> None:
        """Start it, and wait for this text in its log."""
        self.start()
        self.wait_for(lambda: pattern in self.text(), pattern)

    def executors(self) -> list[psutil.Process]:
        """Its JVMs for applications."""
        with suppress(psutil.NoSuchProcess):
            return [child for child in psutil.Process(self.pid).children() if "java" in child.name()]
        return []

    def kill(self) -> int:
        """kill -9 of it and its children, like the loss of the machine."""
        below: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            below = psutil.Process(self.pid).children(recursive=True)
        status = super().kill()
        for process in below:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return status


class SparkCluster:
    """A master and workers with `cores` each, which require `secret`."""

    def __init__(self, folder: Path, workers: int = 2, cores: int = 1, memory_mb: int = 1024) -> None:
        self._folder = folder
        self._cores = cores
        self._memory_mb = memory_mb
        self.secret = secrets.token_urlsafe()
        folder.mkdir(parents=True, exist_ok=True)
        self._properties = folder / "spark-cluster.properties"
        write_properties(self._properties, {**guarded(DispatchSettings(spark_secret=self.secret)), **DAEMONS})
        port = processes.free_port()
        arguments = ["--host", _HOST, "--port", str(port), "--webui-port", "0"]
        self.master = _Daemon(folder, "master", "master.Master", arguments, self._properties)
        self.url = f"spark://{_HOST}:{port}"
        self.workers: list[_Daemon] = []
        try:
            self.master.start_until("I have been elected leader")
            for _ in range(workers):
                self.add_worker()
        except BaseException:
            self.kill()
            raise

    def add_worker(self) -> _Daemon:
        """Start one more worker, and wait for its registration."""
        name = f"worker-{len(self.workers)}"
        limits = ["--cores", str(self._cores), "--memory", f"{self._memory_mb}m"]
        arguments = ["--host", _HOST, "--webui-port", "0", *limits, self.url]
        worker = _Daemon(self._folder, name, "worker.Worker", arguments, self._properties)
        self.workers.append(worker)
        worker.start_until("Successfully registered with master")
        return worker

    def executors(self) -> list[psutil.Process]:
        """The executors of all running workers."""
        return [executor for worker in self.workers for executor in worker.executors()]

    def kill(self) -> None:
        """Stop all processes."""
        for daemon in (*self.workers, self.master):
            daemon.kill()


@contextmanager
def running_cluster(folder: Path, workers: int = 2) -> Iterator[SparkCluster]:
    """A started cluster, killed at the end. Commands started meanwhile have its secret in their environment."""
    cluster = SparkCluster(folder, workers)
    try:
        with patch.dict(os.environ, {_SECRET: cluster.secret}):
            yield cluster
    finally:
        cluster.kill()


# What spark-class would add: Spark reaches into these packages of Java 17.
_OPENED = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.lang.invoke", "java.net", "java.nio", "java.util", "sun.nio.ch")
]
