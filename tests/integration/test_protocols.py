"""A message of one protocol is delivered over all, with a real log and job, and tasks go to workers; for refusals see
unit/ingest/test_protocols.py."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

import pytest
import zmq

from arborcast.client import Client
from arborcast.client.framed import Connection, ConnectionFactory, Message
from arborcast.client.values import BrokerUnavailable
from arborcast.wire.limits import PAYLOAD_LEVELS
from tests.support.dispatch_job import RunningJob
from tests.support.waiting import wait_until
from tests.support.zmq_edges import Edges, edges_of

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

PROTOCOLS = ("soap", "framed", "zmq")

_roots = itertools.count(1)


@pytest.fixture(scope="module")
def edges(job: RunningJob, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edges]:
    """All protocols of one engine; each test has separate topics."""
    with edges_of(tmp_path_factory.mktemp("edges"), job.settings.kafka) as started:
        yield started


@pytest.fixture
def root() -> str:
    return f"plant{next(_roots)}"


class Inbox(Protocol):
    """The messages of a subscriber: topic and payload."""

    def got(self) -> list[tuple[str, str]]: ...


class EdgeProtocol(Protocol):
    """A protocol of the broker, as its clients use it."""

    def publish(self, topic: str, payload: str) -> None:
        """Return when the message is in the log."""

    def subscribe(self, topic: str) -> Inbox:
        """To this topic and all below, from now on."""


class SoapProtocol:
    def __init__(self, client: Client) -> None:
        self._client = client

    def publish(self, topic: str, payload: str) -> None:
        self._client.notify(topic, payload)

    def subscribe(self, topic: str) -> Inbox:
        point = self._client.create_pull_point()
        self._client.subscribe(f"{topic}//.", to=point)
        client, found = self._client, list[tuple[str, str]]()

        class Came:
            def got(self) -> list[tuple[str, str]]:
                found.extend((str(each.topic), each.payload.decode()) for each in client.get_messages(point, wait_s=0))
                return found

        return Came()


class FramedProtocol:
    def __init__(self, connection: Connection) -> None:
        self._session = connection.session()

    def publish(self, topic: str, payload: str) -> None:
        self._session.producer(topic).send(payload)

    def subscribe(self, topic: str) -> Inbox:
        found: list[Message] = []
        self._session.consumer(f"{topic}//.", found.append)

        class Came:
            def got(self) -> list[tuple[str, str]]:
                return [(each.topic, each.payload.decode()) for each in found]

        return Came()


class ZmqProtocol:
    def __init__(self, edges: Edges, opened: ExitStack) -> None:
        self._edges = edges
        self._opened = opened

    def publish(self, topic: str, payload: str) -> None:
        word, why = self._edges.request(b"publish", topic.encode(), payload.encode())
        assert word == b"ok", why

    def subscribe(self, topic: str) -> Inbox:
        sub = self._opened.enter_context(self._edges.subscriber(topic.encode()))
        found: list[tuple[str, str]] = []

        class Came:
            def got(self) -> list[tuple[str, str]]:
                while sub.poll(0):
                    where, payload, _ = sub.recv_multipart()
                    found.append((where.decode(), payload.decode()))
                return found

        return Came()


@contextmanager
def opened(kind: str, edges: Edges) -> Iterator[EdgeProtocol]:
    with ExitStack() as stack:
        match kind:
            case "soap":
                yield SoapProtocol(stack.enter_context(Client(edges.gateway.base)))
            case "framed":
                factory = ConnectionFactory(edges.framed, timeout_s=120)
                yield FramedProtocol(stack.enter_context(factory.connection()))
            case _:
                yield ZmqProtocol(edges, stack)


def deep(levels: int) -> str:
    return "<a>" * levels + "</a>" * levels


@pytest.mark.parametrize("way_in", PROTOCOLS)
def test_a_message_of_one_protocol_is_delivered_over_all(edges: Edges, root: str, way_in: str) -> None:
    """In order, and nothing outside of the subscriptions."""
    topics = (f"{root}/a", f"{root}/a/b", f"{root}/c")
    with ExitStack() as stack:
        protocols = {kind: stack.enter_context(opened(kind, edges)) for kind in PROTOCOLS}
        inboxes = {kind: protocol.subscribe(topics[0]) for kind, protocol in protocols.items()}
        publish = protocols[way_in].publish
        publish(topics[0], deep(PAYLOAD_LEVELS))
        for number in range(40):
            for topic in topics:
                publish(topic, f"<n>{number}</n>")
        for way_out, inbox in inboxes.items():
            wait_until(lambda inbox=inbox: len(inbox.got()) >= 81, f"81 messages at {way_out}")  # type: ignore[misc]  # mypy infers no lambda with a default
            found = inbox.got()
            expected = [deep(PAYLOAD_LEVELS), *(f"<n>{number}</n>" for number in range(40))]
            assert [payload for where, payload in found if where == topics[0]] == expected
            assert [payload for where, payload in found if where == topics[1]] == expected[1:]
            assert len(found) == 81


@pytest.mark.chaos
def test_a_durable_subscription_loses_nothing_at_a_gateway_kill(edges: Edges, root: str) -> None:
    got: list[Message] = []
    sent: list[str] = []
    factory = ConnectionFactory(edges.framed, timeout_s=120)
    with factory.connection() as publisher, factory.connection() as subscriber:
        subscriber.session().consumer(root, got.append, name=root)
        producer = publisher.session().producer(root)
        sent += [producer.send(f"<n>{number}</n>") for number in range(100)]
        wait_until(lambda: len(got) >= 20, "the first messages")
        edges.gateway.kill()
        try:
            wait_until(subscriber.lost.is_set, "the connection is lost")
            with pytest.raises(BrokerUnavailable):
                producer.send("<n>lost</n>")
            wait_until(lambda: edges.request(b"publish", b"other", b"<x/>")[0] == b"error", "an error over ZeroMQ")
        finally:
            edges.gateway.start()
            wait_until(lambda: edges.request(b"publish", b"other", b"<x/>")[0] == b"ok", "the ZeroMQ edge is connected")
    with factory.connection() as connection:
        connection.session().consumer(root, got.append, name=root)
        sent += [connection.session().producer(root).send(f"<n>{number}</n>") for number in range(100, 120)]
        wait_until(lambda: {each.id for each in got} >= set(sent), "all of them")
    # Messages in transit at the gateway's death are delivered after the expiry of their claim, behind later ones.
    later = sent[100:]
    assert list(dict.fromkeys(each.id for each in got if each.id in set(later))) == later


def test_each_task_goes_to_one_worker_and_results_are_returned(edges: Edges) -> None:
    results: list[Message] = []
    with ConnectionFactory(edges.framed, timeout_s=120).connection() as connection:
        session = connection.session()
        session.consumer("done", results.append)
        workers = [edges.socket(zmq.PULL, "tasks") for _ in range(3)]
        out = edges.socket(zmq.PUSH, "results")
        producer = session.producer("jobs/resize")
        sent = [producer.send(f"<n>{number}</n>") for number in range(90)]
        done: Counter[int] = Counter()
        poller = zmq.Poller()
        for worker in workers:
            poller.register(worker, zmq.POLLIN)
        while done.total() < 90:
            for ready, _ in poller.poll(120_000):
                name, topic, payload = ready.recv_multipart()
                assert topic == b"jobs/resize"
                done[workers.index(ready)] += 1
                out.send_multipart([name, b"done", payload])
        wait_until(lambda: len(results) >= 90, "all results")
        assert sorted(each.properties["task"] for each in results) == sorted(sent)
        assert len(done) == 3
        for each in (*workers, out):
            each.close()
