from __future__ import annotations

from dispatch.source import connection_options
from topic_model.settings import KafkaSettings


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
