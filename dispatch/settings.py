"""Settings of the dispatch job: how batches run, how pushes go out, what is recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from arborcast.core.errors import ConfigError
from arborcast.core.security.outbound import AddressPolicy
from arborcast.core.settings import KafkaSettings, SecretSettings, setting
from arborcast.core.telemetry.tracing import NO_TRACING, TracingSettings


@dataclass(frozen=True)
class DispatchSettings:
    """The streaming query from the log to the sink."""

    max_rows_per_batch: int = setting(20_000, "A batch takes at most this many notifications.", minimum=1)
    gear: Literal["auto", "realtime", "batch"] = setting(
        "auto",
        "How notifications reach the workers. realtime: one by one, within milliseconds, which costs more for each; "
        "batch: many together; auto: realtime as long as it keeps up, batch for backlogs that would take it "
        "many seconds. realtime needs a task slot for each partition of the notifications log: dispatch.task_slots, on "
        "a Spark cluster cores of its executors; where there are fewer it is batch.",
    )
    round_s: float = setting(
        3.0,
        "A batch that takes longer is dispatched in rounds of about this length. Between two of them changes of "
        "subscriptions take effect, and the job can be stopped without anything being pushed again.",
        minimum=0.1,
        maximum=600,
        unit="s",
    )
    idle_poll_ms: int = setting(
        40,
        "How long the query waits before it looks again when nothing was waiting: half of it is added to the latency "
        "of a lone notification, its inverse is the idle CPU.",
        minimum=1,
        maximum=60_000,
        unit="ms",
    )
    task_slots: int = setting(
        4,
        "Tasks at once in local mode. Pushes wait on the network, so twice the number of cores serves best.",
        minimum=2,
        maximum=256,
    )
    driver_memory_mb: int = setting(
        # Spark refuses less than 450 MiB as the JVM counts it, which leaves out a survivor space.
        640,
        "Heap of the job's JVM.",
        minimum=480,
        maximum=1_000_000,
        unit="MB",
    )
    fail_on_data_loss: bool = setting(
        True,
        "Stop, rather than go on behind the gap, when Kafka no longer has notifications that were not dispatched yet "
        "(the job was away for longer than the log's retention, or the log was created anew).",
    )
    outcomes_timeout_s: float = setting(
        600.0,
        "How long a worker waits for Kafka to take the outcomes of its pushes. When it gives up, the batch is repeated "
        "and its notifications are pushed again.",
        minimum=10,
        unit="s",
    )
    spark_authenticate: bool = setting(
        True,
        "On a Spark cluster: master, workers, driver and executors prove to each other that they belong together, and "
        "encrypt what they send. false for a cluster that was started without it, in a network where nobody else is.",
    )
    spark_secret: str = setting(
        "",
        "What a standalone cluster proves it with: the spark.authenticate.secret of its master and workers. Empty: "
        "arborcast bundle makes one, with a file to start them with. YARN and Kubernetes need none.",
        secret=True,
    )
    starting_offsets: Literal["earliest", "latest"] = setting("earliest", "Where the first start of a job begins.")
    hang_timeout_s: float = setting(
        30.0,
        "A Python worker of Spark's that does not run at all for this long is killed, and Spark gives its task to "
        "another; so is one that stays at the same point of its task for five times as long. 0: never.",
        minimum=0,
        maximum=3_600,
        unit="s",
    )


@dataclass(frozen=True)
class PushSettings:
    """One push over HTTP, and how many at a time."""

    connect_timeout_s: float = setting(5.0, "For the TCP and TLS handshake.", minimum=0.1, maximum=60, unit="s")
    total_timeout_s: float = setting(15.0, "For the whole push, body included.", minimum=0.1, maximum=300, unit="s")
    transport: Literal["auto", "curl", "futures"] = setting(
        "auto", "HTTP client: libcurl (pycurl), requests-futures, or auto: libcurl where it can be imported."
    )
    max_in_flight: int = setting(256, "Pushes under way at once in one worker.", minimum=1, maximum=10_000)
    max_in_flight_per_host: int = setting(
        128,
        "And to one host, whatever the port, in one worker: half of all, so that a host that hangs leaves room for "
        "the others.",
        minimum=1,
        maximum=10_000,
    )
    max_in_flight_per_endpoint: int = setting(
        16,
        "And to one address. A subscription has one push under way at a time; where each carries one message, as many "
        "topics at a time as its receiver has shown to take at once.",
        minimum=1,
        maximum=10_000,
    )
    max_idle_connections: int = setting(
        512, "Connections that one worker keeps open between pushes.", minimum=0, maximum=100_000
    )
    keep_alive_s: float = setting(
        60.0, "A connection that was idle for longer is not used again.", minimum=1, maximum=3_600, unit="s"
    )
    conditions_ms: float = setting(
        400.0,
        "What the content and producer conditions of all subscriptions may cost together for one notification, by "
        "estimate, for each 10 kB of it that begin. Beyond it those that cost most are suspended.",
        minimum=1,
        unit="ms",
    )
    owner_conditions_ms: float = setting(
        100.0,
        "And so much of it those of one owner; without owners, those of one consumer's host.",
        minimum=1,
        unit="ms",
    )
    max_notify_messages: int = setting(
        50, "Waiting messages for one subscriber travel together, at most this many.", minimum=1, maximum=1_000
    )
    max_notify_bytes: int = setting(
        262_144, "And at most this many bytes of payload together.", minimum=1, unit="bytes"
    )
    callback_s: float = setting(
        600.0,
        "A receiver may take a push and say how it ended within this time, at the address in the push's "
        "Arborcast-Callback; without a word by then the push has failed. 0: pushes name no such address.",
        minimum=0,
        maximum=86_400,
        unit="s",
    )
    max_response_bytes: int = setting(16_384, "How much of an answer is read.", minimum=0, unit="bytes")
    keep_response_bytes: int = setting(
        512, "How much of an answer the attempts log keeps.", minimum=0, maximum=8_192, unit="bytes"
    )
    tls_ca_file: str = setting(
        "",
        "PEM file with the authorities that receivers' certificates are verified against, on every host that pushes; "
        "empty means the public ones (certifi). Put both into one file if you need both.",
    )
    tls_client_certificate: str = setting(
        "", "PEM file with the certificate (and its chain) that we show to receivers that ask; empty means none."
    )
    tls_client_key: str = setting(
        "", "PEM file with the certificate's key, without a password; empty means it is in the certificate's file."
    )
    http2: bool = setting(
        True,
        "Speak HTTP/2 with https receivers that offer it: pushes to one host then share connections. Only libcurl "
        "can; plain http is always HTTP/1.1.",
    )
    proxy: str = setting(
        "", "All pushes go through this HTTP proxy, http://host:port; empty means none. The environment has no say."
    )

    def __post_init__(self) -> None:
        for key in ("tls_ca_file", "tls_client_certificate", "tls_client_key"):
            file = getattr(self, key)
            if file and not Path(file).is_file():
                raise ConfigError(f"push.{key} = {file!r}: there is no such file")
        if self.tls_client_key and not self.tls_client_certificate:
            raise ConfigError("push.tls_client_key is set without push.tls_client_certificate: name both, or none")
        if self.proxy and not self.proxy.startswith(("http://", "https://")):
            # Not shown: it may hold a password.
            raise ConfigError("push.proxy must begin with http:// or https://")


@dataclass(frozen=True)
class RetrySettings:
    """What follows from a failed push, and when an endpoint counts as degraded."""

    retransmissions: int = setting(
        5, "Tries after the first one before a message is given up; a subscription may ask for its own.", minimum=0
    )
    first_wait_s: float = setting(2.0, "From the first try to the second.", minimum=0.001, maximum=86_400, unit="s")
    factor: float = setting(3.0, "Each further wait is so many times longer.", minimum=1, maximum=100)
    longest_wait_s: float = setting(3_600.0, "But never longer than this.", minimum=0.001, maximum=604_800, unit="s")
    jitter: float = setting(
        0.2, "Up to this share is added to each wait, so that failures do not come in step.", minimum=0, maximum=1
    )
    longest_retry_after_s: float = setting(
        3_600.0, "A receiver's Retry-After is obeyed up to this.", minimum=0.001, maximum=604_800, unit="s"
    )
    lifespan_s: float = setting(
        86_400.0,
        "A message that is not delivered this long after it was accepted expires; a subscription may ask for its own.",
        minimum=1,
        maximum=31_536_000,
        unit="s",
    )
    permanent_statuses: str = setting(
        "400 401 403 404 405 413 415",
        "HTTP statuses after which a message is given up at once, separated by blanks. 410 always ends the "
        "subscription.",
    )
    breaker_failures: int = setting(
        3,
        "An endpoint that failed so many times in a row, with different messages or without any answer, is only "
        "probed.",
        minimum=1,
        maximum=1_000,
    )
    first_probe_s: float = setting(
        2.0, "How long until the first probe; each further one waits twice as long.", minimum=0.05, unit="s"
    )
    longest_probe_s: float = setting(60.0, "But never longer than this.", minimum=0.05, unit="s")
    batch_wait_s: float = setting(
        2.0,
        "A push that takes longer goes on beside the batch, up to push.total_timeout_s; what waits behind it is "
        "parked, and its endpoint is served by the redelivery until it answers quickly again. The same happens to the "
        "rest of a lane that would hold its batch for longer. A connection has to stand within nine tenths of this "
        "time.",
        minimum=0.05,
        maximum=300,
        unit="s",
    )
    parked_messages: int = setting(
        0,
        "So many messages may wait for one subscription; of more the oldest that were never tried are dropped. Not of "
        "subscriptions with Reliability strict. 0: no limit.",
        minimum=0,
    )
    parked_bytes: int = setting(
        0, "And so many bytes, as the messages are stored. 0: no limit.", minimum=0, unit="bytes"
    )
    suspend_after_s: float = setting(
        259_200.0,
        "A subscription whose endpoint has failed for so long, without one success, is suspended: nothing is tried any "
        "more until someone resumes it.",
        minimum=1,
        unit="s",
    )

    def __post_init__(self) -> None:
        self.permanent()

    def permanent(self) -> frozenset[int]:
        """The statuses as numbers. Raises ConfigError when they are none."""
        try:
            statuses = frozenset(int(text) for text in self.permanent_statuses.split())
        except ValueError:
            statuses = frozenset({-1})
        if not all(300 <= status <= 599 for status in statuses):
            raise ConfigError(
                f"retry.permanent_statuses = {self.permanent_statuses!r}: these must be HTTP statuses from 300 to 599, "
                "separated by blanks"
            )
        return statuses


@dataclass(frozen=True)
class TableSettings:
    """The Delta tables."""

    path: str = setting("", "Folder or URL of the tables; empty means tables/ in the data directory.")
    storage_options: str = setting(
        "",
        "What delta-rs is to be told about the storage at `path`, as NAME=VALUE separated by blanks, for instance "
        "AWS_ENDPOINT_URL=https://s3.example AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=…; what is not named here comes "
        "from the environment.",
        secret=True,
    )
    interval_s: float = setting(
        5.0, "How often outcomes, notifications and states are written to the tables.", minimum=0.2, unit="s"
    )
    archive: bool = setting(True, "Keep notifications with their payloads in a table of their own.")
    max_routes: int = setting(
        100_000,
        "The table of routes has at most this many rows; it is written anew when topics or subscriptions have changed. "
        "0 means no such table.",
        minimum=0,
        maximum=10_000_000,
    )
    notifications_days: int = setting(30, "How long archived notifications are kept.", minimum=1, unit="days")
    attempts_days: int = setting(30, "How long attempts are kept.", minimum=1, unit="days")
    deliveries_days: int = setting(30, "How long ended deliveries are kept.", minimum=1, unit="days")
    endpoint_health_days: int = setting(90, "How long changes of endpoints' health are kept.", minimum=1, unit="days")
    ended_subscriptions_days: int = setting(90, "How long subscriptions that ended are kept.", minimum=1, unit="days")
    incomplete_days: int = setting(
        90, "How long messages that were given up for want of parts are kept.", minimum=1, unit="days"
    )
    # What delta-rs keeps in memory of a table grows with its files: some 100 KB for each commit until they are joined.
    upkeep_interval_s: float = setting(
        600.0,
        "How often small files are joined to larger ones and what is too old is taken out.",
        minimum=1,
        unit="s",
    )
    upkeep_by: Literal["driver", "spark"] = setting(
        "driver",
        "Who joins the small files of the tables that only grow. driver: the job's own process, by delta-rs; spark: "
        "the executors of a Spark cluster, by delta-spark, for more than one process can join. They have to reach "
        "tables.path themselves, by Spark's settings for its file system. Rows wait while a day's files are joined.",
    )
    unused_files_hours: int = setting(
        24,
        "Files that a table no longer uses stay for so long: whoever began to read may finish.",
        minimum=1,
        unit="h",
    )

    def storage(self) -> dict[str, str]:
        """The storage options by their names. Raises ConfigError."""
        options = {}
        for number, pair in enumerate(self.storage_options.split(), 1):
            name, equals, value = pair.partition("=")
            if not equals or not name:
                # Not the text itself: it may be a part of a secret.
                raise ConfigError(f"tables.storage_options: its part {number} is not NAME=VALUE")
            options[name] = value
        return options


@dataclass(frozen=True)
class TopicRules:
    """What the gateway's settings say of all topics, for what is published here: `topics.retain_all` and
    `topics.check_types`; and how many notifications the triggers of one owner may publish in a minute, as
    `limits.deliveries_per_minute`, 0 for any number."""

    retain_all: bool = False
    check_types: bool = False
    per_minute: int = 0


@dataclass(frozen=True)
class JobSettings:
    """All that the job needs to know."""

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

    def checkpoint(self, query: str) -> str:
        """The folder of Spark's files about a run of a query: of the driver alone, and of no use to the next run."""
        return (self.home / "checkpoints" / query).absolute().as_uri()
