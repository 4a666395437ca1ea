"""The framed edge of the real gateway process, over real Kafka and with the real job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from arborcast.client.framed import Connection, ConnectionFactory, Message, published
from arborcast.client.values import BrokerUnavailable, FaultReceived
from arborcast.core.settings import KafkaSettings
from arborcast.ingest.access.users_file import User, hash_password, write_users
from tests.support.certificates import make_certificates
from tests.support.dispatch_job import job_settings, running
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.held_port import HeldPort
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka]


class Edge:
    """A gateway with a framed port."""

    def __init__(self, run: GatewayRun, port: int, scheme: str = "framed") -> None:
        self.gateway = run
        self.url = f"{scheme}://127.0.0.1:{port}"

    def connection(self, user: str = "", password: str = "", tls_ca_file: str = "") -> Connection:
        return ConnectionFactory(self.url, user, password, tls_ca_file=tls_ca_file, timeout_s=120).connection()


@pytest.fixture
def edge(tmp_path: Path, kafka_settings: KafkaSettings) -> Iterator[Edge]:
    port = HeldPort()
    with gateway_run(tmp_path / "gateway", kafka_settings, more=f"[framed]\nport = {port.number}\n") as run:
        port.for_life_of(run)
        yield Edge(run, port.number)


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path, kafka_settings: KafkaSettings) -> Iterator[None]:
    with running(spark, job_settings(tmp_path / "job", kafka_settings)):
        yield


@pytest.mark.spark
@pytest.mark.chaos
def test_a_durable_subscription_loses_nothing_to_a_gateway_that_is_killed(edge: Edge, job: None) -> None:
    got: list[Message] = []
    sent: list[str] = []
    with edge.connection() as publisher, edge.connection() as subscriber:
        subscriber.session().consumer("a", got.append, name="archive")
        producer = publisher.session().producer("a")
        sent += [producer.send(f"<n>{number}</n>") for number in range(100)]
        wait_until(lambda: len(got) >= 20, "the first messages")
        edge.gateway.kill()
        wait_until(subscriber.lost.is_set, "the connection is lost")
        with pytest.raises(BrokerUnavailable):
            producer.send("<n>lost</n>")
    edge.gateway.start()
    with edge.connection() as connection:
        connection.session().consumer("a", got.append, name="archive")
        sent += [connection.session().producer("a").send(f"<n>{number}</n>") for number in range(100, 120)]
        wait_until(lambda: {each.id for each in got} >= set(sent), "all of them")
    # What was on its way to the gateway's death comes when its claim has run out, behind what came later.
    later = sent[100:]
    assert list(dict.fromkeys(each.id for each in got if each.id in set(later))) == later


def test_users_and_their_rights_are_those_of_the_gateway(
    tmp_path: Path, kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, policy, port = tmp_path / "users.toml", tmp_path / "policy.toml", HeldPort()
    write_users({"anna": User("anna", hash_password("secret-a"))}, users)
    policy.write_text('[[allow]]\ndo = ["publish", "subscribe"]\ntopics = ["a//."]\nusers = ["anna"]\n')
    more = (
        f'[framed]\nport = {port.number}\n[access]\nmethods = "basic"\nusers_file = "{users}"\n'
        f'policy_file = "{policy}"\n[limits]\nrequests_per_s = 0.001\nrequest_burst = 20\n'
    )
    certificates = make_certificates(tmp_path)
    with gateway_run(tmp_path / "gateway", kafka_settings, more=more, tls=certificates) as run:
        port.for_life_of(run)
        edge = Edge(run, port.number, "framed+tls")
        for user, password in (("", ""), ("anna", "wrong"), ("bert", "secret-a")):
            with pytest.raises(FaultReceived, match="NotAuthenticated"):
                edge.connection(user, password, str(certificates.authority))
        with edge.connection("anna", "secret-a", str(certificates.authority)) as connection:
            session = connection.session()
            assert session.producer("a/b").send("<x/>")
            session.consumer("a//.", print)
            with pytest.raises(FaultReceived, match="Forbidden"):
                session.producer("c").send("<x/>")
            with pytest.raises(FaultReceived, match="Forbidden"):
                session.consumer("//.", print)
            begun = [session.producer("a/b").begin("<x/>") for _ in range(40)]
            with pytest.raises(BrokerUnavailable) as later:
                published(begun[-1], 120)
            assert later.value.retry_after
        assert "secret-a" not in run.log.read_text()


def test_several_workers_share_the_port(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    port = HeldPort()
    with gateway_run(tmp_path / "gateway", kafka_settings, more=f"[framed]\nport = {port.number}\n", workers=2) as run:
        port.for_life_of(run)
        edge = Edge(run, port.number)
        with ExitStack() as connections:
            opened = [connections.enter_context(edge.connection()) for _ in range(20)]
            begun = [each.session().producer("a").begin("<x/>") for each in opened for _ in range(20)]
            assert len({published(each, 120) for each in begun}) == 400
