"""The ZeroMQ edges as users run them, a process beside a gateway and a job; the clients are plain sockets."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
import zmq.auth
from pyspark.sql import SparkSession

from arborcast.client.framed import ConnectionFactory, Message
from arborcast.core.settings import KafkaSettings
from arborcast.ingest.access.users_file import User, hash_password, write_users
from tests.support.dispatch_job import job_settings, running
from tests.support.gateway_process import ROOT
from tests.support.zmq_edges import Edges, edges_of, wait_for

pytestmark = [pytest.mark.kafka]


@pytest.fixture
def edges(tmp_path: Path, kafka_settings: KafkaSettings) -> Iterator[Edges]:
    with edges_of(tmp_path / "edges", kafka_settings) as running_edges:
        yield running_edges


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path, kafka_settings: KafkaSettings) -> Iterator[None]:
    with running(spark, job_settings(tmp_path / "job", kafka_settings)):
        yield


@pytest.mark.spark
def test_what_is_published_by_any_door_comes_to_those_who_want_it(edges: Edges, job: None) -> None:
    with edges.subscriber(b"plant/a") as sub, edges.subscriber(b"plant/") as all_of_it:
        with edges.socket(zmq.PUSH, "pipeline") as push:
            for number in range(50):
                push.send_multipart([b"plant/a", b"<n>%d</n>" % number])
                push.send_multipart([b"plant:b", b"text %d" % number, b'{"unit": "bar"}'])
            found = [sub.recv_multipart() for _ in range(50)]
            assert [each[:2] for each in found] == [[b"plant/a", b"<n>%d</n>" % number] for number in range(50)]
            every = [all_of_it.recv_multipart() for _ in range(100)]
        assert [each[1] for each in every if each[0] == b"plant/b"] == [b"text %d" % number for number in range(50)]
        assert len({each[2] for each in every}) == 100, "once each, though two subscriptions are for some of them"
        word, name = edges.ask(b"publish", b"plant/a2", b"<x/>")
        assert word == b"ok"
        assert sub.recv_multipart() == [b"plant/a2", b"<x/>", name], "a prefix is one of bytes"
        with edges.socket(zmq.PUB, "publish") as pub:

            def arrived() -> bool:
                pub.send_multipart([b"plant/a", b"<late/>"])
                return bool(sub.poll(100))

            wait_for(arrived, "a PUB joins")
        assert sub.recv_multipart()[1] == b"<late/>"
    assert edges.count("subscribe", "sent") >= 102


def test_who_asks_is_answered(edges: Edges) -> None:
    with edges.socket(zmq.REQ, "asked") as first, edges.socket(zmq.REQ, "asked") as second:
        names = set()
        for number in range(200):
            for req in (first, second):
                req.send_multipart([b"publish", b"a", b"<n>%d</n>" % number])
            for req in (first, second):
                word, name = req.recv_multipart()
                assert word == b"ok"
                names.add(name)
    assert len(names) == 400
    assert edges.gateway.metric("arborcast_gateway_accepted_total") == 400
    for parts, text in (
        ([b"publish", b"a//.", b"<x/>"], b"several topics"),
        ([b"publish", b"a", b"<x>"], b"not well-formed"),
        ([b"publish", b"a"], b"parts"),
        ([b"hello"], b"publish and ready"),
        ([b"publish", b"", b"<x/>"], b"empty"),
    ):
        word, why = edges.ask(*parts)
        assert (word, text in why) == (b"error", True), why
    with edges.socket(zmq.DEALER, "asked") as dealer:
        dealer.send_multipart([b"no empty part"])
        assert dealer.recv_multipart()[:2] == [b"", b"error"]
    assert edges.gateway.metric("arborcast_gateway_accepted_total") == 400


def test_a_pipeline_is_held_back_and_loses_nothing(edges: Edges) -> None:
    with edges.socket(zmq.PUSH, "pipeline") as push:
        for number in range(20_000):
            push.send_multipart([b"a/t%d" % (number % 4), b"<n>%d</n>" % number])
        wait_for(lambda: edges.count("pipeline", "accepted") == 20_000, "all of them are in the log")
    assert edges.gateway.metric("arborcast_gateway_accepted_total") == 20_000


@pytest.mark.long
def test_what_is_pushed_while_the_gateway_is_away_is_held_back(edges: Edges) -> None:
    with edges.socket(zmq.PUSH, "pipeline") as push, edges.socket(zmq.PUSH, "results") as results:
        edges.gateway.kill()
        for number in range(3_000):
            push.send_multipart([b"a/t%d" % (number % 4), b"<n>%d</n>" % number])
            if number % 100 == 0:
                results.send_multipart([b"task-%d" % number, b"done", b"<x/>"])
        wait_for(lambda: edges.ask(b"publish", b"a", b"<x/>")[0] == b"error", "it is seen that nobody is there")
        edges.gateway.start()
        wait_for(lambda: edges.count("pipeline", "accepted") == 3_000, "all of them are in the log")
        wait_for(lambda: edges.count("results", "accepted") == 30, "the results, too")
    assert edges.count("pipeline", "refused") == edges.count("results", "refused") == 0
    assert edges.gateway.metric("arborcast_gateway_accepted_total") == 3_030


def test_what_is_wrong_is_counted_and_said(edges: Edges) -> None:
    with edges.socket(zmq.PUSH, "pipeline") as push:
        for parts in ([b"a"], [b"", b"<x/>"], [b"\xff", b"<x/>"], [b"a", b"<x/>", b"no"], [b"a", b"<x>"]):
            push.send_multipart(parts)
        push.send_multipart([b"a", b"<x/>"])
        wait_for(lambda: edges.count("pipeline", "accepted") == 1, "the good one")
    wait_for(lambda: edges.count("pipeline", "refused") == 1, "the one that the gateway refuses")
    assert [edges.count("pipeline", each) for each in ("parts", "topic", "properties")] == [1, 2, 1]
    assert "zmq.pipeline" in edges.text()


@pytest.mark.parametrize("size", [5_000_000, pytest.param(20_000_000, marks=pytest.mark.long)])
def test_a_message_that_is_too_large_stops_no_other(edges: Edges, size: int) -> None:
    """One that is little too large is refused and counted; of another nothing is read."""
    with (
        edges.socket(zmq.PUSH, "pipeline") as large,
        edges.socket(zmq.PUSH, "pipeline") as other,
        edges.subscriber(b"plant/"),
    ):
        large.send_multipart([b"a", b"x" * size])
        for number in range(100):
            other.send_multipart([b"a", b"<n>%d</n>" % number])
        wait_for(lambda: edges.count("pipeline", "accepted") == 100, "those of others")
        large.send_multipart([b"a", b"<x/>"])
        wait_for(lambda: edges.count("pipeline", "accepted") == 101, "the next one of the same client")
        word, why = edges.ask(b"publish", b"a", b"x" * 5_000_000)
        assert word == b"error"
        assert b"framed.max_frame_bytes" in why
        assert edges.ask(b"ready", b"plant/") == [b"ok", b""]
    assert edges.count("pipeline", "refused") == (size < 8_000_000)
    assert edges.gateway.metric("arborcast_gateway_accepted_total") == 101
    assert "was lost" not in edges.text()


@pytest.mark.long
def test_a_message_of_parts_without_end_is_refused(edges: Edges) -> None:
    with edges.socket(zmq.PUSH, "pipeline") as push:
        push.send_multipart([b"a", *[b"<x/>"] * 100_000])
        push.send_multipart([b"a", b"<x/>"])
        wait_for(lambda: edges.count("pipeline", "accepted") == 1, "the next one")
    assert edges.count("pipeline", "parts") == 1


@pytest.mark.spark
def test_each_task_goes_to_one_worker_and_results_come_back(edges: Edges, job: None) -> None:
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
        wait_for(lambda: len(results) >= 90, "all results")
        assert sorted(each.properties["task"] for each in results) == sorted(sent)
        assert len(done) == 3
        for each in (*workers, out):
            each.close()


def test_a_gateway_that_comes_back_is_found_again(edges: Edges) -> None:
    assert edges.ask(b"publish", b"a", b"<x/>")[0] == b"ok"
    edges.gateway.kill()
    wait_for(lambda: edges.ask(b"publish", b"a", b"<x/>")[0] == b"error", "it is said")
    edges.gateway.start()
    wait_for(lambda: edges.ask(b"publish", b"a", b"<x/>")[0] == b"ok", "it goes on")
    assert edges.stop() == 0


def test_with_curve_only_known_keys_come_in_and_each_has_its_rights(
    tmp_path: Path, kafka_settings: KafkaSettings
) -> None:
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

        def ask(keys: tuple[bytes, bytes], topic: bytes, timeout_ms: int) -> list[bytes]:
            with edges._context.socket(zmq.REQ) as req:
                req.setsockopt(zmq.RCVTIMEO, timeout_ms)
                req.setsockopt(zmq.LINGER, 0)
                req.curve_publickey, req.curve_secretkey = keys
                req.curve_serverkey = server
                req.connect(edges.address("asked"))
                req.send_multipart([b"publish", topic, b"<x/>"])
                return req.recv_multipart()

        wait_for(lambda: ask((public, secret), b"a", 120_000)[0] == b"ok", "anna may")
        word, why = ask((public, secret), b"b", 120_000)
        assert (word, b"may not publish" in why) == (b"error", True)
        with pytest.raises(zmq.Again):
            ask(zmq.curve_keypair(), b"a", 2_000)
        assert "secret-anna" not in edges.text()


def test_off_this_machine_keys_are_needed_and_a_taken_port_is_named(
    tmp_path: Path, kafka_settings: KafkaSettings
) -> None:
    for setting, text in (
        ('asked = "tcp://0.0.0.0:5558"', "curve_key_file"),
        ('asked = "tcp://127.0.0.1:x"', "zmq.asked"),
    ):
        config = tmp_path / "arborcast.toml"
        config.write_text(
            f'home = "home"\n[framed]\nport = 1\n[zmq]\nsubscribe = ""\npublish = ""\npipeline = ""\n{setting}\n'
        )
        done = subprocess.run(
            [sys.executable, "-m", "arborcast.engine.gateway.zmq_edge", "--config", str(config)],
            capture_output=True,
            text=True,
            timeout=240,
            cwd=ROOT,
            check=False,
        )
        assert done.returncode == 2
        assert text in done.stderr
