"""The tuned Spark settings of the job, each with its effect.

They are in the properties file of spark-submit (`--properties-file`), so that the embedded engine, a cluster and the
tests run the same job in the same way. Only `local[N,4]` and the Delta pair are required for correctness.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from arborcast.core.class_sharing import sharing
from arborcast.dispatch.job.heartbeat import LIMIT
from arborcast.dispatch.settings import DispatchSettings

_LOGGING = Path(__file__).with_name("log4j2.properties").absolute()

# The longest path of a folder for sockets that Spark accepts, in bytes.
_LONGEST_SOCKET_FOLDER = 60

_JAVA_OPTIONS = (
    # One collector thread and no card tables for parallel ones: about 60 MB less than G1, and pauses of a few ms at
    # this heap size.
    "-XX:+UseSerialGC",
    # A young generation that is collected often, rather than 120 MB that fill slowly in an idle engine.
    "-XX:NewSize=48m -XX:MaxNewSize=48m",
    # Spark's data about its last jobs survives a collection or two: with the default survivor space twice as much of it
    # moves to the old generation. That one begins small; by default it would grow to a 64th of the machine's memory
    # before its first collection.
    "-XX:SurvivorRatio=4 -XX:TargetSurvivorRatio=90 -Xms160m",
    # Only the quick compiler: the JVM only moves rows, the work is done in Python and libcurl. The other compiler needs
    # minutes (3 % of a core even when idle) before it is better, 100 MB, and until then a single notification takes
    # 125-200 ms instead of 95-110.
    "-XX:TieredStopAtLevel=1",
    # Spark has many threads with small stacks; the compiled code is bounded, too.
    "-Xss512k -XX:ReservedCodeCacheSize=64m",
    # No tool attaches to the job's JVM, and the counters file would be written to the temporary directory all the time.
    "-XX:-UsePerfData",
    # Spark's shutdown hooks must not delay a stop.
    "-Dspark.shutdown.timeout=5s",
)


def properties(
    settings: DispatchSettings,
    *,
    jars: Sequence[Path] = (),
    master: str | None = None,
    python: str = sys.executable,
    local_dir: Path | None = None,
    code: Path | None = None,
    classes: Path | None = None,
    archive_to: Path | None = None,
) -> dict[str, str]:
    """Spark properties for the dispatch job. On a cluster either Arborcast is installed on the hosts of Python workers,
    or it is sent with the job as `code`, a zip file of our packages.

    `master` None is for spark-submit without a master, which is local mode; "" leaves a cluster's to its command line;
    "local" is local mode with the task slots of the settings. `local_dir` is for Spark's temporary files. `classes` is
    an archive of the classes that the driver's JVM loads; `archive_to` is the path of a new one, written at exit. Only
    classes on the JVM's own class path can be archived, so the jars are put there and not sent to executors: for local
    mode.
    """
    chosen = dict(_FIXED)
    sockets = _socket_folder(local_dir)
    if master is not None and not master.startswith("local"):
        chosen |= {**_CLUSTER, **guarded(settings)}
        # The driver cannot monitor workers on other hosts: the daemon that forks them does.
        chosen[f"spark.executorEnv.{LIMIT}"] = f"{settings.hang_timeout_s:g}"
    else:
        chosen |= _ALONE
    chosen |= {
        "spark.pyspark.python": python,
        "spark.pyspark.driver.python": python,
        # The interval between two empty polls of Kafka. Each costs 1.5-2 ms of CPU in JVM and broker, so the default of
        # 10 ms keeps a fifth of a core busy.
        "spark.sql.streaming.pollingDelay": f"{settings.idle_poll_ms}ms",
        "spark.sql.shuffle.partitions": str(settings.task_slots),
        "spark.default.parallelism": str(settings.task_slots),
        "spark.driver.memory": f"{settings.driver_memory_mb}m",
        # Collected results count against the heap, and a full heap ends the job, pushes included. The default is 1
        # GB.
        "spark.driver.maxResultSize": f"{settings.driver_memory_mb // 2}m",
        "spark.driver.extraJavaOptions": " ".join(
            (
                *_JAVA_OPTIONS,
                *(quoted(option) for option in sharing(classes, archive_to)),
                # For files that Spark would leave in the temporary directory when it is killed.
                *((quoted(f"-Djava.io.tmpdir={local_dir}"),) if sockets is not None else ()),
                f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
            )
        ),
    }
    if master == "local":
        # Four tries per task: with plain local[N] the death of one Python worker fails the query.
        chosen["spark.master"] = f"local[{settings.task_slots},4]"
    elif master:
        chosen["spark.master"] = master
    if code is not None:
        chosen["spark.submit.pyFiles"] = str(code)
        # Executors fetch it into their working folder, and the Python daemon starts with our module before a worker has
        # read Spark's list of files.
        chosen["spark.executorEnv.PYTHONPATH"] = code.name
    if jars and (classes or archive_to):
        chosen["spark.driver.extraClassPath"] = os.pathsep.join(str(jar) for jar in jars)
    elif jars:
        chosen["spark.jars"] = ",".join(str(jar) for jar in jars)
    if local_dir is not None:
        chosen["spark.local.dir"] = str(local_dir)
    if sockets is not None:
        chosen["spark.python.unix.domain.socket.dir"] = str(sockets)
    return chosen


def quoted(text: str) -> str:
    """A text for Java, as one of the JVM's options or a value of JAAS: it may have spaces, quotes and backslashes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _socket_folder(local_dir: Path | None) -> Path | None:
    """The folder for the sockets of Python workers: Spark's own, or the temporary directory if their paths would be too
    long there; None for Java's temporary directory."""
    folders = [] if local_dir is None else [local_dir, Path(tempfile.gettempdir())]
    return next((each for each in folders if len(os.fsencode(each)) <= _LONGEST_SOCKET_FOLDER), None)


_FIXED: Mapping[str, str] = {
    "spark.app.name": "arborcast-dispatch",
    # -- latency of a batch ------------------------------------------------------------------------------------------
    # The default forks a process for every file of the checkpoint: a trigger takes 43 ms instead of 100-123.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Rows to Python workers over a Unix socket: TCP on loopback stalls, about 40 ms per batch.
    "spark.python.unix.domain.socket.enabled": "true",
    # Workers are forked from a daemon that has the sink imported: 25 MB less for each, and 0.3 s less for the first
    # notification of a new one.
    "spark.python.daemon.module": "arborcast.dispatch.job.worker_daemon",
    # Plans are trivial and never change: no re-planning between stages (5-10 ms each).
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    # Never wait for a better placed slot.
    "spark.locality.wait": "0",
    # The jobs that keep workers warm must not delay the dispatch.
    "spark.scheduler.mode": "FAIR",
    # -- idle cost ---------------------------------------------------------------------------------------------------
    # Progress events of an idle query: one a minute, not one every ten seconds.
    "spark.sql.streaming.noDataProgressEventInterval": "60000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    # A memory reading of every executor each 10 s, for a UI that is off.
    "spark.executor.heartbeatInterval": "30s",
    "spark.network.timeout": "120s",
    # -- checkpoint --------------------------------------------------------------------------------------------------
    # Batches whose progress files are kept: only the last is required, the others are for diagnosis.
    "spark.sql.streaming.minBatchesToRetain": "20",
    # -- Delta, for readers of the tables through this session --------------------------------------------------------
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
    # -- general -----------------------------------------------------------------------------------------------------
    # Times in the tables are UTC wherever the job runs.
    "spark.sql.session.timeZone": "UTC",
}


# For executors in other processes, on other hosts.
_CLUSTER: Mapping[str, str] = {
    # A killed process is noticed at once, by its closed connections; a host that is cut off delays the batch of all
    # others until this timeout.
    "spark.executor.heartbeatInterval": "5s",
    "spark.network.timeout": "30s",
    "spark.network.timeoutInterval": "10s",
    # The warm-up reaches only registered executors: do not begin with the first of them.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "15s",
    # Rows and Python workers: the JVM of an executor holds little, and each Python worker takes some 50 MB beside it.
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k -XX:-UsePerfData",
    # The tasks of a dead executor or worker are repeated elsewhere. The successive loss of several machines during one
    # batch must not fail the query.
    "spark.task.maxFailures": "8",
}


# Encrypted with AES-GCM, which detects changes: the default of 4.2 is AES-CTR, with a weaker derivation of keys, and
# accepts an older handshake.
_GUARDED: Mapping[str, str] = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.saslFallback": "false",
}

BIND_ADDRESS = "spark.driver.bindAddress"

# Local mode opens the ports of a driver, too. Spark makes the secret itself there, and no other process needs it.
_ALONE: Mapping[str, str] = {
    **_GUARDED,
    BIND_ADDRESS: "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # The only executor is the driver. Spark removes it when the wall clock moves by spark.network.timeout between two
    # heartbeats (a suspended machine, a clock put ahead); it cannot register again, and the JVM exits half an hour
    # later.
    "spark.storage.blockManagerHeartbeatTimeoutMs": "36500d",
}

DAEMONS: Mapping[str, str] = {
    # The REST server of a master starts applications without a secret, and is on by default; its web page ends them.
    "spark.master.rest.enabled": "false",
    "spark.ui.killEnabled": "false",
    # The logs of executors, and the folder of each start of the job, would fill a worker's disk: neither has a limit by
    # default.
    "spark.executor.logs.rolling.strategy": "size",
    "spark.executor.logs.rolling.maxSize": str(16 << 20),
    "spark.executor.logs.rolling.maxRetainedFiles": "4",
    "spark.worker.cleanup.enabled": "true",
}
"""Properties of the master and workers of a standalone cluster, beside `guarded`."""

_SECRET = "spark.authenticate.secret"  # noqa: S105  # its name


def guarded(settings: DispatchSettings) -> dict[str, str]:
    """Secrets of the cluster's parts, so that no other host can submit tasks, or read their traffic: an executor's port
    without a secret is a remote shell. The same for job, master and workers."""
    if not settings.spark_authenticate:
        return {}
    return {**_GUARDED, **({_SECRET: settings.spark_secret} if settings.spark_secret else {})}


def needs_secret(settings: DispatchSettings, master: str | None) -> bool:
    """Whether the settings need a secret: YARN and Kubernetes distribute one, a standalone master does not."""
    standalone = not master or master.startswith("spark:")
    return settings.spark_authenticate and not settings.spark_secret and standalone


def secret_in(text: str) -> str:
    """The secret in a properties file made by `as_text`, empty without one."""
    found = [line.removeprefix(_SECRET).strip() for line in text.splitlines() if line.startswith(f"{_SECRET} ")]
    return found[0].replace(chr(92) * 2, chr(92)) if found else ""


def as_text(values: Mapping[str, str]) -> str:
    """A properties file for spark-submit. Java's format: a backslash in a value is doubled."""
    return "".join(f"{key} {value.replace(chr(92), chr(92) * 2)}\n" for key, value in sorted(values.items()))


def write_properties(path: Path, values: Mapping[str, str]) -> None:
    """Write the properties file, readable only for its owner: it may contain a secret."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(as_text(values))
