"""The parts of the embedded engine: Kafka, the streaming job under spark-submit, the gateway, the console."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from arborcast.core.errors import ConfigError
from arborcast.core.files import write_atomically
from arborcast.core.security.ip_addresses import connect_host, in_url
from arborcast.core.telemetry import log_format
from arborcast.dispatch.spark import properties
from arborcast.engine.embedded import kafka_broker, questions
from arborcast.engine.embedded.home import Home
from arborcast.engine.embedded.kafka_broker import BrokerLayout, KafkaBroker
from arborcast.engine.embedded.parts import PartSpec
from arborcast.engine.embedded.questions import Question
from arborcast.engine.install import jars, java
from arborcast.engine.install.java import JavaRuntime, java_environ
from arborcast.engine.processes import processes
from arborcast.engine.processes.processes import words
from arborcast.engine.settings.loading import ENV_PREFIX, Settings, dump
from arborcast.engine.settings.outbound import outbound_of
from arborcast.engine.settings.stack import ConsoleSettings, MetricsSettings, StackSettings

_SCRIPT = Path(__file__).parents[2] / "jobs" / "dispatch_stream.py"

# Variables with locations of this machine, for the parts. Other variables with the prefix are settings, and would
# override the effective settings in the parts' file.
_FORWARDED = frozenset({ENV_PREFIX + "CACHE", ENV_PREFIX + "JAVA"})


@dataclass(frozen=True)
class Tools:
    """The prerequisites of a start."""

    java: JavaRuntime
    java_home: Path
    spark_jars: list[Path]
    broker_jars: list[Path]
    classes: Mapping[str, Path] = field(default_factory=dict)
    """The archives of the classes that the JVMs load, by part (`class_archive`)."""
    archives_to: Mapping[str, Path] = field(default_factory=dict)
    """The archives to be written by the JVMs at their end."""


JVMS = ("dispatch", "kafka")
"""The parts that are JVMs."""


def find_tools() -> Tools:
    """Find Java and the jars, and verify them. Raises JavaNotFound, JavaTooOld, JarError."""
    found, cache = java.find_java(), jars.default_cache()
    tools = Tools(
        found,
        java.home_for_spark(found, cache),
        jars.jar_paths("spark", cache),
        jars.jar_paths("broker", cache),
    )
    found_classes = {part: classes for part in JVMS if (classes := class_archive(tools, cache, part)) is not None}
    return dataclasses.replace(tools, classes=found_classes)


def class_archive_name(tools: Tools, cache: Path, part: str, size: int | str) -> Path:
    """The file name of the archive of a part's classes: its key, checked by Java, and its size, since a JVM crashes on
    a truncated one."""
    spark = (tools.java_home, jars.pyspark_folder(), *tools.spark_jars)
    fits = (tools.java.executable, tools.java.version, *(spark if part == "dispatch" else tools.broker_jars))
    digest = hashlib.sha256("\n".join(map(str, fits)).encode()).hexdigest()[:12]
    return cache / "java" / f"classes-{digest}-{size}.jsa"


def class_archive(tools: Tools, cache: Path, part: str) -> Path | None:
    """The archive of a part's classes for this Java and these jars, if it is complete."""
    pattern = class_archive_name(tools, cache, part, "*")
    for file in sorted(pattern.parent.glob(pattern.name)):
        if file.stem.rpartition("-")[2] == str(file.stat().st_size):
            with contextlib.suppress(OSError):
                os.utime(file)  # in use: `engine.install.class_archive` deletes old ones
            return file
    return None


def effective(settings: Settings) -> Settings:
    """The settings with all ports chosen, the embedded broker's address, and the outbound scope.

    Raises PortInUse with the option for another port, ConfigError for a contradiction.
    """
    free_gateway = settings.gateway.port == 0
    gateway_port = _port(settings.gateway.port, "the gateway", "--gateway-port", settings.gateway.host)
    settings = _replace(settings, gateway=dataclasses.replace(settings.gateway, port=gateway_port))
    if settings.zmq.enabled and not settings.framed.port:
        settings = _replace(settings, framed=dataclasses.replace(settings.framed, port=processes.free_port()))
    settings = _replace(settings, metrics=_metrics_ports(settings.metrics, settings.stack))
    settings = _replace(settings, console=_console_port(settings, any_port=free_gateway))
    if settings.stack.broker == "external":
        return settings

    if settings.origins.get("kafka.bootstrap_servers", "default") != "default":
        raise ConfigError(
            f"kafka.bootstrap_servers = {settings.kafka.bootstrap_servers!r} names a broker, but stack.broker is "
            "embedded: leave out the one, or set stack.broker to external"
        )
    if settings.kafka.max_record_bytes > kafka_broker.LONGEST_RECORD:
        # It closes the connection of a longer request, and so fails those of other publishers, too.
        raise ConfigError(
            f"kafka.max_record_bytes = {settings.kafka.max_record_bytes} is too large for the embedded broker: at most "
            f"{kafka_broker.LONGEST_RECORD}, or set stack.broker to external"
        )
    # Kafka's log cleaner enlarges a buffer for reading and one for writing to the longest record of a log.
    needed = -(-2 * settings.kafka.max_record_bytes // 2**20)
    if settings.stack.kafka_heap_mb < needed:
        raise ConfigError(
            f"stack.kafka_heap_mb = {settings.stack.kafka_heap_mb} is too small for kafka.max_record_bytes = "
            f"{settings.kafka.max_record_bytes}: set it to {needed} or more, or reduce kafka.max_record_bytes"
        )
    port = _port(settings.stack.kafka_port, "Kafka", "--kafka-port")
    return _replace(
        settings,
        stack=dataclasses.replace(settings.stack, kafka_port=port),
        kafka=dataclasses.replace(settings.kafka, bootstrap_servers=f"{processes.LOOPBACK}:{port}"),
        outbound=outbound_of(settings),
    )


def _console_port(settings: Settings, *, any_port: bool) -> ConsoleSettings:
    """The console's settings with its port. Raises PortInUse only for a configured port; otherwise the console must not
    prevent a start."""
    console = settings.console
    if not console.port:
        return console
    if settings.origins.get("console.port", "default") != "default":
        zero = "does without the console"
        processes.require_free(console.port, "the console", "--console-port", console.host, zero)
    elif any_port or not processes.is_free(console.port, console.host):
        return dataclasses.replace(console, port=processes.free_port())
    return console


def _metrics_ports(metrics: MetricsSettings, stack: StackSettings) -> MetricsSettings:
    chosen = dataclasses.replace(metrics, port=_port(metrics.port, "metrics", "--metrics-port", metrics.host))
    if stack.job == "external":
        return chosen  # an external job may be running
    job_port = _port(metrics.job_port, "the job's metrics", "metrics.job_port", metrics.host)
    return dataclasses.replace(chosen, job_port=job_port)


def _port(port: int, what: str, option: str, host: str = processes.LOOPBACK) -> int:
    """The port of the settings; a free one for 0. Raises PortInUse."""
    if port:
        processes.require_free(port, what, option, host)
    return port or processes.free_port()


def addresses(settings: Settings) -> dict[str, str]:
    """The addresses of the engine, by name."""
    base = settings.gateway.public_url.rstrip("/") or settings.gateway_url
    framed = {"framed": settings.framed_url} if settings.framed_url else {}
    zmq = {
        f"zmq {name}": address
        for name in ("subscribe", "publish", "pipeline", "requests", "tasks", "results")
        if settings.zmq.enabled and (address := str(getattr(settings.zmq, name))) and not address.startswith(">")
    }
    console = {"console": settings.console_url} if settings.console_url else {}
    return {
        "gateway": base,
        "notification_broker": f"{base}/wsn/NotificationBroker",
        **framed,
        **zmq,
        "kafka": settings.kafka.bootstrap_servers,
        "metrics": f"http://{in_url(connect_host(settings.metrics.host))}:{settings.metrics.port}",
        **console,
    }


def metrics_urls(settings: Settings) -> dict[str, str]:
    found = {"gateway": settings.gateway_url}
    if settings.job_metrics_url:  # else the address of an external job is unknown
        found["dispatch"] = settings.job_metrics_url
    return found


def questions_of(settings: Settings, home: Home) -> dict[str, Question]:
    """The health check of each part, for effective settings."""
    found = {"gateway": questions.web(settings.gateway_url)}
    if settings.stack.job == "embedded":
        found["dispatch"] = questions.job(home.ready_file)
    if settings.stack.broker == "embedded":
        found["kafka"] = questions.kafka(settings.stack.kafka_port)
    if settings.console_url:
        found["console"] = questions.web(settings.console_url)
    return found


def write_settings(settings: Settings, home: Home) -> None:
    """Write the effective settings for the parts; readable by the owner only, since they contain passwords."""
    write_atomically(home.settings_file, dump(settings), mode=0o600, durable=False)


def parts(settings: Settings, tools: Tools, home: Home, environ: Mapping[str, str] = os.environ) -> list[PartSpec]:
    """The parts in the order of their start, for effective settings."""
    environ = {k: v for k, v in environ.items() if not k.startswith(ENV_PREFIX) or k in _FORWARDED}
    environ["PYTHONUNBUFFERED"] = "1"  # without it the log is late
    # Each of a JVM's hundreds of threads would have a memory pool of its own: 30 MiB in all.
    environ.setdefault("MALLOC_ARENA_MAX", "2")
    # The job first: it takes longest, and waits for the broker while Spark starts.
    specs = [_dispatch(settings, tools, home, environ)] if settings.stack.job == "embedded" else []
    specs += [_kafka(settings, tools, home, environ)] if settings.stack.broker == "embedded" else []
    specs += [_gateway(settings, home, environ)]
    specs += [_zmq(settings, home, environ)] if settings.zmq.enabled else []
    specs += [_console(settings, home, environ)] if settings.console.port else []
    json_log, checks = settings.logging.format == "json", questions_of(settings, home)
    return [
        dataclasses.replace(spec, json_log=json_log, liveness=checks.get(spec.name, spec.liveness)) for spec in specs
    ]


def _kafka(settings: Settings, tools: Tools, home: Home, environ: Mapping[str, str]) -> PartSpec:
    stack = settings.stack
    layout = BrokerLayout(
        home.kafka,
        stack.kafka_port,
        kafka_broker.controller_port(home.kafka),
        stack.kafka_heap_mb,
        stack.kafka_fsync,
    )
    archives = tools.classes.get("kafka"), tools.archives_to.get("kafka")
    broker = KafkaBroker(layout, tools.broker_jars, tools.java.executable, *archives)
    return PartSpec(
        "kafka",
        broker.command(),
        java_environ(environ),
        home.kafka,
        home.log("kafka"),
        is_ready=lambda: kafka_broker.answers(stack.kafka_port),
        prepare=broker.prepare,
        hang_timeout_s=stack.hang_timeout_s,
    )


def _dispatch(settings: Settings, tools: Tools, home: Home, environ: Mapping[str, str]) -> PartSpec:
    spark_home = jars.pyspark_folder()
    properties_file = home.run / "spark.properties"
    temporary = home.spark / "tmp"

    def prepare() -> None:
        home.ready_file.unlink(missing_ok=True)
        # A killed Spark leaves its temporary files.
        shutil.rmtree(home.spark, ignore_errors=True)
        temporary.mkdir(parents=True)
        properties.write_properties(
            properties_file,
            properties.properties(
                settings.dispatch,
                jars=tools.spark_jars,
                master="local",
                python=sys.executable,
                local_dir=temporary,
                classes=tools.classes.get("dispatch"),
                archive_to=tools.archives_to.get("dispatch"),
            ),
        )

    return PartSpec(
        "dispatch",
        [
            *(str(spark_home / "bin" / "spark-submit"), "--properties-file", str(properties_file)),
            *(str(_SCRIPT), "--config", str(home.settings_file)),
        ],
        {
            **java_environ(environ),
            "JAVA_HOME": str(tools.java_home),
            "SPARK_HOME": str(spark_home),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "TMPDIR": str(temporary),
            "SPARK_LOCAL_IP": processes.LOOPBACK,  # otherwise Spark listens on the network
            # For the JVM that only computes the command line of the other one.
            "SPARK_LAUNCHER_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData",
            ENV_PREFIX + "READY_FILE": str(home.ready_file),
            log_format.INHERITED: settings.logging.format,
        },
        home.spark,  # Spark writes into the current folder
        home.log("dispatch"),
        is_ready=home.ready_file.exists,
        prepare=prepare,
        stop_targets=_driver,
        stop_share=0.8,
        hang_timeout_s=settings.stack.job_hang_timeout_s,
    )


def _gateway(settings: Settings, home: Home, environ: Mapping[str, str]) -> PartSpec:
    return PartSpec(
        "gateway",
        [sys.executable, "-m", "arborcast.engine.gateway", "--config", str(home.settings_file)],
        environ,
        home.run,
        home.log("gateway"),
        is_ready=lambda: questions.answers_page(f"{settings.gateway_url}/health/ready"),
        after=("kafka",) if settings.stack.broker == "embedded" else (),
        stop_share=0.3,
        hang_timeout_s=settings.stack.hang_timeout_s,
    )


def _console(settings: Settings, home: Home, environ: Mapping[str, str]) -> PartSpec:
    """As the gateway, but after the parts that deliver."""
    return dataclasses.replace(
        _gateway(settings, home, environ),
        name="console",
        command=[sys.executable, "-m", "arborcast.console", "--config", str(home.settings_file)],
        log=home.log("console"),
        is_ready=lambda: questions.answers_page(f"{settings.console_url}/health/live"),
        after=("gateway",),
    )


def _zmq(settings: Settings, home: Home, environ: Mapping[str, str]) -> PartSpec:
    alive = home.run / "zmq.alive"
    return PartSpec(
        "zmq",
        [
            *(sys.executable, "-m", "arborcast.engine.gateway.zmq_edge"),
            *("--config", str(home.settings_file), "--alive", str(alive)),
        ],
        environ,
        home.run,
        home.log("zmq"),
        is_ready=alive.exists,
        prepare=lambda: alive.unlink(missing_ok=True),
        after=("gateway",),
        stop_share=0.3,
        liveness=questions.job(alive),
        hang_timeout_s=settings.stack.hang_timeout_s,
    )


def _driver(processes: list[psutil.Process]) -> list[psutil.Process]:
    """The job's Python, which ends its batch on SIGTERM and then Spark's JVM. The JVM itself would drop its work."""
    drivers = []
    for process in processes:
        command, *arguments = words(process) or [""]
        if Path(command).name.startswith("python") and any(_SCRIPT.name in argument for argument in arguments):
            drivers.append(process)
    return drivers or processes[:1]


def _replace(settings: Settings, **sections: object) -> Settings:
    return dataclasses.replace(settings, **sections)  # type: ignore[arg-type]  # names of sections, as callers write them
