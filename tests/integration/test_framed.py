"""The framed edge of the real gateway process, over real Kafka and with the real job; and one suite of behaviours for
SOAP and framed alike."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import pytest
from pyspark.sql import SparkSession

from core.errors import ArborcastError
from core.settings import KafkaSettings
from ingest.access.users_file import User, hash_password, write_users
from ingest.client import Client
from ingest.client.framed import Connection, ConnectionFactory, Message, Outgoing, published
from ingest.client.values import BrokerUnavailable, FaultReceived
from tests.support.certificates import make_certificates
from tests.support.dispatch_job import job_settings, running
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.held_port import HeldPort

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


def wait_for(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 240
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


class Inbox(Protocol):
    """What came to a subscriber: topic and payload."""

    def got(self) -> list[tuple[str, str]]: ...


class Face(Protocol):
    """One door of the broker, as its clients see it."""

    def publish(self, topic: str, payload: str) -> None:
        """Raises ArborcastError."""

    def subscribe(self, expression: str) -> Inbox:
        """Raises ArborcastError."""


class FramedFace:
    def __init__(self, connection: Connection) -> None:
        self._session = connection.session()

    def publish(self, topic: str, payload: str) -> None:
        self._session.producer(topic).send(payload)

    def subscribe(self, expression: str) -> Inbox:
        found: list[Message] = []
        self._session.consumer(expression, found.append)

        class Came:
            def got(self) -> list[tuple[str, str]]:
                return [(each.topic, each.payload.decode()) for each in found]

        return Came()


class SoapFace:
    def __init__(self, client: Client) -> None:
        self._client = client

    def publish(self, topic: str, payload: str) -> None:
        self._client.notify(topic, payload)

    def subscribe(self, expression: str) -> Inbox:
        point = self._client.create_pull_point()
        self._client.subscribe(expression, to=point)
        client, found = self._client, list[tuple[str, str]]()

        class Came:
            def got(self) -> list[tuple[str, str]]:
                found.extend((str(each.topic), each.payload.decode()) for each in client.get_messages(point, wait_s=0))
                return found

        return Came()


FACES = ("soap", "framed")


@contextmanager
def open_face(kind: str, edge: Edge) -> Iterator[Face]:
    if kind == "soap":
        with Client(edge.gateway.base) as client:
            yield SoapFace(client)
    else:
        with edge.connection() as connection:
            yield FramedFace(connection)


@pytest.mark.spark
@pytest.mark.parametrize("from_face", FACES)
@pytest.mark.parametrize("to_face", FACES)
def test_every_door_leads_to_every_other(edge: Edge, job: None, from_face: str, to_face: str) -> None:
    """Subscribing to a subtree, publishing in order, and nothing that was not asked for."""
    with ExitStack() as open_faces:
        publisher = open_faces.enter_context(open_face(from_face, edge))
        subscriber = open_faces.enter_context(open_face(to_face, edge))
        inbox = subscriber.subscribe("plant/a//.")
        for number in range(60):
            for topic in ("plant/a", "plant/a/b", "plant/c"):
                publisher.publish(topic, f"<n>{number}</n>")
        wait_for(lambda: len(inbox.got()) >= 120, "what was asked for")
        found = inbox.got()
    for topic in ("plant/a", "plant/a/b"):
        assert [payload for where, payload in found if where == topic] == [f"<n>{number}</n>" for number in range(60)]
    assert len(found) == 120


@pytest.mark.parametrize("kind", FACES)
def test_what_is_wrong_is_refused_at_every_door_and_leaves_nothing(edge: Edge, kind: str) -> None:
    with open_face(kind, edge) as face:
        for topic, payload in (("a//.", "<x/>"), ("a", "<x>"), ("a[", "<x/>"), ("a", "<!DOCTYPE x []><x/>")):
            with pytest.raises(ArborcastError):
                face.publish(topic, payload)
        with pytest.raises(ArborcastError):
            face.subscribe("a[")
    assert edge.gateway.metric("arborcast_gateway_accepted_total") == 0
    assert edge.gateway.metric("arborcast_subscriptions") == 0


@pytest.mark.spark
@pytest.mark.chaos
def test_a_durable_subscription_loses_nothing_to_a_gateway_that_is_killed(edge: Edge, job: None) -> None:
    got: list[Message] = []
    sent: list[str] = []
    with edge.connection() as publisher, edge.connection() as subscriber:
        subscriber.session().consumer("a", got.append, name="archive")
        producer = publisher.session().producer("a")
        sent += [producer.send(f"<n>{number}</n>") for number in range(100)]
        wait_for(lambda: len(got) >= 20, "the first messages")
        edge.gateway.kill()
        wait_for(subscriber.lost.is_set, "the connection is lost")
        with pytest.raises(BrokerUnavailable):
            producer.send("<n>lost</n>")
    edge.gateway.start()
    with edge.connection() as connection:
        connection.session().consumer("a", got.append, name="archive")
        sent += [connection.session().producer("a").send(f"<n>{number}</n>") for number in range(100, 120)]
        wait_for(lambda: {each.id for each in got} >= set(sent), "all of them")
    # What was on its way to the gateway's death comes when its claim has run out, behind what came later.
    later = sent[100:]
    assert list(dict.fromkeys(each.id for each in got if each.id in set(later))) == later


@pytest.mark.spark
def test_properties_text_and_what_is_said_of_a_message_arrive(edge: Edge, job: None) -> None:
    got: list[Message] = []
    with edge.connection() as connection:
        session = connection.session()
        session.consumer("a", got.append)
        name = session.producer("a").send(Outgoing("4 < 5", {"unit": "bar"}, is_text=True, priority=5))
        wait_for(lambda: bool(got), "the message")
    assert got == [Message(b"4 < 5", "a", name, {"unit": "bar"}, is_text=True)]


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


def test_a_port_that_is_taken_is_named(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        number = other.getsockname()[1]
        run = GatewayRun(tmp_path, kafka_settings, more=f"[framed]\nport = {number}\n")
        run.start(ready=False)
        assert run._process is not None
        assert run._process.wait(120) == 2
        assert f"port {number}" in run.log.read_text()
        assert "framed.port" in run.log.read_text()
