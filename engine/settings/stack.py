"""Settings of the embedded engine: what `arborcast up` starts and how it watches over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from arborcast.core.errors import ConfigError
from arborcast.core.settings import setting


@dataclass(frozen=True)
class MetricsSettings:
    """Where metrics are shown, beside the gateway's own `/metrics`. Nobody is asked for a password: keep to loopback,
    or to a network where only Prometheus can ask."""

    host: str = setting("127.0.0.1", "Address on which the embedded engine and the dispatch job show their metrics.")
    port: int = setting(
        0,
        "Port on which the embedded engine shows the metrics of all its parts; 0 takes a free one, which "
        "`arborcast status` names.",
        minimum=0,
        maximum=65_535,
    )
    job_port: int = setting(
        0,
        "Port on which the dispatch job shows its own; 0 takes a free one, which its log names.",
        minimum=0,
        maximum=65_535,
    )
    sample_s: float = setting(
        5.0, "How often the embedded engine looks at itself, for its history.", minimum=1, maximum=600, unit="s"
    )
    history_hours: float = setting(
        24.0,
        "At least this much history is kept in the data directory, for `arborcast report`; about 1 MB an hour.",
        minimum=0.1,
        maximum=1_000,
        unit="h",
    )


@dataclass(frozen=True)
class LoggingSettings:
    """What the log files look like."""

    format: Literal["human", "json"] = setting(
        "human",
        "human: a line for people. json: an object per line, with the keys at, level, part, message, and what it is "
        "about. Under `arborcast up` that includes what the virtual machines of Kafka and Spark write themselves.",
    )
    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "What is less important is not logged. A steady engine logs nothing at info."
    )


@dataclass(frozen=True)
class ConsoleSettings:
    """The web console: a page for people who define topics and look after the engine (docs/console.md). On loopback it
    is open to this machine; elsewhere it asks for users of the gateway, and does not start without access.methods."""

    host: str = setting("127.0.0.1", "Address on which the console listens.")
    port: int = setting(
        8088,
        "Port of the console; 0: there is none. Where it is in use and nobody has chosen it, or where the gateway "
        "takes a free one, the console takes a free one, too, which `arborcast status` names.",
        minimum=0,
        maximum=65_535,
    )
    engines: str = setting(
        "",
        "Metrics addresses of other engines that the console shows beside this one, separated by commas. Of one that "
        "is no embedded engine those of its gateways and its job, joined by +: `http://a:9464,http://g:8080+http://j:9465`.",
    )

    def chosen(self) -> tuple[tuple[str, ...], ...]:
        """The addresses of each of these engines."""
        engines = (each.strip() for each in self.engines.split(","))
        return tuple(tuple(url.strip() for url in each.split("+")) for each in engines if each)


@dataclass(frozen=True)
class StackSettings:
    """What `arborcast up` starts, and how it watches over it."""

    broker: Literal["embedded", "external"] = setting(
        "embedded",
        "embedded: a broker of our own comes up with the engine. external: kafka.bootstrap_servers says where one is.",
    )
    job: Literal["embedded", "external"] = setting(
        "embedded",
        "embedded: the streaming job comes up with the engine. external: you run it yourself, with spark-submit.",
    )
    home_access: Literal["owner", "group"] = setting(
        "owner",
        "Who may read and write the data directory. owner: the user of the engine alone, who also runs every command "
        "that looks into it. group: the users of the directory's group too.",
    )
    kafka_port: int = setting(
        9092, "Port of the embedded Kafka broker, on loopback; 0 takes a free one.", minimum=0, maximum=65_535
    )
    kafka_heap_mb: int = setting(256, "Largest heap of the embedded broker.", minimum=96, maximum=65_536, unit="MiB")
    kafka_fsync: bool = setting(
        False,
        "Flush every write to disk, so that the embedded broker survives a power cut too. Slow; a killed process loses "
        "nothing either way.",
    )
    start_timeout_s: float = setting(
        120.0, "A part that is not ready by then has failed to start.", minimum=1, maximum=3_600, unit="s"
    )
    hang_timeout_s: float = setting(
        30.0,
        "Kafka or the gateway, when it has answered nothing for this long, is killed and started again. The time in "
        "which the supervisor itself did not run (the machine slept) does not count. 0: never, for whoever looks at a "
        "part with a debugger.",
        minimum=0,
        maximum=3_600,
        unit="s",
    )
    job_hang_timeout_s: float = setting(
        60.0,
        "The same for the streaming job, when its heartbeat is missing: its driver or its JVM is stopped, or hangs.",
        minimum=0,
        maximum=3_600,
        unit="s",
    )
    stop_timeout_s: float = setting(
        10.0, "All parts together may take this long to stop; then they are killed.", minimum=1, maximum=300, unit="s"
    )
    restart_first_s: float = setting(
        0.5, "Wait before a part that died is started again; doubled every time.", minimum=0.05, maximum=60, unit="s"
    )
    restart_max_s: float = setting(
        30.0, "The wait before a restart never gets longer than this.", minimum=0.1, maximum=3_600, unit="s"
    )
    restart_forget_s: float = setting(
        60.0, "A part that ran this long before it died is restarted after the first, short wait.", minimum=1, unit="s"
    )
    min_free_disk_mb: int = setting(
        512, "With less room than this in the data directory nothing is started.", minimum=0, unit="MiB"
    )
    log_bytes: int = setting(
        8 * 1024 * 1024, "A log file is put aside at this size; two older ones are kept.", minimum=4_096, unit="bytes"
    )

    def __post_init__(self) -> None:
        if self.restart_max_s < self.restart_first_s:
            raise ConfigError(
                f"stack.restart_max_s = {self.restart_max_s:g} must not be less than "
                f"stack.restart_first_s = {self.restart_first_s:g}"
            )
