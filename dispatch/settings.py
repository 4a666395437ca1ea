"""Settings of the dispatch job: execution, pushes, retries, tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from arborcast.core.errors import ConfigError
from arborcast.core.mqtt.settings import NO_MQTT, MqttSettings
from arborcast.core.security.outbound import AddressPolicy
from arborcast.core.settings import KafkaSettings, SecretSettings, check_url, setting
from arborcast.core.telemetry.tracing import NO_TRACING, TracingSettings


@dataclass(frozen=True)
class DispatchSettings:
    """The streaming query."""

    max_rows_per_batch: int = setting(20_000, "Notifications in a batch.", minimum=1)
    mode: Literal["auto", "realtime", "batch"] = setting(
        "auto", "realtime: within milliseconds, a task slot per partition. batch: cheaper. auto: both, by the backlog."
    )
    idle_poll_ms: int = setting(
        40, "Poll interval in batches: on average half of it is latency.", minimum=1, maximum=60_000, unit="ms"
    )
    task_slots: int = setting(
        4, "Parallel tasks in local mode; best: twice the number of cores.", minimum=2, maximum=256
    )
    driver_memory_mb: int = setting(
        # The minimum of Spark is 450 MiB without a survivor space.
        640,
        "Heap of the job's JVM.",
        minimum=480,
        maximum=1_000_000,
        unit="MB",
    )
    fail_on_data_loss: bool = setting(True, "Stop when undispatched notifications have left Kafka.")
    spark_authenticate: bool = setting(True, "Authentication and encryption within a Spark cluster.")
    spark_secret: str = setting(
        "", "spark.authenticate.secret of a standalone cluster; empty: created by `arborcast bundle`.", secret=True
    )
    starting_offsets: Literal["earliest", "latest"] = setting("earliest", "Position of the first start of a job.")
    hang_timeout_s: float = setting(
        30.0,
        "A Python worker is killed after this time without activity, or five times that without progress. 0: never.",
        minimum=0,
        maximum=3_600,
        unit="s",
    )


@dataclass(frozen=True)
class PushSettings:
    """Pushes over HTTP."""

    connect_timeout_s: float = setting(5.0, "TCP and TLS handshakes.", minimum=0.1, maximum=60, unit="s")
    total_timeout_s: float = setting(15.0, "A push, with its answer.", minimum=0.1, maximum=300, unit="s")
    transport: Literal["auto", "curl", "futures"] = setting(
        "auto", "libcurl (pycurl), requests-futures, or libcurl if installed."
    )
    max_in_flight: int = setting(256, "Per worker.", minimum=1, maximum=10_000)
    max_in_flight_per_host: int = setting(128, "Per worker, on all ports.", minimum=1, maximum=10_000)
    max_in_flight_per_endpoint: int = setting(16, "Per worker.", minimum=1, maximum=10_000)
    max_idle_connections: int = setting(512, "Per worker.", minimum=0, maximum=100_000)
    keep_alive_s: float = setting(60.0, "Maximum idle time of a connection.", minimum=1, maximum=3_600, unit="s")
    conditions_ms: float = setting(
        400.0,
        "Estimated time of all conditions per 10 kB of a notification; then the most expensive ones are suspended.",
        minimum=1,
        unit="ms",
    )
    owner_conditions_ms: float = setting(
        100.0, "Share of one owner (without owners, one consumer's host) of this time.", minimum=1, unit="ms"
    )
    max_notify_messages: int = setting(50, "Per push.", minimum=1, maximum=1_000)
    max_notify_bytes: int = setting(262_144, "Payloads of one push.", minimum=1, unit="bytes")
    callback_s: float = setting(
        600.0, "Time for a later result. 0: no later results.", minimum=0, maximum=86_400, unit="s"
    )
    max_response_bytes: int = setting(16_384, "Read bytes of an answer.", minimum=0, unit="bytes")
    keep_response_bytes: int = setting(512, "Stored bytes of an answer.", minimum=0, maximum=8_192, unit="bytes")
    tls_ca_file: str = setting("", "Receivers' authorities (PEM), on every pushing host; empty: those of certifi.")
    tls_client_certificate: str = setting("", "Client certificate and chain (PEM) for receivers that request one.")
    tls_client_key: str = setting("", "Its key (PEM), without a password; empty: the same file.")
    http2: bool = setting(True, "HTTP/2 with https receivers that offer it (libcurl only).")
    proxy: str = setting("", "For all pushes, http://host:port. The environment's is ignored.")

    def __post_init__(self) -> None:
        for key in ("tls_ca_file", "tls_client_certificate", "tls_client_key"):
            file = getattr(self, key)
            if file and not Path(file).is_file():
                raise ConfigError(f"push.{key} = {file!r}: there is no such file")
        if self.tls_client_key and not self.tls_client_certificate:
            raise ConfigError("push.tls_client_key is set without push.tls_client_certificate: name both, or none")
        if self.proxy:
            check_url("push.proxy", self.proxy, secret=True)


@dataclass(frozen=True)
class RetrySettings:
    """Retries, breakers and suspensions."""

    retransmissions: int = setting(5, "Retries, unless the subscription sets a number.", minimum=0)
    first_wait_s: float = setting(2.0, "Wait before the first retry.", minimum=0.001, maximum=86_400, unit="s")
    factor: float = setting(3.0, "Ratio of each wait to the one before.", minimum=1, maximum=100)
    longest_wait_s: float = setting(3_600.0, "Before a retry.", minimum=0.001, maximum=604_800, unit="s")
    jitter: float = setting(0.2, "Random addition, as a share of the wait.", minimum=0, maximum=1)
    longest_retry_after_s: float = setting(
        3_600.0, "Maximum wait for a receiver's Retry-After.", minimum=0.001, maximum=604_800, unit="s"
    )
    lifespan_s: float = setting(
        86_400.0,
        "Of undelivered messages from acceptance, unless the subscription sets one.",
        minimum=1,
        maximum=31_536_000,
        unit="s",
    )
    permanent_statuses: str = setting("400 401 403 404 405 413 415", "The message is given up at once.")
    breaker_failures: int = setting(3, "Failures in a row, then an endpoint is only probed.", minimum=1, maximum=1_000)
    first_probe_s: float = setting(2.0, "Wait before the first probe; doubled each time.", minimum=0.05, unit="s")
    longest_probe_s: float = setting(60.0, "Maximum wait before a probe.", minimum=0.05, unit="s")
    batch_wait_s: float = setting(
        2.0,
        "A longer push continues beside its batch, then the redelivery serves its endpoint. To connect: nine tenths.",
        minimum=0.05,
        maximum=300,
        unit="s",
    )
    parked_messages: int = setting(
        0, "Per subscription; beyond it the oldest untried ones are dropped, unless strict. 0: no limit.", minimum=0
    )
    parked_bytes: int = setting(0, "As stored; else as parked_messages.", minimum=0, unit="bytes")
    suspend_after_s: float = setting(259_200.0, "Failures without one success until a suspension.", minimum=1, unit="s")

    def __post_init__(self) -> None:
        self.permanent()

    def permanent(self) -> frozenset[int]:
        """The statuses as numbers. Raises ConfigError for others."""
        try:
            statuses = frozenset(int(text) for text in self.permanent_statuses.replace(",", " ").split())
        except ValueError:
            statuses = frozenset({-1})
        if not all(300 <= status <= 599 for status in statuses):
            raise ConfigError(
                f"retry.permanent_statuses = {self.permanent_statuses!r}: these must be HTTP statuses from 300 to 599, "
                "separated by blanks or commas"
            )
        return statuses


@dataclass(frozen=True)
class TableSettings:
    """The Delta tables."""

    path: str = setting("", "Folder or URL of the tables; empty: tables/ in the data directory.")
    storage_options: str = setting(
        "",
        "Options of delta-rs for the storage at `path`, NAME=VALUE, separated by blanks; others come from the"
        " environment.",
        secret=True,
    )
    interval_s: float = setting(5.0, "Between writes.", minimum=0.2, unit="s")
    archive: bool = setting(True, "Write the table notifications.")
    max_routes: int = setting(100_000, "Rows of the table routes; 0: no such table.", minimum=0, maximum=10_000_000)
    # The beginning of a retention must be a date.
    notifications_days: int = setting(30, "Retention.", minimum=1, maximum=100_000, unit="days")
    deliveries_days: int = setting(30, "Retention, also of attempts.", minimum=1, maximum=100_000, unit="days")
    history_days: int = setting(
        90,
        "Retention of ended subscriptions, endpoint health and incomplete messages.",
        minimum=1,
        maximum=100_000,
        unit="days",
    )
    operations_days: int = setting(1_095, "Retention.", minimum=1, maximum=100_000, unit="days")
    # delta-rs needs some 100 KB of memory for each file of a table, one for each commit until they are joined.
    upkeep_interval_s: float = setting(600.0, "Of compaction and deletion of old days.", minimum=1, unit="s")
    upkeep_by: Literal["driver", "spark"] = setting(
        "driver", "Compaction beside the driver, or by Spark's executors, which must reach tables.path."
    )
    unused_files_hours: int = setting(
        24,
        "Retention of files that only older versions need; for tables of states one hour.",
        minimum=1,
        maximum=1_000_000,
        unit="h",
    )

    def storage(self) -> dict[str, str]:
        """The storage options by their names. Raises ConfigError."""
        options = {}
        for number, pair in enumerate(self.storage_options.split(), 1):
            name, equals, value = pair.partition("=")
            if not equals or not name:
                # The text is not shown: it may be part of a secret.
                raise ConfigError(f"tables.storage_options: its part {number} is not NAME=VALUE")
            options[name] = value
        return options


@dataclass(frozen=True)
class SloSettings:
    """The service level objective of deliveries, over 28 days."""

    target: float = setting(0.999, "Share of deliveries in time.", minimum=0.5, maximum=0.99999)
    latency_s: float = setting(
        30.0,
        "From acceptance to the first answer. A change applies to later hours.",
        minimum=0.01,
        maximum=86_400,
        unit="s",
    )


@dataclass(frozen=True)
class TopicRules:
    """The gateway's settings of all topics, for notifications published here: `topics.retain_all` and
    `topics.check_types`; and the maximum number of notifications per minute that the triggers of one owner publish, as
    `limits.deliveries_per_minute`, 0 for no limit."""

    retain_all: bool = False
    check_types: bool = False
    per_minute: int = 0


@dataclass(frozen=True)
class JobSettings:
    """All settings of the job."""

    home: Path
    kafka: KafkaSettings
    dispatch: DispatchSettings
    push: PushSettings
    tables: TableSettings
    outbound: AddressPolicy
    retry: RetrySettings
    secrets: SecretSettings
    tracing: TracingSettings = NO_TRACING
    topics: TopicRules = TopicRules()
    slo: SloSettings = SloSettings()
    mqtt: MqttSettings = NO_MQTT

    def checkpoint(self, query: str) -> str:
        """The folder of Spark's files of a run of a query: used by the driver only, not needed by the next run."""
        # Not percent-encoded: Hadoop would make a second folder with that name beside the data directory.
        return f"file://{(self.home / 'checkpoints' / query).absolute()}"
