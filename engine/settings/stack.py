"""Settings of the embedded engine: parts, supervision, metrics, logs, console."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from arborcast.core.errors import ConfigError
from arborcast.core.security.web_pages import origin_of
from arborcast.core.settings import setting


@dataclass(frozen=True)
class MetricsSettings:
    """Without authentication: keep them on loopback, or on a network with Prometheus alone."""

    host: str = setting("127.0.0.1", "Of embedded engine and dispatch job.")
    port: int = setting(
        0, "Of the embedded engine; 0: a free one, shown by `arborcast status`.", minimum=0, maximum=65_535
    )
    job_port: int = setting(0, "0: a free one, in the job's log.", minimum=0, maximum=65_535)
    sample_s: float = setting(5.0, "Interval for the history.", minimum=1, maximum=600, unit="s")
    history_hours: float = setting(
        24.0, "For `arborcast report`; about 1 MB an hour.", minimum=0.1, maximum=1_000, unit="h"
    )


@dataclass(frozen=True)
class LoggingSettings:
    """Log files."""

    format: Literal["human", "json"] = setting("human", "Text lines or JSON objects.")
    level: Literal["debug", "info", "warning", "error"] = setting("info", "A steady engine logs nothing at info.")


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
    public_url: str = setting("", "In links to subscribers; empty: console.host and console.port.")
    engines: str = setting(
        "",
        "Metrics addresses of other engines, separated by commas; without a supervisor those of gateways and "
        "job, joined by +: `http://a:9464,http://g:8080+http://j:9465`.",
    )

    def __post_init__(self) -> None:
        with suppress(ValueError):
            if not self.public_url or origin_of(self.public_url):
                return
        raise ConfigError(f"console.public_url must be like https://console.example, not {self.public_url!r}")

    def chosen(self) -> tuple[tuple[str, ...], ...]:
        """The addresses of each engine."""
        engines = (each.strip() for each in self.engines.split(","))
        return tuple(tuple(url.strip() for url in each.split("+")) for each in engines if each)


@dataclass(frozen=True)
class StackSettings:
    """The parts of `arborcast up` and their supervision."""

    broker: Literal["embedded", "external"] = setting("embedded", "external: those of kafka.bootstrap_servers.")
    job: Literal["embedded", "external"] = setting("embedded", "external: you submit it with spark-submit.")
    home_access: Literal["owner", "group"] = setting("owner", "Access to the data directory.")
    kafka_port: int = setting(9092, "On loopback; 0: a free one.", minimum=0, maximum=65_535)
    kafka_heap_mb: int = setting(256, "Maximum heap.", minimum=96, maximum=65_536, unit="MiB")
    kafka_fsync: bool = setting(False, "Flush every write, against power cuts. Slow.")
    start_timeout_s: float = setting(
        300.0, "Until a part is ready, or reports progress.", minimum=1, maximum=3_600, unit="s"
    )
    hang_timeout_s: float = setting(
        30.0, "Kafka or the gateway is restarted without an answer. 0: never.", minimum=0, maximum=3_600, unit="s"
    )
    job_hang_timeout_s: float = setting(
        60.0, "The job, without a heartbeat. 0: never, else from 10.", minimum=0, maximum=3_600, unit="s"
    )
    stop_timeout_s: float = setting(20.0, "For all parts, then killed.", minimum=1, maximum=300, unit="s")
    restart_first_s: float = setting(0.5, "First delay; doubled each time.", minimum=0.05, maximum=60, unit="s")
    restart_max_s: float = setting(30.0, "Maximum delay.", minimum=0.1, maximum=3_600, unit="s")
    min_free_disk_mb: int = setting(512, "In the data directory, for a start.", minimum=0, unit="MiB")
    log_bytes: int = setting(8 * 1024 * 1024, "Of a log file; two older ones are kept.", minimum=4_096, unit="bytes")

    def __post_init__(self) -> None:
        if 0 < self.job_hang_timeout_s < 10:
            raise ConfigError(
                f"stack.job_hang_timeout_s = {self.job_hang_timeout_s:g} must be 0 (never) or at least 10: the job "
                "has a heartbeat every other second, and with less a check may end before it"
            )
        if self.restart_max_s < self.restart_first_s:
            raise ConfigError(
                f"stack.restart_max_s = {self.restart_max_s:g} must not be less than "
                f"stack.restart_first_s = {self.restart_first_s:g}"
            )
