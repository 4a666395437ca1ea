"""The dispatch job's script for spark-submit:

    spark-submit --properties-file FILE jobs/dispatch_stream.py --config arborcast.toml

It reads the settings, opens the Spark session that spark-submit has configured, and runs `dispatch.job.runtime` in it
until SIGTERM or SIGINT, which end the job between two batches. The file of ARBORCAST_READY_FILE is made when the job
delivers; from then on its time is that of the last heartbeat. If another job has the lease on the logs it ends with
status 75 (EX_TEMPFAIL): at its start after that of Spark, later at once. The code of Spark's workers is in the package
`dispatch`, not here: functions of a script would be sent with every task, and lose their state.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import logging
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import FrameType
from typing import Any

from arborcast.core.threads import start_thread

# spark-submit puts the folder of this script first on the import path: `import settings` or `import cli` in a library
# would find modules of that folder.
if sys.path and os.path.abspath(sys.path[0]) == os.path.dirname(os.path.abspath(__file__)):
    del sys.path[0]

# The allocators of delta-rs and Arrow read these when the libraries are loaded. By default each of delta-rs' many
# threads keeps the memory that it once used, and Arrow its largest batches: after an hour of commits a hundred MiB more
# than with one arena whose free pages are returned, which makes no commit slower.
os.environ.setdefault("_RJEM_MALLOC_CONF", "narenas:1,dirty_decay_ms:500,muzzy_decay_ms:0")
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from arborcast.core.errors import ConfigError
from arborcast.core.security.ip_addresses import is_loopback
from arborcast.dispatch.spark.properties import BIND_ADDRESS


def open_session() -> SparkSession:
    """The session that spark-submit has configured. Raises ConfigError for properties of local mode on a cluster."""
    SparkContext._ensure_initialized()  # noqa: SLF001  # without it SparkConf is empty
    conf = SparkConf()
    master, address = conf.get("spark.master", "") or "", conf.get(BIND_ADDRESS, "") or ""
    if not master.startswith("local") and is_loopback(address):
        raise ConfigError(
            f"{BIND_ADDRESS} = {address} is for local mode: executors of {master} cannot reach this job there; create "
            f"the properties with: arborcast config spark --master {master}"
        )
    return SparkSession.builder.getOrCreate()


# Spark's JVM needs seconds for a session. Python loads the rest of the job meanwhile.
_opening = ThreadPoolExecutor(1).submit(open_session) if __name__ == "__main__" else None

from arborcast.core import fence
from arborcast.core.errors import ArborcastError
from arborcast.core.eventlog.topics import for_existing_records
from arborcast.core.mqtt.settings import check_installed
from arborcast.core.telemetry import log_format
from arborcast.core.telemetry.jvm import declare_jvm
from arborcast.dispatch.job.heartbeat import FILE, Heartbeat, WorkerBeats, new_file
from arborcast.dispatch.job.lease import JobLease
from arborcast.dispatch.job.runtime import DispatchJob
from arborcast.dispatch.matching.bases import workers_are_local
from arborcast.dispatch.monitoring.jvm import SparkJvm
from arborcast.dispatch.monitoring.metrics import JobMetrics
from arborcast.dispatch.settings import JobSettings, TopicRules
from arborcast.dispatch.spark.query_supervisor import StopGate
from arborcast.engine.embedded.home import make_home
from arborcast.engine.embedded.state import has_own_broker, reachable_kafka
from arborcast.engine.monitoring.endpoint import serve_job_when_free
from arborcast.engine.settings.loading import Settings, level_of, load_settings
from arborcast.engine.settings.outbound import describe, policy_of
from arborcast.engine.terminal import print_error

logger = logging.getLogger("arborcast.dispatch")

# Additional time for the lease after the start of Spark, while Kafka starts.
_LEASE_S = 20.0

_LOGS_IN_USE = 75

# Timeout of the start of Spark in a refused job.
_OPENED_S = 120.0

_READY_FILE = "ARBORCAST_READY_FILE"


class _JvmSignals:
    """SIGTERM for the JVM, which is spark-submit's own process, must not shut Spark down during a batch: it closes the
    gate, as SIGTERM for Python does. Called by the JVM through py4j."""

    def __init__(self, gate: StopGate) -> None:
        self._gate = gate

    def handle(self, sig: object) -> None:
        self._gate.close()

    class Java:
        implements = ("sun.misc.SignalHandler",)


def main(arguments: list[str] | None = None) -> int:
    """Run the job; the exit status is 0 after an orderly stop, 75 if another job has the logs, and 1 otherwise."""
    parser = argparse.ArgumentParser(description="Arborcast's dispatch job, to be started by spark-submit.")
    parser.add_argument("--config", type=Path, help="settings file (TOML)")
    parser.add_argument("--home", type=Path, help="data directory")
    options = parser.parse_args(arguments)
    log_format.configure("human", "dispatch")
    # Maximum time for which a computing thread (conversion of records to columns) keeps the interpreter. A batch needs
    # it some fifty times; with the default of 5 ms each of these may wait for as long.
    sys.setswitchinterval(0.000_5)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    logging.getLogger("py4j.clientserver").addFilter(_without_trace)
    # It prints every exception of Spark's a second time, as JSON with two stack traces.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.FATAL)
    try:
        settings = _settings(options.config, options.home)
        log_format.configure(settings.logging.format, "dispatch", level_of(settings))
        if note := make_home(settings.home, settings.stack.home_access):
            logger.info("%s", note)
    except (ArborcastError, OSError) as error:
        print_error(f"arborcast dispatch: {error}")
        return 1
    _end_with_the_jvm()
    gate = StopGate()
    # While Spark's JVM starts.
    lease = JobLease(settings.kafka, settings.home, _end_at_once)
    lease.start()
    try:
        spark = _opening.result() if _opening is not None else open_session()
    except ConfigError as error:
        logger.error("%s", error)
        lease.release()
        return 1
    _stop_on_signals(spark, gate)
    logger.info("pushes may go to %s", describe(settings.outbound))
    try:
        healthy = not lease.acquire(_LEASE_S, lambda: gate.closed) or _run(spark, settings, gate, lease)
    except ArborcastError as error:
        logger.error("%s", error)
        healthy = False
    finally:
        spark.stop()
        lease.release()
    return 0 if healthy else 1


def _without_trace(record: logging.LogRecord) -> bool:
    """A connection without the secret is one line of the log."""
    record.exc_info = None
    return True


def _settings(config: Path | None, home: Path | None) -> Settings:
    """The settings, with the Kafka of the engine that runs in the data directory, unless its supervisor has started
    this job or the settings have another Kafka. Raises ConfigError."""
    settings = load_settings(config, home)
    if settings.mqtt.url:
        check_installed()
    if _READY_FILE in os.environ or not has_own_broker(settings):
        return settings
    return dataclasses.replace(settings, kafka=reachable_kafka(settings))


def _run(spark: SparkSession, settings: Settings, gate: StopGate, lease: JobLease) -> bool:
    """Run until the gate closes; returns whether there was no failure. Raises ArborcastError."""
    metrics = JobMetrics()
    declare_jvm(metrics.registry, SparkJvm(_jvm(spark)).read)
    serve_job_when_free(metrics, settings.metrics)
    job_settings = JobSettings(
        settings.home,
        for_existing_records(settings.kafka),
        settings.dispatch,
        settings.push,
        settings.tables,
        policy_of(settings, more=own_ports(spark.sparkContext)),
        settings.retry,
        settings.secrets,
        settings.tracing,
        TopicRules(settings.topics.retain_all, settings.topics.check_types, settings.limits.deliveries_per_minute),
        settings.slo,
        settings.mqtt,
    )
    if workers_are_local(spark.sparkContext):
        spark.sparkContext.environment[fence.FILE] = str(lease.file.absolute())
    workers = _monitored_workers(spark, job_settings, metrics)
    job = DispatchJob(spark, job_settings, gate, metrics)
    ping_jvm = _jvm(spark).java.lang.System.nanoTime
    with Heartbeat(ping_jvm, lambda: job.rounds, settings.dispatch.hang_timeout_s, workers) as heartbeat:
        return job.run(lambda: _ready(heartbeat))


def _end_at_once(why: str) -> None:
    """End this process, and with it the JVM and the workers, without another push."""
    logger.error("%s", why)
    if _opening is not None:
        # During its start, before any push, Spark would print stack traces.
        wait([_opening], _OPENED_S)
    os._exit(_LOGS_IN_USE)


def _end_with_the_jvm() -> None:
    """End this process with spark-submit's JVM, however that ends. Its end closes our standard input, a pipe that it
    never writes to; a driver that only waits would outlive its killed engine.
    """

    def wait_for_the_end() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    if "PYSPARK_GATEWAY_PORT" in os.environ:  # set by spark-submit, and only by it
        start_thread("jvm-watch", wait_for_the_end)


def _stop_on_signals(spark: SparkSession, gate: StopGate) -> None:
    def close(number: int, frame: FrameType | None) -> None:
        gate.close()

    jvm = _jvm(spark)
    start_callbacks(spark.sparkContext)
    handler = _JvmSignals(gate)
    for name in ("TERM", "INT"):
        signal.signal(getattr(signal, f"SIG{name}"), close)
        jvm.sun.misc.Signal.handle(jvm.sun.misc.Signal(name), handler)


def start_callbacks(context: SparkContext) -> None:
    """Start py4j's server for calls from the JVM, with the token that the JVM sends.

    pyspark starts it without one: then any process of this machine may make such calls. The JVM has the token, but its
    client drops it when the server's port is set (`PythonClient.copyWith` of py4j 0.10.9).
    """
    # pyspark's gateway, which calls need, is neither public nor typed.
    gateway: Any = context._gateway  # noqa: SLF001
    token = gateway.gateway_parameters.auth_token
    gateway.callback_server_parameters.auth_token = token
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    client = gateway.java_gateway_server.getCallbackClient()
    field = gateway.jvm.java.lang.Class.forName("py4j.CallbackClient").getDeclaredField("authToken")
    field.setAccessible(True)
    field.set(client, token)


def own_ports(context: SparkContext) -> set[tuple[str, int]]:
    """The addresses at which Spark and py4j listen in the processes of this job, after `start_callbacks`: they are not
    in the settings."""
    # pyspark has no public name for its gateway, nor py4j for its callback server.
    gateway: Any = context._gateway  # noqa: SLF001
    blocks = gateway.jvm.org.apache.spark.SparkEnv.get().blockManager().blockManagerId()
    ports = (context.getConf().get("spark.driver.port"), blocks.port(), gateway.gateway_parameters.port)
    return {("127.0.0.1", int(port)) for port in (*ports, gateway._callback_server.get_listening_port()) if port}  # noqa: SLF001


def _jvm(spark: SparkSession) -> Any:
    # Spark offers no public way to the JVM that it runs in.
    return spark.sparkContext._jvm  # noqa: SLF001


def _monitored_workers(spark: SparkSession, settings: JobSettings, metrics: JobMetrics) -> WorkerBeats | None:
    """Start heartbeats of the workers that Spark starts from now on, if they are on this host."""
    if not (settings.dispatch.hang_timeout_s and workers_are_local(spark.sparkContext)):
        return None
    file = (settings.home / "run" / "workers").absolute()
    spark.sparkContext.environment[FILE] = str(file)
    return WorkerBeats(new_file(file), settings.dispatch.hang_timeout_s, metrics.worker_hung)


def _ready(heartbeat: Heartbeat) -> None:
    # Exclude all current objects from garbage collection. The collector would traverse them repeatedly, a tenth of a
    # second each time for the modules alone, and all threads of this process would wait.
    gc.collect()
    gc.freeze()
    logger.info("ready to deliver")
    if target := os.environ.get(_READY_FILE):
        Path(target).touch()
        heartbeat.beat = Path(target).touch


if __name__ == "__main__":
    sys.exit(main())
