"""A broker that requires TLS and a password: every client connects with the settings, and not without them.

The broker has a separate listener for it, beside the plain one of its supervision.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ACLResourcePatternType, ResourcePattern, ResourceType
from pyspark.sql import SparkSession

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import Admin, TopicPartition, make_consumer, make_loop_producer, make_producer
from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.spark.source import connection_options
from arborcast.engine.embedded.kafka_broker import BrokerLayout, controller_port
from tests.support.broker import broker_of
from tests.support.certificates import Certificates, make_certificates
from tests.support.held_port import HeldPort
from tests.support.process import killed
from tests.support.waiting import wait_until

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
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",  # of the plain listeners
            "allow.everyone.if.no.acl.found": "true",
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
    with killed(broker_of(layout)) as broker:
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


ALLOWED = {
    "Describe": [ACLOperation.DESCRIBE_CONFIGS],
    "DescribeConfigs": [ACLOperation.READ, ACLOperation.WRITE],
    "Create": [ACLOperation.READ, ACLOperation.DESCRIBE_CONFIGS],
}


def rule(operation: ACLOperation, pattern: ResourcePattern, kind: str = "ALLOW") -> ACL:
    return ACL("User:arborcast", "*", operation, ACLPermissionType[kind], pattern)


CLUSTER = ResourcePattern(ResourceType.CLUSTER, "kafka-cluster")


@pytest.mark.parametrize("missing", ALLOWED)
def test_a_missing_right_is_named_with_its_topic(guarded: KafkaSettings, missing: str) -> None:
    def refusal(log: str) -> str:
        try:
            ensure_topics(kafka, [log])
        except InfrastructureError as error:
            return str(error)
        return ""

    kafka = dataclasses.replace(guarded, prefix=f"{missing}.")
    assert refusal("control") == ""
    topics = ResourcePattern(ResourceType.TOPIC, kafka.prefix, ACLResourcePatternType.PREFIXED)
    rules = [rule(ACLOperation.ALL, CLUSTER), *(rule(each, topics) for each in ALLOWED[missing])]
    if missing == "Create":
        rules.append(rule(ACLOperation.CREATE, CLUSTER, "DENY"))
    with closing(Admin(guarded)) as admin:
        assert admin._client.create_acls(rules)["failed"] == []
    log = "dead" if missing == "Create" else "control"
    wait_until(lambda: refusal(log).startswith(f"Kafka refuses {missing} on topic {missing}.{log}: its access rules"))
    assert (refusal("control") == "") is (missing == "Create"), "an existing topic needs no right to create it"


def test_the_missing_right_to_write_is_named(guarded: KafkaSettings) -> None:
    kafka = dataclasses.replace(guarded, prefix="unwritten.")
    ensure_topics(kafka, ["control"])
    topics, control = (ResourcePattern(ResourceType.TOPIC, name) for name in ("*", kafka.topic("control")))
    rights = [rule(ACLOperation.ALL, CLUSTER), rule(ACLOperation.ALL, topics)]
    rules = [*rights, rule(ACLOperation.WRITE, topics, "DENY"), rule(ACLOperation.IDEMPOTENT_WRITE, CLUSTER, "DENY")]

    def has(refusal: str, append: Callable[[], object]) -> bool:
        with pytest.raises(InfrastructureError) as refused:
            append()
        return f"the user ({refusal}):" in str(refused.value)

    with closing(Admin(guarded)) as admin, closing(LogWriter(kafka, "control")) as log:
        assert admin._client.create_acls(rules)["failed"] == []
        try:
            wait_until(lambda: has("Write on any topic", lambda: make_loop_producer(kafka)))
            wait_until(lambda: has("Write on any topic", lambda: log.append_encoded([(b"k", b"v")])))
            rules.append(rule(ACLOperation.WRITE, control, "DENY"))
            assert admin._client.create_acls(rules[-1:])["failed"] == []
            admin._client.delete_acls(rules[2:4])
            wait_until(lambda: has("unwritten.control", lambda: log.append_encoded([(b"k", b"v")])))
        finally:
            admin._client.delete_acls(rules)


# kafka-python leaves the TLS sockets of refused attempts to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        ({"sasl_password": "another"}, "does not accept the credentials"),
        ({"ssl_ca_file": ""}, "certificate verify failed"),
        ({"ssl_certificate_file": "", "ssl_key_file": ""}, ""),
        ({"bootstrap_servers": "nowhere.invalid:9092"}, "DNS Resolution failure"),
    ],
)
def test_connections_without_one_of_them_are_refused_and_no_error_shows_the_password(
    guarded: KafkaSettings, wrong: dict[str, Any], cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[InfrastructureError] = []

    def refused_with_cause() -> bool:
        with pytest.raises(InfrastructureError, match="does not answer: ") as refused:
            make_producer(dataclasses.replace(guarded, request_timeout_s=2, **wrong))
        errors.append(refused.value)
        return cause in str(refused.value)

    wait_until(refused_with_cause)  # the broker may cut a connection before its reason is read
    gc.collect()
    shown = f"{[(each, each.__cause__) for each in errors]!r} {caplog.text}"
    assert PASSWORD not in shown
    assert "another" not in shown
