"""Settings of the embedded engine: parts, supervision, metrics, logs, console."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from arborcast.core.errors import ConfigError
from arborcast.core.settings import setting


@dataclass(frozen=True)
class MetricsSettings:
    """Metrics, without authentication: keep them on loopback, or on a network with Prometheus alone."""

    host: str = setting("127.0.0.1", "Address of the metrics of embedded engine and dispatch job.")
    port: int = setting(
        0,
        "Port of the embedded engine's metrics; 0: a free one, shown by `arborcast status`.",
        minimum=0,
        maximum=65_535,
    )
    job_port: int = setting(
        0,
        "Port of the dispatch job's metrics; 0: a free one, in its log.",
        minimum=0,
        maximum=65_535,
    )
    sample_s: float = setting(5.0, "Interval of samples for the history.", minimum=1, maximum=600, unit="s")
    history_hours: float = setting(
        24.0,
        "Minimum history for `arborcast report`; about 1 MB an hour.",
        minimum=0.1,
        maximum=1_000,
        unit="h",
    )


@dataclass(frozen=True)
class LoggingSettings:
    """Log files."""

    format: Literal["human", "json"] = setting(
        "human",
        "Text lines or JSON objects; under `arborcast up` also of the virtual machines.",
    )
    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "Minimum level. A steady engine logs nothing at info."
    )


@dataclass(frozen=True)
class ConsoleSettings:
    """The web console. On loopback it is open to this machine; elsewhere it needs access.methods."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(
        8088,
        "Port; 0: no console. If the default is in use, a free one, shown by `arborcast status`.",
        minimum=0,
        maximum=65_535,
    )
    public_url: str = setting(
        "",
        "Address of the console in links to subscribers; empty: console.host and console.port.",
    )
    engines: str = setting(
        "",
        "Metrics addresses of other engines, separated by commas; without a supervisor those of gateways and "
        "job, joined by +: `http://a:9464,http://g:8080+http://j:9465`.",
    )

    def chosen(self) -> tuple[tuple[str, ...], ...]:
        """The addresses of each engine."""
        engines = (each.strip() for each in self.engines.split(","))
        return tuple(tuple(url.strip() for url in each.split("+")) for each in engines if each)


@dataclass(frozen=True)
class StackSettings:
    """The parts of `arborcast up` and their supervision."""

    broker: Literal["embedded", "external"] = setting(
        "embedded",
        "The engine starts a broker, or uses those of kafka.bootstrap_servers.",
    )
    job: Literal["embedded", "external"] = setting(
        "embedded",
        "The engine starts the streaming job, or you submit it with spark-submit.",
    )
    home_access: Literal["owner", "group"] = setting(
        "owner",
        "Access to the data directory: the engine's user, or also the directory's group.",
    )
    kafka_port: int = setting(
        9092, "Port of the embedded broker, on loopback; 0: a free one.", minimum=0, maximum=65_535
    )
    kafka_heap_mb: int = setting(256, "Maximum heap of the embedded broker.", minimum=96, maximum=65_536, unit="MiB")
    kafka_fsync: bool = setting(
        False,
        "Flush every write of the embedded broker to disk, against power cuts. Slow.",
    )
    start_timeout_s: float = setting(
        120.0, "A part that is not ready after this time has failed.", minimum=1, maximum=3_600, unit="s"
    )
    hang_timeout_s: float = setting(
        30.0,
        "Kafka or the gateway is restarted after this time without an answer. 0: never.",
        minimum=0,
        maximum=3_600,
        unit="s",
    )
    job_hang_timeout_s: float = setting(
        60.0,
        "The same for the heartbeat of the streaming job (driver and JVM).",
        minimum=0,
        maximum=3_600,
        unit="s",
    )
    stop_timeout_s: float = setting(
        10.0, "Time for all parts to stop before they are killed.", minimum=1, maximum=300, unit="s"
    )
    restart_first_s: float = setting(
        0.5, "Delay of the first restart of a part; doubled each time.", minimum=0.05, maximum=60, unit="s"
    )
    restart_max_s: float = setting(30.0, "Maximum delay of a restart.", minimum=0.1, maximum=3_600, unit="s")
    min_free_disk_mb: int = setting(512, "Minimum free space in the data directory for a start.", minimum=0, unit="MiB")
    log_bytes: int = setting(
        8 * 1024 * 1024, "Size at which a log file is rotated; two older ones are kept.", minimum=4_096, unit="bytes"
    )

    def __post_init__(self) -> None:
        if self.restart_max_s < self.restart_first_s:
            raise ConfigError(
                f"stack.restart_max_s = {self.restart_max_s:g} must not be less than "
                f"stack.restart_first_s = {self.restart_first_s:g}"
            )
