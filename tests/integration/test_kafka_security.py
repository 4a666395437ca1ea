"""A broker that requires TLS and a password: every client connects with the settings, and not without them.

The broker has a separate listener for it, beside the plain one of its supervision.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import Admin, TopicPartition, make_consumer, make_producer
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.spark.source import connection_options
from arborcast.engine.embedded.kafka_broker import BrokerLayout, controller_port
from tests.support.broker import broker_of
from tests.support.certificates import Certificates, make_certificates
from tests.support.held_port import HeldPort

PASSWORD = 'p"a\\ss; word'  # noqa: S105  # with characters that need an escape


@dataclass(frozen=True)
class GuardedLayout(BrokerLayout):
    """A broker with one more listener: TLS both ways, and SASL."""

    guarded_port: int = 0
    certificates: Certificates | None = None

    def properties(self) -> dict[str, str]:
        assert self.certificates is not None
        plain = super().properties()
        escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
        name = "listener.name.guarded"
        return plain | {
            "listeners": f"{plain['listeners']},GUARDED://127.0.0.1:{self.guarded_port}",
            "advertised.listeners": f"{plain['advertised.listeners']},GUARDED://127.0.0.1:{self.guarded_port}",
            "listener.security.protocol.map": f"{plain['listener.security.protocol.map']},GUARDED:SASL_SSL",
            f"{name}.ssl.keystore.type": "PEM",
            f"{name}.ssl.keystore.location": str(self.certificates.folder / "both.pem"),
            f"{name}.ssl.truststore.type": "PEM",
            f"{name}.ssl.truststore.location": self.certificates.authority,
            f"{name}.ssl.client.auth": "required",
            f"{name}.sasl.enabled.mechanisms": "PLAIN",
            f"{name}.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'user_arborcast="{escaped}";',
        }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaSettings]:
    """Settings that the broker accepts."""
    certificates = make_certificates(tmp_path_factory.mktemp("tls"))
    both = Path(certificates.key("server")).read_text() + Path(certificates.certificate("server")).read_text()
    (certificates.folder / "both.pem").write_text(both)
    home = tmp_path_factory.mktemp("guarded")
    plain, secured = HeldPort(), HeldPort()
    layout = GuardedLayout(home, plain.number, controller_port(home))
    layout = dataclasses.replace(layout, guarded_port=secured.number, certificates=certificates)
    broker = broker_of(layout)
    try:
        broker.start()
        yield KafkaSettings(
            bootstrap_servers=f"127.0.0.1:{layout.guarded_port}",
            partitions=1,
            request_timeout_s=10,
            security_protocol="SASL_SSL",
            ssl_ca_file=certificates.authority,
            ssl_certificate_file=certificates.certificate("client"),
            ssl_key_file=certificates.key("client"),
            sasl_mechanism="PLAIN",
            sasl_username="arborcast",
            sasl_password=PASSWORD,
        )
    finally:
        broker.kill()


def test_clients_of_the_engine_and_of_spark_connect(guarded: KafkaSettings, spark: SparkSession) -> None:
    name = guarded.topic("guarded")
    admin = Admin(guarded)
    assert admin.create_topics({name: (1, 1, {})}) == {name}
    admin.close()
    producer = make_producer(guarded)
    producer.send(name, key=b"k", value=b"v", partition=0)
    producer.flush(120)
    producer.close(10)
    consumer = make_consumer(guarded, wait_ms=100)
    consumer.assign([TopicPartition(name, 0)])
    consumer.seek(TopicPartition(name, 0), 0)
    found = [record.value for _ in range(50) for records in consumer.poll(200).values() for record in records]
    consumer.close()
    assert found == [b"v"]
    rows = spark.read.format("kafka").options(subscribe=name, **connection_options(guarded)).load().collect()
    assert [bytes(row.value) for row in rows] == [b"v"]


# kafka-python leaves the TLS sockets of refused attempts to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "wrong",
    [
        {"sasl_password": "another"},
        {"ssl_ca_file": ""},
        {"ssl_certificate_file": "", "ssl_key_file": ""},
    ],
)
def test_connections_without_one_of_them_are_refused_and_no_error_shows_the_password(
    guarded: KafkaSettings, wrong: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InfrastructureError) as refused:
        make_producer(dataclasses.replace(guarded, request_timeout_s=2, **wrong))  # type: ignore[arg-type]
    gc.collect()
    shown = f"{refused.value!r} {refused.value.__cause__!r} {caplog.text}"
    assert PASSWORD not in shown
    assert "another" not in shown
