"""The ZeroMQ edges as users run them, a process beside a gateway and a job; the clients are plain sockets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
import zmq.auth

from arborcast.core.settings import KafkaSettings
from arborcast.ingest.access.users_file import User, hash_password, write_users
from tests.support.waiting import wait_until
from tests.support.zmq_edges import Edges, edges_of

pytestmark = [pytest.mark.kafka]


@pytest.fixture(scope="module")
def edges(tmp_path_factory: pytest.TempPathFactory, kafka: KafkaSettings) -> Iterator[Edges]:
    """One process for this module; tests compare counts with earlier ones."""
    with edges_of(tmp_path_factory.mktemp("edges"), dataclasses.replace(kafka, prefix="zmq-edge.")) as running_edges:
        yield running_edges


def accepted(edges: Edges) -> float:
    """The number of messages that the gateway has accepted since its start."""
    return edges.gateway.metric("arborcast_gateway_accepted_total")


def test_requests_of_req_sockets_are_answered(edges: Edges) -> None:
    before = accepted(edges)
    with edges.socket(zmq.REQ, "requests") as first, edges.socket(zmq.REQ, "requests") as second:
        names = set()
        for number in range(200):
            for req in (first, second):
                req.send_multipart([b"publish", b"a", b"<n>%d</n>" % number])
            for req in (first, second):
                word, name = req.recv_multipart()
                assert word == b"ok"
                names.add(name)
    assert len(names) == 400
    for parts, text in (
        ([b"publish", b"a//.", b"<x/>"], b"several topics"),
        ([b"publish", b"a", b"<x>"], b"not well-formed"),
        ([b"publish", b"a"], b"parts"),
        ([b"hello"], b"publish and ready"),
        ([b"publish", b"", b"<x/>"], b"empty"),
    ):
        word, why = edges.request(*parts)
        assert (word, text in why) == (b"error", True), why
    with edges.socket(zmq.DEALER, "requests") as dealer:
        dealer.send_multipart([b"no empty part"])
        assert dealer.recv_multipart()[:2] == [b"", b"error"]
    assert accepted(edges) - before == 400


def test_backpressure_on_a_pipeline_loses_nothing(edges: Edges) -> None:
    before, piped = accepted(edges), edges.count("pipeline", "accepted")
    with edges.socket(zmq.PUSH, "pipeline") as push:
        for number in range(8_000):
            push.send_multipart([b"a/t%d" % (number % 4), b"<n>%d</n>" % number])
        wait_until(lambda: edges.count("pipeline", "accepted") - piped == 8_000, "all of them are in the log")
    assert accepted(edges) - before == 8_000


@pytest.mark.long
def test_messages_pushed_while_the_gateway_is_away_wait(edges: Edges) -> None:
    piped, refused = edges.count("pipeline", "accepted"), edges.count("pipeline", "refused")
    with edges.socket(zmq.PUSH, "pipeline") as push, edges.socket(zmq.PUSH, "results") as results:
        edges.gateway.kill()
        for number in range(3_000):
            push.send_multipart([b"a/t%d" % (number % 4), b"<n>%d</n>" % number])
            if number % 100 == 0:
                results.send_multipart([b"task-%d" % number, b"done", b"<x/>"])
        wait_until(
            lambda: edges.request(b"publish", b"a", b"<x/>")[0] == b"error", "the edge reports the missing gateway"
        )
        edges.gateway.start()
        wait_until(lambda: edges.count("pipeline", "accepted") - piped == 3_000, "all of them are in the log")
        wait_until(lambda: edges.count("results", "accepted") == 30, "the results, too")
    assert (edges.count("pipeline", "refused"), edges.count("results", "refused")) == (refused, 0)
    assert accepted(edges) == 3_030


def test_invalid_messages_are_counted_and_logged(edges: Edges) -> None:
    outcomes = ("accepted", "refused", "parts", "topic", "properties")
    before = {each: edges.count("pipeline", each) for each in outcomes}

    def new(outcome: str) -> float:
        return edges.count("pipeline", outcome) - before[outcome]

    with edges.socket(zmq.PUSH, "pipeline") as push:
        for parts in ([b"a"], [b"", b"<x/>"], [b"\xff", b"<x/>"], [b"a", b"<x/>", b"no"], [b"a", b"<x>"]):
            push.send_multipart(parts)
        push.send_multipart([b"a", b"<x/>"])
        wait_until(lambda: new("accepted") == 1, "the good one")
    wait_until(lambda: new("refused") == 1, "the one that the gateway refuses")
    assert [new(each) for each in ("parts", "topic", "properties")] == [1, 2, 1]
    assert "zmq.pipeline" in edges.text()


@pytest.mark.parametrize("size", [5_000_000, pytest.param(20_000_000, marks=pytest.mark.long)])
def test_too_large_messages_stop_no_other(edges: Edges, size: int) -> None:
    """A message slightly above the limit is refused and counted; of a much larger one nothing is read."""
    before, piped, refused = accepted(edges), edges.count("pipeline", "accepted"), edges.count("pipeline", "refused")
    said = len(edges.text())
    with (
        edges.socket(zmq.PUSH, "pipeline") as large,
        edges.socket(zmq.PUSH, "pipeline") as other,
        edges.subscriber(b"plant/"),
    ):
        large.send_multipart([b"a", b"x" * size])
        for number in range(100):
            other.send_multipart([b"a", b"<n>%d</n>" % number])
        wait_until(lambda: edges.count("pipeline", "accepted") - piped == 100, "those of others")
        large.send_multipart([b"a", b"<x/>"])
        wait_until(lambda: edges.count("pipeline", "accepted") - piped == 101, "the next one of the same client")
        word, why = edges.request(b"publish", b"a", b"x" * 5_000_000)
        assert word == b"error"
        assert b"framed.max_frame_bytes" in why
        assert edges.request(b"ready", b"plant/") == [b"ok", b""]
    assert edges.count("pipeline", "refused") - refused == (size < 8_000_000)
    assert accepted(edges) - before == 101
    assert "was lost" not in edges.text()[said:]


@pytest.mark.long
def test_a_message_of_endless_parts_is_refused(edges: Edges) -> None:
    piped, parts = edges.count("pipeline", "accepted"), edges.count("pipeline", "parts")
    with edges.socket(zmq.PUSH, "pipeline") as push:
        push.send_multipart([b"a", *[b"<x/>"] * 100_000])
        push.send_multipart([b"a", b"<x/>"])
        wait_until(lambda: edges.count("pipeline", "accepted") - piped == 1, "the next one")
    assert edges.count("pipeline", "parts") - parts == 1


def test_with_curve_only_known_keys_connect_with_their_rights(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    users, policy, clients = tmp_path / "users.toml", tmp_path / "policy.toml", tmp_path / "clients.toml"
    write_users({name: User(name, hash_password(f"secret-{name}")) for name in ("anna", "edge")}, users)
    policy.write_text('[[allow]]\ndo = ["publish"]\ntopics = ["a//."]\nusers = ["anna"]\n')
    zmq.auth.create_certificates(tmp_path, "server")
    server, _ = zmq.auth.load_certificate(tmp_path / "server.key")
    public, secret = zmq.curve_keypair()
    clients.write_text(f'[[client]]\nkey = "{public.decode()}"\nuser = "anna"\npassword = "secret-anna"\n')
    more = f'[access]\nmethods = "basic"\nusers_file = "{users}"\npolicy_file = "{policy}"\n'
    curve = (
        f'curve_key_file = "{tmp_path / "server.key_secret"}"\nclients_file = "{clients}"\n'
        'user = "edge"\npassword = "secret-edge"\n'
    )
    with edges_of(tmp_path / "edges", kafka_settings, more, curve) as edges:

        def request(keys: tuple[bytes, bytes], topic: bytes, timeout_ms: int) -> list[bytes]:
            with edges._context.socket(zmq.REQ) as req:
                req.setsockopt(zmq.RCVTIMEO, timeout_ms)
                req.setsockopt(zmq.LINGER, 0)
                req.curve_publickey, req.curve_secretkey = keys
                req.curve_serverkey = server
                req.connect(edges.address("requests"))
                req.send_multipart([b"publish", topic, b"<x/>"])
                return req.recv_multipart()

        wait_until(lambda: request((public, secret), b"a", 120_000)[0] == b"ok", "anna may")
        word, why = request((public, secret), b"b", 120_000)
        assert (word, b"may not publish" in why) == (b"error", True)
        with pytest.raises(zmq.Again):
            request(zmq.curve_keypair(), b"a", 2_000)
        assert edges.stop() == 0
        assert "secret-anna" not in edges.text()
