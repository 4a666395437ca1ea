"""`arborcast doctor`: checks of the engine's requirements, with advice for each failure."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import resource
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from arborcast.admin import kafka_safety
from arborcast.core.errors import ArborcastError, ConfigError, SecretError
from arborcast.core.files import readable_by_others
from arborcast.core.mqtt.settings import MqttSettings, check_installed
from arborcast.core.security.keyring import parse_keys
from arborcast.core.wall_clock import time_ms
from arborcast.engine.embedded import engine, questions, state
from arborcast.engine.embedded.home import KEY_FILE, Home, free_mb
from arborcast.engine.embedded.state import EngineStatus
from arborcast.engine.embedded.status import supervisor_silent_s
from arborcast.engine.install import jars, java
from arborcast.engine.processes import processes
from arborcast.engine.processes.errors import StackError
from arborcast.engine.settings.checks import check_files, check_gateway
from arborcast.engine.settings.loading import Settings, load_settings
from arborcast.ingest.mqtt.rules import read_rules

# An idle engine needs less; under heavy load Spark's heap grows up to its limit.
_MEMORY_MB = 1_600

# Every connection of a publisher, a subscriber or a Kafka client is an open file, and so is every log segment.
_FILES = 4_096

# Timeout of a part's health check. The part's heartbeat has an interval of two seconds.
_PATIENCE_S = 8.0

# Packages and jars that must have the same version: a Spark with a connector of another release fails in the middle of
# the first batch.
_SAME_VERSION = (
    ("pyspark", "spark-sql-kafka-0-10_2.13-"),
    ("delta-spark", "delta-spark_4.2_2.13-"),
)


@dataclass(frozen=True)
class Check:
    """One finding. `advice` is empty if no action is needed."""

    name: str
    level: kafka_safety.Level
    finding: str
    advice: str = ""


def doctor(settings: Settings) -> list[Check]:
    """Check all requirements of the engine, and the health of a running one. Changes nothing and never raises for a
    finding."""
    home = Home(settings.home)
    running = home.owner() is not None
    known = state.read(home.state_file) if running else None
    return [
        Check("python", "ok", f"{sys.version.split()[0]} in {sys.prefix}"),
        *_java(),
        *_jars(jars.default_cache(), settings.stack.broker == "embedded"),
        *_versions(),
        *_bash(),
        *_settings(settings),
        *_home(home, settings.stack.min_free_disk_mb),
        *_tables(settings),
        *_keys(settings, home),
        *_mode(settings),
        *_memory(),
        *_open_files(),
        *_engine(home, known),
        *_parts(home, known),
        *_ports(settings, running),
        *_broker(settings, running, known),
        *_kafka_safety(settings),
        *_directory(settings),
        *_mqtt(settings.mqtt),
    ]


def _java() -> Iterator[Check]:
    try:
        java.check_user()
        found = java.find_java()
    except StackError as error:
        yield Check("java", "fail", *_split(error))
        return
    if found.feature in java.PREFERRED:
        yield Check("java", "ok", str(found))
    else:
        yield Check(
            "java",
            "warn",
            str(found),
            "It works, but Spark's makers test 17 and 21: if the job misbehaves, try one of those.",
        )


def _jars(cache: Path, embedded_broker: bool) -> Iterator[Check]:
    for which in jars.SETS:
        if which == "broker" and not embedded_broker:
            continue
        try:
            paths = jars.jar_paths(which, cache)
        except StackError as error:
            yield Check(f"jars ({which})", "fail", str(error), "Run: arborcast fetch")
        else:
            yield Check(f"jars ({which})", "ok", f"{len(paths)} in {paths[0].parent}, checksums right")


def _versions() -> Iterator[Check]:
    for package, prefix in _SAME_VERSION:
        try:
            installed = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield Check(package, "fail", "not installed", "Run: make setup")
            continue
        pinned = next(name for name in jars.pins("spark") if name.startswith(prefix)).removeprefix(prefix)[:-4]
        if installed == pinned:
            yield Check(package, "ok", f"{installed}, and so are its jars")
        else:
            yield Check(package, "fail", f"{installed} is installed, but its jars are {pinned}", "Run: make setup")


def _bash() -> Iterator[Check]:
    if shutil.which("bash"):
        return
    yield Check("bash", "fail", "not found on the PATH", "Install bash: spark-submit is a bash script.")


def _settings(settings: Settings) -> Iterator[Check]:
    for check in (check_gateway, check_files):
        try:
            check(settings)
        except ConfigError as error:
            yield Check("settings", "fail", str(error), "Correct them: docs/settings.md.")


def _home(home: Home, min_free_mb: int) -> Iterator[Check]:
    existing = next(folder for folder in [home.path, *home.path.parents] if folder.exists())
    try:
        home.check_room(existing, min_free_mb)
        if existing == home.path:
            home.check_writable()
    except StackError as error:
        yield Check("data directory", "fail", *_split(error, "; "))
        return
    free = free_mb(existing) / 1024
    yield Check(
        "data directory", "ok", f"{home.path}{'' if existing == home.path else ' (to be created)'}, {free:.1f} GiB free"
    )


def _tables(settings: Settings) -> Iterator[Check]:
    path = settings.tables.path.removeprefix("file://")
    if not path or "://" in path or Path(path).is_relative_to(settings.home):
        return
    existing = next(folder for folder in [Path(path), *Path(path).absolute().parents] if folder.exists())
    free, required_mb = free_mb(existing), settings.stack.min_free_disk_mb
    if free < required_mb:
        yield Check(
            "tables",
            "warn",
            f"{free} MiB are free at {path}, {required_mb} are required (stack.min_free_disk_mb)",
            "Make room, or set tables.path to another place: outcomes wait in Kafka until they can be written.",
        )
    elif not os.access(existing, os.W_OK):
        yield Check("tables", "fail", f"{existing} cannot be written by this user", "Change its owner, or tables.path.")
    else:
        yield Check("tables", "ok", f"{path}, {free / 1024:.1f} GiB free")


def _keys(settings: Settings, home: Home) -> Iterator[Check]:
    file = Path(settings.secrets.key_file)
    if not file.exists():
        # The embedded engine creates its own. A configured one must be the same on other machines.
        if file != home.path / KEY_FILE or settings.stack.broker == "external":
            yield Check(
                "keys",
                "warn",
                f"there is no key file {file}: no subscription can have a secret",
                "Copy that of the other machines here (secrets.key_file), or create the first: arborcast keys new",
            )
        return
    try:
        count = len(parse_keys(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, SecretError) as error:
        yield Check(
            "keys", "fail", f"{file} cannot be used: {error}", "It must be readable by this user: restore it, mode 600."
        )
        return
    if readable_by_others(file.stat()):
        yield Check("keys", "warn", f"{file} can be read by others", f"chmod 600 {file}")
    else:
        yield Check("keys", "ok", f"{count} in {file}")


def _mode(settings: Settings) -> Iterator[Check]:
    mode, slots, partitions = settings.dispatch.mode, settings.dispatch.task_slots, settings.kafka.partitions
    if mode != "batch" and slots < partitions:
        yield Check(
            "mode",
            "warn",
            f"dispatch.mode is {mode}, which needs a task slot for each partition, and {partitions} partitions have "
            f"{slots} slots: in local mode there are batches only",
            f"Set dispatch.task_slots to {partitions}, or dispatch.mode to batch. On a Spark cluster the cores of the "
            f"executors count instead: {partitions} are needed.",
        )
    else:
        needs = "" if mode == "batch" else f"; on a Spark cluster its executors need {partitions} cores"
        yield Check("mode", "ok", f"{mode}{needs}")


def _memory() -> Iterator[Check]:
    available = psutil.virtual_memory().available // 2**20
    if available < _MEMORY_MB:
        yield Check(
            "memory",
            "warn",
            f"{available} MiB available, the engine takes up to {_MEMORY_MB} MiB",
            "End other programs, or lower stack.kafka_heap_mb and dispatch.driver_memory_mb.",
        )
    else:
        yield Check("memory", "ok", f"{available} MiB available")


def _open_files() -> Iterator[Check]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # `up` and gateways raise the other one
    if most != resource.RLIM_INFINITY and most < _FILES:
        level: kafka_safety.Level = "fail" if most < java.FEWEST_FILES else "warn"
        needed = f"at most {most}; Kafka and Spark need {java.FEWEST_FILES}, many connections more"
        yield Check("open files", level, needed, "Raise the hard limit (ulimit -Hn; LimitNOFILE in a systemd unit).")
    else:
        yield Check("open files", "ok", f"at most {most}")


def _engine(home: Home, known: EngineStatus | None) -> Iterator[Check]:
    if known is None:
        yield Check("engine", "ok", "not running")
        return
    silent_s = supervisor_silent_s(home)
    sick = [f"{name} is {part.state}" for name, part in known.parts.items() if part.state is not state.PartState.READY]
    if silent_s:
        yield Check(
            "engine",
            "fail",
            f"its supervisor (pid {known.supervisor.pid}) has made no progress for {silent_s:.0f} s and restarts "
            "nothing",
            f"If it was stopped: kill -CONT {known.supervisor.pid}. Otherwise: arborcast down, arborcast up.",
        )
    elif sick:
        yield Check("engine", "warn", ", ".join(sick), f"Look into {home.logs}")
    else:
        yield Check("engine", "ok", f"running (pid {known.supervisor.pid}), all parts ready")


def _parts(home: Home, known: EngineStatus | None) -> Iterator[Check]:
    """The health of each running part, as the supervisor checks it."""
    if known is None:
        return
    try:
        settings = load_settings(home.settings_file, environ={})
    except ArborcastError as error:
        yield Check("parts", "warn", f"their state cannot be read: {error}", "Restart the engine.")
        return
    for name, question in engine.questions_of(settings, home).items():
        part = known.parts.get(name)
        if part is None or part.state is not state.PartState.READY:
            continue
        if why := question(_PATIENCE_S):
            yield Check(
                name,
                "fail",
                f"does not answer: {why}",
                f"It is killed and started again after stack.{'job_' * (name == 'dispatch')}hang_timeout_s; look into "
                f"{home.log(name)}",
            )
        else:
            yield Check(name, "ok", "answers")


def _ports(settings: Settings, running: bool) -> Iterator[Check]:
    if running:
        return
    yield _port("gateway port", settings.gateway.port, settings.gateway.host, "--gateway-port PORT")
    metrics = settings.metrics
    for name, port, choose in (
        ("metrics port", metrics.port, "--metrics-port PORT"),
        ("job's metrics port", metrics.job_port, "metrics.job_port"),
    ):
        if port:
            yield _port(name, port, metrics.host, choose)


def _broker(settings: Settings, running: bool, known: EngineStatus | None) -> Iterator[Check]:
    servers = settings.kafka.bootstrap_servers
    if settings.stack.broker == "embedded":
        if not running:
            yield _port("kafka port", settings.stack.kafka_port, processes.LOOPBACK, "--kafka-port PORT")
            return
        servers = known.addresses["kafka"] if known else servers
    for server in servers.split(","):
        if why := questions.unreachable_reason(dataclasses.replace(settings.kafka, bootstrap_servers=server)):
            advice = "Check kafka.bootstrap_servers and that Kafka runs."
            yield Check("broker", "fail", f"{server} does not answer: {why}", advice)
        else:
            yield Check("broker", "ok", f"{server} answers")


def _kafka_safety(settings: Settings) -> Iterator[Check]:
    # The embedded broker has the engine's own configuration. A missing broker is already reported.
    if settings.stack.broker == "embedded" or not questions.answers(settings.kafka):
        return
    kafka = dataclasses.replace(settings.kafka, request_timeout_s=min(settings.kafka.request_timeout_s, 3.0))
    try:
        facts = kafka_safety.examine(kafka)
    except ArborcastError as error:
        yield Check(
            "kafka logs",
            "warn",
            f"could not be examined: {error}",
            "Check that the engine's Kafka user may describe them.",
        )
        return
    findings = kafka_safety.unsafe(facts, kafka, settings.retry.lifespan_s, time_ms())
    for finding in findings:
        yield Check("kafka logs", finding.level, finding.what, finding.advice)
    if not findings:
        yield Check("kafka logs", "ok", f"{len(facts.topics)} on {facts.brokers} brokers, safe as configured")


def _directory(settings: Settings) -> Iterator[Check]:
    directory = settings.directory
    if directory.kind == "file":
        file = Path(directory.file)
        found = f"{file}" if file.exists() else f"{file}, created on first use"
        yield Check("directory", "ok", found)
    elif directory.kind == "ldap":
        url = urlsplit(directory.url)
        port = url.port or (636 if url.scheme == "ldaps" else 389)
        yield _accepting("directory", directory.url, url.hostname or "", port, "Check directory.url and the server.")


def _mqtt(settings: MqttSettings) -> Iterator[Check]:
    if not settings.url:
        return
    try:
        check_installed()
        rules = read_rules(Path(settings.rules_file), settings.base)
    except ConfigError as error:
        yield Check("mqtt", "fail", str(error), "Correct it: docs/mqtt.md.")
        return
    _, host, port = settings.place
    more = f"; rules: {len(rules.incoming)} in, {len(rules.outgoing)} out"
    yield _accepting("mqtt", settings.url, host, port, "Check mqtt.url and the broker.", more)


def _accepting(name: str, url: str, host: str, port: int, advice: str, more: str = "") -> Check:
    """Whether a server accepts connections; `more` is added to this finding."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=3):
        return Check(name, "ok", f"{url} accepts connections{more}")
    return Check(name, "fail", f"{url} does not accept connections", advice)


def _port(name: str, port: int, host: str, choose: str) -> Check:
    if port == 0:
        return Check(name, "ok", "a free one is taken at start")
    if why := processes.obstacle(port, host):
        return Check(name, "fail", f"{port} {why}", f"Change that, or choose another: {choose}")
    return Check(name, "ok", f"{port} is free")


def _split(error: StackError, mark: str = ". ") -> tuple[str, str]:
    """The problem and the action in a message with both."""
    finding, _, advice = str(error).partition(mark)
    return finding, advice[:1].upper() + advice[1:]
