from __future__ import annotations

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.spark.source import connection_options


def test_credentials_cannot_break_out_of_their_quotes() -> None:
    options = connection_options(
        KafkaSettings(
            security_protocol="SASL_SSL",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_username="user",
            sasl_password='a"b\\c; d',  # noqa: S106
            ssl_ca_file="/etc/ca.pem",
        )
    )

    assert options["kafka.sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="user" password="a\\"b\\\\c; d";'
    )
    assert options["kafka.ssl.truststore.location"] == "/etc/ca.pem"
    assert options["kafka.security.protocol"] == "SASL_SSL"


def test_plain_connection_mentions_no_credentials() -> None:
    options = connection_options(KafkaSettings(bootstrap_servers="a:1,b:2"))

    assert options["kafka.bootstrap.servers"] == "a:1,b:2"
    assert not any("sasl" in key or "ssl" in key for key in options)


def test_one_broker_is_not_waited_for_long_and_kafka_is_waited_for_longer() -> None:
    options = connection_options(KafkaSettings(request_timeout_s=10))
    once_ms = int(options["kafka.default.api.timeout.ms"])

    assert once_ms <= 5000
    assert int(options["kafka.request.timeout.ms"]) <= once_ms, "Kafka's clients refuse it otherwise"
    assert int(options["fetchOffset.numRetries"]) * once_ms >= 60_000
    assert connection_options(KafkaSettings(request_timeout_s=2))["kafka.default.api.timeout.ms"] == "2000"
