"""Work queues with the real job over real Kafka and real HTTP, in both modes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from arborcast.client import Client, Credentials, FaultReceived
from arborcast.client.listener import Listener, ReceivedMessage
from arborcast.client.queues.worker import Invalid, Worker
from arborcast.core.security.keyring import add_key
from arborcast.dispatch.operations.audit.examine import audit
from arborcast.ingest.access.users_file import User, hash_password, write_users
from arborcast.topic_model.records.control import TopicPolicy, TopicRecord
from arborcast.topic_model.topics import TopicPath
from tests.support.dispatch_job import IN_BOTH_MODES, Logs, Own
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, IN_BOTH_MODES]


@pytest.fixture
def jobs(own: Own, job_logs: Logs) -> str:
    """The topic of a queue."""
    topic = own.topic("jobs")
    job_logs.control(TopicRecord(TopicPath(topic), policy=TopicPolicy(queue=True)))
    return topic


@pytest.fixture
def guarded(own: Own, jobs: str, tmp_path: Path) -> Iterator[GatewayRun]:
    """A gateway where anna may send requests and bert serve, with the keys that verify which server got a request."""
    users, policy = tmp_path / "users.toml", tmp_path / "policy.toml"
    write_users({name: User(name, hash_password(f"of-{name}")) for name in ("anna", "bert")}, users)
    policy.write_text(
        f'[[allow]]\ndo = ["publish"]\ntopics = ["{jobs}"]\nusers = ["anna"]\n'
        f'[[allow]]\ndo = ["subscribe", "serve"]\ntopics = ["{jobs}"]\nusers = ["bert"]\n'
    )
    access = f'[access]\nmethods = "basic"\nusers_file = "{users}"\npolicy_file = "{policy}"\n'
    keys = own.job.settings.secrets.key_file
    if not Path(keys).exists():
        add_key(Path(keys), "k")
    access += f'[secrets]\nkey_file = "{keys}"\n'
    with gateway_run(tmp_path / "gateway", own.job.settings.kafka, more=access) as run:
        yield run


def handle(request: ReceivedMessage) -> bytes:
    if b"bad" in request.payload:
        raise Invalid("it is bad")
    return request.payload.replace(b"job", b"done")


@pytest.mark.parametrize("named", [False, True], ids=["anonymous", "users"])
def test_requests_with_answers_in_a_pull_point_or_listener(
    own: Own, jobs: str, receiver: Receiver, named: bool, request: pytest.FixtureRequest
) -> None:
    since_ms = int(time.time() * 1000)
    own.subscribe("watcher", receiver.url("/watcher"), "jobs", form="raw")
    gateway = request.getfixturevalue("guarded" if named else "gateway")
    anna, bert = (Credentials(name, f"of-{name}") if named else None for name in ("anna", "bert"))
    with (
        Client(gateway.base, credentials=anna) as user,
        Client(gateway.base, credentials=bert) as server,
        Listener() as listener,
        Worker(handle, capacity=2) as first,
        Worker(handle) as second,
    ):
        for worker in (first, second):
            wait_until_known(partial(worker.serve, server, jobs))
        for via in (None,) if named else (None, listener):
            assert user.request(jobs, "<job>1</job>", timeout=120, listener=via) == b"<done>1</done>"
            with pytest.raises(FaultReceived, match="refused this"):
                user.request(jobs, "<bad/>", timeout=120, listener=via)
        with ThreadPoolExecutor(8) as users:
            asking = [users.submit(user.request, jobs, f"<job>{number}</job>", timeout=120) for number in range(24)]
            assert [each.result() for each in asking] == [b"<done>%d</done>" % number for number in range(24)]
    wait_until(lambda: len(receiver.received("/watcher")) == 24 + (2 if named else 4), "each, at another subscriber")
    report = audit(own.job.settings.kafka, since_ms, deep=True)
    assert report.balanced, report


def wait_until_known(request: Callable[[], object]) -> None:
    """Wait until the gateway has read the records that a test appended to the control log."""

    def known() -> bool:
        with suppress(FaultReceived):
            request()
            return True
        return False

    wait_until(known, every_s=0.1)
