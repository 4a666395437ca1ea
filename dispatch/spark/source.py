"""The logs as streams: queries start at given positions, with an empty checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from arborcast.core.errors import ConfigError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.spark.properties import quoted

_LONGEST_ATTEMPT_S = 5.0


def read_log(
    spark: SparkSession,
    kafka: KafkaSettings,
    name: str,
    *,
    starting: str,
    fail_on_data_loss: bool,
    most: int | None = None,
    partitions: Sequence[int] | None = None,
    fetch_wait_ms: int | None = None,
) -> DataFrame:
    """The log, or some of its partitions, as a streaming frame with Kafka's columns, with up to `most` records in a
    batch. `fetch_wait_ms` is the maximum wait of the broker for an empty fetch."""
    topic = kafka.topic(name)
    chosen = {"subscribe": topic} if partitions is None else {"assign": json.dumps({topic: list(partitions)})}
    options = (connection_options(kafka) | chosen) | {
        "startingOffsets": starting,
        "failOnDataLoss": str(fail_on_data_loss).lower(),
    }
    if fetch_wait_ms is not None:
        options["kafka.fetch.max.wait.ms"] = str(min(fetch_wait_ms, _attempt_ms(kafka) // 2))
    if most is not None:
        options["maxOffsetsPerTrigger"] = str(most)
    return spark.readStream.format("kafka").options(**options).load()


def remove_checkpoint(spark: SparkSession, location: str) -> None:
    """Remove Spark's files of a run, which the next one does not need, on any of Hadoop's file systems."""
    context: Any = spark.sparkContext
    jvm = context._jvm  # noqa: SLF001  # Spark offers no public way to Hadoop's file systems
    configuration = context._jsc.hadoopConfiguration()  # noqa: SLF001  # the same
    path = jvm.org.apache.hadoop.fs.Path(location)
    path.getFileSystem(configuration).delete(path, True)


def connection_options(kafka: KafkaSettings) -> dict[str, str]:
    """Connection options of Spark's Java clients."""
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.security.protocol": kafka.security_protocol,
        # The maximum wait of the broker for an empty fetch. Spark's consumer prefetches more than requested, and the
        # next batch waits for that fetch: with the default of 500 ms a single notification takes 600 ms.
        "kafka.fetch.max.wait.ms": "10",
        # A restarted broker should be found within a second.
        "kafka.reconnect.backoff.max.ms": "1000",
        # Maximum age of the metadata, also for a client that keeps trying a dead leader.
        "kafka.metadata.max.age.ms": "3000",
        # For a log's end Kafka's admin client waits this long for the partition's last known leader, even if it is dead
        # and another leads. Spark then retries with a new client: with 20 s deliveries stalled for 20 s when a broker
        # was killed, with 5 s for 6.
        "kafka.request.timeout.ms": str(_attempt_ms(kafka)),
        "kafka.default.api.timeout.ms": str(_attempt_ms(kafka)),
        # A host that is cut off does not refuse connections.
        "kafka.socket.connection.setup.timeout.ms": "2000",
        # A minute in all before the query fails and is started again.
        "fetchOffset.numRetries": "12",
        "fetchOffset.retryIntervalMs": "500",
        "kafka.max.partition.fetch.bytes": str(max(kafka.max_record_bytes, 1024 * 1024)),
    }
    if kafka.ssl_ca_file:
        options |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": kafka.ssl_ca_file}
    if not kafka.ssl_check_hostname:
        options["kafka.ssl.endpoint.identification.algorithm"] = ""
    if kafka.ssl_certificate_file:
        options |= _client_certificate(kafka)
    if kafka.sasl_mechanism:
        module = (
            "org.apache.kafka.common.security.plain.PlainLoginModule"
            if kafka.sasl_mechanism == "PLAIN"
            else "org.apache.kafka.common.security.scram.ScramLoginModule"
        )
        user, password = quoted(kafka.sasl_username), quoted(kafka.sasl_password)
        options |= {
            "kafka.sasl.mechanism": kafka.sasl_mechanism,
            "kafka.sasl.jaas.config": f"{module} required username={user} password={password};",
        }
    return options


def _attempt_ms(kafka: KafkaSettings) -> int:
    return int(min(kafka.request_timeout_s, _LONGEST_ATTEMPT_S) * 1000)


def _client_certificate(kafka: KafkaSettings) -> dict[str, str]:
    options = {"kafka.ssl.keystore.type": "PEM"}
    if kafka.ssl_key_file:
        # Java's clients take both from one file or as text. Spark hides options with "key" in their name.
        options |= {
            "kafka.ssl.keystore.certificate.chain": _pem(kafka.ssl_certificate_file, "ssl_certificate_file"),
            "kafka.ssl.keystore.key": _pem(kafka.ssl_key_file, "ssl_key_file"),
        }
    else:
        options["kafka.ssl.keystore.location"] = kafka.ssl_certificate_file
    if kafka.ssl_key_password:
        options["kafka.ssl.key.password"] = kafka.ssl_key_password
    return options


def _pem(file: str, setting: str) -> str:
    try:
        return Path(file).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"kafka.{setting} = {file} cannot be read: {error}") from error
